#!/usr/bin/env bash
# SIGKILL storm on real processes: see storm.py. PYTHON names the interpreter that has mpqueue.
#
#   stress/run.sh [--kills N | --seconds S] [--seed S] [--durability D]
#
# Exit code 0: no promise was broken. Otherwise the output ends in one line that repeats the storm.
set -euo pipefail
exec "${PYTHON:-python3}" "$(dirname "$0")/storm.py" "$@"

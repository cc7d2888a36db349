# Recipes for daily work; each calls what the full check calls.

# everything that has to pass before a change is pushed
check:
    .ci/run

# one or more steps of it: lint native proof packaging cross storm demo others readme
step +names:
    .ci/run {{names}}

lint:
    .ci/run lint

# reformats Python and C
format:
    ruff check --fix .
    ruff format .
    git ls-files -z '*.c' '*.h' | xargs -0 clang-format -i

# C tests under the sanitizers
native:
    make -C tests/native check

# rebuilds and installs into the active environment; run it again after a change of C
install:
    pip install ".[test]"

test *arguments:
    pytest {{arguments}}

# the pages as a site in build/site; needs pip install ".[docs]"
site:
    sphinx-build -W --keep-going docs build/site

# SIGKILL storm, for example: just storm --seconds 3600 --seed 7
storm *arguments:
    stress/run.sh {{arguments}}

# needs a quiet machine and a release build: pip install ".[bench]"
bench *arguments:
    python benchmarks/run_all.py {{arguments}}

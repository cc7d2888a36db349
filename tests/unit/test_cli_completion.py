"""Completion scripts and the manual page, in the shells and the formatter that read them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mpqueue.cli import VERBS, build_parser, common, tree

DOCS = Path(__file__).resolve().parents[2] / "docs"
VERBS_OF = {verb.words: verb for verb in tree.verbs(build_parser())}


def printed(*words: str) -> str:
    """What the command line prints."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "mpqueue", *words], capture_output=True, text=True, check=True
    )
    return done.stdout


def need(program: str) -> str:
    """Its path; skips where there is none."""
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"no {program} here")
    return found


ASKED = {
    "mpqueue pe": {"peek"},
    "mpqueue put --on": {"--on-full"},
    "mpqueue put --on-full ": {"block", "fail", "drop"},
    "mpqueue put --on-full block --prin": {"--print-seq"},
    "mpqueue put --file spo": {"spool.txt"},
    "mpqueue put spo": {"spool.txt"},
    "mpqueue put --timeout spo": set(),
}
"""A line as far as it was typed, and what may come next."""


def test_bash_completes(tmp_path: Path) -> None:
    (tmp_path / "spool.txt").touch()
    script = tmp_path / "mpqueue.bash"
    script.write_text(printed("--completion", "bash"))
    ask = """
    source "$1"; options=default
    compopt() { [[ $1 != +o ]] || options=none; }
    read -ra COMP_WORDS <<<"$2"
    [[ $2 != *" " ]] || COMP_WORDS+=("")
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    _mpqueue
    if ((${#COMPREPLY[@]} == 0)) && [[ $options = default ]]; then
        COMPREPLY=($(compgen -f -- "${COMP_WORDS[COMP_CWORD]}"))
    fi
    printf '%s\\n' "${COMPREPLY[@]}"
    """
    for line, expected in ASKED.items():
        done = subprocess.run(
            [need("bash"), "-euc", ask, "ask", script, line],
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert (set(done.stdout.split()), done.stderr) == (expected, ""), line


def test_fish_completes(tmp_path: Path) -> None:
    (tmp_path / "spool.txt").touch()
    script = tmp_path / "mpqueue.fish"
    script.write_text(printed("--completion", "fish"))
    asks = "; ".join(f"complete -C '{line}'; echo ==" for line in ASKED)
    done = subprocess.run(
        [need("fish"), "--no-config", "-c", f"source '{script}'; {asks}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.stderr == ""
    answers = [
        {line.split("\t")[0] for line in answer.splitlines() if line}
        for answer in done.stdout.split("==\n")
    ]
    assert dict(zip(ASKED, answers, strict=False)) == ASKED


def test_zsh_completes(tmp_path: Path) -> None:
    """A real line editor, in a terminal of its own: it inserts what is the only choice."""
    (tmp_path / "spool.txt").touch()
    (tmp_path / "_mpqueue").write_text(printed("--completion", "zsh"))
    typed = [line for line, choices in ASKED.items() if len(choices) == 1]
    talk = """
    zmodload zsh/zpty
    zpty z zsh -f -i
    zpty -w z "PROMPT= fpath=($PWD \\$fpath); autoload -U compinit; compinit -D -u; print RE''ADY"
    zpty -r z out "*READY*"
    for line; do
        zpty -w -n z "$line"$'\\t'
        zpty -w -n z $'\\C-aprint -rl -- "<\\C-e>"\\n'
        zpty -r z out "*"$'\\n'"<*>*"
        print -r -- "$out"
    done
    """
    done = subprocess.run(
        [need("zsh"), "-f", "-c", talk, "talk", *typed],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    got = re.findall(r"^<(.*?)\s*>", done.stdout, re.MULTILINE)
    expected = [f"{line.rpartition(' ')[0]} {next(iter(ASKED[line]))}" for line in typed]
    assert got == expected, done.stdout


def test_an_unknown_shell_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "mpqueue", "--completion", "tcsh"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "bash, zsh, fish" in done.stderr


def test_the_manual_has_every_verb_and_option_and_no_mistake(tmp_path: Path) -> None:
    page = tmp_path / "mpqueue.1"
    page.write_text(printed("--manual"))
    source = page.read_text().replace("\\-", "-")
    assert {words[0] for words in VERBS_OF} == set(VERBS)
    for words, verb in VERBS_OF.items():
        section = source.partition(f".SS {' '.join(words)}\n")[2].partition("\n.S")[0]
        assert section, words
        for option in verb.options:
            assert all(f"\\fB{flag}\\fR" in section for flag in option.flags), (words, option)
    done = subprocess.run(
        [need("groff"), "-man", "-ww", "-Tutf8", page], capture_output=True, text=True
    )
    assert done.stderr == ""
    assert "EXIT STATUS" in re.sub(".\x08", "", done.stdout)  # bold is struck twice


def test_the_page_lists_the_exit_codes_as_they_are() -> None:
    rows = re.findall(r"^\| ([\d, ]+) \| (.+) \|$", (DOCS / "cli.md").read_text(), re.MULTILINE)
    assert tuple(rows) == common.EXIT_CODES

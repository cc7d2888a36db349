"""Completion scripts for bash, zsh and fish, made of the argparse tree."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence

from mpqueue.cli.tree import Option, Verb

__all__ = ["SHELLS"]


def _bash(verbs: Sequence[Verb]) -> Iterator[str]:
    yield '# bash completion: eval "$(mpqueue --completion bash)"'
    yield "_mpqueue() {"
    yield '    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} words=""'
    yield '    local typed="${COMP_WORDS[*]:1:COMP_CWORD-1} "'
    yield "    COMPREPLY=()"
    yield '    case "$typed" in'
    for words, next_words in _prefixes(verbs):
        pattern = shlex.quote(" ".join(words) + " ") if words else '" "'
        yield f"        {pattern}) words={shlex.quote(' '.join(next_words))} ;;"
    yield "    esac"
    yield '    if [[ -z $words ]]; then case "$typed" in'
    for verb in verbs:
        typed = shlex.quote(" ".join(verb.words) + " ") + "*"
        yield f"        {typed})"
        yield "            case $before in"
        for option in verb.options:
            if option.metavar:
                yield f"                {'|'.join(option.flags)})"
                if option.choices:
                    yield f"                    words={shlex.quote(' '.join(option.choices))}"
                    yield '                    COMPREPLY=($(compgen -W "$words" -- "$word"))'
                elif not option.file:
                    yield "                    compopt +o default"
                yield "                    return ;;"
        yield "            esac"
        flags = " ".join(flag for option in verb.options for flag in option.flags)
        yield f"            [[ $word != -* ]] || words={shlex.quote(flags)} ;;"
    yield "    esac; fi"
    yield '    [[ -z $words ]] || COMPREPLY=($(compgen -W "$words" -- "$word"))'
    yield "}"
    yield "complete -o default -F _mpqueue mpqueue"


def _zsh(verbs: Sequence[Verb]) -> Iterator[str]:
    yield "#compdef mpqueue"
    yield "# zsh completion: mpqueue --completion zsh > a directory of $fpath/_mpqueue"
    yield "_mpqueue() {"
    yield '    local typed="${(j: :)words[2,CURRENT-1]} "'
    yield '    case "$typed" in'
    for words, next_words in _prefixes(verbs):
        pattern = shlex.quote(" ".join(words) + " ") if words else '" "'
        yield f"        {pattern}) compadd -- {shlex.join(next_words)}; return ;;"
    yield "    esac"
    yield '    case "$typed" in'
    for verb in verbs:
        count = len(verb.words)
        yield f"        {shlex.quote(' '.join(verb.words) + ' ')}*)"
        yield f"            shift {count} words; (( CURRENT -= {count} ))"
        specs = [_zsh_spec(option, flag) for option in verb.options for flag in option.flags]
        lines = ["            _arguments", *map(shlex.quote, [*specs, "*:word:_files"])]
        yield " \\\n                ".join(lines)
        yield "            ;;"
    yield "    esac"
    yield "}"
    yield '[[ $zsh_eval_context == *loadautofunc ]] && _mpqueue "$@" || compdef _mpqueue mpqueue'


def _zsh_spec(option: Option, flag: str) -> str:
    text = option.summary.replace("\\", "\\\\").replace("[", "\\[").replace("]", "\\]")
    spec = f"{flag}[{text}]"
    if option.metavar:
        files = "_files" if option.file else " "
        values = f"({' '.join(option.choices)})" if option.choices else files
        spec += f":{option.metavar.replace(':', chr(92) + ':')}:{values}"
    return spec


def _fish(verbs: Sequence[Verb]) -> Iterator[str]:
    yield "# fish completion: mpqueue --completion fish > ~/.config/fish/completions/mpqueue.fish"
    yield "function __mpqueue_after"
    yield "    set -l typed (commandline -opc)[2..]"
    yield '    test "$typed" = "$argv"'
    yield "end"
    yield "function __mpqueue_in"
    yield "    set -l typed (commandline -opc)[2..]"
    yield '    string match -q -- "$argv *" "$typed "'
    yield "end"
    summaries = {verb.words: verb.summary for verb in verbs}
    for words, next_words in _prefixes(verbs):
        for word in next_words:
            summary = summaries.get((*words, word), "")
            yield _fish_line("__mpqueue_after", words, f"-f -a {word}", summary)
    for verb in verbs:
        for option in verb.options:
            flags = [f"-l {flag[2:]}" for flag in option.flags if flag.startswith("--")]
            flags += [f"-s {flag[1:]}" for flag in option.flags if not flag.startswith("--")]
            if option.choices:
                flags.append(f"-x -a {shlex.quote(' '.join(option.choices))}")
            elif option.metavar:
                flags.append("-r" if option.file else "-x")
            yield _fish_line("__mpqueue_in", verb.words, " ".join(flags), option.summary)


def _fish_line(test: str, words: tuple[str, ...], what: str, summary: str) -> str:
    condition = shlex.quote(" ".join((test, *words)))
    text = summary.replace("\\", "\\\\").replace("'", "\\'")
    return f"complete -c mpqueue -n {condition} {what} -d '{text}'"


def _prefixes(verbs: Sequence[Verb]) -> Iterator[tuple[tuple[str, ...], list[str]]]:
    """What may be typed after which words, as long as it is a verb."""
    found: dict[tuple[str, ...], list[str]] = {}
    for verb in verbs:
        for count in range(len(verb.words)):
            words = found.setdefault(verb.words[:count], [])
            if verb.words[count] not in words:
                words.append(verb.words[count])
    yield from found.items()


SHELLS: dict[str, Callable[[Sequence[Verb]], Iterator[str]]] = {
    "bash": _bash,
    "zsh": _zsh,
    "fish": _fish,
}
"""A script's lines, by shell."""

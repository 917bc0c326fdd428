"""`tidegate completion`: a script that completes commands, options and files in a shell."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

SHELLS = ("bash", "zsh", "fish")


def script(parser: argparse.ArgumentParser, shell: str) -> str:
    """The completion script of a parser for a shell."""
    words = {" ".join(path): _words(found) for path, found in _commands(parser)}
    return _fish(words) if shell == "fish" else _bash(words, is_zsh=shell == "zsh")


def _commands(
    parser: argparse.ArgumentParser, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], argparse.ArgumentParser]]:
    """A parser and those of its commands, each with the words that lead to it."""
    yield path, parser
    for name, found in _subparsers(parser).items():
        yield from _commands(found, (*path, name))


def _subparsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    for action in parser._actions:  # noqa: SLF001 - argparse has no other access
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - likewise
            return dict(action.choices)
    return {}


def _words(parser: argparse.ArgumentParser) -> list[str]:
    """The commands and long options of a parser."""
    actions = parser._actions  # noqa: SLF001 - argparse has no other access
    options = [name for one in actions for name in one.option_strings if name.startswith("--")]
    return [*_subparsers(parser), *options]


def _bash(words: dict[str, list[str]], *, is_zsh: bool) -> str:
    cases = "\n".join(
        f"    {path.replace(' ', '-') or 'top'}) words='{' '.join(found)}';;"
        for path, found in words.items()
    )
    known = " ".join(f"'{path}'" for path in words if path)
    start = "autoload -U +X bashcompinit && bashcompinit\n" if is_zsh else ""
    return f"""{start}_tidegate() {{
  local path='' word words known=({known})
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    local longer="${{path:+$path }}$word" one
    for one in "${{known[@]}}"; do
      if [ "$one" = "$longer" ]; then path="$longer"; break; fi
    done
  done
  path="${{path// /-}}"
  case "${{path:-top}}" in
{cases}
  esac
  COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o default -F _tidegate tidegate
"""


def _fish(words: dict[str, list[str]]) -> str:
    lines = []
    for path, found in words.items():
        seen = " ".join(path.split())
        shown = f"string match -q -- 'tidegate{f' {seen}' if seen else ''}*' (commandline -cp)"
        condition = shown if seen else f"__fish_use_subcommand; or {shown}"
        for word in found:
            kind = f"-l {word[2:]}" if word.startswith("--") else f"-a {word}"
            lines.append(f'complete -c tidegate -n "{condition}" {kind}')
    return "\n".join(lines) + "\n"

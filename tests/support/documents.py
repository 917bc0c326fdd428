"""Reads the project's Markdown: its code blocks, and the commands it tells people to type."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
SHELLS = {"", "sh", "bash", "shell", "console"}
FENCE = re.compile(
    r"^(?P<fence>`{3,}|~{3,})["
    r" ]*(?P<language>[\w+-]*)(?P<mark>[^\n]*)\n(?P<code>.*?)^(?P=fence)[ ]*$",
    re.MULTILINE | re.DOTALL,
)
INLINE = re.compile(r"`([^`\n]+)`")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, the line it begins at, and whether only blank lines
    part it from the block before.
    """

    language: str
    code: str
    line: int
    follows: bool
    mark: str = ""
    """What stands behind the language: examples for Spark are marked `spark`."""


def documents() -> list[Path]:
    """README, CONTRIBUTING and everything under docs/."""
    top = [REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md")]
    return [path for path in top if path.exists()] + sorted((REPOSITORY / "docs").rglob("*.md"))


def name_of(path: Path) -> str:
    return path.relative_to(REPOSITORY).as_posix()


def blocks(text: str) -> list[Block]:
    r"""The fenced blocks of a document, in order.

    >>> [(block.language, block.code, block.line) for block in blocks("Try:\n\n```python\nprint(1)\n```\n")]
    [('python', 'print(1)\n', 4)]
    """
    found, end = [], 0
    for match in FENCE.finditer(text):
        follows = bool(found) and not text[end : match.start()].strip()
        found.append(
            Block(
                match["language"],
                match["code"],
                text.count("\n", 0, match.start("code")) + 1,
                follows,
                match["mark"].strip(),
            )
        )
        end = match.end()
    return found


def commands(text: str) -> Iterator[list[str]]:
    r"""The words of every `make` and `tidegate` command in shell blocks and in inline code.

    >>> list(commands("Run `make test`.\n\n```sh\ncd x && tidegate replay FILE... [--json]  # all\n```\n"))
    [['tidegate', 'replay', 'FILE...', '[--json]'], ['make', 'test']]
    """
    lines = [
        line
        for block in blocks(text)
        if block.language in SHELLS
        for line in block.code.splitlines()
    ]
    lines += INLINE.findall(FENCE.sub("", text))
    for line in lines:
        for part in re.split(r"&&|\|\||[;|]", line.removeprefix("$ ")):
            if re.match(r"\s*(make|tidegate)(\s|$)", part):
                yield shlex.split(part, comments=True)

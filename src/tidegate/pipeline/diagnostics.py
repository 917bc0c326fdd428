"""Problems of a pipeline file: each with its location, the broken rule and a hint.

All of them are collected before any is raised.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from tidegate.errors import ParseError
from tidegate.redaction import redacted


@dataclass(frozen=True, order=True)
class Problem:
    """A broken rule with its location; lines and columns count from 1."""

    line: int
    column: int
    rule: str
    hint: str = ""

    def __str__(self) -> str:
        return (
            f"line {self.line}, column {self.column}:"
            f" {self.rule}{f'. Hint: {self.hint}' if self.hint else ''}"
        )


class Placed(Protocol):
    """Anything with a location in a file."""

    @property
    def place(self) -> tuple[int, int]: ...


class PipelineFileError(ParseError):
    """A pipeline file is invalid; `problems` has all of its problems."""

    def __init__(self, name: str, problems: Iterable[Problem]) -> None:
        self.problems = tuple(sorted(set(problems)))
        many = f"{len(self.problems)} problems" if len(self.problems) > 1 else "a problem"
        super().__init__(
            f"pipeline file `{name}` has {many}:\n"
            + "\n".join(f"  {problem}" for problem in self.problems)
        )


class Diagnostics:
    """The problems found so far."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.found: list[Problem] = []

    def add(self, at: Placed | tuple[int, int], rule: str, hint: str = "") -> None:
        """Add a problem; a hint within the text of the rule becomes its hint.

        Values in the text are those of the file, so secrets are hidden.
        """
        line, column = at if isinstance(at, tuple) else at.place
        text, _, carried = rule.rstrip(".").partition(". Hint: ")
        self.found.append(Problem(line, column, redacted(text), redacted(hint or carried)))

    def unknown(
        self, at: Placed | tuple[int, int], word: str, what: str, known: Iterable[str]
    ) -> None:
        """Add a problem for a name that is not one of the known ones."""
        words = sorted(known)
        near = difflib.get_close_matches(word.lower(), words, 1)
        there = (
            f"one of {', '.join(f'`{w}`' for w in words)}" if words else "no name is allowed here"
        )
        self.add(at, f"`{word}` is not {what}", f"did you mean `{near[0]}`?" if near else there)

    def raise_any(self) -> None:
        """Raise the collected problems, if any."""
        if self.found:
            raise PipelineFileError(self.name, self.found)

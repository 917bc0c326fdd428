"""What is wrong in a pipeline file: every problem with its place, the rule it breaks and a hint,
gathered before any of it is told.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from tidegate.errors import ParseError


@dataclass(frozen=True, order=True)
class Problem:
    """One broken rule, and where; lines and columns count from 1."""

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
    """Whatever stands somewhere in a file."""

    @property
    def place(self) -> tuple[int, int]: ...


class PipelineFileError(ParseError):
    """A pipeline file cannot be used; `problems` has everything that is wrong with it."""

    def __init__(self, name: str, problems: Iterable[Problem]) -> None:
        self.problems = tuple(sorted(set(problems)))
        many = f"{len(self.problems)} problems" if len(self.problems) > 1 else "a problem"
        super().__init__(
            f"pipeline file `{name}` has {many}:\n"
            + "\n".join(f"  {problem}" for problem in self.problems)
        )


class Problems:
    """The problems found so far."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.found: list[Problem] = []

    def add(self, at: Placed | tuple[int, int], rule: str, hint: str = "") -> None:
        """One more; a hint that the rule's text carries already is taken out of it."""
        line, column = at if isinstance(at, tuple) else at.place
        said, _, carried = rule.rstrip(".").partition(". Hint: ")
        self.found.append(Problem(line, column, said, hint or carried))

    def unknown(
        self, at: Placed | tuple[int, int], word: str, what: str, known: Iterable[str]
    ) -> None:
        """A word that is none of those which can stand there."""
        words = sorted(known)
        near = difflib.get_close_matches(word.lower(), words, 1)
        there = (
            f"there are {', '.join(f'`{w}`' for w in words)}"
            if words
            else "nothing can stand there"
        )
        self.add(
            at, f"`{word}` is not known as {what}", f"did you mean `{near[0]}`?" if near else there
        )

    def tell(self) -> None:
        """Raise what was found, if anything was."""
        if self.found:
            raise PipelineFileError(self.name, self.found)

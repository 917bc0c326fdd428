"""Pipelines as trees of plain values: sources, windowed aggregates and joins.

A tree says only what the batch answer depends on, and the settings of a running operator (trigger,
mode, lateness) beside it. `batch` evaluates it, `embedded` and `spark` build it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

Row: TypeAlias = dict[str, Any]
ENOUGH = 10_000
"""An allowed lateness that no event of a history exceeds."""
COUNTING = ("count", "count_distinct", "squares", "spread")
"""Functions whose result is an integer."""
AVERAGING = ("mean", "median", "quantile", "stddev")
"""Functions whose result is a float."""
KEEPING = ("sum", "min", "max", "first", "last")
"""Functions whose result has the type of their column."""


@dataclass(frozen=True)
class Source:
    """A stream of rows with a time, two keys, an integer, a float, a text and a number; sources of
    one family have the same columns, so that they can be united.
    """

    name: str
    family: str
    identity: str = "id"
    """How duplicates are recognised: by `id`, by `offset`, or not at all (`none`)."""
    watermark: str = "explicit"

    @property
    def time(self) -> str:
        return f"ts_{self.family}"

    @property
    def keys(self) -> tuple[str, ...]:
        return ("k", "u")

    @property
    def values(self) -> tuple[str, ...]:
        return (f"v_{self.family}",)

    @property
    def floats(self) -> tuple[str, ...]:
        return (f"w_{self.family}",)

    @property
    def texts(self) -> tuple[str, ...]:
        return (f"s_{self.family}",)

    @property
    def number(self) -> str:
        """The column that numbers rows in the order of arrival."""
        return f"n_{self.family}"

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.time, "k", "u", *self.values, *self.floats, *self.texts, self.number)


@dataclass(frozen=True)
class Window:
    """A window by kind: tumbling, hopping, cumulative, sliding, session, global, inherited, and
    tumbling or hopping over the messages of a key (`ordinal`) or over offsets (`offset`).
    """

    kind: str
    size: int = 0
    slide: int = 0
    axis: str = "event_time"
    offset: int = 0
    by: str | None = None
    """The column whose values multiply the gap of a session."""


@dataclass(frozen=True)
class Value:
    """An aggregate: a function over a column, of one input of a merge or of all; with `above`, of
    rows whose value is greater.
    """

    name: str
    function: str
    column: str | None = None
    of: str | None = None
    above: int | None = None


@dataclass(frozen=True)
class Aggregate:
    """A windowed aggregate of one input, of a union, or with `names` of a merge."""

    inputs: tuple[Node, ...]
    window: Window
    key: tuple[str, ...]
    aggregates: tuple[Value, ...]
    trigger: str | None = None
    """The text form of the trigger."""
    mode: str = "accumulating"
    lateness: int = ENOUGH
    names: tuple[str, ...] = ()
    only_updated: bool = False
    options: tuple[tuple[str, str], ...] = ()
    """Options that the answer does not depend on, but for the rows that are too late."""
    time: str = "time"
    """The column that the next operator goes by: `time`, `window_start` or `window_end`."""

    @property
    def keys(self) -> tuple[str, ...]:
        return self.key

    @property
    def values(self) -> tuple[str, ...]:
        """The columns with integers."""
        return self._of_kind("values", COUNTING)

    @property
    def floats(self) -> tuple[str, ...]:
        return self._of_kind("floats", AVERAGING)

    @property
    def texts(self) -> tuple[str, ...]:
        return self._of_kind("texts", ())

    def _of_kind(self, kind: str, functions: tuple[str, ...]) -> tuple[str, ...]:
        """The results of these functions, and values taken from input columns of a kind."""
        columns = {name for node in self.inputs for name in getattr(node, kind)}
        return tuple(
            value.name
            for value in self.aggregates
            if value.function in functions
            or (value.function in KEEPING and value.column in columns)
        )

    @property
    def columns(self) -> tuple[str, ...]:
        names = (value.name for value in self.aggregates)
        return (*self.key, "window_start", "window_end", "time", *names)


@dataclass(frozen=True)
class Match:
    """The window of a join by kind: within, tumbling, hopping, cumulative, sliding, global, session
    or as_of.
    """

    kind: str
    before: int = 0
    """The lower bound, size, gap or tolerance."""
    after: int = 0
    """The upper bound, or slide."""

    @property
    def has_bounds(self) -> bool:
        return self.kind in ("tumbling", "hopping", "cumulative", "sliding", "session", "global")


@dataclass(frozen=True)
class Join:
    """A join of two inputs on equal key columns."""

    left: Node
    right: Node
    match: Match
    on: tuple[str, ...]
    how: str
    lateness: int = ENOUGH
    padding: str = "complete"
    time_of: int = 0
    """The side whose time the output goes by."""
    ascending: bool = False
    """Whether the first integer of the left must not be greater than that of the right."""
    every: int | None = None
    """The period in which output is batched."""

    @property
    def inputs(self) -> tuple[Node, ...]:
        return (self.left, self.right)

    @property
    def shows_right(self) -> bool:
        return self.how not in ("semi", "anti")

    @property
    def time(self) -> str:
        return self.shown(self.time_of, self.inputs[self.time_of].time)

    @property
    def keys(self) -> tuple[str, ...]:
        others = self._keys_of(0) + (self._keys_of(1) if self.shows_right else ())
        return (*self.on, *others)

    def _keys_of(self, side: int) -> tuple[str, ...]:
        return tuple(
            self.shown(side, name) for name in self.inputs[side].keys if name not in self.on
        )

    @property
    def values(self) -> tuple[str, ...]:
        return self._of_kind("values")

    @property
    def floats(self) -> tuple[str, ...]:
        return self._of_kind("floats")

    @property
    def texts(self) -> tuple[str, ...]:
        return self._of_kind("texts")

    def _of_kind(self, kind: str) -> tuple[str, ...]:
        sides = (0, 1) if self.shows_right else (0,)
        return tuple(
            self.shown(side, name) for side in sides for name in getattr(self.inputs[side], kind)
        )

    @property
    def columns(self) -> tuple[str, ...]:
        sides = (0, 1) if self.shows_right else (0,)
        bounds = ("window_start", "window_end") if self.match.has_bounds else ()
        return (
            *self.on,
            *(
                self.shown(side, name)
                for side in sides
                for name in self.inputs[side].columns
                if name not in self.on
            ),
            *bounds,
        )

    @property
    def undetermined(self) -> set[str]:
        """Columns that depend on the order of arrival: the bounds of the windows that rows met in,
        where they share several, or where the window still grows.
        """
        found = {
            self.shown(side, name)
            for side, child in enumerate(self.inputs)
            if isinstance(child, Join)
            for name in child.undetermined
        }
        if self.match.kind in ("hopping", "cumulative", "sliding", "session"):
            found |= {"window_start", "window_end"}
        return found

    def shown(self, side: int, name: str) -> str:
        """The output column of a column of a side: prefixed, as often as needed, if both have it."""
        if name in self.on:
            return name
        bounds = {"window_start", "window_end"} if self.match.has_bounds else set()
        sides = [set(child.columns) for child in self.inputs]
        if not self.shows_right:
            sides[1] = set()
        if name not in bounds | sides[1 - side]:
            return name
        found = f"{('left_', 'right_')[side]}{name}"
        while found in bounds | sides[0] | sides[1]:
            found = f"{('left_', 'right_')[side]}{found}"
        return found


Node: TypeAlias = Source | Aggregate | Join
Operator: TypeAlias = Aggregate | Join


def operators(node: Node) -> Iterator[Operator]:
    """The operators of a pipeline, upstream first."""
    if not isinstance(node, Source):
        for child in node.inputs:
            yield from operators(child)
        yield node


def sources(node: Node) -> Iterator[Source]:
    """The sources of a pipeline."""
    if isinstance(node, Source):
        yield node
    else:
        for child in node.inputs:
            yield from sources(child)

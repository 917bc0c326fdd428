"""Adapter between a scenario and a join: messages in, pairs of messages out.

Every message has a number in a column of its side, so that these two columns of an output row
identify its messages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from tidegate.instants import MAX
from tidegate.scenarios.aggregate_adapter import ValueCodes
from tidegate.scenarios.join_words import value_column
from tidegate.scenarios.runtimes import Records, Runtime, window_of
from tidegate.scenarios.ticks import Ticks
from tidegate.spec.join import LEFT, RIGHT, SIDES, Condition, JoinSpec, JoinWindow, Rows
from tidegate.spec.operator import AggregateSpec, Input, Options
from tidegate.spec.watermarks import Explicit

Message = Mapping[str, Any]
KEY = "k"


@dataclass(frozen=True)
class Terms:
    """The settings of a join, except the columns of its inputs."""

    window: JoinWindow
    how: str = "inner"
    keyed: bool = False
    where: Condition | None = None
    allowed_lateness: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    padding: str = "complete"
    periods: tuple[int | None, int | None] = (None, None)

    @property
    def counts(self) -> bool:
        """Whether rows meet by offset."""
        return isinstance(self.window, Rows)

    def spec(self) -> JoinSpec:
        """The specification; the scenario sets the watermark of each side."""
        left, right = (
            Input(
                time=None if self.counts else time_column(side),
                offset=_offset_column(side) if self.counts else None,
                watermark=Explicit(),
            )
            for side in (LEFT, RIGHT)
        )
        return JoinSpec(
            left,
            right,
            self.window,
            on=((KEY, KEY),) if self.keyed else (),
            how=self.how,
            where=self.where,
            allowed_lateness=self.allowed_lateness,
            options=Options(**{"future_tolerance": MAX, **self.options}),
            padding=self.padding,
            on_time_period=self.periods[0],
            late_period=self.periods[1],
        )


@dataclass(frozen=True)
class Pair:
    """One output row."""

    left: Message | None
    right: Message | None
    timing: str
    retract: bool
    window: tuple[int, int] | None

    def message(self, side: int) -> Message | None:
        return self.right if side == RIGHT else self.left


@dataclass(frozen=True)
class LateMessage:
    """A message of the late output."""

    side: int
    message: Message
    reason: str


class JoinUnderTest:
    """One join of a scenario."""

    def __init__(
        self,
        terms: Terms,
        ticks: Ticks,
        runtime: Runtime,
        *,
        now: int = 0,
        then: AggregateSpec | None = None,
    ) -> None:
        self._terms, self._ticks, self.now = terms, ticks, now
        self._keys = ValueCodes()
        self._messages: list[Message] = []
        schemas = self._table(LEFT, []).schema, self._table(RIGHT, []).schema
        self._running = runtime.open_join(terms.spec(), schemas, now, then)

    @property
    def is_rehearsed(self) -> bool:
        """Whether nothing runs yet, so that there is nothing to check."""
        return self._running.is_rehearsed

    def add(self, left: Sequence[Message] = (), right: Sequence[Message] = ()) -> None:
        """One delivery of messages with `t`, `k`, `v` and `offset`."""
        tables = {
            side: self._table(side, messages)
            for side, messages in ((LEFT, left), (RIGHT, right))
            if messages
        }
        if tables:
            self._running.add(tables, self.now)

    def advance_watermark(self, side: int, watermark: int) -> None:
        self._running.advance_watermark(side, watermark)

    def run_clock(self, now: int) -> None:
        """Advance the clock and run what is due."""
        self.now = now
        self._running.run_clock(now)

    def finish(self) -> None:
        self._running.finish()

    def restart(self) -> None:
        self._running.restart(self.now)

    def take(self) -> tuple[list[Pair], list[LateMessage]]:
        """Pairs and late messages since the last call."""
        rows, late = self._running.take()
        return [self._pair(row) for row in rows], self._late(late)

    def take_rows(self) -> tuple[Records, list[LateMessage]]:
        """The panes of a window downstream, and late messages, since the last call."""
        rows, late = self._running.take()
        return rows, self._late([row for row in late if row.keys() & set(SIDES)])

    def output_watermark(self, side: int | None = None) -> int:
        """The output watermark for the time of a side, or the least of both."""
        found = self._running.output_watermarks()
        return found[""] if side is None else found.get(time_column(side), found[""])

    def held(self, side: int) -> list[Message]:
        """The buffered messages of a side."""
        return [self._messages[row[SIDES[side]]] for row in self._running.held(side)]

    def _table(self, side: int, messages: Sequence[Message]) -> pa.Table:
        numbers = range(len(self._messages), len(self._messages) + len(messages))
        self._messages.extend(messages)
        columns: dict[str, pa.Array] = {SIDES[side]: pa.array(numbers, pa.int64())}
        if self._terms.keyed:
            keys = [message.get("k") for message in messages]
            columns[KEY] = pa.array(
                [None if key is None else self._keys.code(key) for key in keys], pa.int64()
            )
        if self._terms.counts:
            columns[_offset_column(side)] = pa.array(
                [message.get("offset") for message in messages], pa.int64()
            )
        else:
            times = [message.get("t") for message in messages]
            columns[time_column(side)] = pa.array(
                [None if time is None else self._ticks(time) for time in times], pa.int64()
            )
        if self._terms.where is not None:
            columns[value_column(side)] = pa.array(
                [message.get("v") for message in messages], pa.int64()
            )
        return pa.table(columns)

    def _pair(self, row: Mapping[str, Any]) -> Pair:
        numbers = [row.get(side) for side in SIDES]
        left, right = (None if number is None else self._messages[number] for number in numbers)
        return Pair(
            left,
            right,
            row["timing"],
            row["op"] == "-",
            window_of(row) if "window_start" in row else None,
        )

    def _late(self, rows: Records) -> list[LateMessage]:
        found = [
            (side, row[name], row["reason"])
            for row in rows
            for side, name in enumerate(SIDES)
            if row.get(name) is not None
        ]
        return [LateMessage(side, self._messages[number], reason) for side, number, reason in found]


def time_column(side: int) -> str:
    """The time column of a side, in its input and in the output."""
    return f"{SIDES[side]}_t"


def _offset_column(side: int) -> str:
    return f"{SIDES[side]}_offset"

"""Runtimes: where the operators of scenarios run, and the interface of a running operator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

import pyarrow as pa

from tidegate.api.streams import Panes
from tidegate.embedded.join import EmbeddedJoin
from tidegate.embedded.operator import EmbeddedOperator
from tidegate.instants import MAX, MIN, instant
from tidegate.operators.aggregate.operator import WindowedAggregate
from tidegate.spec.join import LEFT, RIGHT, JoinSpec
from tidegate.spec.operator import AggregateSpec
from tidegate.state.memory import MemoryStore

Records = list[dict[str, Any]]
Window = tuple[int, int]
SHARD = "shard"
"""Column with the shard of a row; there is no order between shards."""


@dataclass(frozen=True)
class Adjustment:
    """A function of an importable module that is applied to an operator, as JSON can hold it."""

    function: str
    """`module:name` of a function that takes the operator and the arguments."""
    arguments: Mapping[str, Any]

    def __call__(self, operator: WindowedAggregate) -> None:
        module, _, name = self.function.partition(":")
        getattr(import_module(module), name)(operator, **self.arguments)


class RunningAggregate(Protocol):
    """One operator that runs somewhere."""

    is_rehearsed: bool
    """Whether steps are only recorded: nothing runs yet, and results have no meaning."""

    def add(self, table: pa.Table, now: int, ordinal: int = 0) -> None:
        """One delivery."""

    def advance_watermark(self, watermark: int, ordinal: int = 0) -> None: ...

    def run_clock(self, now: int) -> None:
        """Run what is due."""

    def finish(self) -> None: ...

    def restart(self, now: int) -> None:
        """Drop everything but the stored state, and continue."""

    def adjust(self, adjustment: Adjustment) -> None:
        """Apply a function to the operator before its next delivery, and again until a restart.

        For extensions: it reaches what no verb of an operator does, such as a trigger of theirs.
        Operators on Spark are in other processes, so it is a name with arguments and no closure.
        """

    def take(self) -> tuple[Records, Records]:
        """Panes and late rows since the last call."""

    @property
    def dropped(self) -> int: ...

    @property
    def hold(self) -> int | None: ...

    @property
    def watermark(self) -> int: ...

    @property
    def output_watermark(self) -> int: ...

    def windows(self) -> list[Window]:
        """The windows that have state, each once."""

    def contents(self) -> Records:
        """Window, key and current value of every open window."""


class RunningJoin(Protocol):
    """One join that runs somewhere, alone or with a window after it."""

    is_rehearsed: bool
    """As for `RunningAggregate`."""

    def add(self, tables: Mapping[int, pa.Table], now: int) -> None:
        """One delivery of one side, or of both at once."""

    def advance_watermark(self, side: int, watermark: int) -> None: ...

    def run_clock(self, now: int) -> None:
        """Run what is due."""

    def finish(self) -> None: ...

    def restart(self, now: int) -> None:
        """Drop everything but the stored state, and continue."""

    def take(self) -> tuple[Records, Records]:
        """The output of the last operator, and late rows, since the last call."""

    def output_watermarks(self) -> dict[str, int]:
        """Output watermarks by time column, and the least of them under the empty name."""

    def held(self, side: int) -> Records:
        """The buffered rows of a side."""


class Runtime(Protocol):
    """Opens operators."""

    def open(self, spec: AggregateSpec, schema: pa.Schema, now: int) -> RunningAggregate:
        """An operator for input with these columns; its clock begins at `now`."""

    def open_join(
        self,
        spec: JoinSpec,
        schemas: tuple[pa.Schema, pa.Schema],
        now: int,
        then: AggregateSpec | None = None,
    ) -> RunningJoin:
        """A join for inputs with these columns, and a window downstream of it where there is one;
        the clock begins at `now`.
        """


class Embedded:
    """Operators in this process."""

    def open(self, spec: AggregateSpec, schema: pa.Schema, now: int) -> RunningAggregate:  # noqa: ARG002 - the first delivery tells it
        return _Embedded(spec, now)

    def open_join(
        self,
        spec: JoinSpec,
        schemas: tuple[pa.Schema, pa.Schema],
        now: int,
        then: AggregateSpec | None = None,
    ) -> RunningJoin:
        return _EmbeddedJoin(spec, schemas, now, then)


class _Embedded:
    is_rehearsed = False

    def __init__(self, spec: AggregateSpec, now: int) -> None:
        self._panes, self._store = Panes(spec), MemoryStore()
        self._operator = self._opened(now)

    def _opened(self, now: int) -> EmbeddedOperator:
        return self._panes.embedded(store=self._store, now=now)

    def add(self, table: pa.Table, now: int, ordinal: int = 0) -> None:
        self._operator.add_messages(table, now=now, input=ordinal)

    def advance_watermark(self, watermark: int, ordinal: int = 0) -> None:
        self._operator.advance_watermark(_instant(watermark), input=ordinal)

    def run_clock(self, now: int) -> None:
        self._operator.timeout(now)

    def finish(self) -> None:
        self._operator.finish()

    def restart(self, now: int) -> None:
        """Flush, forget the operator, and open another one on the same store."""
        self._operator.flush()
        self._operator = self._opened(now)

    def adjust(self, adjustment: Adjustment) -> None:
        adjustment(self._operator.operator)

    def take(self) -> tuple[Records, Records]:
        result = self._operator.get_result()
        self._operator.flush()
        return result.panes.to_pylist(), result.late.to_pylist()

    @property
    def dropped(self) -> int:
        return int(self._operator.stats()["dropped_pairs"])

    @property
    def hold(self) -> int | None:
        return self._operator.hold

    @property
    def watermark(self) -> int:
        found = self._operator.watermark
        return MIN if found is None else found

    @property
    def output_watermark(self) -> int:
        return self._operator.output_watermark

    def windows(self) -> list[Window]:
        return sorted({window_of(row) for row in self._operator.get_windows(None, None)})

    def contents(self) -> Records:
        found: Records = self._operator.peek().to_pylist()
        return found


class _EmbeddedJoin:
    is_rehearsed = False

    def __init__(
        self,
        spec: JoinSpec,
        schemas: tuple[pa.Schema, pa.Schema],
        now: int,
        then: AggregateSpec | None,
    ) -> None:
        self._spec, self._schemas, self._then = spec, schemas, then
        self._stores = MemoryStore(), MemoryStore()
        self._open(now)

    def _open(self, now: int) -> None:
        window = (
            None
            if self._then is None
            else Panes(self._then).embedded(store=self._stores[1], now=now)
        )
        self._window: EmbeddedOperator | None = window
        self._join = EmbeddedJoin(
            self._spec, store=self._stores[0], downstream=window, now=now, schemas=self._schemas
        )

    def add(self, tables: Mapping[int, pa.Table], now: int) -> None:
        self._join.add(left=tables.get(LEFT), right=tables.get(RIGHT), now=now)

    def advance_watermark(self, side: int, watermark: int) -> None:
        self._join.advance_watermark(_instant(watermark), input=side)

    def run_clock(self, now: int) -> None:
        self._join.timeout(now)

    def finish(self) -> None:
        self._join.finish()

    def restart(self, now: int) -> None:
        """Flush, forget the operators, and open others on the same stores."""
        self._join.flush()
        self._open(now)

    def take(self) -> tuple[Records, Records]:
        joined = self._join.get_result()
        last = joined if self._window is None else self._window.get_result()
        late = [*joined.late.to_pylist(), *([] if last is joined else last.late.to_pylist())]
        self._join.flush()
        return last.panes.to_pylist(), late

    def output_watermarks(self) -> dict[str, int]:
        return {**self._join.output_watermarks, "": self._join.output_watermark}

    def held(self, side: int) -> Records:
        found: Records = self._join.get_messages(side).to_pylist()
        return found


EMBEDDED: Runtime = Embedded()


def _instant(watermark: int) -> int | str:
    return {MIN: "-inf", MAX: "+inf"}.get(watermark, watermark)


def window_of(row: Mapping[str, Any]) -> Window:
    """The window of a row; a missing end is the end of time."""
    start, end = row["window_start"], row["window_end"]
    return MIN if start is None else instant(start), MAX if end is None else instant(end)

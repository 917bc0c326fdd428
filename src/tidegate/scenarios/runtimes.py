"""Runtimes: where the operators of scenarios run, and the few verbs that a scenario has for an operator whatever runs it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import pyarrow as pa

from tidegate.api import Panes
from tidegate.embedded.operator import EmbeddedOperator
from tidegate.instants import MAX, MIN
from tidegate.spec.operator import AggregateSpec
from tidegate.state.memory import MemoryStore

Rows = list[dict[str, Any]]
Window = tuple[int, int]
SHARD = "shard"
"""Which of several shards put a row out, where there are shards; between them there is no order."""


class Running(Protocol):
    """One operator that runs somewhere."""

    is_rehearsed: bool
    """Whether the scenario only tells what it is going to do: nothing runs yet, and nothing that is asked has a meaning."""

    def add(self, table: pa.Table, now: int, ordinal: int = 0) -> None:
        """One delivery."""

    def advance_watermark(self, watermark: int) -> None: ...

    def run_clock(self, now: int) -> None:
        """Run what is due."""

    def finish(self) -> None: ...

    def restart(self, now: int) -> None:
        """Keep nothing but the stored state, and go on."""

    def set_manual(self, *, ready: bool, finishes: bool) -> None:
        """What a `Manual` trigger says from now on; no user's operator has one, so there is no verb for it."""

    def take(self) -> tuple[Rows, Rows]:
        """Panes and late rows since the last time."""

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

    def contents(self) -> Rows:
        """Window, key and present value of every open window."""


class Runtime(Protocol):
    """Opens operators."""

    def open(self, spec: AggregateSpec, schema: pa.Schema, now: int) -> Running:
        """An operator for input with these columns; its clock begins at `now`."""


class Embedded:
    """Operators in this process."""

    def open(self, spec: AggregateSpec, schema: pa.Schema, now: int) -> Running:  # noqa: ARG002 - the first delivery tells it
        return _Embedded(spec, now)


class _Embedded:
    is_rehearsed = False

    def __init__(self, spec: AggregateSpec, now: int) -> None:
        self._panes, self._store = Panes(spec), MemoryStore()
        self._operator = self._opened(now)

    def _opened(self, now: int) -> EmbeddedOperator:
        return self._panes.embedded(store=self._store, now=now)

    def add(self, table: pa.Table, now: int, ordinal: int = 0) -> None:
        self._operator.add_messages(table, now=now, input=ordinal)

    def advance_watermark(self, watermark: int) -> None:
        self._operator.advance_watermark({MIN: "-inf", MAX: "+inf"}.get(watermark, watermark))

    def run_clock(self, now: int) -> None:
        self._operator.timeout(now)

    def finish(self) -> None:
        self._operator.finish()

    def restart(self, now: int) -> None:
        """Flush, forget the operator, and open another one on the same store."""
        self._operator.flush()
        self._operator = self._opened(now)

    def set_manual(self, *, ready: bool, finishes: bool) -> None:
        self._operator.operator.machine.set_manual(ready, finishes)

    def take(self) -> tuple[Rows, Rows]:
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

    def contents(self) -> Rows:
        found: Rows = self._operator.peek().to_pylist()
        return found


EMBEDDED: Runtime = Embedded()


def window_of(row: Mapping[str, Any]) -> Window:
    """The window of a row, with the ends of time where it has none."""
    start, end = row["window_start"], row["window_end"]
    return MIN if start is None else start, MAX if end is None else end

"""Staging: what comes out of an operator is written where it was made, for sinks that can be; the rest leaves as payloads of packed rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from tidegate.spark.chain import Outcome
from tidegate.spark.sinks.base import Sink, Target, TaskSink
from tidegate.spark.types import brought
from tidegate.spark.wire import LATE, PANES, pieces, unpack

Emitted = tuple[str, bytes]
"""An output and a payload."""


@dataclass(frozen=True)
class Outlet:
    """One output, and where it goes."""

    target: Target
    sink: Sink
    schema: pa.Schema
    """The columns of the tables; those of panes end with their id."""

    def tables(self, payloads: Iterable[pa.Buffer]) -> Iterator[pa.Table]:
        return (brought(unpack(payload), self.schema) for payload in payloads)

    def stage(self, batch: int, task: str, tables: Iterable[pa.Table]) -> list[str]:
        """Write in the task what its sink can write there; what was staged, as the sink tells it."""
        if not isinstance(self.sink, TaskSink):
            return []
        return self.sink.stage(self.target, batch, task, (brought(table, self.schema) for table in tables))


class Leaving:
    """What one call of an operator puts out."""

    def __init__(self, outlets: Sequence[Outlet] | None) -> None:
        """Without outlets everything leaves; with them, what none of them wants does not."""
        self._outlets = None if outlets is None else {outlet.target.output: outlet for outlet in outlets}
        self._staged: dict[str, list[pa.Table]] = {}
        self.payloads: list[Emitted] = []

    def add_all(self, outcome: Outcome) -> None:
        for output, tables in ((PANES, outcome.panes), (LATE, outcome.late)):
            for table in tables:
                self.add(output, table)

    def add(self, output: str, table: pa.Table) -> None:
        if self.stages(output):
            self._staged.setdefault(output, []).append(table)
        elif self.passes(output):
            self.payloads += [(output, payload.to_pybytes()) for payload in pieces(table)]

    def add_payload(self, output: str, payload: bytes) -> None:
        """What came packed, from another operator or from a former call."""
        if self.stages(output):
            self.add(output, unpack(payload))
        elif self.passes(output):
            self.payloads.append((output, payload))

    def stages(self, output: str) -> bool:
        """Whether an output is written here."""
        return self._outlets is not None and output in self._outlets and isinstance(self._outlets[output].sink, TaskSink)

    def passes(self, output: str) -> bool:
        """Whether an output leaves as payloads."""
        return self._outlets is None or (output in self._outlets and not self.stages(output))

    def drained(self) -> list[Emitted]:
        """The payloads so far, which leave now."""
        found, self.payloads = self.payloads, []
        return found

    def staged(self, batch: int, task: str) -> Iterator[Emitted]:
        """Write what is written here, and tell what that was."""
        for output, tables in self._staged.items():
            texts = self._outlets[output].stage(batch, task, tables) if self._outlets is not None else []
            yield from ((output, text.encode()) for text in texts)

"""Staging: what comes out of an operator is written where it was made, for sinks that can be; the
rest leaves as payloads of packed rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from tidegate.spark.sinks.base import Sink, Target, TaskSink
from tidegate.spark.tasks.chain import Outcome
from tidegate.spark.tasks.transport import LATE, METRICS, PANES, pieces, unpack
from tidegate.spark.types import brought

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


class Leaving:
    """What one call of an operator puts out."""

    def __init__(self, outlets: Sequence[Outlet] | None) -> None:
        """Without outlets everything leaves; with them, what none of them wants does not."""
        self._sinks = {
            outlet.target.output: (outlet, outlet.sink)
            for outlet in outlets or ()
            if isinstance(outlet.sink, TaskSink)
        }
        self._passing = (
            None
            if outlets is None
            else {outlet.target.output for outlet in outlets} - self._sinks.keys()
        )
        self._staged: dict[str, list[pa.Table]] = {}
        self._payloads: list[Emitted] = []

    def add_all(self, outcome: Outcome) -> None:
        for output, tables in ((PANES, outcome.panes), (LATE, outcome.late)):
            for table in tables:
                self.add(output, table)

    def add(self, output: str, table: pa.Table) -> None:
        if output in self._sinks:
            self._staged.setdefault(output, []).append(table)
        elif self._passes(output):
            self._payloads += [(output, payload.to_pybytes()) for payload in pieces(table)]

    def add_payload(self, output: str, payload: bytes) -> None:
        """What came packed, from another operator or from a former call."""
        if output in self._sinks:
            self.add(output, unpack(payload))
        elif self._passes(output):
            self._payloads.append((output, payload))

    def counted(self, row: pa.Table) -> bytes | None:
        """A row of the metrics table: the payload that leaves with its numbers, or None where
        nobody wants it there.
        """
        if not self._passes(METRICS):
            self.add(METRICS, row)
            return None
        return next(pieces(row)).to_pybytes()

    def drained(self) -> list[Emitted]:
        """The payloads so far, which leave now."""
        found, self._payloads = self._payloads, []
        return found

    def staged(self, batch: int, task: str) -> Iterator[Emitted]:
        """Write what is written here, and tell what that was."""
        for output, tables in self._staged.items():
            outlet, sink = self._sinks[output]
            texts = sink.stage(
                outlet.target, batch, task, (brought(table, outlet.schema) for table in tables)
            )
            yield from ((output, text.encode()) for text in texts)

    def _passes(self, output: str) -> bool:
        return self._passing is None or output in self._passing

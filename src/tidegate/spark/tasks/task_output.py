"""The output of a stateful operator in a task: staged by task sinks, or sent on as payloads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from tidegate.operators.ingest.projection import project
from tidegate.spark.sinks.base import Sink, SinkTarget, TaskSink
from tidegate.spark.tasks.chain import ChainOutput
from tidegate.spark.tasks.transport import LATE, METRICS, PANES, decode_payload, encode_payloads
from tidegate.spark.types import align_columns
from tidegate.spec.projection import Projection

OutputPayload = tuple[str, bytes]
"""The name of an output, and a payload."""


@dataclass(frozen=True)
class BoundSink:
    """A sink, bound to one output of a query."""

    target: SinkTarget
    sink: Sink
    schema: pa.Schema
    """The columns of the tables; for panes, the last one is the pane id."""
    projections: tuple[Projection, ...] = ()
    """What the rows pass on their way to the sink."""

    def tables(self, payloads: Iterable[pa.Buffer]) -> Iterator[pa.Table]:
        return (self.shaped(decode_payload(payload)) for payload in payloads)

    def shaped(self, table: pa.Table) -> pa.Table:
        """The rows with the columns that the sink gets, behind the projections."""
        rows = project(align_columns(table, self.schema), self.projections).rows
        return rows if not self.projections else align_columns(rows, self.target.schema)


class TaskOutput:
    """Collects the output of one call of an operator."""

    def __init__(self, sinks: Sequence[BoundSink] | None) -> None:
        """Without `sinks`, all outputs become payloads; with them, only outputs with a sink do.

        Outputs with a task sink are staged instead.
        """
        self._task_sinks = {
            bound.target.output: (bound, bound.sink)
            for bound in sinks or ()
            if isinstance(bound.sink, TaskSink)
        }
        self._sent = (
            None
            if sinks is None
            else {bound.target.output for bound in sinks} - self._task_sinks.keys()
        )
        """The outputs that become payloads; None for all."""
        self._unstaged: dict[str, list[pa.Table]] = {}
        self._payloads: list[OutputPayload] = []

    def add_all(self, chain_output: ChainOutput) -> None:
        for output, tables in ((PANES, chain_output.panes), (LATE, chain_output.late)):
            for table in tables:
                self.add(output, table)

    def add(self, output: str, table: pa.Table) -> None:
        if output in self._task_sinks:
            self._unstaged.setdefault(output, []).append(table)
        elif self._is_sent(output):
            self._payloads += [(output, payload.to_pybytes()) for payload in encode_payloads(table)]

    def add_payload(self, output: str, payload: bytes) -> None:
        """Add a payload of another operator or of a previous call."""
        if output in self._task_sinks:
            self.add(output, decode_payload(payload))
        elif self._is_sent(output):
            self._payloads.append((output, payload))

    def add_metrics(self, row: pa.Table) -> bytes | None:
        """Add a row of the metrics table; return its payload if it is sent with its numbers."""
        if not self._is_sent(METRICS):
            self.add(METRICS, row)
            return None
        return next(encode_payloads(row)).to_pybytes()

    def take_payloads(self) -> list[OutputPayload]:
        """Remove and return the payloads so far."""
        payloads, self._payloads = self._payloads, []
        return payloads

    def stage(self, batch: int, task: str) -> Iterator[OutputPayload]:
        """Stage the rows of task sinks; yield what each sink returns."""
        for output, tables in self._unstaged.items():
            bound, sink = self._task_sinks[output]
            shaped = (bound.shaped(table) for table in tables)
            texts = sink.stage(bound.target, batch, task, shaped)
            yield from ((output, text.encode()) for text in texts)

    def _is_sent(self, output: str) -> bool:
        return self._sent is None or output in self._sent

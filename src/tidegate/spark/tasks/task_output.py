"""The output of a stateful operator in a task: staged by task sinks, or sent on as payloads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from tidegate.operators.ingest.projection import project
from tidegate.spark.sinks.base import Sink, SinkTarget, TaskSink
from tidegate.spark.tasks.chain import ChainOutput
from tidegate.spark.tasks.reshuffle import Reshuffle
from tidegate.spark.tasks.transport import (
    FORWARDED,
    LATE,
    MARKS,
    METRICS,
    PANES,
    decode_payload,
    encode_json_payload,
    encode_payloads,
    pack_forwarded,
)
from tidegate.spark.types import align_columns
from tidegate.spec.projection import Projection


class OutputPayload(NamedTuple):
    """A payload on its way to the sinks or to the next operator."""

    output: str
    """The name of the output; on the way to an operator, the kind of the shuffle row."""
    payload: bytes
    shard: int | None = None
    """The shard of the next operator; None on the way to the sinks."""


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

    def __init__(
        self,
        sinks: Sequence[BoundSink] | None,
        *,
        shard: int = 0,
        reshuffle: Reshuffle | None = None,
    ) -> None:
        """Without `sinks`, all outputs become payloads; with them, only outputs with a sink do.

        Outputs with a task sink are staged instead. With `reshuffle`, all payloads go from this
        shard to the next operator: panes by their key, the others to be forwarded.
        """
        self._shard, self._reshuffle = shard, reshuffle
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
        elif output == PANES and self._reshuffle is not None:
            self._payloads += [
                OutputPayload(kind, payload.to_pybytes(), shard)
                for shard, kind, payload in self._reshuffle.routed(table)
            ]
        elif self._is_sent(output):
            self._payloads += [
                self._addressed(output, payload.to_pybytes()) for payload in encode_payloads(table)
            ]

    def add_payload(self, output: str, payload: bytes) -> None:
        """Add a payload of another operator or of a previous call."""
        if output in self._task_sinks or (output == PANES and self._reshuffle is not None):
            self.add(output, decode_payload(payload))
        elif self._is_sent(output):
            self._payloads.append(self._addressed(output, payload))

    def add_pending(self, pending: OutputPayload) -> None:
        """Add a payload of a previous call, which may have its address."""
        if pending.shard is None:
            self.add_payload(pending.output, pending.payload)
        else:
            self._payloads.append(pending)

    def add_metrics(self, row: pa.Table) -> OutputPayload | None:
        """Add a row of the metrics table; return its payload if it is sent with its numbers."""
        if not self._is_sent(METRICS):
            self.add(METRICS, row)
            return None
        return self._addressed(METRICS, next(encode_payloads(row)).to_pybytes())

    def marks(self, progress: dict[str, Any]) -> list[OutputPayload]:
        """The output progress of this shard, for all shards of the next operator."""
        if self._reshuffle is None:
            return []
        payload = encode_json_payload({"shard": self._shard, **progress})
        return [OutputPayload(MARKS, payload, shard) for shard in self._reshuffle.layout.ids]

    def row(self, number: int, sent: OutputPayload | None, numbers: Any = None) -> dict[str, Any]:
        """A row that the shard returns: `ROUTED_COLUMNS` on the way to an operator, else
        `OUTPUT_COLUMNS`.

        `number`: of the row among those of the shard in this batch. `sent`: None for metrics whose
        payload has no sink. `numbers`: those of metrics.
        """
        output, payload, to = OutputPayload(METRICS, b"") if sent is None else sent
        content = {"payload": None if sent is None else payload, "metrics": numbers}
        if self._reshuffle is None:
            return {"output": output, "shard": self._shard, **content}
        return {
            "shard": to,
            "input": self._reshuffle.input,
            "task": self._shard,
            "seq": number,
            "kind": output,
            **content,
        }

    def _addressed(self, output: str, payload: bytes) -> OutputPayload:
        if self._reshuffle is None:
            return OutputPayload(output, payload)
        return OutputPayload(FORWARDED, pack_forwarded(output, payload), self._shard)

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
            yield from (OutputPayload(output, text.encode()) for text in texts)

    def _is_sent(self, output: str) -> bool:
        return self._sent is None or output in self._sent

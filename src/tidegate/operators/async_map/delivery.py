"""Async calls for a whole delivery, which is complete when every message has an answer.

An async map in front of an operator works this way in every runtime: the operator gets the results
of all messages of a delivery, and the messages themselves for its watermarks. Nothing is pending
between two deliveries, so no watermark overtakes a message and there is no state.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.kernel.frame import to_arrow
from tidegate.operators.async_map.executor import AsyncExecutor, Reply
from tidegate.operators.async_map.queue import (
    Answer,
    AnswerBatch,
    AsyncQueue,
    FailedCall,
    Row,
    async_queue,
)
from tidegate.operators.async_map.rows import AsyncSchemas, concatenated, python_rows
from tidegate.operators.chain import Operator
from tidegate.operators.ingest.ingest import markers_in
from tidegate.operators.ingest.schema_cast import BROKEN, bindable, cast_to_schema, widened
from tidegate.operators.output import Output, texts
from tidegate.operators.results import STAMP, Results, instants, late_name
from tidegate.spec.join import SIDES, JoinSpec
from tidegate.spec.operator import Input, MapStep

SLICE = 4096
"""Messages that become Python values at once, and answers that become a table."""


@dataclass(frozen=True, eq=False)
class MappedDelivery:
    """The results of a delivery, and its failed messages with `reason` and `detail`."""

    rows: pa.Table
    failed: pa.Table
    messages: pa.Table
    """The well-formed messages, for watermarks."""


class DeliveryCalls:
    """Calls the function of a map for deliveries."""

    def __init__(self, given: Input, step: MapStep, executor: AsyncExecutor) -> None:
        self._step, self._executor = step, executor
        self._unique = given.offset if given.offset is not None else given.id
        self.schemas = AsyncSchemas(step.map)

    def know(self, results: pa.Schema | None) -> None:
        """Continue with the columns of results that the operator knows, as after a restart."""
        if self.schemas.output is None:
            self.schemas.output = results

    def run(self, table: pa.Table) -> MappedDelivery:
        """Call the function for all messages, and wait for all answers."""
        schema = widened(self.schemas.input, bindable(table.schema))
        self.schemas.bind(schema)
        cast = cast_to_schema(table, schema, None)
        messages, broken = _split_broken(cast.table)
        failures = [broken]
        tables: list[pa.Table] = []
        answers: list[Answer] = []
        failed: list[FailedCall] = []
        self._executor.use(self._step.map)
        for item in self._answers(self._rows(self._events(messages), failures)):
            if isinstance(item, FailedCall):
                failed.append(item)
            else:
                answers += item.answers
            if len(answers) >= SLICE:
                self._put(answers, tables, failed)
                answers = []
        self._put(answers, tables, failed)
        rows = concatenated(self.schemas.output, tables)
        return MappedDelivery(rows, pa.concat_tables([*failures, self._failed(failed)]), messages)

    def _events(self, messages: pa.Table) -> pa.Table:
        """The messages without those that only carry a watermark."""
        markers = markers_in(messages, self._step.input, None)
        return messages if markers is None else messages.filter(pa.array(~markers))

    def _rows(self, messages: pa.Table, failures: list[pa.Table]) -> Iterator[Row]:
        """The messages as Python values; `failures` gets those that Python cannot hold."""
        for start in range(0, messages.num_rows, SLICE):
            rows, unreadable, errors = python_rows(messages.slice(start, SLICE))
            if errors:
                failures.append(
                    _failed_table(unreadable, "bad_value", pa.array(errors, pa.string()))
                )
            yield from rows

    def _answers(self, rows: Iterator[Row]) -> Iterator[AnswerBatch | FailedCall]:
        """The answers, in the order of the messages or as they come."""
        executor, queue = self._executor, async_queue(ordered=self._step.map.ordered)
        while True:
            free = self._step.map.max_in_flight - len(executor)
            executor.start({queue.submit(row): row for row in islice(rows, free)})
            if not len(executor):
                return
            for reply in executor.replies(wait=True):
                _settle(queue, reply)
            yield from (
                item for item in queue.release() if isinstance(item, AnswerBatch | FailedCall)
            )

    def _put(self, answers: list[Answer], tables: list[pa.Table], failed: list[FailedCall]) -> None:
        """Convert answers to tables; those that do not fit have failed."""
        kept: list[Answer] = []
        for answer in answers:
            if self._repeats(answer):
                failed.append(FailedCall(answer.row, f"TypeError: {_repeated(self._unique)}"))
            else:
                kept.append(answer)
        for found in self.schemas.to_tables(kept) if kept else ():
            if isinstance(found, FailedCall):
                failed.append(found)
            else:
                tables.append(found)

    def _repeats(self, answer: Answer) -> bool:
        """Whether the operator would drop a row of an answer as a duplicate of another."""
        if self._unique is None or len(answer.results) < 2:
            return False
        return len({repr(row.get(self._unique)) for row in answer.results}) < len(answer.results)

    def _failed(self, failed: Sequence[FailedCall]) -> pa.Table:
        rows = pa.Table.from_pylist([one.row for one in failed], schema=self.schemas.input)
        details = pa.array([one.error for one in failed], pa.string())
        return _failed_table(rows, "async_failed", details)


def _settle(queue: AsyncQueue, reply: Reply) -> None:
    if reply.results is None:
        queue.fail(reply.ticket, reply.error or "")
    else:
        queue.complete(reply.ticket, reply.results)


def _repeated(column: str | None) -> str:
    return (
        f"several results of a message have the same `{column}`, by which duplicates are found."
        " Hint: give each its own, or leave it out of the stream"
    )


def _split_broken(table: pa.Table) -> tuple[pa.Table, pa.Table]:
    """The well-formed rows, and the malformed ones as failures."""
    if BROKEN not in table.column_names:
        return table, _failed_table(table.slice(0, 0), "", texts(None, 0))
    problems = to_arrow(table.column(BROKEN))
    plain, broken = table.drop_columns([BROKEN]), problems.is_valid()
    return (
        plain.filter(pc.invert(broken)),
        _failed_table(plain.filter(broken), "bad_value", problems.filter(broken)),
    )


def _failed_table(rows: pa.Table, reason: str, details: pa.Array) -> pa.Table:
    """Messages without a result, with the reason."""
    columns = {late_name(name): rows.column(name) for name in rows.column_names}
    return pa.table({**columns, "reason": texts(reason, rows.num_rows), "detail": details})


def failed_schema(messages: pa.Schema) -> pa.Schema:
    """The columns of failed messages."""
    return _failed_table(bindable(messages).empty_table(), "", texts(None, 0)).schema


def observed_messages(given: Input, messages: pa.Table) -> pa.Table:
    """The messages as the operator behind the map reads their time: in its own time column."""
    own = None if given.mapped is None else given.mapped.input.time
    if own == given.time or own is None or given.time is None:
        return messages
    names = messages.column_names
    kept = messages.drop_columns([given.time]) if given.time in names else messages
    return kept.rename_columns([given.time if name == own else name for name in kept.column_names])


def late_results(operator: Operator, failed: pa.Table, ordinal: int) -> Results:
    """The failed messages of an input as late rows of the operator behind the map.

    A column that results have with another type gets the prefix `input_`.
    """
    renderer, progress, n = operator.renderer(), operator.progress, failed.num_rows
    counts = pc.value_counts(failed.column("reason")).to_pylist()
    for count in counts:
        progress.counters["late_rows"] += count["counts"]
        progress.counters[f"reason.{count['values']}"] += count["counts"]
    empty = renderer.render(Output())
    known = {
        field.name: field.type for field in empty.late.schema if not pa.types.is_null(field.type)
    }
    columns: dict[str, pa.Array | pa.ChunkedArray] = {
        name if known.get(name, column.type) == column.type else f"input_{name}": column
        for name, column in zip(failed.column_names, failed.columns, strict=True)
    }
    if isinstance(operator.spec, JoinSpec):
        columns["input"] = texts(SIDES[ordinal], n)
    clock = np.full(n, progress.now)
    columns["watermark"] = instants(np.full(n, progress.watermark), ticks=renderer.ticks)
    columns["emitted_at"] = pa.array(clock).cast(pa.int64() if renderer.ticks else STAMP)
    return Results(empty.panes, pa.table(columns))

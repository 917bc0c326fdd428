"""Batch DataFrames: the rows of a shard go through the same operators as one delivery, and then the
input has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from tidegate.instants import MIN
from tidegate.spark import metrics
from tidegate.spark.tasks.chain import Batch, Chain, ChainPlan, Outcome
from tidegate.spark.tasks.processor import to_batch
from tidegate.spark.tasks.task_output import BoundSink, TaskOutput
from tidegate.spark.tasks.transport import (
    FORWARDED,
    MARKS,
    METRICS,
    OBSERVED,
    OUTPUT_SCHEMA,
    ShuffleRow,
    unpack_forwarded,
)
from tidegate.state.memory import MemoryStore

CHUNK = 64 << 20
"""How many bytes of events are decoded at a time."""
_NUMBERS = pa.struct(
    [(name, pa.int64()) for name in (*metrics.COUNTERS, *metrics.GAUGES, *metrics.INSTANTS)]
)
_SCHEMA = OUTPUT_SCHEMA.append(pa.field("metrics", _NUMBERS))


def finite(
    plan: ChainPlan, now: int, sinks: Sequence[BoundSink] | None = None
) -> Callable[..., Iterator[pa.RecordBatch]]:
    """The function that Spark applies to every shard; see `ChainProcessor` for the sinks."""

    def run(
        key: tuple[pa.Scalar, ...], batches: Iterator[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        shard = key[0].as_py()
        rows = [ShuffleRow(*row.values()) for batch in batches for row in batch.to_pylist()]
        task_output = TaskOutput(sinks)
        for output, payload in (unpack_forwarded(row) for row in rows if row.kind == FORWARDED):
            task_output.add_payload(output, payload)
        chain = Chain(plan, MemoryStore(), now=now)
        for outcome in _events(
            chain,
            sorted(
                (row for row in rows if row.kind not in (FORWARDED, MARKS)),
                key=lambda row: row.order,
            ),
        ):
            task_output.add_all(outcome)
            yield from (_packed(*one, shard) for one in task_output.take_payloads())
        follows = plan.follows
        after = metrics.chain_counters(
            chain.counters, follows=follows, is_followed=plan.is_followed
        )
        first = chain.operators[0].progress
        instants = {
            "watermark": first.watermark,
            "newest_event": MIN if follows else first.newest,
            "clock": chain.now,
        }
        numbers = metrics.batch_numbers({}, after, {}, instants)
        yield _packed(
            METRICS,
            task_output.add_metrics(metrics.metrics_row(numbers, {}, after, batch=0, shard=shard)),
            shard,
            numbers,
        )
        yield from (_packed(*one, shard) for one in task_output.stage(0, f"{shard:05d}"))

    # Spark reads the annotations to know that it may give record batches one after the other.
    run.__annotations__ = {
        "key": tuple[pa.Scalar, ...],
        "batches": Iterator[pa.RecordBatch],
        "return": Iterator[pa.RecordBatch],
    }
    return run


def _events(chain: Chain, rows: list[ShuffleRow]) -> Iterator[Outcome]:
    """All rows as one delivery, some at a time; the watermark moves at the end of all."""
    observed = to_batch([row for row in rows if row.kind == OBSERVED]).observed
    for chunk in _chunks([row for row in rows if row.kind != OBSERVED]):
        found = to_batch(chunk)
        yield chain.process(
            Batch(found.arrivals, (), found.combined, found.refused), chain.now, hold=True
        )
    yield chain.process(Batch(observed=observed), chain.now)
    yield chain.finish()


def _chunks(rows: list[ShuffleRow]) -> Iterator[list[ShuffleRow]]:
    chunk: list[ShuffleRow] = []
    size = 0
    for row in rows:
        chunk.append(row)
        size += len(row.payload)
        if size >= CHUNK:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _packed(
    output: str, payload: bytes | None, shard: int, numbers: dict[str, int | None] | None = None
) -> pa.RecordBatch:
    columns = [
        pa.array([value], field.type)
        for value, field in zip((output, shard, payload, numbers), _SCHEMA, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)

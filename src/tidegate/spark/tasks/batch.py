"""Batch DataFrames: the rows of a shard go through the same operators as one delivery, and then the
input has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from tidegate.instants import MIN
from tidegate.spark.query import metrics
from tidegate.spark.tasks.chain import Batch, Chain, ChainPlan, Outcome
from tidegate.spark.tasks.processor import batch_from
from tidegate.spark.tasks.task_output import Leaving, Outlet
from tidegate.spark.tasks.transport import (
    MARKS,
    METRICS,
    OBSERVED,
    PACKED_SCHEMA,
    THROUGH,
    Shipped,
    through,
)
from tidegate.state.memory import MemoryStore

CHUNK = 64 << 20
"""How many bytes of events are decoded at a time."""
_NUMBERS = pa.struct(
    [(name, pa.int64()) for name in (*metrics.COUNTS, *metrics.HELD, *metrics.INSTANTS)]
)
_SCHEMA = PACKED_SCHEMA.append(pa.field("metrics", _NUMBERS))


def finite(
    plan: ChainPlan, now: int, outlets: Sequence[Outlet] | None = None
) -> Callable[..., Iterator[pa.RecordBatch]]:
    """The function that Spark applies to every shard; see `Operate` for the outlets."""

    def run(
        key: tuple[pa.Scalar, ...], batches: Iterator[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        shard = key[0].as_py()
        rows = [Shipped(*row.values()) for batch in batches for row in batch.to_pylist()]
        leaving = Leaving(outlets)
        for output, payload in (through(row) for row in rows if row.kind == THROUGH):
            leaving.add_payload(output, payload)
        chain = Chain(plan, MemoryStore(), now=now)
        for outcome in _events(
            chain,
            sorted(
                (row for row in rows if row.kind not in (THROUGH, MARKS)), key=lambda row: row.order
            ),
        ):
            leaving.add_all(outcome)
            yield from (_packed(*one, shard) for one in leaving.drained())
        follows = plan.follows
        after = metrics.parted(chain.counters, follows=follows, is_followed=plan.is_followed)
        first = chain.operators[0].progress
        instants = {
            "watermark": first.watermark,
            "newest": MIN if follows else first.newest,
            "clock": chain.now,
        }
        numbers = metrics.measured({}, after, {}, instants)
        yield _packed(
            METRICS,
            leaving.counted(metrics.row(numbers, {}, after, batch=0, shard=shard)),
            shard,
            numbers,
        )
        yield from (_packed(*one, shard) for one in leaving.staged(0, f"{shard:05d}"))

    # Spark reads the annotations to know that it may give record batches one after the other.
    run.__annotations__ = {
        "key": tuple[pa.Scalar, ...],
        "batches": Iterator[pa.RecordBatch],
        "return": Iterator[pa.RecordBatch],
    }
    return run


def _events(chain: Chain, rows: list[Shipped]) -> Iterator[Outcome]:
    """All rows as one delivery, some at a time; the watermark moves at the end of all."""
    observed = batch_from([row for row in rows if row.kind == OBSERVED]).observed
    for chunk in _chunks([row for row in rows if row.kind != OBSERVED]):
        found = batch_from(chunk)
        yield chain.process(
            Batch(found.arrivals, (), found.combined, found.refused), chain.now, hold=True
        )
    yield chain.process(Batch(observed=observed), chain.now)
    yield chain.finish()


def _chunks(rows: list[Shipped]) -> Iterator[list[Shipped]]:
    chunk: list[Shipped] = []
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

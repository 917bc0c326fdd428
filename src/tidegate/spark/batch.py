"""Batch DataFrames: the rows of a shard go through the same operators as one delivery, and then the input has ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa

from tidegate.instants import MIN
from tidegate.spark import metrics
from tidegate.spark.chain import Batch, Chain, ChainPlan, Outcome
from tidegate.spark.processor import batch_from, payloads_of
from tidegate.spark.wire import MARKS, METRICS, OBSERVED, PACKED_SCHEMA, THROUGH, Shipped, pieces, through
from tidegate.state.memory import MemoryStore

CHUNK = 64 << 20
"""How many bytes of events are decoded at a time."""
_NUMBERS = pa.struct([(name, pa.int64()) for name in (*metrics.COUNTS, *metrics.HELD, *metrics.INSTANTS)])
_SCHEMA = PACKED_SCHEMA.append(pa.field("metrics", _NUMBERS))


def finite(plan: ChainPlan, now: int) -> Callable[..., Iterator[pa.RecordBatch]]:
    """The function that Spark applies to every shard."""

    def run(key: tuple[pa.Scalar, ...], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        shard = key[0].as_py()
        rows = [Shipped(*row.values()) for batch in batches for row in batch.to_pylist()]
        yield from (_packed(*through(row), shard) for row in rows if row.kind == THROUGH)
        chain = Chain(plan, MemoryStore(), now=now)
        yield from _events(chain, sorted((row for row in rows if row.kind not in (THROUGH, MARKS)), key=lambda row: row.order), shard)
        follows = plan.follows
        after = metrics.parted(chain.counters, follows=follows, is_followed=plan.is_followed)
        first = chain.operators[0].progress
        instants = {"watermark": first.watermark, "newest": MIN if follows else first.newest, "clock": chain.now}
        numbers = metrics.measured({}, after, {}, instants)
        table = metrics.row(numbers, {}, after, batch=0, shard=shard)
        yield _packed(METRICS, next(pieces(table)).to_pybytes(), shard, numbers)

    # Spark reads the annotations to know that it may give record batches one after the other.
    run.__annotations__ = {"key": tuple[pa.Scalar, ...], "batches": Iterator[pa.RecordBatch], "return": Iterator[pa.RecordBatch]}
    return run


def _events(chain: Chain, rows: list[Shipped], shard: int) -> Iterator[pa.RecordBatch]:
    """All rows as one delivery, some at a time; the watermark moves at the end of all."""
    observed = batch_from([row for row in rows if row.kind == OBSERVED]).observed
    for chunk in _chunks([row for row in rows if row.kind != OBSERVED]):
        found = batch_from(chunk)
        yield from _emitted(chain.process(Batch(found.arrivals, (), found.combined, found.refused), chain.now, hold=True), shard)
    yield from _emitted(chain.process(Batch(observed=observed), chain.now), shard)
    yield from _emitted(chain.finish(), shard)


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


def _emitted(outcome: Outcome, shard: int) -> Iterator[pa.RecordBatch]:
    yield from (_packed(output, payload, shard) for output, payload in payloads_of(outcome))


def _packed(output: str, payload: bytes, shard: int, numbers: dict[str, int | None] | None = None) -> pa.RecordBatch:
    columns = [pa.array([value], field.type) for value, field in zip((output, shard, payload, numbers), _SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)

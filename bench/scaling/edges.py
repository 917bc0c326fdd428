"""Samples of the edge of a task, and of what a shard does with the headers of all tasks."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from bench.scaling.operators import Setting, many
from bench.scaling.samples import EDGE, HEADERS, Sample
from bench.traffic import SECOND, SPAN, START, TIME
from tidegate.operators.aggregate.pre_aggregation import PreAggregator
from tidegate.spark.plan.dataflow import edge_of
from tidegate.spark.tasks.edge import Edge
from tidegate.spark.tasks.processor import to_chain_input
from tidegate.spark.tasks.shards import ShardLayout
from tidegate.spark.tasks.transport import COMBINED, OBSERVED, ShuffleRow, decode_payload

TURNS = 5
_TYPES: dict[str, pa.DataType] = {
    "key": pa.int64(),
    "ts": TIME,
    "v": pa.int64(),
    "source": pa.string(),
}
SCHEMA = pa.schema([pa.field(name, kind) for name, kind in _TYPES.items()])
MAX = START + 3_600 * SECOND
"""A clock after all events."""
_FEW = 10
_BASE = Setting(rows=100_000)


@dataclass(frozen=True)
class Task:
    """The input of a task, and the number of shards."""

    setting: Setting
    shards: int = 2


def _edge(task: Task) -> Edge:
    spec, layout = task.setting.panes.spec, ShardLayout.balanced(task.shards)
    combiner = PreAggregator(spec, SCHEMA, layout.hasher)
    return dataclasses.replace(edge_of(spec, 0, layout), combiner=combiner)


def _rows(setting: Setting) -> pa.Table:
    random = np.random.default_rng(1)
    names = pa.array([f"clicks-{n}" for n in range(setting.sources)])
    return pa.table(
        [
            pa.array(random.integers(0, setting.keys, setting.rows)),
            pa.array(START + random.integers(0, SPAN, setting.rows)).cast(TIME),
            pa.array(random.integers(0, 1_000, setting.rows)),
            names.take(pa.array(np.arange(setting.rows) % setting.sources)),
        ],
        schema=SCHEMA,
    )


def measure_edge(task: Task, factor: str, value: float) -> Sample:
    """The cost of the edge of one task."""
    edge, rows = _edge(task), _rows(task.setting)
    best, packed = float("inf"), list[pa.RecordBatch]()
    for _ in range(TURNS):
        begin = time.process_time()
        packed = list(edge.pack(iter(rows.to_batches()), 0, MAX, 1))
        best = min(best, time.process_time() - begin)
    found = list(_shuffle_rows(packed))
    counts = {
        "tasks": 1.0,
        "rows": float(task.setting.rows),
        "partials": float(
            sum(decode_payload(row.payload).num_rows for row in found if row.kind == COMBINED)
        ),
        "shards": float(task.shards),
        "header_bytes": float(sum(len(row.payload) for row in found if row.kind == OBSERVED)),
        "sources": float(task.setting.sources),
    }
    return Sample(EDGE, factor, value, best, counts)


def measure_headers(sources: int, tasks: int, factor: str, value: float) -> Sample:
    """The cost of decoding what all tasks send to one shard: headers, and a few partials each."""
    setting = replace(_BASE, rows=1_000, keys=_FEW, sources=-(-sources // tasks))
    rows = _rows(replace(setting, rows=max(setting.rows, setting.sources)))
    packed = _edge(Task(setting, shards=1)).pack(iter(rows.to_batches()), 0, MAX, 1)
    sent = list(_shuffle_rows(packed))
    received = [dataclasses.replace(row, task=task) for task in range(tasks) for row in sent]
    best = float("inf")
    for _ in range(TURNS):
        begin = time.process_time()
        to_chain_input(received)
        best = min(best, time.process_time() - begin)
    counts = {"batches": 1.0, "tasks": float(tasks), "sources": float(tasks * setting.sources)}
    return Sample(HEADERS, factor, value, best, counts)


def _shuffle_rows(batches: Iterator[pa.RecordBatch] | list[pa.RecordBatch]) -> Iterator[ShuffleRow]:
    for batch in batches:
        rows = batch.drop_columns(["payload"]).to_pylist()
        for row, payload in zip(rows, batch.column("payload"), strict=True):
            yield ShuffleRow(**row, payload=payload.as_buffer())


def edge_samples(share: float = 1.0) -> Iterator[Sample]:
    """The factors of a task, one at a time; with a share of all numbers."""
    base = replace(_BASE, rows=many(100_000, share))
    for rows in (1_000, 10_000, 100_000, 500_000):
        yield measure_edge(Task(replace(base, rows=many(rows, share))), "rows", rows)
    for keys in (100, 1_000, 10_000, 40_000):
        yield measure_edge(Task(replace(base, keys=many(keys, share))), "keys", keys)
    for shards in (1, 10, 100, 1_000):
        yield measure_edge(Task(base, many(shards, share)), "shards", shards)
    for sources in (1, 100, 1_000, 10_000):
        few = replace(base, sources=many(sources, share))
        yield measure_edge(Task(few, many(100, share)), "sources", sources)


def header_samples(share: float = 1.0) -> Iterator[Sample]:
    """The number of tasks and of sources, one at a time; with a share of all numbers."""
    for tasks in (1, 10, 100, 1_000):
        yield measure_headers(many(1_000, share), many(tasks, share), "tasks", tasks)
    for sources in (10, 100, 1_000, 10_000):
        yield measure_headers(many(sources, share), many(10, share), "sources", sources)

"""The stateful processor of a shard: sorts the rows of a batch, runs the chain, saves its state."""

from __future__ import annotations

import json
import os
import uuid
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import BinaryType, IntegerType, StringType, StructType

from tidegate.instants import MIN
from tidegate.kernel.frame import to_arrow, to_numpy
from tidegate.kernel.storage import column_encoding
from tidegate.operators.chain import OutputProgress
from tidegate.operators.ingest.delivery import Arrival
from tidegate.spark import metrics
from tidegate.spark.failures import marks_errors
from tidegate.spark.tasks.chain import Chain, ChainInput, ChainOutput, ChainPlan, ShardProgress
from tidegate.spark.tasks.garbage import exclude_modules
from tidegate.spark.tasks.local_state_cache import LocalStateCache
from tidegate.spark.tasks.reshuffle import Reshuffle
from tidegate.spark.tasks.shard_clock import ShardClock
from tidegate.spark.tasks.shards import ShardLayout, check_layout
from tidegate.spark.tasks.state_store import SparkStore
from tidegate.spark.tasks.task_output import BoundSink, OutputPayload, TaskOutput
from tidegate.spark.tasks.transport import (
    COMBINED,
    FAILED,
    FORWARDED,
    MARKS,
    METRICS,
    OBSERVED,
    POSITIONS,
    REFUSED,
    ROWS,
    ShuffleRow,
    decode_payload,
    decode_payloads,
    unpack_forwarded,
)
from tidegate.spark.tasks.watermark_files import WatermarkFiles

# Not as DDL texts: each worker would ask Spark to parse them, repeatedly.
META = (
    StructType()
    .add("format", IntegerType())
    .add("summary", StringType())
    .add("document", BinaryType())
)
BLOB_KEY = StructType().add("name", StringType()).add("part", IntegerType())
BLOB = StructType().add("payload", BinaryType())
OUTPUT_LIMIT = 256 << 20
"""The maximum output of a call, in bytes; the rest stays in the state until the next batch."""
FINAL_OUTPUT_LIMIT = 1536 << 20
"""The same for queries that may have no further batch; a call fails above 2 GB."""
CACHE_LIMIT = 512 << 20
"""The maximum size of the decoded state that a worker caches between batches, in bytes."""


def to_chain_input(rows: Sequence[ShuffleRow]) -> ChainInput:
    """The shuffle rows of a shard, in their order, as the input of a chain."""
    ordered = sorted(rows, key=lambda row: row.order)
    inputs = sorted({row.input for row in ordered})

    def arrivals(kind: str) -> list[Arrival]:
        found = [
            (
                number,
                decode_payloads(
                    row.payload for row in ordered if row.kind == kind and row.input == number
                ),
            )
            for number in inputs
        ]
        return [Arrival(number, table) for number, table in found if table is not None]

    return ChainInput(
        arrivals=arrivals(ROWS),
        observed=arrivals(OBSERVED),
        positions=[
            to_numpy(to_arrow(decode_payload(row.payload).column("position")))
            for row in ordered
            if row.kind == POSITIONS
        ],
        combined=[
            column_encoding.unpack(decode_payload(row.payload))
            for row in ordered
            if row.kind == COMBINED
        ],
        refused=[(arrival, "the offset is null") for arrival in arrivals(REFUSED)],
        failed=arrivals(FAILED),
        progress=[
            _shard_progress(row.input, **json.loads(bytes(row.payload)))
            for row in ordered
            if row.kind == MARKS
        ],
    )


def _shard_progress(input: int, shard: int, watermark: int, *, is_idle: bool) -> ShardProgress:
    return ShardProgress(input, shard, OutputProgress(watermark, is_idle))


@dataclass
class _CachedChain:
    """A chain in the cache of a worker; valid for one run and for the state that it wrote."""

    chain: Chain
    store: SparkStore
    nbytes: int
    run: str


Numbers = dict[str, int | None]
_chain_cache: OrderedDict[tuple[str, str, int], _CachedChain] = OrderedDict()
"""The chains of this worker by query, operator and shard; the least recently used first."""


class ChainProcessor(StatefulProcessor):
    """Runs a chain of operators on Spark; one object serves all shards of a task."""

    def __init__(
        self,
        plan: ChainPlan,
        layout: ShardLayout,
        *,
        name: str = "0",
        watermark_files: WatermarkFiles | None = None,
        sinks: Sequence[BoundSink] | None = None,
        reshuffle: Reshuffle | None = None,
    ) -> None:
        """`sinks`: of the query, whose task sinks are staged here; None returns all rows.

        `reshuffle`: to the operator that takes the output, if it is not the last one.
        """
        self._plan, self._layout, self._name = plan, layout, name
        self._watermark_files, self._sinks, self._reshuffle = watermark_files, sinks, reshuffle
        # Workers outlive a query: a chain of a former start has the former specification.
        self._run = uuid.uuid4().hex
        # Read here and not in the worker, which has a module of its own.
        self._cache_limit = CACHE_LIMIT

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state variables, which are the same for every specification."""
        exclude_modules()
        self._handle = handle
        self._meta = handle.getValueState("meta", META)
        self._blobs = handle.getMapState("blobs", BLOB_KEY, BLOB)
        context = TaskContext.get()
        self._query = (
            "" if context is None else context.getLocalProperty("sql.streaming.queryId") or ""
        )
        self._gauges: dict[int, dict[str, int]] = {}
        self._calls: Counter[int] = Counter()
        self._sent: Counter[int] = Counter()
        """The number of rows that each shard has sent in this batch."""
        self._batch = int(
            ("-1" if context is None else context.getLocalProperty("streaming.sql.batchId")) or -1
        )

    @marks_errors
    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        """Process the rows of a shard in a batch."""
        received = [ShuffleRow(*row) for row in rows]
        forwarded = [unpack_forwarded(row) for row in received if row.kind == FORWARDED]
        rest = [row for row in received if row.kind != FORWARDED]
        yield from self._call(
            key[0], timerValues, lambda chain, now: self._process(chain, rest, now), forwarded
        )

    def _process(self, chain: Chain, rows: Sequence[ShuffleRow], now: int) -> list[ChainOutput]:
        """Process the rows of a micro-batch; override it for rows of other kinds."""
        return chain.run(to_chain_input(rows), now)

    @marks_errors
    def handleExpiredTimer(  # noqa: N802 - the name is Spark's
        self,
        key: Any,
        timerValues: Any,  # noqa: N803
        expiredTimerInfo: Any,  # noqa: ARG002, N803
    ) -> Iterator[Row]:
        """Advance the clock of a shard whose timer has expired."""
        yield from self._call(key[0], timerValues, lambda chain, now: [chain.advance_clock(now)])

    def close(self) -> None:
        """Spark owns the state; there is nothing to close."""

    def _call(
        self,
        shard: int,
        timers: Any,
        work: Callable[[Chain, int], list[ChainOutput]],
        forwarded: Sequence[tuple[str, bytes]] = (),
    ) -> Iterator[Row]:
        machine = timers.getCurrentProcessingTimeInMs() * 1000
        chain, store = self._open(shard, machine)
        clock = ShardClock.read(store, chain.now).at(machine)
        clock.write(store)
        now = clock.now
        chain.skip_pause(now)
        before, known = chain.counters, self._gauges_of(store)
        task_output = TaskOutput(self._sinks, shard=shard, reshuffle=self._reshuffle)
        for pending in _take_pending(store):
            task_output.add_pending(pending)
        for chain_output in work(chain, now):
            task_output.add_all(chain_output)
        payloads = task_output.take_payloads()
        fits = _count_fitting(payloads, FINAL_OUTPUT_LIMIT if self._plan.ends else OUTPUT_LIMIT)
        _store_pending(store, payloads[fits:])
        if fits == len(payloads):
            # The watermark must not overtake pending panes.
            payloads += task_output.marks(asdict(chain.output_progress()))
            fits = len(payloads)
        yield from (self._row(shard, task_output, one) for one in payloads[:fits])
        self._set_timer(chain, store, clock, at_once=fits < len(payloads))
        chain.save()
        if self._watermark_files is not None:
            watermark = chain.operators[0].progress.watermark
            self._watermark_files.write(shard, self._batch, watermark)
        left = sum(len(one.payload) for one in payloads[fits:])
        store.summary = self._summary(chain, left)
        store.commit()
        measured = [self._measure(shard, chain, store, before, known)]
        # The observed metrics of the query include those of the upstream stage.
        measured += [
            (table, metrics.row_numbers(table))
            for table in (
                decode_payload(payload) for output, payload in forwarded if output == METRICS
            )
        ]
        yield from self._finish_output(
            shard, task_output, measured, [one for one in forwarded if one[0] != METRICS]
        )
        self._keep(shard, chain, store)

    def _finish_output(
        self,
        shard: int,
        task_output: TaskOutput,
        measured: Sequence[tuple[pa.Table, Numbers]],
        forwarded: Sequence[tuple[str, bytes]],
    ) -> Iterator[Row]:
        """Return the metrics, the forwarded outputs, and what task sinks staged."""
        for table, numbers in measured:
            yield self._row(shard, task_output, task_output.add_metrics(table), numbers)
        for output, payload in forwarded:
            task_output.add_payload(output, payload)
        number, self._calls[shard] = self._calls[shard], self._calls[shard] + 1
        # A shard can be called for rows and for a timer in the same batch.
        task = f"{shard:05d}-{number}" if number else f"{shard:05d}"
        staged = task_output.stage(self._batch, task)
        for one in (*task_output.take_payloads(), *staged):
            yield self._row(shard, task_output, one)

    def _row(
        self,
        shard: int,
        task_output: TaskOutput,
        sent: OutputPayload | None,
        numbers: Numbers | None = None,
    ) -> Row:
        """The next row of a shard: of metrics, if nothing is sent."""
        number, self._sent[shard] = self._sent[shard], self._sent[shard] + 1
        measured = None if numbers is None else Row(**numbers)
        return Row(**task_output.row(number, sent, measured))

    def _open(self, shard: int, now: int) -> tuple[Chain, SparkStore]:
        """The chain of a shard: the cached one if its state is current, else from the state."""
        value = self._meta.get()
        # During a call, the chain is not cached: after a failure, it is read from the state.
        cached = _chain_cache.pop((self._query, self._name, shard), None)
        if cached is not None and cached.run == self._run and cached.store.is_current(value):
            cached.store.attach(self._meta, self._blobs)
            return cached.chain, cached.store
        store = SparkStore(self._meta, self._blobs, value, self._local_cache(shard))
        layout = store.get_json("layout")
        if layout is not None:
            check_layout(layout, self._layout)
        store.put_json("layout", self._layout.to_dict())
        return Chain(self._plan, store, now=now, hasher=self._layout.hasher), store

    def _local_cache(self, shard: int) -> LocalStateCache | None:
        """The cache in the temporary folder of the executor, which Spark deletes at its end."""
        folders = os.environ.get("SPARK_LOCAL_DIRS", "")
        if TaskContext.get() is None or not folders:
            return None
        return LocalStateCache.open(
            Path(folders.split(",")[0], "tidegate", self._query, f"{self._name}-{shard}"),
            self._run,
            self._cache_limit,
        )

    def _keep(self, shard: int, chain: Chain, store: SparkStore) -> None:
        """Cache the chain for the next batch."""
        nbytes = chain.nbytes
        if nbytes > self._cache_limit:
            chain.release()
            nbytes = 0
        _chain_cache[self._query, self._name, shard] = _CachedChain(chain, store, nbytes, self._run)
        while sum(cached.nbytes for cached in _chain_cache.values()) > self._cache_limit:
            _chain_cache.popitem(last=False)

    def _summary(self, chain: Chain, pending: int) -> dict[str, Any]:
        """The status of the chain, for readers of the checkpoint."""
        counters, first = chain.counters, chain.operators[0].progress
        return {
            "operator": self._name,
            "batch": self._batch,
            "counters": dict(counters),
            "pending_output_bytes": pending,
            "watermark": first.watermark,
            "newest_event": first.newest,
            "clock": chain.now,
            **chain.state_summary(),
        }

    def _gauges_of(self, store: SparkStore) -> dict[str, int]:
        """The current values that the summary of the state has; none before the first call."""
        found = store.summary
        if not found:
            return {}
        return {
            "windows_open": 0 if self._plan.has_downstream else found["windows_open"],
            "state_bytes": store.nbytes,
            "pending_output_bytes": found["pending_output_bytes"],
        }

    def _measure(
        self,
        shard: int,
        chain: Chain,
        store: SparkStore,
        counted: dict[str, int],
        known: dict[str, int],
    ) -> tuple[pa.Table, Numbers]:
        """The metrics of this call: as a table row, and as numbers that Spark aggregates.

        `counted` and `known` are the counters and current values before it.
        """
        is_downstream, has_downstream = self._plan.is_downstream, self._plan.has_downstream
        before, after = (
            metrics.chain_counters(
                counts, is_downstream=is_downstream, has_downstream=has_downstream
            )
            for counts in (counted, chain.counters)
        )
        gauges = self._gauges_of(store)
        # Gauges are summed as well: a second call in the same batch adds its difference only.
        found = metrics.Gauges(gauges, known, self._gauges.get(shard))
        self._gauges[shard] = gauges
        first = chain.operators[0].progress
        instants = {
            "watermark": first.watermark,
            "newest_event": MIN if is_downstream else first.newest,
            "clock": chain.now,
        }
        numbers = metrics.batch_numbers(before, after, found, instants)
        row = metrics.metrics_row(
            numbers, before, after, batch=self._batch, operator=int(self._name), shard=shard
        )
        return row, numbers

    def _set_timer(
        self, chain: Chain, store: SparkStore, clock: ShardClock, *, at_once: bool
    ) -> None:
        """Register a timer if something is due before the current one: one timer per shard."""
        now = clock.machine
        due = now + 1 if at_once else chain.next_due
        if due is not None and not at_once:
            due = clock.machine_at(due)
        if due is not None and chain.tracks_silence:
            # A shard that is not called assumes a paused query, which does not count as silence.
            due = min(due, now + self._plan.silence // 2)
        if due is None:
            return
        # Spark has millisecond timers, and loses one that is set for the current instant.
        at = max(-(-due // 1000), now // 1000 + 1)
        current = store.get_json("timer")
        if current is None or current * 1000 <= now or at < current:
            self._handle.registerTimer(at)
            store.put_json("timer", at)


def _count_fitting(payloads: Sequence[OutputPayload], limit: int) -> int:
    """The number of payloads within the limit; at least one."""
    size = 0
    for number, one in enumerate(payloads):
        size += len(one.payload)
        if size > limit and number:
            return number
    return len(payloads)


def _take_pending(store: SparkStore) -> list[OutputPayload]:
    """Remove and return the output that exceeded the limit of earlier calls."""
    names = store.names("pending/")
    rows = [row for name in names for row in store.get_table(name).to_pylist()]
    for name in names:
        store.delete(name)
    return [OutputPayload(row["output"], row["payload"], row.get("shard")) for row in rows]


def _store_pending(store: SparkStore, payloads: Sequence[OutputPayload]) -> None:
    for number, one in enumerate(payloads):
        columns = {
            "output": [one.output],
            "payload": pa.array([one.payload], pa.large_binary()),
            "shard": pa.array([one.shard], pa.int32()),
        }
        store.put_table(f"pending/{number:08d}", pa.table(columns))

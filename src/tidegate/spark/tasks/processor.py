"""The stateful operator that Spark runs for every shard: it puts the rows of a batch into order,
lets the chain work, and keeps its state.
"""

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

from tidegate.instants import MIN
from tidegate.kernel.storage import column_encoding as packing
from tidegate.operators.chain import OutputProgress
from tidegate.operators.ingest.delivery import Arrival
from tidegate.spark.plan.shards import Layout, check_layout
from tidegate.spark.query import metrics
from tidegate.spark.tasks.chain import Batch, Chain, ChainPlan, Outcome, ShardProgress
from tidegate.spark.tasks.local_state_cache import LocalStateCache
from tidegate.spark.tasks.state_store import BLOB, BLOB_KEY, META, SparkStore
from tidegate.spark.tasks.task_output import Emitted, Leaving, Outlet
from tidegate.spark.tasks.transport import (
    COMBINED,
    MARKS,
    METRICS,
    OBSERVED,
    REFUSED,
    ROWS,
    THROUGH,
    Shipped,
    document,
    through,
    together,
    unpack,
)
from tidegate.spark.tasks.watermark_files import WatermarkFiles

PACKED = f"output string, shard int, payload binary, metrics struct<{metrics.STRUCT}>"
"""The rows that leave the operator, as Spark declares them."""
EMITTED = 256 << 20
"""How many bytes one call puts out at most; the rest waits in the state for the next batch."""
EMITTED_AT_ONCE = 1536 << 20
"""The same where no further batch may come; beyond 2 GB a call fails."""
CACHED = 512 << 20
"""How many bytes of decoded state a worker keeps from batch to batch at most."""


def batch_from(rows: Sequence[Shipped]) -> Batch:
    """The rows of a batch in their order, as what a chain takes."""
    ordered = sorted(rows, key=lambda row: row.order)
    inputs = sorted({row.input for row in ordered})

    def arrivals(kind: str) -> list[Arrival]:
        found = [
            (
                number,
                together(
                    row.payload for row in ordered if row.kind == kind and row.input == number
                ),
            )
            for number in inputs
        ]
        return [Arrival(number, table) for number, table in found if table is not None]

    return Batch(
        arrivals=arrivals(ROWS),
        observed=arrivals(OBSERVED),
        combined=[packing.unpack(unpack(row.payload)) for row in ordered if row.kind == COMBINED],
        refused=[(arrival, "the offset is null") for arrival in arrivals(REFUSED)],
        progress=[
            _shard_progress(row.input, **json.loads(bytes(row.payload)))
            for row in ordered
            if row.kind == MARKS
        ],
    )


def _shard_progress(input: int, shard: int, watermark: int, *, is_idle: bool) -> ShardProgress:
    return ShardProgress(input, shard, OutputProgress(watermark, is_idle))


@dataclass
class _Kept:
    """A chain that a worker kept from its last batch: good as long as the query runs and the stored
    state is the one that it wrote.
    """

    chain: Chain
    store: SparkStore
    nbytes: int
    run: str


Numbers = dict[str, int | None]
_KEPT: OrderedDict[tuple[str, str, int], _Kept] = OrderedDict()


class Operate(StatefulProcessor):
    """One chain on Spark; the same object serves all shards of a task."""

    def __init__(
        self,
        plan: ChainPlan,
        layout: Layout,
        *,
        name: str = "0",
        floors: WatermarkFiles | None = None,
        outlets: Sequence[Outlet] | None = None,
    ) -> None:
        """With `outlets` what they can write in a task is written here, and the rows say what that
        was; without them everything leaves.
        """
        self._plan, self._layout, self._name, self._floors, self._outlets = (
            plan,
            layout,
            name,
            floors,
            outlets,
        )
        # Workers outlive a query: the chain of a former start has its specification and its
        # functions.
        self._run = uuid.uuid4().hex
        # Said here and not where it is used: a module that the driver has changed is another one in
        # the workers.
        self._cached = CACHED

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state variables, which are the same for every specification."""
        self._handle = handle
        self._meta = handle.getValueState("meta", META)
        self._blobs = handle.getMapState("blobs", BLOB_KEY, BLOB)
        context = TaskContext.get()
        self._query = (
            "" if context is None else context.getLocalProperty("sql.streaming.queryId") or ""
        )
        self._held: dict[int, dict[str, int]] = {}
        self._calls: Counter[int] = Counter()
        self._batch = int(
            ("-1" if context is None else context.getLocalProperty("streaming.sql.batchId")) or -1
        )

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        """Rows have come for a shard."""
        shipped = [Shipped(*row) for row in rows]
        passing = [row for row in shipped if row.kind == THROUGH]
        mine = [row for row in shipped if row.kind != THROUGH]
        yield from self._call(
            key[0],
            timerValues,
            lambda chain, now: self._process(chain, mine, now),
            [through(row) for row in passing],
        )

    def _process(self, chain: Chain, rows: Sequence[Shipped], now: int) -> list[Outcome]:
        """Process the rows of a micro-batch; override it for rows of other kinds."""
        return chain.take(batch_from(rows), now)

    def handleExpiredTimer(  # noqa: N802 - the name is Spark's
        self,
        key: Any,
        timerValues: Any,  # noqa: N803
        expiredTimerInfo: Any,  # noqa: ARG002, N803
    ) -> Iterator[Row]:
        """The clock has come to an instant at which something is due."""
        yield from self._call(key[0], timerValues, lambda chain, now: [chain.advance_clock(now)])

    def close(self) -> None:
        """State is Spark's; there is nothing to close."""

    def _call(
        self,
        shard: int,
        timers: Any,
        work: Callable[[Chain, int], list[Outcome]],
        passing: Sequence[Emitted] = (),
    ) -> Iterator[Row]:
        now = timers.getCurrentProcessingTimeInMs() * 1000
        chain, store = self._opened(shard, now)
        chain.rest(now)
        before = chain.counters
        leaving = Leaving(self._outlets)
        for output, payload in _waiting(store):
            leaving.add_payload(output, payload)
        for outcome in work(chain, now):
            leaving.add_all(outcome)
        emitted = leaving.drained()
        fits = _fitting(emitted, EMITTED_AT_ONCE if self._plan.ends else EMITTED)
        _wait(store, emitted[fits:])
        if self._plan.is_followed and fits == len(emitted):
            # Nothing is promised of panes that still wait here.
            emitted.insert(
                fits, (MARKS, document({"shard": shard, **asdict(chain.output_progress())}))
            )
            fits += 1
        yield from (_packed(output, payload, shard) for output, payload in emitted[:fits])
        self._set_timer(chain, store, now, at_once=fits < len(emitted))
        chain.save()
        if self._floors is not None:
            self._floors.leave(shard, self._batch, chain.operators[0].progress.watermark)
        waiting = sum(len(payload) for _, payload in emitted[fits:])
        store.summary = self._summary(chain, waiting)
        store.commit()
        counted = [self._measured(shard, chain, store, before, waiting)]
        # What the chain before has counted is part of what is observed of the query.
        counted += [
            (table, metrics.numbers_of(table))
            for table in (unpack(payload) for output, payload in passing if output == METRICS)
        ]
        yield from self._left(
            shard, leaving, counted, [row for row in passing if row[0] != METRICS]
        )
        self._keep(shard, chain, store)

    def _left(
        self,
        shard: int,
        leaving: Leaving,
        counted: Sequence[tuple[pa.Table, Numbers]],
        passing: Sequence[Emitted],
    ) -> Iterator[Row]:
        """What was counted, what only passes, and what was written here: a call that fails on the
        way has kept nothing.
        """
        for table, numbers in counted:
            yield _packed(METRICS, leaving.counted(table), shard, Row(**numbers))
        for output, payload in passing:
            leaving.add_payload(output, payload)
        number, self._calls[shard] = self._calls[shard], self._calls[shard] + 1
        # A shard may be called for rows and for a timer in one batch.
        task = f"{shard:05d}-{number}" if number else f"{shard:05d}"
        for output, payload in [*leaving.drained(), *leaving.staged(self._batch, task)]:
            yield _packed(output, payload, shard)

    def _opened(self, shard: int, now: int) -> tuple[Chain, SparkStore]:
        """The chain of the shard: the one that this worker kept if the state is still the one that
        it wrote, or that of the state.
        """
        found = self._meta.get()
        # While a call runs nobody keeps the chain: should it fail, the next one reads the state
        # that Spark has.
        kept = _KEPT.pop((self._query, self._name, shard), None)
        if kept is not None and kept.run == self._run and kept.store.is_same(found):
            kept.store.attach(self._meta, self._blobs)
            return kept.chain, kept.store
        store = SparkStore(self._meta, self._blobs, found, self._near(shard))
        layout = store.get_json("layout")
        if layout is not None:
            check_layout(layout, self._layout)
        store.put_json("layout", self._layout.to_dict())
        return Chain(self._plan, store, now=now), store

    def _near(self, shard: int) -> LocalStateCache | None:
        """Copies of the state among the temporary files of the executor, which Spark removes at its
        end.
        """
        places = os.environ.get("SPARK_LOCAL_DIRS", "")
        if TaskContext.get() is None or not places:
            return None
        return LocalStateCache.of(
            Path(places.split(",")[0], "tidegate", self._query, f"{self._name}-{shard}"),
            self._run,
            self._cached,
        )

    def _keep(self, shard: int, chain: Chain, store: SparkStore) -> None:
        nbytes = chain.nbytes
        if nbytes > self._cached:
            chain.release()
            nbytes = 0
        _KEPT[self._query, self._name, shard] = _Kept(chain, store, nbytes, self._run)
        while sum(kept.nbytes for kept in _KEPT.values()) > self._cached:
            _KEPT.popitem(last=False)

    def _summary(self, chain: Chain, waiting: int) -> dict[str, Any]:
        """How the chain stands, for those who look at the state from outside."""
        counters, first = chain.counters, chain.operators[0].progress
        instants = {"watermark": first.watermark, "newest": first.newest, "clock": chain.now}
        counted = {
            "operator": self._name,
            "batch": self._batch,
            "counters": dict(counters),
            "waiting_bytes": waiting,
        }
        return {**counted, **instants, **chain.held()}

    def _measured(
        self, shard: int, chain: Chain, store: SparkStore, counted: dict[str, int], waiting: int
    ) -> tuple[pa.Table, Numbers]:
        """What this call has counted: as a row for people, and as numbers that Spark adds up."""
        follows, is_followed = self._plan.follows, self._plan.is_followed
        before, after = (
            metrics.parted(counts, follows=follows, is_followed=is_followed)
            for counts in (counted, chain.counters)
        )
        windows = 0 if is_followed else store.summary["windows_open"]
        held = {"windows_open": windows, "state_bytes": store.nbytes, "waiting_bytes": waiting}
        # A shard that is called for rows and for a timer has two rows in a batch, and they are
        # added up too.
        former, self._held[shard] = self._held.get(shard, {}), held
        first = chain.operators[0].progress
        instants = {
            "watermark": first.watermark,
            "newest": MIN if follows else first.newest,
            "clock": chain.now,
        }
        numbers = metrics.measured(
            before,
            after,
            {name: size - former.get(name, 0) for name, size in held.items()},
            instants,
        )
        return metrics.row(numbers, before, after, batch=self._batch, shard=shard), numbers

    def _set_timer(self, chain: Chain, store: SparkStore, now: int, *, at_once: bool) -> None:
        """One timer a shard: a new one where something is due before the one that is set."""
        due = now + 1 if at_once else chain.next_due
        if due is not None and chain.is_listening:
            # Who is not called takes it that nothing ran, and then silence of the sources would not
            # count.
            due = min(due, now + self._plan.silence // 2)
        if due is None:
            return
        # Spark counts milliseconds, and loses a timer that is set for the instant at which it is
        # handled.
        at = max(-(-due // 1000), now // 1000 + 1)
        set_for = store.get_json("timer")
        if set_for is None or set_for * 1000 <= now or at < set_for:
            self._handle.registerTimer(at)
            store.put_json("timer", at)


def _fitting(emitted: Sequence[Emitted], limit: int) -> int:
    """How many of the payloads one call may put out."""
    size = 0
    for number, (_, payload) in enumerate(emitted):
        size += len(payload)
        if size > limit and number:
            return number
    return len(emitted)


def _waiting(store: SparkStore) -> list[Emitted]:
    """What earlier calls could not put out."""
    names = store.names("waiting/")
    found = [row for name in names for row in store.get_table(name).to_pylist()]
    for name in names:
        store.delete(name)
    return [(row["output"], row["payload"]) for row in found]


def _wait(store: SparkStore, rest: Sequence[Emitted]) -> None:
    for number, (output, payload) in enumerate(rest):
        store.put_table(
            f"waiting/{number:08d}",
            pa.table({"output": [output], "payload": pa.array([payload], pa.large_binary())}),
        )


def _packed(output: str, payload: bytes | None, shard: int, numbers: Row | None = None) -> Row:
    return Row(output=output, shard=shard, payload=payload, metrics=numbers)

"""A chain of operators that share a key and run in one task, each on the panes of the one before.

Like its operators, a chain is a function of the stored state, the rows in order, and the clock.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.errors import StateError
from tidegate.instants import MAX
from tidegate.kernel.frame import Frame
from tidegate.kernel.keys import KeyHasher
from tidegate.operators import snapshot as stored
from tidegate.operators.aggregate.migration import check_same
from tidegate.operators.aggregate.operator import WindowedAggregate
from tidegate.operators.async_map.delivery import late_results
from tidegate.operators.chain import (
    NO_PROGRESS,
    Operator,
    OutputProgress,
    apply_marks,
    received,
    render,
)
from tidegate.operators.changelog import changelog
from tidegate.operators.ingest.delivery import Arrival, DeliveryReader
from tidegate.operators.ingest.watermark_tracking import WatermarkTracker
from tidegate.operators.inspection.summary import summary
from tidegate.operators.join.operator import WindowedJoin
from tidegate.operators.output import Output
from tidegate.operators.projected_output import project_results
from tidegate.operators.results import Results
from tidegate.spark.metrics import CLASSES
from tidegate.spark.sinks.base import PANE_ID
from tidegate.spark.tasks.transport import EDGE_WATERMARK
from tidegate.spec.composition import Exchange, composed
from tidegate.spec.join import JoinSpec, Upstream
from tidegate.spec.operator import OPTIONAL_COLUMNS, AggregateSpec
from tidegate.spec.projection import Projection
from tidegate.spec.watermarks import Explicit, Lagging
from tidegate.state.memory import MemoryStore
from tidegate.state.store import PrefixedStore, Store

_FORWARD_INTERVAL = 1_000_000
"""How often a watermark that follows the clock is forwarded to another chain, in microseconds."""


@dataclass(frozen=True)
class ReshuffledInput:
    """An input that another chain feeds through a shuffle, because its key is different."""

    upstream: Exchange
    """What the last operator of that chain passes on."""
    shards: tuple[int, ...]
    """The shards of that chain; each is a partition of the input."""


@dataclass(frozen=True)
class ChainPlan:
    """The specification of a chain: its operators and their place in the query."""

    specs: tuple[Upstream, ...]
    schema: pa.Schema
    """The columns of the input: of all inputs of a union or a merge, of the left side of a join."""
    right: pa.Schema | None = None
    """The columns of the right side of a join."""
    reshuffled: Mapping[int, ReshuffledInput] = field(default_factory=dict)
    """The inputs of the first operator that other chains feed, by ordinal."""
    silence: int = MAX
    """How much of the time between two batches counts as silence of the sources; a longer pause is
    time in which the query did not read.
    """
    failed: Mapping[int, pa.Schema] = field(default_factory=dict)
    """The columns of the failed messages of async maps, by input of the first operator."""
    changes: bool = False
    """Whether panes leave as rows of a change feed."""
    included: tuple[str, ...] = ()
    """The optional columns of panes that leave the query; `pane_id` leaves for the sinks anyway."""
    ends: bool = False
    """Whether the query ends when it has read everything, so that no further batch may come."""
    projections: tuple[Projection, ...] = ()
    """What panes pass before they leave the query."""
    has_downstream: bool = False
    """Whether another chain takes the panes: then internal columns stay in them, and the output
    progress leaves with them.
    """
    unread: tuple[str, ...] = ()
    """The columns of panes that the other chain does not read."""
    downstream_time: str | None = None
    """The time column that the other chain reads, where a join has several."""

    @property
    def is_downstream(self) -> bool:
        """Whether other chains feed all inputs, so that those chains count the events."""
        return len(self.reshuffled) == len(self.specs[0].inputs)

    @property
    def feeding(self) -> list[dict[int, Exchange]]:
        """For each operator, what is passed to each input that another operator feeds."""
        found = [{ordinal: given.upstream for ordinal, given in self.reshuffled.items()}]
        for spec in self.specs[:-1]:
            found.append({0: composed(spec, found[-1])})
        return found

    @property
    def exchange(self) -> Exchange:
        """What the last operator passes on."""
        return composed(self.specs[-1], self.feeding[-1])

    @property
    def schemas(self) -> tuple[pa.Schema, ...]:
        """The columns of both sides of a join, or those of all inputs together."""
        return (self.schema,) if self.right is None else (self.schema, self.right)

    def to_dict(self) -> dict[str, Any]:
        """What stored state depends on, as JSON; each operator checks its own specification."""
        return {
            "operators": len(self.specs),
            "upstream_shards": sorted(
                {shard for given in self.reshuffled.values() for shard in given.shards}
            ),
        }


@dataclass(frozen=True)
class ChainOutput:
    """The output of one call of a chain: panes of its last operator, late rows of all operators."""

    panes: Sequence[pa.Table] = ()
    late: Sequence[pa.Table] = ()

    @classmethod
    def of(cls, results: Iterable[Results]) -> ChainOutput:
        """The tables of all results that have rows, in order."""
        found = list(results)
        return cls(
            [part.panes for part in found if part.panes.num_rows],
            [part.late for part in found if part.late.num_rows],
        )


@dataclass(frozen=True)
class ShardProgress:
    """The output progress of one shard of an upstream chain, for one input of this one."""

    input: int
    shard: int
    progress: OutputProgress


@dataclass(frozen=True)
class ChainInput:
    """The input of a chain in one micro-batch."""

    arrivals: Sequence[Arrival] = ()
    observed: Sequence[Arrival] = ()
    """Rows of all shards that the watermark generators observe."""
    combined: Sequence[Frame] = ()
    """Partial aggregates of rows that are on time, as `PreAggregator` makes them."""
    refused: Sequence[tuple[Arrival, str]] = ()
    """Rows that cannot be processed, with the reason."""
    failed: Sequence[Arrival] = ()
    """Messages for which an async map has no result."""
    progress: Sequence[ShardProgress] = ()
    """The progress of upstream chains."""
    positions: Sequence[np.ndarray] = ()
    """Positions of the events of all shards, for static windows."""


class Chain:
    """The operators of one shard, or all of them where there are no shards."""

    def __init__(
        self,
        plan: ChainPlan,
        store: Store,
        *,
        now: int = 0,
        hasher: KeyHasher | None = None,
    ) -> None:
        """The chain as stored; a new one, whose clock starts at `now`, if the store is empty.

        `hasher`: that of the query, which splits rows into shards.
        """
        self.plan = plan
        self.store = store
        document = store.get_json("chain", {**plan.to_dict(), "now": now})
        check_same({name: document[name] for name in plan.to_dict()}, plan.to_dict())
        self.now: int = document["now"]
        self.operators = _operators(plan, store, self.now, hasher)
        schemas = plan.schemas
        for number, (operator, feeding) in enumerate(
            zip(self.operators, plan.feeding, strict=True)
        ):
            for reader, schema in zip(
                _readers(operator), schemas * len(operator.spec.inputs), strict=False
            ):
                reader.check(schema)
                # An empty table is enough to refuse types that cannot be offsets or keys.
                reader.read(schema.empty_table(), None, self.now)
            if not stored.restore(operator) or not operator.is_bound:
                operator.bind(*schemas)
            else:
                _follow(operator, feeding)
            schemas = (operator.renderer().render(Output()).panes.schema,)
            if number + 1 < len(self.operators):
                given = self.operators[number + 1].spec.inputs[0]
                schemas = (received(schemas[0].empty_table(), given).schema,)

    # Calls

    def run(self, batch: ChainInput, now: int) -> list[ChainOutput]:
        """Process a micro-batch, then advance the clock to it."""
        return [self.process(batch, now), self.advance_clock(now)]

    def process(self, batch: ChainInput, now: int, *, hold: bool = False) -> ChainOutput:
        """Process a micro-batch; the watermark advances at its end, or later with `hold`."""
        self.now = max(self.now, now)
        return ChainOutput.of(self._process(batch, hold=hold))

    def _process(self, batch: ChainInput, *, hold: bool) -> Iterator[Results]:
        first = self.operators[0]
        for arrival, detail in batch.refused:
            yield from self._pass_on(
                0, first.refuse(arrival.table, self.now, "bad_offset", detail, arrival.ordinal)
            )
        for arrival in batch.failed:
            # These are late rows only: `ChainOutput` leaves out the empty panes.
            yield late_results(first, arrival.table, arrival.ordinal)
        more: dict[str, Any] = {} if not batch.positions else {"positions": batch.positions}
        if batch.combined:
            for frame in batch.combined:
                _check_floor(frame, first.progress.watermark)
            more["combined"] = batch.combined
        yield from self._pass_on(
            0,
            first.process_all(batch.arrivals, self.now, observed=batch.observed, hold=hold, **more),
        )
        if batch.progress:
            yield from self._pass_on(
                0, first.change_sources(lambda tracker: self._apply_all(tracker, batch.progress))
            )

    def change_sources(self, change: Callable[[WatermarkTracker], object]) -> ChainOutput:
        """Change the watermark state of the chain's sources."""
        return ChainOutput.of(self._pass_on(0, self.operators[0].change_sources(change)))

    def advance_clock(self, now: int) -> ChainOutput:
        """Advance the clock; it never goes back."""
        self.now = max(self.now, now)
        return ChainOutput.of(
            results
            for number, operator in enumerate(self.operators)
            for results in self._pass_on(number, operator.advance_clock(self.now))
        )

    def finish(self) -> ChainOutput:
        """End the input: everything fires, and no state is left."""
        return ChainOutput.of(
            results
            for number, operator in enumerate(self.operators)
            for results in self._pass_on(number, operator.finish(), finishing=True)
        )

    def skip_pause(self, now: int) -> None:
        """Do not count a pause of the query beyond `silence` as silence of the sources."""
        pause = now - self.now - self.plan.silence
        if pause > 0:
            for operator in self.operators:
                operator.watermark_tracker.shift(pause)

    def _pass_on(
        self, number: int, output: Output, *, finishing: bool = False
    ) -> Iterator[Results]:
        """Pass the output of an operator down the chain; yield the results that leave the chain.

        The next operator gets the panes, then the progress of this one, unless all is `finishing`.
        """
        last = number + 1 == len(self.operators)
        for results in render(self.operators[number], output):
            if last:
                yield self._left(results)
                continue
            yield Results(results.panes.slice(0, 0), results.late)
            if results.panes.num_rows:
                downstream = self.operators[number + 1]
                rows = received(results.panes, downstream.spec.inputs[0])
                yield from self._pass_on(
                    number + 1, downstream.process_all([Arrival(0, rows)], self.now)
                )
        if not last and not finishing:
            yield from self._pass_on(number + 1, self._forward_progress(number))

    def _forward_progress(self, number: int) -> Output:
        """Forward the progress of an operator to the next; returns the output of that one."""
        downstream = self.operators[number + 1]
        time = downstream.spec.inputs[0].time
        progress = OutputProgress.of(self.operators[number], time)
        return downstream.change_sources(
            lambda tracker: _apply(tracker, progress, downstream.spec, 0)
        )

    def _apply_all(self, tracker: WatermarkTracker, found: Sequence[ShardProgress]) -> None:
        spec = self.operators[0].spec
        for one in found:
            _apply(tracker, one.progress, spec, one.input, str(one.shard))

    def _shown(self, panes: pa.Table) -> pa.Table:
        spec = self.operators[-1].spec
        if self.plan.has_downstream:
            unread = self.plan.unread if isinstance(spec, AggregateSpec) else ()
            return panes.drop_columns(list(unread))
        hidden = {*OPTIONAL_COLUMNS} - {*self.plan.included, PANE_ID}
        shown = panes.drop_columns(sorted(hidden)) if isinstance(spec, AggregateSpec) else panes
        return changelog(shown, spec.identity, spec.mode) if self.plan.changes else shown

    def _left(self, results: Results) -> Results:
        """The results of the last operator as they leave the chain."""
        shown = Results(self._shown(results.panes), results.late)
        return project_results(shown, self.plan.projections)

    # Inspection

    @property
    def next_due(self) -> int | None:
        """The earliest instant at which the clock may change something."""
        first, *others = self.operators
        found = [
            due for due in (operator.next_due for operator in self.operators) if due is not None
        ]
        # A watermark that follows the clock reaches the others through the first operator. Which
        # watermark another chain needs is not known here.
        found += [
            first.watermark_tracker.clock_at(operator.waits_for, first.key)
            for operator in others
            if operator.waits_for != MAX
        ]
        if self.plan.has_downstream and any(
            isinstance(given.watermark, Lagging) for given in first.spec.inputs
        ):
            found.append(self.now + _FORWARD_INTERVAL)
        return min((max(due, self.now + 1) for due in found if due != MAX), default=None)

    @property
    def tracks_silence(self) -> bool:
        """Whether some source may become idle by silence."""
        return any(operator.watermark_tracker.next_due != MAX for operator in self.operators)

    @property
    def nbytes(self) -> int:
        return sum(operator.nbytes for operator in self.operators)

    @property
    def counters(self) -> Counter[str]:
        """Counts of events by the first operator, of panes by the last, of late rows by all."""
        first, last = self.operators[0].progress.counters, self.operators[-1].progress.counters
        found = Counter(
            {
                name: n
                for name, n in last.items()
                if name.startswith(("panes_", "retractions", "windows_"))
            }
        )
        found.update({name: first[name] for name in ("events", *CLASSES)})
        for operator in self.operators:
            found.update(
                {
                    name: n
                    for name, n in operator.progress.counters.items()
                    if name == "late_rows" or name.startswith("reason.")
                }
            )
        return found

    def state_summary(self) -> dict[str, Any]:
        """A summary of the state, without a full scan: its size, and the next windows to complete.

        It describes the last operator, and the rows of both sides if the first is a join.
        """
        return summary(self.operators)

    def output_progress(self) -> OutputProgress:
        """The progress that the downstream chain gets."""
        return OutputProgress.of(self.operators[-1], self.plan.downstream_time)

    def schemas(self) -> tuple[pa.Schema, pa.Schema]:
        """The columns of the panes and of the late rows."""
        empty = [operator.renderer().render(Output()) for operator in self.operators]
        failed = [
            late_results(self.operators[0], schema.empty_table(), ordinal)
            for ordinal, schema in self.plan.failed.items()
        ]
        return self._left(empty[-1]).panes.schema, late_schema(
            [results.late.schema for results in (*empty, *failed)]
        )

    # State

    def save(self) -> None:
        """Write what changed; it becomes durable when the owner of the store commits."""
        for operator in self.operators:
            stored.save(operator)
        self.store.put_json("chain", {**self.plan.to_dict(), "now": self.now})

    def release(self) -> None:
        """Release memory that can be read again from the store."""
        for operator in self.operators:
            stored.release(operator)


def output_schemas(plan: ChainPlan) -> tuple[pa.Schema, pa.Schema]:
    """The columns of the panes and late rows of a plan; fails if a specification does not fit."""
    return Chain(plan, MemoryStore()).schemas()


def check_migration(plan: ChainPlan, former: Sequence[dict[str, Any]]) -> None:
    """Refuse a plan if state of these former specifications cannot migrate to it."""
    # The specifications of a query do not name the shards of its upstreams, which cannot change.
    plan = dataclasses.replace(plan, reshuffled={})
    store = MemoryStore()
    kept = tuple(_without_new(spec, old) for spec, old in zip(plan.specs, former, strict=True))
    Chain(dataclasses.replace(plan, specs=kept), store).save()
    store.delete("chain")
    for number, spec in enumerate(former):
        operator = PrefixedStore(store, f"{number}/")
        operator.put_json(stored.NAME, {**operator.get_json(stored.NAME), "spec": spec})
    Chain(plan, store)


def _without_new(spec: Upstream, former: Mapping[str, Any]) -> Upstream:
    """The specification without aggregates that the former one does not have."""
    if not isinstance(spec, AggregateSpec):
        return spec
    known = former.get("aggregates") or {}
    kept = tuple((name, one) for name, one in spec.aggregates if name in known)
    return dataclasses.replace(spec, aggregates=kept or spec.aggregates)


def _operators(plan: ChainPlan, store: Store, now: int, hasher: KeyHasher | None) -> list[Operator]:
    found: list[Operator] = []
    for number, (declared, feeding) in enumerate(zip(plan.specs, plan.feeding, strict=True)):
        spec = declared
        if number == 0:
            # Every shard of an upstream holds the watermark back.
            inputs = {
                ordinal: Explicit(declared=tuple(str(shard) for shard in given.shards))
                for ordinal, given in plan.reshuffled.items()
            }
            spec = _with_watermarks(spec, inputs)
        operator = _operator(spec, PrefixedStore(store, f"{number}/"), now, hasher)
        _follow(operator, feeding)
        found.append(operator)
    return found


def _operator(spec: Upstream, store: Store, now: int, hasher: KeyHasher | None) -> Operator:
    if isinstance(spec, JoinSpec):
        return WindowedJoin(spec, store, now=now, hasher=hasher)
    return WindowedAggregate(spec, store, now=now, hasher=hasher)


def _follow(operator: Operator, feeding: Mapping[int, Exchange]) -> None:
    for ordinal, upstream in feeding.items():
        operator.follow(upstream, None if len(operator.spec.inputs) == 1 else ordinal)


def _with_watermarks(spec: Upstream, watermarks: Mapping[int, Explicit]) -> Upstream:
    """The specification with these watermarks for some inputs, by ordinal."""
    if not watermarks:
        return spec
    inputs = [
        given if n not in watermarks else dataclasses.replace(given, watermark=watermarks[n])
        for n, given in enumerate(spec.inputs)
    ]
    if isinstance(spec, JoinSpec):
        return spec.with_inputs(inputs)
    return dataclasses.replace(spec, input=inputs[0], also=tuple(inputs[1:]))


def _readers(operator: Operator) -> list[DeliveryReader]:
    """The reader of each input."""
    return (
        [side.reader(side.ordinals[0]) for side in operator.sides]
        if isinstance(operator, WindowedJoin)
        else [DeliveryReader(given, hasher=operator.hasher) for given in operator.spec.inputs]
    )


def _check_floor(combined: Frame, watermark: int) -> None:
    """Refuse rows that were combined at an older watermark: some of them may be late by now."""
    floor = int(combined.ints(EDGE_WATERMARK)[0])
    if floor < watermark:
        hint = "the folder `tidegate/watermarks` in the checkpoint is of another query; delete it"
        raise StateError(
            f"rows were aggregated by the watermark {floor}, but it stands at {watermark}. Hint:"
            f" {hint}"
        )


def _apply(
    tracker: WatermarkTracker,
    progress: OutputProgress,
    spec: Upstream,
    ordinal: int,
    partition: str | None = None,
) -> None:
    """Apply the progress of an upstream, which repeats it with every call, to an input."""
    key = spec.inputs[ordinal].watermark_key
    apply_marks(tracker, progress.marks(key, since=NO_PROGRESS), ordinal, partition)


def late_schema(schemas: Sequence[pa.Schema]) -> pa.Schema:
    """The columns of the late rows of all operators; where types differ, a column is text."""
    fields: dict[str, pa.DataType] = {}
    for field_ in [f for schema in schemas for f in schema]:
        known = fields.get(field_.name, field_.type)
        fields[field_.name] = field_.type if known == field_.type else pa.string()
    return pa.schema(list(fields.items()))

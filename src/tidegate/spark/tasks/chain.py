"""A chain of operators that share a key runs in one process: each takes the panes of the one
before, and what may be promised of them.

It is a function of the stored state, the rows in their order and the clock that it is told, as its
operators are.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from tidegate.errors import StateError
from tidegate.instants import MAX, MIN
from tidegate.kernel.frame import Frame, concat_frames
from tidegate.kernel.groups import Groups
from tidegate.kernel.storage.run_store import SortedRuns
from tidegate.operators import snapshot as stored
from tidegate.operators.aggregate.migration import check_same
from tidegate.operators.aggregate.operator import WindowedAggregate
from tidegate.operators.aggregate.results import Results
from tidegate.operators.changelog import changelog
from tidegate.operators.ingest.delivery import Arrival, DeliveryReader
from tidegate.operators.ingest.watermark_tracking import WatermarkTracker
from tidegate.operators.join.operator import WindowedJoin
from tidegate.operators.output import Output
from tidegate.spark.query.metrics import CLASSES
from tidegate.spark.tasks.transport import FLOOR
from tidegate.spec.join import SIDES, JoinSpec, Upstream
from tidegate.spec.operator import AggregateSpec
from tidegate.spec.watermarks import Explicit, Lagging
from tidegate.spec.windows import Inherited
from tidegate.state.memory import MemoryStore
from tidegate.state.prefixed import Prefixed
from tidegate.state.protocol import Store

_SHOWN = 10
"""How many windows a summary tells."""
_COUNTED = 1 << 16
"""Up to how many rows it looks at for them."""
_FORWARDED = 1_000_000
"""How often a watermark that follows the clock is told to another chain."""
INTERNAL = ("pane_nonspeculative", "time")
"""Columns of panes that only other operators look at."""


@dataclass(frozen=True)
class Fed:
    """An input that another chain feeds: by which operator, whose output is keyed anew, and from
    which shards.
    """

    spec: Upstream
    shards: tuple[int, ...]


@dataclass(frozen=True)
class ChainPlan:
    """What a chain is made from."""

    specs: tuple[Upstream, ...]
    schema: pa.Schema
    """The columns of the input; where inputs are united, those of all of them, and of a join those
    of the left side.
    """
    right: pa.Schema | None = None
    """The columns of the right side of a join."""
    fed: Mapping[int, Fed] = field(default_factory=dict)
    """The inputs of the first operator that other chains feed."""
    silence: int = MAX
    """How much of the time between two batches counts as silence of the sources; what is beyond it
    nobody could have read.
    """
    changes: bool = False
    """Whether panes leave as rows of a change feed."""
    ends: bool = False
    """Whether the query ends when it has read everything: there may be no further batch for what
    waits.
    """
    is_followed: bool = False
    """Whether another chain takes the panes: then they keep the columns that only operators look
    at, and marks leave with them.
    """
    followed_on: str | None = None
    """The time column that the other chain goes by, where there are several."""

    @property
    def follows(self) -> bool:
        """Whether all that comes in was counted by other chains."""
        return len(self.fed) == len(self.specs[0].inputs)

    @property
    def schemas(self) -> tuple[pa.Schema, ...]:
        """The columns of each input of the first operator, or of all."""
        return (self.schema,) if self.right is None else (self.schema, self.right)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form of what stored state depends on beside the specifications, which each
        operator checks itself.
        """
        return {
            "operators": len(self.specs),
            "upstream_shards": sorted({shard for fed in self.fed.values() for shard in fed.shards}),
        }


@dataclass
class Outcome:
    """What came out of a call."""

    panes: list[pa.Table] = field(default_factory=list)
    late: list[pa.Table] = field(default_factory=list)


@dataclass(frozen=True)
class Batch:
    """What a chain takes at once."""

    arrivals: Sequence[Arrival] = ()
    observed: Sequence[Arrival] = ()
    combined: Sequence[Frame] = ()
    """Partial aggregates of rows that are on time, as `PreAggregator` makes them."""
    refused: Sequence[tuple[Arrival, str]] = ()
    """Rows that cannot be delivered, with what is wrong with them."""
    marks: Sequence[dict[str, Any]] = ()
    """What the shards of an upstream promise."""


class Chain:
    """The operators of one shard, or all of them where there are no shards."""

    def __init__(self, plan: ChainPlan, store: Store, *, now: int = 0) -> None:
        """The chain as the store has it; a new one, whose clock begins at `now`, where it has
        none.
        """
        self.plan = plan
        self.store = store
        document = store.get_json("chain", {**plan.to_dict(), "now": now})
        check_same({name: document[name] for name in plan.to_dict()}, plan.to_dict())
        self.now: int = document["now"]
        self._out = Outcome()
        self.operators = _operators(plan, store, self.now)
        schemas = plan.schemas
        for operator, feeding in zip(self.operators, _feeding(plan), strict=True):
            for reader, schema in zip(
                _readers(operator), schemas * len(operator.spec.inputs), strict=False
            ):
                reader.check(schema)
                # Types that cannot be offsets, partitions or keys are refused without any rows.
                reader.read(schema.empty_table(), None, self.now)
            if not stored.restore(operator) or not operator.is_bound:
                operator.bind(*schemas)
            else:
                _follow(operator, feeding)
            schemas = (operator.renderer().render(Output()).panes.schema,)

    # The verbs

    def take(self, batch: Batch, now: int) -> list[Outcome]:
        """Process a micro-batch, then advance the clock to it."""
        return [self.process(batch, now), self.advance_clock(now)]

    def process(self, batch: Batch, now: int, *, hold: bool = False) -> Outcome:
        """Take a micro-batch; the watermark moves at its end, or not yet with `hold`."""
        self._begin(now)
        first = self.operators[0]
        for arrival, detail in batch.refused:
            self._pass(
                0, first.refuse(arrival.table, self.now, "bad_offset", detail, arrival.ordinal)
            )
        combined: dict[str, Any] = {}
        if batch.combined:
            for frame in batch.combined:
                _check_floor(frame, first.progress.watermark)
            combined["combined"] = batch.combined
        self._pass(
            0,
            first.process_all(
                batch.arrivals, self.now, observed=batch.observed, hold=hold, **combined
            ),
        )
        if batch.marks:
            self._pass(
                0, first.tell(lambda watermark_tracker: _promises(watermark_tracker, batch.marks))
            )
        return self._out

    def tell(self, change: Callable[[WatermarkTracker], object]) -> Outcome:
        """Change the watermark state of the chain's sources."""
        self._begin(self.now)
        self._pass(0, self.operators[0].tell(change))
        return self._out

    def advance_clock(self, now: int) -> Outcome:
        """The clock has come to this instant."""
        self._begin(now)
        for n, operator in enumerate(self.operators):
            self._pass(n, operator.advance_clock(self.now))
        return self._out

    def finish(self) -> Outcome:
        """The input has ended."""
        self._begin(self.now)
        for n, operator in enumerate(self.operators):
            self._pass(n, operator.finish(), finishing=True)
        return self._out

    def rest(self, now: int) -> None:
        """Time has passed in which nothing ran: no source was silent in it beyond what counts."""
        pause = now - self.now - self.plan.silence
        if pause > 0:
            for operator in self.operators:
                operator.watermark_tracker.shift(pause)

    def _begin(self, now: int) -> None:
        self.now = max(self.now, now)
        self._out = Outcome()

    def _pass(self, number: int, output: Output, *, finishing: bool = False) -> None:
        """Give the panes of an operator to the next, and then how far it is; those of the last
        leave.
        """
        operator = self.operators[number]
        last = number + 1 == len(self.operators)
        results = (
            Results(pa.table({}), pa.table({}))
            if output.is_empty
            else operator.renderer().render(output)
        )
        if results.late.num_rows:
            self._out.late.append(results.late)
        if last:
            if results.panes.num_rows:
                self._out.panes.append(self._shown(results.panes))
            return
        follower = self.operators[number + 1]
        if results.panes.num_rows:
            self._pass(number + 1, follower.process_all([Arrival(0, results.panes)], self.now))
        if not finishing:
            self._pass(
                number + 1,
                follower.tell(
                    lambda watermark_tracker: _promised(
                        watermark_tracker, _marks_of(operator, follower.spec.inputs[0].time)
                    )
                ),
            )

    def _shown(self, panes: pa.Table) -> pa.Table:
        if self.plan.is_followed:
            return panes
        spec = self.operators[-1].spec
        shown = panes.drop_columns(list(INTERNAL)) if isinstance(spec, AggregateSpec) else panes
        return changelog(shown, spec.identity, spec.mode) if self.plan.changes else shown

    # What can be asked

    @property
    def next_due(self) -> int | None:
        """The earliest instant at which the clock may change something."""
        first, *others = self.operators
        found = [
            due for due in (operator.next_due for operator in self.operators) if due is not None
        ]
        # A watermark that follows the clock reaches the others through the first; what another
        # chain waits for is not known here.
        found += [
            first.watermark_tracker.clock_at(operator.waits_for, first.key)
            for operator in others
            if operator.waits_for != MAX
        ]
        if self.plan.is_followed and any(
            isinstance(given.watermark, Lagging) for given in first.spec.inputs
        ):
            found.append(self.now + _FORWARDED)
        return min((max(due, self.now + 1) for due in found if due != MAX), default=None)

    @property
    def is_listening(self) -> bool:
        """Whether silence of some source would change something."""
        return any(operator.watermark_tracker.next_due != MAX for operator in self.operators)

    @property
    def nbytes(self) -> int:
        return sum(operator.nbytes for operator in self.operators)

    @property
    def counters(self) -> Counter[str]:
        """What was counted: of what came in by the first operator, of late rows by all, of panes by
        the last.
        """
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

    def held(self) -> dict[str, Any]:
        """What is held, as far as that is known without looking at all of it: rows of a join, and
        the windows of the last that complete next.
        """
        first, last = self.operators[0], self.operators[-1]
        rows = (
            {SIDES[side.number]: len(side.buffer) for side in first.sides}
            if isinstance(first, WindowedJoin)
            else {}
        )
        if isinstance(last, WindowedJoin):
            return {
                "windows": [],
                "windows_open": 0,
                "cells": 0,
                "messages": sum(rows.values()),
                "rows": rows,
            }
        parts = last.bound()
        windows, shared = (
            parts.slice_buffer.waiting(_SHOWN, 0) if parts.slice_buffer is not None else ([], 0)
        )
        if len(parts.core.cells) <= _COUNTED:
            windows = [*windows, *_first_windows(parts.core.cells)]
        next_ones = sorted(windows, key=lambda window: (window[0][1], window[0][0]))[:_SHOWN]
        messages = 0 if parts.core.messages is None else parts.core.messages.count
        shown = [{"start": start, "end": end, "keys": keys} for (start, end), keys in next_ones]
        # A window that all keys share until it is complete is one; later, and with early panes,
        # there is one for each key.
        return {
            "windows": shown,
            "windows_open": shared + len(parts.core.cells),
            "cells": len(parts.core.cells),
            "messages": messages,
            "rows": rows,
        }

    def mark(self) -> dict[str, Any]:
        """What may be promised of the panes that are still to come."""
        return _marks_of(self.operators[-1], self.plan.followed_on)

    def schemas(self) -> tuple[pa.Schema, pa.Schema]:
        """The columns of the panes and of the late rows that leave."""
        empty = [operator.renderer().render(Output()) for operator in self.operators]
        return self._shown(empty[-1].panes).schema, late_schema(
            [results.late.schema for results in empty]
        )

    # State

    def save(self) -> None:
        """Write what changed; durable when the store's owner commits."""
        for operator in self.operators:
            stored.save(operator)
        self.store.put_json("chain", {**self.plan.to_dict(), "now": self.now})

    def release(self) -> None:
        """Let go of what the store can give back."""
        for operator in self.operators:
            stored.release(operator)


def schemas_of(plan: ChainPlan) -> tuple[pa.Schema, pa.Schema]:
    """What a chain of this plan puts out; a specification that does not fit its input fails
    here.
    """
    return Chain(plan, MemoryStore()).schemas()


def rehearse(plan: ChainPlan, former: Sequence[dict[str, Any]]) -> None:
    """Let a chain follow these former specifications of its operators without any rows; what state
    could not follow is refused here.
    """
    store = MemoryStore()
    Chain(plan, store).save()
    for number, spec in enumerate(former):
        operator = Prefixed(store, f"{number}/")
        operator.put_json(stored.NAME, {**operator.get_json(stored.NAME), "spec": spec})
    Chain(plan, store)


def _operators(plan: ChainPlan, store: Store, now: int) -> list[stored.Operator]:
    found: list[stored.Operator] = []
    for number, (given, feeding) in enumerate(zip(plan.specs, _feeding(plan), strict=True)):
        spec = given
        if number == 0:
            # The watermark waits for every shard of an upstream.
            inputs = {
                ordinal: Explicit(declared=tuple(str(shard) for shard in fed.shards))
                for ordinal, fed in plan.fed.items()
            }
            spec = _told(spec, inputs)
        operator = _operator(spec, Prefixed(store, f"{number}/"), now)
        _follow(operator, feeding)
        found.append(operator)
    return found


def _operator(spec: Upstream, store: Store, now: int) -> stored.Operator:
    if isinstance(spec, JoinSpec):
        return WindowedJoin(spec, store, now=now)
    return WindowedAggregate(
        spec, store, now=now, op_column="op" if isinstance(spec.window, Inherited) else None
    )


def _feeding(plan: ChainPlan) -> list[dict[int, Upstream]]:
    """For each operator, which of its inputs other operators feed."""
    return [
        {ordinal: fed.spec for ordinal, fed in plan.fed.items()},
        *({0: spec} for spec in plan.specs[:-1]),
    ]


def _follow(operator: stored.Operator, feeding: Mapping[int, Upstream]) -> None:
    for ordinal, upstream in feeding.items():
        operator.follow(upstream, None if len(operator.spec.inputs) == 1 else ordinal)


def _told(spec: Upstream, marks: Mapping[int, Explicit]) -> Upstream:
    """The same specification, whose inputs are told these watermarks."""
    if not marks:
        return spec
    inputs = [
        given if n not in marks else dataclasses.replace(given, watermark=marks[n])
        for n, given in enumerate(spec.inputs)
    ]
    if isinstance(spec, JoinSpec):
        return dataclasses.replace(spec, left=inputs[0], right=inputs[1])
    return dataclasses.replace(spec, input=inputs[0], also=tuple(inputs[1:]))


def _readers(operator: stored.Operator) -> list[DeliveryReader]:
    """What reads each input."""
    return (
        [side.reader for side in operator.sides]
        if isinstance(operator, WindowedJoin)
        else [DeliveryReader(given) for given in operator.spec.inputs]
    )


def _check_floor(combined: Frame, watermark: int) -> None:
    """Rows that were found on time by an older watermark than this one may be late, and cannot be
    told apart any more.
    """
    floor = int(combined.ints(FLOOR)[0])
    if floor < watermark:
        hint = "the folder `floors` in the checkpoint is not that of this query; remove it"
        raise StateError(
            f"rows were aggregated by the watermark {floor}, but it stands at {watermark}. Hint:"
            f" {hint}"
        )


def _first_windows(cells: SortedRuns) -> list[tuple[tuple[int, int], int | None]]:
    """Of the windows that are kept cell by cell those that end first, with how many keys they
    have.
    """
    frames = [frame for frame in cells.live(("start", "end", "closed")) if len(frame)]
    if not frames:
        return []
    whole = concat_frames(frames)
    whole = whole.where(~whole.ints("closed"))
    # Where every key has windows of its own there are as many as cells, and most need not be looked
    # at.
    last, later = MIN, whole.ints("end")
    for _ in range(_SHOWN):
        last = int(later.min(initial=MAX))
        later = later[later > last]
    whole = whole.where(whole.ints("end") <= last)
    groups = Groups.by([whole.ints("start"), whole.ints("end")])
    starts, ends = (whole.ints(name)[groups.firsts].tolist() for name in ("start", "end"))
    return list(zip(zip(starts, ends, strict=True), groups.counts.tolist(), strict=True))


def _marks_of(operator: stored.Operator, column: str | None) -> dict[str, Any]:
    """What an operator promises of what is still to come, by the time column that is asked for."""
    promised = operator.output_watermark
    if isinstance(operator, WindowedJoin):
        promised = operator.output_watermarks.get(column or "", promised)
    return {"watermark": promised, "idle": operator.is_idle}


def _promised(watermark_tracker: WatermarkTracker, mark: dict[str, Any]) -> None:
    """What the operator before promises, which is of the same shard and the only source."""
    _promises(watermark_tracker, [{**mark, "shard": None}])


def _promises(watermark_tracker: WatermarkTracker, marks: Sequence[dict[str, Any]]) -> None:
    """What the shards of an upstream promise; they say it again and again."""
    for mark in marks:
        ordinal = mark.get("input", 0)
        key = next(iter(watermark_tracker.columns[ordinal]))
        partition = None if mark["shard"] is None else str(mark["shard"])
        if mark["watermark"] != MIN:
            watermark_tracker.promise(
                mark["watermark"], ordinal=ordinal, partition=partition, key=key, repeats=True
            )
        if mark["idle"]:
            watermark_tracker.idle(ordinal=ordinal, partition=partition, key=key)


def late_schema(schemas: Sequence[pa.Schema]) -> pa.Schema:
    """The columns of the late rows of all operators; where two disagree about a type, it is told as
    text.
    """
    fields: dict[str, pa.DataType] = {}
    for field_ in [f for schema in schemas for f in schema]:
        known = fields.get(field_.name, field_.type)
        fields[field_.name] = field_.type if known == field_.type else pa.string()
    return pa.schema(list(fields.items()))

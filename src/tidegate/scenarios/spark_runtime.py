"""Scenarios on Spark: rehearsed to learn their steps, played in one query, then checked.

The k-th micro-batch holds the k-th steps of all scenarios, and every scenario has its own shards.
Rows take the path of every query: the edge, the shuffle, the stateful operator with its state in
Spark's store, and the packed outputs. The query is restarted where a scenario has a restart, and in
the middle for all others.
"""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import PySparkException

from tidegate.errors import SetupError, TidegateError
from tidegate.instants import MIN
from tidegate.scenarios.document import PASS, Outcome, Scenario
from tidegate.scenarios.runner import run_on
from tidegate.scenarios.runtimes import (
    SHARD,
    Adjustment,
    Records,
    RunningAggregate,
    RunningJoin,
    Window,
)
from tidegate.scenarios.spark_players import CONTENTS, KEPT, SEEN, Players, Role
from tidegate.scenarios.spark_script import Command, Part, Step, played
from tidegate.spark.environment.session import check_session, running_session, session
from tidegate.spark.parallelism import PARTITIONS
from tidegate.spark.plan.dataflow import edge_of
from tidegate.spark.query.settings import NO_DATA_BATCHES, spark_settings
from tidegate.spark.tasks.chain import ChainPlan, output_schemas
from tidegate.spark.tasks.edge import Edge
from tidegate.spark.tasks.shards import ShardLayout
from tidegate.spark.tasks.transport import LATE, OUTPUT_COLUMNS, PANES, decode_payload
from tidegate.spec.join import JoinSpec
from tidegate.spec.operator import AggregateSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SHARDS = 2
"""Number of shards of a scenario."""
_PARTITIONS = 2
_ROWS, _WATERMARK, _CLOCK, _END = range(4)
"""The order of what a micro-batch does."""


def run_on_spark(scenarios: Iterable[Scenario]) -> list[Outcome]:
    """The outcomes of all scenarios; stops the session unless it was running before."""
    before = running_session()
    spark = session("tidegate-replay", cores=_PARTITIONS) if before is None else before
    try:
        return [performance.outcome() for performance in perform(scenarios, spark)]
    finally:
        if before is None:
            spark.stop()


@dataclass(frozen=True)
class Performance:
    """A scenario that was played."""

    scenario: Scenario
    rehearsal: _Rehearsal

    def outcome(self, other: Scenario | None = None) -> Outcome:
        """The outcome; or that of another scenario with the same steps and other expectations."""
        if self.rehearsal.outcome is not None:
            return self.rehearsal.outcome
        return run_on(self.scenario if other is None else other, _Playback(self.rehearsal.plays))


def perform(
    scenarios: Iterable[Scenario], spark: SparkSession, *, shards: int = SHARDS, keeps: bool = False
) -> list[Performance]:
    """Play all scenarios; with `keeps`, workers cache operators between batches, as in a query."""
    performances = [Performance(scenario, _rehearsed(scenario)) for scenario in scenarios]
    plays = [
        play
        for one in performances
        if one.rehearsal.outcome is None
        for play in one.rehearsal.plays
    ]
    if plays:
        check_session(spark)
        _play(spark, plays, shards, keeps=keeps)
    return performances


# What a scenario does


@dataclass
class _Shown:
    """The output of one step and the state after it, from all shards."""

    panes: Records = field(default_factory=list)
    late: Records = field(default_factory=list)
    contents: Records = field(default_factory=list)
    kept: tuple[Records, Records] = field(default_factory=lambda: ([], []))
    """The rows of each side that a join keeps."""
    seen: list[dict[str, Any]] = field(default_factory=list)

    @property
    def asked(self) -> dict[str, Any]:
        """The facts of an aggregation, over all shards."""
        holds = [seen["hold"] for seen in self.seen if seen["hold"] is not None]
        return {
            "dropped": sum(seen["dropped"] for seen in self.seen),
            "hold": min(holds, default=None),
            "watermark": min(seen["watermark"] for seen in self.seen),
            "output_watermark": min(seen["output_watermark"] for seen in self.seen),
            "windows": sorted(
                {(start, end) for seen in self.seen for start, end in seen["windows"]}
            ),
        }

    @property
    def output_watermarks(self) -> dict[str, int]:
        """The output watermarks of a join, over all shards."""
        promises = [promise for seen in self.seen for promise in seen["output_watermarks"].items()]
        return {
            column: min(mark for name, mark in promises if name == column) for column, _ in promises
        }

    def error(self) -> Exception | None:
        """The error of the step, if any."""
        for seen in self.seen:
            if "refused" in seen:
                return TidegateError(seen["refused"])
            if "broken" in seen:
                return RuntimeError(seen["broken"])
        return None


@dataclass
class _Play:
    """One operator of a scenario: what it is made from, its steps, where it is opened anew, and
    what came of each step.
    """

    plan: ChainPlan
    start_clock: int
    steps: list[Step] = field(default_factory=list)
    cuts: list[int] = field(default_factory=list)
    shown: list[_Shown] = field(default_factory=list)

    @property
    def acts(self) -> list[range]:
        """The steps between restarts; where the scenario has none there is one in the middle."""
        cuts = self.cuts or [-(-len(self.steps) // 2)]
        edges = [0, *cuts, len(self.steps)]
        return [range(start, end) for start, end in pairwise(edges)]


_NOTHING: dict[str, Any] = {
    "dropped": 0,
    "hold": None,
    "watermark": MIN,
    "output_watermark": MIN,
    "windows": [],
}


class _Scripted:
    """Operators that are played: what a scenario does with them becomes steps of a script, or is
    looked up where it was played already.
    """

    def __init__(self, play: _Play, *, is_rehearsed: bool) -> None:
        self._play, self.is_rehearsed = play, is_rehearsed
        self._steps: list[Step] = []
        self._rank: tuple[int, int] | None = None
        """What the last step does last, and with which input; None where nothing more may be said
        in it.
        """
        self._adjustment: Adjustment | None = None
        self._taken = 0

    def run_clock(self, now: int) -> None:
        self._say((_CLOCK, 0), {}, Command(clock=now, defers_timers=False))

    def finish(self) -> None:
        self._say((_END, 0), {}, Command(end=True))

    def restart(self, now: int) -> None:  # noqa: ARG002 - the clock is stored
        self._rank = self._adjustment = None
        if self.is_rehearsed:
            self._play.cuts.append(len(self._steps))

    def _tell_watermark(self, watermark: int, ordinal: int) -> None:
        self._say((_WATERMARK, ordinal), {}, Command(watermark=watermark, input=ordinal))

    def _say(self, rank: tuple[int, int], rows: Mapping[int, pa.Table], command: Command) -> None:
        """Do it in the present micro-batch if it comes later in one than what is there and the
        clock is the same, else in the next.
        """
        last = self._steps[-1] if self._rank is not None else None
        if (
            last is not None
            and self._rank is not None
            and self._rank < rank
            and command.clock in (None, last.clock)
        ):
            commands = (
                (*last.commands, command)
                if None not in (last.commands[-1].watermark, command.watermark)
                else _merged(last.commands, command)
            )
            defers = last.commands[0].defers_timers and rank[0] < _CLOCK
            self._steps[-1] = Step(
                {**last.rows, **rows},
                tuple(dataclasses.replace(one, defers_timers=defers) for one in commands),
            )
            self._rank = rank
            return
        self._steps.append(
            Step(
                rows,
                (
                    dataclasses.replace(
                        command, defers_timers=rank[0] != _CLOCK, adjustment=self._adjustment
                    ),
                ),
            )
        )
        self._rank = rank
        if self.is_rehearsed:
            self._play.steps = self._steps
            return
        error = self._play.shown[len(self._steps) - 1].error()
        if error is not None:
            raise error

    def take(self) -> tuple[Records, Records]:
        start, self._taken, self._rank = self._taken, len(self._steps), None
        came = [] if self.is_rehearsed else self._play.shown[start : self._taken]
        return [row for shown in came for row in shown.panes], [
            row for shown in came for row in shown.late
        ]

    @property
    def _last(self) -> _Shown | None:
        """What was shown last and not refused."""
        came = [] if self.is_rehearsed else self._play.shown[: len(self._steps)]
        return next((shown for shown in reversed(came) if shown.error() is None), None)


def _merged(commands: tuple[Command, ...], more: Command) -> tuple[Command, ...]:
    """The commands with a further one merged into the last."""
    changed = {
        name: value
        for name, value in dataclasses.asdict(more).items()
        if value != getattr(Command(), name)
    }
    return (*commands[:-1], dataclasses.replace(commands[-1], **changed))


class _ScriptedAggregate(_Scripted):
    """An aggregation that is played."""

    def add(self, table: pa.Table, now: int, ordinal: int = 0) -> None:
        self._say((_ROWS, ordinal), {ordinal: table}, Command(clock=now))

    def advance_watermark(self, watermark: int, ordinal: int = 0) -> None:
        self._tell_watermark(watermark, ordinal)

    def adjust(self, adjustment: Adjustment) -> None:
        self._rank, self._adjustment = None, adjustment

    @property
    def _asked(self) -> dict[str, Any]:
        return _NOTHING if self._last is None else self._last.asked

    @property
    def dropped(self) -> int:
        return int(self._asked["dropped"])

    @property
    def hold(self) -> int | None:
        found: int | None = self._asked["hold"]
        return found

    @property
    def watermark(self) -> int:
        return int(self._asked["watermark"])

    @property
    def output_watermark(self) -> int:
        return int(self._asked["output_watermark"])

    def windows(self) -> list[Window]:
        found: list[Window] = self._asked["windows"]
        return found

    def contents(self) -> Records:
        return [] if self._last is None else self._last.contents


class _ScriptedJoin(_Scripted):
    """A join that is played, alone or with a window after it."""

    def add(self, tables: Mapping[int, pa.Table], now: int) -> None:
        self._say((_ROWS, 0), tables, Command(clock=now))

    def advance_watermark(self, side: int, watermark: int) -> None:
        self._tell_watermark(watermark, side)

    def output_watermarks(self) -> dict[str, int]:
        return {"": MIN} if self._last is None else self._last.output_watermarks

    def held(self, side: int) -> Records:
        return [] if self._last is None else self._last.kept[side]


class _Rehearsal:
    """A runtime that only learns what a scenario is going to do."""

    def __init__(self) -> None:
        self.plays: list[_Play] = []
        self.outcome: Outcome | None = None
        """How the scenario ended, if it did before anything could be played."""

    def open(self, spec: AggregateSpec, schema: pa.Schema, now: int) -> RunningAggregate:
        return _ScriptedAggregate(
            self._play(ChainPlan((spec,), schema, has_downstream=True), now),
            is_rehearsed=True,
        )

    def open_join(
        self,
        spec: JoinSpec,
        schemas: tuple[pa.Schema, pa.Schema],
        now: int,
        then: AggregateSpec | None = None,
    ) -> RunningJoin:
        specs = (spec,) if then is None else (spec, then)
        return _ScriptedJoin(
            self._play(ChainPlan(specs, *schemas, has_downstream=True), now),
            is_rehearsed=True,
        )

    def _play(self, plan: ChainPlan, now: int) -> _Play:
        output_schemas(plan)
        self.plays.append(_Play(plan, now))
        return self.plays[-1]


class _Playback:
    """A runtime that looks up what was played."""

    def __init__(self, plays: Sequence[_Play]) -> None:
        self._plays = iter(plays)

    def open(self, spec: AggregateSpec, schema: pa.Schema, now: int) -> RunningAggregate:  # noqa: ARG002 - the same as at the rehearsal
        return _ScriptedAggregate(next(self._plays), is_rehearsed=False)

    def open_join(
        self,
        spec: JoinSpec,  # noqa: ARG002 - as above
        schemas: tuple[pa.Schema, pa.Schema],  # noqa: ARG002
        now: int,  # noqa: ARG002
        then: AggregateSpec | None = None,  # noqa: ARG002
    ) -> RunningJoin:
        return _ScriptedJoin(next(self._plays), is_rehearsed=False)


def _rehearsed(scenario: Scenario) -> _Rehearsal:
    rehearsal = _Rehearsal()
    ended = run_on(dataclasses.replace(scenario, must_fail=False), rehearsal)
    if ended.status != PASS:
        rehearsal.outcome = ended
    return rehearsal


# The query


@dataclass(frozen=True)
class _Writer:
    """Writes the packed rows of a batch to a file that the driver reads."""

    folder: str

    def __call__(self, packed: DataFrame, batch: int) -> None:
        pq.write_table(
            packed.select("output", "shard", "payload").toArrow(),
            f"{self.folder}/{batch:06d}.parquet",
        )


def _play(spark: SparkSession, plays: Sequence[_Play], shards: int, *, keeps: bool) -> None:
    """Play all of them, act by act, and store the output of each step."""
    layouts = [
        ShardLayout(_PARTITIONS, tuple(range(n * shards, (n + 1) * shards)))
        for n in range(len(plays))
    ]
    roles = {
        shard: Role(play.plan, layout, play.start_clock)
        for play, layout in zip(plays, layouts, strict=True)
        for shard in layout.ids
    }
    schedules, ends = _schedules([play.acts for play in plays])
    parts = [
        Part(
            _edges(play.plan, layout),
            {batch: play.steps[number] for number, batch in enumerate(schedule)},
        )
        for play, layout, schedule in zip(plays, layouts, schedules, strict=True)
    ]
    with tempfile.TemporaryDirectory(prefix="tidegate-replay-") as folder:
        outputs = Path(folder) / "outputs"
        outputs.mkdir()
        for until in ends:
            frame = (
                played(spark, parts, until)
                .groupBy("shard")
                .transformWithState(
                    Players(roles, keeps=keeps), OUTPUT_COLUMNS, "append", "processingTime"
                )
            )
            with spark_settings(spark, {PARTITIONS: str(_PARTITIONS), NO_DATA_BATCHES: "false"}):
                writer = frame.writeStream.foreachBatch(_Writer(str(outputs))).option(
                    "checkpointLocation", f"{folder}/checkpoint"
                )
                query = writer.trigger(availableNow=True).start()
            try:
                query.awaitTermination()
            except PySparkException as error:
                raise SetupError(
                    f"the query that plays the scenarios failed: {error}. Hint: tidegate doctor"
                    " --spark"
                ) from error
        found = _read(outputs)
    for play, layout, schedule in zip(plays, layouts, schedules, strict=True):
        play.shown = [
            _shown([found.get((batch, shard)) for shard in layout.ids], layout)
            for batch in schedule
        ]


def _schedules(acts: Sequence[Sequence[range]]) -> tuple[list[list[int]], list[int]]:
    """The micro-batch of each step of each play, and the end of each act; acts start together."""
    schedules: list[list[int]] = [[] for _ in acts]
    ends: list[int] = []
    start = 0
    for number in range(max(len(play) for play in acts)):
        lengths = [len(play[number]) if number < len(play) else 0 for play in acts]
        for schedule, length in zip(schedules, lengths, strict=True):
            schedule.extend(range(start, start + length))
        start += max(lengths)
        if not ends or start > ends[-1]:
            ends.append(start)
    return schedules, ends


def _edges(plan: ChainPlan, layout: ShardLayout) -> tuple[Edge, ...]:
    first, *others = plan.specs
    edges = [edge_of(first, number, layout) for number in range(len(first.inputs))]
    if all(spec.inputs[0].key == edges[0].input.key for spec in others):
        return tuple(edges)
    # What is keyed otherwise after it would be another chain; here all rows of the play come to one
    # shard instead.
    return tuple(
        dataclasses.replace(edge, input=dataclasses.replace(edge.input, key=())) for edge in edges
    )


def _read(folder: Path) -> dict[tuple[int, int], list[tuple[str, bytes]]]:
    """The outputs by batch and shard, in order."""
    found: dict[tuple[int, int], list[tuple[str, bytes]]] = defaultdict(list)
    for path in sorted(folder.glob("*.parquet")):
        for row in pq.read_table(path).to_pylist():
            found[int(path.stem), row["shard"]].append((row["output"], row["payload"]))
    return found


def _shown(outputs: Sequence[list[tuple[str, bytes]] | None], layout: ShardLayout) -> _Shown:
    shown = _Shown()
    for shard, rows in zip(layout.ids, outputs, strict=True):
        if rows is None:
            raise SetupError(
                f"the shard {shard} of a script put nothing out in one of its micro-batches. Hint:"
                " run the query without other settings"
            )
        for output, payload in rows:
            if output == PANES:
                shown.panes += [
                    {**row, SHARD: shard} for row in decode_payload(payload).to_pylist()
                ]
            elif output == LATE:
                shown.late += decode_payload(payload).to_pylist()
            elif output == CONTENTS:
                shown.contents += decode_payload(payload).to_pylist()
            elif output in KEPT:
                shown.kept[KEPT.index(output)].extend(decode_payload(payload).to_pylist())
            elif output == SEEN:
                shown.seen.append(json.loads(payload))
    return shown

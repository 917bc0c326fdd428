"""The plan of a pipeline: edges, one stateful operator for each key, and the unpacking of what it
puts out, as DataFrames of one query.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from tidegate.errors import SpecError
from tidegate.operators.aggregate.pre_aggregation import PreAggregator, can_combine
from tidegate.operators.ingest.merge_inputs import check_schemas
from tidegate.spark.plan.input import PlanInput
from tidegate.spark.plan.reshuffle import Rekey
from tidegate.spark.plan.shards import Layout
from tidegate.spark.query import metrics
from tidegate.spark.sources import Direct
from tidegate.spark.tasks.batch import finite
from tidegate.spark.tasks.batch_clock import BatchClock
from tidegate.spark.tasks.chain import ChainPlan, Fed, late_schema, schemas_of
from tidegate.spark.tasks.edge import CLOCK, Edge
from tidegate.spark.tasks.processor import PACKED, Operate
from tidegate.spark.tasks.task_output import Outlet
from tidegate.spark.tasks.transport import LATE, METRICS, PANES, SHIPPED, unpack
from tidegate.spark.tasks.watermark_files import WatermarkFiles
from tidegate.spark.types import brought, carried, spark_schema
from tidegate.spec.join import JoinSpec, Upstream
from tidegate.spec.operator import AggregateSpec, Input
from tidegate.spec.watermarks import Explicit, PerKey
from tidegate.spec.windows import Axis

SILENCE = 60_000_000
"""How much time between two batches counts as silence where it is not known how often the query
runs.
"""


@dataclass(frozen=True, eq=False)
class Plan:
    """Inputs, and the operators over them, which share their key and run in one stateful operator;
    an input may be another plan, keyed anew.
    """

    givens: tuple[PlanInput | Plan, ...]
    specs: tuple[Upstream, ...]
    changes: bool = False
    silence: int = SILENCE
    ends: bool = False
    """Whether the query ends when it has read everything."""
    floors: WatermarkFiles | None = None
    """Where shards leave their watermarks for the edges; None where there is no place for it."""
    clock: BatchClock | None = None
    """What tells edges behind DataFrames the clock of a batch; None where it comes as a column."""

    def running(self, *, silence: int, ends: bool, checkpoint: str) -> Plan:
        """The same plan, all of it, as a query runs it."""
        numbers = {id(plan): number for number, plan in enumerate(self.stages)}

        def run(plan: Plan) -> Plan:
            givens = tuple(
                run(given) if isinstance(given, Plan) else given for given in plan.givens
            )
            floors, clock = (
                WatermarkFiles(checkpoint, str(numbers[id(plan)])),
                BatchClock.beside(checkpoint),
            )
            return dataclasses.replace(
                plan, givens=givens, silence=silence, ends=ends, floors=floors, clock=clock
            )

        return run(self)

    @property
    def sources(self) -> list[PlanInput]:
        """Everything that is read."""
        return [
            source
            for given in self.givens
            for source in (given.sources if isinstance(given, Plan) else [given])
        ]

    @property
    def stages(self) -> list[Plan]:
        """All plans of the tree, each after those that feed it."""
        return [
            *(plan for given in self.givens if isinstance(given, Plan) for plan in given.stages),
            self,
        ]

    @property
    def is_streaming(self) -> bool:
        return any(given.is_streaming for given in self.sources)

    @property
    def session(self) -> SparkSession:
        return self.sources[0].source.sparkSession

    @property
    def last(self) -> Upstream:
        """The operator whose output leaves."""
        return self.specs[-1]

    def chains(self, layout: Layout) -> list[ChainPlan]:
        """What each stage runs; a specification that does not fit its input fails here."""
        feeding = self._feeding(layout)
        return [
            *(chain for chains in feeding.values() for chain in chains),
            self._chain(layout, {n: chains[-1] for n, chains in feeding.items()}),
        ]

    def _feeding(self, layout: Layout) -> dict[int, list[ChainPlan]]:
        """The chains behind each input that another plan feeds."""
        found: dict[int, list[ChainPlan]] = {}
        for number, given in enumerate(self.givens):
            if isinstance(given, Plan):
                chains = given.chains(layout)
                chains[-1] = dataclasses.replace(
                    chains[-1], is_followed=True, followed_on=self.specs[0].inputs[number].time
                )
                found[number] = chains
        return found

    def _chain(self, layout: Layout, feeding: Mapping[int, ChainPlan]) -> ChainPlan:
        """What this stage runs over the chains that feed its inputs."""
        schemas = [
            schemas_of(feeding[n])[0] if isinstance(given, Plan) else given.schema()
            for n, given in enumerate(self.givens)
        ]
        first = self.specs[0]
        left, right = (
            (schemas[0], schemas[1])
            if isinstance(first, JoinSpec)
            else (_united(schemas, first), None)
        )
        return ChainPlan(
            self.specs,
            left,
            right,
            fed={number: Fed(chain.specs[-1], layout.ids) for number, chain in feeding.items()},
            silence=self.silence,
            ends=self.ends,
            changes=self.changes,
        )

    def schemas(self, layout: Layout) -> dict[str, pa.Schema]:
        """The columns of each output."""
        found = [schemas_of(chain) for chain in self.chains(layout)]
        late = late_schema([rows for _, rows in found])
        return {PANES: carried(found[-1][0]), LATE: carried(late), METRICS: metrics.SCHEMA}

    def packed(self, layout: Layout, outlets: Sequence[Outlet] | None = None) -> DataFrame:
        """The query up to the packed rows of all outputs; what the outlets can write in a task is
        written by the last operator.
        """
        check(self, layout)
        chains = self.chains(layout)
        numbers = {id(plan): number for number, plan in enumerate(self.stages)}
        return self._operated(layout, chains, numbers, outlets)

    def _operated(
        self,
        layout: Layout,
        chains: Sequence[ChainPlan],
        numbers: Mapping[int, int],
        outlets: Sequence[Outlet] | None = None,
    ) -> DataFrame:
        """What the stateful operator of this plan puts out."""
        frames = []
        for number, given in enumerate(self.givens):
            if isinstance(given, Plan):
                upstream = given._operated(layout, chains, numbers)  # noqa: SLF001 - of the same tree
                frames.append(upstream.mapInArrow(self.rekeyed(number, layout), SHIPPED))
            else:
                frames.append(self._shipped(number, given, layout))
        number = numbers[id(self)]
        chain, last = chains[number], number + 1 == len(chains)
        floors = self.floors if self._combiner is not None else None
        shipped = functools.reduce(DataFrame.unionByName, frames)
        grouped = shipped.groupBy("shard")
        if shipped.isStreaming:
            operator = self._processor(
                chain, layout, name=str(number), floors=floors, outlets=outlets
            )
            operated = grouped.transformWithState(operator, PACKED, "append", "processingTime")
        else:
            operated = grouped.applyInArrow(finite(chain, time.time_ns() // 1000, outlets), PACKED)
        return operated.observe("tidegate" if last else f"tidegate_{number}", *_observed())

    @property
    def _processor(self) -> type[Operate]:
        """The stateful processor of all stages: that of a source that brings its own."""
        own = (given.source.processor for given in self.sources if isinstance(given.source, Direct))
        return next((processor for processor in own if processor is not None), Operate)

    def rekeyed(self, number: int, layout: Layout) -> Rekey:
        """What sends the output of another plan to an input."""
        return Rekey(edge_input(self.specs[0], number).key, layout, number)

    def _shipped(self, number: int, given: PlanInput, layout: Layout) -> DataFrame:
        """The rows of an input, as its edge sends them."""
        edge = self.edge(number, given, layout)
        if isinstance(given.source, Direct):
            return given.source.load(edge)
        rows = _numbered(given.source)
        return (
            rows if edge.clock is not None else rows.withColumn(CLOCK, F.current_timestamp())
        ).mapInArrow(edge, SHIPPED)

    def edge(self, number: int, given: PlanInput, layout: Layout) -> Edge:
        """What packs the rows of an input for the shards."""
        names = (
            ()
            if isinstance(given.source, Direct) or not _is_odd(given.source)
            else tuple(given.source.columns)
        )
        edge = edge_of(self.specs[0], number, layout)
        return dataclasses.replace(
            edge,
            computed=given.computed,
            names=names,
            combiner=self._combiner,
            floors=self.floors,
            clock=self.clock,
        )

    @cached_property
    def _combiner(self) -> PreAggregator | None:
        """What aggregates rows on their way; a stream whose shards have nowhere to leave their
        watermarks cannot know which.
        """
        spec, given = self.specs[0], self.givens[0]
        if (
            isinstance(spec, JoinSpec)
            or isinstance(given, Plan)
            or not can_combine(spec)
            or (self.is_streaming and self.floors is None)
        ):
            return None
        return PreAggregator(spec, given.schema())


def edge_of(spec: Upstream, number: int, layout: Layout) -> Edge:
    """The edge of an input of an operator, for rows that come as they are."""
    tolerance = spec.options.future_tolerance if spec.options.future_reference == "clock" else None
    return Edge(edge_input(spec, number), layout, number, tolerance, axis=_axis(spec))


def edge_input(spec: Upstream, number: int) -> Input:
    """An input as edges see it: keyed by what the operator is keyed by, with the time columns that
    it looks at.
    """
    given = spec.inputs[number]
    if isinstance(spec, JoinSpec):
        # Tuples are counted over all keys, which only one shard can do.
        return dataclasses.replace(
            given, key=spec.fields(number) if spec.is_timed else (), others=spec.times(number)[1:]
        )
    return dataclasses.replace(given, others=())


def _axis(spec: Upstream) -> Axis:
    """What tells how far the sources are."""
    if isinstance(spec, JoinSpec):
        return Axis.EVENT_TIME if spec.is_timed else Axis.OFFSET
    return spec.window.axis


def _is_odd(frame: DataFrame) -> bool:
    """Whether some name means something else to Spark, which reads a dot as a field of a
    structure.
    """
    return any("." in name or "`" in name for name in frame.columns)


def _numbered(frame: DataFrame) -> DataFrame:
    """The frame with numbers for names where its own are odd; the edge gives them back."""
    return (
        frame.toDF(*(str(number) for number in range(len(frame.columns))))
        if _is_odd(frame)
        else frame
    )


def _united(schemas: Sequence[pa.Schema], spec: AggregateSpec) -> pa.Schema:
    """The columns of all inputs; a key is found again only where it has the same type in each."""
    for name in spec.input.key:
        kinds = [schema.field(name).type for schema in schemas if name in schema.names]
        other = next(
            (
                kind
                for kind in kinds
                if kind != kinds[0]
                and not (pa.types.is_integer(kind) and pa.types.is_integer(kinds[0]))
            ),
            None,
        )
        if other is not None:
            raise SpecError(
                f"the key `{name}` is {kinds[0]} in one of the united streams and {other} in"
                " another. Hint: cast one of them"
            )
    try:
        united = pa.unify_schemas(list(schemas), promote_options="permissive")
    except pa.ArrowException as error:
        raise SpecError(
            f"the columns of the united streams do not fit together: {error}. Hint: cast or rename"
            " one of them"
        ) from error
    if spec.names:
        check_schemas(spec, schemas, united)
    return united


def check(plan: Plan, layout: Layout) -> None:
    """Refuse what cannot run on Spark, before anything starts."""
    if len({given.is_streaming for given in plan.sources}) > 1:
        raise SpecError(
            "streaming and batch inputs cannot be united or joined. Hint: read all of them with"
            " readStream, or none"
        )
    for stage in plan.stages:
        for spec in stage.specs:
            if (
                isinstance(spec, AggregateSpec)
                and spec.window.create == "static"
                and spec.key
                and len(layout) > 1
            ):
                raise SpecError(
                    "static windows begin with the first event of all keys, which one shard does"
                    " not know. Hint: write(..., shards=1)"
                )
        for number, given in enumerate(stage.givens):
            if isinstance(given, PlanInput):
                _check_watermark(stage.specs[0], stage.specs[0].inputs[number], given)


def _check_watermark(spec: Upstream, given: Input, source: PlanInput) -> None:
    """Refuse watermarks that nobody could tell."""
    has_processor = isinstance(source.source, Direct) and source.source.processor is not None
    if isinstance(given.watermark, Explicit) and not has_processor and source.is_streaming:
        raise SpecError(
            "nobody can advance an explicit watermark on Spark. Hint: tg.bounded('10 seconds'), or"
            " a column: tg.punctuated('mark')"
        )
    if isinstance(given.watermark, PerKey) and spec.options.future_reference == "watermark":
        raise SpecError(
            "per-key watermarks with `future_reference='watermark'` are not told to the edges of a"
            " query. Hint: use the clock"
        )


def _observed() -> list[Column]:
    """What the progress of the query says of every batch."""
    numbers = F.col("metrics")
    found = [F.sum(numbers[name]).alias(name) for name in (*metrics.COUNTS, *metrics.HELD)]
    return [
        *found,
        F.min(numbers["watermark"]).alias("watermark"),
        F.max(numbers["newest"]).alias("newest"),
        F.max(numbers["clock"]).alias("clock"),
    ]


def unpacked(packed: DataFrame, output: str, schema: pa.Schema) -> DataFrame:
    """The rows of one output as a plain DataFrame."""
    return packed.mapInArrow(_unpacker(output, schema), spark_schema(schema))


def _unpacker(
    output: str, schema: pa.Schema
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for kind, payload in zip(
                batch.column("output").to_pylist(), batch.column("payload"), strict=True
            ):
                if kind == output:
                    yield from brought(unpack(payload.as_buffer()), schema).to_batches()

    return rows

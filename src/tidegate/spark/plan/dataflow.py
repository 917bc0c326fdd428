"""The dataflow of a pipeline as DataFrames: edges, one stateful operator per key, and outputs."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from tidegate.errors import InputError, SpecError
from tidegate.instants import format_duration
from tidegate.operators.aggregate.pre_aggregation import PreAggregator, can_combine
from tidegate.operators.aggregate.static_windows import has_static_windows
from tidegate.operators.async_map.delivery import failed_schema
from tidegate.operators.chain import received, unread_columns
from tidegate.operators.ingest.merge_inputs import check_schemas
from tidegate.operators.ingest.projection import project, projected_schema
from tidegate.operators.join.side import renamed_roles
from tidegate.spark import metrics
from tidegate.spark.environment.session import BROADCAST_ABOVE, is_remote
from tidegate.spark.failures import marks_errors
from tidegate.spark.plan.input import PlanInput, row_schema
from tidegate.spark.sources import DirectSource
from tidegate.spark.tasks.batch import batch_function
from tidegate.spark.tasks.batch_clock import BatchClock
from tidegate.spark.tasks.chain import ChainPlan, ReshuffledInput, late_schema, output_schemas
from tidegate.spark.tasks.deferred import deferred
from tidegate.spark.tasks.edge import CLOCK, Edge
from tidegate.spark.tasks.processor import BLOB, BLOB_KEY, META, ChainProcessor
from tidegate.spark.tasks.reshuffle import Reshuffle
from tidegate.spark.tasks.shards import ShardLayout
from tidegate.spark.tasks.task_output import BoundSink
from tidegate.spark.tasks.transport import (
    LATE,
    METRICS,
    OUTPUT_COLUMNS,
    PANES,
    ROUTED_COLUMNS,
    SHUFFLE_COLUMNS,
    decode_payload,
)
from tidegate.spark.tasks.watermark_files import WatermarkFiles
from tidegate.spark.types import align_columns, spark_schema, spark_types
from tidegate.spec.aggregates import INPUT
from tidegate.spec.join import LEFT, RIGHT, JoinSpec, Upstream, progress_axis
from tidegate.spec.operator import AggregateSpec, Input
from tidegate.spec.projection import Projection
from tidegate.spec.watermarks import Explicit, PerKey, Watched
from tidegate.spec.windows import Axis, Window
from tidegate.units import many

SILENCE = 60_000_000
"""The time between two batches that counts as silence if the trigger interval is unknown."""


@dataclass(frozen=True, eq=False)
class Plan:
    """Inputs, and a chain of operators with the same key, which is one stateful operator of Spark.

    An input can be another plan, whose output is reshuffled to a new key.
    """

    inputs: tuple[PlanInput | Plan, ...]
    specs: tuple[Upstream, ...]
    changes: bool = False
    included: tuple[str, ...] = ()
    """The optional columns of panes that leave the query."""
    projections: tuple[Projection, ...] = ()
    """What the output passes before it leaves the query."""
    late_projections: tuple[Projection, ...] = ()
    """What late rows pass before they are written."""
    identity: tuple[str, ...] | None = None
    """The columns that identify the row that a row replaces. Default: as of the last operator."""
    silence: int = SILENCE
    ends: bool = False
    """Whether the query ends when it has read all available input."""
    watermark_files: WatermarkFiles | None = None
    """The watermarks of the shards, for the edges; None without a checkpoint, and on the clock."""
    clock: BatchClock | None = None
    """The clocks of the batches, for edges behind DataFrames; None if the clock is a column."""

    def for_query(self, *, silence: int, ends: bool, checkpoint: str) -> Plan:
        """The plan with the settings of a streaming query, in all of its stages."""
        numbers = {id(plan): number for number, plan in enumerate(self.stages)}

        def run(plan: Plan) -> Plan:
            return dataclasses.replace(
                plan,
                inputs=tuple(run(one) if isinstance(one, Plan) else one for one in plan.inputs),
                silence=silence,
                ends=ends,
                watermark_files=(
                    WatermarkFiles(checkpoint, str(numbers[id(plan)]))
                    if plan._has_late_rows
                    else None
                ),
                clock=BatchClock.for_checkpoint(checkpoint),
            )

        return run(self)

    @property
    def sources(self) -> list[PlanInput]:
        """The inputs of all stages that are not plans."""
        return [
            source
            for one in self.inputs
            for source in (one.sources if isinstance(one, Plan) else [one])
        ]

    @property
    def stages(self) -> list[Plan]:
        """All plans of the tree, each after those that feed it."""
        return [
            *(plan for one in self.inputs if isinstance(one, Plan) for plan in one.stages),
            self,
        ]

    @property
    def is_streaming(self) -> bool:
        return any(source.is_streaming for source in self.sources)

    @property
    def session(self) -> SparkSession:
        return self.sources[0].source.sparkSession

    @property
    def last(self) -> Upstream:
        """The operator whose output is the output of the query."""
        return self.specs[-1]

    def chains(self, layout: ShardLayout) -> list[ChainPlan]:
        """The chain of each stage; refuses a specification that does not fit its input."""
        feeding = self._feeding(layout)
        return [
            *(chain for chains in feeding.values() for chain in chains),
            self._chain(layout, {n: chains[-1] for n, chains in feeding.items()}),
        ]

    def _feeding(self, layout: ShardLayout) -> dict[int, list[ChainPlan]]:
        """The chains of each input that is a plan."""
        found: dict[int, list[ChainPlan]] = {}
        for number, one in enumerate(self.inputs):
            if isinstance(one, Plan):
                chains = one.chains(layout)
                chains[-1] = dataclasses.replace(
                    chains[-1],
                    has_downstream=True,
                    unread=tuple(unread_columns(self.specs[0], number)),
                    downstream_time=self.specs[0].inputs[number].time,
                )
                found[number] = chains
        return found

    def _chain(self, layout: ShardLayout, feeding: Mapping[int, ChainPlan]) -> ChainPlan:
        """The chain of this stage, over the chains that feed its inputs."""
        first = self.specs[0]
        schemas = [
            received(output_schemas(feeding[n])[0].empty_table(), first.inputs[n]).schema
            if isinstance(one, Plan)
            else self._row_schema(n, one)
            for n, one in enumerate(self.inputs)
        ]
        left, right = (
            (_side_schema(schemas, first, LEFT), _side_schema(schemas, first, RIGHT))
            if isinstance(first, JoinSpec)
            else (_union_schema(schemas, first.input.key), None)
        )
        if isinstance(first, AggregateSpec) and first.names and left is not None:
            check_schemas(first, schemas, left)
        return ChainPlan(
            self.specs,
            left,
            right,
            reshuffled={
                number: ReshuffledInput(chain.exchange, layout.ids)
                for number, chain in feeding.items()
            },
            failed={
                number: failed_schema(one.schema(first.inputs[number].arrival.computed))
                for number, one in enumerate(self.inputs)
                if isinstance(one, PlanInput) and first.inputs[number].mapped is not None
            },
            silence=self.silence,
            ends=self.ends,
            changes=self.changes,
            included=self.included,
            projections=self.projections,
        )

    def _row_schema(self, number: int, one: PlanInput) -> pa.Schema:
        """The columns of the rows that the operator gets from an input."""
        return row_schema(self.specs[0].inputs[number], one)

    def schemas(self, layout: ShardLayout) -> dict[str, pa.Schema]:
        """The columns of each output."""
        found = [output_schemas(chain) for chain in self.chains(layout)]
        late = late_schema([rows for _, rows in found])
        return {PANES: spark_types(found[-1][0]), LATE: spark_types(late), METRICS: metrics.SCHEMA}

    def packed(self, layout: ShardLayout, sinks: Sequence[BoundSink] | None = None) -> DataFrame:
        """The packed rows of all outputs; the last operator stages the rows of task sinks."""
        check_plan(self)
        chains = self.chains(layout)
        numbers = {id(plan): number for number, plan in enumerate(self.stages)}
        return self._stage_output(layout, chains, numbers, sinks)

    def _stage_output(
        self,
        layout: ShardLayout,
        chains: Sequence[ChainPlan],
        numbers: Mapping[int, int],
        sinks: Sequence[BoundSink] | None = None,
        reshuffle: Reshuffle | None = None,
    ) -> DataFrame:
        """The packed rows that the stateful operator of this stage returns.

        With `reshuffle`, they are shuffle rows for the next operator.
        """
        frames = []
        for number, one in enumerate(self.inputs):
            if isinstance(one, Plan):
                upstream = one._stage_output(  # noqa: SLF001 - same class
                    layout, chains, numbers, reshuffle=self.reshuffle(number, layout)
                )
                frames.append(upstream.drop("metrics"))
            else:
                frames.append(self._input_rows(number, one, layout))
        number = numbers[id(self)]
        chain, last = chains[number], number + 1 == len(chains)
        rows = functools.reduce(DataFrame.unionByName, frames)
        grouped = rows.groupBy("shard")
        columns = OUTPUT_COLUMNS if reshuffle is None else ROUTED_COLUMNS
        if rows.isStreaming:
            processor = self._processor(
                chain,
                layout,
                name=str(number),
                watermark_files=self.watermark_files if self._combines else None,
                sinks=sinks,
                reshuffle=reshuffle,
            )
            output = grouped.transformWithState(
                deferred(
                    processor, META, BLOB_KEY, BLOB, limited_by=_broadcasts_by(rows.sparkSession)
                ),
                columns,
                "append",
                "processingTime",
            )
        else:
            output = grouped.applyInArrow(
                batch_function(chain, layout, time.time_ns() // 1000, sinks, reshuffle), columns
            )
        return output.observe("tidegate" if last else f"tidegate_{number}", *_observed_metrics())

    @property
    def _processor(self) -> type[ChainProcessor]:
        """The class of the stateful processor; a direct source can bring its own."""
        own = (one.source.processor for one in self.sources if isinstance(one.source, DirectSource))
        return next((processor for processor in own if processor is not None), ChainProcessor)

    def reshuffle(self, number: int, layout: ShardLayout) -> Reshuffle:
        """The reshuffle from another plan to an input."""
        first = self.specs[0]
        return Reshuffle(edge_input(first, number), layout, number, static_window(first))

    def _input_rows(self, number: int, one: PlanInput, layout: ShardLayout) -> DataFrame:
        """The shuffle rows of an input."""
        edge = self.edge(number, one, layout)
        if isinstance(one.source, DirectSource):
            return one.source.load(edge)
        rows = _with_numbered_columns(one.source)
        return (
            rows if edge.clock is not None else rows.withColumn(CLOCK, F.current_timestamp())
        ).mapInArrow(edge, SHUFFLE_COLUMNS)

    def edge(self, number: int, one: PlanInput, layout: ShardLayout) -> Edge:
        """The edge of an input."""
        names = (
            ()
            if isinstance(one.source, DirectSource) or not _has_special_names(one.source)
            else tuple(one.source.columns)
        )
        edge = edge_of(self.specs[0], number, layout)
        return dataclasses.replace(
            edge,
            names=names,
            combiner=self._combiner(layout),
            watermark_files=self.watermark_files,
            clock=self.clock,
        )

    @property
    def used_watermark_files(self) -> tuple[WatermarkFiles, ...]:
        """The watermark files of all stages whose rows are pre-aggregated."""
        return tuple(
            stage.watermark_files
            for stage in self.stages
            if stage.watermark_files is not None and stage._combines  # noqa: SLF001 - same class
        )

    @property
    def _combines(self) -> bool:
        """Whether rows are pre-aggregated before the shuffle."""
        spec, first = self.specs[0], self.inputs[0]
        # A stream needs watermark files for it where rows may be late.
        return not (
            isinstance(spec, JoinSpec)
            or isinstance(first, Plan)
            or not can_combine(spec)
            or (self.is_streaming and self.watermark_files is None and self._has_late_rows)
        )

    @property
    def _has_late_rows(self) -> bool:
        """Whether rows may be late in the first operator; on the clock, none is."""
        spec = self.specs[0]
        return isinstance(spec, JoinSpec) or spec.window.axis is not Axis.CLOCK

    def _combiner(self, layout: ShardLayout) -> PreAggregator | None:
        """The pre-aggregation before the shuffle, if any."""
        spec, first = self.specs[0], self.inputs[0]
        if not self._combines or isinstance(spec, JoinSpec) or isinstance(first, Plan):
            return None
        return PreAggregator(spec, self._row_schema(0, first), layout.hasher)


def _broadcasts_by(spark: SparkSession) -> str | None:
    """The setting by which Spark broadcasts functions above a megabyte, if that is not set.

    A server of Spark Connect broadcasts none.
    """
    is_set = spark.conf.get(BROADCAST_ABOVE, None) is not None
    return None if is_set or is_remote(spark) else BROADCAST_ABOVE


def edge_of(spec: Upstream, number: int, layout: ShardLayout) -> Edge:
    """The edge of an input of an operator, without pre-aggregation."""
    tolerance = spec.options.future_tolerance if spec.options.future_reference == "clock" else None
    return Edge(
        edge_input(spec, number),
        layout,
        number,
        tolerance,
        axis=progress_axis(spec, number),
        static=static_window(spec),
    )


def static_window(spec: Upstream) -> Window | None:
    """The window of an operator if it is static, so that every shard needs all positions."""
    return spec.window if isinstance(spec, AggregateSpec) and has_static_windows(spec) else None


def edge_input(spec: Upstream, number: int) -> Input:
    """The input as its edge needs it: with the key and the time columns of the operator."""
    declared = spec.inputs[number]
    if isinstance(spec, JoinSpec):
        side = spec.side_of(number)
        used = {time.column for time in spec.times(side)}
        return dataclasses.replace(
            declared,
            key=spec.shard_fields(side),
            others=tuple(time for time in declared.others if time.column in used),
        )
    return dataclasses.replace(declared, others=())


def _has_special_names(frame: DataFrame) -> bool:
    """Whether a column name has a dot or a backtick, which Spark would interpret."""
    return any("." in name or "`" in name for name in frame.columns)


def _with_numbered_columns(frame: DataFrame) -> DataFrame:
    """The frame with numbers instead of special names, which the edge restores."""
    return (
        frame.toDF(*(str(number) for number in range(len(frame.columns))))
        if _has_special_names(frame)
        else frame
    )


def _side_schema(schemas: Sequence[pa.Schema], spec: JoinSpec, side: int) -> pa.Schema:
    """The columns of a side of a join, which have the names of its first input."""
    found = []
    for ordinal, schema in enumerate(schemas):
        if spec.side_of(ordinal) == side:
            renamed = renamed_roles(spec, ordinal)
            found.append(pa.schema([f.with_name(renamed.get(f.name, f.name)) for f in schema]))
    whole = _union_schema(found, spec.fields(side))
    return whole.append(pa.field(INPUT, pa.string())) if spec.merged[side] else whole


def _union_schema(schemas: Sequence[pa.Schema], key: Sequence[str]) -> pa.Schema:
    """The columns of all inputs of a union; key columns must have the same type in each."""
    if len(schemas) == 1:
        return schemas[0]
    for name in key:
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
        union = pa.unify_schemas(list(schemas), promote_options="permissive")
    except pa.ArrowException as error:
        raise SpecError(
            f"the columns of the united streams are incompatible: {error}. Hint: cast or rename"
            " one of them"
        ) from error
    return union


def check_plan(plan: Plan) -> None:
    """Refuse a plan that cannot run on Spark, before it starts."""
    if len({source.is_streaming for source in plan.sources}) > 1:
        raise SpecError(
            "streaming and batch inputs cannot be united or joined. Hint: read all of them with"
            " readStream, or none"
        )
    for stage in plan.stages:
        for number, one in enumerate(stage.inputs):
            if isinstance(one, PlanInput):
                _check_watermark(stage.specs[0], stage.specs[0].inputs[number], one)


def _check_watermark(spec: Upstream, declared: Input, source: PlanInput) -> None:
    """Refuse a watermark that is not available on Spark."""
    has_processor = isinstance(source.source, DirectSource) and source.source.processor is not None
    if isinstance(declared.watermark, Explicit) and not has_processor and source.is_streaming:
        raise SpecError(
            "an explicit watermark cannot be advanced on Spark. Hint: tg.bounded('10 seconds'), or"
            " a column: tg.punctuated('mark')"
        )
    if isinstance(declared.watermark, Watched) and declared.watermark.align is not None:
        raise SpecError(
            f"`align` is {format_duration(declared.watermark.align)}, but a query cannot pause a"
            " partition that is ahead: Spark plans what a micro-batch reads by offsets and files,"
            " before event times are known. Hint: leave out `align`, and bound how far partitions"
            " get apart by small batches (max_files_per_trigger, maxFilesPerTrigger,"
            " maxOffsetsPerTrigger, maxEventsPerTrigger), or run embedded and read what `paused()`"
            " does not list"
        )
    if isinstance(declared.watermark, PerKey) and spec.options.future_reference == "watermark":
        raise SpecError(
            "per-key watermarks with `future_reference='watermark'` are not available to the edges"
            " of a query. Hint: future_reference='clock'"
        )


def _observed_metrics() -> list[Column]:
    """The metrics of a batch over all shards, for the progress of the query."""
    numbers = F.col("metrics")
    summed = (*metrics.COUNTERS, *metrics.GAUGES, *metrics.CHANGES, metrics.SHARDS)
    sums = [F.sum(numbers[name]).alias(name) for name in summed]
    return [
        *sums,
        F.min(numbers["watermark"]).alias("watermark"),
        F.max(numbers["newest_event"]).alias("newest_event"),
        F.max(numbers["clock"]).alias("clock"),
    ]


def unpack_output(
    packed: DataFrame,
    output: str,
    schema: pa.Schema,
    projections: Sequence[Projection] = (),
    *,
    refuses_failures: bool = False,
) -> DataFrame:
    """The rows of one output as a plain DataFrame, behind projections.

    With `refuses_failures`, a row for which a user's function has raised is an error.
    """
    shown = spark_types(projected_schema(schema, projections)) if projections else schema
    rows = _unpacker(output, schema, shown, projections, refuses_failures=refuses_failures)
    return packed.mapInArrow(rows, spark_schema(shown))


_FAILURES = pa.array(["accumulation_failed", "async_failed"])
"""The reasons of rows for which a user's function has raised."""


def _refuse_failures(late: pa.Table) -> None:
    """Raise the errors of functions, which no one would see in panes without late rows."""
    failed = late.filter(pc.is_in(late.column("reason"), _FAILURES))
    if failed.num_rows:
        raise InputError(
            f"{many(failed.num_rows, 'row')} failed, and `df` has no place for late rows:"
            f" {failed.column('detail')[0].as_py()}. Hint: write(..., late=...) keeps the rows that"
            " fail and goes on; `late_df` shows them"
        )


def _unpacker(
    output: str,
    schema: pa.Schema,
    shown: pa.Schema,
    projections: Sequence[Projection],
    *,
    refuses_failures: bool,
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    @marks_errors
    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for kind, payload in zip(
                batch.column("output").to_pylist(), batch.column("payload"), strict=True
            ):
                if refuses_failures and kind == LATE:
                    _refuse_failures(decode_payload(payload.as_buffer()))
                if kind == output:
                    table = decode_payload(payload.as_buffer())
                    rows = project(align_columns(table, schema), projections).rows
                    yield from align_columns(rows, shown).to_batches()

    return rows

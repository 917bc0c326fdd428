"""The plan of a pipeline: edges, one stateful operator for each key, and the unpacking of what it puts out, as DataFrames of one query."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from tidegate.errors import SpecError
from tidegate.spark import metrics
from tidegate.spark.batch import finite
from tidegate.spark.chain import ChainPlan, schemas_of
from tidegate.spark.edge import CLOCK, Edge
from tidegate.spark.given import Given
from tidegate.spark.processor import PACKED, Operate
from tidegate.spark.rekey import Rekey
from tidegate.spark.shards import Layout
from tidegate.spark.sources import Direct
from tidegate.spark.types import brought, carried, spark_schema
from tidegate.spark.wire import LATE, METRICS, PANES, SHIPPED, unpack
from tidegate.spec.operator import AggregateSpec
from tidegate.spec.watermarks import Explicit, PerKey

SILENCE = 60_000_000
"""How much time between two batches counts as silence where it is not known how often the query runs."""


@dataclass(frozen=True, eq=False)
class Plan:
    """Inputs, and the operators over them in groups: those of a group share their key and run in one stateful operator."""

    givens: tuple[Given, ...]
    groups: tuple[tuple[AggregateSpec, ...], ...]
    changes: bool = False
    silence: int = SILENCE
    ends: bool = False
    """Whether the query ends when it has read everything."""

    @property
    def is_streaming(self) -> bool:
        return any(given.is_streaming for given in self.givens)

    @property
    def session(self) -> SparkSession:
        return self.givens[0].source.sparkSession

    @property
    def key(self) -> tuple[str, ...]:
        """The key columns of the panes."""
        return self.groups[-1][-1].input.key

    @property
    def mode(self) -> str:
        return self.groups[-1][-1].mode

    def chains(self, layout: Layout) -> list[ChainPlan]:
        """What each group runs; a specification that does not fit its input fails here."""
        found: list[ChainPlan] = []
        schema = _united([given.schema() for given in self.givens], self.groups[0][0].input.key)
        for number, specs in enumerate(self.groups):
            last = number + 1 == len(self.groups)
            upstream = self.groups[number - 1][-1] if number else None
            chain = ChainPlan(
                specs,
                schema,
                upstream,
                layout.ids if number else (),
                silence=self.silence,
                ends=self.ends,
                changes=self.changes and last,
                is_followed=not last,
                is_told=any(isinstance(given.source, Direct) and given.source.is_script for given in self.givens),
            )
            found.append(chain)
            schema = schemas_of(chain)[0]
        return found

    def schemas(self, layout: Layout) -> dict[str, pa.Schema]:
        """The columns of each output."""
        found = [schemas_of(chain) for chain in self.chains(layout)]
        late = pa.unify_schemas([rows for _, rows in found], promote_options="permissive")
        return {PANES: carried(found[-1][0]), LATE: carried(late), METRICS: metrics.SCHEMA}

    def packed(self, layout: Layout) -> DataFrame:
        """The query up to the packed rows of all outputs."""
        check(self, layout)
        chains = self.chains(layout)
        frame = self._shipped(layout)
        for number, chain in enumerate(chains):
            if number:
                frame = frame.mapInArrow(Rekey(chain.specs[0].input.key, layout), SHIPPED)
            last = number + 1 == len(chains)
            frame = _operate(frame, chain, layout, str(number)).observe("tidegate" if last else f"tidegate_{number}", *_observed())
        return frame

    def _shipped(self, layout: Layout) -> DataFrame:
        """The rows of all inputs, as their edges send them."""
        frames = []
        for number, given in enumerate(self.givens):
            edge = self._edge(number, given, layout)
            if isinstance(given.source, Direct):
                frames.append(given.source.load(edge))
            else:
                frames.append(_numbered(given.source).withColumn(CLOCK, F.current_timestamp()).mapInArrow(edge, SHIPPED))
        whole = frames[0]
        for other in frames[1:]:
            whole = whole.unionByName(other)
        return whole

    def _edge(self, number: int, given: Given, layout: Layout) -> Edge:
        spec = self.groups[0][0]
        tolerance = spec.options.future_tolerance if spec.options.future_reference == "clock" else None
        names = () if isinstance(given.source, Direct) or not _is_odd(given.source) else tuple(given.source.columns)
        return Edge(spec.inputs[number], layout, number, tolerance, given.computed, spec.window.axis, names)


def _is_odd(frame: DataFrame) -> bool:
    """Whether some name means something else to Spark, which reads a dot as a field of a structure."""
    return any("." in name or "`" in name for name in frame.columns)


def _numbered(frame: DataFrame) -> DataFrame:
    """The frame with numbers for names where its own are odd; the edge gives them back."""
    return frame.toDF(*(str(number) for number in range(len(frame.columns)))) if _is_odd(frame) else frame


def _united(schemas: Sequence[pa.Schema], key: Sequence[str]) -> pa.Schema:
    """The columns of all inputs; a key is found again only where it has the same type in each."""
    for name in key:
        kinds = [schema.field(name).type for schema in schemas if name in schema.names]
        other = next((kind for kind in kinds if kind != kinds[0] and not (pa.types.is_integer(kind) and pa.types.is_integer(kinds[0]))), None)
        if other is not None:
            raise SpecError(f"the key `{name}` is {kinds[0]} in one of the united streams and {other} in another. Hint: cast one of them")
    try:
        return pa.unify_schemas(list(schemas), promote_options="permissive")
    except pa.ArrowException as error:
        raise SpecError(f"the columns of the united streams do not fit together: {error}. Hint: cast or rename one of them") from error


def check(plan: Plan, layout: Layout) -> None:
    """Refuse what cannot run on Spark, before anything starts."""
    if len({given.is_streaming for given in plan.givens}) > 1:
        raise SpecError("streaming and batch inputs cannot be united. Hint: read all of them with readStream, or none")
    for spec in (spec for group in plan.groups for spec in group):
        if spec.window.create == "static" and spec.input.key and len(layout) > 1:
            raise SpecError("static windows begin with the first event of all keys, which one shard does not know. Hint: write(..., shards=1)")
    spec = plan.groups[0][0]
    for given in spec.inputs:
        script = any(isinstance(one.source, Direct) and one.source.is_script for one in plan.givens)
        if isinstance(given.watermark, Explicit) and not script and plan.is_streaming:
            raise SpecError("nobody can advance an explicit watermark on Spark. Hint: tg.bounded('10 seconds'), or a column: tg.punctuated('mark')")
        if isinstance(given.watermark, PerKey) and spec.options.future_reference == "watermark":
            raise SpecError("per-key watermarks with `future_reference='watermark'` are not told to the edges of a query. Hint: use the clock")


def _operate(frame: DataFrame, chain: ChainPlan, layout: Layout, name: str) -> DataFrame:
    grouped = frame.groupBy("shard")
    if frame.isStreaming:
        return grouped.transformWithState(Operate(chain, layout, name=name), PACKED, "append", "processingTime")
    return grouped.applyInArrow(finite(chain, time.time_ns() // 1000), PACKED)


def _observed() -> list[Column]:
    """What the progress of the query says of every batch."""
    numbers = F.col("metrics")
    found = [F.sum(numbers[name]).alias(name) for name in (*metrics.COUNTS, *metrics.HELD)]
    return [*found, F.min(numbers["watermark"]).alias("watermark"), F.max(numbers["newest"]).alias("newest"), F.max(numbers["clock"]).alias("clock")]


def unpacked(packed: DataFrame, output: str, schema: pa.Schema) -> DataFrame:
    """The rows of one output as a plain DataFrame."""
    return packed.mapInArrow(_unpacker(output, schema), spark_schema(schema))


def _unpacker(output: str, schema: pa.Schema) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for kind, payload in zip(batch.column("output").to_pylist(), batch.column("payload"), strict=True):
                if kind == output:
                    yield from brought(unpack(payload.as_buffer()), schema).to_batches()

    return rows

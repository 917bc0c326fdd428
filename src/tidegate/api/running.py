"""Running pipelines on Spark: what aggregates and joins share, and the plan of a pipeline."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from tidegate.errors import SpecError
from tidegate.html import fields_html
from tidegate.instants import Duration
from tidegate.operators.explain.brief import fields
from tidegate.spec.composition import Exchange, composed, exchanged
from tidegate.spec.join import JoinSpec, Upstream
from tidegate.spec.projection import Projection, pass_unchanged
from tidegate.spec.short_repr import short_repr

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tidegate.spark.plan.dataflow import Plan
    from tidegate.spark.query.handle import Query
    from tidegate.spark.sinks.base import Sink

Spec = TypeVar("Spec", bound=Upstream)


@dataclass(frozen=True, repr=False)
class Pipeline(Generic[Spec]):
    """An operator and its inputs; it runs on Spark if its streams were made from DataFrames."""

    spec: Spec
    sources: tuple[Any, ...] = field(default=(), compare=False)
    """On Spark, the source of each input: a DataFrame or a direct source, with its computed
    columns, or another pipeline.
    """
    changes: bool = False
    """Whether the output is a change feed."""
    included: tuple[str, ...] = ()
    """The optional columns of panes that the rows on Spark have."""
    projections: tuple[Projection, ...] = ()
    """What the output passes before it leaves the pipeline; operators behind it do not see it."""
    late_projections: tuple[Projection, ...] = ()
    """What late rows pass before they leave the pipeline."""
    identity: tuple[str, ...] | None = None
    """The columns that identify the row that a row replaces. Default: as of the operator."""

    def __repr__(self) -> str:
        return short_repr(self)

    def _repr_html_(self) -> str:
        return fields_html(type(self).__name__, fields(self.spec))

    def show(self, n: int = 20, *, of: Any = None) -> None:
        """Print the first `n` rows of the output and late rows as a text table.

        `of`: messages, which run embedded; the results of an embedded operator, or the operator; a
        sink, or the folder of one. Default: the pipeline itself, over its batch DataFrame.
        """
        from tidegate.api.showing import results_of

        results_of(self, of).show(n)

    def checked(self) -> Self:
        """The pipeline itself; raises `SpecError` if its chain of operators has no answer."""
        _composed(self, feeds=True)
        return self

    @property
    def df(self) -> DataFrame:
        """The output as a Spark DataFrame, streaming or batch like the input, without late rows.

        A streaming query over it with `trigger(availableNow=True)` ends only if
        `spark.sql.streaming.noDataMicroBatches.enabled` is false when it starts: otherwise Spark
        runs batches as long as there are timers. `write` sets that, and also writes late rows.
        """
        from tidegate.spark.query.start import output_frame

        return output_frame(plan_of(self), "panes")

    @property
    def late_df(self) -> DataFrame:
        """The late rows, each with its reason, as a Spark DataFrame.

        It runs as a separate query; `write` is cheaper if you need both outputs.
        """
        from tidegate.spark.query.start import output_frame

        return output_frame(plan_of(self), "late")

    def changelog(self) -> Self:
        """The output as a change feed: `_change_type` is insert, update_preimage,
        update_postimage or delete.
        """
        return dataclasses.replace(self, changes=True)

    def to_sql(self, name: str = "stream") -> str:
        """The pipeline as a SQL script, which `tg.sql` reads as the same specification.

        `name` is the name of its table. Functions have no form in SQL.

        >>> import tidegate as tg
        >>> counts = tg.stream(time="ts", key="k").window(tg.tumbling("1 minute"))
        >>> print(counts.aggregate(n=tg.count()).to_sql("clicks"))
        CREATE TABLE `clicks` (WATERMARK FOR `ts` AS NEWEST());
        SELECT `k`, `window_start`, `window_end`, COUNT(*) AS `n`
        FROM TABLE(TUMBLE(TABLE `clicks`, DESCRIPTOR(`ts`), INTERVAL '1' MINUTE))
        GROUP BY `k`, `window_start`, `window_end`
        EMIT DEFAULT ACCUMULATING ALLOW LATENESS DEFAULT;
        """
        from tidegate.api.sql_form import script

        return script(self, name)

    def write(
        self,
        to: Sink,
        *,
        late: Sink | None = None,
        metrics: Sink | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        trigger: Duration | None = None,
        shards: int | None = None,
        name: str | None = None,
    ) -> Query:
        """Run the pipeline on Spark and write its outputs exactly once.

        - `to`: the sink of panes or joined rows.
        - `late`: the sink of late rows. Default: a folder in the checkpoint. A batch query with
          neither `late` nor a checkpoint drops late rows, and warns how many.
        - `metrics`: the sink of the metrics table.
        - `trigger`: the interval between micro-batches; "available_now" reads the available input
          and ends. Default: 1 second.
        - `shards`: the number of shards, fixed at the first start. Default: the number of tasks
          that run at once.
        """
        from tidegate.spark.query.start import check_arguments, start

        check_arguments(
            sinks={"to": to, "late": late, "metrics": metrics},
            checkpoint=checkpoint,
            trigger=trigger,
            shards=shards,
            name=name,
        )
        # Spark resolves relative paths in its own working directory, which may differ.
        found = (
            None
            if checkpoint is None
            else str(checkpoint)
            if ":" in str(checkpoint)
            else str(Path(checkpoint).resolve())
        )
        return start(
            plan_of(self),
            to=to,
            late=late,
            metrics=metrics,
            checkpoint=found,
            trigger=trigger,
            shards=shards,
            name=name,
        )


def plan_of(pipeline: Pipeline[Any], *, feeds: bool = False) -> Plan:
    """The plan of a pipeline: operators with the same key form one chain, others are reshuffled.

    An operator that feeds another one passes on changes, whatever its mode; `feeds` is whether the
    last one does.
    """
    from tidegate.spark.plan.dataflow import Plan

    _check_sources(pipeline)
    specs, sources = _chain(pipeline, feeds=feeds)
    givens = tuple(
        plan_of(source, feeds=True) if isinstance(source, Pipeline) else source
        for source in sources
    )
    return Plan(
        givens,
        tuple(specs),
        changes=pipeline.changes,
        included=pipeline.included,
        projections=() if feeds else pipeline.projections,
        late_projections=() if feeds else pipeline.late_projections,
        identity=pipeline.identity,
    )


def stage_specs(pipeline: Pipeline[Any], *, feeds: bool = False) -> list[list[Upstream]]:
    """The specifications of a plan by stage, each after those that feed it; needs no source."""
    specs, sources = _chain(pipeline, feeds=feeds)
    feeding = [
        stage
        for source in sources
        if isinstance(source, Pipeline)
        for stage in stage_specs(source, feeds=True)
    ]
    return [*feeding, specs]


def _composed(pipeline: Pipeline[Any], *, feeds: bool) -> Exchange:
    """What a pipeline passes on; raises `SpecError` if its chain of operators has no answer."""
    upstreams = {
        number: _composed(source, feeds=True)
        for number, source in enumerate(pipeline.sources)
        if isinstance(source, Pipeline)
    }
    return composed(exchanged(pipeline.spec) if feeds else pipeline.spec, upstreams)


def has_source(source: Any) -> bool:
    """Whether a source can be read on Spark; the output of an embedded pipeline can not."""
    if not isinstance(source, Pipeline):
        return source is not None
    return bool(source.sources) and all(map(has_source, source.sources))


def _check_sources(pipeline: Pipeline[Any]) -> None:
    if not has_source(pipeline):
        hint = "tg.stream(df, time=...), or run it with .embedded()"
        raise SpecError(
            f"a stream of the pipeline has no source, so it runs embedded only. Hint: {hint}"
        )


def _chain(pipeline: Pipeline[Any], *, feeds: bool) -> tuple[list[Upstream], tuple[Any, ...]]:
    """The operators at the end of a pipeline that share a key, and the sources of the first."""
    specs: list[Upstream] = [_composed(pipeline, feeds=feeds).spec]
    sources = _checked(pipeline.sources)
    while (
        len(sources) == 1
        and isinstance(upstream := sources[0], Pipeline)
        and not isinstance(specs[0], JoinSpec)
        and upstream.spec.key == specs[0].input.key
        and pass_unchanged(specs[0].input.projections, upstream.spec.key)
        # The shards of static windows exchange positions, which needs a shuffle.
        and specs[0].window.create != "static"
    ):
        specs.insert(0, exchanged(upstream.spec))
        sources = _checked(upstream.sources)
    return specs, sources


def _checked(sources: tuple[Any, ...]) -> tuple[Any, ...]:
    if any(isinstance(source, Pipeline) and source.changes for source in sources):
        raise SpecError(
            "a change feed has no panes for another operator. Hint: call `changelog` on the last"
            " operator only"
        )
    return sources

"""Running on Spark: what panes and joined streams have in common there, and how a tree of them
becomes one plan.
"""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from tidegate.errors import SpecError
from tidegate.instants import Duration
from tidegate.spec.join import JoinSpec, Upstream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tidegate.spark.plan.planner import Plan
    from tidegate.spark.query.query import Query
    from tidegate.spark.sinks.base import Sink

Spec = TypeVar("Spec", bound=Upstream)


@dataclass(frozen=True)
class Pipeline(Generic[Spec]):
    """What comes out of an operator, which runs on Spark where its streams were made from
    DataFrames.
    """

    spec: Spec
    sources: tuple[Any, ...] = field(default=(), compare=False)
    """On Spark, what each input is read from: a DataFrame or a direct source with what was added to
    it, or another pipeline.
    """
    changes: bool = False
    """Whether rows come out as those of a change feed."""

    @property
    def df(self) -> DataFrame:
        """What comes out as a plain DataFrame of Spark, streaming or batch as its input is. Late
        rows are not in it: see `late_df` and `write`.

        A streaming query over it that should end (`trigger(availableNow=True)`) needs
        `spark.sql.streaming.noDataMicroBatches.enabled` to be false when it starts: Spark runs
        batches for timers as long as there are any. `write` sees to that.
        """
        from tidegate.spark.query.query import panes_frame

        return panes_frame(plan_of(self), "panes")

    @property
    def late_df(self) -> DataFrame:
        """The rows that were not taken, with the reason, as a plain DataFrame; a query of its own,
        so `write` is cheaper where both are wanted.
        """
        from tidegate.spark.query.query import panes_frame

        return panes_frame(plan_of(self), "late")

    def changelog(self) -> Self:
        """The same rows as those of a change feed: `_change_type` is insert, update_preimage,
        update_postimage or delete.
        """
        return dataclasses.replace(self, changes=True)

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
        """Run the pipeline on Spark and write what comes out, exactly once.

        Panes and pairs go to one sink, rows that are in none to `late` (a folder in the checkpoint
        unless said), and what was counted to `metrics`. A batch that has neither `late` nor a
        checkpoint drops those rows, and warns how many there were. `trigger` says how often a
        streaming query looks for input: once a second unless said; "available_now" reads what is
        there and ends. `shards` is fixed at the first start: as many as tasks run at once unless
        said.
        """
        from tidegate.spark.query.query import start

        # Spark has a working folder of its own, which need not be ours any more.
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


def plan_of(pipeline: Pipeline[Any]) -> Plan:
    """The plan of a pipeline: an operator that has the key of the one before runs in one place with
    it, and another is fed anew.
    """
    from tidegate.spark.plan.planner import Plan

    specs: list[Upstream] = [pipeline.spec]
    sources = _known(pipeline)
    while (
        isinstance(upstream := sources[0], Pipeline)
        and not isinstance(specs[0], JoinSpec)
        and len(sources) == 1
    ):
        if upstream.spec.key != specs[0].input.key:
            break
        _check_whole(upstream)
        specs.insert(0, upstream.spec)
        sources = _known(upstream)
    givens = tuple(
        plan_of(_check_whole(source)) if isinstance(source, Pipeline) else source
        for source in sources
    )
    return Plan(givens, tuple(specs), changes=pipeline.changes)


def _known(pipeline: Pipeline[Any]) -> tuple[Any, ...]:
    if not pipeline.sources:
        hint = "tg.stream(df, time=...), or run it with .embedded()"
        raise SpecError(
            "a stream of the pipeline was made without a source, so it runs embedded only. Hint:"
            f" {hint}"
        )
    return pipeline.sources


def _check_whole(upstream: Pipeline[Any]) -> Pipeline[Any]:
    if upstream.changes:
        raise SpecError(
            "a change feed has no panes that another operator could take. Hint: call `changelog` on"
            " the last one"
        )
    return upstream

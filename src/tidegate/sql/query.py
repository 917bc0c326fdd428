"""A planned query: it runs embedded, or on Spark like a pipeline of the API."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidegate.api.running import Pipeline
from tidegate.api.streams import Stream
from tidegate.errors import SpecError
from tidegate.instants import Duration, Instant, duration
from tidegate.operators.results import Results
from tidegate.spec.projection import Projection
from tidegate.sql.binding import scans
from tidegate.sql.connectors import is_bounded
from tidegate.sql.definitions import TableDefinition
from tidegate.sql.embedded import EmbeddedQuery
from tidegate.sql.explain import explained
from tidegate.sql.plan import Branch, QueryPlan
from tidegate.sql.positions import Place
from tidegate.sql.scalars import compile_duckdb
from tidegate.sql.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tidegate.spark.query.handle import Query
    from tidegate.spark.sinks.base import Sink


@dataclass(frozen=True, eq=False)
class SqlQuery:
    """A query over tables. Nothing runs before one of its methods is called."""

    text: str
    place: Place
    """Where the query stands in its script."""
    plan: QueryPlan
    tables: Mapping[str, TableDefinition]
    """All tables of the script, by name."""
    settings: Settings = field(default_factory=Settings)
    complete: bool = False
    """Whether late rows have all columns of their table on Spark; embedded they do anyway."""
    output: tuple[Projection, ...] = ()
    """What rows pass behind the query, on their way into a table."""
    late: Branch | None = None
    """The late rows of the query, as another query of the script selects them."""
    late_output: tuple[Projection, ...] = ()
    identity: tuple[str, ...] | None = None
    """The columns that identify a row: the primary key of a table; None without a table."""
    folder: str | None = None
    """Where relative paths of tables begin."""

    def __repr__(self) -> str:
        return f"SqlQuery({', '.join(self.columns)} from {', '.join(self.sources)})"

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns that the query selects."""
        return self.plan.columns

    @property
    def sources(self) -> tuple[str, ...]:
        """The names of the tables that the query reads."""
        found = [scan.table for branch in self.plan.branches for scan in scans(branch.root)]
        return tuple(dict.fromkeys(found))

    @property
    def runs_embedded(self) -> bool:
        """Whether no table is read by Spark."""
        return all(self.tables[name].is_embedded for name in self.sources)

    @property
    def ends(self) -> bool:
        """Whether all tables of the query end."""
        return all(is_bounded(self.tables[name]) for name in self.sources)

    @property
    def is_batch(self) -> bool:
        """Whether tables with a connector are read once, on Spark."""
        mode = self.settings.mode
        return mode == "batch" or (mode == "automatic" and self.ends)

    def explain(self) -> str:
        """The plan as text: windows, triggers, watermarks, the layout of state, and the steps."""
        return explained(self.plan, self.tables)

    # Embedded

    def embedded(self, *, now: Instant | None = None) -> EmbeddedQuery:
        """Run the query in this process: rows go in by the name of their table.

        With `now`, the clock starts there and advances only with the calls.
        """
        return EmbeddedQuery(self.plan, self.tables, now=now)

    def collect(self) -> Results:
        """Run the query in this process over tables that end, and return all of its results."""
        from tidegate.sql.reading import deliveries

        with self.embedded() as op:
            for name, table in deliveries([self.tables[one] for one in self.sources], self.folder):
                op.add_messages(table, input=name)
            op.finish()
            return op.get_result()

    # Spark

    @property
    def pipeline(self) -> Pipeline[Any]:
        """The query as a pipeline of the API, on Spark."""
        from tidegate.sql.spark_binding import bound_on_spark

        root = self._root()
        if isinstance(root, Stream):
            raise SpecError(
                "the query has no window and no join, so it is no pipeline. Hint: use `df`, or add"
                " a window"
            )
        found = bound_on_spark(root, self)
        late = None if self.late is None else self.late.select
        return dataclasses.replace(
            found,
            projections=(*self._last(self.plan.branches[0]), *self.output),
            late_projections=(
                *((compile_duckdb(late),) if late else ()),
                *self.late_output,
            ),
            identity=self.identity,
        )

    @property
    def df(self) -> DataFrame:
        """The output as a Spark DataFrame, streaming or batch like the input, without late rows."""
        from tidegate.sql.spark_binding import stream_frame, united_frames

        if sum(not isinstance(branch.root, Stream) for branch in self.plan.branches) > 1:
            # Spark refuses two operators whose metrics have one name.
            self._root()
        frames = []
        for branch in self.plan.branches:
            one = dataclasses.replace(self, plan=dataclasses.replace(self.plan, branches=(branch,)))
            if isinstance(branch.root, Stream):
                frames.append(stream_frame(branch, self))
            elif branch.late:
                frames.append(one._late_pipeline().late_df)  # noqa: SLF001 - same class
            else:
                frames.append(one.pipeline.df)
        return united_frames(frames)

    @property
    def late_df(self) -> DataFrame:
        """The late rows, each with its reason, as a Spark DataFrame."""
        return self.pipeline.late_df

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
        """Run the query on Spark and write its output exactly once; see `Panes.write`."""
        if isinstance(self._root(), Stream):
            return self._write_rows(to, late, metrics, checkpoint, trigger, name)
        return self.pipeline.write(
            to,
            late=late,
            metrics=metrics,
            checkpoint=checkpoint,
            trigger=trigger,
            shards=shards if shards is not None else self.settings.shards,
            name=name if name is not None else self.settings.name,
        )

    def _write_rows(
        self,
        to: Sink,
        late: Sink | None,
        metrics: Sink | None,
        checkpoint: str | os.PathLike[str] | None,
        trigger: Duration | None,
        name: str | None,
    ) -> Query:
        """Write the rows of a query without a window or a join."""
        from tidegate.spark.query.passing import start_rows
        from tidegate.sql.spark_binding import stream_frame

        if metrics is not None:
            raise SpecError(
                "a query without a window or a join has no metrics. Hint: leave out `metrics`"
            )
        interval = (
            None
            if trigger is None
            else "available_now"
            if trigger == "available_now"
            else f"{duration(trigger) // 1000} milliseconds"
        )
        return start_rows(
            stream_frame(self.plan.branches[0], self, marks=True),
            self.output,
            to=to,
            late=late,
            checkpoint=(
                None
                if checkpoint is None
                else str(checkpoint)
                if ":" in str(checkpoint)
                else str(Path(checkpoint).resolve())
            ),
            trigger=interval,
            name=name if name is not None else self.settings.name,
        )

    def _late_pipeline(self) -> Pipeline[Any]:
        """The pipeline whose late rows the query selects."""
        (branch,) = self.plan.branches
        main = Branch(branch.root, type(branch.select)())
        plan = dataclasses.replace(self.plan, branches=(main,))
        return dataclasses.replace(self, plan=plan, late=branch, complete=True).pipeline

    def _root(self) -> Any:
        if len(self.plan.branches) > 1:
            raise SpecError(
                "the query unites results of several pipelines, and each of them runs on its own."
                " Hint: run the queries of the UNION ALL one by one, or embedded"
            )
        return self.plan.branches[0].root

    def _last(self, branch: Branch) -> tuple[Projection, ...]:
        return (compile_duckdb(branch.select),) if branch.select else ()

"""A parsed pipeline: its description, its panes, and its start on a Spark session."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidegate.api.streams import Panes, Stream, Windowed, stream, union
from tidegate.errors import SpecError
from tidegate.instants import format_duration
from tidegate.pipeline.checks import Draft, check
from tidegate.pipeline.diagnostics import Diagnostics
from tidegate.pipeline.document import Part
from tidegate.pipeline.inputs import PipelineInput, conf_of
from tidegate.pipeline.outputs import OUTPUTS, PipelineOutput
from tidegate.spec.aggregates import Aggregate
from tidegate.spec.operator import AggregateSpec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidegate.spark.query.handle import Query

_NO_PART = Part({}, (1, 1))
_COLUMNS = ("time", "key", "id", "offset", "partition")


@dataclass(frozen=True)
class Pipeline:
    """A parsed and validated pipeline file; nothing is opened or written yet."""

    name: str
    inputs: tuple[PipelineInput, ...]
    spec: AggregateSpec
    """The complete specification, as built by the API."""
    windowing: Callable[[Stream], Windowed] = field(repr=False, compare=False)
    """Applies window, trigger, mode and the other settings to a stream."""
    aggregates: Mapping[str, Aggregate]
    output: PipelineOutput
    folder: Path
    """The base of relative paths."""
    shown: Mapping[str, Any] = field(default_factory=dict)
    """Window and aggregates as written, for display."""
    session_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Not in `repr`: settings of Spark may contain secrets."""
    file: str = field(default="<text>", compare=False)
    """The name of the file in errors."""
    root: Part = field(default=_NO_PART, repr=False, compare=False)
    """The file with the places of its parts."""

    def check(self) -> None:
        """Check columns, types, folders and owners of outputs, as far as that needs no Spark.

        Raises `PipelineFileError` with all problems.
        """
        problems = Diagnostics(self.file)
        check(Draft(self.root, self.inputs, self.aggregates, self.spec, self.output), problems)
        problems.raise_any()

    def session(self) -> SparkSession:
        """The session that the file configures."""
        from tidegate.spark.environment.session import session

        words = dict(self.session_options)
        conf = {**conf_of(self.inputs), **words.pop("conf", {})}
        return session(self.name, conf=conf, **words)

    def panes(self, spark: SparkSession) -> Panes:
        """The panes over the inputs, opened in a session."""
        opened = [given.open(spark) for given in self.inputs]
        for given, rows in zip(self.inputs, opened, strict=True):
            self._check_columns(given, rows.schema.names)
        return self.windowing(
            united(
                [
                    stream(rows, **given.stream)
                    for given, rows in zip(self.inputs, opened, strict=True)
                ]
            )
        ).aggregate(**self.aggregates)

    def _check_columns(self, given: PipelineInput, known: Sequence[str]) -> None:
        """Check column names against the schema of an opened input."""
        used = [(word, column) for word in _COLUMNS for column in _names(given.stream.get(word))]
        used += [
            (name, column)
            for name, aggregate in self.aggregates.items()
            for column in aggregate.reads() or ()
        ]
        for word, column in used:
            if column not in known:
                near = difflib.get_close_matches(column, known, 1)
                hint = (
                    f"did you mean `{near[0]}`?"
                    if near
                    else f"columns are {', '.join(f'`{name}`' for name in known)}"
                )
                raise SpecError(
                    f"`{given.shown['from']}` has no column `{column}`, which `{word}` uses. Hint:"
                    f" {hint}"
                )

    def start(self, spark: SparkSession, *, trigger: str | None = None) -> Query:
        """Start the query; `trigger` overrides the one of the file."""
        output = self.output
        panes = self.panes(spark)
        panes = panes.include(*output.include) if output.include else panes
        return panes.write(
            **output.sinks,
            checkpoint=output.checkpoint,
            trigger=trigger or output.trigger,
            shards=output.shards,
            name=self.name,
        )

    def describe(self) -> dict[str, Any]:
        """A description of what would run, with variables not expanded, and secrets hidden."""
        spec, output = self.spec, self.output
        return {
            "name": self.name,
            "folder": str(self.folder),
            "inputs": [dict(given.shown) for given in self.inputs],
            "window": self.shown["window"],
            "trigger": str(spec.firing),
            "mode": spec.mode,
            "allow_lateness": format_duration(spec.lateness),
            "aggregate": self.shown["aggregate"],
            "write": {name: output.shown[name] for name in OUTPUTS if name in output.shown},
            **({"include": ", ".join(output.include)} if output.include else {}),
            "checkpoint": output.checkpoint,
            "every": output.trigger,
        }


def _names(value: str | Sequence[str] | None) -> Sequence[str]:
    return () if value is None else (value,) if isinstance(value, str) else value


def united(streams: Sequence[Stream]) -> Stream:
    """The union of all streams."""
    return streams[0] if len(streams) == 1 else union(*streams)

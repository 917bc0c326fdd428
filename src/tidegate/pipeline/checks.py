"""Checks of a pipeline file before it starts: columns, types, folders and owners of outputs.

They need neither Spark nor a batch. What only Spark can know is left to the start: the types of
expressions in `select`, and the columns of JSON and CSV files without a schema.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from tidegate.errors import SpecError, TidegateError
from tidegate.operators.aggregate import migration
from tidegate.operators.aggregate.operator import WindowedAggregate
from tidegate.operators.ingest.delivery import DeliveryReader
from tidegate.operators.output import Output
from tidegate.pipeline.diagnostics import Diagnostics, Placed
from tidegate.pipeline.document import Part
from tidegate.pipeline.inputs import FileInput, KafkaInput, PipelineInput, RateInput
from tidegate.pipeline.outputs import PipelineOutput
from tidegate.spec.aggregates import Aggregate, count
from tidegate.spec.columns import parse_columns
from tidegate.spec.operator import AggregateSpec
from tidegate.state.memory import MemoryStore

_STREAM = ("time", "key", "id", "offset", "partition")
_NAMED = re.compile(r"(?:.*\s+as\s+)?`?(?P<name>\w+)`?", re.IGNORECASE | re.DOTALL)
_PLAIN = re.compile(r"`?(?P<name>\w+)`?")
_ONLY_SPARK = re.compile(r"struct\s*<|map\s*<|varchar|char|interval|variant|numeric|dec\b|void")
"""Types that Spark reads, and that are not needed here."""
_TEXT = pa.string()
_INSTANT = pa.timestamp("us", "UTC")
_KAFKA = (("partition", _TEXT), ("offset", pa.int64()), ("kafka_time", _INSTANT))
_RATE = pa.schema([("timestamp", _INSTANT), ("value", pa.int64())])


@dataclasses.dataclass(frozen=True)
class _Columns:
    """What is known of the rows of an input."""

    names: tuple[str, ...] | None
    """None if only Spark knows them."""
    schema: pa.Schema | None
    """None if the types of some are unknown."""


_UNKNOWN = _Columns(None, None)


@dataclasses.dataclass(frozen=True)
class Draft:
    """The parts of a pipeline file that could be read; a whole pipeline has all of them."""

    root: Part
    inputs: Sequence[PipelineInput]
    aggregates: Mapping[str, Aggregate]
    spec: AggregateSpec | None
    """None if not even the inputs fit together."""
    output: PipelineOutput | None
    is_whole: bool = True

    @property
    def gap_column(self) -> object:
        """The column with the gaps of sessions, if there is one."""
        return getattr(self.spec and self.spec.window, "gap_column", None)


def check(read: Draft, problems: Diagnostics) -> None:
    """Collect all problems of a pipeline that show before its start."""
    checker = _Checker(read, problems)
    checker.inputs()
    checker.outputs()


class _Checker:
    def __init__(self, read: Draft, problems: Diagnostics) -> None:
        self.read, self.problems = read, problems
        self.panes: pa.Schema | None = None
        self._lacking: set[str] = set()
        """The aggregates that read a column that is not there."""

    def inputs(self) -> None:
        """The columns of all inputs, and the operator over them."""
        found = [self.input(number, one) for number, one in enumerate(self.read.inputs)]
        for number, (given, columns) in enumerate(zip(self.read.inputs, found, strict=True)):
            self.stream(number, given, columns)
        self.aggregates(found)
        schemas = [
            _completed(columns.schema, given)
            for given, columns in zip(self.read.inputs, found, strict=True)
            if columns.schema is not None
        ]
        if schemas and len(schemas) == len(found) and self.read.spec is not None:
            self.types(self.read.spec, schemas)

    def input(self, number: int, given: PipelineInput) -> _Columns:
        part = self.part_of_input(number)
        found = self.source(given, part)
        if given.select and found.names is not None:
            return self.selected(given.select, found, _inner(part, "select"))
        return _UNKNOWN if given.select else found

    def source(self, given: PipelineInput, part: Part) -> _Columns:
        """The columns of a source before `select`."""
        match given.source:
            case RateInput():
                return _Columns(tuple(_RATE.names), _RATE)
            case KafkaInput(format="text" | "binary" as kind):
                value = pa.field("value", _TEXT if kind == "text" else pa.binary())
                return _known([value, *_with_key()])
            case KafkaInput(schema=str() as text):
                declared = self.declared(text, part)
                return (
                    _UNKNOWN
                    if declared.schema is None
                    else _known([*declared.schema, *_with_key()])
                )
            case FileInput() as files:
                return self.files(files, part)
        return _UNKNOWN

    def files(self, given: FileInput, part: Part) -> _Columns:
        """The columns of a folder of files; a local one must exist."""
        where = _inner(part, "folder")
        local = "://" not in given.folder
        if local and not Path(given.folder).is_dir():
            self.problems.add(
                where,
                f"the folder `{given.folder}` does not exist",
                "create it, or correct its name",
            )
        if given.schema is not None:
            return self.declared(given.schema, part)
        files = sorted(Path(given.folder).glob(given.glob or "*")) if local else []
        files = [file for file in files if file.is_file() and not file.name.startswith((".", "_"))]
        if local and not files and Path(given.folder).is_dir():
            self.problems.add(
                where,
                f"the schema of `{given.folder}` cannot be inferred, because it has no files",
                "add `schema: user string, ts timestamp`",
            )
        if not files or given.format not in ("parquet", "arrow"):
            return _UNKNOWN
        try:
            return _known(_schema_of(files[0], given.format))
        except (OSError, pa.ArrowException) as error:
            self.problems.add(where, f"`{files[0]}` cannot be read: {error}")
            return _UNKNOWN

    def declared(self, text: str, part: Part) -> _Columns:
        if _ONLY_SPARK.search(text.lower()):
            return _UNKNOWN
        try:
            schema, _ = parse_columns(text)
        except SpecError as error:
            self.problems.add(_inner(part, "schema"), str(error))
            return _UNKNOWN
        return _known(schema)

    def selected(self, select: Sequence[str], known: _Columns, where: Placed) -> _Columns:
        """The columns that `select` makes; the types of expressions are unknown."""
        fields: list[pa.Field] = []
        names: list[str] = []
        for text in select:
            if text.strip() == "*":
                names += known.names or ()
                fields += [] if known.schema is None else [*known.schema]
                continue
            plain, named = _PLAIN.fullmatch(text.strip()), _NAMED.fullmatch(text.strip())
            if plain and plain["name"] not in (known.names or ()):
                self.problems.unknown(where, plain["name"], "a column", known.names or ())
            if named is None:
                return _UNKNOWN
            names.append(named["name"])
            if plain and known.schema is not None and plain["name"] in known.schema.names:
                fields.append(known.schema.field(plain["name"]))
        whole = len(fields) == len(names)
        return _Columns(tuple(names), pa.schema(fields) if whole else None)

    def stream(self, number: int, given: PipelineInput, columns: _Columns) -> None:
        """The columns that the words of `stream` name."""
        if columns.names is None:
            return
        for word in _STREAM:
            value = given.stream.get(word)
            for name in (value,) if isinstance(value, str) else value or ():
                if isinstance(name, str) and name not in columns.names:
                    where = self.stream_part(number, word)
                    self.problems.unknown(where, name, f"a column for `{word}`", columns.names)

    def aggregates(self, found: Sequence[_Columns]) -> None:
        """The columns that aggregates read: each must be in some input."""
        if any(columns.names is None for columns in found):
            return
        known = {name for columns in found for name in columns.names or ()}
        gap = self.read.gap_column
        if isinstance(gap, str) and gap not in known:
            self.problems.unknown(self.part("window"), gap, "a column for `gap_column`", known)
        for word, aggregate in self.read.aggregates.items():
            for name in aggregate.reads() or ():
                if name not in known:
                    where = self.part("aggregate", word)
                    self.problems.unknown(where, name, f"a column for `{word}`", known)
                    self._lacking.add(word)

    def types(self, spec: AggregateSpec, schemas: Sequence[pa.Schema]) -> None:
        """The types of the columns, by binding the operator and each aggregate alone."""
        for number, (given, schema) in enumerate(zip(spec.inputs, schemas, strict=True)):
            reader = DeliveryReader(given)
            for act in (reader.check, lambda one, r=reader: r.read(one.empty_table(), None, 0)):
                if not self.tried(self.stream_part(number, "time"), act, schema):
                    return
        try:
            whole = pa.unify_schemas(list(schemas), promote_options="permissive")
        except pa.ArrowException as error:
            self.problems.add(self.part("inputs"), f"the inputs do not fit together: {error}")
            return
        try:
            _bound(spec, {"_": count()}, whole)
        except (TidegateError, OSError) as error:
            time = spec.input.time
            of_time = isinstance(time, str) and f"`{time}`" in str(error)
            where = self.stream_part(0, "time") if of_time else self.part("window")
            self.problems.add(where, str(error))
            if not of_time or time is None:
                return
            # The aggregates are checked as if the time were right.
            place = whole.names.index(time)
            whole = whole.set(place, pa.field(time, _INSTANT))
        right = [
            self.tried(self.part("aggregate", word), _bound, spec, {word: aggregate}, whole)
            for word, aggregate in self.read.aggregates.items()
            if word not in self._lacking and word not in spec.input.key
        ]
        if all(right) and not self.problems.found:
            operator = _bound(spec, dict(self.read.aggregates), whole)
            self.panes = operator.renderer().render(Output()).panes.schema

    def outputs(self) -> None:
        """The sinks, their folders, and the checkpoint."""
        from tidegate.spark.query.metadata import read_metadata
        from tidegate.spark.sinks.base import NEW_QUERY

        spec, output, known = self.read.spec, self.read.output, None
        if spec is None or output is None:
            return
        where = self.part("write", "checkpoint")
        try:
            known = read_metadata(output.checkpoint)
            if known is not None and self.read.is_whole:
                migration.changes(known.specs[-1][-1], spec.to_dict())
        except (TidegateError, OSError) as error:
            self.problems.add(where, str(error))
        self.writable(output.checkpoint, where)
        self.sinks(spec, output, NEW_QUERY if known is None else known.query)

    def sinks(self, spec: AggregateSpec, output: PipelineOutput, query: str) -> None:
        from tidegate.spark.sinks.base import SinkTarget, shared_folders

        used = [("the checkpoint", output.checkpoint)]
        sources = [one.source for one in self.read.inputs]
        folders = [one.folder for one in sources if isinstance(one, FileInput)]
        used += [("an input", folder) for folder in folders]
        for name, problem in shared_folders(output.sinks, used):
            self.problems.add(self.part("write", name), problem)
        if output.checkpoint in folders:
            where, what = (
                self.part("write", "checkpoint"),
                "the checkpoint is the folder of an input",
            )
            self.problems.add(where, what, "use another folder")
        for name, sink in output.sinks.items():
            where = self.part("write", name)
            schema = self.panes if name == "to" and self.panes is not None else pa.schema([])
            shown = "panes" if name == "to" else name
            target = SinkTarget(
                query, shown, schema, spec.input.key, spec.mode, checkpoint=output.checkpoint
            )
            folder = getattr(sink, "folder", None)
            if isinstance(folder, str):
                self.writable(folder, where)
                if "://" not in folder and (name != "to" or self.panes is not None):
                    # Servers and object stores are asked at the start.
                    self.tried(where, sink.check, target)

    def writable(self, folder: str, where: Placed) -> None:
        """Report a local folder that this process cannot create or write."""
        if "://" in folder:
            return
        place = next((one for one in (Path(folder), *Path(folder).parents) if one.exists()), None)
        if place is not None and not (place.is_dir() and os.access(place, os.W_OK)):
            what = "cannot be written" if place.is_dir() else "is not a folder"
            self.problems.add(where, f"`{place}` {what}", "use another folder")

    def tried(self, where: Placed, act: Any, *given: Any) -> bool:
        """Whether a call succeeds; its error becomes a problem."""
        try:
            act(*given)
        except (TidegateError, OSError) as error:
            self.problems.add(where, str(error))
            return False
        return True

    # Places

    def part(self, *words: str) -> Part:
        """The part at a path of keys, or the nearest one around it."""
        found = self.read.root
        for word in words:
            found = _inner(found, word)
        return found

    def part_of_input(self, number: int) -> Part:
        root = self.read.root
        given = root.value.get("input", root.value.get("inputs", root))
        return given.value[number] if isinstance(given.value, list) else given

    def stream_part(self, number: int, word: str) -> Part:
        own = self.part_of_input(number)
        return (
            own.value[word] if own.is_mapping and word in own.value else self.part("stream", word)
        )


def _completed(schema: pa.Schema, given: PipelineInput) -> pa.Schema:
    """The schema with the columns that an input lacks, so that the others can be checked."""
    for word in _STREAM:
        value = given.stream.get(word)
        for name in (value,) if isinstance(value, str) else value or ():
            if isinstance(name, str) and name not in schema.names:
                kind = {"time": _INSTANT, "offset": pa.int64()}.get(word, _TEXT)
                schema = schema.append(pa.field(name, kind))
    return schema


def _inner(part: Part, word: str) -> Part:
    return part.value[word] if part.is_mapping and word in part.value else part


def _known(fields: Any) -> _Columns:
    schema = pa.schema(list(fields))
    return _Columns(tuple(schema.names), schema)


def _with_key() -> Iterator[pa.Field]:
    yield from (pa.field(name, kind) for name, kind in (*_KAFKA, ("kafka_key", _TEXT)))


def _schema_of(file: Path, kind: str) -> pa.Schema:
    if kind == "arrow":
        with pa.ipc.open_file(str(file)) as opened:
            return opened.schema
    import pyarrow.parquet as pq

    return pq.read_schema(file)


def _bound(
    spec: AggregateSpec, aggregates: dict[str, Aggregate], schema: pa.Schema
) -> WindowedAggregate:
    """The operator with these aggregates only, bound to the columns of its input."""
    operator = WindowedAggregate(
        dataclasses.replace(spec, aggregates=tuple(aggregates.items())), MemoryStore()
    )
    operator.bind(schema)
    return operator

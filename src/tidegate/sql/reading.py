"""Tables in this process: files and standard input as deliveries of Arrow tables.

Contract: a line of JSON or CSV that cannot be read is no error; it is a row of nulls whose mark
makes it a late row. Columns without a declaration are those of the first lines.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, Any, Literal

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from tidegate.errors import InputError
from tidegate.operators.ingest.json_text import parse_declared
from tidegate.operators.ingest.python_rows import to_table
from tidegate.operators.ingest.schema_cast import BROKEN, bindable
from tidegate.sql.connectors import path_of
from tidegate.sql.definitions import TableDefinition

ROWS = 10_000
"""The rows of a delivery."""
_INFERRED = 1000
"""The lines that decide the columns of a table without a declaration."""
_SHOWN = 200
_ONCE = (
    "the input has been read by another query of the script. Hint: one query reads it; write it"
    " into a file for several"
)


def check_reads(definitions: Sequence[TableDefinition]) -> None:
    """Refuse to read an input twice that can be read once; `definitions` are the tables read."""
    lines = [id(one.source) for one in definitions if isinstance(one.source, Lines)]
    if len(set(lines)) < len(lines):
        raise InputError(_ONCE)


def deliveries(
    definitions: Sequence[TableDefinition], folder: str | None
) -> Iterator[tuple[str, pa.Table]]:
    """The deliveries of several tables, in turns, until all of them have ended."""
    running = {one.name: tables_of(one, folder) for one in definitions}
    while running:
        for name, source in list(running.items()):
            table = next(source, None)
            if table is None:
                del running[name]
            else:
                yield name, table


def tables_of(definition: TableDefinition, folder: str | None) -> Iterator[pa.Table]:
    """The rows of one table as Arrow tables."""
    source = definition.source
    if isinstance(source, pa.Table):
        yield from _sliced(source)
        return
    if isinstance(source, Lines):
        yield from source.tables(definition.schema)
        return
    if source is not None or definition.options is None or definition.connector != "filesystem":
        raise InputError(
            f"the rows of `{definition.name}` are handed over by the program. Hint:"
            f" query.embedded(), then add_messages(rows, input={definition.name!r})"
        )
    form = definition.options.need("format")
    schema = definition.written_schema()
    header = definition.options.flag("csv.header")
    separator = definition.options.get("csv.field-delimiter") or ","
    skips = definition.options.flag("json.ignore-parse-errors") or definition.options.flag(
        "csv.ignore-parse-errors"
    )
    for path in _files(path_of(definition.options, folder), definition):
        for table in _of_file(path, form, schema, header=header, separator=separator):
            found = _readable(table) if skips else table
            for name, key in definition.metadata:
                if key == "file.path":
                    found = found.append_column(name, pa.array([str(path)] * len(found)))
            yield found


class Lines:
    """Lines of JSON or CSV from standard input or a file, whose columns the first lines decide."""

    def __init__(self, lines: IO[bytes], form: str | None = None) -> None:
        self._lines = iter(lines)
        self._first = list(islice(self._lines, _INFERRED))
        self.form = form or _form_of(self._first)
        self._header = self._first.pop(0) if self.form == "csv" and self._first else b""
        self.schema = self._inferred()
        self._is_read = False

    def tables(self, schema: pa.Schema | None = None) -> Iterator[pa.Table]:
        """All lines as tables with the inferred columns, or those of a schema."""
        if self._is_read:
            raise InputError(_ONCE)
        self._is_read = True
        first, self._first = self._first, []
        if not (schema or self.schema).names:
            if any(map(bytes.strip, first)):
                raise InputError(
                    "the first lines of the input have no columns. Hint: one JSON object per line,"
                    " CSV with a header, or CREATE TABLE stdin (...)"
                )
            return
        lines = _chained(first, self._lines)
        if self.form != "csv" or schema is None or schema.names == self.schema.names:
            yield from _of_lines(lines, self.form, schema or self.schema, ",")
            return
        # The header names the columns, in any order.
        for table in _of_lines(lines, self.form, self.schema, ","):
            names = [name for name in (*schema.names, BROKEN) if name in table.column_names]
            yield table.select(names)

    def _inferred(self) -> pa.Schema:
        if self.form == "csv":
            if not self._header.strip():
                return pa.schema([])
            table = pa.csv.read_csv(io.BytesIO(self._header + b"".join(self._first)))
            return bindable(_instants(table.schema))
        rows = [row for row, _ in map(_parsed, self._first) if row]
        if not rows:
            return pa.schema([])
        table = to_table(rows, None)
        names = [name for name in table.column_names if name != BROKEN]
        return bindable(_with_fractions(_with_times(table.select(names)), rows))


def _chained(first: Iterable[bytes], rest: Iterable[bytes]) -> Iterator[bytes]:
    yield from first
    yield from rest


def _form_of(lines: Sequence[bytes]) -> str:
    """JSON if the first line that is not empty begins with a brace, else CSV."""
    first = next((line.strip() for line in lines if line.strip()), b"{")
    return "json" if first.startswith(b"{") else "csv"


def _instants(schema: pa.Schema) -> pa.Schema:
    """The schema with timestamps as instants of microseconds."""
    return pa.schema(
        [
            one.with_type(pa.timestamp("us", "UTC")) if pa.types.is_timestamp(one.type) else one
            for one in schema
        ]
    )


def _with_times(table: pa.Table) -> pa.Schema:
    """The schema with instants where all texts of a column are ISO times."""
    fields = []
    for one in table.schema:
        is_time = False
        if pa.types.is_string(one.type) and table.column(one.name).null_count < len(table):
            try:
                table.column(one.name).cast(pa.timestamp("us", "UTC"))
                is_time = True
            except pa.ArrowInvalid:
                try:
                    table.column(one.name).cast(pa.timestamp("us"))
                    is_time = True
                except pa.ArrowInvalid:
                    is_time = False
        fields.append(one.with_type(pa.timestamp("us", "UTC")) if is_time else one)
    return pa.schema(fields)


def _with_fractions(schema: pa.Schema, rows: Sequence[Mapping[str, Any]]) -> pa.Schema:
    """The schema with floats where some numbers of a column have a fraction."""
    return pa.schema(
        [
            one.with_type(pa.float64())
            if pa.types.is_integer(one.type)
            and any(isinstance(row.get(one.name), float) for row in rows)
            else one
            for one in schema
        ]
    )


def _files(path: str, definition: TableDefinition) -> list[Path]:
    """The files of a path, sorted by name."""
    found = Path(path)
    options = definition.options
    glob = None if options is None else options.get("source.path.glob")
    if found.is_dir():
        return sorted(
            one
            for one in found.rglob(glob or "*")
            if one.is_file() and not one.name.startswith((".", "_"))
        )
    if found.is_file():
        return [found]
    matching = sorted(found.parent.glob(found.name)) if found.parent.is_dir() else []
    if not matching:
        place = None if options is None else options.place("path")
        why = f"there is no file or folder {path}"
        raise InputError(why) if place is None else place.error(why)
    return matching


def _of_file(
    path: Path, form: str, schema: pa.Schema, *, header: bool, separator: str
) -> Iterator[pa.Table]:
    if form == "parquet":
        with pa.parquet.ParquetFile(path) as file:
            present = [name for name in schema.names if name in file.schema_arrow.names]
            for batch in file.iter_batches(ROWS, columns=present):
                yield pa.Table.from_batches([batch])
        return
    with path.open("rb") as lines:
        if form == "csv" and header:
            next(lines, None)
        yield from _of_lines(lines, form, schema, separator)


def _of_lines(
    lines: Iterable[bytes], form: str, schema: pa.Schema, separator: str
) -> Iterator[pa.Table]:
    """Lines as tables with the columns of a schema."""
    rest = iter(lines)
    while chunk := list(islice(rest, ROWS)):
        table = _columnar(chunk, schema) if form == "json" else None
        if table is not None:
            yield table
            continue
        found = [line for line in chunk if line.strip()]
        if found:
            yield _csv(found, schema, separator) if form == "csv" else _json(found, schema)


def _columnar(lines: Sequence[bytes], schema: pa.Schema) -> pa.Table | None:
    """JSON lines parsed as a whole; None if some line is not an object of the schema."""
    try:
        found = parse_declared(b"".join(lines), schema)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, UnicodeDecodeError):
        return None
    return found if found.num_rows == len(lines) else None


def _json(lines: Sequence[bytes], schema: pa.Schema) -> pa.Table:
    """JSON lines as a table; a line that is not a JSON object is marked."""
    parsed = [_parsed(line) for line in lines]
    table = to_table([row or {} for row, _ in parsed], schema)
    table = table.select([name for name in (*schema.names, BROKEN) if name in table.column_names])
    problems = [why for _, why in parsed]
    if not any(problems):
        return table
    known = (
        table.column(BROKEN).to_pylist() if BROKEN in table.column_names else [None] * len(lines)
    )
    marks = [why or before for why, before in zip(problems, known, strict=True)]
    if BROKEN in table.column_names:
        table = table.drop_columns([BROKEN])
    return table.append_column(BROKEN, pa.array(marks, pa.string()))


def _parsed(line: bytes) -> tuple[dict[str, Any] | None, str | None]:
    """The object of a line, or what is wrong with it."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, dict):
        return found, None
    return None, f"unreadable: {line[:_SHOWN].decode('utf-8', 'replace').strip()}"


def _csv(lines: Sequence[bytes], schema: pa.Schema, separator: str) -> pa.Table:
    """CSV lines as a table; a line with another number of columns is marked."""
    text = schema.empty_table().schema
    wrong: list[str] = []

    def invalid(row: Any) -> Literal["skip"]:
        wrong.append(f"unreadable: {row.text[:_SHOWN] if row.text else ''}")
        return "skip"

    table = pa.csv.read_csv(
        io.BytesIO(b"".join(lines)),
        read_options=pa.csv.ReadOptions(column_names=text.names),
        parse_options=pa.csv.ParseOptions(delimiter=separator, invalid_row_handler=invalid),
        convert_options=pa.csv.ConvertOptions(
            column_types=dict.fromkeys(text.names, pa.string()), strings_can_be_null=True
        ),
    )
    if not wrong:
        return table
    broken = pa.table(
        {
            **{name: pa.nulls(len(wrong), pa.string()) for name in text.names},
            BROKEN: pa.array(wrong, pa.string()),
        }
    )
    return pa.concat_tables([table, broken], promote_options="default")


def _readable(table: pa.Table) -> pa.Table:
    """The rows that can be read."""
    if BROKEN not in table.column_names:
        return table
    return table.filter(table.column(BROKEN).is_null()).drop_columns([BROKEN])


def _sliced(table: pa.Table) -> Iterator[pa.Table]:
    for start in range(0, table.num_rows, ROWS):
        yield table.slice(start, ROWS)

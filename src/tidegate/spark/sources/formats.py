"""File formats: the rows of a file as tables of the declared schema.

A malformed row, or one with a value of the wrong type, has an error text in the column
`schema_cast.BROKEN`; the operator sends it to `late`. A malformed file gives one such row for its
unreadable part. This module does not need Spark.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv
import pyarrow.json as arrow_json
import pyarrow.parquet as pq

from tidegate.errors import InputError, SpecError
from tidegate.kernel.events.event_time import BAD, read_times
from tidegate.kernel.frame import to_arrow
from tidegate.operators.ingest.schema_cast import BROKEN, bindable, cast_to_schema
from tidegate.spark.sources.files import FilePart, Folder
from tidegate.spark.sources.json_depth import MAX_DEPTH, depth, is_too_deep

ROWS = 1 << 20
"""The maximum number of rows per read."""
BLOCK = 32 << 20
"""The number of bytes of text per read."""
MAX_LINE_BYTES = 64 << 20
"""The maximum length of a line of text; a longer one is malformed, and is not held in memory."""
_SHOWN_BYTES = 1000
"""The length of the start of a line that is too long, in its error text."""
_SMALL_BLOCK = 256 << 10
"""The size of the blocks that are parsed if a larger one has a malformed line."""
_SAMPLE = 4 << 20
"""The number of bytes of text that determine the columns of a file."""
_COMPRESSED: dict[str, Literal["gzip", "bz2", "zstd", "lz4", "brotli"]] = {
    "gz": "gzip",
    "gzip": "gzip",
    "bz2": "bz2",
    "zst": "zstd",
    "zstd": "zstd",
    "lz4": "lz4",
    "br": "brotli",
}
"""The compression of a file, by its extension."""
_TEXTS = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}
"""The types of texts, and those of their bytes."""
_TOO_DEEP = f"a value is nested deeper than {MAX_DEPTH} levels"
Unreadable = (
    pa.ArrowInvalid,
    pa.ArrowNotImplementedError,
    pa.ArrowTypeError,
    pa.ArrowSerializationError,
    pa.ArrowIndexError,
    pa.ArrowKeyError,
    pa.ArrowCapacityError,
    # Damaged lengths ask for more memory than there is.
    pa.ArrowMemoryError,
    UnicodeDecodeError,
    EOFError,
)


@dataclass(frozen=True)
class Format(ABC):
    """How the files of a folder are read."""

    splits: ClassVar[bool] = False
    """Whether files can be split."""

    @abstractmethod
    def schema(self, file: pa.NativeFile, path: str) -> pa.Schema:
        """The columns of a file."""

    def checked(self, schema: pa.Schema) -> pa.Schema:
        """The schema, if the format supports it."""
        if not schema.names:
            raise SpecError(
                "a direct source needs columns, and its schema has none. Hint: schema='key long, ts"
                " timestamp'"
            )
        if len({*schema.names}) < len(schema):
            raise SpecError(f"column names must be unique, got {', '.join(schema.names)}")
        return schema

    @abstractmethod
    def tables(self, file: pa.NativeFile, part: FilePart, schema: pa.Schema) -> Iterator[pa.Table]:
        """The rows of a part, in the order of the file, at least with its columns in the schema."""


@dataclass(frozen=True)
class PartReader:
    """Reads parts of files in a task."""

    folder: Folder
    format: Format
    schema: pa.Schema
    corrupt: str = "late"
    ignore_missing: bool = False

    def tables(self, part: FilePart) -> Iterator[pa.Table]:
        """The rows of a part, in the schema of the source."""
        system, root = self.folder.open()
        where = f"{root}/{part.file.path}"
        rows = 0
        try:
            with system.open_input_file(where) as file:
                for table in self.format.tables(file, part, self.schema):
                    rows += table.num_rows
                    yield fit_schema(self._with_partition_columns(table, part), self.schema)
        except FileNotFoundError as error:
            if not self.ignore_missing:
                raise InputError(
                    f"the file `{where}` was deleted after the batch was planned. Hint: restore it,"
                    " or read with ignore_missing=True to continue without it"
                ) from error
        except (*Unreadable, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                # An error of the disk, the network or permissions, which a retry may resolve.
                raise
            yield self._malformed(where, part, rows, error)

    def _with_partition_columns(self, table: pa.Table, part: FilePart) -> pa.Table:
        for name, value in self.folder.partition_values(part.file.path).items():
            if name in self.schema.names and name not in table.column_names:
                table = table.append_column(
                    name, pa.array(np.full(table.num_rows, value, object), pa.string())
                )
        return table

    def _malformed(self, where: str, part: FilePart, rows: int, error: BaseException) -> pa.Table:
        """One row for those that cannot be read."""
        which = "" if part.is_whole else f" from byte {part.start} to {part.end}"
        text = f"the file `{where}`{which} cannot be read after {rows} rows: {error}"
        if self.corrupt == "fail":
            raise InputError(
                f"{text}. Hint: with corrupt='late', the query continues, and a late row names the"
                " file"
            ) from error
        return malformed_row(self.schema, text)


def malformed_row(schema: pa.Schema, text: str) -> pa.Table:
    """A row of nulls with an error text."""
    return pa.table(
        [*(pa.nulls(1, field.type) for field in schema), pa.array([text])],
        names=[*schema.names, BROKEN],
    )


# Types


def fit_schema(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table in the schema; rows with values of the wrong type get an error text."""
    if table.schema.equals(schema):
        return table
    for field in schema:
        if (
            pa.types.is_timestamp(field.type)
            and field.name in table.column_names
            and table.schema.field(field.name).type != field.type
        ):
            table = _with_instants(table, field)
    return cast_to_schema(table, schema, None).table


def _with_instants(table: pa.Table, field: pa.Field) -> pa.Table:
    """The table with instants of the type of the field.

    Arrow neither rounds instants nor parses texts of different formats.
    """
    column = table.column(field.name)
    kind = column.type
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    if not (is_text or pa.types.is_timestamp(kind)) or field.type.unit in {"ns", "s", "ms"}:
        return table
    ticks, verdict = read_times(column, field.name)
    instants = pa.array(ticks, pa.int64(), mask=verdict != 0).view(field.type)
    bad = np.flatnonzero(verdict == BAD)
    if len(bad):
        texts = to_arrow(column).take(pa.array(bad)).to_pylist()
        table = _with_errors(
            table,
            {
                int(n): f"`{field.name}` should be {field.type}, got {text!r}"
                for n, text in zip(bad, texts, strict=True)
            },
        )
    return table.set_column(table.column_names.index(field.name), field.name, instants)


def _with_errors(table: pa.Table, problems: Mapping[int, str]) -> pa.Table:
    """The table with more error texts; a row keeps its first one."""
    known = (
        table.column(BROKEN).to_pylist()
        if BROKEN in table.column_names
        else [None] * table.num_rows
    )
    texts = pa.array(
        [text if text is not None else problems.get(n) for n, text in enumerate(known)], pa.string()
    )
    if BROKEN in table.column_names:
        return table.set_column(table.column_names.index(BROKEN), BROKEN, texts)
    return table.append_column(BROKEN, texts)


# Parquet and Arrow


@dataclass(frozen=True)
class Parquet(Format):
    """Parquet files; large ones are split by row groups."""

    splits: ClassVar[bool] = True

    def schema(self, file: pa.NativeFile, path: str) -> pa.Schema:  # noqa: ARG002
        opened = pq.ParquetFile(file, coerce_int96_timestamp_unit="us")
        instants = {
            column.path
            for column in map(opened.schema.column, range(len(opened.schema)))
            if column.physical_type == "INT96"
        }
        # Writers of this legacy type mean instants in UTC, although the type has no time zone.
        return pa.schema(
            [
                field.with_type(pa.timestamp("us", "UTC")) if field.name in instants else field
                for field in opened.schema_arrow
            ]
        )

    def tables(self, file: pa.NativeFile, part: FilePart, schema: pa.Schema) -> Iterator[pa.Table]:
        opened = pq.ParquetFile(file, coerce_int96_timestamp_unit="us", pre_buffer=True)
        groups = None if part.is_whole else _groups(opened.metadata, part)
        if groups == []:
            return
        names = [name for name in opened.schema_arrow.names if name in schema.names]
        if not names:
            # Rows without any wanted column still count.
            yield from _empty_rows(opened.metadata.num_rows)
            return
        for batch in opened.iter_batches(
            _rows_at_once(opened.metadata), row_groups=groups, columns=names, use_threads=False
        ):
            yield _validated(batch)


def _rows_at_once(metadata: pq.FileMetaData) -> int:
    """The number of rows of about two blocks: rows can be large."""
    size = sum(metadata.row_group(n).total_byte_size for n in range(metadata.num_row_groups))
    return max(1, min(ROWS, 2 * BLOCK * metadata.num_rows // max(1, size)))


def _groups(metadata: pq.FileMetaData, part: FilePart) -> list[int]:
    """The row groups whose middle lies in the part, so that each belongs to one part."""
    found = []
    for n in range(metadata.num_row_groups):
        group = metadata.row_group(n)
        columns = [group.column(c) for c in range(group.num_columns)]
        first = min(
            min(c.data_page_offset, c.dictionary_page_offset or c.data_page_offset) for c in columns
        )
        middle = first + sum(c.total_compressed_size for c in columns) // 2
        if part.start <= middle < part.end:
            found.append(n)
    return found


def _empty_rows(count: int) -> Iterator[pa.Table]:
    for start in range(0, count, ROWS):
        yield pa.table({"": pa.nulls(min(ROWS, count - start))})


@dataclass(frozen=True)
class Arrow(Format):
    """Arrow IPC files (Feather) and streams."""

    def schema(self, file: pa.NativeFile, path: str) -> pa.Schema:  # noqa: ARG002
        return _open_ipc(file).schema

    def tables(self, file: pa.NativeFile, part: FilePart, schema: pa.Schema) -> Iterator[pa.Table]:  # noqa: ARG002
        opened = _open_ipc(file)
        for batch in (
            map(opened.get_batch, range(opened.num_record_batches))
            if isinstance(opened, pa.RecordBatchFileReader)
            else opened
        ):
            yield _validated(
                batch.select(
                    [name for name in batch.schema.names if name in schema.names]
                    or batch.schema.names[:1]
                )
            )


def _open_ipc(file: pa.NativeFile) -> pa.RecordBatchFileReader | pa.RecordBatchStreamReader:
    """The reader of a file or of a stream, by the first bytes."""
    start = file.read(6)
    file.seek(0)
    return pa.ipc.open_file(file) if start == b"ARROW1" else pa.ipc.open_stream(file)


def _validated(batch: pa.RecordBatch) -> pa.Table:
    """The rows of a record batch, which Arrow reads without checking lengths, offsets and texts.

    Rows with a text that is not UTF-8 get an error text.
    """
    table = pa.Table.from_batches([batch])
    try:
        table.validate(full=True)
    except pa.ArrowInvalid:
        return _with_valid_texts(table)
    return table


def _with_valid_texts(table: pa.Table) -> pa.Table:
    """The table without texts that are not UTF-8; `ArrowInvalid` if it has other damage."""
    problems: dict[int, str] = {}
    for n, field in enumerate(table.schema):
        array: Any = table.column(n).chunk(0)
        if field.type not in _TEXTS:
            array.validate(full=True)
            continue
        raw = array.view(_TEXTS[field.type])
        raw.validate(full=True)
        values = raw.to_pylist()
        bad = [row for row, value in enumerate(values) if value is not None and not _is_utf8(value)]
        for row in bad:
            problems.setdefault(
                row, f"`{field.name}` should be {field.type}, got {values[row]!r}, not UTF-8"
            )
            values[row] = None
        if bad:
            table = table.set_column(n, field, pa.array(values, raw.type).view(field.type))
    return _with_errors(table, problems)


# Text


@dataclass(frozen=True, slots=True)
class _Block:
    """A block of complete lines of a file."""

    data: bytes
    path: str
    line: int
    """The number of its first line, starting at 1."""
    is_too_long: bool = False
    """Whether the block is the start of one line that is longer than `MAX_LINE_BYTES`."""

    def smaller(self) -> Iterator[_Block]:
        """The same lines in smaller blocks."""
        yield from _blocks(io.BytesIO(self.data), self.path, _SMALL_BLOCK, self.line)

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """The lines that are not blank, with their numbers."""
        for number, line in enumerate(self.data.split(b"\n"), self.line):
            text = line.rstrip(b"\r")
            if text.strip():
                yield number, text


def _blocks(file: Any, path: str, size: int, line: int = 1) -> Iterator[_Block]:
    """The file in blocks of complete lines; a block grows for a line that is longer.

    Of a line that is longer than `MAX_LINE_BYTES`, one block has the start; the rest is skipped.
    """
    rest: list[bytes] = []
    data = file.read(size)
    while True:
        first = data.find(b"\n")
        if sum(map(len, rest)) + (first if first >= 0 else len(data)) > MAX_LINE_BYTES:
            yield _Block(b"".join([*rest, data])[:_SHOWN_BYTES], path, line, is_too_long=True)
            rest, data, line = [], _after_line(file, size, data), line + 1
            continue
        cut = data.rfind(b"\n") + 1
        if data and not cut:
            rest.append(data)
        else:
            whole = b"".join([*rest, data[:cut]])
            if whole.strip():
                yield _Block(whole, path, line)
            line += whole.count(b"\n")
            rest = [data[cut:]]
        if not data:
            return
        data = file.read(size)


def _after_line(file: Any, size: int, data: bytes) -> bytes:
    """The data after the end of the line that it begins in; empty at the end of the file."""
    while data and b"\n" not in data:
        data = file.read(size)
    return data.partition(b"\n")[2] or bytes(file.read(size))


def _decompressed(file: pa.NativeFile, path: str) -> pa.NativeFile:
    """The decompressed file, by its extension."""
    ending = path.rpartition(".")[2].lower()
    return pa.CompressedInputStream(file, _COMPRESSED[ending]) if ending in _COMPRESSED else file


def _by_blocks(
    blocks: Iterable[_Block],
    parsers: Sequence[Callable[[_Block], pa.Table]],
    lines: Callable[[_Block], pa.Table],
) -> Iterator[pa.Table]:
    """The tables of blocks, by the first parser that succeeds.

    If all of them fail, the block is parsed in smaller blocks, and those line by line.
    """
    for block in blocks:
        if block.is_too_long:
            why = f"it is longer than {MAX_LINE_BYTES} bytes"
            text = _malformed_line(block, block.line, why, block.data)
            yield pa.table({BROKEN: [text]})
            continue
        table = _parse_first(block, parsers)
        if table is not None:
            yield table
            continue
        for small in block.smaller():
            table = _parse_first(small, parsers)
            yield lines(small) if table is None else table


def _parse_first(block: _Block, parsers: Sequence[Callable[[_Block], pa.Table]]) -> pa.Table | None:
    for parser in parsers:
        try:
            return parser(block)
        except (
            pa.ArrowInvalid,
            pa.ArrowNotImplementedError,
            pa.ArrowTypeError,
            UnicodeDecodeError,
        ):
            continue
    return None


def _as_text(kind: pa.DataType) -> pa.DataType:
    """The type that text is parsed as; instants stay text, and are parsed later."""
    return pa.string() if pa.types.is_timestamp(kind) else kind


@dataclass(frozen=True)
class Json(Format):
    """JSON Lines: one object per line."""

    def schema(self, file: pa.NativeFile, path: str) -> pa.Schema:
        for block in _blocks(_decompressed(file, path), path, _SAMPLE):
            if block.is_too_long:
                continue
            return self._parsed(block, arrow_json.ParseOptions()).schema
        return pa.schema([])

    def tables(self, file: pa.NativeFile, part: FilePart, schema: pa.Schema) -> Iterator[pa.Table]:
        path = part.file.path
        wanted = pa.schema([field.with_type(_as_text(field.type)) for field in schema])

        def as_declared(block: _Block) -> pa.Table:
            return self._parsed(
                block,
                arrow_json.ParseOptions(explicit_schema=wanted, unexpected_field_behavior="ignore"),
            )

        def as_inferred(block: _Block) -> pa.Table:
            found = self._parsed(block, arrow_json.ParseOptions())
            return _in_seconds(
                found.select(
                    [name for name in found.column_names if name in schema.names]
                    or found.column_names[:1]
                ),
                schema,
            )

        def lines(block: _Block) -> pa.Table:
            return _json_lines(block, schema)

        yield from _by_blocks(
            _blocks(_decompressed(file, path), path, BLOCK), (as_declared, as_inferred), lines
        )

    @staticmethod
    def _parsed(block: _Block, options: arrow_json.ParseOptions) -> pa.Table:
        # Arrow neither validates UTF-8 nor limits the depth of values.
        block.data.decode()
        if is_too_deep(block.data):
            raise pa.ArrowInvalid(_TOO_DEEP)
        read = arrow_json.ReadOptions(use_threads=False, block_size=len(block.data) + 1)
        return arrow_json.read_json(io.BytesIO(block.data), read, options)


def _in_seconds(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table with numeric instants read as seconds, as in Spark."""
    for n, name in enumerate(table.column_names):
        wanted, kind = (
            schema.field(name).type if name in schema.names else pa.null(),
            table.schema.field(n).type,
        )
        if pa.types.is_timestamp(wanted) and (
            pa.types.is_integer(kind) or pa.types.is_floating(kind)
        ):
            ticks = pc.multiply_checked(table.column(n), 1_000_000).cast(pa.int64(), safe=False)
            table = table.set_column(n, name, ticks.cast(pa.timestamp("us")))
    return table


def _json_lines(block: _Block, schema: pa.Schema) -> pa.Table:
    """The rows of a block, parsed line by line."""
    rows: list[Mapping[str, Any]] = []
    problems: dict[int, str] = {}
    for number, line in block.lines():
        found, why = _object(line)
        if found is None:
            problems[len(rows)] = _malformed_line(block, number, why, line)
        rows.append(found or {})
    return _rows_to_table(rows, schema, problems, _json_value)


def _object(line: bytes) -> tuple[dict[str, Any] | None, str]:
    """The object in a line, or None and the error."""
    if depth(line) > MAX_DEPTH:
        return None, _TOO_DEEP
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        return None, str(error)
    return (found, "") if isinstance(found, dict) else (None, "not an object")


def _malformed_line(block: _Block, number: int, why: str, line: bytes) -> str:
    return (
        f"line {number} of `{block.path}` cannot be read ({why}): {line.decode(errors='replace')}"
    )


def _json_value(value: Any, kind: pa.DataType) -> Any:
    """The value by the rules of Spark: texts take any value, instants take seconds."""
    if value is None or isinstance(value, str):
        return value
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    if (
        pa.types.is_timestamp(kind)
        and isinstance(value, int | float)
        and not isinstance(value, bool)
    ):
        return (
            pa.scalar(round(value * 1_000_000), pa.timestamp("us", "UTC")).cast(pa.string()).as_py()
        )
    if pa.types.is_decimal(kind) and isinstance(value, int | float):
        return Decimal(str(value))
    return value


def _rows_to_table(
    rows: Sequence[Mapping[str, Any]],
    schema: pa.Schema,
    problems: dict[int, str],
    converted: Callable[[Any, pa.DataType], Any],
) -> pa.Table:
    """The rows as a table; values of the wrong type are null, with an error text."""
    columns = []
    for field in schema:
        wanted, values = _as_text(field.type), list[Any]()
        for n, row in enumerate(rows):
            value = row.get(field.name)
            try:
                made = converted(value, field.type)
                pa.scalar(made, wanted)
            except (*Unreadable, ValueError, TypeError, OverflowError, InvalidOperation):
                problems.setdefault(n, f"`{field.name}` should be {field.type}, got {value!r}")
                made = None
            values.append(made)
        columns.append(pa.array(values, wanted))
    table = pa.table(columns, names=schema.names)
    return _with_errors(table, problems) if problems else table


@dataclass(frozen=True)
class Csv(Format):
    """Delimited text: one row per line."""

    header: bool | None = None
    """Whether the first line has the column names. Default: if they match the schema."""
    delimiter: str = ","
    quote: str | None = '"'
    escape: str | None = None
    null: str = ""

    def checked(self, schema: pa.Schema) -> pa.Schema:
        nested = [field.name for field in schema if pa.types.is_nested(field.type)]
        if nested:
            raise SpecError(
                f"CSV does not support the type of `{nested[0]}`, {schema.field(nested[0]).type}."
                " Hint: use JSON, or read it as string"
            )
        return super().checked(schema)

    def schema(self, file: pa.NativeFile, path: str) -> pa.Schema:
        for block in _blocks(_decompressed(file, path), path, _SAMPLE):
            if block.is_too_long:
                raise pa.ArrowInvalid(f"the first line is longer than {MAX_LINE_BYTES} bytes")
            first, _, rest = block.data.partition(b"\n")
            cells = self._cells(first)
            names = [f"_c{n}" for n in range(len(cells))] if self.header is False else cells
            return self._parsed(
                _Block(block.data if self.header is False else rest, path, 1),
                names,
                arrow_csv.ConvertOptions(),
            ).schema
        return pa.schema([])

    def tables(self, file: pa.NativeFile, part: FilePart, schema: pa.Schema) -> Iterator[pa.Table]:
        blocks = _blocks(_decompressed(file, part.file.path), part.file.path, BLOCK)
        first = next(blocks, None)
        if first is None:
            return
        if first.is_too_long:
            if self.header:
                raise pa.ArrowInvalid(f"the header is longer than {MAX_LINE_BYTES} bytes")
            yield from self._read(itertools.chain([first], blocks), schema.names, schema)
            return
        line, _, rest = first.data.removeprefix(b"\xef\xbb\xbf").partition(b"\n")
        cells, names = self._cells(line), schema.names
        if self._is_header(cells, names):
            names, first = cells, _Block(rest, first.path, 2)
        if len({*names}) < len(names):
            raise pa.ArrowInvalid(f"the header has a duplicate column: {', '.join(names)}")
        if not {*names} & {*schema.names}:
            raise pa.ArrowInvalid(
                f"the header has none of the columns {', '.join(schema.names)}: {', '.join(cells)}"
            )
        yield from self._read(
            itertools.chain([first] if first.data.strip() else [], blocks), names, schema
        )

    def _is_header(self, cells: Sequence[str], names: Sequence[str]) -> bool:
        if self.header is not None:
            return self.header
        return bool(cells) and ({*cells} <= {*names} or {*names} <= {*cells})

    def _read(
        self, blocks: Iterable[_Block], names: list[str], schema: pa.Schema
    ) -> Iterator[pa.Table]:
        known = [name for name in names if name in schema.names]
        declared = {name: _as_text(schema.field(name).type) for name in known}

        def as_declared(block: _Block) -> pa.Table:
            return self._parsed(block, names, self._convert(declared))

        def as_text(block: _Block) -> pa.Table:
            return self._parsed(block, names, self._convert(dict.fromkeys(known, pa.string())))

        def lines(block: _Block) -> pa.Table:
            return self._lines(block, names, known)

        yield from _by_blocks(blocks, (as_declared, as_text), lines)

    def _lines(self, block: _Block, names: list[str], known: list[str]) -> pa.Table:
        """The rows of a block, parsed line by line."""
        rows: list[Mapping[str, Any]] = []
        problems: dict[int, str] = {}
        for number, line in block.lines():
            cells = self._cells(line)
            if len(cells) == len(names) and _is_utf8(line):
                rows.append(
                    {
                        name: None if cell == self.null else cell
                        for name, cell in zip(names, cells, strict=True)
                    }
                )
                continue
            why = (
                "not UTF-8"
                if len(cells) == len(names)
                else f"{len(cells)} cells instead of {len(names)}"
            )
            problems[len(rows)] = _malformed_line(block, number, why, line)
            rows.append({})
        return _rows_to_table(
            rows,
            pa.schema([(name, pa.string()) for name in known]),
            problems,
            lambda value, _: value,
        )

    def _convert(self, types: dict[str, pa.DataType]) -> arrow_csv.ConvertOptions:
        return arrow_csv.ConvertOptions(
            column_types=types,
            include_columns=[*types],
            null_values=[self.null],
            strings_can_be_null=True,
            # As in Spark, an empty text in quotes is not null.
            quoted_strings_can_be_null=False,
        )

    def _parsed(
        self, block: _Block, names: list[str], convert: arrow_csv.ConvertOptions
    ) -> pa.Table:
        read = arrow_csv.ReadOptions(
            use_threads=False, block_size=len(block.data) + 1, column_names=names
        )
        parse = arrow_csv.ParseOptions(
            delimiter=self.delimiter,
            quote_char=self.quote or False,
            escape_char=self.escape or False,
        )
        return arrow_csv.read_csv(io.BytesIO(block.data), read, parse, convert)

    def _cells(self, line: bytes) -> list[str]:
        text = line.decode(errors="replace").rstrip("\r\n")
        # The length of a cell is not limited.
        csv.field_size_limit(2**31 - 1)
        quotes: dict[str, Any] = (
            {"quotechar": self.quote} if self.quote else {"quoting": csv.QUOTE_NONE}
        )
        try:
            return next(
                csv.reader([text], delimiter=self.delimiter, escapechar=self.escape, **quotes), []
            )
        except csv.Error:
            return []


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def read_schema(folder: Folder, form: Format) -> pa.Schema:
    """The columns of the first file of the folder, and its partition columns."""
    files = sorted(folder.files(), key=lambda file: (file.modified, file.path))
    if not files:
        raise SpecError(
            f"the columns of `{folder.location}` are unknown, because it has no files. Hint:"
            " schema='key long, ts timestamp'"
        )
    system, root = folder.open()
    problems = []
    for file in files[:10]:
        try:
            with system.open_input_file(f"{root}/{file.path}") as opened:
                found = form.schema(opened, file.path)
                # Names are decoded when they are read.
                names = {*found.names}
        except Unreadable as error:
            problems.append(f"{file.path}: {error}")
            continue
        except OSError as error:
            if error.errno is not None:
                raise
            problems.append(f"{file.path}: {error}")
            continue
        partitions = [
            (name, pa.int64() if value.isdigit() else pa.string())
            for name, value in folder.partition_values(file.path).items()
        ]
        return bindable(
            pa.schema(
                [*found, *(pa.field(*field) for field in partitions if field[0] not in names)]
            )
        )
    raise SpecError(
        f"the columns of `{folder.location}` cannot be read from its files ({'; '.join(problems)})."
        " Hint: schema='key long, ts timestamp'"
    )

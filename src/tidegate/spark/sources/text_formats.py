"""File formats of text: JSON Lines and CSV. This module does not need Spark."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from tidegate.errors import SpecError
from tidegate.operators.ingest.json_text import (
    decode_object,
    objects_to_table,
    parse,
    parse_declared,
    parse_inferred,
)
from tidegate.operators.ingest.schema_cast import BROKEN
from tidegate.spark.sources.csv_text import CsvDialect
from tidegate.spark.sources.files import FilePart
from tidegate.spark.sources.formats import MAX_LINE_BYTES, Format

BLOCK = 4 << 20
"""The number of bytes of text per read, which fit into the cache of a processor.

Every byte is read, searched for line ends, copied and parsed.
"""
_LINE_END = ord("\n")
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
            # Blocks are large: neither the join nor the test for blank lines copies one.
            whole = b"".join([*rest, data[:cut]]) if any(rest) else data[:cut]
            if whole and not whole.isspace():
                yield _Block(whole, path, line)
            # Counting bytes takes six times as long.
            line += int(np.count_nonzero(np.frombuffer(whole, np.uint8) == _LINE_END))
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


@dataclass(frozen=True)
class Json(Format):
    """JSON Lines: one object per line."""

    def schema(self, file: pa.NativeFile, path: str) -> pa.Schema:
        for block in _blocks(_decompressed(file, path), path, _SAMPLE):
            if block.is_too_long:
                continue
            return parse(block.data).schema
        return pa.schema([])

    def tables(self, file: pa.NativeFile, part: FilePart, schema: pa.Schema) -> Iterator[pa.Table]:
        path = part.file.path

        def as_declared(block: _Block) -> pa.Table:
            return parse_declared(block.data, schema)

        def as_inferred(block: _Block) -> pa.Table:
            return parse_inferred(block.data, schema)

        def lines(block: _Block) -> pa.Table:
            return _json_lines(block, schema)

        yield from _by_blocks(
            _blocks(_decompressed(file, path), path, BLOCK), (as_declared, as_inferred), lines
        )


def _json_lines(block: _Block, schema: pa.Schema) -> pa.Table:
    """The rows of a block, parsed line by line."""
    rows: list[Mapping[str, Any]] = []
    problems: dict[int, str] = {}
    for number, line in block.lines():
        found, why = decode_object(line)
        if found is None:
            problems[len(rows)] = _malformed_line(block, number, why, line)
        rows.append(found or {})
    return objects_to_table(rows, schema, problems)


def _malformed_line(block: _Block, number: int, why: str, line: bytes) -> str:
    return (
        f"line {number} of `{block.path}` cannot be read ({why}): {line.decode(errors='replace')}"
    )


@dataclass(frozen=True)
class Csv(Format):
    """Delimited text: one row per line."""

    header: bool | None = None
    """Whether the first line has the column names. Default: if they match the schema."""
    delimiter: str = ","
    quote: str | None = '"'
    escape: str | None = None
    null: str = ""
    names: tuple[str, ...] = ()
    """The columns of files without a header. Default: those of the schema."""

    @property
    def dialect(self) -> CsvDialect:
        """How lines are divided into cells."""
        return CsvDialect(self.delimiter, self.quote, self.escape, self.null)

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
            cells = self.dialect.cells(first)
            names = [f"_c{n}" for n in range(len(cells))] if self.header is False else cells
            data = block.data if self.header is False else rest
            return self.dialect.parse_inferred(data, names).schema
        return pa.schema([])

    def tables(self, file: pa.NativeFile, part: FilePart, schema: pa.Schema) -> Iterator[pa.Table]:
        blocks = _blocks(_decompressed(file, part.file.path), part.file.path, BLOCK)
        first = next(blocks, None)
        if first is None:
            return
        names = [*self.names] or schema.names
        if first.is_too_long:
            if self.header:
                raise pa.ArrowInvalid(f"the header is longer than {MAX_LINE_BYTES} bytes")
            yield from self._read(itertools.chain([first], blocks), names, schema)
            return
        line, _, rest = first.data.removeprefix(b"\xef\xbb\xbf").partition(b"\n")
        cells = self.dialect.cells(line)
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

    def in_files_of(self, schema: pa.Schema) -> Csv:
        return replace(self, names=tuple(schema.names))

    def _is_header(self, cells: Sequence[str], names: Sequence[str]) -> bool:
        if self.header is not None:
            return self.header
        return bool(cells) and ({*cells} <= {*names} or {*names} <= {*cells})

    def _read(
        self, blocks: Iterable[_Block], names: list[str], schema: pa.Schema
    ) -> Iterator[pa.Table]:
        dialect = self.dialect

        def as_declared(block: _Block) -> pa.Table:
            return dialect.parse_declared(block.data, names, schema)

        def as_texts(block: _Block) -> pa.Table:
            return dialect.parse_texts(block.data, names, schema)

        def lines(block: _Block) -> pa.Table:
            numbered = [*block.lines()]
            return dialect.lines_to_table(
                [line for _, line in numbered],
                names,
                schema,
                lambda row, why, line: _malformed_line(block, numbered[row][0], why, line),
            )

        yield from _by_blocks(blocks, (as_declared, as_texts), lines)

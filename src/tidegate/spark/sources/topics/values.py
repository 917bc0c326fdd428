"""Decoders: the values of messages as columns.

A value that cannot be decoded is a row of nulls with an error text in the column
`schema_cast.BROKEN`, which has the message; the operator sends it to `late`. So rows and messages
stay aligned. This module needs neither Spark nor a Kafka client.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.operators.ingest.json_text import (
    decode_object,
    objects_to_table,
    parse_declared,
    parse_inferred,
)
from tidegate.operators.ingest.schema_cast import BROKEN, with_errors
from tidegate.operators.ingest.typed_rows import (
    UNREADABLE,
    fit_schema,
    is_utf8,
    malformed_row,
)
from tidegate.spark.sources.arrow_ipc import open_ipc, validated
from tidegate.spark.sources.csv_text import CsvDialect
from tidegate.spark.sources.formats import MAX_LINE_BYTES

SINGLE = 16
"""Blocks of at most as many messages are decoded one by one if one of them is malformed."""
_SHOWN_BYTES = 1000
"""The length of the start of a message that is too long, in its error text."""
_LINE_END = ord("\n")
Describe = Callable[[int, str, bytes], str]
"""The error text for a message, by its row, the reason and its value."""
Parse = Callable[[Sequence[bytes]], pa.Table | None]


@dataclass(frozen=True)
class Decoded:
    """Decoded values."""

    table: pa.Table
    counts: np.ndarray | None = None
    """The number of rows of each message; None if each has one."""


@dataclass(frozen=True)
class ValueDecoder(ABC):
    """Decodes values to columns of a schema."""

    schema: pa.Schema

    def decode(self, values: Sequence[bytes | None], describe: Describe) -> Decoded:
        """The rows of messages, in their order."""
        sizes = _sizes(values)
        if sizes is not None and sizes.max(initial=0) <= MAX_LINE_BYTES:
            return self._decode(values, describe)  # type: ignore[arg-type]
        bad = {
            row: why
            for row, value in enumerate(values)
            if (why := "it has no value" if value is None else _too_long(value)) is not None
        }
        kept = [row for row in range(len(values)) if row not in bad]
        decoded = self._decode(
            [values[row] or b"" for row in kept],
            lambda row, why, value: describe(kept[row], why, value),
        )
        texts = {
            row: describe(row, why, (values[row] or b"")[:_SHOWN_BYTES]) for row, why in bad.items()
        }
        return self._with_malformed(decoded, kept, texts, len(values))

    def _with_malformed(
        self, decoded: Decoded, kept: Sequence[int], texts: dict[int, str], rows: int
    ) -> Decoded:
        """The decoded rows with a malformed one for each of the other messages."""
        counts = np.ones(rows, np.int64)
        counts[np.array(kept, np.int64)] = 1 if decoded.counts is None else decoded.counts
        ends = np.cumsum(counts)
        table = decoded.table
        if BROKEN not in table.column_names:
            table = table.append_column(BROKEN, pa.nulls(table.num_rows, pa.string()))
        extra = pa.concat_tables([malformed_row(self.schema, text) for text in texts.values()])
        merged = pa.concat_tables([table, extra])
        order = np.empty(merged.num_rows, np.int64)
        is_extra = np.zeros(merged.num_rows, bool)
        is_extra[ends[np.array([*texts], np.int64)] - 1] = True
        order[~is_extra] = np.arange(table.num_rows)
        order[is_extra] = table.num_rows + np.arange(extra.num_rows)
        return Decoded(merged.take(pa.array(order)), None if decoded.counts is None else counts)

    @abstractmethod
    def _decode(self, values: Sequence[bytes], describe: Describe) -> Decoded:
        """The rows of values that are not null and not too long."""


def _sizes(values: Sequence[bytes | None]) -> np.ndarray | None:
    """The sizes of values; None if a value is missing."""
    try:
        return np.fromiter(map(len, values), np.int64, len(values))  # type: ignore[arg-type]
    except TypeError:
        return None


def _line_ends(text: bytes) -> int:
    """The number of line ends; counting bytes that occur often is slow in `bytes.count`."""
    return int(np.count_nonzero(np.frombuffer(text, np.uint8) == _LINE_END))


def _too_long(value: bytes) -> str | None:
    return None if len(value) <= MAX_LINE_BYTES else f"it is longer than {MAX_LINE_BYTES} bytes"


def message_text(place: str, offset: int, why: str, value: bytes) -> str:
    """The error text of a message."""
    return f"message {offset} of `{place}` cannot be read ({why}): {value.decode(errors='replace')}"


def _by_halves(
    values: Sequence[bytes],
    parsers: Sequence[Parse],
    single: Callable[[Sequence[bytes], int], pa.Table],
    schema: pa.Schema,
) -> pa.Table:
    """The rows of messages; blocks with a malformed one are halved, and the last one is `single`.

    A parser returns None or raises if it cannot give one row for each message of a block.
    """
    tables = []
    blocks = [(0, len(values))]
    while blocks:
        low, high = blocks.pop()
        block = values if high - low == len(values) else values[low:high]
        table = _first_parsed(block, parsers)
        if table is None and high - low > SINGLE:
            middle = (low + high) // 2
            blocks += [(middle, high), (low, middle)]
            continue
        tables.append(fit_schema(single(block, low) if table is None else table, schema))
    return tables[0] if len(tables) == 1 else pa.concat_tables(tables, promote_options="default")


def _first_parsed(block: Sequence[bytes], parsers: Sequence[Parse]) -> pa.Table | None:
    for parser in parsers:
        try:
            table = parser(block)
        except UNREADABLE:
            continue
        if table is not None and table.num_rows == len(block):
            return table
    return None


@dataclass(frozen=True)
class JsonValues(ValueDecoder):
    """One JSON object per message."""

    def _decode(self, values: Sequence[bytes], describe: Describe) -> Decoded:
        schema = self.schema

        def declared(block: Sequence[bytes]) -> pa.Table | None:
            text = _joined_objects(block)
            return None if text is None else parse_declared(text, schema)

        def inferred(block: Sequence[bytes]) -> pa.Table | None:
            text = _joined_objects(block)
            return None if text is None else parse_inferred(text, schema)

        def single(block: Sequence[bytes], first: int) -> pa.Table:
            found = [decode_object(value) for value in block]
            problems = {
                row: describe(first + row, why, block[row])
                for row, (one, why) in enumerate(found)
                if one is None
            }
            return objects_to_table([one or {} for one, _ in found], schema, problems)

        return Decoded(_by_halves(values, (declared, inferred), single, schema))


def _joined_objects(block: Sequence[bytes]) -> bytes | None:
    """Lines of which each has at least one object, or is malformed; None if one may not.

    Between `}` and `{` an object ends, and a text has no line end. So an object cannot begin in one
    message and end in another one, and as many rows as messages are one row for each.
    """
    text = b"\n".join(block)
    if _line_ends(text) != len(block) - 1:
        block = [_on_one_line(value) for value in block]
        text = b"\n".join(block)
        if _line_ends(text) != len(block) - 1:
            return None
    data = np.frombuffer(text, np.uint8)
    sizes = np.fromiter(map(len, block), np.int64, len(block))
    if not sizes.all():
        return None
    ends = np.cumsum(sizes + 1) - 1
    has_braces = (data[ends - sizes] == ord("{")) & (data[ends - 1] == ord("}"))
    return text if has_braces.all() else None


def _on_one_line(value: bytes) -> bytes:
    """A valid object on one line: line ends are white space in JSON."""
    if b"\n" not in value or decode_object(value)[0] is None:
        return value
    return value.strip().replace(b"\n", b" ")


@dataclass(frozen=True)
class CsvValues(ValueDecoder):
    """One line of cells per message, in the order of the schema, without a header."""

    dialect: CsvDialect = field(default_factory=CsvDialect)

    def _decode(self, values: Sequence[bytes], describe: Describe) -> Decoded:
        dialect, names, schema = self.dialect, self.schema.names, self.schema
        lines = [value.rstrip(b"\r\n") for value in values]

        def declared(block: Sequence[bytes]) -> pa.Table | None:
            text = _joined_lines(block)
            return None if text is None else dialect.parse_declared(text, names, schema)

        def texts(block: Sequence[bytes]) -> pa.Table | None:
            text = _joined_lines(block)
            return None if text is None else dialect.parse_texts(text, names, schema)

        def single(block: Sequence[bytes], first: int) -> pa.Table:
            return dialect.lines_to_table(
                block, names, schema, lambda row, why, line: describe(first + row, why, line)
            )

        return Decoded(_by_halves(lines, (declared, texts), single, schema))


def _joined_lines(block: Sequence[bytes]) -> bytes | None:
    """The lines of messages; None if one has several.

    Then quotes can only join messages, and as many rows as messages are one row for each.
    """
    text = b"\n".join(block)
    return None if b"\r" in text or _line_ends(text) != len(block) - 1 else text


@dataclass(frozen=True)
class ArrowValues(ValueDecoder):
    """One Arrow IPC stream or file per message, with any number of rows."""

    def _decode(self, values: Sequence[bytes], describe: Describe) -> Decoded:
        tables, counts = [self.schema.empty_table()], []
        for row, value in enumerate(values):
            try:
                table = fit_schema(_read_ipc(value, self.schema), self.schema)
            except (*UNREADABLE, OSError) as error:
                table = malformed_row(self.schema, describe(row, str(error), b""))
            tables.append(table)
            counts.append(table.num_rows)
        return Decoded(
            pa.concat_tables(tables, promote_options="default"), np.array(counts, np.int64)
        )


def _read_ipc(value: bytes, schema: pa.Schema) -> pa.Table:
    """The rows of an IPC stream or file, with its columns in the schema."""
    opened = open_ipc(pa.BufferReader(value))
    batches = (
        [opened.get_batch(n) for n in range(opened.num_record_batches)]
        if isinstance(opened, pa.RecordBatchFileReader)
        else [*opened]
    )
    names = [name for name in opened.schema.names if name in schema.names]
    if not names:
        raise pa.ArrowInvalid(f"it has none of the columns {', '.join(schema.names)}")
    tables = [validated(batch.select(names)) for batch in batches]
    empty = pa.schema([opened.schema.field(name) for name in names]).empty_table()
    return pa.concat_tables([empty, *tables], promote_options="default")


@dataclass(frozen=True)
class RawValues(ValueDecoder):
    """The value of a message as one column of bytes or text."""

    def decode(self, values: Sequence[bytes | None], describe: Describe) -> Decoded:
        name, kind = self.schema.names[0], self.schema.types[0]
        column, problems = to_column(values, kind)
        texts = {row: describe(row, why, values[row] or b"") for row, why in problems.items()}
        table = pa.table([column], names=[name])
        return Decoded(with_errors(table, texts) if texts else table)

    def _decode(self, values: Sequence[bytes], describe: Describe) -> Decoded:
        return self.decode(values, describe)


def to_column(values: Sequence[bytes | None], kind: pa.DataType) -> tuple[pa.Array, dict[int, str]]:
    """Bytes, or texts: then null where they are not UTF-8, with the reason by row."""
    raw = pa.array(values, pa.binary())
    if pa.types.is_binary(kind):
        return raw, {}
    try:
        return raw.cast(kind), {}
    except pa.ArrowInvalid:
        bad = {row: "not UTF-8" for row, one in enumerate(values) if one and not is_utf8(one)}
        known = [None if row in bad else value for row, value in enumerate(values)]
        return pa.array(known, pa.binary()).cast(kind), bad


def decoder_of(form: str, schema: pa.Schema, **options: Any) -> ValueDecoder:
    """The decoder of a format."""
    if form == "avro":
        from tidegate.spark.sources.topics.avro import AvroValues

        return AvroValues(schema, **options)
    if form == "csv":
        return CsvValues(schema, CsvDialect(**options))
    plain: dict[str, type[JsonValues | ArrowValues | RawValues]] = {
        "json": JsonValues,
        "arrow": ArrowValues,
        "raw": RawValues,
    }
    return plain[form](schema)

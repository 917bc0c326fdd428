"""Avro values: one record per message, in the binary encoding without a container.

A message may begin with the header of a schema registry: a zero byte, and the id of the schema in
four bytes. Types whose items take no bytes are refused, because a message of a few bytes could have
any number of them.
"""

from __future__ import annotations

import io
import json
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tidegate.errors import MissingExtraError, SpecError
from tidegate.operators.ingest.schema_cast import with_errors
from tidegate.operators.ingest.typed_rows import UNREADABLE
from tidegate.spark.sources.topics.values import Decoded, Describe, ValueDecoder

_PLAIN: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
    "fixed": pa.binary(),
}
_LOGICAL: dict[str, pa.DataType] = {
    "timestamp-millis": pa.timestamp("us", "UTC"),
    "timestamp-micros": pa.timestamp("us", "UTC"),
    "local-timestamp-millis": pa.timestamp("us"),
    "local-timestamp-micros": pa.timestamp("us"),
    "date": pa.date32(),
    "time-millis": pa.time64("us"),
    "time-micros": pa.time64("us"),
    "uuid": pa.string(),
}
_DAMAGED = (ArithmeticError, EOFError, LookupError, TypeError, ValueError, struct.error)
_UNFIT = (*UNREADABLE, ValueError, TypeError, OverflowError)
_HEADER = struct.Struct(">bI")
_ADDRESS = re.compile(r"<[\w.]+ object at 0x[0-9a-f]+>")


def parse_avro_schema(text: str | Mapping[str, Any]) -> Any:
    """An Avro schema, from JSON text or as decoded; `SpecError` if it is not a record."""
    _require_fastavro()
    from fastavro.schema import SchemaParseException, UnknownType

    try:
        document = json.loads(text) if isinstance(text, str) else dict(text)
        record = isinstance(document, dict) and document.get("type") == "record"
        if not record:
            raise SpecError(
                "the `schema` of Avro values is a record, got"
                f" {document.get('type') if isinstance(document, dict) else document!r}. Hint:"
                ' {"type": "record", "name": "Click", "fields": [...]}'
            )
        arrow_schema_of(document)
    except (ValueError, LookupError, SchemaParseException, UnknownType) as error:
        if isinstance(error, SpecError):
            raise
        raise SpecError(
            f"the Avro schema cannot be read: {error}. Hint: pass its JSON text, or a dictionary"
        ) from error
    return document


def arrow_schema_of(document: Mapping[str, Any]) -> pa.Schema:
    """The columns of an Avro record."""
    from fastavro import parse_schema

    parse_schema(dict(document))
    return pa.schema(_fields(document, {}))


def _fields(record: Mapping[str, Any], known: dict[str, Any]) -> list[pa.Field]:
    known[record["name"]] = None
    fields = [pa.field(field["name"], _type(field["type"], known)) for field in record["fields"]]
    known[record["name"]] = pa.struct(fields)
    return fields


def _type(given: Any, known: dict[str, Any]) -> pa.DataType:
    """The Arrow type of an Avro type; `known` has the named types, None while they are open."""
    if isinstance(given, list):
        others = [one for one in given if one != "null"]
        if len(others) != 1:
            raise SpecError(
                f"Avro unions of several types are not supported, got {json.dumps(given)}. Hint: a"
                " union of a type and null"
            )
        return _type(others[0], known)
    if isinstance(given, str):
        return _named(given, known)
    logical = _logical(given)
    if logical is not None:
        return logical
    kind = given["type"]
    if kind == "record":
        return pa.struct(_fields(given, known))
    if kind == "array":
        return pa.list_(_item(given["items"], known))
    if kind == "map":
        return pa.map_(pa.string(), _type(given["values"], known))
    if kind in ("enum", "fixed"):
        known[given["name"]] = _PLAIN[kind]
        return _PLAIN[kind]
    return _type(kind, known)


def _named(name: str, known: Mapping[str, Any]) -> pa.DataType:
    if name in _PLAIN:
        return _PLAIN[name]
    if name == "null":
        return pa.null()
    found = known.get(name, known.get(name.rpartition(".")[2]))
    if found is None:
        raise SpecError(
            f"the Avro type `{name}` contains itself or is unknown, and a column has a fixed"
            " depth. Hint: leave the field out"
        )
    return found


def _logical(given: Mapping[str, Any]) -> pa.DataType | None:
    name = given.get("logicalType")
    if name == "decimal":
        return pa.decimal128(given["precision"], given.get("scale", 0))
    return _LOGICAL.get(str(name))


def _item(given: Any, known: dict[str, Any]) -> pa.DataType:
    kind = _type(given, known)
    if _is_empty(kind) and not isinstance(given, list):
        raise SpecError(
            "items of an Avro array must take at least one byte, got"
            f" {json.dumps(given)}. Hint: use another type, such as boolean"
        )
    return kind


def _is_empty(kind: pa.DataType) -> bool:
    """Whether values of a type may take no bytes."""
    if pa.types.is_struct(kind):
        return all(_is_empty(kind.field(n).type) for n in range(kind.num_fields))
    return pa.types.is_null(kind)


@dataclass(frozen=True)
class AvroValues(ValueDecoder):
    """One Avro record per message."""

    text: str = ""
    """The Avro schema of the writers, as JSON."""
    schema_id: int | None = None
    """The id in the header of every message; None if messages have no header."""

    def _decode(self, values: Sequence[bytes], describe: Describe) -> Decoded:
        _require_fastavro()
        from fastavro import parse_schema, schemaless_reader

        writer = parse_schema(json.loads(self.text))
        rows: list[Any] = []
        problems: dict[int, str] = {}
        for row, value in enumerate(values):
            stream = io.BytesIO(value)
            try:
                self._check_header(stream)
                found: Any = schemaless_reader(stream, writer, None)
                if stream.tell() < len(value):
                    raise ValueError(f"{len(value) - stream.tell()} bytes follow the record")
            except _DAMAGED as error:
                problems[row] = describe(row, _reason(error), value)
                found = {}
            rows.append(found)
        table = self._to_table(rows, problems, lambda row, why: describe(row, why, values[row]))
        return Decoded(with_errors(table, problems) if problems else table)

    def _to_table(
        self,
        rows: list[Any],
        problems: dict[int, str],
        describe: Callable[[int, str], str],
    ) -> pa.Table:
        """The records as columns; one that no column can hold is a problem."""
        try:
            return pa.Table.from_pylist(rows, schema=self.schema)
        except _UNFIT:
            for row, record in enumerate(rows):
                try:
                    pa.Table.from_pylist([record], schema=self.schema)
                except _UNFIT as error:
                    problems[row] = describe(row, str(error))
                    rows[row] = {}
            return pa.Table.from_pylist(rows, schema=self.schema)

    def _check_header(self, stream: io.BytesIO) -> None:
        """Read the header, if messages have one."""
        if self.schema_id is None:
            return
        header = stream.read(_HEADER.size)
        if len(header) < _HEADER.size:
            raise ValueError("it is shorter than the header of a schema registry")
        magic, number = _HEADER.unpack(header)
        if magic != 0 or number != self.schema_id:
            raise ValueError(
                f"its header should be that of schema {self.schema_id}, got {header.hex()}"
            )


def _reason(error: Exception) -> str:
    """The text of an error, without the address of an object: a replay must give the same."""
    return _ADDRESS.sub("the message", str(error)) or type(error).__name__


def _require_fastavro() -> None:
    try:
        import fastavro  # noqa: F401 - checks that the package is installed
    except ImportError:
        raise MissingExtraError("fastavro", "avro", "a direct source of Avro values") from None

"""Tables in this process as destinations: files of JSON, CSV or Parquet, the output, or nothing."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from tidegate.errors import InputError
from tidegate.kernel.frame import rows_of
from tidegate.operators.ingest.python_rows import holds_map
from tidegate.sql.connectors import path_of
from tidegate.sql.definitions import TableDefinition

WRITTEN = ("filesystem", "print", "blackhole")
"""The connectors that are written without Spark."""


class Writer(ABC):
    """Writes rows in deliveries."""

    @abstractmethod
    def write(self, rows: pa.Table) -> None:
        """Write rows, which have the columns of the table."""

    @abstractmethod
    def close(self) -> None:
        """Finish: what was written is complete."""


class JsonWriter(Writer):
    """One JSON object per line."""

    def __init__(self, write: Callable[[str], Any], close: Callable[[], Any] | None = None) -> None:
        self._write, self._close = write, close

    def write(self, rows: pa.Table) -> None:
        self._write("".join(f"{line}\n" for line in json_lines(rows)))

    def close(self) -> None:
        if self._close is not None:
            self._close()


class _Csv(Writer):
    def __init__(self, path: Path, schema: pa.Schema, *, header: bool, separator: str) -> None:
        self._writer = pa.csv.CSVWriter(
            path,
            schema,
            write_options=pa.csv.WriteOptions(include_header=header, delimiter=separator),
        )

    def write(self, rows: pa.Table) -> None:
        self._writer.write_table(rows)

    def close(self) -> None:
        self._writer.close()


class _Parquet(Writer):
    def __init__(self, path: Path, schema: pa.Schema, compression: Any) -> None:
        self._writer = pa.parquet.ParquetWriter(path, schema, compression=compression)

    def write(self, rows: pa.Table) -> None:
        self._writer.write_table(rows)

    def close(self) -> None:
        self._writer.close()


class _Nothing(Writer):
    def write(self, rows: pa.Table) -> None:
        """Rows disappear."""

    def close(self) -> None:
        """Nothing is open."""


def writer_of(definition: TableDefinition, folder: str | None, printed: Writer) -> Writer:
    """The writer of a table; `printed` is the one of the connector `print`.

    A path with the suffix of its format is a file, any other one a folder.
    """
    options = definition.options
    if definition.connector == "print":
        return printed
    if definition.connector == "blackhole":
        return _Nothing()
    if options is None or definition.connector != "filesystem":
        raise InputError(
            f"the table `{definition.name}` is written on Spark. Hint: `tidegate sql --spark`, or"
            f" Insertions.start(); without Spark, the connectors are {', '.join(WRITTEN)}"
        )
    form, schema = options.need("format"), definition.written_schema()
    path = Path(path_of(options, folder))
    if path.suffix != f".{form}":
        path.mkdir(parents=True, exist_ok=True)
        number = len([one for one in path.iterdir() if one.name.startswith("part-")])
        path /= f"part-{number}.{form}"
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
    match form:
        case "json":
            file = path.open("w", encoding="utf-8")
            return JsonWriter(file.write, file.close)
        case "csv":
            separator = options.get("csv.field-delimiter") or ","
            return _Csv(path, schema, header=options.flag("csv.header"), separator=separator)
    return _Parquet(path, schema, options.get("parquet.compression") or "zstd")


def json_lines(rows: pa.Table) -> Iterator[str]:
    """The rows as JSON objects; instants are ISO texts in UTC, and maps are objects."""
    maps = [one for one in rows.schema if holds_map(one.type)]
    for row in rows_of(rows):
        for one in maps:
            row[one.name] = _with_objects(row[one.name], one.type)
        yield json.dumps(row, default=plain, ensure_ascii=False)


def _with_objects(value: Any, kind: pa.DataType) -> Any:
    """A value with objects in place of the pairs of its maps."""
    if value is None or not holds_map(kind):
        return value
    if pa.types.is_map(kind):
        keys = (key if isinstance(key, str) else str(plain(key)) for key, _ in value)
        values = (_with_objects(one, kind.item_type) for _, one in value)
        return dict(zip(keys, values, strict=True))
    if pa.types.is_struct(kind):
        return {one.name: _with_objects(value[one.name], one.type) for one in kind}
    inner = kind.field(0).type
    return [_with_objects(one, inner) for one in value]


def plain(value: Any) -> Any:
    """A value that JSON does not know, as text or number."""
    match value:
        case datetime():
            return value.isoformat().replace("+00:00", "Z")
        case date():
            return value.isoformat()
        case Decimal():
            return str(value)
        case timedelta():
            return value.total_seconds()
        case bytes():
            return value.decode("utf-8", "backslashreplace")
    return str(value)

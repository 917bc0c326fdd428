"""Rows on the output of `tidegate sql`: a text table, JSON lines or CSV."""

from __future__ import annotations

import csv
from typing import IO, Any

import pyarrow as pa

from tidegate.kernel.frame import rows_of
from tidegate.sql.writing import JsonWriter, Writer, plain

Printer = Writer
_WIDEST = 40


def printer(form: str | None, output: IO[str]) -> Printer:
    """The printer of a format; by default a table on a terminal, else JSON lines."""
    form = form or ("table" if output.isatty() else "json")
    if form == "json":
        return JsonWriter(output.write, output.flush)
    return _Csv(output) if form == "csv" else _Table(output)


class _Csv(Writer):
    def __init__(self, output: IO[str]) -> None:
        self._output, self._writer = output, csv.writer(output, lineterminator="\n")
        self._header: list[str] | None = None

    def write(self, rows: pa.Table) -> None:
        if self._header is None:
            self._header = rows.column_names
            self._writer.writerow(self._header)
        for row in rows_of(rows):
            self._writer.writerow([_cell(value, "") for value in row.values()])
        self._output.flush()

    def close(self) -> None:
        self._output.flush()


class _Table(Writer):
    """A table in the widths of its first rows; numbers are on the right."""

    def __init__(self, output: IO[str]) -> None:
        self._output = output
        self._widths: dict[str, int] | None = None
        self._count = 0

    def write(self, rows: pa.Table) -> None:
        texts = [[_cut(_cell(value, "NULL")) for value in row.values()] for row in rows_of(rows)]
        if self._widths is None:
            columns = zip(rows.column_names, *texts, strict=True)
            self._widths = {name: max(map(len, (name, *cells))) for name, *cells in columns}
            self._line([name.ljust(width) for name, width in self._widths.items()])
            self._line(["-" * width for width in self._widths.values()])
        right = [_is_number(kind) for kind in rows.schema.types]
        for cells in texts:
            self._line(
                [
                    cell.rjust(width) if is_right else cell.ljust(width)
                    for cell, width, is_right in zip(
                        cells, self._widths.values(), right, strict=True
                    )
                ]
            )
        self._count += len(rows)
        self._output.flush()

    def close(self) -> None:
        """Print the number of rows."""
        self._output.write(f"({self._count:,} row{'' if self._count == 1 else 's'})\n")

    def _line(self, cells: list[str]) -> None:
        self._output.write("  ".join(cells).rstrip() + "\n")


def _cell(value: Any, null: str) -> str:
    if value is None:
        return null
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, str | int | float | list | dict) else str(plain(value))


def _cut(text: str) -> str:
    return text if len(text) <= _WIDEST else text[: _WIDEST - 3] + "..."


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)

"""CSV text: whole columns from many lines, and single lines that may be malformed.

This module does not need Spark.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.csv as arrow_csv

from tidegate.operators.ingest.typed_rows import as_text, is_utf8, rows_to_table


@dataclass(frozen=True)
class CsvDialect:
    """How lines are divided into cells."""

    delimiter: str = ","
    quote: str | None = '"'
    escape: str | None = None
    null: str = ""

    def parse_declared(self, data: bytes, names: Sequence[str], schema: pa.Schema) -> pa.Table:
        """The columns of a schema; instants are texts. `ArrowInvalid` if a cell does not fit."""
        known = {name: as_text(schema.field(name).type) for name in names if name in schema.names}
        return self._parse(data, names, self._converted(known))

    def parse_texts(self, data: bytes, names: Sequence[str], schema: pa.Schema) -> pa.Table:
        """The columns of a schema as texts."""
        known = [name for name in names if name in schema.names]
        return self._parse(data, names, self._converted(dict.fromkeys(known, pa.string())))

    def parse_inferred(self, data: bytes, names: Sequence[str]) -> pa.Table:
        """All columns, in inferred types."""
        return self._parse(data, names, arrow_csv.ConvertOptions())

    def lines_to_table(
        self,
        lines: Iterable[bytes],
        names: Sequence[str],
        schema: pa.Schema,
        describe: Callable[[int, str, bytes], str],
    ) -> pa.Table:
        """One row for each line, of texts; `describe` words the error of a malformed one."""
        rows: list[Mapping[str, Any]] = []
        problems: dict[int, str] = {}
        for line in lines:
            cells = self.cells(line)
            if len(cells) == len(names) and is_utf8(line):
                rows.append(
                    {
                        name: None if cell == self.null else cell
                        for name, cell in zip(names, cells, strict=True)
                    }
                )
                continue
            why = _problem(line, len(cells), len(names))
            problems[len(rows)] = describe(len(rows), why, line)
            rows.append({})
        known = pa.schema([(name, pa.string()) for name in names if name in schema.names])
        return rows_to_table(rows, known, problems, lambda value, _: value)

    def cells(self, line: bytes) -> list[str]:
        """The cells of a line; none if it is malformed."""
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

    def _converted(self, types: dict[str, pa.DataType]) -> arrow_csv.ConvertOptions:
        return arrow_csv.ConvertOptions(
            column_types=types,
            include_columns=[*types],
            null_values=[self.null],
            strings_can_be_null=True,
            # As in Spark, an empty text in quotes is not null.
            quoted_strings_can_be_null=False,
        )

    def _parse(
        self, data: bytes, names: Sequence[str], convert: arrow_csv.ConvertOptions
    ) -> pa.Table:
        read = arrow_csv.ReadOptions(
            use_threads=False, block_size=len(data) + 1, column_names=list(names)
        )
        parse = arrow_csv.ParseOptions(
            delimiter=self.delimiter,
            quote_char=self.quote or False,
            escape_char=self.escape or False,
        )
        return arrow_csv.read_csv(io.BytesIO(data), read, parse, convert)


def _problem(line: bytes, cells: int, wanted: int) -> str:
    """Why a line is malformed."""
    if cells == wanted:
        return "not UTF-8"
    if b"\n" in line.rstrip(b"\r\n"):
        return "several lines instead of one"
    return f"{cells} cells instead of {wanted}" if line.strip() else "empty"

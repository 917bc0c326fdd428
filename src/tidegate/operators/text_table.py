"""Rows as a text table: aligned columns, times in UTC, long values cut."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from tidegate.html import STYLE, escaped, table
from tidegate.units import many

_MAX_WIDTH = 40
_HTML_ROWS = 20


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table whose first row is the header."""
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    return [
        "  "
        + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def results_text(panes: pa.Table, late: pa.Table, n: int) -> str:
    """Panes and late rows as text, the first `n` of each."""
    lines: list[str] = []
    for rows, noun in _known(panes, late):
        lines.append(_head(rows, noun, n))
        if rows.num_rows:
            lines += text_lines([rows.slice(0, n)])
    return "\n".join(lines) + "\n"


def results_html(panes: pa.Table, late: pa.Table, n: int = _HTML_ROWS) -> str:
    """Panes and late rows as HTML, the first `n` of each."""
    parts = []
    for rows, noun in _known(panes, late):
        parts.append(f"<p><b>{escaped(_head(rows, noun, n))}</b></p>")
        if rows.num_rows:
            shown = rows.slice(0, n)
            cells = zip(*(_cells(shown, name) for name in shown.column_names), strict=True)
            parts.append(table(shown.column_names, cells))
    return f'{STYLE}<div class="tg">{"".join(parts)}</div>'


def _known(panes: pa.Table, late: pa.Table) -> list[tuple[pa.Table, str]]:
    """The tables with their nouns; without columns, it is not known whether rows were late."""
    return [(panes, "pane"), *([(late, "late row")] if late.column_names else [])]


def _head(rows: pa.Table, noun: str, n: int) -> str:
    total = many(rows.num_rows, noun)
    return total if rows.num_rows <= n else f"the first {n:,} of {total}"


def text_lines(tables: Sequence[pa.Table]) -> Iterator[str]:
    """The header and the rows, in aligned columns: numbers to the right, others to the left."""
    names = list(dict.fromkeys(name for table in tables for name in table.column_names))
    columns = []
    for name in names:
        cells = [cell for table in tables for cell in _cells(table, name)]
        right = all(
            _is_number(table.schema.field(name).type)
            for table in tables
            if name in table.column_names
        )
        width = max(map(len, [name, *cells]))
        columns.append(
            [cell.rjust(width) if right else cell.ljust(width) for cell in [name, *cells]]
        )
    yield from ("  ".join(cells).rstrip() for cells in zip(*columns, strict=True))


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)


def _cells(table: pa.Table, name: str) -> list[str]:
    if name not in table.column_names:
        return [""] * table.num_rows
    texts = (value_text(value) for value in table.column(name))
    return [text if len(text) <= _MAX_WIDTH else text[: _MAX_WIDTH - 3] + "..." for text in texts]


def value_text(value: pa.Scalar) -> str:
    """One value; not by way of Python's datetime, which ends with the year 9999."""
    if not value.is_valid:
        return "null"
    if isinstance(value, pa.TimestampScalar):
        zone = value.type.tz is not None
        text = (
            value.cast(pa.timestamp(value.type.unit, "UTC") if zone else value.type)
            .cast(pa.string())
            .as_py()
            .removesuffix("Z")
        )
        whole, _, fraction = text.partition(".")
        return whole if not fraction.strip("0") else text
    if isinstance(value, pa.MapScalar):
        return (
            "{"
            + ", ".join(
                f"{value_text(pair['key'])}: {value_text(pair['value'])}"
                for pair in value.values or ()
            )
            + "}"
        )
    if isinstance(value, (pa.ListScalar, pa.LargeListScalar, pa.FixedSizeListScalar)):
        return "[" + ", ".join(value_text(item) for item in value.values or ()) + "]"
    if isinstance(value, pa.StructScalar):
        return "{" + ", ".join(f"{name}: {value_text(item)}" for name, item in value.items()) + "}"
    if isinstance(value, (pa.StringScalar, pa.LargeStringScalar)):
        return (
            value.as_py().encode("unicode_escape").decode()
            if not value.as_py().isprintable()
            else value.as_py()
        )
    return str(value)

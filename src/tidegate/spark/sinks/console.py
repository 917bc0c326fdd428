"""The sink that prints rows as a text table."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from tidegate.errors import SpecError
from tidegate.spark.sinks.base import DriverSink, SinkTarget, without_pane_id

_MAX_WIDTH = 40
# The last printed batch of each output, to recognize a replay.
_printed: dict[tuple[str, str], int] = {}


@dataclass(frozen=True)
class Console(DriverSink):
    """Prints the first rows of each batch; not exactly once, as a replay is printed again."""

    rows: int

    def write(self, target: SinkTarget, batch: int, tables: Iterator[pa.Table]) -> None:
        shown: list[pa.Table] = []
        total, wanted = 0, self.rows
        for table in tables:
            total += table.num_rows
            if wanted and table.num_rows:
                shown.append(without_pane_id(target, table.slice(0, wanted)))
                wanted -= shown[-1].num_rows
        if not total:
            return
        replayed = batch <= _printed.get((target.query, target.output), -1)
        _printed[target.query, target.output] = batch
        count = (
            f"{total:,} row{'s' if total != 1 else ''}"
            if total <= self.rows
            else f"the first {self.rows:,} of {total:,} rows"
        )
        lines = [
            f"-- batch {batch}, {target.output}: {count}{', replayed' if replayed else ''} --",
            *_lines(shown),
            "",
        ]
        sys.stdout.write("\n".join(lines) + "\n")
        sys.stdout.flush()


def console(rows: int = 20) -> Console:
    """A sink that prints the first `rows` rows of each batch, with times in UTC.

    It prints in the process of `foreachBatch`; with Spark Connect, that is the server. A replayed
    batch is printed again.
    """
    if isinstance(rows, bool) or not isinstance(rows, int) or rows < 1:
        raise SpecError(
            f"console prints at least one row of a batch, got rows={rows!r}. Hint:"
            " tg.sinks.console(20), or tg.sinks.noop() for none"
        )
    return Console(rows)


def _lines(tables: Sequence[pa.Table]) -> Iterator[str]:
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
    texts = (_text(value) for value in table.column(name))
    return [text if len(text) <= _MAX_WIDTH else text[: _MAX_WIDTH - 3] + "..." for text in texts]


def _text(value: pa.Scalar) -> str:
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
                f"{_text(pair['key'])}: {_text(pair['value'])}" for pair in value.values or ()
            )
            + "}"
        )
    if isinstance(value, (pa.ListScalar, pa.LargeListScalar, pa.FixedSizeListScalar)):
        return "[" + ", ".join(_text(item) for item in value.values or ()) + "]"
    if isinstance(value, pa.StructScalar):
        return "{" + ", ".join(f"{name}: {_text(item)}" for name, item in value.items()) + "}"
    if isinstance(value, (pa.StringScalar, pa.LargeStringScalar)):
        return (
            value.as_py().encode("unicode_escape").decode()
            if not value.as_py().isprintable()
            else value.as_py()
        )
    return str(value)

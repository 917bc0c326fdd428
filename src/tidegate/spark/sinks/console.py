"""The sink that prints rows as a text table."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from tidegate.errors import SpecError
from tidegate.operators.text_table import text_lines
from tidegate.spark.sinks.base import DriverSink, SinkTarget, without_pane_id

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
            *text_lines(shown),
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

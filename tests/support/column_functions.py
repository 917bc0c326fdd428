"""Functions over columns, in a module of their own, so that pipeline files can name them."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc


def seconds(rows: pa.Table) -> pa.ChunkedArray:
    """The time of a row, from its text of seconds."""
    return pc.multiply(pc.cast(rows["s"], pa.int64()), 1_000_000)


def owner(rows: pa.Table) -> pa.ChunkedArray:
    """The part of the user before the dot."""
    return pc.replace_substring_regex(rows["user"], r"\..*", "")


def patience(rows: pa.Table) -> pa.ChunkedArray:
    """The gap of a row in microseconds; null where it has none."""
    return pc.multiply(rows["wait"], 1_000_000)


def middle(panes: pa.Table) -> pa.ChunkedArray:
    """The output time halfway between the earliest and the latest event."""
    return pc.add(panes["earliest"], pc.divide(pc.subtract(panes["latest"], panes["earliest"]), 2))


NUMBER = 7

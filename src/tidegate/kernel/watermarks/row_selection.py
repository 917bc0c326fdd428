"""Row selection: the few rows of a table that have the same effect on watermarks as all of them.

Spark sends them to every shard, since a shard processes only its share of the rows.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.instants import MAX, MIN
from tidegate.kernel.events.duplicates import partitions_of
from tidegate.kernel.events.event_time import OK, read_times
from tidegate.kernel.frame import to_arrow, to_numpy
from tidegate.kernel.watermarks.generators import Generator, Observed, columns_of, compile_generator
from tidegate.spec.operator import Input
from tidegate.spec.watermarks import Generated
from tidegate.spec.windows import Axis

_ROW = "\x00row"
"""The column of row numbers, for a selection by several time columns."""


def condense(
    table: pa.Table, given: Input, limit: int | None, *, axis: Axis = Axis.EVENT_TIME
) -> pa.Table:
    """The rows and columns that determine the progress of an input on an axis, in order.

    Rows beyond the limit are from the future and dropped. Without a limit, where the watermark
    decides what is from the future, every row stays that could matter. Condensing parts of a table
    one after the other has the same effect as condensing the whole. Counters of refused watermarks
    and of steps back may count fewer rows, but never none.
    """
    if axis is Axis.OFFSET:
        return _furthest(table.select(_named(given.partition, given.offset)), given)
    if axis is not Axis.EVENT_TIME or not table.num_rows:
        return _columns(table, given).slice(0, 0)
    if given.others:
        return _by_column(table, given, limit)
    generator = compile_generator(given.watermark)
    if not generator.repeats:
        table = _in_order(table, given)
    chosen = _columns(table, given)
    partition, names = partitions_of(chosen, given.partition)
    if given.time is None:
        times, readable = np.zeros(len(chosen), np.int64), np.zeros(len(chosen), bool)
    else:
        times, verdict = read_times(chosen.column(given.time), given.time)
        readable = verdict == OK
    seen = Observed(
        chosen, times, readable, partition, names, MIN, MAX if limit is None else limit
    ).without_future()
    if not len(seen):
        return seen.table
    rows = generator.condensed(seen) if limit is not None else _every_time(seen, generator)
    return seen.table if len(rows) == len(seen) else seen.table.take(pa.array(rows))


def _by_column(table: pa.Table, given: Input, limit: int | None) -> pa.Table:
    """The union of the rows that are selected for each time column."""
    numbered = table.append_column(_ROW, pa.array(np.arange(table.num_rows)))
    single = [
        replace(given, time=time.column, watermark=time.watermark, others=())
        for time in given.times
    ]
    found = np.unique(
        np.concatenate(
            [to_numpy(to_arrow(condense(numbered, one, limit).column(_ROW))) for one in single]
        )
    )
    return _columns(table, given).take(pa.array(found))


def _columns(table: pa.Table, given: Input) -> pa.Table:
    """The columns that watermarks are read from; all columns for a user's generator."""
    if any(isinstance(time.watermark, Generated) for time in given.times):
        return table
    named = [
        name
        for time in given.times
        for name in (time.column, given.partition, *columns_of(time.watermark))
    ]
    return table.select(_named(*named, _ROW if _ROW in table.column_names else None))


def _named(*names: str | None) -> list[str]:
    return list(dict.fromkeys(name for name in names if name is not None))


def _in_order(table: pa.Table, given: Input) -> pa.Table:
    """The rows in the order of their offsets."""
    if given.offset is None:
        return table
    offset = to_numpy(pc.fill_null(to_arrow(table.column(given.offset)), 0))
    partition, _ = partitions_of(table, given.partition)
    order = np.lexsort((offset, partition))
    return table if (np.diff(order) == 1).all() else table.take(pa.array(order))


def _every_time(seen: Observed, generator: Generator) -> np.ndarray:
    """One row of each time of each partition; all rows where their order matters."""
    if not generator.repeats:
        return np.arange(len(seen))
    times = seen.read_times
    order = np.lexsort((times, seen.partition))
    different = np.ones(len(order), bool)
    different[1:] = (np.diff(times[order]) != 0) | (np.diff(seen.partition[order]) != 0)
    return np.sort(order[different])


def _furthest(table: pa.Table, given: Input) -> pa.Table:
    """The row with the highest offset of each partition."""
    column = to_arrow(table.column(given.offset or ""))
    table, column = table.filter(column.is_valid()), column.drop_null()
    partition, names = partitions_of(table, given.partition)
    offset = to_numpy(column.cast(pa.int64()))
    seen = Observed(table, offset, np.ones(len(offset), bool), partition, names, MIN, MAX)
    return table.take(pa.array(seen.newest_rows()))

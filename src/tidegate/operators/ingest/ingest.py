"""The inlet takes the rows of an input in: which of them are new, how they are numbered, what
cannot be read, and what comes too late.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Protocol

import numpy as np
import pyarrow as pa

from tidegate.kernel.events.duplicates import OffsetMarks, SeenIds
from tidegate.kernel.events.lateness import CLASSES, FUTURE, VERY_LATE
from tidegate.kernel.events.times import NULL, OK, read_times
from tidegate.kernel.watermarks.generators import Observed, columns_of, compile_generator
from tidegate.operators.ingest.delivery import Delivery, Reader
from tidegate.operators.ingest.schema_cast import MARK, Conformed, conform
from tidegate.operators.output import texts
from tidegate.operators.progress import Progress
from tidegate.spec.operator import Input, Options
from tidegate.spec.watermarks import Noted, Punctuated
from tidegate.state.protocol import Store

Identities = tuple[np.ndarray, np.ndarray, np.ndarray]
"""The hashed ids of rows, and whether they have one."""
Windows = tuple[np.ndarray, np.ndarray, np.ndarray]


class LateOutput(Protocol):
    """Where rows go that are in no result."""

    def late_rows(
        self,
        delivery: Delivery,
        index: np.ndarray,
        reason: str,
        lateness: pa.Array,
        windows: Windows | None = None,
        detail: str = "",
    ) -> None: ...


class Ingest:
    """What an operator remembers of an input, or of several that are united, to take its rows in
    once.
    """

    def __init__(
        self, given: Input, store: Store, progress: Progress, *, united: bool = False
    ) -> None:
        self._given = given
        self._progress = progress
        self._by_offset = given.offset is not None and given.partition is None and not united
        self.marks = OffsetMarks()
        self.ids = SeenIds(store)

    def fresh(self, delivery: Delivery, reader: Reader) -> tuple[np.ndarray, Identities | None]:
        """Which rows were not delivered before; and their ids, where these tell."""
        if self._given.offset is not None:
            return self.marks.fresh(delivery.partition, delivery.partitions, delivery.offset), None
        if self._given.id is not None:
            ids = reader.identities(delivery)
            return self.ids.fresh(*ids), ids
        return np.ones(len(delivery), bool), None

    def remember(
        self,
        delivery: Delivery,
        new: Delivery,
        fresh: np.ndarray,
        ids: Identities | None,
        until: Callable[[Delivery], np.ndarray],
    ) -> None:
        """Remember the new rows of a delivery, which are the fresh ones, as delivered: ids `until`
        a time that is too late to be taken.
        """
        if self._given.offset is not None:
            self.marks.advance(new.partition, new.partitions, new.offset)
        elif ids is not None:
            key_hash, key_check, known = ids
            kept = np.flatnonzero(fresh & known)
            self.ids.remember(key_hash[kept], key_check[kept], until(delivery.take(kept)))
        self._progress.counters["duplicates"] += len(delivery) - len(new)
        self._progress.counters["events"] += len(new)

    def numbered(self, delivery: Delivery) -> Delivery:
        """Arrival numbers: the offsets themselves where there is one partition, so that they are
        the same after a rebuild.
        """
        progress = self._progress
        if self._by_offset:
            seq = delivery.offset
            progress.seq = max(progress.seq, int(seq.max()) + 1) if len(seq) else progress.seq
        else:
            seq = np.arange(progress.seq, progress.seq + len(delivery))
            progress.seq += len(delivery)
        return delivery.with_seq(seq)

    def without_markers(self, delivery: Delivery, given: Input, *, timed: bool = True) -> Delivery:
        """The events among the rows. A marker that cannot be read says nothing: it goes the way of
        all broken rows.
        """
        markers = markers_in(delivery.table, given, delivery.verdict if timed else None)
        if markers is None:
            return delivery
        markers &= whole_rows(delivery)
        self._progress.counters["markers"] += int(markers.sum())
        self._progress.counters["events"] -= int(markers.sum())
        return delivery.where(~markers)

    def sound(self, delivery: Delivery, conformed: Conformed, late: LateOutput) -> Delivery:
        """The delivery without rows whose time or values cannot be read; those go to `late`."""
        delivery = self._typed(delivery, conformed, late)
        missing = delivery.verdict == NULL
        for mask, reason in (
            (missing, "null_time"),
            (~missing & (delivery.verdict != OK), "bad_time"),
        ):
            rows = np.flatnonzero(mask)
            late.late_rows(delivery, rows, reason, texts(None, len(rows)))
            self._progress.counters["unreadable"] += len(rows)
        return delivery.where(delivery.verdict == OK)

    def _typed(self, delivery: Delivery, conformed: Conformed, late: LateOutput) -> Delivery:
        """The delivery without rows that hold values of a wrong type."""
        if not conformed.broken:
            return delivery
        what = delivery.table.column(MARK).to_pylist()
        delivery = delivery.with_table(delivery.table.drop_columns([MARK]))
        bad = np.array([text is not None for text in what], bool)
        for row in np.flatnonzero(bad).tolist():
            late.late_rows(
                delivery, np.array([row]), "bad_value", texts(None, 1), detail=what[row] or ""
            )
        self._progress.counters["unreadable"] += int(bad.sum())
        return delivery.where(~bad)

    def judged(
        self,
        delivery: Delivery,
        classes: np.ndarray,
        options: Options,
        late: LateOutput,
        windows: Callable[[Delivery, np.ndarray], Windows | None] | None = None,
    ) -> Delivery:
        """The rows with their classes, without those that are too late or refused for being from
        the future, which go to `late`.
        """
        self._progress.count_classes(classes)
        delivery = delivery.with_classes(classes)
        dropped = (classes == VERY_LATE) & (options.drop_by == "event")
        rows = np.flatnonzero(dropped)
        self._progress.counters["dropped_pairs"] += len(rows)
        missed = None if windows is None else windows(delivery, rows)
        late.late_rows(delivery, rows, "very_late", texts(CLASSES[VERY_LATE], len(rows)), missed)
        ahead = np.flatnonzero(classes == FUTURE)
        if len(ahead) and options.future == "reject":
            missed = None if windows is None else windows(delivery, ahead)
            late.late_rows(delivery, ahead, "future", texts(CLASSES[FUTURE], len(ahead)), missed)
            dropped |= classes == FUTURE
        return delivery.where(~dropped)

    def refuse(
        self,
        table: pa.Table,
        reader: Reader,
        schema: pa.Schema,
        late: LateOutput,
        reason: str,
        detail: str,
    ) -> None:
        """Send rows that cannot be delivered to `late`."""
        # What is wrong may be the offset itself.
        reader = dataclasses.replace(reader, spec=dataclasses.replace(reader.spec, offset=None))
        reader.check(table.schema)
        conformed = conform(table, schema, reader.spec.time)
        plain = conformed.table.drop_columns([MARK]) if conformed.broken else conformed.table
        rows = np.arange(len(table))
        late.late_rows(
            reader.read(plain, None, self._progress.now),
            rows,
            reason,
            texts(None, len(table)),
            detail=detail,
        )
        self._progress.counters["unreadable"] += len(table)
        self._progress.counters["events"] += len(table)


def readable_rows(delivery: Delivery) -> np.ndarray:
    """Which rows have a time, and no broken value, so that they may say how far their source has
    come.
    """
    return (delivery.verdict == OK) & whole_rows(delivery)


def whole_rows(delivery: Delivery) -> np.ndarray:
    """Which rows have no broken value."""
    if MARK not in delivery.table.column_names:
        return np.ones(len(delivery), bool)
    return delivery.table.column(MARK).is_null().to_numpy()


def markers_in(
    table: pa.Table, given: Input, verdict: np.ndarray | None = None
) -> np.ndarray | None:
    """Which rows only say a watermark, of whichever time column, and are no events; None where
    there are none.

    Whether the first time could be read may be known. Rows that only note a time have none at all,
    of no time column.
    """
    # A stream without times has markers where rows are taken as they come.
    known: dict[str | None, np.ndarray] = {} if verdict is None else {given.time: verdict}
    names = {*table.column_names, *known}
    marks = {
        time.column: time.watermark
        for time in given.times
        if names.issuperset({time.column, *columns_of(time.watermark)})
    }
    if not any(isinstance(mark, Noted | Punctuated) for mark in marks.values()):
        return None
    others = [
        time.column
        for time in given.times
        if time.column is not None and time.column in names and time.column not in known
    ]
    verdicts = known | dict[str | None, np.ndarray](
        (name, read_times(table.column(name), name)[1]) for name in others
    )
    timeless = np.logical_and.reduce([one == NULL for one in verdicts.values()])
    said = [
        compile_generator(mark).markers(table, verdicts[name] == OK, timeless)
        for name, mark in marks.items()
    ]
    found = [rows for rows in said if rows is not None and rows.any()]
    return np.logical_or.reduce(found) if found else None


def observed_rows(
    delivery: Delivery, readable: np.ndarray, reader: Reader, now: int, limit: int
) -> Observed:
    """The rows as generators of watermarks look at them; what is beyond the limit is from the
    future.
    """
    names = [name.removeprefix(reader.prefix) for name in delivery.partitions]
    return Observed(delivery.table, delivery.time, readable, delivery.partition, names, now, limit)

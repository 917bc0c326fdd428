"""Ingest: one delivery in, the new, numbered and readable events out.

Contract: `Ingest.take` works in this order. It casts the rows to the bound schema, reads times and
keys, finds duplicates, lets the operator observe the new rows, remembers offsets and ids, numbers
the rows, drops marker rows and sends unreadable rows to `late`; rows without an offset are in
`late` and not part of this. The operator may refuse a delivery while it observes the rows; nothing
is remembered before. `Ingest.drop_late` then applies the lateness classes that the operator finds.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from tidegate.instants import MAX, format_duration, format_instant
from tidegate.kernel.events.duplicates import OffsetMarks, SeenIds
from tidegate.kernel.events.event_time import (
    CLASSES,
    FUTURE,
    NULL,
    OK,
    VERY_LATE,
    is_instants,
    read_times,
)
from tidegate.kernel.frame import to_arrow
from tidegate.kernel.watermarks.generators import Observed, columns_of, compile_generator
from tidegate.operators.ingest.delivery import Delivery, DeliveryReader
from tidegate.operators.ingest.schema_cast import BROKEN, CastTable, cast_to_schema
from tidegate.operators.ingest.watermark_tracking import WatermarkTracker
from tidegate.operators.output import texts
from tidegate.operators.progress import Progress
from tidegate.spec.operator import Input, Options
from tidegate.spec.watermarks import Noted, Punctuated
from tidegate.state.store import Store
from tidegate.units import many

LOGGER = logging.getLogger(__name__)
WARN_EVERY = 60_000_000
"""Time of the clock between two log lines about rows from the future."""
Windows = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Windows of rows: positions in an index of rows, starts and ends."""


class HashedIds(NamedTuple):
    """The hashed ids of rows, and which rows have one."""

    key_hash: np.ndarray
    key_check: np.ndarray
    known: np.ndarray


class LateOutput(Protocol):
    """Receives the rows that are in no result."""

    def late_rows(
        self,
        delivery: Delivery,
        index: np.ndarray,
        reason: str,
        lateness: pa.Array,
        windows: Windows | None = None,
        detail: str | pa.Array = "",
    ) -> None: ...


@dataclass(frozen=True, slots=True, eq=False)
class IngestHooks:
    """The parts of ingest that differ between operators."""

    late: LateOutput
    observe: Callable[[Delivery], None]
    """Observes the new rows, for watermarks and keys. An error refuses the delivery."""
    id_expiry: Callable[[Delivery], np.ndarray]
    """The event time of each row at which its id expires."""
    recover: Callable[[Delivery], None] | None = None
    """Takes duplicates while a lost message store is rebuilt."""


@dataclass(frozen=True, slots=True, eq=False)
class Ingested:
    """The result of ingest for one delivery."""

    new: Delivery
    """All rows that were not delivered before, numbered, with markers and unreadable rows."""
    events: Delivery
    """The readable events among them."""


class Ingest:
    """The ingest state of one operator, or of one side of a join: offsets, ids, row numbers."""

    def __init__(self, inputs: Sequence[Input], store: Store, progress: Progress) -> None:
        self._progress = progress
        first = inputs[0]
        self._by_offset = len(inputs) == 1 and first.offset is not None and first.partition is None
        self.marks = OffsetMarks()
        self.ids = SeenIds(store)
        self._unreported = 0
        """Rows from the future since the last log line about them."""
        self._warned: int | None = None

    def take(
        self, table: pa.Table, reader: DeliveryReader, schema: pa.Schema, hooks: IngestHooks
    ) -> Ingested:
        """Ingest one delivery of one input; `schema` is the one that the operator is bound to."""
        cast = cast_to_schema(table, schema, reader.time)
        known = reader.known_offsets(cast.table)
        if known is not None:
            taken = self.take(table.filter(pa.array(known)), reader, schema, hooks)
            self.refuse(
                table.filter(pa.array(~known)),
                reader,
                schema,
                hooks.late,
                "bad_offset",
                f"`{reader.spec.offset}` is null or no number up to {MAX}",
            )
            return taken
        times = None if reader.time is None else table.column(reader.time)
        if reader.time is not None and times is not None and not is_instants(times.type):
            # Where the type is the bound one, `read` refuses the column.
            times = cast.table.column(reader.time)
        delivery = reader.read(cast.table, times, self._progress.now)
        fresh, ids = self._fresh(delivery, reader)
        new = delivery.where(fresh)
        # A watermark that goes back may refuse the delivery, so nothing is remembered before.
        hooks.observe(new)
        if hooks.recover is not None:
            hooks.recover(delivery.where(~fresh))
        if reader.spec.offset is not None:
            self.marks.advance(new.partition, new.partitions, new.offset)
        elif ids is not None:
            self._remember_ids(delivery, fresh, ids, hooks.id_expiry)
        self._progress.counters["duplicates"] += len(delivery) - len(new)
        self._progress.counters["events"] += len(new)
        new = self._numbered(new)
        events = self._without_markers(new, reader)
        return Ingested(new, self._readable(events, cast, hooks.late))

    def _fresh(
        self, delivery: Delivery, reader: DeliveryReader
    ) -> tuple[np.ndarray, HashedIds | None]:
        """Which rows were not delivered before, and the ids where those decide."""
        if reader.spec.offset is not None:
            return self.marks.fresh(delivery.partition, delivery.partitions, delivery.offset), None
        if reader.spec.id is not None:
            ids = HashedIds(*reader.identities(delivery))
            return self.ids.fresh(*ids), ids
        return np.ones(len(delivery), bool), None

    def _remember_ids(
        self,
        delivery: Delivery,
        fresh: np.ndarray,
        ids: HashedIds,
        id_expiry: Callable[[Delivery], np.ndarray],
    ) -> None:
        kept = np.flatnonzero(fresh & ids.known)
        self.ids.remember(ids.key_hash[kept], ids.key_check[kept], id_expiry(delivery.take(kept)))

    def _numbered(self, delivery: Delivery) -> Delivery:
        """The rows with their arrival numbers.

        Where there is one partition the offsets are the numbers, so that rows that are delivered
        again have the same ones.
        """
        progress = self._progress
        if self._by_offset:
            seq = delivery.offset
            progress.seq = max(progress.seq, int(seq.max()) + 1) if len(seq) else progress.seq
        else:
            seq = np.arange(progress.seq, progress.seq + len(delivery))
            progress.seq += len(delivery)
        return delivery.with_seq(seq)

    def _without_markers(self, delivery: Delivery, reader: DeliveryReader) -> Delivery:
        """The rows that are events. A marker with a broken value stays, as an unreadable row."""
        verdict = delivery.verdict if reader.reads_time else None
        markers = markers_in(delivery.table, reader.spec, verdict)
        if markers is None:
            return delivery
        markers &= whole_rows(delivery)
        self._progress.counters["markers"] += int(markers.sum())
        self._progress.counters["events"] -= int(markers.sum())
        return delivery.where(~markers)

    def _readable(self, delivery: Delivery, cast: CastTable, late: LateOutput) -> Delivery:
        """The rows with readable values and times; the others go to `late`."""
        if cast.broken:
            delivery = self._without_broken(delivery, late)
        missing = delivery.verdict == NULL
        for mask, reason in (
            (missing, "null_time"),
            (~missing & (delivery.verdict != OK), "bad_time"),
        ):
            rows = np.flatnonzero(mask)
            late.late_rows(delivery, rows, reason, texts(None, len(rows)))
            self._progress.counters["unreadable"] += len(rows)
        return delivery.where(delivery.verdict == OK)

    def _without_broken(self, delivery: Delivery, late: LateOutput) -> Delivery:
        """The rows whose values have the types of their columns; the others go to `late`."""
        problems = to_arrow(delivery.table.column(BROKEN))
        delivery = delivery.with_table(delivery.table.drop_columns([BROKEN]))
        whole = problems.is_null().to_numpy(zero_copy_only=False)
        rows = np.flatnonzero(~whole)
        late.late_rows(
            delivery, rows, "bad_value", texts(None, len(rows)), detail=problems.drop_null()
        )
        self._progress.counters["unreadable"] += len(rows)
        return delivery.where(whole)

    def drop_late(
        self,
        delivery: Delivery,
        classes: np.ndarray,
        options: Options,
        late: LateOutput,
        windows: Callable[[Delivery, np.ndarray], Windows | None] | None = None,
    ) -> Delivery:
        """The rows with their lateness classes, without very late and rejected future rows.

        Those go to `late`, with the windows that they missed where `windows` finds them.
        """
        self._progress.count_classes(classes)
        delivery = delivery.with_classes(classes)
        dropped = (classes == VERY_LATE) & (options.drop_by == "event")
        rows = np.flatnonzero(dropped)
        self._progress.counters["dropped_pairs"] += len(rows)
        missed = None if windows is None else windows(delivery, rows)
        late.late_rows(delivery, rows, "very_late", texts(CLASSES[VERY_LATE], len(rows)), missed)
        ahead = np.flatnonzero(classes == FUTURE)
        self._warn_of_future(delivery, ahead, options)
        if len(ahead) and options.future == "reject":
            missed = None if windows is None else windows(delivery, ahead)
            late.late_rows(delivery, ahead, "future", texts(CLASSES[FUTURE], len(ahead)), missed)
            dropped |= classes == FUTURE
        return delivery.where(~dropped)

    def _warn_of_future(self, delivery: Delivery, ahead: np.ndarray, options: Options) -> None:
        """Log rows from the future, at most once per minute of the operator's clock."""
        self._unreported += len(ahead)
        now = self._progress.now
        if not len(ahead) or (self._warned is not None and now - self._warned < WARN_EVERY):
            return
        LOGGER.warning(
            "%s more than %s ahead of the %s, up to %s, did not advance the watermark. Hint: check"
            " the clocks of the producers, or set `future_tolerance`",
            many(self._unreported, "row"),
            format_duration(options.future_tolerance),
            options.future_reference,
            format_instant(int(delivery.time[ahead].max())),
        )
        self._unreported, self._warned = 0, now

    def refuse(
        self,
        table: pa.Table,
        reader: DeliveryReader,
        schema: pa.Schema,
        late: LateOutput,
        reason: str,
        detail: str,
    ) -> None:
        """Send rows that cannot be delivered to `late`."""
        # The offset itself may be what is wrong.
        reader = dataclasses.replace(reader, spec=dataclasses.replace(reader.spec, offset=None))
        reader.check(table.schema)
        cast = cast_to_schema(table, schema, reader.time)
        plain = cast.table.drop_columns([BROKEN]) if cast.broken else cast.table
        n = table.num_rows
        delivery = reader.read(plain, None, self._progress.now)
        late.late_rows(delivery, np.arange(n), reason, texts(None, n), detail=detail)
        self._progress.counters["unreadable"] += n
        self._progress.counters["events"] += n


def whole_rows(delivery: Delivery) -> np.ndarray:
    """Which rows have no broken value."""
    if BROKEN not in delivery.table.column_names:
        return np.ones(len(delivery), bool)
    return delivery.table.column(BROKEN).is_null().to_numpy()


def observed_columns(
    delivery: Delivery,
    reader: DeliveryReader,
    tracker: WatermarkTracker,
    columns: Mapping[str, int],
) -> dict[int, Observed]:
    """The rows as watermark generators observe them, by watermark key.

    `columns` maps time columns to watermark keys. A row counts if it has no broken value and its
    time in that column is readable.
    """
    names = [name.removeprefix(reader.prefix) for name in delivery.partitions]
    whole = whole_rows(delivery)
    observed = {}
    for name, key in columns.items():
        if name == (reader.time or ""):
            times, verdict = delivery.time, delivery.verdict
        else:
            times, verdict = read_times(delivery.table.column(name), name)
        observed[key] = Observed(
            delivery.table,
            times,
            whole & (verdict == OK),
            delivery.partition,
            names,
            tracker.now,
            tracker.limit(key),
        )
    return observed


def markers_in(table: pa.Table, given: Input, verdict: np.ndarray | None) -> np.ndarray | None:
    """Which rows only carry a watermark of some time column and are no events; None if none is.

    `verdict` is that of the first time column, where it is known. A row that notes a time without
    an event has no time in any column. The results of an async map are events.
    """
    if given.mapped is not None:
        return None
    # A stream without times has markers where rows are taken as they come.
    known: dict[str | None, np.ndarray] = {} if verdict is None else {given.time: verdict}
    names = {*table.column_names, *known}
    watermarks = {
        time.column: time.watermark
        for time in given.times
        if names.issuperset({time.column, *columns_of(time.watermark)})
    }
    if not any(isinstance(watermark, Noted | Punctuated) for watermark in watermarks.values()):
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
    masks = [
        compile_generator(watermark).markers(table, verdicts[name] == OK, timeless)
        for name, watermark in watermarks.items()
    ]
    found = [rows for rows in masks if rows is not None and rows.any()]
    return np.logical_or.reduce(found) if found else None

"""The embedded join: a windowed join that is driven by calls; see `EmbeddedBase`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.embedded.base import Downstream, EmbeddedBase
from tidegate.embedded.result_queue import Target
from tidegate.embedded.rows import to_table
from tidegate.errors import InputError
from tidegate.instants import MAX, MIN, Instant, instant
from tidegate.kernel.frame import Frame, concat_frames, to_arrow
from tidegate.kernel.keys import identify
from tidegate.operators.explain.facts import Explanation
from tidegate.operators.explain.join import described, explain_join
from tidegate.operators.ingest.delivery import Arrival
from tidegate.operators.ingest.watermark_tracking import PausedSource
from tidegate.operators.join.operator import WindowedJoin
from tidegate.operators.join.output import PAYLOAD
from tidegate.operators.join.side import Side
from tidegate.operators.progress import late_by_reason
from tidegate.spec.join import LEFT, RIGHT, SIDES, JoinSpec, Rows
from tidegate.state.protocol import Store


class EmbeddedJoin(EmbeddedBase):
    """One join in this process; an input is said as "left" or "right", or as 0 or 1."""

    operator: WindowedJoin

    def __init__(
        self,
        spec: JoinSpec,
        *,
        store: Store | None = None,
        downstream: Downstream | Target | None = None,
        now: int | None = None,
        schemas: tuple[pa.Schema | None, pa.Schema | None] = (None, None),
    ) -> None:
        """A join; `schemas` are the columns of both sides, where names of the output should not
        wait for the first rows.
        """
        self._drive(store, downstream, now, spec)
        self.inputs, self.names = spec.inputs, SIDES
        self.operator = WindowedJoin(spec, self._store, now=self._clock.start)
        self._continue()
        self.operator.bind(*schemas)

    @property
    def spec(self) -> JoinSpec:
        return self.operator.spec

    def add_message(
        self, message: Mapping[str, Any], *, now: Instant | None = None, input: int | str = 0
    ) -> None:
        """Take one message of an input."""
        self.add_messages([message], now=now, input=input)

    def add(self, *, left: Any = None, right: Any = None, now: Instant | None = None) -> None:
        """Take a delivery of both inputs at once: left before right, and watermarks move after
        both.
        """
        self._check_open()
        given = [(LEFT, left), (RIGHT, right)]
        tables = [
            Arrival(side, to_table(rows, self.operator.expected(side)))
            for side, rows in given
            if rows is not None
        ]
        self._give(self.operator.process_all(tables, self._now(now)))

    def _promised(self, target: Target) -> int:
        """The watermark of the time column that the downstream looks at."""
        column = target.inputs[0].time
        return self.operator.output_watermarks.get(column or "", self.operator.output_watermark)

    # Looking into it

    @property
    def watermark(self) -> int | None:
        """The lesser of both watermarks, or None while there is none."""
        found = self.operator.progress.watermark
        return None if found == MIN else found

    @property
    def watermarks(self) -> tuple[int | None, int | None]:
        """The watermarks of the left and of the right side."""
        left, right = (
            None if side.watermark == MIN else side.watermark for side in self.operator.sides
        )
        return left, right

    @property
    def output_watermark(self) -> int:
        """What may be promised downstream of all time columns."""
        return self.operator.output_watermark

    @property
    def output_watermarks(self) -> dict[str, int]:
        """What may be promised downstream, by time column of the output."""
        return self.operator.output_watermarks

    def explain(self) -> str:
        """What the join does, as text, with how messages are kept by now."""
        left, right = (side.buffer.is_keyed for side in self.operator.sides)
        return described(self.spec, (left, right))

    def explain_watermark(self) -> Explanation:
        """Why there is no output: who holds a watermark back, and how many rows wait for one."""
        refused, waiting = self._outlet.waiting, self._outlet.unfetched
        return explain_join(
            self.operator,
            machine_clock=self._clock.at(None, 0) if self._clock.is_read else None,
            waiting_panes=sum(results.panes.num_rows for results in waiting),
            waiting_late=sum(results.late.num_rows for results in waiting),
            refused_rows=sum(len(results) for results in refused),
            is_refused=self._outlet.is_refused,
        )

    def paused(self) -> list[PausedSource]:
        """The sources that run too far ahead of the slowest and should not be read for now."""
        return self.operator.watermark_tracker.paused()

    def resume_offsets(self) -> dict[str, int]:
        """By side and partition, the first offset to deliver after a restart."""
        return self.operator.resume_offsets()

    def stats(self) -> dict[str, Any]:
        """What is held and what was counted: rows of both sides, runs, bytes, events by class,
        pairs by timing, late rows by reason.
        """
        counters = self.operator.progress.counters
        names = (
            "events",
            "duplicates",
            "on_time",
            "mildly_late",
            "very_late",
            "future",
            "unreadable",
            "late_rows",
            "markers",
        )
        panes = ("panes_early", "panes_on_time", "panes_late", "retractions")
        found = {
            name: counters[name] for name in (*names, *panes)
        } | self.operator.watermark_tracker.stats()
        held: dict[str, Any] = {
            f"{SIDES[side.number]}_rows": len(side.buffer) for side in self.operator.sides
        }
        held.update(
            runs=sum(side.buffer.runs for side in self.operator.sides),
            bytes=self.operator.nbytes,
            waiting=self.operator.emitter.waiting,
        )
        return {**found, "late_by_reason": late_by_reason(counters), **held}

    def get_messages(
        self,
        side: int | str,
        start: Instant | None = None,
        end: Instant | None = None,
        *,
        start_offset: int | None = None,
        end_offset: int | None = None,
        key: Any = None,
    ) -> pa.Table:
        """The messages of a side that are kept from (start, start_offset) to (end, end_offset),
        both included; an equal key narrows them.
        """
        own, frame = self._held(side, key)
        at = frame.ints("at") if own.spec.is_timed else self._offsets(own, frame)
        low, high = self._range(start, end)
        wanted = (at >= low) & (at <= high)
        if start_offset is not None or end_offset is not None:
            offset = self._offsets(own, frame)
            wanted &= (at > low) | (offset >= (MIN if start_offset is None else start_offset))
            wanted &= (at < high) | (offset <= (MAX if end_offset is None else end_offset))
        order = np.lexsort((frame.ints("seq"), at))
        return messages_in(frame.take(order[wanted[order]]))

    def get_windows(
        self,
        side: int | str,
        start: Instant | None = None,
        end: Instant | None = None,
        *,
        key: Any = None,
    ) -> list[dict[str, Any]]:
        """The windows of a side that overlap a range, sorted, with how many of its messages each
        holds; those of one equal key where it is given.

        Where rows meet in windows these are the windows. Within bounds every message of the other
        side has a window of its own: the range of times that its partners have. A tuple join has
        one window a side, from its first to its last offset.
        """
        own, frame = self._held(side, key)
        low, high = self._range(start, end)
        found = self.operator.core.windows(own.number, frame)
        wanted = (found.ints("start") <= high) & (found.ints("end") > low)
        found = found.where(wanted)
        found = found.take(np.lexsort((found.ints("end"), found.ints("start"))))
        plain = isinstance(self.spec.window, Rows)
        show = (
            (lambda column: column.tolist())
            if plain
            else (lambda column: self.operator.renderer().instants(column).to_pylist())
        )
        starts, ends, counts = (
            show(found.ints("start")),
            show(found.ints("end")),
            found.ints("count").tolist(),
        )
        return [
            {"window_start": a, "window_end": b, "count": n}
            for a, b, n in zip(starts, ends, counts, strict=True)
        ]

    def _range(self, start: Instant | None, end: Instant | None) -> tuple[int, int]:
        return MIN if start is None else instant(start), MAX if end is None else instant(end)

    @staticmethod
    def _offsets(own: Side, frame: Frame) -> np.ndarray:
        name = PAYLOAD + (own.given.offset or "")
        return (
            to_arrow(frame[name]).cast(pa.int64()).to_numpy(zero_copy_only=False)
            if name in frame
            else frame.ints("seq")
        )

    def _held(self, side: int | str, key: Any) -> tuple[Side, Frame]:
        """The rows of a side that are kept, and those of one key where it is given."""
        own = self.operator.sides[self.ordinal(side)]
        frame = kept(own)
        if key is None or not len(frame):
            return own, frame
        key_hash, key_check = self._identity(own, key)
        column = "key_hash" if "key_hash" in frame else "lead"
        return own, frame.where(
            (frame.ints(column) == key_hash) & (frame.ints("key_check") == key_check)
        )

    def _identity(self, own: Side, key: Any) -> tuple[np.uint64, np.uint64]:
        names = self.spec.fields(own.number)
        values = (
            [key.get(name) for name in names]
            if isinstance(key, Mapping)
            else list(key)
            if isinstance(key, tuple)
            else [key]
        )
        if len(values) != len(names) or (isinstance(key, Mapping) and set(key) != set(names)):
            raise InputError(
                f"the equal fields are {list(names)}, got {key!r}. Hint: give a value, a tuple or a"
                " dictionary"
            )
        if own.schema is None:
            raise InputError(
                f"nothing has come from the {SIDES[own.number]} side, so that its columns are not"
                " known"
            )
        try:
            columns = [
                pa.array([v], own.schema.field(n).type) for n, v in zip(names, values, strict=True)
            ]
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as unfit:
            raise InputError(
                f"the key {key!r} does not fit the equal fields {list(names)}: {unfit}"
            ) from unfit
        key_hash, key_check = identify(columns, 1)
        return key_hash[0], key_check[0]


def kept(side: Side) -> Frame:
    """The rows of a side that are kept."""
    frames = [frame for frame in side.buffer.frames() if len(frame)]
    if frames:
        return concat_frames(frames)
    nothing = np.zeros(0, np.int64)
    payload = {PAYLOAD + field.name: pa.array([], field.type) for field in side.schema or ()}
    return Frame.of(
        {
            "lead": nothing.astype(np.uint64),
            "key_check": nothing,
            "at": nothing,
            "seq": nothing,
            **payload,
        },
        0,
    )


def messages_in(frame: Frame) -> pa.Table:
    """The messages that kept rows are, with the columns of their input."""
    return pa.table(
        {
            name.removeprefix(PAYLOAD): to_arrow(frame[name])
            for name in frame.names
            if name.startswith(PAYLOAD)
        }
    )

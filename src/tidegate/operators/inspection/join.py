"""Inspection of a join: the rows of its sides, their windows, and counts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.errors import InputError
from tidegate.instants import MAX, MIN, Instant, instant
from tidegate.kernel.frame import Frame, concat_frames, to_arrow, values_of
from tidegate.operators.inspection.key_identity import key_identity
from tidegate.operators.join.operator import WindowedJoin
from tidegate.operators.join.output import PAYLOAD
from tidegate.operators.join.side import SESSION_KEY, Side
from tidegate.operators.progress import PANE_COUNTERS, ROW_COUNTERS, late_by_reason
from tidegate.spec.join import SIDES
from tidegate.spec.operator import ordinal_of


class JoinInspection:
    """Read-only access to the rows, windows and counts of a join."""

    operator: WindowedJoin

    @property
    def watermarks(self) -> tuple[int | None, int | None]:
        """The watermarks of the left and of the right side."""
        left, right = (
            None if side.watermark == MIN else side.watermark for side in self.operator.sides
        )
        return left, right

    @property
    def output_watermarks(self) -> dict[str, int]:
        """The watermarks that may be forwarded downstream, by time column of the output."""
        return self.operator.output_watermarks

    def stats(self) -> dict[str, Any]:
        """Sizes and counters: rows of both sides, runs, bytes, events by lateness class, pairs by
        timing, late rows by reason.
        """
        counters = self.operator.progress.counters
        names = (*ROW_COUNTERS, "markers", *PANE_COUNTERS)
        found = {name: counters[name] for name in names} | self.operator.watermark_tracker.stats()
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
        join_key: Any = None,
    ) -> pa.Table:
        """The messages of a side from (start, start_offset) to (end, end_offset), both included.

        `key` selects the messages of a session key, `join_key` those with these equal fields.
        Without a session key of its own, a join takes the equal fields as `key` too.
        """
        own, frame = self._held(side, key, join_key)
        at = frame.ints("position") if own.is_timed else self._offsets(own, frame)
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
        join_key: Any = None,
    ) -> list[dict[str, Any]]:
        """The windows of a side that overlap a range, sorted, each with its number of messages.

        `key` and `join_key` select the messages as in `get_messages`. Within time bounds, every
        message of the other side has its own window: the range of times that its partners have. A
        tuple join has one window per side, from its first to its last offset.
        """
        own, frame = self._held(side, key, join_key)
        low, high = self._range(start, end)
        found = self.operator.matching.windows(own.number, frame)
        wanted = (found.ints("start") <= high) & (found.ints("end") > low)
        found = found.where(wanted)
        found = found.take(np.lexsort((found.ints("end"), found.ints("start"))))
        bounds = self.operator.renderer().bounds
        starts, ends = (values_of(bounds(found.ints(name))) for name in ("start", "end"))
        counts = found.ints("count").tolist()
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

    def _held(self, side: int | str, key: Any, join_key: Any) -> tuple[Side, Frame]:
        """A side and its rows in state; only those of the keys, if given."""
        own, spec = self.operator.sides[ordinal_of(SIDES, side)], self.operator.spec
        frame = kept(own)
        fields = ("key_hash" if "key_hash" in frame else "equal_hash", "key_check")
        session = fields if spec.session_on == spec.on else SESSION_KEY
        for value, on, columns, noun in (
            (key, spec.session_on, session, "key fields"),
            (join_key, spec.on, fields, "equal fields"),
        ):
            if value is not None and len(frame):
                names = [pair[own.number] for pair in on]
                identity = key_identity(value, names, self._schema(own), noun, own.hasher)
                for name, word in zip(columns, identity, strict=True):
                    frame = frame.where(frame.ints(name) == word)
        return own, frame

    @staticmethod
    def _schema(own: Side) -> pa.Schema:
        if own.schema is None:
            raise InputError(
                f"the {SIDES[own.number]} side has no messages yet, so its columns are unknown."
                " Hint: give `schemas` to embedded()"
            )
        return own.schema


def kept(side: Side) -> Frame:
    """The rows of a side in state."""
    frames = [frame for frame in side.buffer.frames() if len(frame)]
    if frames:
        return concat_frames(frames)
    nothing = np.zeros(0, np.int64)
    payload = {PAYLOAD + field.name: pa.array([], field.type) for field in side.schema or ()}
    return Frame.of(
        {
            "equal_hash": nothing.astype(np.uint64),
            "key_check": nothing,
            "position": nothing,
            "seq": nothing,
            **payload,
        },
        0,
    )


def messages_in(frame: Frame) -> pa.Table:
    """The messages of rows in state, with the columns of their input."""
    return pa.table(
        {
            name.removeprefix(PAYLOAD): to_arrow(frame[name])
            for name in frame.names
            if name.startswith(PAYLOAD)
        }
    )

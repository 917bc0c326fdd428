"""The slice buffer: rows of incomplete windows, kept in slices until the window completes.

When the watermark passes the end of a window, its slices are merged into cells.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from tidegate.instants import MAX
from tidegate.kernel.accumulations.protocol import Rows
from tidegate.kernel.frame import Frame, concat_frames, constant, search_sorted
from tidegate.kernel.groups import Groups
from tidegate.kernel.keys import KEY
from tidegate.kernel.storage.run_store import Adapt
from tidegate.kernel.windows.assigners import Aligned, Assigned
from tidegate.operators.aggregate.aggregate_set import AggregateSet
from tidegate.operators.aggregate.collector import Collector
from tidegate.operators.aggregate.context import OperatorContext
from tidegate.operators.aggregate.output_time import held_by, hold_columns
from tidegate.operators.aggregate.slices import Bounds, Slices
from tidegate.operators.aggregate.two_stacks import TwoStacks
from tidegate.operators.ingest.delivery import Delivery, KeyGroups
from tidegate.operators.output import class_names
from tidegate.spec.operator import AggregateSpec


def partials_of(
    aggregates: AggregateSet, spec: AggregateSpec, delivery: Delivery, grouped: KeyGroups
) -> tuple[Frame, np.ndarray | None, str]:
    """Partial aggregates by group, the rows that a user function refused, and why."""
    groups = grouped.groups
    partials, failed, why = aggregates.lift(
        Rows(delivery.table, delivery.time, delivery.seq, delivery.weight), groups
    )
    columns = {
        **dict(zip(KEY, grouped.hashes, strict=True)),
        **grouped.keys,
        "row_count": groups.counts if delivery.weight is None else groups.sum(delivery.weight),
        **held_by(spec.options.timestamp, delivery.position, delivery.is_on_time, groups),
        **partials,
    }
    return Frame(columns, groups.n), failed, why


class SliceBuffer:
    """The incomplete windows of an operator whose trigger fires by the watermark only."""

    def __init__(self, context: OperatorContext, assigner: Aligned) -> None:
        self._context = context
        self._assigner = assigner
        self.slices = Slices(
            context.store, context.aggregates, context.spec.options.timestamp, context.hasher
        )
        self._shared = TwoStacks(self.slices.merge, self.slices.frames)
        self._windows: dict[Bounds, list[Bounds]] = {}
        """The open windows of each slice."""

    def take(self, delivery: Delivery, out: Collector) -> Assigned:
        """Buffer the rows of open windows; returns the entries of windows that are complete."""
        watermark, x = self._context.progress.watermark, delivery.position
        start, end = self._assigner.slice_of(x)
        if self._assigner.is_sliced:
            is_open = self._assigner.last_end(x) > watermark
            complete = np.flatnonzero(start < watermark)
            late = self._assigner.assign(x[complete])
            done = late.end <= watermark
            rest = Assigned(complete[late.row[done]], late.start[done], late.end[done])
        else:
            inside = start < end
            is_open = (end > watermark) & inside
            complete = np.flatnonzero((end <= watermark) & inside)
            rest = Assigned(complete, start[complete], end[complete])
        self._append(delivery, is_open, out)
        return rest

    def _append(self, delivery: Delivery, is_open: np.ndarray, out: Collector) -> None:
        """Keep the rows that are in an open window."""
        context, x = self._context, delivery.position
        grouped = delivery.grouped(context.spec.input.key, self._assigner.numbers_of(x), is_open)
        if not grouped.kept:
            return
        frame, failed, why = partials_of(context.aggregates, context.spec, delivery, grouped)
        if failed is not None:
            self._refuse(delivery, np.flatnonzero(failed & is_open), why, out)
            self._append(delivery.where(~failed), is_open[~failed], out)
            return
        slices = (column.tolist() for column in self._assigner.slice_of(x[grouped.rows]))
        for bounds, (at, until) in zip(
            zip(*slices, strict=True), pairwise(grouped.bounds), strict=True
        ):
            self._add(bounds, frame.slice(at, until))

    def take_partials(self, pieces: Sequence[Frame]) -> None:
        """Buffer pre-aggregated on-time rows; the pieces are sorted by slice and key."""
        by_slice: dict[Bounds, list[Frame]] = {}
        for piece in pieces:
            starts, ends = piece.ints("start"), piece.ints("end")
            breaks = np.flatnonzero(starts[1:] != starts[:-1]) + 1
            frame = self._context.received(piece).drop(("start", "end"))
            for at, until in pairwise([0, *breaks.tolist(), len(piece)]):
                by_slice.setdefault((int(starts[at]), int(ends[at])), []).append(
                    frame.slice(at, until)
                )
        for bounds, frames in sorted(by_slice.items()):
            self._add(bounds, self.slices.merge(frames))

    def _add(self, bounds: Bounds, frame: Frame) -> None:
        if bounds not in self._windows:
            watermark = self._context.progress.watermark
            self._context.progress.counters["windows_opened"] += 1
            self._windows[bounds] = [
                w for w in self._assigner.windows_of_slice(*bounds) if w[1] > watermark
            ]
        self.slices.append(bounds, frame)
        self._shared.patch(bounds, frame)

    def _refuse(self, delivery: Delivery, rows: np.ndarray, why: str, out: Collector) -> None:
        bounds = (np.arange(len(rows)), *self._assigner.slice_of(delivery.position[rows]))
        out.late_rows(
            delivery, rows, "accumulation_failed", class_names(delivery.verdict[rows]), bounds, why
        )

    def complete(self, watermark: int) -> list[Frame]:
        """Remove and return the cells of all windows that the watermark completes, by end."""
        due = sorted(
            {w for windows in self._windows.values() for w in windows if w[1] <= watermark},
            key=lambda w: (w[1], w[0]),
        )
        cells = []
        for window in due:
            pieces = [b for b in sorted(self._windows) if window[0] <= b[0] and b[1] <= window[1]]
            merged = (
                self._shared.window(pieces)
                if self._assigner.is_sliced
                else self.slices.merged(pieces)
            )
            cells.append(self._as_cells(window, merged))
        for bounds, windows in list(self._windows.items()):
            left = [w for w in windows if w[1] > watermark]
            self._windows[bounds] = left
            if not left:
                self.slices.drop(bounds)
                del self._windows[bounds]
        return cells

    def retype(self, aggregates: AggregateSet, retyped: Callable[[Frame], Frame]) -> None:
        """Convert the slices to the types of other aggregates, and drop merges of the old types."""
        self.slices.retype(aggregates, retyped)
        self._shared = TwoStacks(self.slices.merge, self.slices.frames)

    def next_end(self) -> int:
        """The end of the open window that ends first."""
        return min(
            (window[1] for windows in self._windows.values() for window in windows), default=MAX
        )

    def oldest_start(self) -> int:
        """The start of the oldest open window."""
        return min(
            (window[0] for windows in self._windows.values() for window in windows), default=MAX
        )

    def waiting(self, limit: int, rows: int) -> tuple[list[tuple[Bounds, int | None]], int]:
        """The open windows that end first with their numbers of keys, and how many are open.

        Keys are counted while that reads at most `rows` rows; other windows have None.
        """
        windows = {window for found in self._windows.values() for window in found}
        slices = sorted(self._windows)
        counted: list[tuple[Bounds, int | None]] = []
        for window in heapq.nsmallest(limit, windows, key=lambda bounds: (bounds[1], bounds[0])):
            pieces = [
                b
                for b in slices[bisect_left(slices, window[:1]) : bisect_left(slices, (window[1],))]
                if b[1] <= window[1]
            ]
            sizes = [size for piece in pieces for size in self.slices.sizes(piece)]
            if len(sizes) == 1:
                counted.append((window, sizes[0]))
            elif sum(sizes) > rows:
                counted.append((window, None))
            else:
                rows -= sum(sizes)
                frames = [
                    frame.select(("key_hash", "key_check"))
                    for piece in pieces
                    for frame in self.slices.frames(piece)
                ]
                keys = concat_frames(frames)
                counted.append(
                    (window, Groups.by([keys.ints("key_hash"), keys.ints("key_check")]).n)
                )
        return counted, len(windows)

    def preview(self) -> list[Frame]:
        """The cells that the open windows would become; nothing is removed."""
        windows = sorted({w for windows in self._windows.values() for w in windows})
        merged = [
            (w, self.slices.merged([b for b, open_ in sorted(self._windows.items()) if w in open_]))
            for w in windows
        ]
        # Their triggers do not fire before completion, so the clock makes none of them due.
        cells = [self._as_cells(window, frame) for window, frame in merged]
        return [one.with_columns(clock_due=constant(np.int64(MAX), len(one))) for one in cells]

    def _as_cells(self, window: Bounds, merged: Frame) -> Frame:
        n = len(merged)
        bounds = {
            "start": constant(np.int64(window[0]), n),
            "end": constant(np.int64(window[1]), n),
        }
        identity = merged.select(["key_hash", "key_check"]).with_mapping(bounds)
        keys = dict(merged.select(self._context.key_columns).columns)
        partials = merged.select(self._context.aggregates.partial_columns)
        taken = merged.select(["row_count", *hold_columns(self._context.spec.options.timestamp)])
        return (
            self._context.fresh(identity, keys, partials.columns)
            .with_mapping(taken.columns)
            .with_columns(pending=merged.ints("row_count"))
        )

    def holds(self, window: Bounds, keys: Frame) -> np.ndarray:
        """Which of the keys have rows in an open window."""
        found = np.zeros(len(keys), bool)
        for bounds, windows in self._windows.items():
            if window in windows:
                for frame in self.slices.frames(bounds):
                    found |= search_sorted(frame, keys, ("key_hash", "key_check"))[1]
        return found

    def earliest_owed(self) -> int | None:
        """The earliest output time of the pending panes of open windows."""
        if not self._windows:
            return None
        ends = min(w[1] for windows in self._windows.values() for w in windows) - 1
        if self._context.spec.options.timestamp == "end_of_window":
            return ends
        held = [
            frame.ints("hold_time")[frame.ints("has_on_time")]
            for bounds in self._windows
            for frame in self.slices.frames(bounds)
        ]
        return min([ends, *(int(times.min()) for times in held if len(times))])

    def save(self) -> Any:
        return self.slices.save()

    def restore(self, document: Any, adapt: Adapt | None = None) -> None:
        self.slices.restore(document, adapt)
        watermark = self._context.progress.watermark
        self._windows = {
            b: [w for w in self._assigner.windows_of_slice(*b) if w[1] > watermark]
            for b in self.slices.bounds()
        }

"""Opening keeps rows of incomplete windows in slices until the watermark passes a window's end, and then hands the window over whole."""

from __future__ import annotations

from typing import Any

import numpy as np

from tidegate.instants import MAX
from tidegate.kernel.frame import Frame
from tidegate.kernel.groups import Groups
from tidegate.kernel.runs import search_sorted
from tidegate.kernel.windows import Aligned, Assigned
from tidegate.operators.core import Core
from tidegate.operators.delivery import Delivery
from tidegate.operators.output import class_names
from tidegate.operators.slices import Bounds, Slices


class OpenWindows:
    """The windows that no watermark has reached, for triggers that are quiet until then."""

    def __init__(self, core: Core, assigner: Aligned) -> None:
        self._core = core
        self._assigner = assigner
        self.slices = Slices(core.store, core.bundle, core.spec.options.timestamp)
        self._windows: dict[Bounds, list[Bounds]] = {}
        """The open windows of each slice."""

    def __len__(self) -> int:
        return len({window for windows in self._windows.values() for window in windows})

    def take(self, delivery: Delivery) -> Assigned:
        """Keep the rows for their open windows; what comes back is the part that belongs to windows that are complete already."""
        watermark = self._core.progress.watermark
        x = delivery.position
        if self._assigner.is_sliced:
            last = self._assigner.last_end(x)
            is_open = last > watermark
            closed = np.flatnonzero(self._assigner.slice_of(x)[0] < watermark)
            late = self._assigner.assign(x[closed])
            done = late.end <= watermark
            rest = Assigned(closed[late.row[done]], late.start[done], late.end[done])
        else:
            start, end = self._assigner.slice_of(x)
            is_open = (end > watermark) & (start < end)
            closed = np.flatnonzero((end <= watermark) & (start < end))
            rest = Assigned(closed, start[closed], end[closed])
        if is_open.all():
            self._append(delivery, x)
        elif is_open.any():
            kept = delivery.where(is_open)
            self._append(kept, kept.position)
        return rest

    def _append(self, delivery: Delivery, x: np.ndarray) -> None:
        core = self._core
        start, end = self._assigner.slice_of(x)
        groups = Groups.by([delivery.kid, delivery.chk, start])
        partials, failed, why = core.bundle.lift(core.rows_of(delivery, np.arange(len(delivery))), groups)
        if failed is not None:
            self._refuse(delivery, np.flatnonzero(failed), start, end, why)
            rest = delivery.where(~failed)
            if len(rest):
                self._append(rest, rest.position)
            return
        first = groups.firsts
        frame = Frame(
            {
                "kid": delivery.kid[first],
                "chk": delivery.chk[first],
                **delivery.keys(core.spec.input.key, first),
                "n": groups.counts if delivery.weight is None else groups.sum(delivery.weight),
                **self._holds(delivery, groups),
                "newest_seq": groups.max(delivery.seq),
                **partials,
            },
            groups.n,
        )
        starts, ends = start[first], end[first]
        for bound in np.unique(starts).tolist():
            chosen = np.flatnonzero(starts == bound)
            order = chosen[np.argsort(frame.ints("kid")[chosen], kind="stable")]
            self._add((bound, int(ends[chosen[0]])), frame.take(order))

    def _add(self, bounds: Bounds, frame: Frame) -> None:
        if bounds not in self._windows:
            watermark = self._core.progress.watermark
            self._core.progress.counters["windows_opened"] += 1
            self._windows[bounds] = [w for w in self._assigner.windows_of_slice(*bounds) if w[1] > watermark]
        self.slices.append(bounds, frame)

    def _holds(self, delivery: Delivery, groups: Groups) -> dict[str, np.ndarray]:
        kind = self._core.spec.options.timestamp
        x, good = delivery.position, delivery.is_on_time
        ontime = np.ones(groups.n, bool) if good.all() else groups.any(good)
        if kind == "end_of_window":
            return {"ontime": ontime, "held": np.ones(groups.n, bool), "hold": np.zeros(groups.n, np.int64)}
        best = groups.min(np.where(good, x, MAX)) if kind == "earliest" else groups.max(np.where(good, x, -MAX))
        return {"ontime": ontime, "held": ontime, "hold": best}

    def _refuse(self, delivery: Delivery, rows: np.ndarray, start: np.ndarray, end: np.ndarray, why: str) -> None:
        bounds = (np.arange(len(rows)), start[rows], end[rows])
        self._core.late_rows(delivery, rows, "accumulation_failed", class_names(delivery.verdict[rows]), bounds, why)

    def complete(self, watermark: int) -> list[Frame]:
        """The cells of all windows whose end the watermark has reached, by end; they leave this place."""
        due = sorted({w for windows in self._windows.values() for w in windows if w[1] <= watermark}, key=lambda w: (w[1], w[0]))
        cells = []
        for window in due:
            merged = self.slices.merged([b for b, windows in sorted(self._windows.items()) if window in windows])
            if merged is not None:
                cells.append(self._as_cells(window, merged))
        for bounds, windows in list(self._windows.items()):
            left = [w for w in windows if w[1] > watermark]
            self._windows[bounds] = left
            if not left:
                self.slices.drop(bounds)
                del self._windows[bounds]
        return cells

    def preview(self) -> list[Frame]:
        """What the open windows would be as cells; nothing leaves."""
        windows = sorted({w for windows in self._windows.values() for w in windows})
        merged = [(w, self.slices.merged([b for b, open_ in sorted(self._windows.items()) if w in open_])) for w in windows]
        return [self._as_cells(window, frame) for window, frame in merged if frame is not None]

    def _as_cells(self, window: Bounds, merged: Frame) -> Frame:
        n = len(merged)
        bounds = {"start": np.full(n, window[0]), "end": np.full(n, window[1])}
        identity = merged.select(["kid", "chk"]).with_mapping(bounds)
        keys = dict(merged.select(self._core.key_columns).columns)
        taken = merged.select(["n", "ontime", "held", "hold", "newest_seq", *self._core.bundle.partial_columns])
        return self._core.fresh(identity, keys).with_mapping(taken.columns).with_columns(pending=merged.ints("n"))

    def holds(self, window: Bounds, keys: Frame) -> np.ndarray:
        """Which of the keys have something in an open window."""
        found = np.zeros(len(keys), bool)
        for bounds, windows in self._windows.items():
            if window in windows:
                for frame in self.slices.frames(bounds):
                    found |= search_sorted(frame, keys, ("kid", "chk"))[1]
        return found

    def earliest_owed(self) -> int | None:
        """The earliest output time among the panes that open windows owe."""
        if not self._windows:
            return None
        if self._core.spec.options.timestamp != "earliest":
            return min(w[1] for windows in self._windows.values() for w in windows) - 1
        lows = [int(frame.ints("hold").min()) for bounds in self._windows for frame in self.slices.frames(bounds)]
        return min(lows)

    def save(self) -> Any:
        return self.slices.save()

    def restore(self, document: Any) -> None:
        self.slices.restore(document)
        watermark = self._core.progress.watermark
        self._windows = {b: [w for w in self._assigner.windows_of_slice(*b) if w[1] > watermark] for b in self.slices.bounds()}

"""Firing turns cells whose trigger is ready, or whose time is over, into panes, and takes back what
they replace.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from tidegate.instants import MAX
from tidegate.kernel.frame import Column, Frame, concat_frames, constant, equal_rows, squeezed
from tidegate.operators.aggregate.cell_values import CellValues
from tidegate.operators.aggregate.context import Core
from tidegate.operators.output import EARLY, LATE, ON_TIME, texts
from tidegate.spec.triggers import contains_refire
from tidegate.spec.windows import Axis

_MUTABLE = ("pending", "ontime", "held", "index", "ns", "done", "emitted", "fired_seq")
_LAST = ("last_pane", "last_ns", "last_timing", "last_time")


class Firing:
    """Fires cells of one operator."""

    def __init__(self, core: Core, contents: CellValues) -> None:
        self._core = core
        self._contents = contents
        self._refires = contains_refire(core.spec.firing)
        self._static = core.spec.window.create == "static"

    def settle(
        self,
        cells: Frame,
        state: dict[str, np.ndarray],
        position: np.ndarray | None = None,
        *,
        finishing: bool = False,
    ) -> Frame:
        """Fire what is ready, close what has expired, and return the cells that live on."""
        core = self._core
        if position is None:
            end = cells.ints("end")
            if (end != end[:1]).any():
                order = np.lexsort((cells.ints("start"), end))
                cells, state = (
                    cells.take(order),
                    {name: column[order] for name, column in state.items()},
                )
            # After everything that single elements of the same delivery fired.
            position = np.full(len(cells), core.progress.seq)
        open_ = ~cells.ints("closed")
        context = core.context(cells, cells.ints("pending"))
        expiring = (
            np.full(len(cells), True)
            if finishing
            else core.expired(cells.ints("expiry"), core.watermark_of(cells))
        )
        ready = core.machine.ready(state, context) & open_
        again = (
            core.machine.refires(state, context) if self._refires else np.zeros(len(cells), bool)
        )
        core.machine.fire(state, ready, context)
        finished = core.machine.finished(state)
        wanted = self._wanted(cells, ready, again)
        if core.spec.options.closing == "always":
            wanted |= ready & expiring
        cells, emitted = self._emit(cells, ready, wanted, finished | expiring, position)
        cells = self._close(cells, expiring & open_ & ~emitted, position)
        if finished.any():
            cells = self._shut(cells, finished)
        if expiring.any():
            keep = ~expiring
            if core.metadata is not None and core.spec.window.axis is Axis.ORDINAL:
                core.metadata.forget(cells.where(expiring))
            self._contents.expired(cells.where(expiring))
            core.progress.counters["windows_closed"] += int(expiring.sum())
            cells, state = cells.where(keep), {name: column[keep] for name, column in state.items()}
        return core.due(cells, state)

    def push_out(self, cells: Frame, position: int) -> None:
        """Fire what the cells hold as their last pane: retention has no room for them any more."""
        held = ~cells.ints("closed")
        if self._core.spec.options.closing != "always":
            held &= cells.ints("pending") > 0
        self._emit(cells, held, held, held, np.full(len(cells), position, np.int64))

    def retract(self, cells: Frame, position: np.ndarray) -> None:
        """Take back the standing panes of windows that a merge replaces."""
        rows = (
            np.flatnonzero(cells.ints("emitted"))
            if self._core.spec.mode == "retracting"
            else np.zeros(0, np.int64)
        )
        if len(rows):
            self._core.out.panes.append(self._retractions(cells.take(rows), position[rows]))

    def put_out(
        self,
        panes: Frame,
        standing: Frame,
        values: dict[str, pa.Array],
        timing: np.ndarray,
        position: np.ndarray,
        given: np.ndarray,
    ) -> None:
        """Give panes that were made all at once, each after the retraction of what stands before
        it.
        """
        self.retract(standing.where(given), position[given])
        shown = panes.where(given)
        self._show(
            shown,
            {n: c.filter(pa.array(given)) for n, c in values.items()},
            timing[given],
            np.zeros(len(shown), bool),
            position[given],
        )

    def owed(self, cells: Frame) -> np.ndarray:
        """The output time of the pane that each cell still owes; for what came late that is the
        moment the window expires.
        """
        last = cells.ints("expiry")
        return np.where(
            cells.ints("held"), self.output_time(cells), np.where(last == MAX, MAX, last - 1)
        )

    def _wanted(self, cells: Frame, firing: np.ndarray, again: np.ndarray) -> np.ndarray:
        """Which firings give a pane: empty ones do not, unless the options say so, nor repetitions,
        unless an interval wants them `again`.
        """
        core = self._core
        fresh = cells.ints("pending") > 0
        content = fresh if core.spec.mode == "discarding" else cells.ints("n") > 0
        completing = self._complete(cells) & ~cells.ints("done")
        rule = {"always": np.ones(len(cells), bool), "if_nonempty": content, "if_updated": fresh}[
            core.spec.options.on_time
        ]
        if self._static:
            rule = np.ones(len(cells), bool)
        return firing & np.where(completing, rule, fresh | (again & content))

    def _close(self, cells: Frame, closing: np.ndarray, position: np.ndarray) -> Frame:
        """The last pane of windows that expire: what has not been fired, or an empty pane where the
        options want one.
        """
        core = self._core
        fresh = closing & (cells.ints("pending") > 0)
        if core.spec.options.closing == "never":
            unfired = cells.take(np.flatnonzero(fresh))
            core.progress.counters["unfired"] += (
                int(unfired.ints("pending").sum()) if len(unfired) else 0
            )
            core.late_windows(
                unfired,
                "unfired",
                texts("the window expired before its trigger fired", len(unfired)),
            )
            return cells
        wanted = closing if core.spec.options.closing == "always" else fresh
        if core.spec.options.on_time == "always":
            # The window completes and expires in one step without its trigger: its on-time pane is
            # due all the same.
            wanted = wanted | (closing & (self._timing(cells) == ON_TIME) & cells.ints("emitted"))
        return self._emit(cells, wanted, wanted, wanted, position)[0]

    def _shut(self, cells: Frame, finished: np.ndarray) -> Frame:
        """A finished trigger closes the window: what comes later goes to `late`; only a tombstone
        is kept.
        """
        self._contents.closed(cells.where(finished & ~cells.ints("closed")))
        return cells.with_columns(
            closed=cells.ints("closed") | finished,
            n=np.where(finished, 0, cells.ints("n")),
            pending=np.where(finished, 0, cells.ints("pending")),
        )

    def _complete(self, cells: Frame) -> np.ndarray:
        return np.asarray(cells.ints("end") <= self._core.watermark_of(cells))

    def _timing(self, cells: Frame) -> np.ndarray:
        complete = self._complete(cells)
        behind = (cells.ints("end") <= self._core.before_of(cells)) & ~cells.ints("ontime")
        return np.where(
            ~complete, EARLY, np.where(cells.ints("done") | behind, LATE, ON_TIME)
        ).astype(np.int8)

    def _emit(
        self,
        cells: Frame,
        firing: np.ndarray,
        wanted: np.ndarray,
        last: np.ndarray,
        position: np.ndarray,
    ) -> tuple[Frame, np.ndarray]:
        """Panes for the wanted cells; all that fire forget what was new. The second answer says who
        gave a pane.
        """
        if not firing.any():
            return cells, np.zeros(len(cells), bool)
        timing = self._timing(cells)
        rows = np.flatnonzero(wanted)
        given = np.zeros(len(cells), bool)
        columns = {name: cells.ints(name).copy() for name in (*_MUTABLE, *_LAST)}
        others: dict[str, Column] = {}
        if len(rows):
            chosen = cells.where(wanted)
            values = self._contents.values(chosen)
            if self._core.spec.options.fire_only_updated:
                changed = ~self._unchanged(chosen, values)
                chosen, rows = chosen.where(changed), rows[changed]
                values = {name: column.filter(pa.array(changed)) for name, column in values.items()}
            given[rows] = True
            self._panes(chosen, values, timing[rows], last[rows], position[rows])
            self._remember(columns, rows, chosen, timing[rows])
            if self._core.keeps_fired and len(rows):
                others.update(self._kept(cells, rows, values))
        self._forget_new(cells, columns, firing)
        if self._core.spec.mode == "discarding":
            others.update(self._contents.emptied(cells, firing))
        updated = cells.with_mapping(
            {**{name: squeezed(column) for name, column in columns.items()}, **others}
        )
        return self._contents.after(updated, given), given

    def _remember(
        self, columns: dict[str, np.ndarray], rows: np.ndarray, chosen: Frame, timing: np.ndarray
    ) -> None:
        """What the panes just given mean for the next ones."""
        index, ns = columns["index"], columns["ns"]
        columns["last_pane"][rows] = index[rows]
        columns["last_ns"][rows] = np.where(timing == EARLY, -1, ns[rows])
        columns["last_timing"][rows] = timing
        columns["last_time"][rows] = self.output_time(chosen)
        index[rows] += 1
        ns[rows] += timing != EARLY
        columns["emitted"][rows] = True

    def _forget_new(self, cells: Frame, columns: dict[str, np.ndarray], firing: np.ndarray) -> None:
        columns["pending"][firing] = 0
        columns["ontime"][firing] = False
        columns["held"][firing] = False
        columns["done"][firing & self._complete(cells)] = True
        columns["fired_seq"][firing] = cells.ints("newest_seq")[firing]

    def _kept(
        self, cells: Frame, rows: np.ndarray, values: dict[str, pa.Array]
    ) -> dict[str, Column]:
        """The fired values of all cells, with those of the given rows replaced."""
        if len(rows) == len(cells):
            return {f"v.{name}": column for name, column in values.items()}
        pick = np.arange(len(cells))
        pick[rows] = len(cells) + np.arange(len(rows))
        new = Frame({f"v.{name}": column for name, column in values.items()}, len(rows))
        return dict(concat_frames([cells.select(new.names), new]).take(pick).columns)

    def _unchanged(self, cells: Frame, values: dict[str, pa.Array]) -> np.ndarray:
        same = cells.ints("emitted").copy()
        for name, column in values.items():
            same &= equal_rows(cells[f"v.{name}"], column)
        return same

    def output_time(self, cells: Frame) -> np.ndarray:
        """The time of the pane that a cell would put out now."""
        end = cells.ints("end")
        last = np.where(end == MAX, MAX, end - 1)
        if self._core.spec.options.timestamp == "end_of_window":
            return last
        return np.where(cells.ints("ontime"), cells.ints("hold"), last)

    def _panes(
        self,
        cells: Frame,
        values: dict[str, pa.Array],
        timing: np.ndarray,
        last: np.ndarray,
        position: np.ndarray,
    ) -> None:
        self.retract(cells, position)
        if len(cells):
            self._show(cells, values, timing, last, position)

    def _show(
        self,
        cells: Frame,
        values: dict[str, pa.Array],
        timing: np.ndarray,
        last: np.ndarray,
        position: np.ndarray,
    ) -> None:
        core = self._core
        self._count(timing)
        index = cells.ints("index")
        core.out.panes.append(
            self._frame(
                cells,
                values,
                position,
                op=1,
                timing=timing,
                pane=index,
                ns=np.where(timing == EARLY, -1, cells.ints("ns")),
                first=index == 0,
                last=last,
                time=self.output_time(cells),
            )
        )

    def _retractions(self, cells: Frame, position: np.ndarray) -> Frame:
        self._core.progress.counters["retractions"] += len(cells)
        values = {name: cells[f"v.{name}"] for name in self._core.bundle.result_types}
        return self._frame(
            cells,
            values,
            position,
            op=-1,
            timing=cells.ints("last_timing"),
            pane=cells.ints("last_pane"),
            ns=cells.ints("last_ns"),
            first=cells.ints("last_pane") == 0,
            last=np.zeros(len(cells), bool),
            time=cells.ints("last_time"),
        )

    def _frame(
        self,
        cells: Frame,
        values: Mapping[str, Column],
        position: np.ndarray,
        *,
        op: int,
        **columns: np.ndarray,
    ) -> Frame:
        core, n = self._core, len(cells)
        return Frame(
            {
                **{
                    name: cells[name]
                    for name in ("key_hash", "key_check", *core.key_columns, "start", "end")
                },
                "op": constant(np.int8(op), n),
                **{name: squeezed(column) for name, column in columns.items()},
                **{f"a.{name}": column for name, column in values.items()},
                "watermark": np.broadcast_to(
                    np.asarray(
                        (
                            core.watermark_of(cells)
                            if core.keys is not None
                            else core.progress.watermark
                        ),
                        np.int64,
                    ),
                    n,
                ),
                "emitted_at": constant(np.int64(core.progress.now), n),
                "position": position,
            },
            n,
        )

    def _count(self, timing: np.ndarray) -> None:
        early, on_time, late = np.bincount(timing, minlength=3).tolist()
        self._core.progress.counters.update(
            panes_early=early, panes_on_time=on_time, panes_late=late
        )

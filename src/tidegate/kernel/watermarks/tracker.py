"""The source tracker: the sources of one input (partitions or writers) and their watermarks.

It records what each source has promised and when it was last active.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tidegate.errors import SpecError, WatermarkError
from tidegate.instants import MAX, MIN, clamp, format_duration, saturating_add
from tidegate.kernel.watermarks.coalescer import (
    ACTIVE,
    GONE,
    IDLE,
    OURS,
    STATUS,
    Released,
    Rules,
    longer,
)


@dataclass(frozen=True, slots=True)
class SourceState:
    """The state of one source."""

    name: str
    status: str
    """`active`, `idle` or `ended`."""
    promise: int | None
    spoke_at: int
    """The clock at its last activity, or when it joined."""
    moved_at: int
    """The clock when its promise last advanced, or when it joined."""
    holds: bool
    """Whether it holds the watermark of its input back."""


class SourceTracker:
    """The coalescer of the sources of one input, with their names and clocks.

    A source joins with its first activity. The coalescer holds the promises; the arrays here are
    parallel to its arrays.
    """

    def __init__(
        self,
        *,
        idle_after: int | None = None,
        declared: Sequence[str] = (),
        forget_after: int | None = None,
        rules: Rules = OURS,
        now: int = 0,
        owner: str = "",
    ) -> None:
        for name, span in (("idle_after", idle_after), ("forget_after", forget_after)):
            if span is not None and span <= 0:
                raise SpecError(
                    f"`{name}` must be positive, got {format_duration(span)}. Hint: leave it out to"
                    " wait forever"
                )
        self.idle_after = idle_after
        self.forget_after = forget_after
        self.names: list[str] = []
        """The name of each source; empty for a free slot."""
        self.coalescer = rules.coalescer(0, self.names, owner)
        self.spoke_at = np.empty(0, np.int64)
        self.moved_at = np.empty(0, np.int64)
        self.since = now
        """The clock when the output last advanced, or at the start."""
        self._number: dict[str, int] = {}
        self._last_lookup: tuple[list[str], np.ndarray] = ([], np.empty(0, np.int64))
        """Cache of the last lookup: names and their numbers. Deliveries mostly have the same
        partitions in the same order.
        """
        self.join(declared, now)

    def __len__(self) -> int:
        """The number of sources that have not left."""
        return len(self.coalescer)

    @property
    def output(self) -> int:
        return self.coalescer.output

    @property
    def is_idle(self) -> bool:
        return self.coalescer.is_idle

    @property
    def steps_back(self) -> int:
        return self.coalescer.steps_back

    def __contains__(self, name: object) -> bool:
        return name in self._number

    def promise(
        self, names: Sequence[str], values: np.ndarray, now: int, *, repeats: bool = False
    ) -> None:
        """Advance the promises of sources, which also makes them active.

        `MIN` only makes a source active; with `repeats` so does a lower value than before.
        """
        unknown = (
            [name for name in names if name not in self._number]
            if self.coalescer.rules.strict
            else []
        )
        rows = self._rows(names, now)
        before = self.coalescer.promises[rows]
        try:
            self.coalescer.promise(rows, values, repeats=repeats)
        except WatermarkError:
            # A refused delivery must not add sources.
            self.leave(unknown)
            raise
        self.spoke_at[rows] = now
        self.moved_at[rows[self.coalescer.promises[rows] > before]] = now

    def idle(self, names: Sequence[str] | None, now: int) -> None:
        """Mark sources as idle; None stands for all known ones."""
        self.coalescer.idle(self._present() if names is None else self._rows(names, now))

    def wake(self, now: int) -> None:
        """Make all idle sources active."""
        rows = np.flatnonzero(self.coalescer.status == IDLE)
        self.coalescer.touch(rows)
        self.spoke_at[rows] = now

    def end(self, names: Sequence[str] | None, now: int) -> None:
        """End sources; None stands for all known ones."""
        self.coalescer.done(self._present() if names is None else self._rows(names, now))

    def join(self, names: Sequence[str], now: int) -> None:
        """Add sources; those that are known become active."""
        rows = self._rows(names, now)
        self.coalescer.touch(rows)
        self.spoke_at[rows] = now

    def leave(self, names: Sequence[str]) -> None:
        """Remove sources; a name that comes back is a new source."""
        self._forget(
            np.array(
                [self._number[name] for name in dict.fromkeys(names) if name in self._number],
                np.int64,
            )
        )

    def lift(self, value: int, now: int) -> None:
        """Raise the promises of all present and future sources that have not ended.

        This does not count as their activity.
        """
        before = self.coalescer.promises.copy()
        self.coalescer.lift(value)
        self.moved_at[self.coalescer.promises > before] = now

    def tick(self, now: int, spared: np.ndarray | None = None) -> None:
        """Advance the clock: sources that are silent for too long become idle or leave.

        Sources in `spared` are paused, so their silence counts from now on only.
        """
        if spared is not None:
            self.spoke_at[spared] = now
        idle_already = self.coalescer.status != ACTIVE
        if self.idle_after is not None:
            self.coalescer.idle(
                np.flatnonzero(~idle_already & (self.spoke_at <= clamp(now - self.idle_after)))
            )
        if self.forget_after is not None:
            silent = (self.coalescer.status != GONE) & (
                self.spoke_at <= clamp(now - self.forget_after)
            )
            # However far the clock jumps, a source becomes idle before it leaves, so that its
            # promise may be released.
            self._forget(
                np.flatnonzero(silent if self.idle_after is None else silent & idle_already)
            )

    @property
    def next_due(self) -> int:
        """The clock at which the next silent source becomes idle or leaves; `MAX` if none does."""
        status = self.coalescer.status
        silent = (
            status != GONE if self.idle_after is None else (status != GONE) & (status != ACTIVE)
        )
        spans = ((self.idle_after, status == ACTIVE), (self.forget_after, silent))
        found = [
            int(saturating_add(int(self.spoke_at[sources].min()), span))
            for span, sources in spans
            if span is not None and sources.any()
        ]
        return min(found, default=MAX)

    def release(self, now: int) -> Released:
        """The watermark and the idle status that are due."""
        released = self.coalescer.release()
        if released.watermark is not None:
            self.since = now
        return released

    @property
    def slowest(self) -> int | None:
        """The least promise of the active sources that have one; None if there is none."""
        promises = self.coalescer.promises[
            (self.coalescer.status == ACTIVE) & (self.coalescer.promises > MIN)
        ]
        return int(promises.min()) if len(promises) else None

    def beyond(self, instant: int) -> np.ndarray:
        """The active sources with a promise beyond an instant."""
        return np.flatnonzero(
            (self.coalescer.status == ACTIVE) & (self.coalescer.promises > instant)
        )

    def shift(self, by: int) -> None:
        """Exclude downtime from the silence of all sources."""
        self.spoke_at = saturating_add(self.spoke_at, by)

    def describe(self) -> list[SourceState]:
        """The state of each source."""
        rows = self._present()
        holds = np.zeros(len(self.names), bool)
        holds[self.coalescer.holders()] = True
        columns = (
            self.coalescer.status,
            self.coalescer.promises,
            self.spoke_at,
            self.moved_at,
            holds,
        )
        names = [self.names[row] for row in rows.tolist()]
        return [
            SourceState(
                name, STATUS[status], None if promise == MIN else promise, spoke_at, moved_at, held
            )
            for name, status, promise, spoke_at, moved_at, held in zip(
                names, *(column[rows].tolist() for column in columns), strict=True
            )
        ]

    def save(self) -> dict[str, Any]:
        return {
            "names": list(self.names),
            "spoke_at": self.spoke_at.tolist(),
            "moved_at": self.moved_at.tolist(),
            "since": self.since,
            "coalescer": self.coalescer.save(),
        }

    def restore(self, document: dict[str, Any]) -> None:
        self.coalescer.restore(document["coalescer"])
        self.names[:] = document["names"]
        self._number = {self.names[row]: row for row in self._present().tolist()}
        self._last_lookup = ([], np.empty(0, np.int64))
        self.spoke_at, self.moved_at = (
            np.array(document[name], np.int64) for name in ("spoke_at", "moved_at")
        )
        self.since = document["since"]

    def _present(self) -> np.ndarray:
        return np.flatnonzero(self.coalescer.status != GONE)

    def _rows(self, names: Sequence[str], now: int) -> np.ndarray:
        """The numbers of sources; unknown ones join."""
        try:
            return self._known(names)
        except KeyError:
            self._join([name for name in dict.fromkeys(names) if name not in self._number], now)
            return self._known(names)

    def _known(self, names: Sequence[str]) -> np.ndarray:
        if names != self._last_lookup[0]:
            self._last_lookup = (
                list(names),
                np.fromiter(map(self._number.__getitem__, names), np.int64, len(names)),
            )
        return self._last_lookup[1]

    def _join(self, names: Sequence[str], now: int) -> None:
        rows = self.coalescer.add(len(names))
        size = len(self.coalescer.status)
        self.names.extend([""] * (size - len(self.names)))
        for row, name in zip(rows.tolist(), names, strict=True):
            self.names[row] = name
            self._number[name] = row
        self.spoke_at, self.moved_at = longer(self.spoke_at, size), longer(self.moved_at, size)
        self.spoke_at[rows] = self.moved_at[rows] = now

    def _forget(self, rows: np.ndarray) -> None:
        if not len(rows):
            return
        self._last_lookup = ([], np.empty(0, np.int64))
        self.coalescer.remove(rows)
        for row in rows.tolist():
            del self._number[self.names[row]]
            self.names[row] = ""

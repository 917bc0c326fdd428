"""Histories: the steps of the windows of one key, from written panes, late rows and the state."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import pyarrow as pa

from tidegate.instants import MAX, MIN
from tidegate.operators.history.causes import PaneFacts, cause_of
from tidegate.operators.history.contributions import Delivered, are_countable, contributions
from tidegate.operators.history.facts import (
    Bounds,
    Contribution,
    Fired,
    History,
    Merged,
    Missed,
    OpenWindow,
    Step,
    Withdrawn,
)
from tidegate.operators.history.rows import (
    LateRow,
    PaneRow,
    Selection,
    last_marked,
    late_rows,
    of_key,
    pane_bounds,
    pane_rows,
)
from tidegate.operators.history.text import sentences
from tidegate.spec.aggregates import Count
from tidegate.spec.operator import AggregateSpec
from tidegate.spec.triggers import needs_all
from tidegate.spec.windows import Session


@dataclass(frozen=True)
class Recorded:
    """What is known about a pipeline: its written rows, and its operator."""

    panes: pa.Table
    late: pa.Table
    spec: AggregateSpec | None = None
    """None if only the output is known."""
    deliveries: Sequence[Delivered] = ()
    """The deliveries that are still at hand, to count the rows of each."""
    contributions: Sequence[Contribution] = ()
    """Counts of rows by delivery that are known otherwise."""
    open: Sequence[OpenWindow] = ()
    open_elsewhere: int = 0
    """The open windows of the key outside the range, if none is in it."""
    late_time: str | None = None
    """The time column of rows that were late for an operator before this one."""
    unit: str = "batch"
    watermark: int | None = None
    has_ended: bool = True
    """Whether the input has ended, or might have."""
    now: int | None = None
    ticks: bool = False
    notes: tuple[str, ...] = field(default=())


def history(recorded: Recorded, asked: Selection) -> History:
    """The history of the windows of a key in a range; one window, if the range is one."""
    spec = recorded.spec
    given, asked = asked, widened(asked, spec, recorded.panes, recorded.open)
    panes = pane_rows(recorded.panes, asked)
    time = None if spec is None else spec.input.time
    late = late_rows(recorded.late, asked, time, recorded.late_time)
    found = _Windows(asked, spec, panes, recorded)
    fired = [*found.pane_steps()]
    steps = [
        *(step for step in recorded.contributions if found.has(step.start, step.end)),
        *_named(found.contributions(recorded.deliveries), fired),
        *(step for row in late for step in found.missed(row)),
        *fired,
    ]
    # A delivery comes before the rows that it left out, and those before the panes that it fired.
    steps.sort(key=_moment)
    whole = History(
        key=asked.key,
        start=None if given.low == MIN else given.low,
        end=None if given.high == MAX else given.high,
        ticks=recorded.ticks,
        unit=recorded.unit,
        trigger="" if spec is None else str(spec.firing),
        mode="" if spec is None else spec.mode,
        allowed_lateness=None if spec is None else spec.lateness,
        axis="event_time" if spec is None else str(spec.window.axis),
        needs_all=spec is not None and needs_all(spec.firing),
        watermark=recorded.watermark,
        now=recorded.now,
        steps=tuple(steps),
        open=tuple(window for window in recorded.open if found.has(window.start, window.end)),
        notes=recorded.notes,
    )
    windows = {(step.start, step.end) for step in steps if step.kind != "late"}
    windows |= {(window.start, window.end) for window in whole.open}
    is_empty = not whole.steps and not whole.open
    whole = dataclasses.replace(
        whole,
        windows=tuple(sorted(windows)),
        others=_others(recorded, asked) if is_empty else (0, 0, 0),
    )
    return dataclasses.replace(whole, sentences=sentences(whole))


def widened(
    asked: Selection,
    spec: AggregateSpec | None,
    panes: pa.Table,
    held: Sequence[OpenWindow] = (),
) -> Selection:
    """A selection with all sessions that became a part of its own, or that those are a part of."""
    if spec is None or not isinstance(spec.window, Session) or asked.is_whole:
        return asked
    rest = {*pane_bounds(panes, asked), *((window.start, window.end) for window in held)}
    found = asked
    while inside := {bounds for bounds in rest if found.overlaps(*bounds)}:
        rest -= inside
        low, high = min(low for low, _ in inside), max(high for _, high in inside)
        found = dataclasses.replace(found, low=min(found.low, low), high=max(found.high, high))
    return found


def _named(steps: Iterable[Contribution], fired: Sequence[Step]) -> Iterator[Contribution]:
    """The rows of sessions that got their bounds later are marked."""
    became = {(step.start, step.end): step.batch or 0 for step in fired if isinstance(step, Merged)}
    for step in steps:
        is_early = (step.batch or 0) < became.get((step.start, step.end), MIN)
        yield dataclasses.replace(step, is_early=True) if is_early else step


def _others(recorded: Recorded, asked: Selection) -> tuple[int, int, int]:
    """What the key has outside the range: rows of panes, late rows, open windows."""
    return (
        of_key(recorded.panes, asked).num_rows,
        of_key(recorded.late, asked).num_rows,
        recorded.open_elsewhere,
    )


_ORDER = {"rows": 0, "late": 1}


def _moment(step: Step) -> tuple[int, int, int, int]:
    order = _ORDER.get(step.kind, 2)
    # Panes are in the order in which they were emitted.
    return (_rank(step.at), _rank(step.batch), order, step.start if order < 2 else 0)


def _rank(number: int | None) -> int:
    return MIN if number is None else number


class _Windows:
    """The windows of a selection and their panes."""

    def __init__(
        self,
        asked: Selection,
        spec: AggregateSpec | None,
        panes: Sequence[PaneRow],
        recorded: Recorded,
    ) -> None:
        self._asked, self._spec = asked, spec
        self._merges = spec is not None and isinstance(spec.window, Session)
        self._count = None if spec is None else count_column(spec)
        known = [(row.start, row.end) for row in panes]
        known += [(window.start, window.end) for window in recorded.open]
        # A range that is exactly one window means this one, not its neighbours that overlap it.
        self._exact = not self._merges and (asked.low, asked.high) in known
        self._panes = [row for row in panes if self.has(row.start, row.end)]
        self._open = [
            (window.start, window.end)
            for window in recorded.open
            if self.has(window.start, window.end)
        ]

        marked = map(last_marked, (recorded.panes, recorded.late))
        self._last_mark = max(marked) if recorded.has_ended else MAX
        """The last batch with a watermark: a pane without one before it fired too early for one."""
        numbers = enumerate(_batches(self._panes))
        self._last = {
            **{(row.start, row.end): number for number, (_, group) in numbers for row in group},
            **dict.fromkeys(self._open, MAX),
        }
        """By window, the number of the last batch in which it is there."""

    def has(self, start: int, end: int) -> bool:
        if self._exact:
            return (start, end) == (self._asked.low, self._asked.high)
        return self._asked.overlaps(start, end)

    def missed(self, row: LateRow) -> Iterator[Missed]:
        """The windows of the selection that a late row missed."""
        windows = [bounds for bounds in row.windows if self.has(*bounds)]
        if not row.windows:
            windows = [(MIN, MAX) if row.time is None else (row.time, row.time + 1)]
        behind = None if row.time is None or row.watermark is None else row.watermark - row.time
        # The allowed lateness of an operator before this one is not known here.
        lateness = self._spec.lateness if self._spec is not None and row.is_own else None
        for start, end in windows[:1]:
            yield Missed(
                start=start,
                end=end,
                at=row.at,
                batch=row.batch,
                watermark=row.watermark,
                time=row.time,
                lateness=row.lateness,
                reason=row.reason,
                detail=row.detail,
                behind=behind,
                beyond=(
                    None
                    if behind is None or lateness in {None, MAX}
                    else max(0, behind - (lateness or 0))
                ),
                windows=tuple(windows) if row.windows else (),
                row=row.row,
            )

    def contributions(self, deliveries: Sequence[Delivered]) -> Iterator[Contribution]:
        """The rows that each delivery added."""
        if self._spec is not None and deliveries and are_countable(self._spec):
            windows = [(row.start, row.end) for row in self._panes] + self._open
            yield from contributions(deliveries, self._spec, windows, self._asked)

    def pane_steps(self) -> Iterator[Step]:
        """Panes, merges and withdrawals, batch by batch."""
        last: dict[Bounds, PaneRow] = {}
        """The pane that readers see of each window."""
        replaced: dict[Bounds, list[PaneRow]] = {}
        """By session, the last panes of the sessions that it replaced."""
        for number, (_, group) in enumerate(_batches(self._panes)):
            yield from self._batch(group, last, replaced, number)

    def _batch(
        self,
        rows: Sequence[PaneRow],
        last: dict[Bounds, PaneRow],
        replaced: dict[Bounds, list[PaneRow]],
        number: int,
    ) -> Iterator[Step]:
        replacing, batch = _replaced(rows), {(row.start, row.end) for row in rows}
        taken: dict[Bounds, PaneRow] = {}
        withdrawn: list[Withdrawn] = []
        for place, row in enumerate(rows):
            bounds = (row.start, row.end)
            if row.is_retraction and place in replacing:
                taken[bounds] = row
            elif row.is_retraction:
                last.pop(bounds, None)
                into = self._successor(bounds, number, batch)
                withdrawn.append(_withdrawal(row, into))
                if into is not None:
                    replaced.setdefault(into, []).append(row)
            else:
                yield from self._merged(withdrawn)
                withdrawn = []
                retracted = taken.pop(bounds, None)
                former = retracted or last.get(bounds)
                parts = replaced.pop(bounds, []) if former is None else []
                yield self._fired(row, former, parts, retracts=retracted is not None)
                last[bounds] = row
        yield from self._merged(withdrawn)

    def _merged(self, withdrawn: Sequence[Withdrawn]) -> Iterator[Step]:
        """The withdrawals of a batch, each group after the merge that caused it."""
        for into in dict.fromkeys(step.into for step in withdrawn):
            of = [step for step in withdrawn if step.into == into]
            # The order of their retractions means nothing.
            of.sort(key=lambda step: (step.start, step.end))
            if into is not None:
                yield Merged(
                    start=into[0],
                    end=into[1],
                    at=of[0].at,
                    batch=of[0].batch,
                    watermark=of[0].watermark,
                    parts=tuple((step.start, step.end) for step in of),
                )
            yield from of

    def _successor(self, bounds: Bounds, number: int, batch: Iterable[Bounds]) -> Bounds | None:
        """The session that a withdrawn one is a part of, as far as it is known."""
        if not self._merges:
            return None
        later = (one for one, last in self._last.items() if last >= number)
        return _around(bounds, batch) or _around(bounds, later)

    def _fired(
        self, row: PaneRow, former: PaneRow | None, parts: Sequence[PaneRow], *, retracts: bool
    ) -> Fired:
        rows = self._new_rows(row.values, former, parts)
        cause, trigger = cause_of(
            PaneFacts(
                row.timing,
                row.end,
                row.watermark,
                rows,
                row.is_last,
                row.at,
                is_short=self._is_short(row),
                is_first=row.watermark is None and _rank(row.batch) <= self._last_mark,
            ),
            self._spec,
        )
        return Fired(
            start=row.start,
            end=row.end,
            at=row.at,
            batch=row.batch,
            watermark=row.watermark,
            pane=row.pane,
            timing=row.timing,
            cause=cause,
            trigger=trigger,
            values=row.values,
            changes=_changes(self._compared(former), row.values),
            rows=rows,
            retracts=retracts,
            is_first=row.is_first,
            is_last=row.is_last,
        )

    def _compared(self, former: PaneRow | None) -> Mapping[str, Any] | None:
        """The values that a pane changes: a pane of discarding mode stands for itself."""
        is_whole = self._spec is None or self._spec.mode != "discarding"
        return former.values if former is not None and is_whole else None

    def _is_short(self, row: PaneRow) -> bool:
        """Whether a window over messages has less than it can hold, as far as it is known."""
        if self._spec is None or self._count is None or self._spec.mode == "discarding":
            return False
        count = row.values.get(self._count)
        return count is not None and int(count) < row.end - max(0, row.start)

    def _new_rows(
        self, values: Mapping[str, Any], former: PaneRow | None, parts: Sequence[PaneRow]
    ) -> int | None:
        """The rows that came since the pane before, from the count of the pipeline."""
        if self._count is None or values.get(self._count) is None:
            return None
        count = int(values[self._count])
        if self._spec is not None and self._spec.mode == "discarding":
            return count
        before = [former] if former is not None else parts
        return count - sum(int(row.values[self._count] or 0) for row in before)


def _around(bounds: Bounds, windows: Iterable[Bounds]) -> Bounds | None:
    """The smallest other window that contains one."""
    low, high = bounds
    found = [one for one in windows if one[0] <= low and high <= one[1] and one != bounds]
    return min(found, key=lambda one: one[1] - one[0], default=None)


def _replaced(rows: Sequence[PaneRow]) -> set[int]:
    """The retractions of a batch that a pane of the same window follows, by place."""
    found: set[int] = set()
    open_: dict[Bounds, int] = {}
    for place, row in enumerate(rows):
        bounds = (row.start, row.end)
        if row.is_retraction:
            open_[bounds] = place
        elif bounds in open_:
            found.add(open_.pop(bounds))
    return found


def _batches(rows: Sequence[PaneRow]) -> Iterator[tuple[Any, list[PaneRow]]]:
    for place, group in groupby(rows, key=lambda row: (row.batch, row.at)):
        yield place, list(group)


def _withdrawal(row: PaneRow, into: Bounds | None) -> Withdrawn:
    return Withdrawn(
        start=row.start,
        end=row.end,
        at=row.at,
        batch=row.batch,
        watermark=row.watermark,
        pane=row.pane,
        timing=row.timing,
        values=row.values,
        into=into,
    )


def _changes(
    former: Mapping[str, Any] | None, values: Mapping[str, Any]
) -> dict[str, tuple[Any, Any]]:
    """The values that differ from the former ones."""
    before = former or {}
    return {
        name: (before.get(name), value)
        for name, value in values.items()
        if former is None or before.get(name) != value
    }


def count_column(spec: AggregateSpec) -> str | None:
    """The aggregate that counts the rows of a window."""
    plain: Iterable[str] = (
        name
        for name, one in spec.aggregates
        if isinstance(one, Count) and one.column is None and one.where is None and one.of is None
    )
    return next(iter(plain), None)

"""A buffer holds the rows of one side of a join, for rows of the other side to be met.

It is a few immutable runs, sorted by the layout, each with a mask of the rows that still count and
with *marks*: small columns that change, such as how many partners a row has. A delivery becomes a
run; runs of a size are merged, so that cost follows the delivery.

Contract
- `lead` is the identity of what must be equal, `at` the position (time or offset) that ranges go
  by. Other columns are the caller's.
- Rows below a horizon are gone, whatever their run still holds. The horizon never goes back.
  Several columns may have one.
- A place (run, position in it) is good until the next `add`, `expire` or `restore`.
- `save` writes what changed since the last one; a run is written once, after that only its mask and
  marks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.instants import MAX, MIN
from tidegate.kernel.frame import Column, Frame, concat_frames, constant, is_constant, to_arrow
from tidegate.kernel.groups import inverse, present
from tidegate.kernel.joins.ranges import NOTHING, Found, Index, Ordered, ordered, pairs
from tidegate.kernel.storage.run_store import Adapt, Places, StoredFrame
from tidegate.state.store import Store

LARGE_WINDOW = 10_000
"""From this many rows on a buffer is kept by what must be equal and not by position."""
_FAN = 4
_FULL_BYTES = 64 * 1024 * 1024
_DENSE = 4
"""Pairs are taken from whole columns of all runs where there are more than a quarter as many as
rows.
"""


@dataclass(slots=True, eq=False)
class _Run:
    body: StoredFrame
    keyed: bool
    """Whether it is sorted by lead first."""
    lows: dict[str, int]
    highs: dict[str, int]
    marks: dict[str, np.ndarray]
    alive: np.ndarray | None = None
    """Which rows still count; None where all do."""
    dead: int = 0
    index: Index | None = None
    sorted_by: np.ndarray | None = None
    """Where the run is sorted by position: the order by lead, and `index` is over that."""
    look_at: int = MIN
    """The horizon from which on it is worth looking how many rows are left."""
    touched: bool = True
    loaded: Frame | None = None
    """What was read from the store, until it is released."""

    @property
    def rows(self) -> int:
        return self.body.rows


@dataclass(slots=True)
class Query:
    """Rows that ask: where they are on the line, and the ranges of positions that they want, in the
    order of arrival.
    """

    by: Ordered
    low: np.ndarray
    high: np.ndarray

    def __len__(self) -> int:
        return len(self.low)


@dataclass(eq=False)
class Buffer:
    """The rows of one side; see the module's contract."""

    store: Store
    prefix: str
    marks: Mapping[str, Any] = field(default_factory=dict)
    """The columns that change, by name: what a new row has in them."""
    watched: Sequence[str] = ("at",)
    """The columns that have a horizon."""
    keyed: bool | None = None
    """Whether rows are kept by lead first; None where their number decides."""
    _runs: list[_Run] = field(default_factory=list)
    _next: int = 0
    horizons: dict[str, int] = field(default_factory=dict)
    is_large: bool = False

    def __post_init__(self) -> None:
        self.horizons = dict.fromkeys(self.watched, MIN)

    # What is held

    @property
    def runs(self) -> int:
        return len(self._runs)

    @property
    def nbytes(self) -> int:
        """What is held, decoded; with indexes and marks."""
        marks = sum(column.nbytes for run in self._runs for column in run.marks.values())
        return marks + sum(
            run.body.nbytes + (0 if run.index is None else run.index.nbytes) for run in self._runs
        )

    @property
    def held_bytes(self) -> int:
        """What the rows themselves take, decoded."""
        return sum(run.body.nbytes for run in self._runs)

    @property
    def is_keyed(self) -> bool:
        """Whether new rows are kept by lead first."""
        return self.is_large if self.keyed is None else self.keyed

    def __len__(self) -> int:
        """How many rows count."""
        return sum(int(self._counting(run).sum()) for run in self._runs)

    @property
    def is_empty(self) -> bool:
        return not self._runs or not len(self)

    def places(self, mask: Mapping[str, int] | None = None) -> Places:
        """All rows that count; those below one of the limits where some are given."""
        found = []
        for number, run in enumerate(self._runs):
            if mask is not None and all(run.lows[name] >= limit for name, limit in mask.items()):
                continue
            counts = self._counting(run)
            if mask is not None:
                counts &= self._below(run, mask)
            found.append((number, np.flatnonzero(counts)))
        return Places.of(found)

    def least(self, name: str, none: int) -> int:
        """The smallest value of a watched column over the rows that count."""
        best = none
        for run in self._runs:
            if run.lows[name] < best:
                values = self._ints(run, name)[self._counting(run)]
                best = min(best, int(values.min())) if len(values) else best
        return best

    def _counting(self, run: _Run) -> np.ndarray:
        counts = np.ones(run.rows, bool) if run.alive is None else run.alive.copy()
        for name, horizon in self.horizons.items():
            if run.lows[name] < horizon:
                counts &= self._ints(run, name) >= horizon
        return counts

    def counts(self, run: np.ndarray, at: np.ndarray) -> np.ndarray:
        """Which of the rows at some places count."""
        mask = np.ones(len(at), bool)
        for number in self._numbers(run):
            held = self._runs[number]
            if held.alive is not None or any(
                held.lows[name] < horizon for name, horizon in self.horizons.items()
            ):
                here = run == number
                mask[here] = self._counting(held)[at[here]]
        return mask

    # Changing it

    def add(self, frame: Frame, by: Ordered | None = None, **marks: np.ndarray) -> None:
        """Store rows, which come with `lead` and `at`, and with the marks that differ from those of
        a new row.
        """
        self.put(frame, by, **marks)
        self.tidy()

    def put(self, frame: Frame, by: Ordered | None = None, **marks: np.ndarray) -> Places:
        """The same, and where the rows are; nothing moves before `tidy`."""
        if not len(frame):
            return Places.of([])
        for name, start in self.marks.items():
            marks.setdefault(name, np.full(len(frame), start))
        self.is_large = (
            self.is_large or sum(run.rows for run in self._runs) + len(frame) > LARGE_WINDOW
        )
        if self.is_keyed:
            order = (by or ordered(frame.ints("lead"), frame.ints("at"))).order
        else:
            order = np.argsort(frame.ints("at"), kind="stable")
        self._append(frame.take(order), {name: column[order] for name, column in marks.items()})
        return Places(np.full(len(frame), len(self._runs) - 1), inverse(order))

    def remove(self, places: Places) -> None:
        """Rows stop counting."""
        for number in self._numbers(places.run):
            run = self._runs[number]
            alive = np.ones(run.rows, bool) if run.alive is None else run.alive.copy()
            alive[places.at[places.run == number]] = False
            run.alive, run.dead, run.touched = alive, int(run.rows - alive.sum()), True

    def compact(self) -> None:
        """Give the room of rows that do not count back."""
        for run in list(self._runs):
            counts = self._counting(run)
            if not counts.all():
                self._rewrite(run, counts)

    def expire(self, horizons: Mapping[str, int]) -> None:
        """Rows below a horizon are gone: whole runs at once, single rows when half of a run has
        gone.
        """
        changed = {name: limit for name, limit in horizons.items() if limit > self.horizons[name]}
        if not changed:
            return
        self.horizons.update(changed)
        for run in list(self._runs):
            if (
                any(run.highs[name] < limit for name, limit in changed.items())
                or run.dead == run.rows
            ):
                self._drop(run)
            elif max(changed.values()) >= run.look_at and any(
                run.lows[name] < limit for name, limit in changed.items()
            ):
                self._shrink(run)

    def _shrink(self, run: _Run) -> None:
        """Rewrite a run once half of it has gone; before that, rewriting costs more than it
        frees.
        """
        counts = self._counting(run)
        left = int(counts.sum())
        if 2 * left > run.rows:
            name = self.watched[0]
            # Rows go about evenly with the horizon.
            horizon = max(self.horizons[name], run.lows[name])
            run.look_at = min(MAX, horizon + (run.highs[name] - horizon) // 4)
        else:
            self._rewrite(run, counts)

    def _rewrite(self, run: _Run, counts: np.ndarray) -> None:
        """Keep some rows of a run only."""
        frame, marks = (
            self._frame(run).where(counts),
            {name: column[counts] for name, column in run.marks.items()},
        )
        at = self._runs.index(run)
        self._drop(run)
        if len(frame):
            self._append(frame, marks, keyed=run.keyed)
            self._runs.insert(at, self._runs.pop())

    def clear(self) -> None:
        for run in list(self._runs):
            self._drop(run)

    def rewrite(self, change: Adapt) -> None:
        """Change the frames of all runs, row by row; what they are sorted by stays."""
        for number, run in enumerate(list(self._runs)):
            frame, marks, alive = change(self._frame(run)), run.marks, run.alive
            self._drop(run)
            self._append(frame, marks, keyed=run.keyed)
            renewed = self._runs.pop()
            renewed.alive, renewed.dead = alive, run.dead
            self._runs.insert(number, renewed)

    def _append(
        self, frame: Frame, marks: dict[str, np.ndarray], *, keyed: bool | None = None
    ) -> None:
        body = StoredFrame.new(f"{self.prefix}/{self._next:08d}", frame)
        self._next += 1
        lows = {name: int(frame.ints(name).min()) for name in self.watched}
        highs = {name: int(frame.ints(name).max()) for name in self.watched}
        self._runs.append(_Run(body, self.is_keyed if keyed is None else keyed, lows, highs, marks))

    def _drop(self, run: _Run) -> None:
        if run.body.stored:
            self.store.delete(run.body.name + "/marks")
        run.body.delete(self.store)
        self._runs.remove(run)

    def tidy(self) -> None:
        """Merge the youngest runs while enough of them are of one size class; a full run stays as
        it is, but for rows that were removed.
        """
        for run in [run for run in self._runs if 2 * run.dead > run.rows]:
            self._rewrite(run, self._counting(run))
        while self._runs:
            tier, start = _tier(self._runs[-1].rows), len(self._runs)
            while (
                start
                and _tier(self._runs[start - 1].rows) <= tier
                and self._runs[start - 1].body.nbytes < _FULL_BYTES
            ):
                start -= 1
            if len(self._runs) - start < _FAN:
                return
            self._merge(self._runs[start:])

    def _merge(self, runs: list[_Run]) -> None:
        masks = [self._counting(run) for run in runs]
        frame = concat_frames(
            [self._frame(run).where(mask) for run, mask in zip(runs, masks, strict=True)]
        )
        marks = {
            name: np.concatenate(
                [run.marks[name][mask] for run, mask in zip(runs, masks, strict=True)]
            )
            for name in self.marks
        }
        for run in runs:
            self._drop(run)
        if len(frame):
            # Rows that are equal in lead and position stay in their order of arrival, which is that
            # of the runs.
            order = (
                ordered(frame.ints("lead"), frame.ints("at")).order
                if self.is_keyed
                else np.argsort(frame.ints("at"), kind="stable")
            )
            self._append(frame.take(order), {name: column[order] for name, column in marks.items()})

    # Meeting rows

    def probe(self, query: Query) -> Found:
        """The rows that count with the lead of each asking row and a position in its range; by
        asking row, then by run.
        """
        if not len(query) or not self._runs:
            return NOTHING
        blocks: list[tuple[int, np.ndarray, np.ndarray]] = []
        order, keys, code = query.by
        low, high, codes = query.low[order], query.high[order], code[order]
        widest = int(low.min()), int(high.max())
        for number, run in enumerate(self._runs):
            if run.highs["at"] < widest[0] or run.lows["at"] > widest[1] or run.dead == run.rows:
                continue
            first, last = self._index(run).ranges(keys, codes, low, high)
            blocks.append((number, _back(first, order), _back(last, order)))
        found = pairs(blocks)
        for number in {block[0] for block in blocks}:
            by = self._runs[number].sorted_by
            if by is not None:
                here = found.run == number
                at = found.at.copy()
                at[here] = by[at[here]]
                found = found._replace(at=at)
        return found.where(self.counts(found.run, found.at)) if len(found.row) else found

    def latest(self, query: Query, rows: Frame, compared: Sequence[str]) -> np.ndarray:
        """The latest position in the range of each asking row at which a row counts that is equal
        in the compared columns; `MIN` where none does.
        """
        best = np.full(len(query), MIN)
        order, keys, code = query.by
        low, high, codes = query.low[order], query.high[order], code[order]
        for run in self._runs:
            first, last = (
                _back(column, order) for column in self._index(run).ranges(keys, codes, low, high)
            )
            counts, at = self._counting(run), self._ints(run, "at")
            place = last - 1
            open_rows = np.flatnonzero(place >= first)
            while len(open_rows):
                here = (
                    place[open_rows] if run.sorted_by is None else run.sorted_by[place[open_rows]]
                )
                good = counts[here]
                for name in compared:
                    good &= self._ints(run, name)[here] == rows.ints(name)[open_rows]
                best[open_rows[good]] = np.maximum(best[open_rows[good]], at[here[good]])
                # Few rows are passed over: they were taken back, or share the lead by chance.
                open_rows = open_rows[~good]
                place[open_rows] -= 1
                open_rows = open_rows[place[open_rows] >= first[open_rows]]
        return best

    def _index(self, run: _Run) -> Index:
        if run.index is None:
            lead, at = self._ints(run, "lead"), self._ints(run, "at")
            if not run.keyed:
                run.sorted_by = ordered(lead, at).order
                lead, at = lead[run.sorted_by], at[run.sorted_by]
            run.index = Index.over(lead, at)
        return run.index

    # Reading and marking rows

    def take(self, places: Places | Found, names: Sequence[str]) -> dict[str, Column]:
        """Columns of the rows at places, of which there is at least one."""
        numbers = self._numbers(places.run)
        if len(numbers) == 1:
            frame = self._frame(self._runs[numbers[0]]).select(names)
            return dict(frame.take(places.at).columns)
        frames = [self._frame(self._runs[number]).select(names) for number in numbers]
        total = sum(map(len, frames))
        if len(places.at) * _DENSE > total:
            base = np.zeros(len(self._runs), np.int64)
            base[numbers] = np.cumsum([0, *map(len, frames[:-1])])
            index = pa.array(base[places.run] + places.at)
            return {name: _from_all([frame[name] for frame in frames], index) for name in names}
        rows = [np.flatnonzero(places.run == number) for number in numbers]
        parts = [frame.take(places.at[here]) for frame, here in zip(frames, rows, strict=True)]
        return dict(concat_frames(parts).take(inverse(np.concatenate(rows))).columns)

    def mark(self, name: str, places: Places | Found) -> np.ndarray:
        """A mark of the rows at places."""
        values = np.zeros(len(places.at), np.asarray(self.marks[name]).dtype)
        for number in self._numbers(places.run):
            here = places.run == number
            values[here] = self._runs[number].marks[name][places.at[here]]
        return values

    def set_mark(self, name: str, places: Places | Found, values: np.ndarray | int) -> None:
        """Change a mark of the rows at places, each of which is there once."""
        column = np.broadcast_to(values, len(places.at))
        for number in self._numbers(places.run):
            run, here = self._runs[number], places.run == number
            run.marks[name][places.at[here]] = column[here]
            run.touched = True

    def add_to_mark(self, name: str, places: Places | Found, step: int) -> None:
        """Add to a mark once for each place; a row may be there more often."""
        for number in self._numbers(places.run):
            run, here = self._runs[number], places.run == number
            column = run.marks[name]
            column += (step * np.bincount(places.at[here], minlength=run.rows)).astype(column.dtype)
            run.touched = True

    def numbers(self, places: Places | Found) -> np.ndarray:
        """One number for each place, by which places can be compared and grouped."""
        base = np.cumsum([0, *(run.rows for run in self._runs)])
        return base[places.run] + places.at

    def owing(self, limits: Mapping[str, int] | None) -> Places:
        """The rows that count, have no partner and were not put out alone; those below one of the
        limits where some are given.
        """
        found = []
        for number, run in enumerate(self._runs):
            if limits is not None and all(
                run.lows[name] >= limit for name, limit in limits.items()
            ):
                continue
            owes = run.marks["alone"] == 0
            if "n" in run.marks:
                owes &= run.marks["n"] == 0
            if not owes.any():
                continue
            owes &= self._counting(run)
            if limits is not None:
                owes &= self._below(run, limits)
            found.append((number, np.flatnonzero(owes)))
        return Places.of(found)

    def _below(self, run: _Run, limits: Mapping[str, int]) -> np.ndarray:
        """Which rows of a run are below one of the limits."""
        mask = np.zeros(run.rows, bool)
        for name, limit in limits.items():
            mask |= self._ints(run, name) < limit
        return mask

    def _numbers(self, run: np.ndarray) -> list[int]:
        if not len(run):
            return []
        return [int(run[0])] if run.strides == (0,) else present(run, len(self._runs)).tolist()

    def _frame(self, run: _Run) -> Frame:
        if run.loaded is None:
            run.loaded = run.body.frame(self.store)
        return run.loaded

    def _ints(self, run: _Run, name: str) -> np.ndarray:
        return self._frame(run).ints(name)

    def frames(self) -> Iterator[Frame]:
        """All rows that count, a frame a run."""
        for run in self._runs:
            yield self._frame(run).where(self._counting(run))

    # Snapshots

    def save(self) -> dict[str, Any]:
        """Write what changed; the answer is the manifest to restore from."""
        for run in self._runs:
            run.body.save(self.store)
            if run.touched and (run.marks or run.alive is not None):
                alive = np.ones(run.rows, bool) if run.alive is None else run.alive
                columns = {
                    "alive": pa.array(alive),
                    **{name: pa.array(column) for name, column in run.marks.items()},
                }
                self.store.put_table(run.body.name + "/marks", pa.table(columns))
            run.touched = False
        runs = [
            [run.body.manifest(), run.keyed, run.lows, run.highs, run.dead, run.alive is not None]
            for run in self._runs
        ]
        return {
            "next": self._next,
            "runs": runs,
            "horizons": self.horizons,
            "is_large": self.is_large,
        }

    def release(self) -> None:
        """Let go of what the store can give back."""
        for run in self._runs:
            run.body.release()
            if run.body.stored:
                run.index = run.sorted_by = run.loaded = None

    def restore(self, manifest: Mapping[str, Any], adapt: Adapt | None = None) -> None:
        self._next, self.horizons, self.is_large = (
            manifest["next"],
            dict(manifest["horizons"]),
            manifest["is_large"],
        )
        for entry, keyed, lows, highs, dead, masked in manifest["runs"]:
            run = _Run(
                StoredFrame.from_manifest(entry, adapt),
                keyed,
                dict(lows),
                dict(highs),
                {},
                dead=dead,
                touched=False,
            )
            if self.marks or masked:
                table = self.store.get_table(run.body.name + "/marks")
                columns = {
                    name: to_arrow(table.column(name)).to_numpy(zero_copy_only=False).copy()
                    for name in table.column_names
                }
                run.alive = columns.pop("alive")
                run.alive = run.alive if masked else None
                run.marks = {
                    name: columns[name].astype(np.asarray(start).dtype)
                    for name, start in self.marks.items()
                }
            self._runs.append(run)


def _from_all(columns: Sequence[Column], index: pa.Array) -> Column:
    """Values of one column that lies in pieces, which need not be put together for it."""
    if (
        all(is_constant(column) for column in columns)
        and len({column[0] for column in columns}) == 1
    ):
        return constant(columns[0][0], len(index))
    numeric = all(isinstance(column, np.ndarray) for column in columns)
    arrays = [to_arrow(column) for column in columns]
    wanted = next(
        (array.type for array in arrays if not pa.types.is_null(array.type)), arrays[0].type
    )
    taken = to_arrow(pa.chunked_array([array.cast(wanted) for array in arrays], wanted).take(index))
    return taken.to_numpy(zero_copy_only=False) if numeric else taken


def _tier(rows: int) -> int:
    """The size class of a run; classes are a factor of the fan apart, all small runs are one
    class.
    """
    return max(0, rows.bit_length() - 8) // 2


def _back(column: np.ndarray, order: np.ndarray) -> np.ndarray:
    """A column in the order of arrival."""
    found = np.empty_like(column)
    found[order] = column
    return found

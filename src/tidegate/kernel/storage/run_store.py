"""Run store: rows in immutable sorted runs, with a live mask, marks, retention and compaction.

Keyed tables, join buffers, message stores and slices are run stores that differ in how rows are
looked up.

Contract
- An added frame becomes a run, sorted by the columns of `order`. Rows that are equal in these keep
  their order of arrival, however the input was cut into deliveries.
- A run is written to the store once. After that only its live mask and its marks are, so that a
  save writes what changed and no more.
- Marks are small columns that change, such as the number of partners of a row.
- Rows below the horizon of a watched column are expired, whatever their run still holds. A horizon
  never goes back.
- A place (run, position in it) is valid until `tidy`, `expire`, `compact` or `restore`.
- Compaction is size-tiered: the youngest runs are merged when several of them (`fan`) are of at
  most the size class of the youngest, and the result is much larger than each of them, so that
  each row moves a logarithmic number of times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from tidegate.errors import CorruptStateError
from tidegate.instants import MAX, MIN
from tidegate.kernel.frame import (
    Column,
    Frame,
    combined,
    concat_frames,
    constant,
    is_constant,
    to_arrow,
    typed,
)
from tidegate.kernel.groups import inverse, lexicographic_order, present
from tidegate.kernel.keys import KeyHasher
from tidegate.kernel.storage.column_encoding import pack, unpack
from tidegate.state.store import Store

FULL_BYTES = 64 * 1024 * 1024
"""Default size from which on a run is not merged again."""
FAN = 4
"""Number of runs of one size class that are merged, if nothing else is asked for."""
_GROWTH = 2.5
"""How many times larger than the largest of its runs a merged run is at least."""
_DENSE = 4
"""Rows are taken from whole columns where they are more than this fraction of all rows."""
_ALWAYS_MERGED = 5
"""The largest size class that is merged even if equal keys are rare: 16,384 to 32,767 rows."""
_WORTHWHILE = 0.75
"""A merge is worthwhile if it leaves at most this share of the rows."""

Adapt = Callable[[Frame], Frame]
"""Converts a frame that was stored under a former specification to the present one."""


class Located(Protocol):
    """Anything that names rows by run and position."""

    @property
    def run(self) -> np.ndarray: ...

    @property
    def at(self) -> np.ndarray: ...


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """The places of rows: the number of the run (-1: not found) and the position in it."""

    run: np.ndarray
    at: np.ndarray

    @classmethod
    def of(cls, found: Sequence[tuple[int, np.ndarray]]) -> Places:
        """Places from positions by run."""
        if not found:
            return cls(np.zeros(0, np.int64), np.zeros(0, np.int64))
        return cls(
            np.concatenate([np.full(len(at), run, np.int64) for run, at in found]),
            np.concatenate([at for _, at in found]),
        )

    def take(self, index: np.ndarray) -> Places:
        """The places at an index or under a mask."""
        return Places(self.run[index], self.at[index])

    def and_also(self, others: Places) -> Places:
        """These places followed by others."""
        return Places(np.concatenate([self.run, others.run]), np.concatenate([self.at, others.at]))

    @property
    def found(self) -> np.ndarray:
        return self.run >= 0


@dataclass(slots=True, eq=False)
class Run:
    """A sorted frame in memory, in the store or in both, with what changes about its rows."""

    number: int
    group: int
    """Runs of one group were cut from one frame; compaction counts them as one run."""
    rows: int
    size: int | None
    """Decoded size of the frame; None before it is asked for."""
    lows: dict[str, int]
    """By watched column, a lower bound of the live values."""
    highs: dict[str, int]
    marks: dict[str, np.ndarray] = field(default_factory=dict)
    alive: np.ndarray | None = None
    """The live mask; None where no row was removed."""
    dead: int = 0
    """Number of removed rows."""
    expired: int = 0
    """Number of rows that `trim` has counted out."""
    frame: Frame | None = None
    order: tuple[str, ...] = ()
    adapt: Adapt | None = None
    """Applied to the frame whenever it is read from the store."""
    is_stored: bool = False
    is_touched: bool = True
    """Whether live mask or marks differ from the stored ones."""
    is_stale: bool = False
    """Whether rows were removed since the lows were computed."""
    shrink_from: int = MIN
    """The horizon from which on half of the rows may have expired."""
    index: Any = None
    """A lookup structure that the owner derives from the frame; it goes with the frame."""

    @property
    def live(self) -> int:
        return self.rows - self.dead - self.expired

    @property
    def nbytes(self) -> int:
        """Decoded size of the frame. Short-lived runs of small deliveries are never asked."""
        if self.size is None:
            self.size = 0 if self.frame is None else self.frame.nbytes
        return self.size


class RunStore:
    """Rows in sorted runs; see the module's contract."""

    def __init__(
        self,
        store: Store,
        prefix: str,
        order: Sequence[str],
        *,
        watch: Sequence[str] = (),
        marks: Mapping[str, Any] | None = None,
        merge: Callable[[Sequence[Frame]], Frame] | None = None,
        full_bytes: int | None = FULL_BYTES,
        dense_keys: bool = False,
        fan: int = FAN,
        hasher: KeyHasher | None = None,
    ) -> None:
        """An empty run store.

        - `watch`: columns whose range is known for each run and that may have a horizon.
        - `marks`: columns that change, with the value of a new row.
        - `merge`: merges frames into one sorted frame and combines rows with equal keys. By
          default, all rows are kept.
        - `full_bytes`: runs of at least this size are not merged again.
        - `dense_keys`: runs hold most of the keys there are, so that stored keys are delta-encoded.
        - `fan`: number of runs of one size class that are merged.
        - `hasher`: of the keys, so that their hashes are not stored.
        """
        self.store = store
        self.prefix = prefix
        self.order = tuple(order)
        self.watched = tuple(watch)
        self.marks: Mapping[str, Any] = dict(marks or {})
        self.horizons: dict[str, int] = dict.fromkeys(self.watched, MIN)
        self.complete: Adapt | None = None
        """Adds columns that became known later to every frame that is read."""
        self._merge_frames = merge
        self._full_bytes = full_bytes
        self._dense_keys = dense_keys
        self._fan = fan
        self._hasher = hasher
        self._is_wide = False
        """Whether the last merge was not worthwhile, because equal keys are rare."""
        self._runs: list[Run] = []
        self._next = 0

    # Size

    @property
    def runs(self) -> int:
        return len({run.group for run in self._runs})

    @property
    def nbytes(self) -> int:
        """Decoded size of all rows and marks."""
        return self.held_bytes + sum(
            column.nbytes for run in self._runs for column in run.marks.values()
        )

    @property
    def held_bytes(self) -> int:
        """Decoded size of the rows, in memory or spilled."""
        return sum(
            run.nbytes - (run.nbytes * run.expired // run.rows if run.expired else 0)
            for run in self._runs
        )

    @property
    def held(self) -> int:
        """Number of rows that are not known to be gone; expired ones count until they are."""
        return sum(run.live for run in self._runs)

    def __len__(self) -> int:
        """Number of live rows."""
        return sum(
            int(np.count_nonzero(self._live(run))) if self._is_cut(run) else run.rows - run.dead
            for run in self._runs
        )

    def sizes(self) -> list[int]:
        """The number of rows in each run; no run is read."""
        return [run.rows - run.dead for run in self._runs]

    @property
    def is_empty(self) -> bool:
        return not self._runs or not len(self)

    # Adding and removing rows

    def append(self, frame: Frame) -> None:
        """Add rows that are sorted already, and compact."""
        if len(frame):
            self._append(frame)
            self.tidy()

    def add(self, frame: Frame) -> None:
        """Add rows and compact."""
        if len(frame):
            self._append(self.sorted(frame))
            self.tidy()

    def remove(self, places: Located) -> None:
        """Mark the rows at distinct places as dead."""
        for number in self._numbers(places.run):
            run = self._runs[number]
            position = places.at[places.run == number]
            if run.alive is None:
                run.alive = np.ones(run.rows, bool)
            run.dead += int(np.count_nonzero(run.alive[position]))
            run.alive[position] = False
            run.is_touched = run.is_stale = True

    def clear(self) -> None:
        """Remove all rows."""
        for run in list(self._runs):
            self._drop(run)

    def reset(self, frame: Frame) -> None:
        """Replace all rows by those of a frame."""
        self.clear()
        self.add(frame)

    def transform(self, change: Adapt) -> None:
        """Change the frames of all runs; rows, their order and their marks stay."""
        for run in list(self._runs):
            changed = self._new_run(change(self._frame(run)), run.marks, run.group)
            changed.order, changed.alive, changed.dead = run.order, run.alive, run.dead
            changed.expired, changed.is_stale = run.expired, run.is_stale
            self._replace(run, changed)

    # Retention

    def expire(self, horizons: Mapping[str, int]) -> None:
        """Raise horizons: whole runs go at once, single rows when `shrink` rewrites their run."""
        raised = {name: limit for name, limit in horizons.items() if limit > self.horizons[name]}
        self.horizons.update(raised)
        if raised:
            for run in list(self._runs):
                if run.dead == run.rows or any(
                    run.highs[name] < limit for name, limit in raised.items()
                ):
                    self._drop(run)

    def trim(self, name: str) -> None:
        """Count the rows below the horizon of a column out, where runs are sorted by it."""
        horizon = np.int64(self.horizons[name])
        for run in self._runs:
            if run.order[0] == name and run.lows[name] < horizon:
                end = int(np.searchsorted(self._ints(run, name), horizon))
                run.expired = end if run.alive is None else int(np.count_nonzero(run.alive[:end]))

    def shrink(self, run: Run) -> None:
        """Rewrite a run once half of its rows are gone; before, it costs more than it frees."""
        if not self._is_cut(run) or max(self.horizons.values()) < run.shrink_from:
            return
        live = self._live(run)
        if 2 * int(np.count_nonzero(live)) <= run.rows:
            self._rewrite(run, live)
            return
        # Rows expire about evenly with the horizon.
        name = self.watched[0]
        horizon = max(self.horizons[name], run.lows[name])
        run.shrink_from = min(MAX, horizon + (run.highs[name] - horizon) // 4)

    def compact(self, *, expired: bool = True) -> None:
        """Free the memory of dead rows, and of expired ones."""
        for run in list(self._runs):
            if run.dead or (expired and self._is_cut(run)):
                self._rewrite(run, self._live(run))

    # Compaction

    def tidy(self) -> None:
        """Rewrite runs that are mostly dead, and merge the youngest runs of one size class."""
        for run in [run for run in self._runs if 2 * run.dead > run.rows]:
            self._rewrite(run, self._live(run))
        self._sort_runs()
        while len(self._runs) >= self._fan:
            groups = self._groups()
            tier, start = _tier(groups[-1]), len(groups)
            while (
                start and _tier(groups[start - 1]) <= tier and not self._is_full(groups[start - 1])
            ):
                start -= 1
            rows = [sum(run.live for run in group) for group in groups[start:]]
            # One or two large runs are not worth moving with the small ones around them.
            if len(rows) < self._fan or sum(rows) < _GROWTH * max(rows):
                return
            self._merge([run for group in groups[start:] for run in group])

    def merge_all(self) -> None:
        """Merge all runs into one without dead and expired rows."""
        if self.runs > 1 or any(run.dead or self._is_cut(run) for run in self._runs):
            self._merge(list(self._runs))

    def _groups(self) -> list[list[Run]]:
        groups: list[list[Run]] = []
        for run in self._runs:
            if groups and groups[-1][0].group == run.group:
                groups[-1].append(run)
            else:
                groups.append([run])
        return groups

    def _is_full(self, group: Sequence[Run]) -> bool:
        if self._merge_frames is not None:
            return self._is_wide and _tier(group) > _ALWAYS_MERGED
        return self._full_bytes is not None and (
            sum(run.nbytes for run in group) >= self._full_bytes
        )

    def _merge(self, runs: Sequence[Run]) -> None:
        """Replace the youngest runs by one."""
        live, frames = [self._live(run) for run in runs], [self._frame(run) for run in runs]
        marks = {name: [run.marks[name] for run in runs] for name in self.marks}
        for run in runs:
            self._drop(run)
        if self._merge_frames is not None:
            frames = [frame.where(mask) for frame, mask in zip(frames, live, strict=True)]
            merged = self._merge_frames(frames)
            self._is_wide = len(merged) > _WORTHWHILE * sum(map(len, frames))
            self._append(merged)
            return
        frame, index = self._united(frames, live)
        if len(frame):
            self._append(frame, {name: np.concatenate(c)[index] for name, c in marks.items()})

    def _united(
        self, frames: Sequence[Frame], live: Sequence[np.ndarray]
    ) -> tuple[Frame, np.ndarray]:
        """The live rows of sorted frames, sorted, and where these rows were.

        Older frames come first, so that ties keep their order of arrival. Columns move once.
        """
        whole, rows = concat_frames(frames), np.flatnonzero(np.concatenate(live))
        if not len(rows):
            return whole.slice(0, 0), rows
        keys = [whole.ints(name)[rows] for name in self.order]
        if not _is_sorted(keys):
            rows = rows[lexicographic_order(keys, _merging)]
        return whole if len(rows) == len(whole) and _is_range(rows) else whole.take(rows), rows

    def _sort_runs(self) -> None:
        """Sort the runs that were sorted by other columns."""
        for run in [run for run in self._runs if run.order != self.order]:
            live = self._live(run)
            frame = self._frame(run).where(live)
            marks = {name: column[live] for name, column in run.marks.items()}
            order = self._sort_order(frame)
            if order is not None:
                frame = frame.take(order)
                marks = {name: column[order] for name, column in marks.items()}
            if len(frame):
                self._replace(run, self._new_run(frame, marks, run.group))
            else:
                self._drop(run)

    def _rewrite(self, run: Run, live: np.ndarray) -> None:
        """Keep only the live rows of a run."""
        if not live.any():
            self._drop(run)
            return
        marks = {name: column[live] for name, column in run.marks.items()}
        rewritten = self._new_run(self._frame(run).where(live), marks, run.group)
        rewritten.order = run.order
        self._replace(run, rewritten)

    # Lookup

    def places(self, below: Mapping[str, int] | None = None) -> Places:
        """All live rows; with limits, those below one of them."""
        found = []
        for number, run in enumerate(self._runs):
            if below is not None and all(run.lows[name] >= limit for name, limit in below.items()):
                continue
            live = self._live(run)
            if below is not None:
                live &= self._below(run, below)
            found.append((number, np.flatnonzero(live)))
        return Places.of(found)

    def select(self, column: str, limit: int) -> Places:
        """The live rows whose watched column is at most the limit."""
        found = []
        for number, run in enumerate(self._runs):
            if run.lows[column] <= limit and run.dead < run.rows:
                mask = self._ints(run, column) <= limit
                found.append((number, np.flatnonzero(self._live(run) & mask)))
        return Places.of(found)

    def least(self, column: str, none: int) -> int:
        """The smallest live value of a watched column; `none` where no row is live."""
        best = none
        for run in self._runs:
            if run.lows[column] >= best or run.dead == run.rows:
                continue
            if run.is_stale or self._is_cut(run):
                values = self._ints(run, column)[self._live(run)]
                low = int(values.min()) if len(values) else none
            else:
                low = run.lows[column]
            best = min(best, low)
        return best

    def are_live(self, places: Located) -> np.ndarray:
        """Which of the rows at places are live."""
        mask = np.ones(len(places.at), bool)
        for number in self._numbers(places.run):
            run = self._runs[number]
            if run.dead or self._is_cut(run):
                here = places.run == number
                mask[here] = self._live(run)[places.at[here]]
        return mask

    # Reading and marking rows

    def take(self, places: Located, names: Sequence[str] | None = None) -> Frame:
        """The rows at places, in their order, with all columns or some; every place was found."""
        if not self._runs:
            raise IndexError("no runs to take rows from")
        numbers = self._numbers(places.run)
        frames = [self._frame(self._runs[number]) for number in numbers or [0]]
        if names is not None:
            frames = [frame.select(names) for frame in frames]
        if not numbers:
            return Frame.empty_like(frames[0])
        if len(numbers) == 1:
            return frames[0].take(places.at)
        if len(places.at) * _DENSE > sum(map(len, frames)):
            base = np.zeros(len(self._runs), np.int64)
            base[numbers] = np.cumsum([0, *map(len, frames[:-1])])
            index = pa.array(base[places.run] + places.at)
            return combined(frames, lambda parts: _take_chunked(parts, index), len(index))
        rows = [np.flatnonzero(places.run == number) for number in numbers]
        parts = [frame.take(places.at[here]) for frame, here in zip(frames, rows, strict=True)]
        return concat_frames(parts).take(inverse(np.concatenate(rows)))

    def frames(self, names: Sequence[str] | None = None) -> Iterator[Frame]:
        """All live rows, one frame per run, with all columns or some."""
        for run in self._runs:
            frame = self._frame(run)
            frame = frame if names is None else frame.select(names)
            yield frame.where(self._live(run)) if run.dead or self._is_cut(run) else frame

    def all(self) -> Frame | None:
        """All live rows as one frame; None where there are none."""
        frames = [frame for frame in self.frames() if len(frame)]
        return concat_frames(frames) if frames else None

    def mark(self, name: str, places: Located) -> np.ndarray:
        """A mark of the rows at places."""
        values = np.zeros(len(places.at), np.asarray(self.marks[name]).dtype)
        for number in self._numbers(places.run):
            here = places.run == number
            values[here] = self._runs[number].marks[name][places.at[here]]
        return values

    def set_mark(self, name: str, places: Located, values: np.ndarray | int) -> None:
        """Set a mark of the rows at distinct places."""
        column = np.broadcast_to(values, len(places.at))
        for number in self._numbers(places.run):
            run, here = self._runs[number], places.run == number
            run.marks[name][places.at[here]] = column[here]
            run.is_touched = True

    def add_to_mark(self, name: str, places: Located, step: int) -> None:
        """Add to a mark once per place; places may repeat."""
        for number in self._numbers(places.run):
            run, here = self._runs[number], places.run == number
            column = run.marks[name]
            column += (step * np.bincount(places.at[here], minlength=run.rows)).astype(column.dtype)
            run.is_touched = True

    def numbers(self, places: Located) -> np.ndarray:
        """A unique number for each place, to compare and group places by."""
        base = np.cumsum([0, *(run.rows for run in self._runs)])
        return base[places.run] + places.at

    # Snapshots

    def save(self) -> dict[str, Any]:
        """Write what changed, and return the manifest to restore from."""
        for run in self._runs:
            name = self._name(run)
            if not run.is_stored and run.frame is not None:
                self.store.put_table(
                    name, pack(run.frame, by_key=self._dense_keys, hasher=self._hasher)
                )
                run.is_stored = True
            if run.is_touched and (run.marks or run.alive is not None):
                alive = np.ones(run.rows, bool) if run.alive is None else run.alive
                # Tables in a store do not change, so that they get copies.
                columns = {name: pa.array(column.copy()) for name, column in run.marks.items()}
                self.store.put_table(
                    name + "/marks", pa.table({"alive": pa.array(alive), **columns})
                )
            run.is_touched = False
        return {
            "next": self._next,
            "horizons": list(self.horizons.values()),
            "is_wide": self._is_wide,
            "runs": [
                [
                    run.number,
                    run.group,
                    run.rows,
                    run.nbytes,
                    run.dead,
                    run.expired,
                    list(run.lows.values()),
                    list(run.highs.values()),
                ]
                for run in self._runs
            ],
        }

    def release(self) -> None:
        """Drop the frames that the store holds from memory."""
        for run in self._runs:
            self._release(run)

    def restore(self, manifest: Mapping[str, Any], adapt: Adapt | None = None) -> None:
        """Continue from a manifest."""
        self._next, self._is_wide = manifest["next"], manifest["is_wide"]
        self.horizons = dict(zip(self.watched, manifest["horizons"], strict=True))
        for number, group, rows, nbytes, dead, expired, lows, highs in manifest["runs"]:
            run = Run(
                number,
                group,
                rows,
                nbytes,
                dict(zip(self.watched, lows, strict=True)),
                dict(zip(self.watched, highs, strict=True)),
                dead=dead,
                expired=expired,
                order=self.order,
                adapt=adapt,
                is_stored=True,
                is_touched=False,
                is_stale=dead > 0,
            )
            if self.marks or dead:
                self._restore_marks(run)
            self._runs.append(run)

    def _restore_marks(self, run: Run) -> None:
        table = self._get_table(self._name(run) + "/marks")
        columns = {
            name: to_arrow(table.column(name)).to_numpy(zero_copy_only=False).copy()
            for name in table.column_names
        }
        run.alive = columns["alive"] if run.dead else None
        run.marks = {
            name: columns[name].astype(np.asarray(start).dtype, copy=False)
            for name, start in self.marks.items()
        }

    # One run

    def _name(self, run: Run) -> str:
        return f"{self.prefix}/{run.number:08d}"

    def _frame(self, run: Run) -> Frame:
        if run.frame is None:
            frame = unpack(self._get_table(self._name(run)), self._hasher)
            if len(frame) != run.rows:
                raise CorruptStateError(
                    f"the stored table `{self._name(run)}` has {len(frame)} rows instead of"
                    f" {run.rows}. Hint: restore the state from a copy, or replay the input"
                )
            run.frame = frame if run.adapt is None else run.adapt(frame)
        return run.frame if self.complete is None else self.complete(run.frame)

    def _get_table(self, name: str) -> pa.Table:
        try:
            return self.store.get_table(name)
        except KeyError:
            raise CorruptStateError(
                f"the state lacks its table `{name}`. Hint: restore the state from a copy, or"
                " replay the input"
            ) from None

    def _ints(self, run: Run, name: str) -> np.ndarray:
        return self._frame(run).ints(name)

    def _is_cut(self, run: Run) -> bool:
        """Whether a horizon hides rows of a run."""
        return any(run.lows[name] < horizon for name, horizon in self.horizons.items())

    def _live(self, run: Run) -> np.ndarray:
        """A new mask of the live rows of a run."""
        live = np.ones(run.rows, bool) if run.alive is None else run.alive.copy()
        for name, horizon in self.horizons.items():
            if run.lows[name] < horizon:
                live &= self._ints(run, name) >= horizon
        return live

    def _below(self, run: Run, limits: Mapping[str, int]) -> np.ndarray:
        """Which rows of a run are below one of the limits."""
        mask = np.zeros(run.rows, bool)
        for name, limit in limits.items():
            mask |= self._ints(run, name) < limit
        return mask

    def _append(self, frame: Frame, marks: Mapping[str, np.ndarray] | None = None) -> None:
        """Add the runs of a sorted frame, which are one group."""
        group = self._next
        for start, end in self._cuts(frame):
            whole = start == 0 and end == len(frame)
            # Rows are taken, not sliced: a run frees its memory when it is dropped.
            part = frame if whole else frame.take(np.arange(start, end))
            own = {
                name: column if whole else column[start:end].copy()
                for name, column in (marks or {}).items()
            }
            self._runs.append(self._new_run(part, own, group))

    def _cuts(self, frame: Frame) -> Sequence[tuple[int, int]]:
        """The ranges of rows that become a run each."""
        return [(0, len(frame))]

    def _new_run(self, frame: Frame, marks: dict[str, np.ndarray], group: int) -> Run:
        ranges = [_range(frame.ints(name)) for name in self.watched]
        run = Run(
            self._next,
            group,
            len(frame),
            None,
            {name: low for name, (low, _) in zip(self.watched, ranges, strict=True)},
            {name: high for name, (_, high) in zip(self.watched, ranges, strict=True)},
            marks,
            frame=frame,
            order=self.order,
        )
        self._next += 1
        return run

    def _replace(self, run: Run, other: Run) -> None:
        at = self._runs.index(run)
        self._drop(run)
        self._runs.insert(at, other)

    def _drop(self, run: Run) -> None:
        if run.is_stored:
            if run.marks or run.alive is not None:
                self.store.delete(self._name(run) + "/marks")
            self.store.delete(self._name(run))
        self._runs.remove(run)

    def _release(self, run: Run) -> None:
        if run.is_stored:
            run.frame = run.index = None

    def _numbers(self, run: np.ndarray) -> list[int]:
        """The different runs among places that were found, ascending."""
        if not len(run):
            return []
        if is_constant(run):
            return [int(run[0])] if run[0] >= 0 else []
        return present(run if run.min() >= 0 else run[run >= 0], len(self._runs)).tolist()

    def sorted(self, frame: Frame) -> Frame:
        """Rows sorted as those of a run."""
        order = self._sort_order(frame)
        return frame if order is None else frame.take(order)

    def _sort_order(self, frame: Frame) -> np.ndarray | None:
        """The stable order of rows by the columns of the store; None where they are sorted."""
        keys = [frame.ints(name) for name in self.order]
        if _is_sorted(keys):
            return None
        return lexicographic_order(keys)


def _range(column: np.ndarray) -> tuple[int, int]:
    """The least and the greatest value."""
    if is_constant(column):
        return int(column[0]), int(column[0])
    return int(column.min()), int(column.max())


def _merging(key: np.ndarray) -> np.ndarray:
    """The stable order; NumPy's stable sort merges sorted parts."""
    return np.argsort(key, kind="stable")


def _is_range(rows: np.ndarray) -> bool:
    return bool((rows[1:] > rows[:-1]).all())


def _is_sorted(keys: Sequence[np.ndarray]) -> bool:
    ahead = np.zeros(max(0, len(keys[0]) - 1), bool)
    for key in keys:
        if ((key[1:] < key[:-1]) & ~ahead).any():
            return False
        ahead |= key[1:] > key[:-1]
    return True


def _tier(group: Sequence[Run]) -> int:
    """The size class of a run: all small runs are one class, the others a factor of four apart."""
    return max(0, sum(run.live for run in group).bit_length() - 4) // 2


def _take_chunked(columns: Sequence[Column], index: pa.Array) -> Column:
    """Values of one column that lies in pieces, without concatenating these."""
    if (
        all(is_constant(column) for column in columns)
        and len({column[0] for column in columns}) == 1
    ):
        return constant(columns[0][0], len(index))
    numeric = all(isinstance(column, np.ndarray) for column in columns)
    arrays = [to_arrow(column) for column in columns]
    kind: Any = typed([array.type for array in arrays])
    taken = to_arrow(pa.chunked_array([array.cast(kind) for array in arrays], kind).take(index))
    return taken.to_numpy(zero_copy_only=False) if numeric else taken

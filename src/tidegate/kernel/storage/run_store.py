"""Sorted runs: a table of rows that is found by identity, kept as a few immutable sorted frames and
a mask of the rows that still count.

Contract: every run is sorted by the identity columns and holds an identity at most once; over all
runs at most one row of an identity is alive. `put` therefore takes only identities that are not
alive: take the old rows out with `remove` first. A run is written to the store once; after that
only its mask changes, so that a flush writes what a delivery touched and no more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.kernel.frame import Frame, concat_frames
from tidegate.kernel.groups import inverse, present
from tidegate.kernel.storage.column_encoding import pack, unpack
from tidegate.state.store import Store

MAX_RUNS = 8
Adapt = Callable[[Frame], Frame]
"""Makes a frame that was stored under a former specification one of the present specification."""


@dataclass(slots=True, eq=False)
class StoredFrame:
    """A frame that may live in memory, in the store, or in both."""

    name: str
    rows: int
    nbytes: int
    _frame: Frame | None
    stored: bool = False
    adapt: Adapt | None = None
    """What every reading from the store goes through."""

    @classmethod
    def new(cls, name: str, frame: Frame) -> StoredFrame:
        return cls(name, len(frame), frame.nbytes, frame)

    def frame(self, store: Store) -> Frame:
        if self._frame is not None:
            return self._frame
        frame = unpack(store.get_table(self.name))
        return frame if self.adapt is None else self.adapt(frame)

    def save(self, store: Store, *, by_key: bool = False) -> None:
        if not self.stored and self._frame is not None:
            store.put_table(self.name, pack(self._frame, by_key=by_key))
            self.stored = True

    def release(self) -> None:
        """Forget the frame in memory; the store has it."""
        if self.stored:
            self._frame = None

    def delete(self, store: Store) -> None:
        if self.stored:
            store.delete(self.name)

    def manifest(self) -> list[Any]:
        return [self.name, self.rows, self.nbytes]

    @classmethod
    def from_manifest(cls, entry: Sequence[Any], adapt: Adapt | None = None) -> StoredFrame:
        return cls(entry[0], entry[1], entry[2], None, stored=True, adapt=adapt)


@dataclass(slots=True, eq=False)
class _Run:
    body: StoredFrame
    alive: np.ndarray
    dead: int = 0
    touched: bool = True
    lows: dict[str, int] = field(default_factory=dict)

    @property
    def live(self) -> int:
        return self.body.rows - self.dead


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """Where rows were found: the number of the run (-1: nowhere) and the position in it."""

    run: np.ndarray
    at: np.ndarray

    @classmethod
    def of(cls, found: Sequence[tuple[int, np.ndarray]]) -> Places:
        """Positions by run."""
        if not found:
            return cls(np.zeros(0, np.int64), np.zeros(0, np.int64))
        return cls(
            np.concatenate([np.full(len(at), run, np.int64) for run, at in found]),
            np.concatenate([at for _, at in found]),
        )

    def take(self, index: np.ndarray) -> Places:
        """Some of the places, by number or by mask."""
        return Places(self.run[index], self.at[index])

    def and_also(self, others: Places) -> Places:
        """These places and others."""
        return Places(np.concatenate([self.run, others.run]), np.concatenate([self.at, others.at]))

    @property
    def found(self) -> np.ndarray:
        return self.run >= 0


class SortedRuns:
    """Rows found by identity; see the module's contract."""

    def __init__(
        self, store: Store, prefix: str, identity: Sequence[str], watch: Sequence[str] = ()
    ) -> None:
        self._store = store
        self._prefix = prefix
        self._identity = tuple(identity)
        self._watch = tuple(watch)
        self._runs: list[_Run] = []
        self._next = 0

    def __len__(self) -> int:
        return sum(run.live for run in self._runs)

    @property
    def runs(self) -> int:
        return len(self._runs)

    @property
    def nbytes(self) -> int:
        return sum(run.body.nbytes for run in self._runs)

    def put(self, frame: Frame) -> None:
        """Add rows whose identities are not alive."""
        if not len(frame):
            return
        self._append(_sorted(frame, self._identity))
        if len(self._runs) > MAX_RUNS:
            self._compact()

    def find(self, query: Frame) -> Places:
        """Where the rows with the identities of the query are; each identity at most once in the
        query.
        """
        run_of = np.full(len(query), -1, np.int64)
        at = np.zeros(len(query), np.int64)
        for number, run in enumerate(self._runs):
            open_rows = np.flatnonzero(run_of < 0)
            if not len(open_rows) or not run.live:
                continue
            asked = query.take(open_rows) if len(open_rows) < len(query) else query
            position, hit = search_sorted(self._frame(run), asked, self._identity)
            hit &= run.alive[np.minimum(position, run.body.rows - 1)]
            rows = open_rows[hit]
            run_of[rows], at[rows] = number, position[hit]
        return Places(run_of, at)

    def ranges(self, keys: Frame, columns: Sequence[str]) -> Places:
        """Every live row whose leading identity columns are among the keys (sorted and distinct in
        those columns).
        """
        found: list[tuple[int, np.ndarray]] = []
        for number, run in enumerate(self._runs):
            if not run.live:
                continue
            frame = self._frame(run)
            low, hit = search_sorted(frame, keys, columns)
            low = low[hit]
            if not len(low):
                continue
            high = _upper(frame, keys.take(np.flatnonzero(hit)), columns, low)
            sizes = high - low
            position = np.repeat(
                low - np.concatenate([[0], np.cumsum(sizes)[:-1]]), sizes
            ) + np.arange(int(sizes.sum()))
            found.append((number, position[run.alive[position]]))
        return Places.of(found)

    def select(self, column: str, limit: int) -> Places:
        """Every live row whose watched column is at most the limit."""
        found: list[tuple[int, np.ndarray]] = []
        for number, run in enumerate(self._runs):
            if run.live and run.lows[column] <= limit:
                found.append(
                    (number, np.flatnonzero((self._frame(run).ints(column) <= limit) & run.alive))
                )
        return Places.of(found)

    def least(self, column: str, none: int) -> int:
        """The smallest value of a watched column over the live rows."""
        best = none
        for run in self._runs:
            if run.live and run.lows[column] < best:
                values = self._frame(run).ints(column)[run.alive]
                run.lows[column] = int(values.min())
                best = min(best, run.lows[column])
        return best

    def take(self, places: Places, columns: Sequence[str] | None = None) -> Frame:
        """The rows at the places, in their order, all columns or some; every place was found."""
        if not self._runs:
            raise IndexError("no runs to take rows from")
        if not len(places.run):
            return Frame.empty_like(self._frame(self._runs[0]))
        numbers = present(places.run, len(self._runs))
        frames = {int(n): self._frame(self._runs[int(n)]) for n in numbers}
        if columns is not None:
            frames = {n: frame.select(columns) for n, frame in frames.items()}
        if len(numbers) == 1:
            return frames[int(numbers[0])].take(places.at)
        parts = [frames[int(n)].take(places.at[places.run == n]) for n in numbers]
        order = np.concatenate([np.flatnonzero(places.run == n) for n in numbers])
        return concat_frames(parts).take(inverse(order))

    def remove(self, places: Places) -> None:
        """The rows at the places stop counting."""
        for number in present(places.run[places.run >= 0], len(self._runs)):
            run = self._runs[int(number)]
            position = places.at[places.run == number]
            run.alive[position] = False
            run.dead += len(position)
            run.touched = True
        for run in [r for r in self._runs if not r.live]:
            self._drop(run)

    def live(self, names: Sequence[str] | None = None) -> Iterator[Frame]:
        """All live rows, a frame a run, with the named columns or with all."""
        for run in self._runs:
            frame = self._frame(run)
            yield (frame if names is None else frame.select(names)).where(run.alive)

    def all(self) -> Frame | None:
        """All live rows as one frame; None where there is none."""
        frames = [frame for frame in self.live() if len(frame)]
        return concat_frames(frames) if frames else None

    def clear(self) -> None:
        """Forget everything."""
        for run in list(self._runs):
            self._drop(run)

    def rewrite(self, frame: Frame) -> None:
        """Replace everything by these rows."""
        self.clear()
        self.put(frame)

    def compact(self) -> None:
        """Give the room of dead rows back."""
        for run in [r for r in self._runs if r.dead]:
            frame = self._frame(run).where(run.alive)
            self._drop(run)
            self._append(frame)

    def save(self) -> list[Any]:
        """Write what changed; the answer is the manifest to restore from."""
        for run in self._runs:
            # A run mostly holds most of its keys, so these are close to each other.
            run.body.save(self._store, by_key=True)
            if run.touched:
                mask = pa.table({"alive": pa.array(run.alive)})
                self._store.put_table(run.body.name + "/alive", mask)
                run.touched = False
        return [self._next, [[run.body.manifest(), run.lows] for run in self._runs]]

    def release(self) -> None:
        for run in self._runs:
            run.body.release()

    def restore(self, manifest: Sequence[Any], adapt: Adapt | None = None) -> None:
        self._next = manifest[0]
        for entry, lows in manifest[1]:
            body = StoredFrame.from_manifest(entry, adapt)
            alive = self._store.get_table(body.name + "/alive").column("alive").to_numpy().copy()
            self._runs.append(
                _Run(body, alive, int(len(alive) - alive.sum()), touched=False, lows=dict(lows))
            )

    def _frame(self, run: _Run) -> Frame:
        return run.body.frame(self._store)

    def _append(self, frame: Frame) -> None:
        body = StoredFrame.new(f"{self._prefix}/{self._next:08d}", frame)
        self._next += 1
        lows = {name: int(frame.ints(name).min()) for name in self._watch}
        self._runs.append(_Run(body, np.ones(len(frame), bool), lows=lows))

    def _drop(self, run: _Run) -> None:
        if run.body.stored:
            self._store.delete(run.body.name + "/alive")
        run.body.delete(self._store)
        self._runs.remove(run)

    def _compact(self) -> None:
        """Merge the smaller half of the runs, so that each row is moved a logarithmic number of
        times.
        """
        by_size = sorted(self._runs, key=lambda run: run.live)
        small = by_size[: MAX_RUNS // 2 + 1]
        merged = concat_frames([self._frame(run).where(run.alive) for run in small])
        for run in small:
            self._drop(run)
        self._append(_sorted(merged, self._identity))


def _sorted(frame: Frame, columns: Sequence[str]) -> Frame:
    keys = [frame.ints(name) for name in columns]
    if _is_sorted(keys):
        return frame
    varying = [k for k in keys if len(k) and (k[0] != k).any()]
    if len(varying) <= 1:
        order = np.argsort(varying[0] if varying else keys[0], kind="stable")
    else:
        order = np.lexsort(varying[::-1])
    return frame.take(order)


def _is_sorted(keys: Sequence[np.ndarray]) -> bool:
    ahead = np.zeros(max(0, len(keys[0]) - 1), bool)
    for key in keys:
        if ((key[1:] < key[:-1]) & ~ahead).any():
            return False
        ahead |= key[1:] > key[:-1]
    return True


def search_sorted(
    frame: Frame, query: Frame, columns: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    """The first position whose columns are not below the query's, and whether they are equal
    there.
    """
    first = frame.ints(columns[0])
    wanted = query.ints(columns[0])
    low = np.searchsorted(first, wanted, "left")
    if len(columns) > 1:
        high = _past(first, wanted, low)
        rest = [(frame.ints(name), query.ints(name)) for name in columns[1:]]
        while True:
            open_rows = np.flatnonzero(low < high)
            if not len(open_rows):
                break
            middle = (low[open_rows] + high[open_rows]) // 2
            below = _lexicographic([(stored[middle], asked[open_rows]) for stored, asked in rest])
            low[open_rows[below]] = middle[below] + 1
            high[open_rows[~below]] = middle[~below]
    inside = low < len(frame)
    equal = inside.copy()
    safe = np.minimum(low, max(0, len(frame) - 1))
    for name in columns:
        equal &= frame.ints(name)[safe] == query.ints(name) if len(frame) else False
    return low, equal


def _past(stored: np.ndarray, wanted: np.ndarray, low: np.ndarray) -> np.ndarray:
    """One past the last value that equals the wanted one, from where it first could be; most values
    are there once, or not at all.
    """
    if not len(stored):
        return low.copy()
    last = len(stored) - 1
    here = (stored[np.minimum(low, last)] == wanted) & (low <= last)
    again = np.flatnonzero(here & (low < last) & (stored[np.minimum(low + 1, last)] == wanted))
    high = low + here
    high[again] = np.searchsorted(stored, wanted[again], "right")
    return high


def _lexicographic(pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """Where the left tuple is below the right one."""
    below = np.zeros(len(pairs[0][0]), bool)
    tied = np.ones(len(below), bool)
    for left, right in pairs:
        below |= tied & (left < right)
        tied &= left == right
    return below


def _upper(frame: Frame, keys: Frame, columns: Sequence[str], low: np.ndarray) -> np.ndarray:
    """One past the last row whose columns equal the keys; the rows from `low` on do."""
    high = np.searchsorted(frame.ints(columns[0]), keys.ints(columns[0]), "right")
    bottom = low.copy()
    rest = [(frame.ints(name), keys.ints(name)) for name in columns[1:]]
    while rest:
        open_rows = np.flatnonzero(bottom < high)
        if not len(open_rows):
            break
        middle = (bottom[open_rows] + high[open_rows]) // 2
        above = _lexicographic([(asked[open_rows], stored[middle]) for stored, asked in rest])
        high[open_rows[above]] = middle[above]
        bottom[open_rows[~above]] = middle[~above] + 1
    return high

"""Watermark generators: from the rows of a delivery to promises of its sources, over whole columns.

Contract: a generator sees no row from the future and no duplicate. It may name a source without a
promise (`MIN`), which is a sign of life. It does not decide whether a promise is accepted: a
smaller one than before is a step back, except where `repeats` declares that values only describe
what was seen.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.errors import InputError, WatermarkError
from tidegate.instants import MAX, MIN, saturating_add
from tidegate.kernel.events.event_time import OK, read_times
from tidegate.kernel.frame import to_arrow
from tidegate.kernel.groups import present
from tidegate.spec.watermarks import (
    Bounded,
    Explicit,
    Generated,
    Implied,
    Lagging,
    Noted,
    PerKey,
    Punctuated,
    Watermarks,
)


@dataclass(frozen=True, slots=True, eq=False)
class Observed:
    """The rows of a delivery, their times in microseconds and their partitions.

    `readable` marks the rows with a time; `partition` holds numbers into `partitions`. There is at
    least one row. A generator may change `state`, which is stored with the operator as JSON, and
    nothing else.
    """

    table: pa.Table
    times: np.ndarray
    readable: np.ndarray
    partition: np.ndarray
    partitions: list[str]
    now: int
    limit: int
    """Times beyond it are from the future."""
    state: dict[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.times)

    @property
    def read_times(self) -> np.ndarray:
        """The times; `MIN` where unreadable."""
        return self.times if self.readable.all() else np.where(self.readable, self.times, MIN)

    def newest(self, values: np.ndarray | None = None) -> np.ndarray:
        """By partition, the greatest of the values (default: the readable times); `MIN` if there is
        none.
        """
        found = np.full(len(self.partitions), MIN)
        if values is None:
            values = self.read_times
        if not len(values):
            return found
        if len(found) == 1:
            found[0] = values.max()
        else:
            np.maximum.at(found, self.partition, values)
        return found

    def newest_rows(self) -> np.ndarray:
        """One row per partition, in row order: its newest, or its first without a readable time."""
        values = self.read_times
        if len(self.partitions) == 1:
            return np.array([values.argmax()])
        return _firsts(
            np.flatnonzero(values == self.newest()[self.partition]),
            self.partition,
            len(self.partitions),
        )

    def without_future(self, watermark: int = MIN) -> Observed:
        """The rows that are not from the future, and their partitions. A row behind the watermark
        is late, not from the future, whatever the clock.
        """
        table, times, readable, partition, names = (
            self.table,
            self.times,
            self.readable,
            self.partition,
            self.partitions,
        )
        if len(self) and times.max() > self.limit:
            kept = ~readable | (times <= self.limit) | (times < watermark)
            table, times, readable, partition = (
                table.filter(pa.array(kept)),
                times[kept],
                readable[kept],
                partition[kept],
            )
        used = (
            np.arange(1) if len(names) == 1 and len(partition) else present(partition, len(names))
        )
        if len(used) < len(names):
            names, partition = [names[n] for n in used.tolist()], np.searchsorted(used, partition)
        return replace(
            self, table=table, times=times, readable=readable, partition=partition, partitions=names
        )

    def behind(self, lag: int) -> np.ndarray:
        """By partition, the newest time minus a lag; `MIN` if there is none."""
        return saturating_add(self.newest(), _back(int(lag)))


@dataclass(frozen=True, slots=True, eq=False)
class Promises:
    """Promises of sources, by name; `MIN` is a sign of life without a promise.

    A source with several promises is named for each, in order. `refused` counts values that are no
    valid promise. `replaced` names sources that these ones replace from now on.
    """

    names: list[str]
    values: np.ndarray
    refused: int = 0
    replaced: tuple[str, ...] = ()


_NOTHING = Promises([], np.zeros(0, np.int64))


class Generator:
    """Base of the generators: it makes no promises, only signs of life."""

    repeats = True
    """Whether a smaller value than before is no step back, because values only describe what was
    seen.
    """
    joins = True
    """Whether a source that is seen for the first time joins the others."""

    def observe(self, seen: Observed) -> Promises:
        """The promises of a delivery."""
        return self.alive(seen)

    def alive(self, seen: Observed) -> Promises:
        """Signs of life only, where a delivery contains nothing else."""
        return Promises(seen.partitions, np.full(len(seen.partitions), MIN))

    def tick(self, now: int) -> Promises:  # noqa: ARG002 - most promise nothing by the clock
        """The promises of the clock."""
        return _NOTHING

    def clock_at(self, value: int) -> int:  # noqa: ARG002 - most promise nothing by the clock
        """The clock at which it promises this value without any event; `MAX` if never."""
        return MAX

    def condensed(self, seen: Observed) -> np.ndarray:
        """The rows, in order, that imply the same promises as all of them, also with more rows
        before or after.
        """
        return seen.newest_rows()

    def markers(
        self,
        table: pa.Table,  # noqa: ARG002
        readable: np.ndarray,  # noqa: ARG002
        timeless: np.ndarray,  # noqa: ARG002
    ) -> np.ndarray | None:
        """Mask of rows that carry a watermark and are no events; None if there are none.

        `readable` marks rows with a readable time, `timeless` rows without a value in any time
        column.
        """
        return None

    def save(self) -> Any:
        return None

    def restore(self, document: Any) -> None:
        """Restore the result of `save`."""


class _Told(Generator):
    joins = False


class _Following(Generator):
    """The newest event of all partitions."""

    def observe(self, seen: Observed) -> Promises:
        return Promises([""], seen.newest().max(keepdims=True, initial=MIN))


class _Bounded(Generator):
    def __init__(self, disorder: int) -> None:
        self._disorder = disorder

    def observe(self, seen: Observed) -> Promises:
        return Promises(seen.partitions, seen.behind(self._disorder))


class _Lagging(Generator):
    def __init__(self, lag: int) -> None:
        self._lag = lag

    def observe(self, seen: Observed) -> Promises:
        return self.tick(seen.now)

    def tick(self, now: int) -> Promises:
        return Promises([""], np.array([saturating_add(now, _back(self._lag))], np.int64))

    def clock_at(self, value: int) -> int:
        return int(saturating_add(value, self._lag))


class _Punctuated(Generator):
    repeats = False

    def __init__(self, column: str) -> None:
        self._column = column

    def observe(self, seen: Observed) -> Promises:
        promised, refused = _promised(seen, self._column)
        return Promises(*_by_source(seen.partitions, seen.partition, promised), int(refused.sum()))

    def condensed(self, seen: Observed) -> np.ndarray:
        promised, refused = _promised(seen, self._column)
        many = len(seen.partitions)
        return _together(
            seen.newest_rows(),
            _relevant(seen.partition, many, promised),
            _firsts(np.flatnonzero(refused), seen.partition, many),
        )


class _Marked(Generator):
    repeats = False

    def __init__(self, marker: str) -> None:
        self._marker = marker

    def markers(self, table: pa.Table, readable: np.ndarray, timeless: np.ndarray) -> np.ndarray:  # noqa: ARG002 - a marker has a time
        flags = to_arrow(table.column(self._marker)).cast(pa.bool_())
        return np.asarray(pc.fill_null(flags, False).to_numpy(zero_copy_only=False)) & readable

    def observe(self, seen: Observed) -> Promises:
        return Promises(*_by_source(seen.partitions, seen.partition, self._marks(seen)))

    def condensed(self, seen: Observed) -> np.ndarray:
        return _together(
            seen.newest_rows(), _relevant(seen.partition, len(seen.partitions), self._marks(seen))
        )

    def _marks(self, seen: Observed) -> np.ndarray:
        return np.where(self.markers(seen.table, seen.readable, ~seen.readable), seen.times, MIN)


class _Noted(Generator):
    repeats = False

    def __init__(self, column: str, writer: str) -> None:
        self._column = column
        self._writer = writer

    def markers(
        self,
        table: pa.Table,
        readable: np.ndarray,  # noqa: ARG002
        timeless: np.ndarray,
    ) -> np.ndarray | None:
        if not timeless.any():
            return None
        named = np.asarray(
            to_arrow(table.column(self._writer)).is_valid().to_numpy(zero_copy_only=False)
        )
        return timeless & named & (read_times(table.column(self._column), self._column)[1] == OK)

    def observe(self, seen: Observed) -> Promises:
        names, known, source = self._sources(seen)
        if not names:
            return _NOTHING
        promised, refused = _promised(seen, self._column)
        different, of_row = np.unique(source, return_inverse=True)
        labels = [
            _label(seen.partitions[number // len(names)], names[number % len(names)])
            for number in different.tolist()
        ]
        # A noted time holds for the partition of the row: others may not have been read as far.
        replaced = tuple(sorted(set(names).difference(labels)))
        return Promises(*_by_source(labels, of_row, promised[known]), int(refused.sum()), replaced)

    def condensed(self, seen: Observed) -> np.ndarray:
        _, known, source = self._sources(seen)
        promised, refused = _promised(seen, self._column)
        different, of_row = np.unique(source, return_inverse=True)
        # Keep the first row of each writer: writers are registered in the order of their first row.
        first, telling = (
            _firsts(np.arange(len(known)), of_row, len(different)),
            _relevant(of_row, len(different), promised[known]),
        )
        return _together(
            seen.newest_rows(),
            known[first],
            known[telling],
            _firsts(np.flatnonzero(refused), seen.partition, len(seen.partitions)),
        )

    def _sources(self, seen: Observed) -> tuple[list[str], np.ndarray, np.ndarray]:
        """The names of writers, the rows that name one, and the source (writer in a partition) of
        each.
        """
        writers = to_arrow(seen.table.column(self._writer)).cast(pa.string()).dictionary_encode()
        names = [str(name) for name in writers.dictionary.to_pylist()]
        known = np.flatnonzero(np.asarray(writers.is_valid().to_numpy(zero_copy_only=False)))
        return (
            names,
            known,
            seen.partition[known] * len(names)
            + writers.drop_null().indices.to_numpy(zero_copy_only=False),
        )

    def alive(self, seen: Observed) -> Promises:  # noqa: ARG002
        return _NOTHING


_BEYOND_TIME = MAX // 2
"""An instant 146,000 years from now."""


class _Generated(Generator):
    repeats = False

    def __init__(self, spec: Generated) -> None:
        self._function = spec.function
        self._name = spec.name
        self._state = spec.state

    def observe(self, seen: Observed) -> Promises:
        state = json.loads(self._state)
        times, readable, partition = (
            _unchangeable(column) for column in (seen.times, seen.readable, seen.partition)
        )
        answer = self._function(
            Observed(
                seen.table,
                times,
                readable,
                partition,
                list(seen.partitions),
                seen.now,
                seen.limit,
                state,
            )
        )
        values = np.full(len(seen.partitions), MIN) if answer is None else np.asarray(answer)
        if values.shape != (len(seen.partitions),) or not np.issubdtype(values.dtype, np.integer):
            raise WatermarkError(
                f"the watermark generator `{self._name}` must return one integer per partition"
                f" ({len(seen.partitions)}), got {values.dtype} of shape {values.shape}. Hint:"
                " np.full(len(observed.partitions), ...)"
            )
        # The state takes its stored form at once, so that a restart makes no difference, and an
        # error leaves the former one.
        self._state = json.dumps(state, default=_number)
        # A difference from `MIN` wraps around to an impossible instant; it is no promise.
        ahead = (values > seen.limit) | (values > _BEYOND_TIME)
        promised = np.where(ahead, 0, values).astype(np.int64)
        promised[ahead] = MIN
        return Promises(seen.partitions, promised, int(ahead.sum()))

    def condensed(self, seen: Observed) -> np.ndarray:
        # The columns that a user function reads are unknown.
        return np.arange(len(seen))

    def save(self) -> Any:
        return json.loads(self._state)

    def restore(self, document: Any) -> None:
        self._state = json.dumps(document)


def _unchangeable(column: np.ndarray) -> np.ndarray:
    """A read-only view of the column."""
    seen = column.view()
    seen.flags.writeable = False
    return seen


def _number(value: Any) -> Any:
    """The JSON form of NumPy numbers and columns."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(
        f"the state of a watermark generator is stored as JSON, and a {type(value).__name__}"
        " cannot be"
    )


def _back(distance: int) -> int:
    """Value minus distance; `MIN` for an infinite distance."""
    return MIN if distance == MAX else -distance


def _by_source(
    names: list[str], source: np.ndarray, promised: np.ndarray
) -> tuple[list[str], np.ndarray]:
    """The first and the last promise of each monotone source, and all promises of the others."""
    spoke = np.flatnonzero(promised > MIN)
    of, values = source[spoke], promised[spoke]
    if len(names) > 1:
        order = np.argsort(of, kind="stable")
        of, values = of[order], values[order]
    if len(values) > 1:
        same = of[1:] == of[:-1]
        if not (same & (values[1:] < values[:-1])).any():
            ends = np.concatenate([[True], ~same]) | np.concatenate([~same, [True]])
            of, values = of[ends], values[ends]
    silent = np.setdiff1d(np.arange(len(names)), of)
    return [names[n] for n in (*of.tolist(), *silent.tolist())], np.concatenate(
        [values, np.full(len(silent), MIN)]
    )


def _relevant(source: np.ndarray, many: int, promised: np.ndarray) -> np.ndarray:
    """The rows with the first and last promise of monotone sources, and all rows of the others."""
    spoke = np.flatnonzero(promised > MIN)
    rows = spoke[np.argsort(source[spoke], kind="stable")]
    of, values = source[rows], promised[rows]
    same = of[1:] == of[:-1]
    back = np.zeros(many, bool)
    back[of[1:][same & (values[1:] < values[:-1])]] = True
    ends = np.ones(len(rows), bool)
    ends[1:-1] = ~same[1:] | ~same[:-1]
    return rows[ends | back[of]]


def _firsts(rows: np.ndarray, group: np.ndarray, many: int) -> np.ndarray:
    """The first of the given rows in each group, ascending; `group` is the group of every row."""
    first = np.full(many, -1, np.int64)
    # Of several assignments the last one wins.
    first[group[rows[::-1]]] = rows[::-1]
    return np.sort(first[first >= 0])


def _together(*rows: np.ndarray) -> np.ndarray:
    """All of the rows, each once, ascending."""
    return np.unique(np.concatenate(rows))


def _promised(seen: Observed, column: str) -> tuple[np.ndarray, np.ndarray]:
    """The watermarks in rows, `MIN` for none; and a mask of unreadable and future ones."""
    times, verdict = read_times(seen.table.column(column), column)
    good = (verdict == OK) & (times <= seen.limit)
    missing = np.asarray(
        to_arrow(seen.table.column(column)).is_null().to_numpy(zero_copy_only=False)
    )
    return np.where(good, times, MIN), ~good & ~missing


def _label(partition: str, writer: str) -> str:
    """The last unescaped slash separates the two, so that no two writers have the same label."""
    bare = writer.replace("\\", "\\\\").replace("/", "\\/")
    return f"{partition}/{bare}" if partition else writer


def compile_generator(spec: Watermarks) -> Generator:
    """The generator of a specification."""
    match spec:
        case Implied():
            return _Following()
        case Explicit():
            return _Told()
        case Bounded(disorder=disorder) | PerKey(floor=disorder):
            return _Bounded(disorder)
        case Lagging(lag=lag):
            return _Lagging(lag)
        case Punctuated(column=str(column)):
            return _Punctuated(column)
        case Punctuated(marker=str(marker)):
            return _Marked(marker)
        case Noted(column=column, writer=writer):
            return _Noted(column, writer)
        case Generated():
            return _Generated(spec)
    raise WatermarkError(f"there is no generator for {spec}")


def columns_of(spec: Watermarks) -> list[str]:
    """The input columns that a watermark is read from, beside the time."""
    match spec:
        case Punctuated(column=column, marker=marker):
            return [name for name in (column, marker) if name is not None]
        case Noted(column=column, writer=writer):
            return [column, writer]
    return []


def check_columns(spec: Watermarks, schema: pa.Schema) -> None:
    """Reject columns that cannot hold a watermark."""
    match spec:
        case Punctuated(column=str(column)) | Noted(column=column):
            read_times(schema.empty_table().column(column), column)
        case Punctuated(marker=str(marker)):
            kind = _values_of(schema.field(marker).type)
            if not (pa.types.is_boolean(kind) or pa.types.is_null(kind)):
                raise InputError(
                    f"the marker column `{marker}` has type `{kind}`; it must be boolean."
                    " Hint: cast it to bool"
                )
    if isinstance(spec, Noted):
        kind = _values_of(schema.field(spec.writer).type)
        if pa.types.is_nested(kind):
            raise InputError(
                f"the writer column `{spec.writer}` has type `{kind}`; it must hold names. Hint:"
                " use texts or numbers"
            )


def _values_of(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind

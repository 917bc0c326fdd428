"""Frame: named columns of one length, the data structure of the kernel.

Columns are NumPy arrays where values are fixed-width and not null, and Arrow arrays otherwise.
NumPy columns are cheap to compare and to scatter into; Arrow columns hold nulls, strings, decimals
and nested values. Frames are immutable: every method returns a new one. Two names may share one
column, such as the number of rows and that of summed values: it moves once, and stays shared.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Column = np.ndarray | pa.Array
_FEW = 256
"""Up to this many equal values are made one by one, which is faster than asking Arrow for them."""
_LARGE = 65_536
"""From this many rows on, Arrow moves columns: its memory pool reuses pages, NumPy does not."""


def take(column: Column, index: np.ndarray) -> Column:
    """The values of a column at the given positions."""
    return Frame({"": column}, len(column)).take(index)[""]


def constant(value: Any, n: int) -> np.ndarray:
    """A column that holds one value n times in the memory of one."""
    one = np.asarray(value)
    # `np.broadcast_to` does the same in ten times the time, which small deliveries notice.
    column = np.ndarray((n,), one.dtype, one, strides=(0,))
    column.flags.writeable = False
    return column


def is_constant(column: Column) -> bool:
    """Whether a column was made by `constant`."""
    return isinstance(column, np.ndarray) and column.strides == (0,) and len(column) > 0


def _resized(column: np.ndarray, n: int) -> np.ndarray:
    """A constant column with another number of rows; a part of it is a view."""
    return column[:n] if n <= len(column) else constant(column[0], n)


def squeezed(column: np.ndarray) -> np.ndarray:
    """The column, as a constant where all values are equal."""
    if (
        len(column) < 2
        or is_constant(column)
        or column[0] != column[-1]
        or (column != column[0]).any()
    ):
        return column
    return constant(column[0], len(column))


def squeezed_all(columns: Mapping[str, Column]) -> dict[str, Column]:
    """The columns, with NumPy columns of one value as constants."""
    return {
        name: squeezed(column) if isinstance(column, np.ndarray) else column
        for name, column in columns.items()
    }


def shared(column: np.ndarray, *others: np.ndarray) -> np.ndarray:
    """The first of other columns that has the same values, or the column itself."""
    if is_constant(column) or not len(column):
        return column
    for other in others:
        if column[0] == other[0] and column[-1] == other[-1] and np.array_equal(column, other):
            return other
    return column


def concat(columns: Sequence[Column]) -> Column:
    """The columns concatenated; a mixture of NumPy and Arrow becomes Arrow."""
    # Frames of small deliveries have more columns than rows, so plain loops do it.
    first, total = columns[0], 0
    for column in columns:
        if not isinstance(column, np.ndarray):
            break
        total += len(column)
    else:
        if is_constant(first):
            value = first[0]
            for column in columns:
                if not is_constant(column) or column[0] != value:
                    break
            else:
                return constant(value, total)
        numeric = cast("Sequence[np.ndarray]", columns)
        if total < _LARGE or numeric[0].dtype == bool:
            return np.concatenate(numeric)
        return pa.concat_arrays([to_arrow(column) for column in numeric]).to_numpy()
    arrays = [to_arrow(column) for column in columns]
    wanted = typed([array.type for array in arrays])
    return pa.concat_arrays([a if a.type == wanted else a.cast(wanted) for a in arrays])


def is_untyped(kind: pa.DataType) -> bool:
    """Whether a type is not known yet: of nulls, or of nested values with such a part."""
    if pa.types.is_nested(kind):
        return any(is_untyped(kind.field(part).type) for part in range(kind.num_fields))
    return bool(pa.types.is_null(kind))


def typed(kinds: Sequence[pa.DataType]) -> pa.DataType:
    """The first of these types, with the parts that only later ones know."""
    found = kinds[0]
    for kind in kinds[1:]:
        if not is_untyped(found):
            break
        schemas = [pa.schema([("", one)]) for one in (found, kind)]
        with contextlib.suppress(pa.ArrowException):
            found = pa.unify_schemas(schemas).field(0).type
    return found


def cast_to(column: pa.Array | pa.ChunkedArray, kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
    """A column cast to a type; nested values become text as in Python."""
    if column.type == kind:
        return column
    if pa.types.is_nested(column.type) and (
        pa.types.is_string(kind) or pa.types.is_large_string(kind)
    ):
        return pa.array(
            [None if value is None else str(value) for value in column.to_pylist()], kind
        )
    return column.cast(kind)


def to_arrow(column: Column | pa.ChunkedArray) -> pa.Array:
    """The column as one contiguous Arrow array."""
    if isinstance(column, pa.ChunkedArray):
        chunks: list[pa.Array] = column.chunks
        return (
            chunks[0]
            if len(chunks) == 1
            else pa.concat_arrays([pa.array([], column.type), *chunks])
        )
    if not isinstance(column, np.ndarray):
        return column
    return (
        repeat(column[0], len(column), pa.from_numpy_dtype(column.dtype))
        if len(column) > _FEW and is_constant(column)
        else pa.array(column)
    )


def to_numpy(column: Column) -> np.ndarray:
    """The column as NumPy, copied only where the layout of Arrow requires it."""
    return column if isinstance(column, np.ndarray) else column.to_numpy(zero_copy_only=False)


def plain(array: pa.Array) -> Column:
    """A column without nulls and of fixed width as NumPy, any other as Arrow."""
    is_plain = (
        pa.types.is_integer(array.type)
        or pa.types.is_floating(array.type)
        or pa.types.is_boolean(array.type)
    ) and array.null_count == 0
    return array.to_numpy(zero_copy_only=False) if is_plain else array


def values_of(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """The values in Python; what Python has no value for, such as the year 10000, is text."""
    try:
        return column.to_pylist()
    except (ValueError, OverflowError, LookupError):
        return [_value_or_text(column, row) for row in range(len(column))]


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    """The rows in Python, with values as `values_of` returns them."""
    columns = [values_of(column) for column in table.columns]
    return [dict(zip(table.column_names, row, strict=True)) for row in zip(*columns, strict=True)]


def _value_or_text(column: pa.Array | pa.ChunkedArray, row: int) -> Any:
    scalar = column[row]
    try:
        return scalar.as_py()
    except (ValueError, OverflowError, LookupError):
        pass
    try:
        return scalar.cast(pa.string()).as_py()
    except (pa.ArrowException, ValueError, OverflowError, LookupError):
        return f"a value of type {scalar.type}"


def repeat(value: Any, n: int, type: pa.DataType | None = None) -> pa.Array:
    """A column that holds one value n times."""
    if n <= _FEW:
        return pa.array([value] * n, pa.array([value]).type if n == 0 and type is None else type)
    one = pa.array([value], type)
    # Arrow repeats plain values faster than it takes them, but does not repeat lists.
    if pa.types.is_nested(one.type):
        return one.take(pa.array(np.zeros(n, np.int64)))
    return pa.repeat(one[0], n)  # type: ignore[arg-type]


def recast(array: pa.Array, type: pa.DataType) -> pa.Array:
    """Values from before the type of a column was known (nulls, lists of nulls) in this type."""
    if array.type == type or array.null_count == len(array):
        return array if array.type == type else repeat(None, len(array), type)
    try:
        return array.cast(type, safe=False)
    except pa.ArrowNotImplementedError:
        return pa.array(array.to_pylist(), type)


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """Named columns of one length."""

    columns: Mapping[str, Column]
    length: int

    @classmethod
    def of(cls, columns: Mapping[str, Column], length: int | None = None) -> Frame:
        if length is None:
            length = len(next(iter(columns.values())))
        return cls(dict(columns), length)

    @classmethod
    def empty_like(cls, other: Frame) -> Frame:
        return other.slice(0, 0)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, name: str) -> Column:
        return self.columns[name]

    def __contains__(self, name: object) -> bool:
        return name in self.columns

    @property
    def names(self) -> list[str]:
        return list(self.columns)

    def ints(self, name: str) -> np.ndarray:
        """A column as NumPy; Arrow columns are converted."""
        return to_numpy(self.columns[name])

    def with_columns(self, **columns: Column) -> Frame:
        return Frame({**self.columns, **columns}, self.length)

    def with_mapping(self, columns: Mapping[str, Column]) -> Frame:
        return Frame({**self.columns, **columns}, self.length)

    def select(self, names: Iterable[str]) -> Frame:
        return Frame({name: self.columns[name] for name in names}, self.length)

    def drop(self, names: Iterable[str]) -> Frame:
        gone = set(names)
        return Frame({name: c for name, c in self.columns.items() if name not in gone}, self.length)

    def rename(self, names: Mapping[str, str]) -> Frame:
        return Frame({names.get(name, name): c for name, c in self.columns.items()}, self.length)

    def take(self, index: np.ndarray) -> Frame:
        """The rows at the given positions."""
        # Frames of small deliveries have more columns than rows: this loop is their time.
        n, places, columns = len(index), None, dict[str, Column]()
        done: dict[int, Column] = {}
        for name, column in self.columns.items():
            taken = done.get(id(column))
            if taken is None:
                if not isinstance(column, np.ndarray):
                    places = pa.array(index) if places is None else places
                    taken = column.take(places)
                elif column.strides == (0,):
                    taken = _resized(column, n)
                elif n < _LARGE or column.dtype == bool:
                    taken = column[index]
                else:
                    places = pa.array(index) if places is None else places
                    taken = to_arrow(column).take(places).to_numpy()
                done[id(column)] = taken
            columns[name] = taken
        return Frame(columns, n)

    def where(self, mask: np.ndarray) -> Frame:
        if mask.all():
            return self
        return self.take(mask.nonzero()[0])

    def replaced(self, index: np.ndarray, other: Frame) -> Frame:
        """The frame with other values, in the columns of `other`, at some distinct rows."""
        if len(index) == self.length and (index == np.arange(self.length)).all():
            return self.with_mapping(other.columns)
        pick = np.arange(self.length)
        pick[index] = self.length + np.arange(len(index))
        columns: dict[str, Column] = {}
        done: dict[tuple[int, int], Column] = {}
        for name, new in other.columns.items():
            old = self.columns[name]
            both = id(old), id(new)
            if both in done:
                columns[name] = done[both]
            elif is_constant(old) and is_constant(new) and old[0] == new[0]:
                columns[name] = old
            elif isinstance(old, np.ndarray) and isinstance(new, np.ndarray):
                column = old.copy()
                column[index] = new
                columns[name] = column
            else:
                columns[name] = take(concat([old, new]), pick)
            done[both] = columns[name]
        return self.with_mapping(columns)

    def slice(self, start: int, stop: int) -> Frame:
        size = max(0, stop - start)
        cut = {
            id(c): c[start:stop] if isinstance(c, np.ndarray) else c.slice(start, size)
            for c in self.columns.values()
        }
        return Frame({name: cut[id(c)] for name, c in self.columns.items()}, size)

    @property
    def nbytes(self) -> int:
        return sum(
            c.dtype.itemsize if isinstance(c, np.ndarray) and is_constant(c) else int(c.nbytes)
            for c in {id(c): c for c in self.columns.values()}.values()
        )

    def to_table(self) -> pa.Table:
        if not self.columns:
            return pa.table({})
        return pa.table({name: to_arrow(c) for name, c in self.columns.items()})

    @classmethod
    def from_table(cls, table: pa.Table) -> Frame:
        """The inverse of `to_table`: fixed-width columns without nulls come back as NumPy."""
        columns = {name: plain(to_arrow(table.column(name))) for name in table.column_names}
        return cls(columns, table.num_rows)


def concat_frames(frames: Sequence[Frame]) -> Frame:
    """The rows of all frames in order; every frame has the same columns."""
    frames = [f for f in frames if len(f)] or list(frames[:1])
    if len(frames) == 1:
        return frames[0]
    return combined(frames, concat, sum(len(f) for f in frames))


def combined(
    frames: Sequence[Frame], combine: Callable[[list[Column]], Column], rows: int
) -> Frame:
    """The columns of frames combined by name; names that share their columns keep doing so."""
    columns: dict[str, Column] = {}
    done: dict[tuple[int, ...], Column] = {}
    for name in frames[0].columns:
        parts = [frame.columns[name] for frame in frames]
        same = tuple(map(id, parts))
        if same not in done:
            done[same] = combine(parts)
        columns[name] = done[same]
    return Frame(columns, rows)


def equal_rows(left: Column, right: Column) -> np.ndarray:
    """Which rows of two columns are equal; null equals null, NaN equals NaN."""
    if isinstance(left, np.ndarray) and isinstance(right, np.ndarray):
        same = left == right
        if left.dtype.kind == "f" and right.dtype.kind == "f":
            same |= np.isnan(left) & np.isnan(right)
        return same
    a, b = to_arrow(left), to_arrow(right)
    if pa.types.is_nested(a.type) or a.type != b.type:
        return np.fromiter(map(_is_same, values_of(a), values_of(b)), bool, len(a))
    same = pc.or_(pc.fill_null(pc.equal(a, b), False), pc.and_(a.is_null(), b.is_null()))
    if pa.types.is_floating(a.type):
        same = pc.or_(same, pc.fill_null(pc.and_(pc.is_nan(a), pc.is_nan(b)), False))
    return same.to_numpy(zero_copy_only=False)


def _is_same(left: Any, right: Any) -> bool:
    """Whether two values of a nested column are equal."""
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(_is_same, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_is_same(left[k], right[k]) for k in left)
    if isinstance(left, float) and isinstance(right, float) and math.isnan(left):
        return math.isnan(right)
    return bool(left == right)


def search_sorted(
    frame: Frame, query: Frame, columns: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    """The first position whose columns are not below the query's, and whether they are equal.

    The frame is sorted by the columns.
    """
    columns = _telling(frame, query, columns)
    first = frame.ints(columns[0])
    wanted = query.ints(columns[0])
    low = np.searchsorted(first, wanted, "left")
    if len(columns) > 1:
        high = _end_of_equal(first, wanted, low)
        rest = [(frame.ints(name), query.ints(name)) for name in columns[1:]]
        while True:
            open_rows = np.flatnonzero(low < high)
            if not len(open_rows):
                break
            middle = (low[open_rows] + high[open_rows]) // 2
            below = _is_below([(stored[middle], asked[open_rows]) for stored, asked in rest])
            low[open_rows[below]] = middle[below] + 1
            high[open_rows[~below]] = middle[~below]
    inside = low < len(frame)
    equal = inside.copy()
    safe = np.minimum(low, max(0, len(frame) - 1))
    for name in columns:
        equal &= frame.ints(name)[safe] == query.ints(name) if len(frame) else False
    return low, equal


def _telling(frame: Frame, query: Frame, columns: Sequence[str]) -> Sequence[str]:
    """The first column, and those of the others that are not one value everywhere."""
    if len(columns) == 1:
        return columns
    return [
        columns[0],
        *(
            name
            for name in columns[1:]
            if not (
                is_constant(frame[name])
                and is_constant(query[name])
                and frame[name][0] == query[name][0]
            )
        ),
    ]


def _end_of_equal(stored: np.ndarray, wanted: np.ndarray, low: np.ndarray) -> np.ndarray:
    """One past the last value that equals the wanted one, whose first position is `low`.

    Most values occur once or not at all.
    """
    if not len(stored):
        return low.copy()
    last = len(stored) - 1
    here = (stored[np.minimum(low, last)] == wanted) & (low <= last)
    again = np.flatnonzero(here & (low < last) & (stored[np.minimum(low + 1, last)] == wanted))
    high = low + here
    high[again] = np.searchsorted(stored, wanted[again], "right")
    return high


def _is_below(pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """Which left tuples are below the right ones."""
    below = np.zeros(len(pairs[0][0]), bool)
    tied = np.ones(len(below), bool)
    for left, right in pairs:
        below |= tied & (left < right)
        tied &= left == right
    return below


def search_sorted_end(
    frame: Frame, keys: Frame, columns: Sequence[str], low: np.ndarray
) -> np.ndarray:
    """One past the last row whose columns equal the keys, where the first one is `low`."""
    columns = _telling(frame, keys, columns)
    if len(columns) == 1:
        return _end_of_equal(frame.ints(columns[0]), keys.ints(columns[0]), low)
    high = np.searchsorted(frame.ints(columns[0]), keys.ints(columns[0]), "right")
    bottom = low.copy()
    rest = [(frame.ints(name), keys.ints(name)) for name in columns[1:]]
    while rest:
        open_rows = np.flatnonzero(bottom < high)
        if not len(open_rows):
            break
        middle = (bottom[open_rows] + high[open_rows]) // 2
        above = _is_below([(asked[open_rows], stored[middle]) for stored, asked in rest])
        high[open_rows[above]] = middle[above]
        bottom[open_rows[~above]] = middle[~above] + 1
    return high

"""Arrow tables from outside: columns of plain types whose values are valid, and marks for the rest.

Arrow checks neither texts nor times when a table is made or read. A value that is not valid would
be stored, and its state could never be read again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.errors import InputError
from tidegate.kernel.frame import to_arrow
from tidegate.operators.ingest.schema_cast import BROKEN, with_errors
from tidegate.state.arrow_types import check_types, validate

MAX_NESTING = 32
"""How deep lists and dictionaries in a value may be nested; Arrow stores at most 64 levels."""
_RAW: tuple[tuple[Callable[[pa.DataType], bool], pa.DataType], ...] = (
    (pa.types.is_string, pa.binary()),
    (pa.types.is_large_string, pa.large_binary()),
    (pa.types.is_time32, pa.int32()),
    (pa.types.is_time64, pa.int64()),
    (pa.types.is_date64, pa.int64()),
)
"""Types with values that are not valid, and a type of the same bytes without such values."""


def checked(table: pa.Table) -> pa.Table:
    """The table with plain columns; raises `InputError` for columns that state cannot hold.

    Rows with values that are not valid are marked as broken.
    """
    check_unique(table.column_names)
    if BROKEN in table.column_names:
        raise InputError(f"the column name {BROKEN!r} is reserved. Hint: rename the column")
    try:
        check_types(table.schema)
    except pa.ArrowInvalid as error:
        raise InputError(f"{error}. Hint: cast the column") from None
    for number, field in enumerate(table.schema):
        _check_nesting(field)
        kind = plain_type(field.type)
        if kind != field.type:
            column = _plain(table.column(number), field.name, kind)
            table = table.set_column(number, field.name, column)
    try:
        return valid(table)
    except pa.ArrowException as error:
        raise InputError(
            f"the table is damaged: {error}. Hint: read it again, and check it with"
            " `table.validate(full=True)`"
        ) from None


def check_unique(names: Sequence[str]) -> None:
    """Raise `InputError` if two columns have the same name."""
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise InputError(
            "the columns of a message have different names, got"
            f" {', '.join(f'`{name}`' for name in twice)} more than once. Hint: rename one of them"
        )


def _check_nesting(field: pa.Field) -> None:
    level, depth = [field.type], 0
    while level:
        if depth > MAX_NESTING:
            raise InputError(
                f"the column `{field.name}` is nested more than {MAX_NESTING} deep. Hint: flatten"
                " it, or pass it as text"
            )
        if any(pa.types.is_union(kind) for kind in level):
            raise InputError(
                f"the column `{field.name}` is a union ({field.type}), which state cannot hold."
                " Hint: divide it into a column per type"
            )
        children = [_children(kind) for kind in level if pa.types.is_nested(kind)]
        if any(
            len({child.name for child in inner}) < len(inner)
            for inner, kind in zip(children, filter(pa.types.is_nested, level), strict=True)
            if pa.types.is_struct(kind)
        ):
            raise InputError(
                f"the column `{field.name}` ({field.type}) has two fields of one name. Hint: rename"
                " one of them"
            )
        level, depth = [child.type for inner in children for child in inner], depth + 1


def _children(kind: pa.DataType) -> list[pa.Field]:
    return [kind.field(number) for number in range(kind.num_fields)]


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type of the same values that every function of Arrow accepts."""
    if isinstance(kind, pa.BaseExtensionType):
        return plain_type(kind.storage_type)
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return plain_type(kind.value_type)
    if pa.types.is_string_view(kind):
        return pa.large_string()
    if pa.types.is_binary_view(kind):
        return pa.large_binary()
    return _with_children(kind, plain_type)


def _with_children(kind: pa.DataType, change: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """A nested type with other types inside; views of lists become lists."""
    if not pa.types.is_nested(kind):
        return kind
    inner = [child.with_type(change(child.type)) for child in _children(kind)]
    if pa.types.is_struct(kind):
        return pa.struct(inner)
    if pa.types.is_map(kind):
        return pa.map_(change(kind.key_type), change(kind.item_type))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(inner[0], kind.list_size)
    if pa.types.is_large_list(kind) or pa.types.is_large_list_view(kind):
        return pa.large_list(inner[0])
    if pa.types.is_list(kind) or pa.types.is_list_view(kind):
        return pa.list_(inner[0])
    return kind


def plain(array: pa.Array) -> pa.Array:
    """The same values in a plain type."""
    return _plain_array(array, plain_type(array.type))


def _plain(column: pa.ChunkedArray, name: str, kind: pa.DataType) -> pa.ChunkedArray:
    try:
        column.validate(full=True)
        arrays = [_plain_array(chunk, kind) for chunk in column.chunks]
        return pa.chunked_array(arrays or [pa.array([], kind)])
    except (pa.ArrowException, OverflowError, ValueError, TypeError) as error:
        raise InputError(
            f"the column `{name}` of type `{column.type}` cannot be read as `{kind}`: {error}."
            " Hint: cast it to a plain type"
        ) from None


def _plain_array(array: Any, kind: pa.DataType) -> pa.Array:
    if array.type == kind:
        return array
    if isinstance(array.type, pa.BaseExtensionType):
        return _plain_array(array.storage, kind)
    if pa.types.is_dictionary(array.type):
        return _plain_array(array.dictionary, kind).take(array.indices)
    if pa.types.is_run_end_encoded(array.type):
        runs = pa.array(range(len(array.run_ends)), pa.int64())
        run = pc.run_end_decode(pa.RunEndEncodedArray.from_arrays(array.run_ends, runs))
        values = _plain_array(array.values, kind)
        return values.take(run.slice(array.offset, len(array)))
    try:
        made = array.cast(kind)
        # Arrow casts a slice of a view of lists to lists with wrong offsets.
        made.validate(full=True)
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        made = pa.array(array.to_pylist(), kind)
    return made


def valid(table: pa.Table) -> pa.Table:
    """The table without values that are not valid; their rows are marked as broken.

    Raises `ArrowInvalid` if the table has other damage: lengths or offsets that are wrong.
    """
    try:
        validate(table)
    except pa.ArrowInvalid:
        problems: dict[int, str] = {}
        for number, field in enumerate(table.schema):
            if field.name != BROKEN:
                column = _valid(table.column(number), field, problems)
                table = table.set_column(number, field, column)
        return with_errors(table, problems)
    return table


def _valid(
    column: pa.ChunkedArray, field: pa.Field, problems: dict[int, str]
) -> pa.ChunkedArray | pa.Array:
    """The column with null for values that are not valid; `problems` gets their rows."""
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        for chunk in column.chunks:
            chunk.validate()
            chunk.view(_raw_type(field.type)).validate(full=True)
    else:
        return column
    array = to_arrow(column)
    rows = _invalid_rows(array)
    pieces, done = [pa.nulls(0, field.type)], 0
    for row in rows:
        problems.setdefault(row, f"`{field.name}` should be {field.type}, got {_shown(array, row)}")
        pieces += [array.slice(done, row - done), pa.nulls(1, field.type)]
        done = row + 1
    return pa.concat_arrays([*pieces, array.slice(done)])


def _raw_type(kind: pa.DataType) -> pa.DataType:
    """A type of the same bytes in which every value is valid."""
    if pa.types.is_decimal(kind):
        return pa.binary(kind.byte_width)
    raw = next((raw for holds, raw in _RAW if holds(kind)), None)
    return _with_children(kind, _raw_type) if raw is None else raw


def _invalid_rows(array: pa.Array) -> list[int]:
    """The rows with a value that is not valid, in order, by bisection."""
    found, ranges = [], [(0, len(array))]
    while ranges:
        low, high = ranges.pop()
        try:
            # A slice of structs shares their whole children.
            array.take(pa.array(range(low, high), pa.int64())).validate(full=True)
        except pa.ArrowInvalid:
            middle = (low + high) // 2
            if middle == low:
                found.append(low)
            else:
                ranges += [(middle, high), (low, middle)]
    return found


def _shown(array: pa.Array, row: int) -> str:
    one = array.slice(row, 1).view(_raw_type(array.type))
    why = ", not UTF-8" if "inary" in str(one.type) else ", which is not valid"
    return f"{one[0].as_py()!r}"[:200] + why

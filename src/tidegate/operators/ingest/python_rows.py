"""Conversion of messages in any Python form to Arrow tables."""

from __future__ import annotations

import reprlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from types import NoneType
from typing import Any, cast

import numpy as np
import pyarrow as pa

from tidegate.errors import InputError
from tidegate.operators.ingest.arrow_rows import MAX_NESTING, check_unique, checked, plain
from tidegate.operators.ingest.schema_cast import BROKEN

_SHOWN = 200
"""Maximum length of a value in a message."""
_DECIMAL = pa.decimal128(38, 10)
_FLAT: set[type] = {
    NoneType,
    bool,
    int,
    float,
    str,
    bytes,
    Decimal,
    date,
    datetime,
    time,
    timedelta,
}


def to_table(rows: Any, schema: pa.Schema | None) -> pa.Table:
    """Messages as a table: Arrow tables and batches, pandas frames, and dictionaries.

    A row with a value that does not fit its column is marked as broken, in the column `BROKEN`.
    """
    if isinstance(rows, Mapping):
        return _from_dicts([rows], schema)
    if isinstance(rows, pa.Table):
        return checked(rows)
    if isinstance(rows, pa.RecordBatch):
        return checked(pa.Table.from_batches([rows]))
    if type(rows).__module__.partition(".")[0] == "pandas" and hasattr(rows, "columns"):
        return _from_pandas(rows, schema)
    if hasattr(rows, "__arrow_c_stream__"):
        return checked(_exported(rows))
    if isinstance(rows, Sequence) and all(isinstance(row, Mapping) for row in rows):
        return _from_dicts(rows, schema)
    raise InputError(
        "messages are an Arrow table, a pandas frame or a list of dictionaries, got"
        f" {type(rows).__name__}"
    )


def _exported(rows: Any) -> pa.Table:
    """The rows of an object with the Arrow C stream interface."""
    try:
        return pa.table(rows)
    except Exception as error:
        raise InputError(
            f"a {type(rows).__name__} cannot be read as an Arrow table: {error}. Hint: pass an"
            " Arrow table"
        ) from error


def _from_pandas(frame: Any, schema: pa.Schema | None) -> pa.Table:
    check_unique([name if isinstance(name, str) else shown(name) for name in frame.columns])
    flat = not any(
        _unreadable(value)
        for number, kind in enumerate(frame.dtypes)
        if kind.kind == "O"
        for value in frame.iloc[:, number]
        if type(value) not in _FLAT
    )
    if flat:
        try:
            table = pa.Table.from_pandas(frame, preserve_index=False)
        except Exception:  # noqa: BLE001 - values of any class may be in a frame
            flat = False
    if not flat:
        # `to_dict` converts values, and fails for some.
        columns = [frame.iloc[:, number].tolist() for number in range(len(frame.columns))]
        names = list(frame.columns)
        rows = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
        return _from_dicts(rows, schema)
    return checked(table.replace_schema_metadata(None))


def _from_dicts(rows: Sequence[Mapping[str, Any]], schema: pa.Schema | None) -> pa.Table:
    known = [] if schema is None else schema.names
    problems: dict[int, str] = {}
    names = list(dict.fromkeys([*known, *(_exact(name) for row in rows for name in row)]))
    wrong = {name for name in names if not _is_name(name)}
    if wrong:
        names = [name for name in names if name not in wrong]
        for number, row in enumerate(rows):
            found = [name for name in row if name in wrong]
            if found:
                problems[number] = f"{shown(found[0])} is no name of a column"
    columns: dict[str, pa.Array] = {}
    for name in cast("list[str]", names):
        kind = schema.field(name).type if schema is not None and name in known else None
        columns[name] = _column(name, [row.get(name) for row in rows], kind, problems)
    if problems:
        columns[BROKEN] = pa.array([problems.get(row) for row in range(len(rows))], pa.string())
    return pa.table(columns)


def _exact(name: object) -> object:
    """A text of a subclass, such as an enumeration or a NumPy scalar, as plain text."""
    return str.__str__(name) if isinstance(name, str) else name


def _is_name(name: object) -> bool:
    """Whether a key of a dictionary can name a column: text that UTF-8 can hold."""
    if not isinstance(name, str) or name == BROKEN:
        return False
    return name.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in name)


def _column(
    name: str, values: list[Any], kind: pa.DataType | None, problems: dict[int, str]
) -> pa.Array:
    """The values in their own type; the operator casts them, and finds those that do not fit."""
    if not _FLAT.issuperset(map(type, values)):
        for row, value in enumerate(values):
            if problem := _unreadable(value):
                problems[row] = f"`{name}` {problem}"
                values[row] = None
    given = kind if kind is not None and holds_map(kind) else None
    try:
        array = plain(pa.array(values, given))
    except Exception:  # noqa: BLE001 - a value may be of any class
        return _column_one_by_one(name, values, kind, problems)
    # The precision of a first decimal is no limit for the next ones.
    return (
        array.cast(_DECIMAL, safe=False)
        if kind is None and pa.types.is_decimal(array.type) and array.type.scale <= _DECIMAL.scale
        else array
    )


def holds_map(kind: pa.DataType) -> bool:
    """Whether a type is a map or has one inside, which a dictionary alone does not show."""
    return pa.types.is_map(kind) or any(
        holds_map(kind.field(number).type) for number in range(kind.num_fields)
    )


def _unreadable(value: Any) -> str:
    """Why a value cannot be read: it is nested deeper than the limit, as one that contains itself
    is, or its class fails. Empty for other values.
    """
    level, depth = [value], 0
    try:
        while level and depth <= MAX_NESTING:
            # Only levels are counted, so an object that is shared is looked at once per level.
            inner = {id(one): one for found in level for one in _items(found)}
            level, depth = list(inner.values()), depth + 1
    except Exception as error:  # noqa: BLE001 - the class of a value may be any
        return f"cannot be read: {shown(error)}"
    return f"is nested more than {MAX_NESTING} deep" if level else ""


def _items(value: Any) -> Iterable[Any]:
    """The values inside a value that may be nested themselves."""
    if isinstance(value, Mapping):
        value = value.values()
    elif isinstance(value, np.ndarray):
        value = value.tolist() if value.dtype == object else ()
    elif not isinstance(value, list | tuple | set | frozenset):
        return ()
    return [one for one in value if type(one) not in _FLAT]


def _column_one_by_one(
    name: str, values: list[Any], kind: pa.DataType | None, problems: dict[int, str]
) -> pa.Array:
    """The values of a column with broken rows, cast one by one; `problems` gets those rows.

    The type is the known one, or that of most values, so that a broken one decides nothing; of the
    first one where several types are as frequent.
    """
    if kind is None or pa.types.is_null(kind):
        types = Counter(a.type for a in map(_alone, values) if a is not None)
        del types[pa.null()]
        kind = max(types, key=lambda one: types[one], default=pa.null())
    given = kind if holds_map(kind) else None
    kept: list[Any] = []
    for row, value in enumerate(values):
        array = _alone(value, given)
        try:
            kept.append(None if array is None else array.cast(kind)[0].as_py())
            fits = array is not None
        except Exception:  # noqa: BLE001 - a value may be of any class
            kept.append(None)
            fits = False
        if not fits:
            problems[row] = f"`{name}` should be {kind}, got {shown(value)}"
    return pa.array(kept, kind)


def _alone(value: Any, kind: pa.DataType | None = None) -> pa.Array | None:
    """One value as an array; None if Arrow has no type for it. The `NaT` of pandas is null."""
    try:
        return plain(pa.array([None if type(value).__name__ == "NaTType" else value], kind))
    except Exception:  # noqa: BLE001 - a value may be of any class
        return None


def shown(value: object) -> str:
    """A value as text for a message: short, in UTF-8, and never an error."""
    try:
        text = repr(value) if type(value) in _FLAT else reprlib.repr(value)
    except Exception:  # noqa: BLE001 - the class of a value defines how it is shown
        text = f"a value of type {type(value).__name__}"
    return text[:_SHOWN].encode("utf-8", "backslashreplace").decode()

"""The identity of a key that a caller asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.errors import InputError
from tidegate.kernel.keys import KeyHasher
from tidegate.operators.ingest.python_rows import shown


def key_identity(
    key: Any, names: Sequence[str], schema: pa.Schema, noun: str, hasher: KeyHasher
) -> tuple[np.uint64, np.uint64]:
    """The hash and the check of a key: one value, a tuple, or a dictionary by column name."""
    values = (
        [key.get(name) for name in names]
        if isinstance(key, Mapping)
        else list(key)
        if isinstance(key, tuple)
        else [key]
    )
    if len(values) != len(names) or (isinstance(key, Mapping) and set(key) != set(names)):
        raise InputError(
            f"the {noun} are {list(names)}, got {shown(key)}. Hint: give a value, a tuple or a"
            " dictionary"
        )
    columns = [
        _column(value, schema.field(name)) for name, value in zip(names, values, strict=True)
    ]
    key_hash, key_check = hasher.identify(columns, 1)
    return key_hash[0], key_check[0]


def _column(value: Any, field: pa.Field) -> pa.Array:
    try:
        return pa.array([value], field.type)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise InputError(
            f"the column `{field.name}` of the key is of type {field.type}, got {shown(value)}."
            " Hint: pass a value of that type"
        ) from error

"""Checks of the types of Arrow data from outside, and of its values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

MAX_NESTING = 64
"""The maximum depth of nested types."""
MAX_SCALE = 76
"""The maximum scale of decimals, which is also their maximum precision."""

_TEXTS: dict[pa.DataType, tuple[pa.DataType, np.dtype[Any]]] = {
    pa.string(): (pa.binary(), np.dtype(np.int32)),
    pa.large_string(): (pa.large_binary(), np.dtype(np.int64)),
}
"""Types of text, the type of their bytes, and of their offsets."""


def validate(table: pa.Table) -> None:
    """Check lengths, offsets and values of a table in full; raises `ArrowInvalid`.

    Whatever reads a table before may crash the process.
    """
    table.validate()
    for column in table.columns:
        for array in column.chunks:
            if not _is_ascii(array):
                array.validate(full=True)


def _is_ascii(array: pa.Array) -> bool:
    """Whether an array has texts in ASCII only, which needs no look at each of them.

    Raises `ArrowInvalid` for offsets that are wrong.
    """
    raw, offset = _TEXTS.get(array.type, (None, None))
    if raw is None or offset is None or not len(array):
        return False
    array.view(raw).validate(full=True)
    _, bounds, data = array.buffers()
    if bounds is None or data is None:
        return False
    ends = np.frombuffer(memoryview(bounds), offset, len(array) + 1, array.offset * offset.itemsize)
    texts = np.frombuffer(memoryview(data), np.uint8)[ends[0] : ends[-1]]
    return not len(texts) or int(texts.max()) < 128


def check_types(schema: pa.Schema) -> None:
    """`ArrowInvalid` for types on which Arrow's functions crash or recurse without bound."""
    for field in schema:
        level, depth = [field.type], 0
        while level:
            depth += 1
            if depth > MAX_NESTING:
                raise pa.ArrowInvalid(f"`{field.name}` is nested more than {MAX_NESTING} deep")
            for kind in level:
                if pa.types.is_decimal(kind) and abs(kind.scale) > MAX_SCALE:
                    raise pa.ArrowInvalid(
                        f"`{field.name}` has decimals of scale {kind.scale}, at most {MAX_SCALE}"
                        " are possible"
                    )
            level = [child for kind in level for child in _children(kind)]


def _children(kind: pa.DataType) -> list[pa.DataType]:
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return [kind.value_type]
    if isinstance(kind, pa.BaseExtensionType):
        return [kind.storage_type]
    if pa.types.is_nested(kind):
        return [kind.field(number).type for number in range(kind.num_fields)]
    return []

"""Checks of the types of Arrow data from outside, which Arrow itself does not validate."""

from __future__ import annotations

import pyarrow as pa

MAX_NESTING = 64
"""The maximum depth of nested types."""
MAX_SCALE = 76
"""The maximum scale of decimals, which is also their maximum precision."""


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

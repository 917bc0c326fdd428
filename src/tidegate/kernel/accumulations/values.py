"""NumPy views of Arrow arrays: raw values, validity, and integer keys in the order of the
values.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.kernel.frame import Column, to_arrow

_TOP = np.int64(-(2**63))
_INT32_BASED = (pa.date32(), pa.time32("s"), pa.time32("ms"))


def storage_dtype(type: pa.DataType) -> np.dtype | None:
    """The NumPy type for the values of a fixed-width Arrow type; None if there is none."""
    if pa.types.is_integer(type) or pa.types.is_floating(type) or pa.types.is_boolean(type):
        return np.dtype(type.to_pandas_dtype())
    if type in _INT32_BASED:
        return np.dtype(np.int32)
    return (
        np.dtype(np.int64)
        if pa.types.is_temporal(type) and not pa.types.is_interval(type)
        else None
    )


def storage_type(type: pa.DataType) -> pa.DataType:
    """The Arrow storage type: int64 for a timestamp."""
    dtype = storage_dtype(type)
    return type if dtype is None else pa.from_numpy_dtype(dtype)


def storage(array: pa.Array) -> np.ndarray:
    """The raw values of a fixed-width array; arbitrary at nulls."""
    dtype = storage_dtype(array.type)
    if dtype is None:
        raise TypeError(f"{array.type} has no NumPy storage")
    if dtype == np.bool_:
        return pc.fill_null(array, False).to_numpy(zero_copy_only=False)
    data = array.buffers()[1]
    if data is None:
        return np.zeros(len(array), dtype)
    return np.frombuffer(memoryview(data), dtype, len(array), array.offset * dtype.itemsize)


def valid(array: pa.Array) -> np.ndarray | None:
    """Mask of non-null values; None if all are."""
    return array.is_valid().to_numpy(zero_copy_only=False) if array.null_count else None


def from_storage(values: np.ndarray, present: np.ndarray | None, type: pa.DataType) -> pa.Array:
    """Raw values as an Arrow array of a type; null where absent."""
    mask = None if present is None or present.all() else ~present
    array = pa.array(np.ascontiguousarray(values), mask=mask)
    return array if array.type == type else array.view(type)


def typed(column: Column, type: pa.DataType) -> pa.Array:
    """A partial column in its declared type; a frame may have converted it to NumPy."""
    array = to_arrow(column)
    return array if array.type == type else array.cast(type)


def typed_list(column: Column, type: pa.DataType) -> pa.ListArray:
    """A partial column that holds lists."""
    return cast("pa.ListArray", typed(column, type))


def to_floats(array: pa.Array) -> np.ndarray:
    """Numbers as float64; NaN where null."""
    return array.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)


def orderable(type: pa.DataType) -> bool:
    """Whether values of a type can be ordered."""
    if pa.types.is_struct(type):
        return all(orderable(type.field(i).type) for i in range(type.num_fields))
    texts = (
        pa.types.is_string(type)
        or pa.types.is_large_string(type)
        or pa.types.is_binary(type)
        or pa.types.is_large_binary(type)
    )
    return (
        texts
        or pa.types.is_fixed_size_binary(type)
        or pa.types.is_decimal(type)
        or storage_dtype(type) is not None
    )


def sort_keys(array: pa.Array, *, nan_first: bool = True) -> np.ndarray:
    """int64 keys in the order of the values of this array (arbitrary at nulls).

    NaN sorts below or above all numbers.
    """
    dtype = storage_dtype(array.type)
    if dtype is None:
        return _ranks(array)
    values = storage(array)
    if dtype.kind == "f":
        bits = (values.astype(np.float64) + 0.0).view(np.int64)
        keys = np.where(bits < 0, ~bits ^ _TOP, bits)
        keys[np.isnan(values)] = np.iinfo(np.int64).min if nan_first else np.iinfo(np.int64).max
        return keys
    if dtype == np.uint64:
        return values.view(np.int64) ^ _TOP
    return values.astype(np.int64, copy=False)


def dictionary(array: pa.Array) -> Any:
    """The array as a dictionary and indices."""
    if pa.types.is_decimal(array.type) and array.type.bit_width < 128:
        # Arrow has no dictionary of them.
        array = array.cast(pa.decimal128(array.type.precision, array.type.scale))
    return array.dictionary_encode()


def _ranks(array: pa.Array) -> np.ndarray:
    """The rank of each value among the sorted distinct ones."""
    if isinstance(array, pa.StructArray):
        return _struct_ranks(array)
    encoded = dictionary(array)
    order = pc.array_sort_indices(encoded.dictionary).to_numpy()
    rank = np.empty(len(order) + 1, np.int64)
    rank[order] = np.arange(len(order))
    return rank[encoded.indices.fill_null(len(order)).to_numpy(zero_copy_only=False)]


def field_ranks(array: Any) -> list[np.ndarray]:
    """By field, the rank of each value among those of the array; null is smallest."""
    found = []
    for field in array.flatten():
        mask = valid(field)
        _, codes = np.unique(sort_keys(field), return_inverse=True)
        codes = codes.astype(np.int64) + 1
        if mask is not None:
            codes[~mask] = 0
        found.append(codes)
    return found


def _struct_ranks(array: pa.StructArray) -> np.ndarray:
    rank = np.zeros(len(array), np.int64)
    for codes in field_ranks(array):
        _, rank = np.unique(rank * (len(array) + 2) + codes, return_inverse=True)
    return rank.astype(np.int64)

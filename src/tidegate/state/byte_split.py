"""Byte split: fixed-width columns as one column per byte, where these compress better.

The high bytes of similar numbers are nearly all equal, which a compressor misses while low bytes
lie between them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

_SCHEMA = b"tidegate.byte_split"
"""Metadata key of the original schema of a split table."""
_MIN_ROWS = 1024
"""Smallest table that is split; below, more columns cost what they save."""
_SAMPLE = 8192
"""Number of values that are compressed both ways to compare."""
_PAYS = 0.97
_WORDS = {16: pa.uint16(), 32: pa.uint32(), 64: pa.uint64()}


def split(table: pa.Table) -> pa.Table:
    """The table with columns split into their bytes where that pays; else the table itself."""
    if table.num_rows < _MIN_ROWS:
        return table
    columns: dict[str, Any] = {}
    for number, column in enumerate(table.columns):
        words = _words(column)
        if words is None or not _pays(words):
            columns[str(number)] = column
        else:
            columns.update(
                (f"{number}.{at}", pa.array(plane)) for at, plane in enumerate(_planes(words))
            )
    if len(columns) == table.num_columns:
        return table
    return pa.table(columns, metadata={_SCHEMA: table.schema.serialize().to_pybytes()})


def joined(table: pa.Table) -> pa.Table:
    """Restore a table that `split` returned."""
    schema_bytes = (table.schema.metadata or {}).get(_SCHEMA)
    if schema_bytes is None:
        return table
    schema = pa.ipc.read_schema(pa.py_buffer(schema_bytes))
    return pa.table(
        [_column(table, number, field.type) for number, field in enumerate(schema)], schema=schema
    )


def _words(column: pa.ChunkedArray) -> np.ndarray | None:
    """The column as unsigned integers; None for nulls and other types."""
    kind = column.type
    if column.null_count or not pa.types.is_primitive(kind) or kind.bit_width not in _WORDS:
        return None
    array = column.combine_chunks()
    found: np.ndarray = array.view(_WORDS[kind.bit_width]).to_numpy()
    return found


def _planes(words: np.ndarray) -> np.ndarray:
    """The first bytes of all values, the second ones, and so on."""
    return np.ascontiguousarray(words.view(np.uint8).reshape(len(words), words.itemsize).T)


def _pays(words: np.ndarray) -> bool:
    """Whether single bytes compress better; they do not where few values repeat often."""
    codec = pa.Codec("zstd")
    sample = words[:_SAMPLE]

    def compressed(bytes_: np.ndarray) -> int:
        return len(codec.compress(bytes_.tobytes(), asbytes=True))

    return sum(map(compressed, _planes(sample))) < _PAYS * compressed(sample)


def _column(table: pa.Table, number: int, kind: pa.DataType) -> Any:
    if str(number) in table.column_names:
        return table.column(str(number))
    word = _WORDS[kind.bit_width]
    found = np.empty((table.num_rows, word.byte_width), np.uint8)
    for at in range(word.byte_width):
        found[:, at] = table.column(f"{number}.{at}").to_numpy()
    return pa.array(found.reshape(-1).view(word.to_pandas_dtype())).view(kind)

"""Arrow IPC data from outside: opened by its first bytes, and validated in full.

This module does not need Spark.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from tidegate.operators.ingest.typed_rows import is_utf8, with_errors

_TEXTS = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}
"""The types of texts, and those of their bytes."""


def open_ipc(
    file: pa.NativeFile | pa.BufferReader,
) -> pa.RecordBatchFileReader | pa.RecordBatchStreamReader:
    """The reader of a file or of a stream, by the first bytes."""
    start = file.read(6)
    file.seek(0)
    return pa.ipc.open_file(file) if start == b"ARROW1" else pa.ipc.open_stream(file)


def validated(batch: pa.RecordBatch) -> pa.Table:
    """The rows of a record batch, which Arrow reads without checking lengths, offsets and texts.

    Rows with a text that is not UTF-8 get an error text.
    """
    table = pa.Table.from_batches([batch])
    try:
        table.validate(full=True)
    except pa.ArrowInvalid:
        return _with_valid_texts(table)
    return table


def _with_valid_texts(table: pa.Table) -> pa.Table:
    """The table without texts that are not UTF-8; `ArrowInvalid` if it has other damage."""
    problems: dict[int, str] = {}
    for n, field in enumerate(table.schema):
        array: Any = table.column(n).chunk(0)
        if field.type not in _TEXTS:
            array.validate(full=True)
            continue
        raw = array.view(_TEXTS[field.type])
        raw.validate(full=True)
        values = raw.to_pylist()
        bad = [row for row, value in enumerate(values) if value is not None and not is_utf8(value)]
        for row in bad:
            problems.setdefault(
                row, f"`{field.name}` should be {field.type}, got {values[row]!r}, not UTF-8"
            )
            values[row] = None
        if bad:
            table = table.set_column(n, field, pa.array(values, raw.type).view(field.type))
    return with_errors(table, problems)

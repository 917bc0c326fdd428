"""Arrow IPC data from outside: opened by its first bytes, and validated in full.

This module does not need Spark.
"""

from __future__ import annotations

import pyarrow as pa

from tidegate.operators.ingest.arrow_rows import valid


def open_ipc(
    file: pa.NativeFile | pa.BufferReader,
) -> pa.RecordBatchFileReader | pa.RecordBatchStreamReader:
    """The reader of a file or of a stream, by the first bytes."""
    start = file.read(6)
    file.seek(0)
    return pa.ipc.open_file(file) if start == b"ARROW1" else pa.ipc.open_stream(file)


def validated(batch: pa.RecordBatch) -> pa.Table:
    """The rows of a record batch, which Arrow reads without checking lengths, offsets and texts.

    Rows with a value that is not valid, such as a text that is not UTF-8, get an error text.
    """
    return valid(pa.Table.from_batches([batch]))

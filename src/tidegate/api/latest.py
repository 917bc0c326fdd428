"""Reading the output of a query: the rows that hold."""

from __future__ import annotations

import os

import pyarrow as pa


def read_latest(folder: str | os.PathLike[str]) -> pa.Table:
    """The rows of a Parquet folder that hold after its last batch: of each window, the last pane,
    without those that were retracted.

    `folder` is that of `tg.sinks.parquet`, as `to` of an accumulating or retracting query, which
    may run meanwhile. The result is an Arrow table; `.to_pandas()` makes a frame of it.
    """
    from tidegate.spark.sinks.latest import read_latest as read

    return read(os.fspath(folder))

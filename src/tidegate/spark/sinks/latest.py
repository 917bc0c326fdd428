"""The current rows of a folder that a query writes: of each window, the last pane that holds."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidegate.errors import InputError
from tidegate.kernel.frame import to_arrow
from tidegate.spark.sinks.parquet import BatchFolder

_ROW = "__row"


def read_latest(folder: str) -> pa.Table:
    """The rows that hold after the last batch, in the order in which they were written.

    Batches are read by number, and the rows of a batch as its tasks wrote them.
    """
    found = BatchFolder.open(folder)
    owner = found.owner()
    identity, mode = owner.get("identity"), owner.get("mode")
    if owner.get("output") != "panes" or identity is None:
        raise InputError(
            f"`{found.root}` has no panes of a query, got the output `{owner.get('output')}`. Hint:"
            " pass the folder of `to`; late rows and metrics never replace each other"
        )
    if mode == "discarding":
        raise InputError(
            f"the panes in `{found.root}` are discarding: each has only its own rows, and none"
            " replaces another. Hint: sum them, or use .accumulating()"
        )
    tables = [
        pq.read_table(path, filesystem=found.files, partitioning=None).append_column(
            "batch", pa.array(np.full(rows, batch), pa.int64())
        )
        for batch, path, rows in found.batch_files()
    ]
    if not tables:
        raise InputError(f"`{found.root}` has no batch yet. Hint: try again in a few seconds")
    whole = pa.concat_tables(tables, promote_options="permissive")
    missing = [name for name in identity if name not in whole.column_names]
    if missing:
        raise InputError(
            f"rows are known by {', '.join(f'`{name}`' for name in identity)}, and the panes in"
            f" `{found.root}` lack `{missing[0]}`. Hint: keep the key columns"
        )
    return _last(whole, identity)


def _last(whole: pa.Table, identity: list[str]) -> pa.Table:
    """The last row of each identity, unless it retracts or deletes."""
    numbered = whole.append_column(_ROW, to_arrow(np.arange(whole.num_rows)))
    if identity:
        groups = numbered.group_by(identity, use_threads=False).aggregate([(_ROW, "max")])
        chosen = np.sort(groups.column(f"{_ROW}_max").to_numpy())
    else:
        chosen = np.arange(whole.num_rows)[-1:]
    rows = whole.take(pa.array(chosen))
    for column, gone in (("op", "-"), ("_change_type", "delete")):
        if column in rows.column_names:
            rows = rows.filter(pc.not_equal(rows.column(column), gone))
    return rows

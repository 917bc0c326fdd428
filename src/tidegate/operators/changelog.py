"""Change logs: panes as the rows of a change data feed, as Delta Lake has it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from tidegate.errors import InputError
from tidegate.kernel.frame import repeat, to_arrow
from tidegate.kernel.groups import Groups
from tidegate.operators.key_secret import new_hasher

CHANGES = ("insert", "update_preimage", "update_postimage", "delete")
CHANGE_COLUMNS = ("_change_type", "_commit_version", "_commit_timestamp")
_INSERT, _PREIMAGE, _POSTIMAGE, _DELETE = range(4)
_MODES = ("accumulating", "discarding", "retracting")
_OURS = ("op", "emitted_at")
_INTERNAL = ("op", "pane_id")
_HASHER = new_hasher()


def changelog(
    panes: pa.Table, identity: Sequence[str], mode: str, version: int | None = None
) -> pa.Table:
    """The rows of panes, or of a join, with `_change_type` instead of `op`, in the same order.

    `_commit_timestamp` is the time at which the pane was emitted. With a `version` there is a
    column `_commit_version` too. A column `pane_id` stays the last one. `identity` names the
    columns that identify what is replaced: for panes the key and the window.

    A pane that is retracted and replaced in the same table is an `update_preimage` and an
    `update_postimage`. A pane that is only retracted (its window is withdrawn, or its replacement
    is in a later table) is a `delete`. A pane that replaces nothing is an `insert`.

    In accumulating mode only withdrawn windows are retracted: the first pane of a window is an
    `insert`, also if the window opens again, and each later one an `update_postimage` without a
    preimage. In discarding mode every pane is an `insert`.
    """
    _check(panes, identity, mode)
    columns: dict[str, pa.Array | pa.ChunkedArray] = {
        name: panes.column(name) for name in panes.column_names if name not in _INTERNAL
    }
    columns["_change_type"] = _named(_changes(panes, identity, mode))
    if version is not None:
        columns["_commit_version"] = repeat(version, panes.num_rows, pa.int64())
    columns["_commit_timestamp"] = panes.column("emitted_at")
    if "pane_id" in panes.column_names:
        columns["pane_id"] = panes.column("pane_id")
    return pa.table(columns)


def _check(panes: pa.Table, identity: Sequence[str], mode: str) -> None:
    if mode not in _MODES:
        raise InputError(
            f"the mode of a change log must be one of {', '.join(_MODES)}; got {mode!r}. Hint: pass"
            " the mode of the panes"
        )
    needed = [*identity, *_OURS, *(["is_first"] if mode == "accumulating" else [])]
    missing = [name for name in needed if name not in panes.column_names]
    if missing:
        raise InputError(
            f"a change log needs all columns of panes; missing: {', '.join(missing)}. Hint: pass"
            " the panes of an operator, and the names of the columns that identify a pane"
        )
    taken = [name for name in CHANGE_COLUMNS if name in panes.column_names]
    if taken:
        raise InputError(
            f"a change log adds the columns {', '.join(CHANGE_COLUMNS)}, but the panes already have"
            f" {', '.join(taken)}. Hint: rename it"
        )


def _changes(panes: pa.Table, identity: Sequence[str], mode: str) -> np.ndarray:
    """The change of each row, as an index into `CHANGES`."""
    rows = panes.num_rows
    alone = np.full(rows, _INSERT, np.int8)
    if mode == "accumulating":
        alone[~_flags(panes, "is_first")] = _POSTIMAGE
    taken_back = to_arrow(panes.column("op")).to_numpy(zero_copy_only=False) == "-"
    if not taken_back.any():
        return alone
    groups = Groups.by(_HASHER.identify([panes.column(name) for name in identity], rows))
    # By key and window, then by arrival: the row after a retraction replaces the retracted row.
    order = groups.order
    back, of = taken_back[order], groups.ids[order]
    replaced = np.zeros(rows, bool)
    replaced[:-1] = back[:-1] & ~back[1:] & (of[1:] == of[:-1])
    sorted_changes = np.where(back, np.where(replaced, _PREIMAGE, _DELETE), alone[order])
    sorted_changes[1:][replaced[:-1]] = _POSTIMAGE
    changes = np.empty(rows, np.int8)
    changes[order] = sorted_changes
    return changes


def _flags(panes: pa.Table, name: str) -> np.ndarray:
    return to_arrow(panes.column(name)).to_numpy(zero_copy_only=False).astype(bool)


def _named(changes: np.ndarray) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(changes, pa.int8()), pa.array(CHANGES)).cast(
        pa.string()
    )

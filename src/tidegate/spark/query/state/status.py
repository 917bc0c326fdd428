"""The sources of a query from the documents of its state, without its specification."""

from __future__ import annotations

import numpy as np

from tidegate.instants import MAX, MIN
from tidegate.kernel.watermarks.coalescer import ACTIVE, GONE, STATUS
from tidegate.operators import snapshot
from tidegate.operators.status import SourceStatus
from tidegate.state.store import Store


def source_status(store: Store, now: int) -> tuple[SourceStatus, ...]:
    """The sources of the first operator of a shard; lags count to `now`."""
    first = store.get_json(f"0/{snapshot.NAME}")
    found = []
    for ordinal, columns in enumerate(first["watermark_tracker"]["columns"]):
        for key, column in columns.items():
            tracker = column["sources"]
            status = np.array(tracker["coalescer"]["status"], np.int64)
            promises = np.array(tracker["coalescer"]["promises"], np.int64)
            least = promises[status == ACTIVE].min(initial=MAX)
            for row in np.flatnonzero(status != GONE).tolist():
                mark = int(promises[row])
                is_known = mark not in (MIN, MAX)
                spoke_at = int(tracker["spoke_at"][row])
                found.append(
                    SourceStatus(
                        ordinal,
                        int(key),
                        tracker["names"][row],
                        STATUS[int(status[row])],
                        mark if is_known else None,
                        lag=now - mark if is_known else None,
                        spoke_at=spoke_at,
                        moved_at=int(tracker["moved_at"][row]) if is_known else None,
                        idle_since=spoke_at if STATUS[int(status[row])] == "idle" else None,
                        holds=bool(status[row] == ACTIVE and mark == least),
                    )
                )
    return tuple(found)

"""The status of a query from the summaries in its state: shards, sources, sizes and counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tidegate.instants import MAX, MIN
from tidegate.kernel.watermarks.coalescer import GONE, STATUS
from tidegate.operators import snapshot
from tidegate.operators.progress import late_by_reason
from tidegate.state.store import Store


@dataclass(frozen=True)
class SourceStatus:
    """The status of one source of an input; all shards have the same."""

    input: int
    key: int
    name: str
    status: str
    watermark: int | None
    spoke_at: int


@dataclass(frozen=True)
class ShardStatus:
    """The status of one shard of a stateful operator."""

    shard: int
    batch: int
    """The last batch in which the shard was called."""
    clock: int
    watermark: int | None
    newest_event: int | None
    windows_open: int
    state_bytes: int
    pending_output_bytes: int
    windows: list[dict[str, Any]]
    """The windows that complete next, with their number of keys if it is known."""
    rows: dict[str, int]
    """The number of stored rows on each side of a join; empty for other operators."""
    late: dict[str, int]
    counters: dict[str, int]


@dataclass(frozen=True)
class OperatorStatus:
    """The status of one stateful operator of Spark: its shards, and the sources of its inputs."""

    number: int
    """The number of its first operator, in the order of the data."""
    size: int
    """The number of operators that it runs."""
    shards: list[ShardStatus]
    sources: list[SourceStatus]

    @property
    def late(self) -> dict[str, int]:
        """Late rows by reason, over all shards."""
        found: dict[str, int] = {}
        for shard in self.shards:
            for reason, count in shard.late.items():
                found[reason] = found.get(reason, 0) + count
        return found


@dataclass(frozen=True)
class QueryStatus:
    """The status of a query after a batch."""

    query: str | None
    batch: int
    specs: list[list[dict[str, Any]]]
    operators: list[OperatorStatus]


def shard_status(shard: int, summary: dict[str, Any]) -> ShardStatus:
    """The status of a shard from its stored summary."""
    counters = summary["counters"]
    return ShardStatus(
        shard=shard,
        batch=summary["batch"],
        clock=summary["clock"],
        watermark=_known(summary["watermark"]),
        newest_event=_known(summary["newest_event"]),
        windows_open=summary["windows_open"],
        state_bytes=summary["bytes"],
        pending_output_bytes=summary["pending_output_bytes"],
        windows=summary["windows"],
        rows=summary.get("rows", {}),
        late=late_by_reason(counters),
        counters={
            name: count for name, count in counters.items() if not name.startswith("reason.")
        },
    )


def source_status(store: Store) -> list[SourceStatus]:
    """The sources of the first operator of a shard."""
    first = store.get_json(f"0/{snapshot.NAME}")
    found = []
    for ordinal, columns in enumerate(first["watermark_tracker"]["columns"]):
        for key, column in columns.items():
            tracker = column["sources"]
            status = np.array(tracker["coalescer"]["status"], np.int64)
            promises, spoke_at = tracker["coalescer"]["promises"], tracker["spoke_at"]
            found += [
                SourceStatus(
                    ordinal,
                    int(key),
                    tracker["names"][row],
                    STATUS[int(status[row])],
                    _known(promises[row]),
                    spoke_at[row],
                )
                for row in np.flatnonzero(status != GONE).tolist()
            ]
    return found


def _known(instant: int) -> int | None:
    return None if instant in (MIN, MAX) else instant

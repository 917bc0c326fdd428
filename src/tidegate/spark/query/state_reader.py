"""Read the state of a query from its checkpoint, while it runs or after it has stopped."""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from pyarrow import fs
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tidegate.errors import StateError
from tidegate.instants import MAX, MIN
from tidegate.kernel.watermarks.coalescer import GONE, STATUS
from tidegate.operators.progress import late_by_reason
from tidegate.spark.checkpoint import open_checkpoint
from tidegate.spark.query.metadata import read_metadata


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
    """The status of one stateful operator: its shards, and the sources of its inputs."""

    number: int
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
    """The status of a query after its last batch."""

    query: str | None
    specs: list[list[dict[str, Any]]]
    operators: list[OperatorStatus]


def check_checkpoint(checkpoint: str) -> None:
    """Refuse a folder that is not the checkpoint of a stateful query; needs no session."""
    system, path = open_checkpoint(checkpoint)
    missing = [
        name
        for name in ("offsets", "commits", "state")
        if system.get_file_info(f"{path}/{name}").type != fs.FileType.Directory
    ]
    if missing:
        raise StateError(
            f"{checkpoint} is not the checkpoint of a query that has run a batch: it has no folder"
            f" `{missing[0]}`. Hint: pass the folder that `checkpoint` names"
        )


def read_state(spark: SparkSession, checkpoint: str) -> QueryStatus:
    """The status of the query with this checkpoint; a running query is not affected."""
    metadata = read_metadata(checkpoint)
    # Spark 4.1 can read state only after the manager of streaming queries has been used.
    _ = spark.streams.active
    try:
        found = (
            spark.read.format("state-metadata")
            .load(checkpoint)
            .select("operatorId")
            .distinct()
            .collect()
        )
        numbers = sorted(int(row.operatorId) for row in found)
        operators = sorted(
            (_operator(spark, checkpoint, number) for number in numbers),
            key=lambda operator: operator.number,
        )
    except PySparkException as error:
        reason = str(error).splitlines()[0]
        raise StateError(
            f"the checkpoint {checkpoint} cannot be read: {reason}. Hint: pass the folder of a"
            " query that has run a batch"
        ) from error
    if metadata is None:
        return QueryStatus(None, [], operators)
    return QueryStatus(metadata.query, metadata.specs, operators)


def _operator(spark: SparkSession, checkpoint: str, number: int) -> OperatorStatus:
    state = (
        spark.read.format("statestore")
        .option("operatorId", number)
        .option("stateVarName", "meta")
        .load(checkpoint)
    )
    rows = state.selectExpr(
        "key.shard AS shard", "value.summary AS summary", "value.document AS document"
    ).collect()
    summaries = {int(row.shard): json.loads(row.summary) for row in rows}
    shards = [_shard(shard, summary) for shard, summary in sorted(summaries.items())]
    # Spark numbers operators from last to first.
    number = next((int(summary["operator"]) for summary in summaries.values()), number)
    # All shards track the same sources. The value of most shards includes the document with them.
    whole = next((bytes(row.document) for row in rows if row.document), None)
    return OperatorStatus(number, shards, [] if whole is None else _sources(whole))


def _shard(shard: int, summary: dict[str, Any]) -> ShardStatus:
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


def _sources(document: bytes) -> list[SourceStatus]:
    first = json.loads(json.loads(zlib.decompress(document))["documents"]["0/operator"])
    found = []
    for ordinal, columns in enumerate(first["watermark_tracker"]["columns"]):
        for key, column in columns.items():
            tracker = column["sources"]
            status = np.array(tracker["coalescer"]["status"], np.int64)
            promises, spoke_at = tracker["coalescer"]["promises"], tracker["spoke_at"]
            for row in np.flatnonzero(status != GONE).tolist():
                word = STATUS[int(status[row])]
                found.append(
                    SourceStatus(
                        ordinal,
                        int(key),
                        tracker["names"][row],
                        word,
                        _known(promises[row]),
                        spoke_at[row],
                    )
                )
    return found


def _known(instant: int) -> int | None:
    return None if instant in (MIN, MAX) else instant

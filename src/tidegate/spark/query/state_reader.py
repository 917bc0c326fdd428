"""Looking into the state of a query from outside, while it runs or after it was stopped: windows,
rows, watermarks of sources, sizes, late counts.
"""

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
from tidegate.spark.query import metadata as keeping
from tidegate.spark.query.metadata import QueryMetadata


@dataclass(frozen=True)
class SourceStanding:
    """A source of an input, as all shards know it."""

    input: int
    key: int
    name: str
    status: str
    watermark: int | None
    spoke_at: int


@dataclass(frozen=True)
class ShardStanding:
    """One shard of one stateful operator."""

    shard: int
    batch: int
    clock: int
    watermark: int | None
    newest: int | None
    windows_open: int
    state_bytes: int
    waiting_bytes: int
    windows: list[dict[str, Any]]
    """The windows that complete next, with how many keys they have where that is known."""
    rows: dict[str, int]
    """The rows that are kept on each side of a join; empty where there is none."""
    late: dict[str, int]
    counters: dict[str, int]


@dataclass(frozen=True)
class OperatorStanding:
    """One stateful operator: its shards, and the sources of its inputs."""

    number: int
    shards: list[ShardStanding]
    sources: list[SourceStanding]

    @property
    def late(self) -> dict[str, int]:
        """Late rows by reason, of all shards."""
        found: dict[str, int] = {}
        for shard in self.shards:
            for reason, count in shard.late.items():
                found[reason] = found.get(reason, 0) + count
        return found


@dataclass(frozen=True)
class QueryStanding:
    """A query."""

    query: str | None
    specs: list[list[dict[str, Any]]]
    operators: list[OperatorStanding]


def check(checkpoint: str) -> None:
    """Refuse a folder that is no checkpoint of a stateful query, which needs no session to be
    seen.
    """
    system, folder = keeping.folder_of(checkpoint)
    place = folder.removesuffix(f"/{keeping.FOLDER}")
    lacking = [
        name
        for name in ("offsets", "commits", "state")
        if system.get_file_info(f"{place}/{name}").type != fs.FileType.Directory
    ]
    if lacking:
        raise StateError(
            f"{checkpoint} is no checkpoint of a query that has run a batch: it has no folder"
            f" `{lacking[0]}`. Hint: the folder that was given as `checkpoint`"
        )


def look(spark: SparkSession, checkpoint: str) -> QueryStanding:
    """How the query with this checkpoint stood after its last batch; it is not disturbed."""
    known: QueryMetadata | None = keeping.read(checkpoint)
    # In Spark 4.1 reading state asks somebody who is there only when somebody has asked for
    # streams.
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
        told = str(error).splitlines()[0]
        raise StateError(
            f"the checkpoint {checkpoint} cannot be read: {told}. Hint: the folder of a query that"
            " has run a batch"
        ) from error
    return QueryStanding(
        None if known is None else known.query, [] if known is None else known.specs, operators
    )


def _operator(spark: SparkSession, checkpoint: str, number: int) -> OperatorStanding:
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
    # Spark numbers operators from the last to the first.
    number = next((int(summary["operator"]) for summary in summaries.values()), number)
    # Every shard knows the same of the sources; one whose documents are in the same value says it
    # without reading more.
    whole = next((bytes(row.document) for row in rows if row.document), None)
    return OperatorStanding(number, shards, [] if whole is None else _sources(whole))


def _shard(shard: int, summary: dict[str, Any]) -> ShardStanding:
    counters = summary["counters"]
    return ShardStanding(
        shard=shard,
        batch=summary["batch"],
        clock=summary["clock"],
        watermark=_known(summary["watermark"]),
        newest=_known(summary["newest"]),
        windows_open=summary["windows_open"],
        state_bytes=summary["bytes"],
        waiting_bytes=summary["waiting_bytes"],
        windows=summary["windows"],
        rows=summary.get("rows", {}),
        late=late_by_reason(counters),
        counters={
            name: count for name, count in counters.items() if not name.startswith("reason.")
        },
    )


def _sources(document: bytes) -> list[SourceStanding]:
    first = json.loads(json.loads(zlib.decompress(document))["documents"]["0/operator"])
    found = []
    for ordinal, channels in enumerate(first["watermark_tracker"]["channels"]):
        for key, channel in channels.items():
            tracker = channel["tracker"]
            status = np.array(tracker["coalescer"]["status"], np.int64)
            promises, spoke_at = tracker["coalescer"]["promises"], tracker["spoke_at"]
            for row in np.flatnonzero(status != GONE).tolist():
                word = STATUS[int(status[row])]
                found.append(
                    SourceStanding(
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

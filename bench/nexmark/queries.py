"""The windowed queries of Nexmark as pipelines of Tidegate, and as statements of Flink SQL."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.api.joins import Joined
from tidegate.api.streams import Panes, Stream, stream
from tidegate.spec.aggregates import Aggregate, columnar, count
from tidegate.spec.triggers import after_watermark
from tidegate.spec.watermarks import bounded
from tidegate.spec.windows import hopping, session, tumbling

DELAY = "4 seconds"
"""Distance of the watermark from the newest event, on both sides."""
Sources = Mapping[str, Any]
"""A source or DataFrame for each kind of event."""


@dataclass(frozen=True)
class Query:
    """One query of the benchmark."""

    name: str
    reads: Mapping[str, tuple[str, ...]]
    """The kinds of events that it reads, and the columns; Flink's planner finds them itself."""
    ours: Callable[[Sources], Panes | Joined]
    flink: str
    """The `SELECT` of Flink SQL; its columns are those of `columns`."""
    columns: tuple[str, ...]
    """The columns of an answer, compared between both sides."""
    is_exact: bool = True
    """Whether the answer depends on the events only, and not on the clock."""

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(self.reads)


def most(by: str, *columns: str) -> Aggregate:
    """All rows with the greatest value of a column, as a list of structs."""
    fields = [pa.field(name, pa.int64()) for name in (by, *columns)]
    item = pa.struct(fields)

    def keep(rows: pa.StructArray, groups: Any, ids: np.ndarray) -> dict[str, pa.Array]:
        values = rows.field(by).to_numpy(zero_copy_only=False)
        best = np.full(groups.n, np.iinfo(np.int64).min)
        np.maximum.at(best, ids, values)
        kept = np.flatnonzero(values == best[ids])
        kept = kept[np.argsort(ids[kept], kind="stable")]
        offsets: Any = np.searchsorted(ids[kept], np.arange(groups.n + 1)).astype(np.int32)
        return {"rows": pa.ListArray.from_arrays(offsets, rows.take(pa.array(kept)))}

    def lift(table: pa.Table, groups: Any) -> dict[str, pa.Array]:
        arrays = [table[field.name].combine_chunks().cast(pa.int64()) for field in fields]
        return keep(pa.StructArray.from_arrays(arrays, fields=fields), groups, groups.ids)

    def combine(partials: dict[str, Any], groups: Any) -> dict[str, pa.Array]:
        lists = partials["rows"]
        if isinstance(lists, pa.ChunkedArray):
            lists = lists.combine_chunks()
        sizes = np.diff(lists.offsets.to_numpy())
        return keep(lists.flatten(), groups, np.repeat(groups.ids, sizes))

    return columnar(
        lift=lift,
        combine=combine,
        lower=lambda partials: partials["rows"],
        partial_types={"rows": pa.list_(item)},
        result_type=pa.list_(item),
        columns=(by, *columns),
    )


def _stream(sources: Sources, kind: str, key: str | None) -> Stream:
    return stream(sources[kind], time="ts", key=key, watermark=bounded(DELAY))


def _hot_items(sources: Sources) -> Panes:
    counts = (
        _stream(sources, "bid", "auction")
        .window(hopping("10 seconds", "2 seconds"))
        .trigger(after_watermark())
        .allow_lateness(0)
        .aggregate(num=count())
    )
    return stream(counts).inherit().trigger(after_watermark()).aggregate(top=most("num", "auction"))


def _highest_bids(sources: Sources) -> Panes:
    return (
        _stream(sources, "bid", None)
        .window(tumbling("10 seconds"))
        .trigger(after_watermark())
        .allow_lateness(0)
        .aggregate(top=most("price", "auction", "bidder"))
    )


def _new_sellers(sources: Sources) -> Joined:
    persons, auctions = _stream(sources, "person", "id"), _stream(sources, "auction", "seller")
    joined = persons.join(auctions, tumbling("10 seconds"), on={"id": "seller"}, how="semi")
    return joined.allow_lateness(0)


def _sessions(sources: Sources) -> Panes:
    return (
        _stream(sources, "bid", "bidder")
        .window(session("10 seconds", touch="merge"))
        .trigger(after_watermark())
        .allow_lateness(0)
        .aggregate(num=count())
    )


def _clock(sources: Sources) -> Panes:
    return (
        stream(sources["bid"], time="ts", key="bidder")
        .window(tumbling("10 seconds", axis="clock"))
        .trigger(after_watermark())
        .aggregate(num=count())
    )


QUERIES = {
    query.name: query
    for query in (
        Query(
            "q5",
            {"bid": ("auction", "ts")},
            _hot_items,
            """
WITH counts AS (
  SELECT auction, window_start, window_end, COUNT(*) AS num
  FROM TABLE(HOP(TABLE bid, DESCRIPTOR(ts), INTERVAL '2' SECOND, INTERVAL '10' SECOND))
  GROUP BY auction, window_start, window_end),
greatest_counts AS (
  SELECT window_start, window_end, MAX(num) AS num FROM counts GROUP BY window_start, window_end)
SELECT c.window_start, c.window_end, c.auction, c.num
FROM counts AS c JOIN greatest_counts AS g
  ON c.window_start = g.window_start AND c.window_end = g.window_end AND c.num >= g.num""",
            ("window_start", "window_end", "auction", "num"),
        ),
        Query(
            "q7",
            {"bid": ("auction", "bidder", "price", "ts")},
            _highest_bids,
            """
SELECT m.window_start, m.window_end, b.auction, b.bidder, b.price
FROM bid AS b JOIN (
  SELECT MAX(price) AS price, window_start, window_end, window_time AS at_end
  FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(ts), INTERVAL '10' SECOND))
  GROUP BY window_start, window_end, window_time) AS m
ON b.price = m.price AND b.ts BETWEEN m.at_end - INTERVAL '10' SECOND AND m.at_end""",
            ("window_start", "window_end", "auction", "bidder", "price"),
        ),
        Query(
            "q8",
            {"person": ("id", "name", "ts"), "auction": ("seller", "ts")},
            _new_sellers,
            """
SELECT p.window_start, p.window_end, p.id, p.name
FROM (
  SELECT id, name, window_start, window_end
  FROM TABLE(TUMBLE(TABLE person, DESCRIPTOR(ts), INTERVAL '10' SECOND))
  GROUP BY id, name, window_start, window_end) AS p
JOIN (
  SELECT seller, window_start, window_end
  FROM TABLE(TUMBLE(TABLE auction, DESCRIPTOR(ts), INTERVAL '10' SECOND))
  GROUP BY seller, window_start, window_end) AS a
ON p.id = a.seller AND p.window_start = a.window_start AND p.window_end = a.window_end""",
            ("window_start", "window_end", "id", "name"),
        ),
        Query(
            "q11",
            {"bid": ("bidder", "ts")},
            _sessions,
            """
SELECT window_start, window_end, bidder, COUNT(*) AS num
FROM TABLE(SESSION(TABLE bid PARTITION BY bidder, DESCRIPTOR(ts), INTERVAL '10' SECOND))
GROUP BY bidder, window_start, window_end""",
            ("window_start", "window_end", "bidder", "num"),
        ),
        Query(
            "q12",
            {"bid": ("bidder", "ts")},
            _clock,
            """
SELECT window_start, window_end, bidder, COUNT(*) AS num
FROM TABLE(TUMBLE(TABLE bid, DESCRIPTOR(arrival), INTERVAL '10' SECOND))
GROUP BY bidder, window_start, window_end""",
            ("window_start", "window_end", "bidder", "num"),
            is_exact=False,
        ),
    )
}
"""The queries by name."""

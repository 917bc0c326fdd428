"""SQL in this process: the hot items of every ten seconds, and the bids that came too late."""

# ruff: noqa: INP001, T201

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import tidegate as tg

NOON = datetime(2025, 3, 14, 12, tzinfo=UTC)
SCRIPT = """
CREATE TABLE bids (item STRING, price INT, ts TIMESTAMP(3),
                   WATERMARK FOR ts AS ts - INTERVAL '2' SECOND);

CREATE VIEW totals AS
    SELECT window_start, window_end, item, COUNT(*) AS bids, MAX(price) AS best
    FROM TABLE(TUMBLE(TABLE bids, DESCRIPTOR(ts), INTERVAL '10' SECOND))
    GROUP BY window_start, window_end, item;
"""
HOT = """
SELECT window_start, item, bids, best, place FROM (
    SELECT *, ROW_NUMBER() OVER (
        PARTITION BY window_start, window_end ORDER BY bids DESC, item) AS place
    FROM totals)
WHERE place <= 2
"""
LATE = "SELECT item, price, ts, reason FROM LATE(totals)"

BIDS = [
    *[(1, "hat", 5), (2, "cup", 3), (4, "hat", 7), (6, "tea", 2), (9, "cup", 4), (9, "hat", 6)],
    *[(13, "tea", 9), (15, "tea", 8), (5, "tea", 99), (24, "cup", 1)],
]


def at(second: int) -> datetime:
    """An instant after noon."""
    return NOON + timedelta(seconds=second)


def main() -> None:
    """Deliver the bids to both queries."""
    hot, late = tg.sql(SCRIPT + HOT), tg.sql(SCRIPT + LATE)
    with hot.embedded(now=at(60)) as winners, late.embedded(now=at(60)) as losers:
        for second, item, price in BIDS:
            for op in (winners, losers):
                op.add_message({"item": item, "price": price, "ts": at(second)})
        winners.finish()
        for row in sorted(
            winners.get_result().panes.to_pylist(),
            key=lambda row: (row["window_start"], row["place"]),
        ):
            print(
                f"{row['window_start']:%H:%M:%S}  {row['place']}. {row['item']}"
                f"  {row['bids']} bids, best {row['best']}"
            )
        for row in losers.get_result().panes.to_pylist():
            print(f"late: {row['item']} {row['price']} of {row['ts']:%H:%M:%S}, {row['reason']}")


if __name__ == "__main__":
    main()

"""Clicks per user and minute: early panes, an on-time pane, corrections, and late rows."""

# ruff: noqa: INP001, T201

from __future__ import annotations

import tidegate as tg

PANES = (
    tg.stream(time="ts", key="user", watermark=tg.explicit())
    .window(tg.tumbling("1 minute"))
    .trigger(tg.after_watermark(early=tg.after_count(2), late=tg.after_count(1)))
    .allow_lateness("30 seconds")
    .retracting()
    .aggregate(clicks=tg.count(), spent=tg.sum("price"))
)


def click(second: int, user: str, price: int) -> dict[str, object]:
    """A click at a second of the minute that starts at noon."""
    return {"ts": f"2025-03-14T12:00:{second:02}Z", "user": user, "price": price}


def show(op: tg.EmbeddedOperator) -> None:
    """Print and release the waiting results."""
    results = op.get_result()
    for pane in results.panes.to_pylist():
        window = f"{pane['window_start']:%H:%M} to {pane['window_end']:%H:%M}"
        print(
            f"  {pane['op']} {pane['user']}  {window}  {pane['timing']:<8} clicks {pane['clicks']} "
            f" spent {pane['spent']}"
        )
    for row in results.late.to_pylist():
        print(
            f"  late: {row['user']} {row['ts']} price {row['price']}, reason {row['reason']},"
            f" watermark {row['watermark']:%H:%M:%S}"
        )
    op.flush()


def main() -> None:
    """Deliver four clicks, complete the minute, and deliver two more."""
    op = PANES.embedded(now="2025-03-14T12:00:00Z")
    print("four clicks")
    op.add_messages(
        [click(5, "ann", 10), click(20, "ann", 7), click(31, "bob", 2), click(40, "ann", 3)]
    )
    show(op)
    print("the watermark reaches 12:01")
    op.advance_watermark("2025-03-14T12:01:00Z")
    show(op)
    print("a click that is 5 seconds late, and one that is 45 seconds late")
    op.add_messages([click(55, "ann", 4), click(15, "bob", 9)])
    show(op)
    print("the end")
    op.finish()
    show(op)
    stats = op.stats()
    print(
        {
            name: stats[name]
            for name in ("on_time", "mildly_late", "very_late", "windows", "keys", "bytes")
        }
    )


if __name__ == "__main__":
    main()

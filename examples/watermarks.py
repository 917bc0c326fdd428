"""Watermarks of partitions: one becomes idle, one returns with late data, one has a wrong clock."""

# ruff: noqa: INP001, T201

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import tidegate as tg

NOON = datetime(2025, 3, 14, 12, tzinfo=UTC)
PANES = (
    tg.stream(
        time="ts",
        partition="line",
        watermark=tg.bounded("5 seconds", partitions=["north", "south"], idle_after="30 seconds"),
    )
    .window(tg.tumbling("1 minute"))
    .trigger(tg.after_watermark(late=tg.after_count(1)))
    .retracting()
    .aggregate(n=tg.count())
)


def at(seconds: int) -> datetime:
    """A number of seconds past noon."""
    return NOON + timedelta(seconds=seconds)


def show(op: tg.EmbeddedOperator) -> None:
    """Print and release the waiting panes, then why there are no others."""
    for pane in op.get_result().panes.to_pylist():
        print(
            f"  {pane['op']} {pane['window_start']:%H:%M} to {pane['window_end']:%H:%M} "
            f" {pane['timing']:<8} n {pane['n']}"
        )
    op.flush()
    why = op.explain_watermark().to_dict()
    for source in why["sources"]:
        print(
            f"  {source['name']}: {source['status']}, promised"
            f" {source['promise']}{', holds the watermark back' if source['holds'] else ''}"
        )
    print(f"  the watermark is {why['watermark']}")


def main() -> None:
    """The clock moves only with deliveries."""
    op = PANES.embedded(now=NOON)
    print("both partitions speak")
    op.add_messages([{"ts": at(40), "line": "north"}, {"ts": at(44), "line": "south"}], now=at(45))
    show(op)
    print("south falls silent, north goes on")
    op.add_message({"ts": at(70), "line": "north"}, now=at(70))
    show(op)
    print("south has been silent for 30 seconds")
    op.timeout(at(75))
    show(op)
    print("a row of next year: it is counted, and moves nothing")
    op.add_message({"ts": at(365 * 86400), "line": "north"}, now=at(76))
    show(op)
    print("south comes back with what it had kept, and holds the watermark back again")
    op.add_message({"ts": at(50), "line": "south"}, now=at(77))
    show(op)
    print(op.explain_watermark())


if __name__ == "__main__":
    main()

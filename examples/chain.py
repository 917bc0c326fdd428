"""A chain: clicks per user and minute feed clicks per city; a late click corrects both."""

# ruff: noqa: INP001, T201

from __future__ import annotations

import tidegate as tg

USERS = (
    tg.stream(time="ts", key=["city", "user"], watermark=tg.explicit())
    .window(tg.tumbling("1 minute"))
    .trigger(tg.after_watermark(late=tg.after_count(1)))
    .retracting()
    .aggregate(clicks=tg.count())
)
CITIES = (
    tg.stream(key="city")
    .inherit()
    .trigger(tg.after_watermark(late=tg.after_count(1)))
    .retracting()
    .options(granularity="batch")
    .aggregate(clicks=tg.sum("clicks"), busiest=tg.arg_max("user", "clicks"))
)


def click(second: int, city: str, user: str) -> dict[str, object]:
    """A click in the minute that starts at noon."""
    return {"ts": f"2025-03-14T12:00:{second:02}Z", "city": city, "user": user}


def show(cities: tg.EmbeddedOperator) -> None:
    """Print and release the panes of the cities."""
    for pane in cities.get_result().panes.to_pylist():
        print(
            f"  {pane['op']} {pane['city']:<6} {pane['timing']:<8} clicks {pane['clicks']}  busiest"
            f" {pane['busiest']}"
        )
    cities.flush()


def main() -> None:
    """The downstream has no window of its own: it inherits those of the incoming panes."""
    cities = CITIES.embedded(now="2025-03-14T12:00:00Z")
    users = USERS.embedded(downstream=cities, now="2025-03-14T12:00:00Z")
    users.add_messages(
        [
            click(1, "Lyon", "ann"),
            click(2, "Lyon", "bob"),
            click(3, "Lyon", "bob"),
            click(4, "Turin", "cid"),
        ]
    )
    print("the watermark reaches 12:01")
    users.advance_watermark("2025-03-14T12:01:00Z")
    show(cities)
    print("two late clicks of ann")
    users.add_messages([click(50, "Lyon", "ann"), click(51, "Lyon", "ann")])
    show(cities)


if __name__ == "__main__":
    main()

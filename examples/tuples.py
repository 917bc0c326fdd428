"""Windows on messages instead of time: three per key, the last four every two, offset sessions."""

# ruff: noqa: INP001, T201

from __future__ import annotations

import tidegate as tg

READINGS = [
    {"offset": offset, "sensor": sensor, "value": value}
    for offset, (sensor, value) in enumerate(
        [
            ("a", 10),
            ("a", 12),
            ("b", 70),
            ("a", 14),
            ("a", 11),
            ("b", 72),
            ("a", 9),
            ("b", 71),
            ("a", 13),
        ]
    )
]


def run(title: str, window: tg.Windowed, **aggregates: object) -> None:
    """Deliver all readings and print every pane."""
    op = window.aggregate(**aggregates).embedded(now=0)
    op.add_messages(READINGS)
    op.finish()
    print(title)
    for pane in op.get_result().panes.to_pylist():
        values = ", ".join(f"{name} {pane[name]}" for name in aggregates)
        print(f"  {pane['sensor']}  [{pane['window_start']}, {pane['window_end']})  {values}")


def main() -> None:
    """The same nine readings in three kinds of windows; none of them needs a time column."""
    by_sensor = tg.stream(key="sensor")
    run(
        "three messages of a sensor",
        by_sensor.window(tg.tumbling(3, axis="ordinal")),
        n=tg.count(),
        mean=tg.mean("value"),
    )
    run(
        "four messages of a sensor, every two",
        by_sensor.window(tg.hopping(4, 2, axis="ordinal")),
        values=tg.list_("value"),
    )
    by_offset = tg.stream(key="sensor", offset="offset")
    run(
        "a sensor's messages at most two offsets apart",
        by_offset.window(tg.session(2, axis="offset")),
        values=tg.list_("value"),
    )


if __name__ == "__main__":
    main()

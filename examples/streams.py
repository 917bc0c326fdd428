"""A stream whose writers note the time: a slow writer, a scaling, and readers with time windows."""

# ruff: noqa: INP001, T201

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

import tidegate as tg

NOON = 1_741_953_600_000_000  # 2025-03-14T12:00Z; times are microseconds
SECOND = 1_000_000


class Clock:
    """A clock that moves only by assignment."""

    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> int:
        return self.now


def clock_time(time: int | None) -> str:
    """A time of the hour from noon on."""
    return (
        "?"
        if time is None
        else f"12:{(time - NOON) // SECOND // 60:02}:{(time - NOON) // SECOND % 60:02}"
    )


def look(controller: tg.streams.Controller, clock: Clock, seconds: int) -> None:
    """Move the clock to a number of seconds past noon and run a round of the controller."""
    clock.now = NOON + seconds * SECOND
    mark = controller.round().get("readings")
    news = (
        "nothing new"
        if mark is None
        else f"all is written up to {clock_time(mark.time)}, cut {dict(sorted(mark.cut.items()))}"
    )
    print(f"  {clock_time(clock.now)} the controller: {news}")


def measure(writer: tg.streams.Writer, first: int, last: int) -> None:
    """Write one reading every five seconds, then note the time."""
    for second in range(first, last, 5):
        writer.write({"second": second, "by": writer.id}, routing_key=f"{writer.id}-{second % 3}")
    writer.note_time(NOON + last * SECOND)
    writer.flush()
    print(f"  {writer.id} has written all up to {clock_time(NOON + last * SECOND)}")


def read_all(stream: tg.streams.Stream) -> None:
    """Two readers share the segments; a minute is complete when their group has passed its end."""
    group = stream.group("report")
    readers = [group.reader("r1"), group.reader("r2")]
    for reader in readers:
        reader.checkpoint()  # both readers are there now, so each gets its share
    minutes: Counter[int] = Counter()
    seen = -1
    while seen < sum(minutes.values()):
        seen = sum(minutes.values())
        for reader in readers:
            events = reader.read(6)
            minutes.update(event.json["second"] // 60 for event in events)
            window = reader.current_time_window()
            reader.checkpoint()
            if events:
                times = f"between {clock_time(window.lower)} and {clock_time(window.upper)}"
                print(
                    f"  {reader.id} read {len(events)} of the segment {events[0].segment}; the"
                    f" group is {times}"
                )
    for minute, count in sorted(minutes.items()):
        end = NOON + (minute + 1) * 60 * SECOND
        complete = window.lower is not None and window.lower >= end
        print(
            f"  12:{minute:02} has {count} readings, and"
            f" {'that is all of them' if complete else 'there may be more'}"
        )


def main() -> None:
    """Two writers, one of which falls silent and returns."""
    clock = Clock()
    with (
        tempfile.TemporaryDirectory() as folder,
        tg.streams.open(Path(folder) / "readings.db", clock=clock) as store,
    ):
        stream = store.create(
            "readings",
            segments=2,
            timestamp_aggregation_timeout="30 seconds",
            initial_delay="10 seconds",
        )
        controller = store.controller(
            lease="1 hour"
        )  # no other controller takes over between two rounds
        north, south = stream.writer("north", linger=None), stream.writer("south", linger=None)
        print("both write")
        measure(north, 0, 30)
        measure(south, 0, 20)
        look(controller, clock, 5)
        look(controller, clock, 30)
        print("south falls silent; time waits for it, and goes on without it after 30 seconds")
        measure(north, 30, 70)
        look(controller, clock, 70)
        look(controller, clock, 101)
        print("the stream gets a third segment, and south comes back")
        stream.scale(segments=3)
        measure(south, 20, 130)
        measure(north, 70, 125)
        look(controller, clock, 130)
        print("two readers")
        read_all(stream)
        north.close()
        south.close()


if __name__ == "__main__":
    main()

"""The processes of the soak test of streams, each killed and restarted at any moment.

They are writers, controllers, readers and a Spark query:

    python stream_soak_worker.py ROLE NAME STORE FOLDER SEED

An event is {"w": writer, "l": life of the writer, "n": number, "t": time in µs, "k": key}. The
times of a writer only grow, over all of its lives.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tidegate import streams
from tidegate.errors import StreamError
from tidegate.streams import Stream

STREAM = "soak"
STEP = 10_000
"""Event time between two events of a writer."""
START = 1_700_000_000_000_000
LAST = START + 10**12
"""The last time that every writer notes."""
KEYS = 20


def run(role: str, name: str, url: str, folder: Path, seed: int) -> None:
    roles: dict[str, Callable[[str, str, Path, random.Random], None]] = {
        "transactional": transactional,
        "plain": plain,
        "control": control,
        "read": read,
        "spark": spark,
    }
    roles[role](name, url, folder, random.Random(seed))


def stopped(folder: Path) -> bool:
    return (folder / "stop").exists()


def note_down(file: Path, *lines: Any) -> None:
    """Append complete lines that survive the crash of this process."""
    with file.open("ab") as out:
        out.write(b"".join(json.dumps(line).encode() + b"\n" for line in lines))


def noted_down(file: Path) -> list[Any]:
    """The complete lines of a file; the last one may be torn."""
    found = file.read_bytes().split(b"\n")[:-1] if file.exists() else []
    return [json.loads(line) for line in found]


def event(writer: str, life: int, number: int, dice: random.Random) -> tuple[dict[str, Any], str]:
    key = f"k{dice.randrange(KEYS)}"
    return {"w": writer, "l": life, "n": number, "t": START + number * STEP, "k": key}, key


def stream_of(url: str) -> Stream:
    return streams.open(url).stream(STREAM)


def transactional(name: str, url: str, folder: Path, dice: random.Random) -> None:
    """Continues exactly after its committed transactions; no timeout strikes on a busy machine."""
    writer = stream_of(url).transactional_writer(name, timeout="1 day")
    while not stopped(folder):
        first = number = writer.written
        transaction = writer.begin()
        for number in range(first, first + dice.randint(1, 40)):
            transaction.write(*event(name, 0, number, dice))
        if dice.random() < 0.1:
            transaction.abort()
            continue
        transaction.commit(START + (number + 1) * STEP)
        note_down(folder / f"acked-{name}", *([0, one] for one in range(first, number + 1)))
        time.sleep(dice.random() * 0.1)
    writer.begin().commit(LAST)


def plain(name: str, url: str, folder: Path, dice: random.Random) -> None:
    """Continues after everything it may have written; each life has its own number."""
    lives = folder / f"lives-{name}"
    begun = noted_down(lives)
    life, number = len(begun), (begun[-1] if begun else 0) + 1000
    note_down(lives, number)
    writer = stream_of(url).writer(name, linger=None)
    while not stopped(folder):
        first = number
        for number in range(first, first + dice.randint(1, 40)):
            writer.write(*event(name, life, number, dice))
        number += 1
        # Recorded before the flush: the next life starts after it in any case.
        note_down(lives, number)
        writer.note_time(START + number * STEP)
        writer.flush()
        note_down(folder / f"acked-{name}", *([life, one] for one in range(first, number)))
        time.sleep(dice.random() * 0.1)
    writer.note_time(LAST)
    writer.flush()


def control(name: str, url: str, folder: Path, dice: random.Random) -> None:
    streams.open(url).controller(
        period="200 ms", lease="5 seconds", name=f"{name}-{os.getpid()}"
    ).run()


def read(name: str, url: str, folder: Path, dice: random.Random) -> None:
    """Records what it reads, then checkpoints."""
    reader = stream_of(url).group("readers", lease="2 seconds").reader(name)
    log = folder / f"read-{name}"
    while True:
        found = reader.read(dice.randint(1, 500), wait="200 ms")
        window = reader.current_time_window()
        lower = None if window is None else window.lower
        note_down(log, *([one.segment, one.offset, one.json, lower] for one in found))
        try:
            reader.checkpoint()
        except StreamError:
            continue


def spark(name: str, url: str, folder: Path, dice: random.Random) -> None:
    """Counts the events per key in windows of a second, by the noted watermark."""
    from pyspark.sql import functions as f

    import tidegate as tg

    session = tg.spark_session()
    rows = (
        session.readStream.format("tidegate").option("store", url).option("stream", STREAM).load()
    )
    parsed = rows.select(
        f.from_json(f.col("value").cast("string"), "w string, t long, k string").alias("e"),
        "writer",
        "noted",
    )
    events = parsed.select(
        f.timestamp_micros("e.t").alias("ts"), f.col("e.k").alias("k"), "writer", "noted"
    )
    panes = (
        tg.stream(events, time="ts", key="k", watermark=tg.noted())
        .window(tg.tumbling("1 second"))
        .aggregate(n=tg.count())
    )
    query = panes.write(
        to=tg.sinks.parquet(folder / "panes"),
        late=tg.sinks.parquet(folder / "late"),
        checkpoint=folder / "checkpoint",
    )
    query.await_termination()


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]), int(sys.argv[5]))

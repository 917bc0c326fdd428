"""A driver that is made to be killed: queries over one folder that grows, and the plain count that
what they write is held against.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

import tidegate as tg
from support.spark_streams import BASE, SECOND, UTC, Row
from tidegate.spark.sinks.base import SinkTarget
from tidegate.spark.sinks.parquet import BatchFolder, Parquet

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidegate.spark.query.handle import Query

SCHEMA = pa.schema(
    {"seq": pa.int64(), "id": pa.string(), "user": pa.string(), "ts": UTC, "v": pa.int64()}
)
DDL = "seq long, id string, user string, ts timestamp, v long"
MINUTE, GAP = 60 * SECOND, 15 * SECOND
WINDOWS = {"tumbling": tg.tumbling("1 minute"), "sessions": tg.session("15 seconds")}
KINDS = (*WINDOWS, "join")
BEFORE, AFTER = 20 * SECOND, 10 * SECOND
"""How far before and after a right row the left rows are that it meets."""
USERS = [f"user{n}" for n in range(24)]
PER_FILE = 60
AT_ONCE = 2
"""How many files a batch takes."""
HOPELESS_FROM = 2 * AT_ONCE
"""The first file with rows that nothing can save: by then the watermark is there."""
ENDED = "ended"
"""The line a worker says when it has read and written everything."""
Place = tuple[Any, ...]
"""A user, a window, and what is in it; or a user and the ids of two rows that have met."""


def rows_of(seed: int, number: int) -> list[Row]:
    """The rows of a file: 20 seconds a file, out of order by up to five minutes; some unreadable,
    some hopelessly late, and some sent twice.
    """
    dice = random.Random(f"{seed}/{number}")
    found: list[Row] = []
    for n in range(PER_FILE):
        seq = number * PER_FILE + n
        sound = [row for row in found if row["ts"] is not None]
        if sound and dice.random() < 0.08:
            found.append({**dice.choice(sound), "seq": seq})
            continue
        at: int | None = BASE + (20 * number + 20) * SECOND + dice.randrange(20 * SECOND)
        assert at is not None
        at -= dice.choice([0, 0, 0, 5, 20, 90, 300]) * SECOND
        chance = dice.random()
        if chance < 0.02:
            at = None
        elif chance < 0.05 and number >= HOPELESS_FROM:
            at = BASE - 10_000 * SECOND - dice.randrange(1000 * SECOND)
        # A sum of such values tells which rows are in it.
        found.append(
            {
                "seq": seq,
                "id": f"m{seq}",
                "user": dice.choice(USERS),
                "ts": at,
                "v": dice.randrange(1 << 40),
            }
        )
    return found


CLOSING = {"seq": -1, "id": "end", "user": "end", "ts": BASE + 10**6 * SECOND, "v": 0}
"""The row behind which every window has expired; its own is not complete."""


class Sender:
    """Puts files into a folder, and remembers their rows."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder, self._seed, self._stamp = folder, seed, 0
        self.rows: list[Row] = []
        self._count = 0
        folder.mkdir(parents=True)

    def put(self, files: int = 1) -> None:
        for _ in range(files):
            self._write(rows_of(self._seed, self._count))

    def close(self) -> None:
        self._write([CLOSING])

    def _write(self, rows: list[Row]) -> None:
        hidden = self._folder / f".{self._count:05d}.parquet"
        pq.write_table(pa.Table.from_pylist(rows, SCHEMA), hidden)
        # Files are read by age, and the clock of a file system may be too coarse to tell it.
        self._stamp = max(time.time_ns(), self._stamp + 10_000_000)
        os.utime(hidden, ns=(self._stamp, self._stamp))
        hidden.rename(self._folder / f"{self._count:05d}.parquet")
        self._count += 1
        self.rows += rows


@dataclass
class Truth:
    """What has to come out, by a plain count of the rows that were sent."""

    rows: list[Row]

    @property
    def late(self) -> list[int]:
        return sorted(
            {row["id"]: row["seq"] for row in reversed(self.rows) if not self._counts(row)}.values()
        )

    @property
    def counted(self) -> list[Row]:
        return list(
            {row["id"]: row for row in self.rows if self._counts(row) and row != CLOSING}.values()
        )

    def numbers(self, kind: str) -> dict[str, int]:
        messages = len({row["id"] for row in self.rows})
        # Both sides of a join get the row that closes.
        both = int(kind == "join" and CLOSING in self.rows)
        return {
            "events": messages + both,
            "duplicates": len(self.rows) - messages,
            "late_rows": len(self.late),
        }

    def panes(self, kind: str) -> Counter[Place]:
        """Each pane or pair that stands in the end, once."""
        if kind == "join":
            return self._pairs()
        found: dict[tuple[str, int, int], list[Row]] = {}
        for user in {row["user"] for row in self.counted}:
            mine = sorted(
                (row for row in self.counted if row["user"] == user), key=lambda row: row["ts"]
            )
            for start, end, rows in (
                self._tumbling(mine) if kind == "tumbling" else self._sessions(mine)
            ):
                found.setdefault((user, start, end), []).extend(rows)
        return Counter(
            {(*place, len(rows), sum(row["v"] for row in rows)): 1 for place, rows in found.items()}
        )

    def _pairs(self) -> Counter[Place]:
        """Rows of both sides that meet, and those that meet none."""
        sides = [
            [row for row in self.counted if is_left(row["id"]) == left] for left in (True, False)
        ]
        pairs = [
            (one, two)
            for one in sides[0]
            for two in sides[1]
            if one["user"] == two["user"] and -BEFORE <= one["ts"] - two["ts"] <= AFTER
        ]
        together = {row["id"] for pair in pairs for row in pair}
        alone = [
            (row["user"], *((row["id"], None) if is_left(row["id"]) else (None, row["id"])))
            for row in self.counted
            if row["id"] not in together
        ]
        return Counter([*((one["user"], one["id"], two["id"]) for one, two in pairs), *alone])

    @staticmethod
    def _counts(row: Row) -> bool:
        return row["ts"] is not None and row["ts"] >= BASE - 1000 * SECOND

    @staticmethod
    def _tumbling(rows: list[Row]) -> Iterator[tuple[int, int, list[Row]]]:
        for row in rows:
            start = row["ts"] - row["ts"] % MINUTE
            yield start, start + MINUTE, [row]

    @staticmethod
    def _sessions(rows: list[Row]) -> Iterator[tuple[int, int, list[Row]]]:
        session: list[Row] = []
        for row in rows:
            if session and row["ts"] - session[-1]["ts"] > GAP:
                yield session[0]["ts"], session[-1]["ts"] + GAP, session
                session = []
            session.append(row)
        if session:
            yield session[0]["ts"], session[-1]["ts"] + GAP, session


def is_left(id: str) -> bool:
    """On which side of the join a row is; one that comes twice is on the same both times."""
    return zlib.crc32(id.encode()) % 2 == 0


# What came out


def written(folder: Path) -> list[Row]:
    """All rows of a parquet sink, the batches in their order."""
    batches = sorted(folder.glob("batch=*"), key=lambda batch: int(batch.name.partition("=")[2]))
    return [
        row
        for batch in batches
        for file in sorted(batch.glob("*.parquet"))
        for row in _stamped(pq.ParquetFile(file).read()).to_pylist()
    ]


def _stamped(table: pa.Table) -> pa.Table:
    """Instants as numbers, which compare without a calendar."""
    for number, column in enumerate(table.schema):
        if pa.types.is_timestamp(column.type):
            table = table.set_column(
                number, column.name, table.column(number).cast(UTC).cast(pa.int64())
            )
    return table


def net(rows: Sequence[Row], key: str = "user") -> Counter[Place]:
    """Emits minus retracts; nothing is written twice, and nothing is taken back that was not
    there.
    """
    found: Counter[Place] = Counter()
    for row in rows:
        names = (
            (key, "left_id", "right_id")
            if "pair_id" in row
            else (key, "window_start", "window_end", "n", "total")
        )
        found[tuple(row[name] for name in names)] += 1 if row["op"] == "+" else -1
    assert set(found.values()) <= {0, 1}, [item for item in found.items() if item[1] not in {0, 1}][
        :5
    ]
    return Counter({place: 1 for place, n in found.items() if n and place != ("end", "end", "end")})


def compare(folder: Path, kind: str, truth: Truth, key: str = "user") -> None:
    """The panes at the sink, netted, are the batch answer; panes and late rows account for every
    event.
    """
    found, wanted = net(written(folder / kind / "panes"), key), truth.panes(kind)
    assert found == wanted, (
        f"lost: {list((wanted - found).items())[:5]}, too many: {list((found - wanted).items())[:5]}"
    )
    assert sorted(row["seq"] for row in written(folder / kind / "late")) == truth.late
    numbers = written(folder / kind / "metrics")
    assert {
        name: sum(row[name] for row in numbers) for name in truth.numbers(kind)
    } == truth.numbers(kind)


# The driver


@dataclass(frozen=True)
class Orders:
    """What a driver is told when it starts."""

    folder: str
    kinds: Sequence[str] = KINDS
    master: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    dies_at: str | None = None
    """A point at which the driver kills itself and its JVM."""
    after: int = 0
    """How many times it passes the point before."""
    ends: bool = False
    """Whether it ends when everything that is there is written; otherwise that is told by a file
    named `enough`.
    """

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def panes_of(
    spark: SparkSession, source: Path, kind: str, key: Any = "user", **more: Any
) -> tg.Panes:
    """Early panes, late updates, retractions, ids; one variant over a DataFrame, one over a direct
    source.
    """
    given: Any = (
        spark.readStream.schema(DDL).option("maxFilesPerTrigger", AT_ONCE).parquet(str(source))
    )
    if kind == "sessions":
        given = tg.sources.parquet(source, schema=SCHEMA, max_files_per_trigger=AT_ONCE)
    return (
        tg.stream(given, time="ts", key=key, id="id", watermark=tg.bounded("10 seconds"))
        .window(WINDOWS[kind])
        .trigger(tg.after_watermark(early=tg.after_count(3), late=tg.after_count(1)))
        .allow_lateness("1 hour")
        .retracting()
        .aggregate(n=tg.count(), total=tg.sum("v"), **more)
    )


def join_of(spark: SparkSession, source: Path, where: Any = None) -> tg.Joined:
    """Each row without a partner at once, late pairs, retractions, ids; the rows of the folder are
    on two sides.
    """
    given = spark.readStream.schema(DDL).option("maxFilesPerTrigger", AT_ONCE).parquet(str(source))
    sides = [given.where(f"id = 'end' OR crc32(id) % 2 = {side}") for side in (0, 1)]
    left, right = (
        tg.stream(frame, time="ts", key="user", id="id", watermark=tg.bounded("10 seconds"))
        for frame in sides
    )
    bounds = tg.within(BEFORE, AFTER, unit="us")
    return (
        left.join(right, bounds, how="full", where=where).allow_lateness("1 hour").early_padding()
    )


def overwriting(folder: Path) -> Callable[[DataFrame, int], None]:
    """A function for `foreach_batch` that keeps its promise: a batch is a folder under its id,
    there as a whole or not at all.
    """

    def write(frame: DataFrame, batch: int) -> None:
        table = frame.toArrow()
        place = folder / f"batch={batch}"
        place.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, place / ".draft")
        (place / ".draft").replace(place / "all.parquet")

    return write


def started(
    spark: SparkSession,
    orders: Orders,
    kind: str,
    panes: tg.Panes | tg.Joined | None = None,
    **more: Any,
) -> Query:
    """Start one of the queries; it goes on where it stopped."""
    folder = Path(orders.folder)
    out = folder / kind
    if panes is None:
        panes = (
            join_of(spark, folder / "in")
            if kind == "join"
            else panes_of(spark, folder / "in", kind)
        )
    options = {
        "to": (
            tg.sinks.foreach_batch(overwriting(out / "panes"))
            if kind == "sessions"
            else tg.sinks.parquet(out / "panes")
        ),
        "late": tg.sinks.parquet(out / "late"),
        "metrics": tg.sinks.parquet(out / "metrics"),
        "checkpoint": str(out / "checkpoint"),
        "trigger": "0 seconds",
        "shards": 3,
    }
    return panes.write(**{**options, **more})


def kill_at(point: str, after: int) -> None:
    """Kill this process group when it has passed a point of publishing so many times."""
    passed = 0

    def pass_by() -> None:
        nonlocal passed
        passed += 1
        if passed > after:
            os.killpg(0, signal.SIGKILL)

    publish, remove = Parquet.publish, BatchFolder.remove

    def publishing(sink: Parquet, target: SinkTarget, batch: int, staged: list[str]) -> None:
        if point == "staged":
            pass_by()
        publish(sink, target, batch, staged)
        # Metrics are the last of the outputs: then everything is published, and Spark has not
        # committed the batch.
        if point == "published" and target.output == "metrics":
            pass_by()

    def removing(place: BatchFolder, batch: int) -> None:
        remove(place, batch)
        if point == "replaced":
            pass_by()

    Parquet.publish = publishing  # type: ignore[method-assign]
    BatchFolder.remove = removing  # type: ignore[method-assign]


def drive(orders: Orders) -> None:
    """Live until everything is written, or somebody ends it."""
    say = lambda word: print(word, f"{time.monotonic() - begun:.1f}", flush=True)  # noqa: E731
    begun = time.monotonic()
    spark = tg.spark_session(
        "torture", master=orders.master, cores=2, memory="1g", conf=orders.conf
    )
    say("session")
    if orders.dies_at is not None:
        kill_at(orders.dies_at, orders.after)
    queries = [started(spark, orders, kind) for kind in orders.kinds]
    say("started")
    seen = 0
    while not orders.ends and not (Path(orders.folder) / "enough").exists():
        failures = [failure for query in queries if (failure := query.exception()) is not None]
        if failures:
            raise failures[0]
        batches = sum(
            1
            for query in queries
            for progress in query.recent_progress
            if progress.counts["events"]
        )
        if batches != seen:
            seen = batches
            say(f"batches {seen}")
        time.sleep(0.1)
    for query in queries:
        query.process_all_available()
        query.stop()
    say(ENDED)
    spark.stop()


if __name__ == "__main__":
    drive(Orders(**json.loads(sys.argv[1])))

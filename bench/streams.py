"""Stream benchmark: writing to a stream against plain SQLite inserts and a plain Kafka producer."""

from __future__ import annotations

import gc
import sqlite3
import statistics
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from tidegate import streams
from tidegate.errors import MissingExtraError
from tidegate.streams.writer import Writer

EVENTS = 200_000
SQLITE_SIZES = ((1, 1), (100, 1), (1_000, 1), (1_000, 4), (10_000, 1))
"""Pairs (events per transaction, segments of the stream)."""
KAFKA_SIZE, KAFKA_SEGMENTS = 20_000, 4
KEYS = 1_000
VALUE_BYTES = 100
NOTED_EVERY = 1_000
_UNMEASURED, _TURNS = 1, 7


@dataclass(frozen=True)
class Measured:
    """Throughput of both sides, in events per second."""

    name: str
    aim: float
    """Target ratio to the peer's throughput."""
    ratio: float
    peer: str
    transaction: int
    segments: int
    synchronous: str
    events_per_second: float
    peer_events_per_second: float

    def to_dict(self) -> dict[str, Any]:
        return {
            name: round(value, 4) if isinstance(value, float) else value
            for name, value in asdict(self).items()
        }


class Runner(Protocol):
    """Writes events in transactions; returns when they are durable."""

    def write(self, events: list[tuple[str, bytes]], size: int) -> None: ...


class StreamRunner:
    """Our writer: a call per event, a flush per transaction, a noted time every 1,000 events."""

    def __init__(self, url: str, segments: int) -> None:
        self._streams = streams.open(url)
        stream = self._streams.create("bench", segments)
        self._writer: Writer = stream.writer(
            "bench", linger=None, batch_events=1 << 30, batch_bytes=1 << 40
        )
        self._time = 0

    def write(self, events: list[tuple[str, bytes]], size: int) -> None:
        write = self._writer.write
        for first in range(0, len(events), size):
            for key, value in events[first : first + size]:
                write(value, key)
            if (first + size) % NOTED_EVERY < size:
                self._time += 1
                self._writer.note_time(self._time)
            self._writer.flush()


class SqliteRunner:
    """Plain inserts into a table of keys and values, one `executemany` per transaction."""

    def __init__(self, path: Path, synchronous: str) -> None:
        self._file = sqlite3.connect(path, isolation_level=None)
        self._file.execute("PRAGMA journal_mode = WAL")
        self._file.execute(f"PRAGMA synchronous = {synchronous}")
        self._file.execute("CREATE TABLE event (id INTEGER PRIMARY KEY, key TEXT, value BLOB)")

    def write(self, events: list[tuple[str, bytes]], size: int) -> None:
        for first in range(0, len(events), size):
            self._file.execute("BEGIN IMMEDIATE")
            self._file.executemany(
                "INSERT INTO event (key, value) VALUES (?, ?)", events[first : first + size]
            )
            self._file.execute("COMMIT")


class KafkaRunner:
    """A plain Kafka producer that checks delivery errors and flushes as often as our writer."""

    def __init__(self, servers: str, topic: str) -> None:
        try:
            from confluent_kafka import Producer
            from confluent_kafka.admin import AdminClient
            from confluent_kafka.cimpl import NewTopic
        except ImportError:
            raise MissingExtraError("confluent-kafka", "kafka", "the Kafka benchmark") from None
        settings: dict[str, Any] = {"bootstrap.servers": servers}
        admin = AdminClient(settings)
        admin.create_topics([NewTopic(topic, KAFKA_SEGMENTS, 1)])[topic].result(30)
        self._topic, self.failed = topic, 0
        self._producer = Producer(
            {
                **settings,
                "enable.idempotence": True,
                "linger.ms": 5,
                "queue.buffering.max.messages": 1_000_000,
            }
        )

    def write(self, events: list[tuple[str, bytes]], size: int) -> None:
        for first in range(0, len(events), size):
            for key, value in events[first : first + size]:
                self._producer.produce(self._topic, value, key, on_delivery=self._on_delivery)
                self._producer.poll(0)
            self._producer.flush()

    def _on_delivery(self, error: object, _: object) -> None:
        self.failed += error is not None


def measure(events: int = EVENTS, brokers: str | None = None) -> Iterator[Measured]:
    """One measurement per transaction size and `synchronous` setting."""
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder:
        for synchronous in ("normal", "full"):
            for size, segments in SQLITE_SIZES:
                yield _beside_sqlite(
                    Path(folder) / f"{synchronous}-{size}-{segments}",
                    events,
                    size,
                    segments,
                    synchronous,
                )
    if brokers is not None:
        label = uuid.uuid4().hex[:8]
        ours, peer = (
            StreamRunner(f"kafka://{brokers}/bench-{label}-", KAFKA_SEGMENTS),
            KafkaRunner(brokers, f"bench-{label}-peer"),
        )
        yield Sides(ours, peer, max(events, KAFKA_SIZE), KAFKA_SIZE, KAFKA_SEGMENTS).measured(
            "kafka", 0.8, "a plain producer"
        )


def _beside_sqlite(
    folder: Path, events: int, size: int, segments: int, synchronous: str
) -> Measured:
    folder.mkdir()
    # Transactions of a single event are slow on both sides.
    count = max(1, min(events // size, 2_000 if synchronous == "normal" else 200)) * size
    ours, peer = (
        StreamRunner(f"sqlite:{folder / 'ours.db'}?synchronous={synchronous}", segments),
        SqliteRunner(folder / "peer.db", synchronous),
    )
    return Sides(ours, peer, count, size, segments).measured(
        f"sqlite_{size}", 0.5, "sqlite3 inserts", synchronous
    )


@dataclass(frozen=True)
class Sides:
    """Our writer and a peer that writes the same events in transactions of the same size."""

    ours: Runner
    peer: Runner
    events: int
    size: int
    segments: int

    def measured(self, name: str, aim: float, peer: str, synchronous: str = "") -> Measured:
        """Race both sides."""
        rows = [
            (f"key-{number * 7919 % KEYS}", number.to_bytes(8, "big") * (VALUE_BYTES // 8))
            for number in range(self.events)
        ]
        ours, theirs = (
            self.events / seconds for seconds in _race([self.ours, self.peer], rows, self.size)
        )
        return Measured(
            name, aim, ours / theirs, peer, self.size, self.segments, synchronous, ours, theirs
        )


def _race(runners: list[Runner], rows: list[tuple[str, bytes]], size: int) -> list[float]:
    """Median wall seconds of each runner, in turns; waiting for the disk counts."""
    taken: list[list[float]] = [[] for _ in runners]
    for turn in range(_UNMEASURED + _TURNS):
        for times, runner in zip(taken, runners, strict=True):
            gc.collect()
            begun = time.perf_counter()
            runner.write(rows, size)
            if turn >= _UNMEASURED:
                times.append(time.perf_counter() - begun)
    return [statistics.median(times) for times in taken]


HEAD = (
    f"{'case':<16}{'ratio':>7}{'aim':>6}  "
    f" {'against':<20}{'synchronous':<13}{'transaction':>12}{'segments':>10}"
    f"{'ours/s':>12}{'peer/s':>12}"
)


def line(found: Measured) -> str:
    """One row of the printed table."""
    verdict = "" if found.ratio >= found.aim else "  below"
    return (
        f"{found.name:<16}{found.ratio:>7.2f}{found.aim:>6.1f}  "
        f" {found.peer:<20}{found.synchronous:<13}{found.transaction:>12,}{found.segments:>10}"
        f"{found.events_per_second:>12,.0f}{found.peer_events_per_second:>12,.0f}{verdict}"
    )

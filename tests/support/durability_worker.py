"""Writes with everything that confirms writes on a local disk, and marks each confirmation."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from tidegate import streams
from tidegate.spark.query.checkpoint_sync import sync_checkpoint
from tidegate.spark.query.metadata import QueryMetadata, create_metadata, replace_metadata
from tidegate.spark.sinks import delta, parquet
from tidegate.spark.sinks.base import SinkTarget
from tidegate.spark.tasks.shards import ShardLayout
from tidegate.state.memory import MemoryStore
from tidegate.state.rocksdb import RocksDBStore

ROWS = pa.table({"k": ["a", "b"], "n": [1, 2]})
TARGET = SinkTarget("q", "panes", ROWS.schema, ("k",), "accumulating")


def confirmed(name: str) -> None:
    os.write(1, f"confirmed {name}\n".encode())


def sink(folder: Path) -> None:
    to = parquet(folder / "out" / "panes")
    # The last one is a replay of its batch.
    for batch in (0, 1, 3, 3):
        staged = [
            text for task in ("0", "1") for text in to.stage(TARGET, batch, task, iter([ROWS]))
        ]
        to.publish(TARGET, batch, staged)
        confirmed("sink")
    to.publish(TARGET, 3, [])
    confirmed("sink")


def table(folder: Path) -> None:
    to = delta(folder / "out" / "panes")
    for batch in (0, 1, 1):
        to.write(TARGET, batch, iter([ROWS]))
        confirmed("table")


def memory(folder: Path) -> None:
    store = MemoryStore(folder / "a" / "b" / "state")
    for number in range(3):
        store.put_table("t", ROWS)
        store.put_json("n", number)
        store.commit()
        confirmed("memory")


def rocksdb(folder: Path) -> None:
    store = RocksDBStore(folder / "a" / "b" / "state")
    for number in range(3):
        store.put_table("t", ROWS)
        store.put_json("n", number)
        store.commit()
        confirmed("rocksdb")
    os.write(1, b"ended\n")


def events(folder: Path) -> None:
    with streams.open(f"sqlite:{folder}/events.db") as store:
        store.create("clicks", 2)
        confirmed("streams")
        with store.stream("clicks").writer("w") as writer:
            for number in range(3):
                writer.write({"n": number}, f"k{number}")
                writer.flush()
                confirmed("streams")


def metadata(folder: Path) -> None:
    found = QueryMetadata.new(ShardLayout.balanced(2), [])
    create_metadata(str(folder), found)
    confirmed("metadata")
    replace_metadata(str(folder), found)
    confirmed("metadata")


def checkpoint(folder: Path) -> None:
    """Files as Spark writes them: without a sync."""
    for batch in range(3):
        for name in (f"offsets/{batch}", f"commits/{batch}", f"state/0/{batch % 2}/{batch}.zip"):
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            draft = path.with_name(f".{path.name}.tmp")
            draft.write_bytes(b"x" * 100)
            draft.rename(path)
        sync_checkpoint(str(folder))
        confirmed("checkpoint")


def careless(folder: Path) -> None:
    """Loses its file: shows that the model would see it."""
    (folder / "file").write_bytes(b"x")
    confirmed("careless")


CASES: dict[str, Callable[[Path], None]] = {
    "sink": sink,
    "table": table,
    "memory": memory,
    "rocksdb": rocksdb,
    "streams": events,
    "metadata": metadata,
    "checkpoint": checkpoint,
    "careless": careless,
}

if __name__ == "__main__":
    for name, case in CASES.items():
        folder = Path(sys.argv[1], name)
        folder.mkdir()
        case(folder)

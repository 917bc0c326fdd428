"""Readers of the committed state of a query: from the files of its checkpoint, or through Spark."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from typing import Any, Protocol

from pyarrow import fs

from tidegate.errors import CorruptStateError, StateError
from tidegate.spark.checkpoint import FOLDER, open_checkpoint
from tidegate.spark.query.state.changelog import UnsupportedCheckpointError
from tidegate.spark.query.state.rocksdb_partition import RocksDBPartition
from tidegate.spark.query.state.unsafe_row import VERSION, Kind, decode_row, encode_row
from tidegate.spark.tasks.shards import spark_partition

META_KINDS: tuple[Kind, ...] = ("int", "text", "bytes")
BLOB_KINDS: tuple[Kind, ...] = ("bytes",)
_SETTINGS = {
    "spark.sql.streaming.stateStore.encodingFormat": "unsaferow",
    "spark.sql.streaming.stateStore.rowChecksum.enabled": "false",
}
"""The settings of a query whose files can be read here."""


class StateReader(Protocol):
    """Access to the state variables of all shards after one batch.

    `FileNotFoundError`: the query has deleted the files of that batch meanwhile.
    """

    batch: int
    clock: int
    """The clock of that batch, in microseconds."""

    def operators(self) -> list[int]:
        """The stateful operators, by Spark's numbers."""
        ...

    def partitions(self, operator: int) -> int:
        """The number of partitions of an operator."""
        ...

    def meta(self, operator: int, shard: int) -> tuple[Any, ...] | None:
        """The value of the variable `meta` of a shard; None if it has none."""
        ...

    def blob(self, operator: int, shard: int, name: str, part: int) -> tuple[Any, ...] | None:
        """A value of the variable `blobs` of a shard."""
        ...


class CheckpointReader:
    """Reads a committed batch, by default the last one, from the files of a checkpoint."""

    def __init__(self, checkpoint: str, batch: int | None = None) -> None:
        self._system, self._path = open_checkpoint(checkpoint)
        self.batch = last_batch(self._system, self._path) if batch is None else batch
        planned = _json_lines(self._read(f"offsets/{self.batch}"))[0]
        self.clock = batch_clock(planned)
        _check_settings(planned.get("conf", {}))
        self._ids = _json_lines(self._read(f"commits/{self.batch}"))[0].get("stateUniqueIds") or {}
        self._partitions: dict[int, int] = {}
        self._opened: dict[tuple[int, int], RocksDBPartition] = {}

    def operators(self) -> list[int]:
        return _numbers(self._system, f"{self._path}/state", fs.FileType.Directory)

    def partitions(self, operator: int) -> int:
        if operator not in self._partitions:
            folder = f"{self._path}/state/{operator}"
            self._partitions[operator] = len(_numbers(self._system, folder, fs.FileType.Directory))
        return self._partitions[operator]

    def meta(self, operator: int, shard: int) -> tuple[Any, ...] | None:
        value = self._partition(operator, shard).get("meta", VERSION + encode_row(shard))
        return None if value is None else decode_row(value, META_KINDS)

    def blob(self, operator: int, shard: int, name: str, part: int) -> tuple[Any, ...] | None:
        key = _blob_key(shard, name, part)
        value = self._partition(operator, shard).get("blobs", key)
        return None if value is None else decode_row(value, BLOB_KINDS)

    def _partition(self, operator: int, shard: int) -> RocksDBPartition:
        number = spark_partition(shard, self.partitions(operator))
        if (operator, number) not in self._opened:
            ids = self._ids.get(str(operator))
            # After batch 0, the state has version 1.
            self._opened[operator, number] = RocksDBPartition(
                self._system,
                f"{self._path}/state/{operator}/{number}",
                self.batch + 1,
                None if ids is None else ids[number][0],
            )
        return self._opened[operator, number]

    def _read(self, name: str) -> bytes:
        with self._system.open_input_stream(f"{self._path}/{name}") as file:
            return bytes(file.readall())


def batch_clock(planned: Mapping[str, Any]) -> int:
    """The clock of a batch, from what Spark wrote before it ran."""
    return int(planned.get("batchTimestampMs", 0)) * 1000


def _check_settings(settings: Mapping[str, str]) -> None:
    """Refuse state in an encoding that only Spark can read."""
    for name, wanted in _SETTINGS.items():
        found = settings.get(name, wanted)
        if found.lower() != wanted:
            raise UnsupportedCheckpointError(f"`{name}` of the query is `{found}`")


def committed_batches(checkpoint: str) -> list[int]:
    """The committed batches that the log of a checkpoint has: Spark keeps the last hundred."""
    system, path = open_checkpoint(checkpoint)
    return _numbers(system, f"{path}/commits", fs.FileType.File)


def batch_clocks(checkpoint: str) -> dict[int, int]:
    """By clock in microseconds, the batches that the log of a checkpoint has."""
    system, path = open_checkpoint(checkpoint)
    found = {}
    for batch in _numbers(system, f"{path}/offsets", fs.FileType.File):
        # The query deletes its oldest entries.
        with (
            contextlib.suppress(FileNotFoundError),
            system.open_input_stream(f"{path}/offsets/{batch}") as file,
        ):
            found[batch_clock(_json_lines(file.readall())[0])] = batch
    return found


def last_batch(system: fs.FileSystem, path: str) -> int:
    """The number of the last committed batch."""
    begun = system.get_file_info(f"{path}/{FOLDER}/query.json").type == fs.FileType.File
    for name in () if begun else ("offsets", "commits", "state"):
        if system.get_file_info(f"{path}/{name}").type != fs.FileType.Directory:
            raise StateError(
                f"{path} is not the checkpoint of a query that has run a batch: it has no folder"
                f" `{name}`. Hint: pass the folder that `checkpoint` names"
            )
    found = _numbers(system, f"{path}/commits", fs.FileType.File)
    if not found:
        raise StateError(
            f"the query at {path} has not committed a batch yet. Hint: try again in a few seconds"
        )
    return found[-1]


def _numbers(system: fs.FileSystem, path: str, kind: fs.FileType) -> list[int]:
    """The files or folders whose names are numbers, sorted."""
    found = system.get_file_info(fs.FileSelector(path, allow_not_found=True))
    return sorted(
        int(info.base_name) for info in found if info.type == kind and info.base_name.isdecimal()
    )


def _json_lines(data: bytes) -> list[dict[str, Any]]:
    """The JSON objects in a file of Spark's logs; its first line is a version."""
    try:
        return [json.loads(line) for line in data.decode().splitlines()[1:] if line[:1] == "{"]
    except ValueError as error:
        raise CorruptStateError(
            f"a log of the checkpoint cannot be read ({error}). Hint: restore the checkpoint from a"
            " copy"
        ) from error


def _blob_key(shard: int, name: str, part: int) -> bytes:
    """The key of a map state: the length of the grouping key, that key, and the key in the map."""
    grouping = VERSION + encode_row(encode_row(shard))
    return (
        len(grouping).to_bytes(4, "little")
        + grouping
        + VERSION
        + encode_row(encode_row(name, part))
    )

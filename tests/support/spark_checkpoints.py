"""Checkpoints in the format of Spark's RocksDB state store, written without Spark."""

from __future__ import annotations

import json
import struct
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import rocksdict

from support.spark_fakes import Fleet
from tidegate.spark.query.metadata import QueryMetadata, replace_metadata
from tidegate.spark.query.state.unsafe_row import encode_row
from tidegate.spark.tasks.shards import spark_partition

FAMILIES = {"default": 1, "meta": 2, "blobs": 3}
Values = dict[bytes, bytes]


def lz4(data: bytes, block: int = 1 << 16) -> bytes:
    """Blocks as Java's LZ4 library writes them: every other one is stored as it is."""
    codec, blocks = pa.Codec("lz4_raw"), []
    for number, start in enumerate(range(0, len(data), block)):
        piece = data[start : start + block]
        packed = piece if number % 2 else codec.compress(piece, asbytes=True)
        method = 0x15 if number % 2 else 0x25
        head = struct.pack("<8sBIII", b"LZ4Block", method, len(packed), len(piece), 0)
        blocks.append(head + packed)
    return b"".join([*blocks, struct.pack("<8sBIII", b"LZ4Block", 0x15, 0, 0, 0)])


def zstd(data: bytes) -> bytes:
    return pa.Codec("zstd").compress(data, asbytes=True)


def snappy(data: bytes) -> bytes:
    codec, chunks = pa.Codec("snappy"), [b"\x82SNAPPY\x00", struct.pack(">ii", 1, 1)]
    for start in range(0, len(data), 1 << 15):
        packed = codec.compress(data[start : start + (1 << 15)], asbytes=True)
        chunks += [struct.pack(">i", len(packed)), packed]
    return b"".join(chunks)


CODECS = {"lz4": lz4, "zstd": zstd, "snappy": snappy}


class Checkpoint:
    """The checkpoint of a query in shards; each commit is a batch."""

    def __init__(
        self,
        folder: Path,
        fleet: Fleet,
        *,
        codec: Callable[[bytes], bytes] = lz4,
        unique_ids: bool = False,
        snapshot_every: int = 3,
    ) -> None:
        self.folder, self.fleet, self.batch = folder, fleet, -1
        self.clock = 0
        """The clock of the next batch, in milliseconds."""
        self._codec, self._unique_ids, self._every = codec, unique_ids, snapshot_every
        self._known: dict[tuple[int, int], Values] = {}
        self._lineage: dict[tuple[int, int], list[dict[str, Any]]] = {}
        for name in ("offsets", "commits", "state"):
            (folder / name).mkdir(parents=True)
        specs = [[spec.to_dict() for spec in stage.plan.specs] for stage in fleet.stages]
        replace_metadata(str(folder), QueryMetadata.new(fleet.layout, specs))

    def commit(self) -> None:
        """Write the state of the fleet, and commit it."""
        self.begin()
        ids = {
            str(operator): [
                [self._lineage[operator, partition][-1]["checkpointUniqueId"]]
                for partition in range(self.fleet.layout.partitions)
            ]
            for operator in range(len(self.fleet.stages))
        }
        document = {
            "nextBatchWatermarkMs": 0,
            **({"stateUniqueIds": ids} if self._unique_ids else {}),
        }
        (self.folder / f"commits/{self.batch}").write_text(f"v1\n{json.dumps(document)}")

    def begin(self) -> None:
        """Write the state of a batch that is not committed, as a killed query leaves it."""
        self.batch += 1
        conf = {"spark.sql.streaming.stateStore.encodingFormat": "unsaferow"}
        (self.folder / f"offsets/{self.batch}").write_text(
            f"v1\n{json.dumps({'batchTimestampMs': self.clock, 'conf': conf})}\n0"
        )
        # Spark numbers operators from the last one to the first.
        for operator, stage in enumerate(reversed(self.fleet.stages)):
            for partition in range(self.fleet.layout.partitions):
                values: Values = {}
                for shard, kept in stage.shards.items():
                    if spark_partition(shard, self.fleet.layout.partitions) == partition:
                        values.update(_encoded(shard, kept.state))
                self._write(operator, partition, values)

    def expire(self, before: int) -> None:
        """Delete the files of older batches, as Spark does after a while."""
        for file in self.folder.glob("state/*/*/*"):
            version = file.name.split(".")[0].split("_")[0]
            if version.isdecimal() and int(version) <= before:
                file.unlink()

    def _write(self, operator: int, partition: int, values: Values) -> None:
        folder = self.folder / f"state/{operator}/{partition}"
        (folder / "SSTs").mkdir(parents=True, exist_ok=True)
        former, version = self._known.get((operator, partition), {}), self.batch + 1
        lineage = self._lineage.setdefault((operator, partition), [])
        lineage.append(
            {"version": version, "checkpointUniqueId": f"id-{operator}-{partition}-{version}"}
        )
        name = (
            f"{version}_{lineage[-1]['checkpointUniqueId']}" if self._unique_ids else str(version)
        )
        records = b"".join(
            [
                *(_put(key, value) for key, value in values.items() if former.get(key) != value),
                *(b"\x10" + _sized(key) + b"\xff" * 4 for key in former if key not in values),
            ]
        )
        head = _text("v4") + _text(json.dumps(lineage)) if self._unique_ids else _text("v2")
        (folder / f"{name}.changelog").write_bytes(self._codec(head + records + b"\x00"))
        if (version - 1) % self._every == 0:
            _write_snapshot(folder, name, values)
            del lineage[:-1]
        self._known[operator, partition] = values


def _encoded(shard: int, state: dict[Any, Any]) -> Values:
    """The variables of a shard, as Spark stores them."""
    found: Values = {}
    for place, value in state.items():
        if place == "meta":
            key = b"\x02\x00\x00" + encode_row(shard)
        else:
            grouping = b"\x00" + encode_row(encode_row(shard))
            asked = b"\x00" + encode_row(encode_row(*place[1]))
            key = b"\x03\x00" + struct.pack("<i", len(grouping)) + grouping + asked
        found[key] = b"\x00" + encode_row(*value)
    return found


def _write_snapshot(folder: Path, name: str, values: Values) -> None:
    with tempfile.TemporaryDirectory() as made:
        options = rocksdict.Options(raw_mode=True)
        options.create_if_missing(True)
        db = rocksdict.Rdict(made, options)
        for key, value in values.items():
            db.put(key, value)
        db.flush()
        db.close()
        files = []
        with zipfile.ZipFile(folder / f"{name}.zip", "w") as archive:
            for file in sorted(Path(made).iterdir()):
                if file.suffix == ".sst":
                    stored = f"{file.stem}-{name}.sst"
                    (folder / "SSTs" / stored).write_bytes(file.read_bytes())
                    files.append({"localFileName": file.name, "dfsSstFileName": stored})
                elif file.name.startswith(("MANIFEST", "CURRENT", "OPTIONS")):
                    archive.write(file, file.name)
            metadata = {"sstFiles": files, "numKeys": 0, "columnFamilyMapping": FAMILIES}
            archive.writestr("metadata", f"v1\n{json.dumps(metadata)}")


def _put(key: bytes, value: bytes) -> bytes:
    return b"\x01" + _sized(key) + _sized(value)


def _sized(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def _text(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode()

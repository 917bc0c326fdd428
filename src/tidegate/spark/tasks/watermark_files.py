"""Watermark files: the watermarks of the shards after each batch, for the edges of the next one.

An edge needs them to know which rows are on time, and can be aggregated before the shuffle. Each
shard has a small file under the checkpoint with its last few batches. If a shard was not called
since, its watermark has not changed. Without a file, rows are not pre-aggregated. A file has a
checksum, because a wrong watermark would take late rows for rows on time; a damaged file is ignored
with a warning, and the next batch of the shard replaces it.
"""

from __future__ import annotations

import json
import warnings
import zlib
from dataclasses import dataclass

from pyarrow import fs

from tidegate.instants import MIN
from tidegate.spark.checkpoint import tidegate_folder
from tidegate.spark.tasks.shards import ShardLayout

_BATCHES = 4
"""The number of batches in a file; a replay needs the one before the last."""


@dataclass(frozen=True)
class WatermarkFiles:
    """The watermark files of one stateful operator."""

    checkpoint: str
    operator: str = "0"

    def write(self, shard: int, batch: int, watermark: int) -> None:
        """Store the watermark of a shard at the end of a batch."""
        system, folder = self._folder()
        known = [entry for entry in _read(system, f"{folder}/{shard}") if entry[0] < batch]
        system.create_dir(folder, recursive=True)
        with system.open_output_stream(f"{folder}/.{shard}") as file:
            file.write(_encode([*known, (batch, watermark)][-_BATCHES:]))
        system.move(f"{folder}/.{shard}", f"{folder}/{shard}")

    def before(self, batch: int, layout: ShardLayout) -> int | None:
        """The highest watermark of all shards before a batch; None if one is unknown."""
        system, folder = self._folder()
        found = []
        for shard in layout.ids:
            known = [
                watermark
                for number, watermark in _read(system, f"{folder}/{shard}")
                if number < batch
            ]
            if not known:
                return None
            found.append(known[-1])
        return max(found, default=MIN)

    def _folder(self) -> tuple[fs.FileSystem, str]:
        system, folder = tidegate_folder(self.checkpoint)
        return system, f"{folder}/watermarks/{self.operator}"


def _encode(entries: list[tuple[int, int]]) -> bytes:
    """Batches and watermarks as JSON, after a checksum of it."""
    text = json.dumps(entries).encode()
    return b"%08x %b" % (zlib.crc32(text), text)


def _decode(data: bytes) -> list[tuple[int, int]]:
    """The inverse of `_encode`; `ValueError` for anything else."""
    checksum, _, text = data.partition(b" ")
    if checksum != b"%08x" % zlib.crc32(text):
        raise ValueError("its checksum is wrong")
    return [(int(batch), int(watermark)) for batch, watermark in json.loads(text)]


def _read(system: fs.FileSystem, path: str) -> list[tuple[int, int]]:
    try:
        with system.open_input_stream(path) as file:
            return _decode(file.readall())
    except FileNotFoundError:
        return []
    except (ValueError, TypeError, OSError) as error:
        warnings.warn(
            f"the watermark file `{path}` is ignored: {error}. The rows of this batch are not"
            " pre-aggregated. Hint: check the storage of the checkpoint",
            RuntimeWarning,
            stacklevel=2,
        )
        return []

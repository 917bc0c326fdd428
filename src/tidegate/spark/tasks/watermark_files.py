"""Watermark files: the watermarks of the shards after each batch, for the edges of the next one.

An edge needs them to know which rows are on time, and can be aggregated before the shuffle. Each
shard has a small file under the checkpoint with its last few batches. If a shard was not called
since, its watermark has not changed. Without a file, rows are not pre-aggregated, except in the
first batch, before which no shard has a watermark. A file has a checksum, because a wrong watermark
would take late rows for rows on time; a damaged file is ignored with a warning, and the next batch
of the shard replaces it.

With many shards, the driver gathers the watermarks in one file before a batch: if each task read
the file of each shard, a query with 500 tasks and 1,000 shards would read 500,000 files per batch.
"""

from __future__ import annotations

import json
import warnings
import zlib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from pyarrow import fs

from tidegate.instants import MIN
from tidegate.spark.checkpoint import tidegate_folder
from tidegate.spark.tasks.shards import ShardLayout

_BATCHES = 4
"""The number of batches in a file; a replay needs the one before the last."""
FEW_SHARDS = 16
"""Tasks read the files of as many shards themselves."""
_READERS = 16
"""The number of files that the driver reads at once."""
_GATHERED = "gathered"
"""The name of the file with the highest watermark of all shards."""


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
        _replace(system, folder, str(shard), [*known, (batch, watermark)][-_BATCHES:])

    def gather(self, batch: int, layout: ShardLayout) -> None:
        """Store the highest watermark of all shards before a batch, if there are many shards."""
        if len(layout) <= FEW_SHARDS:
            return
        watermark = self._highest(batch, layout)
        if watermark is not None:
            system, folder = self._folder()
            _replace(system, folder, _GATHERED, [(batch, watermark)])

    def before(self, batch: int, layout: ShardLayout) -> int | None:
        """The highest watermark of all shards before a batch; None if one is unknown."""
        if batch == 0:
            # No shard has state yet.
            return MIN
        if len(layout) > FEW_SHARDS:
            system, folder = self._folder()
            for number, watermark in _read(system, f"{folder}/{_GATHERED}"):
                if number == batch:
                    return watermark
        return self._highest(batch, layout)

    def _highest(self, batch: int, layout: ShardLayout) -> int | None:
        """The highest watermark in the files of the shards."""
        system, folder = self._folder()

        def of_shard(shard: int) -> int | None:
            entries = _read(system, f"{folder}/{shard}")
            return next((mark for number, mark in reversed(entries) if number < batch), None)

        if len(layout) <= FEW_SHARDS:
            return _maximum(map(of_shard, layout.ids))
        with ThreadPoolExecutor(_READERS) as pool:
            return _maximum(pool.map(of_shard, layout.ids))

    def _folder(self) -> tuple[fs.FileSystem, str]:
        system, folder = tidegate_folder(self.checkpoint)
        return system, f"{folder}/watermarks/{self.operator}"


def _maximum(watermarks: Iterable[int | None]) -> int | None:
    """The highest watermark; None at the first one that is unknown."""
    found = MIN
    for watermark in watermarks:
        if watermark is None:
            return None
        found = max(found, watermark)
    return found


def _replace(
    system: fs.FileSystem, folder: str, name: str, entries: Sequence[tuple[int, int]]
) -> None:
    with system.open_output_stream(f"{folder}/.{name}") as file:
        file.write(_encode(entries))
    system.move(f"{folder}/.{name}", f"{folder}/{name}")


def _encode(entries: Sequence[tuple[int, int]]) -> bytes:
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

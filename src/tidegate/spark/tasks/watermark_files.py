"""WatermarkFiles: the watermarks that the shards of an operator leave behind after every batch, by
which the edges of the next know what is on time.

Every shard has a small file under the checkpoint with the last few batches that called it. A shard
that was not called since has the same watermark as then. Without a file nothing is known, and rows
travel one by one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from pyarrow import fs

from tidegate.instants import MIN
from tidegate.spark.plan.shards import Layout
from tidegate.spark.query.metadata import folder_of

_KEPT = 4
"""How many batches a file remembers; a replay asks for the one before the last."""


@dataclass(frozen=True)
class WatermarkFiles:
    """Where the shards of one operator leave their watermarks."""

    checkpoint: str
    operator: str = "0"

    def leave(self, shard: int, batch: int, watermark: int) -> None:
        """The shard has this watermark at the end of a batch."""
        system, folder = self._folder()
        known = [entry for entry in _read(system, f"{folder}/{shard}") if entry[0] < batch]
        system.create_dir(folder, recursive=True)
        with system.open_output_stream(f"{folder}/.{shard}") as file:
            file.write(json.dumps([*known, (batch, watermark)][-_KEPT:]).encode())
        system.move(f"{folder}/.{shard}", f"{folder}/{shard}")

    def before(self, batch: int, layout: Layout) -> int | None:
        """The highest watermark of any shard before a batch; None where that of some shard is not
        known.
        """
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
        system, folder = folder_of(self.checkpoint)
        return system, f"{folder}/floors/{self.operator}"


def _read(system: fs.FileSystem, path: str) -> list[tuple[int, int]]:
    try:
        with system.open_input_stream(path) as file:
            return [(int(batch), int(watermark)) for batch, watermark in json.loads(file.readall())]
    except FileNotFoundError:
        return []

"""LocalStateCache copies: tables of the state as files on the machine that wrote them, because the
next batch of a shard may run in another worker there.

Spark gives a task to any of its Python workers, and takes a tenth of a second to hand four
megabytes of state to one. A copy is a shortcut and nothing else: it is found by a name that was
drawn when it was written and that only committed state tells, so it is that very table; where it is
missing, the state has it.
"""

from __future__ import annotations

import shutil
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from tidegate.errors import CorruptStateError
from tidegate.state.ipc import decode_table

SMALL = 32 << 10
"""A table of fewer bytes is not worth a file."""


@dataclass
class LocalStateCache:
    """The copies of one shard in one run of a query; as long as one worker has the shard, nobody
    else changes them.
    """

    folder: Path
    limit: int
    """How many bytes of copies there are at most."""
    _used: int | None = None
    """How many there are; None until somebody asks."""

    @classmethod
    def of(cls, folder: Path, run: str, limit: int) -> LocalStateCache:
        """The copies of a run, of which there may be some already; those of other runs are
        removed.
        """
        with suppress(OSError):
            for other in folder.iterdir():
                if other.name != run:
                    shutil.rmtree(other, ignore_errors=True)
        return cls(folder / run, limit)

    def put(self, table: pa.Table) -> str | None:
        """Copy a table; the answer is the name of the copy, or None where there is none."""
        if table.nbytes < SMALL or table.nbytes > self.limit:
            return None
        name = uuid.uuid4().hex
        try:
            if self._used is None:
                self.folder.mkdir(parents=True, exist_ok=True)
                self._used = sum(file.stat().st_size for file in self.folder.iterdir())
            if self._used + table.nbytes > self.limit:
                return None
            with (
                pa.OSFile(str(self.folder / name), "wb") as file,
                pa.ipc.new_stream(file, table.schema) as writer,
            ):
                writer.write_table(table)
            self._used += (self.folder / name).stat().st_size
        except OSError:
            # No space, most likely; how much there is will be looked up.
            self.drop(name)
            self._used = None
            return None
        return name

    def get(self, name: str) -> pa.Table | None:
        """The table of a copy; its columns are the file."""
        with suppress(OSError, CorruptStateError), pa.memory_map(str(self.folder / name)) as file:
            return decode_table(file.read_buffer(), name)
        return None

    def drop(self, name: str) -> None:
        """Remove a copy."""
        file = self.folder / name
        with suppress(OSError):
            size = file.stat().st_size
            file.unlink()
            self._used = None if self._used is None else self._used - size

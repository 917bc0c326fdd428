"""Executor-local cache of state tables, shared by the Python workers of the executor.

Spark assigns a task to any of its Python workers, and needs 0.1 seconds to transfer 4 MB of state
to one. The name of a cached table is random and ends with a checksum of its file. It is stored in
the committed state, so a hit is always that very table. On a miss, and if the file is damaged, the
table is read from the state.
"""

from __future__ import annotations

import shutil
import uuid
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from tidegate.errors import CorruptStateError
from tidegate.state.serialization import decode_table

MIN_BYTES = 32 << 10
"""Smaller tables are not cached."""


@dataclass
class LocalStateCache:
    """The cached tables of one shard in one run of a query; one worker at a time changes them."""

    folder: Path
    limit: int
    """The maximum size of all files, in bytes."""
    _used: int | None = None
    """The size of all files; None if unknown."""

    @classmethod
    def open(cls, folder: Path, run: str, limit: int) -> LocalStateCache:
        """The cache of a run; those of other runs are deleted."""
        with suppress(OSError):
            for other in folder.iterdir():
                if other.name != run:
                    shutil.rmtree(other, ignore_errors=True)
        return cls(folder / run, limit)

    def put(self, table: pa.Table) -> str | None:
        """Cache a table and return its name; None if it is not cached."""
        if table.nbytes < MIN_BYTES or table.nbytes > self.limit:
            return None
        name = uuid.uuid4().hex
        try:
            if self._used is None:
                self.folder.mkdir(parents=True, exist_ok=True)
                self._used = sum(file.stat().st_size for file in self.folder.iterdir())
            if self._used + table.nbytes > self.limit:
                return None
            path = self.folder / name
            with (
                pa.OSFile(str(path), "wb") as file,
                pa.ipc.new_stream(file, table.schema) as writer,
            ):
                writer.write_table(table)
            with pa.memory_map(str(path)) as written:
                checksum = zlib.crc32(written.read_buffer())
            self._used += path.stat().st_size
            return path.rename(self.folder / f"{name}.{checksum:08x}").name
        except OSError:
            # Most likely the disk is full.
            self.drop(name)
            self._used = None
            return None

    def get(self, name: str) -> pa.Table | None:
        """A cached table, mapped from its file; None on a miss."""
        with suppress(OSError, CorruptStateError), pa.memory_map(str(self.folder / name)) as file:
            data = file.read_buffer()
            if f"{zlib.crc32(data):08x}" == name.rpartition(".")[2]:
                return decode_table(data, name)
        return None

    def drop(self, name: str) -> None:
        """Delete a cached table."""
        file = self.folder / name
        with suppress(OSError):
            size = file.stat().st_size
            file.unlink()
            self._used = None if self._used is None else self._used - size

"""One partition of Spark's RocksDB state store at a committed version, read from its files.

A version is a snapshot (a zip with the manifest of RocksDB, and data files beside it) and the
changelogs of the versions after it. Nothing is written into the checkpoint: data files are linked
or copied into a temporary folder, where RocksDB opens them if a key is not in the changelogs.
"""

from __future__ import annotations

import io
import json
import shutil
import struct
import tempfile
import weakref
import zipfile
from pathlib import Path
from typing import Any

from pyarrow import fs

from tidegate.errors import CorruptStateError, MissingExtraError
from tidegate.spark.query.state.changelog import UnsupportedCheckpointError, read_changelog

_FAMILY = struct.Struct("<h")
_METADATA = "metadata"
_SNAPSHOT, _CHANGELOG = ".zip", ".changelog"


class RocksDBPartition:
    """Reads single values of a partition.

    Raises FileNotFoundError if the query deletes the files of the version meanwhile.
    """

    def __init__(
        self, system: fs.FileSystem, folder: str, version: int, unique_id: str | None = None
    ) -> None:
        """`unique_id`: of the version, in checkpoints whose file names have one."""
        self._system, self._folder = system, folder
        self._ids = {} if unique_id is None else {version: unique_id}
        self._changes: dict[bytes, bytes | None] = {}
        """Changes since the snapshot; None for a deleted key."""
        self._snapshot = self._load(version)
        self._metadata = _read_metadata(self._snapshot)
        self._db: Any = None

    def get(self, family: str, key: bytes) -> bytes | None:
        """The value of a key in a column family; None if there is none."""
        number = self._metadata["columnFamilyMapping"].get(family)
        if number is None:
            return None
        whole = _FAMILY.pack(number) + key
        if whole in self._changes:
            return self._changes[whole]
        if self._db is None:
            self._db = self._open()
        try:
            found: bytes | None = self._db.get(whole)
        except Exception as error:
            raise CorruptStateError(
                f"the state in {self._folder} cannot be read ({error}). Hint: restore the"
                " checkpoint from a copy, or replay the input"
            ) from error
        return found

    def _load(self, version: int) -> zipfile.ZipFile:
        """Collect the changelogs back to the last snapshot, the newest first; return it."""
        names = {
            info.base_name for info in self._system.get_file_info(fs.FileSelector(self._folder))
        }
        while (name := self._name(version)) + _SNAPSHOT not in names:
            if version == 0:
                raise UnsupportedCheckpointError(f"{self._folder} has no snapshot")
            log = read_changelog(self._read(name + _CHANGELOG))
            self._ids = {**log.lineage, **self._ids}
            for key, value in log.changes.items():
                self._changes.setdefault(key, value)
            version -= 1
        return zipfile.ZipFile(io.BytesIO(self._read(name + _SNAPSHOT)))

    def _name(self, version: int) -> str:
        return f"{version}_{self._ids[version]}" if version in self._ids else str(version)

    def _read(self, name: str) -> bytes:
        with self._system.open_input_stream(f"{self._folder}/{name}") as file:
            return bytes(file.readall())

    def _open(self) -> Any:
        """Open the snapshot in a temporary folder, which is deleted with this object."""
        rocksdict = _rocksdict()
        folder = Path(tempfile.mkdtemp(prefix="tidegate-state-"))
        opened: list[Any] = []
        weakref.finalize(self, _dispose, folder, opened)
        for entry in self._snapshot.namelist():
            if entry != _METADATA:
                (folder / Path(entry).name).write_bytes(self._snapshot.read(entry))
        for file in self._metadata["sstFiles"]:
            self._fetch(f"SSTs/{file['dfsSstFileName']}", folder / file["localFileName"])
        try:
            db = rocksdict.Rdict(
                str(folder),
                rocksdict.Options(raw_mode=True),
                access_type=rocksdict.AccessType.read_only(),
            )
        except Exception as error:
            raise CorruptStateError(
                f"the snapshot in {self._folder} cannot be opened ({error}). Hint: restore the"
                " checkpoint from a copy, or replay the input"
            ) from error
        opened.append(db)
        return db

    def _fetch(self, name: str, target: Path) -> None:
        """Link a data file of a local checkpoint, or copy one of another file system."""
        source = f"{self._folder}/{name}"
        if isinstance(self._system, fs.LocalFileSystem):
            target.symlink_to(Path(source).resolve(strict=True))
        else:
            fs.copy_files(
                source,
                str(target),
                source_filesystem=self._system,
                destination_filesystem=fs.LocalFileSystem(),
            )


def has_rocksdb() -> bool:
    """Whether the RocksDB library is installed."""
    try:
        _rocksdict()
    except MissingExtraError:
        return False
    return True


def _rocksdict() -> Any:
    try:
        import rocksdict
    except ImportError as error:
        raise MissingExtraError("rocksdict", "rocksdb", "reading state without Spark") from error
    return rocksdict


def _read_metadata(snapshot: zipfile.ZipFile) -> dict[str, Any]:
    """The data files and column families of a snapshot: JSON after a line with its version."""
    _, _, text = snapshot.read(_METADATA).decode().partition("\n")
    found: dict[str, Any] = json.loads(text)
    if "columnFamilyMapping" not in found:
        raise UnsupportedCheckpointError("a snapshot of the state store has no column families")
    return found


def _dispose(folder: Path, opened: list[Any]) -> None:
    for db in opened:
        db.close()
    shutil.rmtree(folder, ignore_errors=True)

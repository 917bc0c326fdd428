"""The files of a folder as a stream: discovery, offsets, and the distribution over tasks.

An offset has the files of its batch, and hashes of all files before. So a replay reads the same
files, and a file that arrives late with an old modification time is read as well. This module does
not need Spark.
"""

from __future__ import annotations

import base64
import fnmatch
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any
from urllib.parse import unquote

import numpy as np
from pyarrow import fs

from tidegate.errors import CorruptStateError, InputError
from tidegate.state.damage import damage_in

VERSION = 1
DAY = 86_400_000_000
SHARE_BYTES = 64 << 20
"""The maximum size of the files of a task, unless it reads a single one."""
SPLIT_BYTES = 256 << 20
"""Splittable files of at least this size are split."""
_OPEN_COST = 256 << 10
"""The cost to open a file, in bytes that could be read in the same time."""
_MIN_TASK_BYTES = 2 << 20
"""The minimum input of a task."""


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file of a folder, with its path in it."""

    path: str
    size: int
    modified: int
    """The modification time, in microseconds."""


@dataclass(frozen=True)
class Folder:
    """A folder: a local path, or a URI that Arrow supports (s3://, gs://, hdfs://, abfs://)."""

    location: str
    glob: str | None = None
    recursive: bool = False

    def open(self) -> tuple[fs.FileSystem, str]:
        """The file system, and the path in it."""
        if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", self.location):
            system, path = fs.FileSystem.from_uri(self.location)
            return system, path.rstrip("/")
        return fs.LocalFileSystem(), self.location

    def files(self) -> list[FileEntry]:
        """All files to read, by the rules of Spark: names that begin with `_` or `.` are hidden.

        Empty files are left out: a writer may be about to fill them.
        """
        system, root = self.open()
        wanted = _pattern(self.glob)
        infos = [
            info for info in self._walk(system, root) if info.size and wanted.match(info.base_name)
        ]
        return [
            FileEntry(info.path[len(root) :].lstrip("/"), info.size, (info.mtime_ns or 0) // 1000)
            for info in infos
        ]

    def _walk(self, system: fs.FileSystem, root: str) -> Iterator[fs.FileInfo]:
        try:
            inside = system.get_file_info(fs.FileSelector(root))
        except (FileNotFoundError, NotADirectoryError) as error:
            raise InputError(
                f"a direct source reads the files of a folder, and `{root}` is not a folder. Hint:"
                " create it first"
            ) from error
        for info in inside:
            if info.base_name.startswith(".") or (
                info.base_name.startswith("_") and "=" not in info.base_name
            ):
                continue
            if info.type == fs.FileType.File:
                yield info
            elif info.type == fs.FileType.Directory and (self.recursive or "=" in info.base_name):
                yield from self._walk(system, info.path)

    def partition_values(self, path: str) -> dict[str, str]:
        """The columns in a path such as `day=2024-01-01/`; as in Spark, none if recursive."""
        if self.recursive or "=" not in path:
            return {}
        parts = [part.partition("=") for part in path.split("/")[:-1] if "=" in part]
        return {
            name: unquote(value)
            for name, _, value in parts
            if value != "__HIVE_DEFAULT_PARTITION__"
        }


def _pattern(glob: str | None) -> re.Pattern[str]:
    """The pattern of the file names to read."""
    return re.compile("|".join(fnmatch.translate(one) for one in _alternatives(glob or "*")))


def _alternatives(glob: str) -> list[str]:
    """The glob with its braces expanded."""
    braces = re.search(r"\{([^{}]*)\}", glob)
    if braces is None:
        return [glob]
    before, after = glob[: braces.start()], glob[braces.end() :]
    return [
        whole for one in braces.group(1).split(",") for whole in _alternatives(before + one + after)
    ]


# Offsets


def _hashes(paths: Iterable[str]) -> np.ndarray:
    words = b"".join(
        blake2b(path.encode("utf-8", "surrogateescape"), digest_size=8).digest() for path in paths
    )
    return np.frombuffer(words, np.uint64)


def _to_text(hashes: np.ndarray) -> str:
    """Sorted hashes as text; differences compress better than the values."""
    steps = np.diff(np.sort(hashes), prepend=np.uint64(0)).astype(">u8")
    # Transposed by byte, so that zeros are adjacent.
    return base64.b85encode(
        zlib.compress(np.ascontiguousarray(steps.view(np.uint8).reshape(-1, 8).T).tobytes(), 6)
    ).decode()


def _from_text(text: str) -> np.ndarray:
    try:
        parts = np.frombuffer(zlib.decompress(base64.b85decode(text)), np.uint8).reshape(8, -1)
    except (ValueError, zlib.error) as error:
        raise CorruptStateError(
            f"the list of files in an offset of a direct source is damaged ({error}). Hint: use a"
            " new checkpoint"
        ) from error
    return np.cumsum(
        np.ascontiguousarray(parts.T).view(">u8").ravel().astype(np.uint64), dtype=np.uint64
    )


@dataclass(frozen=True)
class FolderOffset:
    """The progress of a source at the end of a batch."""

    batch: int = 0
    clock: int = 0
    """The clock when the batch was planned, in microseconds; a replay has the same."""
    newest: int = 0
    """The newest modification time of all files."""
    horizon: int = 0
    """Files with an older modification time are ignored, as their hashes are not stored."""
    seen: Mapping[str, str] = field(default_factory=dict)
    """The hashes of all files, by day of modification."""
    files: tuple[FileEntry, ...] = ()
    """The files of the batch."""

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        numbers = {
            "version": VERSION,
            "batch": self.batch,
            "clock": self.clock,
            "newest": self.newest,
            "horizon": self.horizon,
        }
        return {
            **numbers,
            "seen": dict(self.seen),
            "files": [[file.path, file.size, file.modified] for file in self.files],
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> FolderOffset:
        if document.get("version") != VERSION:
            raise CorruptStateError(
                f"an offset of a direct source has version {document.get('version')!r}, this"
                f" version reads {VERSION}. Hint: use the checkpoint of this source, or a new one"
            )
        with damage_in("an offset of a direct source"):
            files = tuple(FileEntry(*entry) for entry in document["files"])
            return cls(
                document["batch"],
                document["clock"],
                document["newest"],
                document["horizon"],
                dict(document["seen"]),
                files,
            )

    @property
    def hashes(self) -> np.ndarray:
        """The hashes of all files after the horizon."""
        return np.sort(
            np.concatenate(
                [np.zeros(0, np.uint64), *(_from_text(text) for text in self.seen.values())]
            )
        )

    def after(self, files: Sequence[FileEntry], clock: int, max_age: int | None) -> FolderOffset:
        """The offset after a batch of these files."""
        newest = max(self.newest, *(file.modified for file in files))
        horizon = self.horizon if max_age is None else max(self.horizon, newest - max_age)
        by_day: dict[str, list[str]] = {}
        for file in files:
            by_day.setdefault(str(file.modified // DAY), []).append(file.path)
        seen = {day: text for day, text in self.seen.items() if (int(day) + 1) * DAY > horizon}
        for day, paths in by_day.items():
            before = _from_text(seen[day]) if day in seen else np.zeros(0, np.uint64)
            seen[day] = _to_text(np.concatenate([before, _hashes(paths)]))
        return FolderOffset(
            self.batch + 1, max(clock, self.clock), newest, horizon, seen, tuple(files)
        )


class FolderMonitor:
    """Discovers new files in a folder."""

    def __init__(
        self, folder: Folder, *, latest_first: bool = False, max_age: int | None = None
    ) -> None:
        self._folder, self._latest_first, self._max_age = folder, latest_first, max_age
        self._frozen: list[FileEntry] | None = None
        self._known: tuple[Mapping[str, str], np.ndarray] | None = None

    def freeze(self) -> None:
        """Ignore files that arrive from now on."""
        self._frozen = self._folder.files()

    def next(
        self,
        start: FolderOffset,
        clock: int,
        max_files: int | None = None,
        max_bytes: int | None = None,
    ) -> FolderOffset | None:
        """The offset after the next batch, of at least one file; None if there is no new file."""
        taken, size = list[FileEntry](), 0
        for file in self._new_files(start):
            size += file.size
            if taken and (
                (max_files is not None and len(taken) >= max_files)
                or (max_bytes is not None and size > max_bytes)
            ):
                break
            taken.append(file)
        return start.after(taken, clock, self._max_age) if taken else None

    def _new_files(self, start: FolderOffset) -> list[FileEntry]:
        listed = self._folder.files() if self._frozen is None else self._frozen
        recent = [file for file in listed if file.modified >= start.horizon]
        if not recent:
            return []
        known = self._hashes_of(start)
        hashes = _hashes(file.path for file in recent)
        at = np.searchsorted(known, hashes)
        read = (
            np.zeros(len(hashes), bool)
            if not len(known)
            else known[np.minimum(at, len(known) - 1)] == hashes
        )
        new = [file for file, done in zip(recent, read.tolist(), strict=True) if not done]
        return sorted(new, key=lambda file: (file.modified, file.path), reverse=self._latest_first)

    def _hashes_of(self, start: FolderOffset) -> np.ndarray:
        """The hashes of an offset, cached, because an idle query polls with the same one."""
        if self._known is None or self._known[0] != start.seen:
            self._known = (dict(start.seen), start.hashes)
        return self._known[1]


# Parts of a batch


@dataclass(frozen=True, slots=True)
class FilePart:
    """A file, or a byte range of a large one."""

    number: int
    """Its position in the batch, which orders its rows."""
    file: FileEntry
    start: int
    end: int

    @property
    def is_whole(self) -> bool:
        return self.start == 0 and self.end >= self.file.size


def parts_of(files: Sequence[FileEntry], *, splits: bool) -> list[FilePart]:
    """The parts of a batch, in order; a function of the files only."""
    found: list[FilePart] = []
    for file in files:
        count = -(-file.size // SPLIT_BYTES) if splits else 1
        for n in range(count):
            found.append(
                FilePart(len(found), file, file.size * n // count, file.size * (n + 1) // count)
            )
    return found


def group_parts(parts: Sequence[FilePart], tasks: int) -> list[list[FilePart]]:
    """Contiguous groups of parts of about the same size, one for each task."""
    weights = np.array([part.end - part.start + _OPEN_COST for part in parts], np.float64)
    if not len(weights):
        return []
    total = weights.sum()
    count = min(
        len(parts),
        max(min(tasks, int(-(-total // _MIN_TASK_BYTES))), int(-(-total // SHARE_BYTES))),
    )
    # A part belongs to the group that contains its middle.
    groups = np.minimum((np.cumsum(weights) - weights / 2) / total * count, count - 1).astype(int)
    return [
        [parts[n] for n in np.flatnonzero(groups == group).tolist()] for group in np.unique(groups)
    ]

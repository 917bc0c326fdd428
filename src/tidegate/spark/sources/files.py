"""Files of a folder as a stream: which there are, which were read before, and how those of a batch
are shared among tasks.

An offset says all of it: the files of its batch, and all that came before them as hashes. So a
batch that is replayed reads the same files, and a file that comes late with an old date is read as
well. Nothing here needs Spark.
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

VERSION = 1
DAY = 86_400_000_000
SHARE_BYTES = 64 << 20
"""How much a task reads at most, where there is more than one file for it."""
SPLIT_BYTES = 256 << 20
"""Files that can be read in parts are, from this size on."""
_OPENING = 256 << 10
"""What it costs to open a file, in bytes that could be read meanwhile."""
_SMALLEST = 2 << 20
"""A task is not worth its while for less."""


@dataclass(frozen=True, slots=True)
class Found:
    """A file of a folder; its path is relative to it."""

    path: str
    size: int
    changed: int
    """When it was changed, in microseconds."""


@dataclass(frozen=True)
class Folder:
    """A folder, local or at an address that Arrow can read (s3://, gs://, hdfs://, abfs://)."""

    location: str
    glob: str | None = None
    recursive: bool = False

    def opened(self) -> tuple[fs.FileSystem, str]:
        """The file system and the path in it."""
        if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", self.location):
            system, path = fs.FileSystem.from_uri(self.location)
            return system, path.rstrip("/")
        return fs.LocalFileSystem(), self.location

    def files(self) -> list[Found]:
        """All files that are to be read, as Spark chooses them: names that begin with `_` or `.`
        are hidden.

        Empty files are left out too: whoever makes them may be about to fill them.
        """
        system, root = self.opened()
        wanted = _pattern(self.glob)
        infos = [
            info for info in self._walk(system, root) if info.size and wanted.match(info.base_name)
        ]
        return [
            Found(info.path[len(root) :].lstrip("/"), info.size, (info.mtime_ns or 0) // 1000)
            for info in infos
        ]

    def _walk(self, system: fs.FileSystem, root: str) -> Iterator[fs.FileInfo]:
        try:
            inside = system.get_file_info(fs.FileSelector(root))
        except (FileNotFoundError, NotADirectoryError) as error:
            raise InputError(
                f"a direct source reads the files of a folder, and `{root}` is none. Hint: make it"
                " first"
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

    def named(self, path: str) -> dict[str, str]:
        """The columns that the names of folders hold, as in `day=2024-01-01/`; as in Spark, not
        where every folder is looked into.
        """
        if self.recursive or "=" not in path:
            return {}
        parts = [part.partition("=") for part in path.split("/")[:-1] if "=" in part]
        return {
            name: unquote(value)
            for name, _, value in parts
            if value != "__HIVE_DEFAULT_PARTITION__"
        }


def _pattern(glob: str | None) -> re.Pattern[str]:
    """What the names of wanted files look like."""
    return re.compile("|".join(fnmatch.translate(one) for one in _alternatives(glob or "*")))


def _alternatives(glob: str) -> list[str]:
    """Patterns that mean the same without braces."""
    braces = re.search(r"\{([^{}]*)\}", glob)
    if braces is None:
        return [glob]
    before, after = glob[: braces.start()], glob[braces.end() :]
    return [
        whole for one in braces.group(1).split(",") for whole in _alternatives(before + one + after)
    ]


# What was read


def _hashes(paths: Iterable[str]) -> np.ndarray:
    words = b"".join(
        blake2b(path.encode("utf-8", "surrogateescape"), digest_size=8).digest() for path in paths
    )
    return np.frombuffer(words, np.uint64)


def _to_text(hashes: np.ndarray) -> str:
    """Sorted hashes as text: differences are shorter than the numbers."""
    steps = np.diff(np.sort(hashes), prepend=np.uint64(0)).astype(">u8")
    # Byte by byte, so that the zeros stand together.
    return base64.b85encode(
        zlib.compress(np.ascontiguousarray(steps.view(np.uint8).reshape(-1, 8).T).tobytes(), 6)
    ).decode()


def _from_text(text: str) -> np.ndarray:
    try:
        parts = np.frombuffer(zlib.decompress(base64.b85decode(text)), np.uint8).reshape(8, -1)
    except (ValueError, zlib.error) as error:
        raise CorruptStateError(
            f"the list of files in an offset of a direct source cannot be read ({error}). Hint: use"
            " a new checkpoint"
        ) from error
    return np.cumsum(
        np.ascontiguousarray(parts.T).view(">u8").ravel().astype(np.uint64), dtype=np.uint64
    )


@dataclass(frozen=True)
class Offset:
    """How far a source is, at the end of a batch."""

    batch: int = 0
    clock: int = 0
    """What the clock showed when the batch was planned, in microseconds; it comes back with the
    batch when that is replayed.
    """
    newest: int = 0
    horizon: int = 0
    """Files that were changed before are too old: nobody remembers whether they were read."""
    seen: Mapping[str, str] = field(default_factory=dict)
    """By day on which they were changed, the hashes of all files that were read."""
    files: tuple[Found, ...] = ()

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
            "files": [[file.path, file.size, file.changed] for file in self.files],
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Offset:
        if document.get("version") != VERSION:
            raise CorruptStateError(
                f"an offset of a direct source has version {document.get('version')!r}, this"
                f" Tidegate reads {VERSION}. Hint: the checkpoint belongs to another source or to a"
                " newer Tidegate"
            )
        files = tuple(Found(*entry) for entry in document["files"])
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
        """Those of all files that were read and are not forgotten."""
        return np.sort(
            np.concatenate(
                [np.zeros(0, np.uint64), *(_from_text(text) for text in self.seen.values())]
            )
        )

    def followed_by(self, files: Sequence[Found], clock: int, max_age: int | None) -> Offset:
        """The offset after a batch of these files."""
        newest = max(self.newest, *(file.changed for file in files))
        horizon = self.horizon if max_age is None else max(self.horizon, newest - max_age)
        by_day: dict[str, list[str]] = {}
        for file in files:
            by_day.setdefault(str(file.changed // DAY), []).append(file.path)
        seen = {day: text for day, text in self.seen.items() if (int(day) + 1) * DAY > horizon}
        for day, paths in by_day.items():
            before = _from_text(seen[day]) if day in seen else np.zeros(0, np.uint64)
            seen[day] = _to_text(np.concatenate([before, _hashes(paths)]))
        return Offset(self.batch + 1, max(clock, self.clock), newest, horizon, seen, tuple(files))


class Follower:
    """Finds out what is new in a folder."""

    def __init__(
        self, folder: Folder, *, latest_first: bool = False, max_age: int | None = None
    ) -> None:
        self._folder, self._latest_first, self._max_age = folder, latest_first, max_age
        self._frozen: list[Found] | None = None
        self._known: tuple[Mapping[str, str], np.ndarray] | None = None

    def freeze(self) -> None:
        """From now on nothing new comes."""
        self._frozen = self._folder.files()

    def next(
        self, start: Offset, clock: int, max_files: int | None = None, max_bytes: int | None = None
    ) -> Offset | None:
        """The offset after the next batch, or none where there is nothing to read; a batch has one
        file at least.
        """
        fresh = self._fresh(start)
        taken, size = list[Found](), 0
        for file in fresh:
            size += file.size
            if taken and (
                (max_files is not None and len(taken) >= max_files)
                or (max_bytes is not None and size > max_bytes)
            ):
                break
            taken.append(file)
        return start.followed_by(taken, clock, self._max_age) if taken else None

    def _fresh(self, start: Offset) -> list[Found]:
        listed = self._folder.files() if self._frozen is None else self._frozen
        young = [file for file in listed if file.changed >= start.horizon]
        if not young:
            return []
        known = self._hashes_of(start)
        hashes = _hashes(file.path for file in young)
        at = np.searchsorted(known, hashes)
        read = (
            np.zeros(len(hashes), bool)
            if not len(known)
            else known[np.minimum(at, len(known) - 1)] == hashes
        )
        fresh = [file for file, done in zip(young, read.tolist(), strict=True) if not done]
        return sorted(fresh, key=lambda file: (file.changed, file.path), reverse=self._latest_first)

    def _hashes_of(self, start: Offset) -> np.ndarray:
        """The hashes of an offset, which is asked for again and again while nothing comes."""
        if self._known is None or self._known[0] != start.seen:
            self._known = (dict(start.seen), start.hashes)
        return self._known[1]


# How a batch is shared


@dataclass(frozen=True, slots=True)
class Part:
    """A file or, of a large one, the part that begins between two bytes."""

    number: int
    """Its place in the batch, which is that of its rows."""
    file: Found
    start: int
    end: int

    @property
    def is_whole(self) -> bool:
        return self.start == 0 and self.end >= self.file.size


def parts_of(files: Sequence[Found], *, splits: bool) -> list[Part]:
    """The parts of a batch in their order; it depends on nothing but the files."""
    found: list[Part] = []
    for file in files:
        count = -(-file.size // SPLIT_BYTES) if splits else 1
        for n in range(count):
            found.append(
                Part(len(found), file, file.size * n // count, file.size * (n + 1) // count)
            )
    return found


def shares(parts: Sequence[Part], tasks: int) -> list[list[Part]]:
    """Neighbours together, about the same for every task."""
    weights = np.array([part.end - part.start + _OPENING for part in parts], np.float64)
    if not len(weights):
        return []
    total = weights.sum()
    count = min(
        len(parts), max(min(tasks, int(-(-total // _SMALLEST))), int(-(-total // SHARE_BYTES)))
    )
    # A part goes where its middle falls.
    homes = np.minimum((np.cumsum(weights) - weights / 2) / total * count, count - 1).astype(int)
    return [[parts[n] for n in np.flatnonzero(homes == home).tolist()] for home in np.unique(homes)]

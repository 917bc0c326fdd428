"""Durability of files on a local file system: what is synced before it counts as written."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_THREADS = 8
"""Files that are synced at once: a journal writes concurrent requests together."""


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Make the names in a folder survive a power failure; Windows neither has nor needs this."""
    if os.name == "nt":
        return
    _sync(folder, os.O_RDONLY)


def sync_file(path: str | os.PathLike[str]) -> None:
    """Make the content of a file, or the names in a folder, survive a power failure."""
    if os.name != "nt":
        _sync(path, os.O_RDONLY)
    elif not Path(path).is_dir():
        _sync(path, os.O_RDWR)


def sync_all(paths: Sequence[str | os.PathLike[str]]) -> None:
    """Sync several files and folders at once; those that are deleted meanwhile are left out."""

    def sync(path: str | os.PathLike[str]) -> None:
        with contextlib.suppress(FileNotFoundError):
            sync_file(path)

    if len(paths) < 2:
        for path in paths:
            sync(path)
        return
    with ThreadPoolExecutor(min(_THREADS, len(paths))) as threads:
        for _ in threads.map(sync, paths):
            pass


def make_folder(folder: str | os.PathLike[str]) -> None:
    """Create a folder and its missing parents so that they survive a power failure."""
    path = Path(folder)
    missing = [one for one in (path, *path.parents) if not one.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for one in reversed(missing):
        sync_folder(one.parent)


def replace_file(path: Path, chunks: Iterable[bytes | memoryview]) -> None:
    """Replace a file: a crash leaves the former or the new one, and a return means the new one."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.writelines(chunks)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_folder(path.parent)


def _sync(path: str | os.PathLike[str], flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

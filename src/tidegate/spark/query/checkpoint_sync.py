"""Spark's files of a local checkpoint, synced before a batch is published.

Spark does not sync what it writes to a local file system. After a power failure, a batch whose rows
are in a sink could lack its offsets or its state, and the next start would compute it from other
rows. So the driver syncs every file that changed since the last batch before sinks publish. Hadoop
and object stores make files durable themselves.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

from tidegate.spark.checkpoint import is_local
from tidegate.spark.sinks.parquet import local_path
from tidegate.state.durability import sync_all

_FOLDERS = ("offsets", "commits", "state", "sources", "tidegate/watermarks")
_OTHERS = ("metadata", "tidegate/query.json", "tidegate", "")
_MARGIN = 2_000_000_000
"""Nanoseconds by which the clock of a file system may be behind the clock of the process."""
_synced: dict[str, int] = {}
"""By checkpoint: when its files were last synced by this process, in nanoseconds."""


def sync_checkpoint(checkpoint: str) -> None:
    """Sync all files that changed since the last call; the first call syncs all files."""
    if os.name == "nt" or not is_local(checkpoint):
        return
    root = Path(local_path(checkpoint) or checkpoint)
    started = time.time_ns() - _MARGIN
    since = _synced.get(checkpoint, 0)
    if since > started:
        # The clock was set back: times of files do not tell what is new.
        since = 0
    changed = [found for name in _FOLDERS for found in _changed(root / name, since)]
    # Files before the folders that name them.
    sync_all([path for path, is_folder in changed if not is_folder])
    sync_all([path for path, is_folder in changed if is_folder] + [root / one for one in _OTHERS])
    _synced[checkpoint] = started


def _changed(folder: Path, since: int) -> Iterator[tuple[str, bool]]:
    """The files and folders that changed since an instant, and whether each is a folder."""
    try:
        if folder.stat().st_ctime_ns >= since:
            yield str(folder), True
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    yield from _changed(Path(entry.path), since)
                elif entry.stat(follow_symlinks=False).st_ctime_ns >= since:
                    yield entry.path, False
    except FileNotFoundError:
        return

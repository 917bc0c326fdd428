"""The lock of a running query on its local checkpoint, held by the process of the driver.

Spark detects two drivers on one checkpoint only when both write the same entry of a log, which is
after both have run a batch. The lock refuses the second one before it starts. The operating system
releases it when the process ends, however it ends. Within a process, Spark itself keeps a query
from running twice. Object stores and HDFS have no locks.
"""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

from pyspark.sql.streaming.query import StreamingQuery

from tidegate.errors import SetupError, StateError
from tidegate.spark.checkpoint import FOLDER, is_local
from tidegate.spark.sinks.parquet import local_path
from tidegate.state.durability import make_folder
from tidegate.state.file_lock import FileLock


class CheckpointLock:
    """A lock that is released with the last query of this process that uses it."""

    def __init__(self, path: Path) -> None:
        self._lock = FileLock(path)
        self._users = 0

    def use(self) -> None:
        self._users += 1

    def release(self) -> bool:
        """Whether this was the last use."""
        self._users -= 1
        if self._users > 0:
            return False
        self._lock.release()
        return True


_locks: dict[str, CheckpointLock] = {}
_guard = threading.Lock()


def lock_checkpoint(checkpoint: str, *, is_remote: bool) -> str | None:
    """Lock a checkpoint for a query that starts; returns what `unlock_checkpoint` takes.

    None for a checkpoint that is not local, and for a query of Spark Connect, which outlives its
    client. `StateError` if another process holds the lock.
    """
    if is_remote or not is_local(checkpoint):
        return None
    path = Path(local_path(checkpoint) or checkpoint, FOLDER, "query")
    name = os.path.realpath(path)
    with _guard:
        if name not in _locks:
            try:
                make_folder(path.parent)
                _locks[name] = CheckpointLock(path)
            except BlockingIOError as error:
                raise StateError(
                    f"another process runs the query at `{checkpoint}`, and this one was not"
                    " started. Hint: use one checkpoint per query; to continue that query, start"
                    " again after its process has stopped it"
                ) from error
            except OSError as error:
                raise SetupError(
                    f"the checkpoint `{checkpoint}` cannot be locked: {error}. Hint: use a folder"
                    " that this process can write to, on a file system with locks"
                ) from error
        _locks[name].use()
    return name


def unlock_checkpoint(name: str | None) -> None:
    """End the use of a lock."""
    if name is None:
        return
    with _guard:
        if name in _locks and _locks[name].release():
            del _locks[name]


def unlock_at_end(name: str | None, query: StreamingQuery) -> None:
    """End the use of a lock when the query ends, without its own process having to wait for it."""
    if name is None:
        return

    def wait() -> None:
        # The error of a failed query is for its user; without a JVM, the query has ended.
        with contextlib.suppress(Exception):
            query.awaitTermination()
        unlock_checkpoint(name)

    threading.Thread(target=wait, name=f"tidegate lock {name}", daemon=True).start()

"""An exclusive lock on a path, held by one object of one process until it is released."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import weakref
from pathlib import Path

_held: weakref.WeakSet[FileLock]


class FileLock:
    """A lock in the file `<path>.lock`, which stays when the lock is released.

    The operating system releases it when the process ends, however it ends, or when the object is
    collected. A forked process does not inherit it. `BlockingIOError` if another object of this or
    another process holds it, `OSError` if the file cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(f"{os.fspath(path)}.lock")
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
        self._close = weakref.finalize(self, _close, self._descriptor)
        try:
            _lock(self._descriptor)
        except OSError as error:
            self.release()
            if error.errno in {errno.EACCES, errno.EAGAIN, errno.EDEADLK}:
                raise BlockingIOError(error.errno, "it is locked", str(self.path)) from error
            raise
        _held.add(self)

    def release(self) -> None:
        """Release the lock; releasing it again has no effect."""
        self._close()


def _close(descriptor: int) -> None:
    with contextlib.suppress(OSError):
        os.close(descriptor)


def _lock(descriptor: int) -> None:
    if sys.platform == "win32":
        import msvcrt

        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        return
    import fcntl

    # Not the locks of POSIX: those do not exclude another object of the same process.
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _release_in_child() -> None:
    """Close inherited descriptors, which would hold the locks after the end of the parent."""
    for lock in list(_held):
        lock.release()


_held = weakref.WeakSet()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_in_child)

"""Graceful shutdown of commands.

Ctrl-C or SIGTERM lets the current step finish; a second Ctrl-C does not.
"""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

_POLL_SECONDS = 0.1
"""Shutdown polling interval, in seconds."""


class ShutdownRequest:
    """A shutdown request: commands poll `stop` between two steps."""

    def __init__(self) -> None:
        self.stop = False

    def __call__(self, number: int, frame: object) -> None:  # noqa: ARG002
        if self.stop and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.stop = True

    def listen(self) -> None:
        """Handle Ctrl-C; call again after a library has installed a handler of its own."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, self)

    def wait(self, seconds: float) -> None:
        """Sleep, but return early on a shutdown request."""
        until = time.monotonic() + seconds
        while not self.stop and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, _POLL_SECONDS))

    def wait_for(self, file: int) -> bool:
        """Wait until a file is readable; returns false on a shutdown request."""
        while not self.stop:
            # Other systems can only wait for sockets; there, a second Ctrl-C ends a blocking read.
            if os.name != "posix" or select.select([file], [], [], _POLL_SECONDS)[0]:
                return True
        return False


@contextmanager
def shutdown_requests(shutdown: ShutdownRequest | None = None) -> Iterator[ShutdownRequest]:
    """Within this context, Ctrl-C and SIGTERM only request a shutdown."""
    shutdown = shutdown or ShutdownRequest()
    if threading.current_thread() is not threading.main_thread():
        yield shutdown
        return
    before = {number: signal.signal(number, shutdown) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield shutdown
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

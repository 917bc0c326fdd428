"""Whether somebody has asked a command to end: Ctrl-C or SIGTERM lets it finish what is under way,
a second Ctrl-C does not.
"""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

_LOOK = 0.1
"""For so many seconds at most nobody looks whether the end was asked for."""


class Asked:
    """What a command asks between two steps."""

    def __init__(self) -> None:
        self.stop = False

    def __call__(self, number: int, frame: object) -> None:  # noqa: ARG002 - what a handler is given
        if self.stop and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.stop = True

    def listen(self) -> None:
        """Be told of Ctrl-C; to be said again after whatever puts a handler of its own in place."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, self)

    def wait(self, seconds: float) -> None:
        """Wait so long, or until the end is asked for."""
        until = time.monotonic() + seconds
        while not self.stop and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, _LOOK))

    def wait_for(self, file: int) -> bool:
        """Wait until something can be read from a file, which is told, or until the end is asked
        for.
        """
        while not self.stop:
            # Elsewhere only sockets can be waited for; a read that nobody ends is then ended by the
            # second Ctrl-C.
            if os.name != "posix" or select.select([file], [], [], _LOOK)[0]:
                return True
        return False


@contextmanager
def asking(asked: Asked | None = None) -> Iterator[Asked]:
    """While it lasts, Ctrl-C and SIGTERM only ask."""
    asked = asked or Asked()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before = {number: signal.signal(number, asked) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

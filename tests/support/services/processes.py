"""Processes of servers that end with the tests, also when the tests are killed."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

SHORT_LIVED = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""Java options: test processes end before the optimising compiler and collector pay off."""
PATIENT = ("-Dspark.python.authenticate.socketTimeout=600s",)
"""Java options: a Python worker may take minutes to connect on a busy machine."""


class ServiceUnavailable(Exception):  # noqa: N818 - a reason to skip, not a fault
    """A server cannot be had on this machine; the text says why, in one line."""


class Process:
    """A server in a process group of its own, with its output in a file.

    A guard waits on a pipe that closes with the process of the tests, however that ends, and then
    kills the group.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        log: Path,
        env: Mapping[str, str] | None = None,
        user: int | None = None,
    ) -> None:
        self.name = name
        self.log = log
        with log.open("ab") as output:
            self._server = subprocess.Popen(
                [str(part) for part in command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=None if env is None else dict(env),
                cwd=log.parent,
                start_new_session=True,
                user=user,
                extra_groups=None if user is None else [],
            )
        self._guard = subprocess.Popen(
            ["sh", "-c", 'cat >/dev/null; kill -s KILL -- "-$1"', "guard", str(self._server.pid)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self._server.pid

    @property
    def running(self) -> bool:
        return self._server.poll() is None

    def wait_until(self, ready: Callable[[], bool], seconds: float) -> None:
        """Return when `ready` says so; raise with the end of the log when the server ends before,
        or takes too long.
        """
        deadline = time.monotonic() + seconds
        while not ready():
            if not self.running:
                raise RuntimeError(
                    f"{self.name} ended with {self._server.returncode} while it"
                    f" started:\n{self.tail()}"
                )
            if time.monotonic() > deadline:
                raise RuntimeError(
                    f"{self.name} did not start in {seconds:.0f} seconds:\n{self.tail()}"
                )
            time.sleep(0.05)

    def tail(self, lines: int = 30) -> str:
        return "\n".join(self.log.read_text("utf-8", errors="replace").splitlines()[-lines:])

    def stop(self, with_signal: signal.Signals = signal.SIGTERM, seconds: float = 15) -> None:
        """End the server, politely at first, then its whole group."""
        if self.running:
            self._server.send_signal(with_signal)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._server.wait(seconds)
        self.kill()

    def kill(self) -> None:
        """End the server and all that it started, at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._server.pid, signal.SIGKILL)
        self._server.wait()
        self._guard.kill()
        if self._guard.stdin is not None:
            self._guard.stdin.close()
        self._guard.wait()


def free_ports(count: int) -> list[int]:
    """Ports of the loopback interface that nobody listens on now; all different."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def accepts(port: int) -> bool:
    """Whether something listens on that port of the loopback interface."""
    with socket.socket() as client:
        client.settimeout(1)
        return client.connect_ex(("127.0.0.1", port)) == 0

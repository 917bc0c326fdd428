"""What the processes of a query use while it runs: memory and processor time, read from /proc by a
thread.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

INTERVAL = 0.25
_PROC = Path("/proc")


@dataclass(frozen=True)
class Process:
    """One process of a moment."""

    pid: int
    parent: int
    name: str
    rss: int
    seconds: float
    """Processor time, that of children which have ended included."""


@dataclass
class Usage:
    """Watches this process and all that descend from it, while it is entered; it finds nothing
    where there is no /proc.
    """

    peaks: dict[str, int] = field(default_factory=dict)
    """The most bytes at any moment: of the JVM, of the Python workers together, and of the driver.
    """
    samples: list[tuple[float, float]] = field(default_factory=list)
    """Time on the wall clock, and processor time until then."""

    def __enter__(self) -> Self:
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stopped.set()
        self._thread.join()

    def seconds_between(self, begin: float, end: float) -> float:
        """Processor time between two moments; to the next sample."""
        inside = [
            seconds for at, seconds in self.samples if begin - INTERVAL <= at <= end + INTERVAL
        ]
        return max(inside) - min(inside) if inside else 0.0

    def _watch(self) -> None:
        while not self._stopped.wait(INTERVAL):
            family = descendants(os.getpid(), processes())
            for role, rss in memory(family, os.getpid()).items():
                self.peaks[role] = max(rss, self.peaks.get(role, 0))
            self.samples.append((time.time(), sum(process.seconds for process in family)))


def memory(family: list[Process], driver: int) -> dict[str, int]:
    """Bytes by role."""
    found = {"jvm": 0, "workers": 0, "driver": 0}
    for process in family:
        if process.pid == driver:
            found["driver"] += process.rss
        elif process.name == "java":
            found["jvm"] += process.rss
        elif process.name.startswith("python"):
            # A JVM that starts a program is two for a moment, the second with the name of a thread
            # and the memory of the first.
            found["workers"] += process.rss
    return found


def processes() -> list[Process]:
    """All that this user can see."""
    if not _PROC.is_dir():
        return []
    found = []
    page, tick = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_CLK_TCK")
    for entry in _PROC.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            text = (entry / "stat").read_text()
        except OSError:
            # It has ended meanwhile.
            continue
        # The name stands in brackets, and may have brackets and spaces itself.
        name, _, rest = text.partition("(")[2].rpartition(")")
        words = rest.split()
        seconds = sum(int(word) for word in words[11:15]) / tick
        found.append(Process(int(entry.name), int(words[1]), name, int(words[21]) * page, seconds))
    return found


def descendants(root: int, known: list[Process]) -> list[Process]:
    """A process and all that descend from it."""
    children: dict[int, list[Process]] = {}
    for process in known:
        children.setdefault(process.parent, []).append(process)
    found = [process for process in known if process.pid == root]
    for process in found:
        found.extend(children.get(process.pid, []))
    return found

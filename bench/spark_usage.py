"""Memory and processor time of a query's processes, sampled from /proc by a thread."""

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
    """A snapshot of one process."""

    pid: int
    parent: int
    name: str
    rss: int
    seconds: float
    """Processor time, including children that have exited."""


@dataclass
class Usage:
    """Context manager that samples this process and its descendants; empty without /proc."""

    peaks: dict[str, int] = field(default_factory=dict)
    """Peak bytes of the JVM, of all Python workers together, and of the driver."""
    samples: list[tuple[float, float]] = field(default_factory=list)
    """Pairs (wall time, processor time until then)."""

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
        """Processor seconds between two instants, up to one sampling interval off."""
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
            # Workers only: a JVM that forks appears twice for a moment, under a thread's name.
            found["workers"] += process.rss
    return found


def processes() -> list[Process]:
    """All processes visible to this user."""
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
            # The process has exited.
            continue
        # The name is in parentheses and may itself contain parentheses and spaces.
        name, _, rest = text.partition("(")[2].rpartition(")")
        words = rest.split()
        seconds = sum(int(word) for word in words[11:15]) / tick
        found.append(Process(int(entry.name), int(words[1]), name, int(words[21]) * page, seconds))
    return found


def descendants(root: int, known: list[Process]) -> list[Process]:
    """A process and all of its descendants."""
    children: dict[int, list[Process]] = {}
    for process in known:
        children.setdefault(process.parent, []).append(process)
    found = [process for process in known if process.pid == root]
    for process in found:
        found.extend(children.get(process.pid, []))
    return found

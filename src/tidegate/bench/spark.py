"""The race on Spark: pipelines of Tidegate against Spark's own windows over the same files, as ratios."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tidegate.bench import spark_data
from tidegate.bench.spark_data import Events
from tidegate.bench.spark_job import Job, apart, run_of
from tidegate.bench.spark_sides import FILES_A_BATCH, OURS, SIDES, THEIRS, WARM_UP, Run, Shape
from tidegate.errors import SpecError

FILES, ROWS = 20, 1_000_000
_FEWEST = (WARM_UP + 2) * FILES_A_BATCH
"""With fewer files there would be no two batches to count."""
STATE_AIM = 0.5
Do = Callable[[Job, Callable[[str], None]], dict[str, Any]]


@dataclass(frozen=True)
class Case:
    """One race."""

    name: str
    shape: Shape
    keys: int
    aim: float | None = None
    """How many times faster Tidegate is to be."""
    files: int = FILES

    def events(self, total: int | None, files: int | None, keys: int | None) -> Events:
        """What is generated: of fewer events there are fewer files; where those would be too few, files are smaller, and keys fewer along."""
        wanted = files or (self.files if total is None else min(self.files, max(_FEWEST, total // ROWS)))
        rows = ROWS if total is None else max(1, min(total // wanted, ROWS if files is None else total))
        return Events(wanted, rows, keys or max(1, self.keys * min(rows, ROWS) // ROWS))


_ALL = [
    Case("tumbling_100k", Shape("tumbling"), 100_000, aim=2),
    Case("tumbling_1m", Shape("tumbling"), 1_000_000, aim=5),
    Case("direct_100k", Shape("tumbling", direct=True), 100_000, aim=3),
    Case("direct_1m", Shape("tumbling", direct=True), 1_000_000, aim=8),
    # Spark's own windows take 60 rows for an event: with all files it would run for ten minutes, and each batch is like the others.
    Case("sliding", Shape("sliding"), 10_000, aim=25, files=8),
    Case("session", Shape("session"), 100_000, aim=5),
    Case("keys_10k", Shape("tumbling"), 10_000),
    Case("keys_100k", Shape("tumbling"), 100_000),
    Case("keys_1m", Shape("tumbling"), 1_000_000),
    Case("keys_10m", Shape("tumbling"), 10_000_000),
]
CASES = {case.name: case for case in _ALL}


@dataclass(frozen=True)
class Raced:
    """What a race found."""

    case: Case
    events: Events
    runs: dict[str, Run]
    checked: int
    """The panes in which both sides were found to be equal, on a small run."""

    @property
    def ratio(self) -> float | None:
        """How many times faster we are; None where only we ran."""
        return self.runs[OURS].events_per_second / self.runs[THEIRS].events_per_second if THEIRS in self.runs else None

    @property
    def state_ratio(self) -> float | None:
        """Our bytes of state in the checkpoint to theirs."""
        return self.runs[OURS].state / max(1, self.runs[THEIRS].state) if THEIRS in self.runs else None

    @property
    def cpu_ratio(self) -> float | None:
        """How many times less processor time we take."""
        mine, other = (self.runs[side].cpu if side in self.runs else None for side in SIDES)
        return other / mine if mine and other else None

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "name": self.case.name,
            "ratio": self.ratio,
            "aim": self.case.aim,
            "events_per_second": self._both("events_per_second"),
            "batch_ms": {side: {"p50": run.p50, "p99": run.p99} for side, run in self.runs.items()},
            "event_to_pane_ms": self._both("event_to_pane"),
            "memory_bytes": self._both("memory"),
            "state_bytes": self._both("state"),
            "state_ratio": self.state_ratio,
            "state_aim": STATE_AIM,
            "sst_bytes": self._both("sst"),
            "cpu_seconds": self._both("cpu"),
            "cpu_ratio": self.cpu_ratio,
            "window": self.case.shape.window,
            "source": "direct" if self.case.shape.direct else "dataframe",
            "keys": self.events.keys,
            "files": self.events.files,
            "events": self.events.total,
            "panes": self._both("panes"),
            "late_events": self._both("dropped"),
            "checked_panes": self.checked,
        }

    def _both(self, name: str) -> dict[str, Any]:
        return {side: getattr(run, name) for side, run in self.runs.items()}


@dataclass
class Racing:
    """Runs cases one after the other; what several of them share is done once."""

    do: Do = apart
    total: int | None = None
    files: int | None = None
    keys: int | None = None
    memory: str = "8g"
    cores: int | None = None
    sides: tuple[str, ...] = SIDES
    profile: Path | None = None
    """Where to write profiles of our side, which is slower then."""
    _checked: dict[Shape, int] = field(default_factory=dict)
    _runs: dict[tuple[str, Shape, Events], Run] = field(default_factory=dict)

    def race(self, cases: Sequence[Case]) -> Iterator[Raced]:
        with ExitStack() as stack:
            place = Path(tempfile.mkdtemp(prefix="tidegate-bench-"))
            stack.callback(shutil.rmtree, place, ignore_errors=True)
            for case in cases:
                yield self._raced(case, place)

    def _raced(self, case: Case, place: Path) -> Raced:
        events = case.events(self.total, self.files, self.keys)
        if THEIRS not in self.sides:
            return Raced(case, events, {OURS: self._run(OURS, case, events, place)}, 0)
        if case.shape not in self._checked:
            say(f"{case.name}: both sides over few events, to see that they put out the same")
            self._checked[case.shape] = self.do(Job(case.shape, memory=self.memory, cores=self.cores), say)["panes"]
            say(f"{case.name}: they do, {self._checked[case.shape]:,} panes")
        runs = {side: self._run(side, case, events, place) for side in SIDES}
        return Raced(case, events, runs, self._checked[case.shape])

    def _run(self, side: str, case: Case, events: Events, place: Path) -> Run:
        # Spark's own side knows of no direct source.
        shape = case.shape if side == OURS else replace(case.shape, direct=False)
        known = self._runs.get((side, shape, events))
        if known is not None:
            say(f"{case.name}: {side} has run over the same before")
            return known
        folder = place / "events"
        if not (place / _tag(events)).exists():
            say(f"{case.name}: generating {events.files} files of {events.rows:,} events over {events.keys:,} keys")
            shutil.rmtree(place)
            spark_data.write(folder, events)
            (place / _tag(events)).touch()
        profile = None if self.profile is None or side != OURS else str(self.profile)
        found = run_of(self.do(Job(shape, side, str(folder), self.memory, self.cores, profile), lambda line: say(f"{case.name}: {line}")))
        if found.events != events.total:
            raise SpecError(f"{case.name}: {side} read {found.events:,} of {events.total:,} events, so its time says nothing")
        self._runs[side, shape, events] = found
        return found


def _tag(events: Events) -> str:
    return f"{events.files}-{events.rows}-{events.keys}"


def say(line: str) -> None:
    """Progress goes beside the results."""
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


def named(text: str | None) -> list[Case]:
    """The cases of a list of names; all without one."""
    names = list(CASES) if text is None else [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in CASES]
    if unknown or not names:
        raise SpecError(f"there is no case {', '.join(unknown) or 'without a name'}. Hint: one of {', '.join(CASES)}")
    return [CASES[name] for name in names]


HEAD = (
    f"{'case':<15}{'ratio':>7}{'aim':>5}   {'keys':>10}{'events':>12}{'events/s':>11}{'':>11}{'p50 ms':>9}{'':>9}{'p99 ms':>9}{'':>9}"
    f"{'to pane ms':>11}{'':>9}{'workers MB':>11}{'':>7}{'JVM MB':>8}{'':>7}{'state MB':>9}{'':>8}{'ratio':>7}\n"
    f"{'':<15}{'':>7}{'':>5}   {'':>10}{'':>12}{'ours':>11}{'Spark':>11}{'ours':>9}{'Spark':>9}{'ours':>9}{'Spark':>9}"
    f"{'ours':>11}{'Spark':>9}{'ours':>11}{'Spark':>7}{'ours':>8}{'Spark':>7}{'ours':>9}{'Spark':>8}{'':>7}"
)


_NOBODY = Run(0, 0, 0, 0.0, 0.0, 0.0, None, None, {}, 0, 0)


def line(found: Raced) -> str:
    """A race as a line of the table."""
    mine = found.runs[OURS]
    other = found.runs.get(THEIRS, _NOBODY)
    aim = "" if found.case.aim is None else f"{found.case.aim:g}"
    verdict = "  under" if found.case.aim is not None and found.ratio is not None and found.ratio < found.case.aim else ""
    memory = "".join(
        f"{run.memory.get(role, 0) / 1e6:>{width},.0f}"
        for role, widths in (("workers", (11, 7)), ("jvm", (8, 7)))
        for run, width in zip((mine, other), widths, strict=True)
    )
    return (
        f"{found.case.name:<15}{found.ratio or 0:>7.2f}{aim:>5}   {found.events.keys:>10,}{found.events.total:>12,}"
        f"{mine.events_per_second:>11,.0f}{other.events_per_second:>11,.0f}{mine.p50:>9,.0f}{other.p50:>9,.0f}{mine.p99:>9,.0f}{other.p99:>9,.0f}"
        f"{mine.event_to_pane or 0:>11,.0f}{other.event_to_pane or 0:>9,.0f}{memory}"
        f"{mine.state / 1e6:>9,.1f}{other.state / 1e6:>8,.1f}{found.state_ratio or 0:>7.2f}{verdict}"
    )


def bench(cases: Sequence[Case], racing: Racing, *, as_json: bool) -> None:
    """Race, and print a line for each."""
    if not as_json:
        print(HEAD, flush=True)
    for found in racing.race(cases):
        print(json.dumps(found.to_dict()) if as_json else line(found), flush=True)

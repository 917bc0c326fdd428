"""Spark benchmark: pipelines against Spark's own windows and joins over the same files."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path
from typing import Any

from bench import spark_data
from bench.spark_data import INPUTS, TEXT_SCHEMA, Events
from bench.spark_job import Job, apart, run_of
from bench.spark_sides import (
    FILES_A_BATCH,
    FLOOR,
    INTERVAL,
    OURS,
    SIDES,
    THEIRS,
    WARM,
    WARM_UP,
    Run,
    Shape,
)
from bench.traffic import MINUTE
from tidegate.errors import SpecError

FILES, ROWS = 20, 1_000_000
JOINED_ROWS = 500_000
"""Rows per file and side of a join."""
_FEWEST = (WARM_UP + 2) * FILES_A_BATCH
"""With fewer files there would be fewer than two measured batches."""
STATE_AIM = 0.5
LOWER = {"p50", "first", "process_seconds", "state"}
"""Measures of which a lower value is better; the others are throughputs."""
Do = Callable[[Job, Callable[[str], None]], dict[str, Any]]


@dataclass(frozen=True)
class Case:
    """One race."""

    name: str
    shape: Shape
    data: Events
    aim: float | None = None
    """Target ratio."""
    measure: str = "events_per_second"
    """The field of `Run` whose ratio to that of the peer is printed."""
    against: Shape | None = None
    """The shape of ours that is the peer. Default: Spark's own operator."""
    side: str = OURS
    """The side that is measured."""
    warm: int | None = None
    """Number of small warm-up batches; default: that of the race."""

    @property
    def peer(self) -> str:
        """The name of the other side."""
        return THEIRS if self.against is None else "plain"

    @property
    def is_lower_better(self) -> bool:
        return self.measure in LOWER

    def events(self, total: int | None, files: int | None, keys: int | None) -> Events:
        """The generated data: fewer events mean fewer files, then smaller files with fewer keys.

        With several inputs, `total` is the number of events per input.
        """
        full = self.data
        wanted = files or (
            full.files if total is None else min(full.files, max(_FEWEST, total // full.rows))
        )
        rows = (
            full.rows
            if total is None
            else max(1, min(total // wanted, full.rows if files is None else total))
        )
        return replace(
            full,
            files=wanted,
            rows=rows,
            keys=keys or max(1, full.keys * min(rows, full.rows) // full.rows),
        )


def _over(keys: int, files: int = FILES) -> Events:
    """Data of the window cases."""
    return Events(files, ROWS, keys)


def _both(*, hot: float = 0.0, span: int = 5 * MINUTE, files: int = FILES) -> Events:
    """Data of the join cases: one event per key, minute and side, so a row has two partners.

    No event is late, so both sides emit the same pairs.
    """
    return Events(files, JOINED_ROWS, 100_000, is_late=False, span=span, inputs=INPUTS, hot=hot)


def _texts(keys: int, **changes: Any) -> Events:
    """Data with skewed text keys, a text that no window reads, and late events."""
    given = {"files": 12, "rows": 500_000, "keys": keys, "text": True, "late": 0.03}
    return Events(**{**given, **changes})


def _text_case(name: str, keys: int, aim: float, direct_aim: float) -> list[Case]:
    plain, direct = (Shape("tumbling", direct, TEXT_SCHEMA) for direct in (False, True))
    return [
        Case(name, plain, _texts(keys), aim),
        Case(f"{name}_direct", direct, _texts(keys), direct_aim),
    ]


def _file_cases(form: str) -> list[Case]:
    """All of a query over text files in a new session, and its later batches."""
    plain, direct = (Shape("tumbling", direct, TEXT_SCHEMA, form) for direct in (False, True))
    data = _texts(100_000, rows=ROWS, format=form)
    return [
        Case(f"{form}_all", direct, data, 1.5, "whole", warm=0),
        Case(f"{form}_direct", direct, data, 2.5, against=plain, warm=0),
    ]


_TEXT = Shape("tumbling", False, TEXT_SCHEMA)
_TEXT_DIRECT = Shape("tumbling", True, TEXT_SCHEMA)
_SMALL = _texts(500, files=80, rows=1_000)
_TINY = _texts(500, files=2, rows=1_000)
_ORDINARY = [
    *_text_case("text_200k", 200_000, 3, 6),
    *_text_case("text_10k", 10_000, 1.0, 1.6),
    *_text_case("text_1k", 1_000, 0.8, 1.3),
    Case("text_state", _TEXT, _texts(200_000), 0.4, "state"),
    Case("few_keys_1k", Shape("tumbling"), Events(12, 500_000, 1_000), 1.2),
    Case("few_keys_10k", Shape("tumbling"), Events(12, 500_000, 10_000), 1.2),
    Case("small_batch", _TEXT, _SMALL, 1.0, "p50"),
    Case("small_batch_direct", _TEXT_DIRECT, _SMALL, 1.0, "p50"),
    Case("cold_start", _TEXT, _TINY, 1.4, "process_seconds", warm=0),
    Case("first_batch", _TEXT, _TINY, 2.1, "first", warm=0),
    *_file_cases("csv"),
    *_file_cases("json"),
]
_WINDOWS = [
    Case("tumbling_100k", Shape("tumbling"), _over(100_000), aim=2),
    Case("tumbling_1m", Shape("tumbling"), _over(1_000_000), aim=5),
    Case("direct_100k", Shape("tumbling", direct=True), _over(100_000), aim=3),
    Case("direct_1m", Shape("tumbling", direct=True), _over(1_000_000), aim=8),
    # Spark's own windows expand an event to 60 rows: all files would take ten minutes.
    Case("sliding", Shape("sliding", direct=True), _over(10_000, files=8), aim=25),
    Case("session", Shape("session", direct=True), _over(100_000), aim=5),
    Case("sliding_plain", Shape("sliding"), _over(10_000, files=8)),
    Case("session_plain", Shape("session"), _over(100_000)),
    Case("keys_10k", Shape("tumbling"), _over(10_000)),
    Case("keys_100k", Shape("tumbling"), _over(100_000)),
    Case("keys_1m", Shape("tumbling"), _over(1_000_000)),
    Case("keys_10m", Shape("tumbling"), _over(10_000_000)),
]
_FLOORS = [
    Case("few_keys_floor", Shape("tumbling"), Events(12, 500_000, 10_000), side=FLOOR),
    Case("text_floor", _TEXT, _texts(10_000), side=FLOOR),
    Case("small_batch_floor", _TEXT, _SMALL, None, "p50", side=FLOOR),
]
_JOINS = [
    Case("interval", Shape(INTERVAL, direct=True), _both(), aim=3),
    Case("interval_hot", Shape(INTERVAL, direct=True), _both(hot=0.2), aim=1.5),
    Case("interval_plain", Shape(INTERVAL), _both()),
    # Ten partners per row: all files would produce a hundred million pairs.
    Case("interval_dense", Shape(INTERVAL, direct=True), _both(span=MINUTE, files=8)),
]
CASES, JOINS = (
    {case.name: case for case in cases} for cases in ([*_ORDINARY, *_WINDOWS, *_FLOORS], _JOINS)
)


@dataclass(frozen=True)
class Raced:
    """The result of a race."""

    case: Case
    events: Events
    runs: dict[str, Run]
    checked: int
    """Number of panes that were equal on both sides in a small run."""

    @property
    def peer(self) -> Run | None:
        """The run of the other side; None where only Tidegate ran."""
        return self.runs.get(self.case.peer)

    @property
    def mine(self) -> Run:
        """The run that is measured."""
        return self.runs[self.case.side]

    @property
    def ratio(self) -> float | None:
        """Our measure over that of the peer."""
        mine, other = self.mine, self.peer
        if other is None:
            return None
        if self.case.measure == "whole":
            return other.seconds / mine.seconds
        return float(getattr(mine, self.case.measure) / max(1, getattr(other, self.case.measure)))

    @property
    def is_met(self) -> bool:
        """Whether the target is reached, or unknown."""
        if self.case.aim is None or self.ratio is None:
            return True
        if self.case.is_lower_better:
            return self.ratio <= self.case.aim
        return self.ratio >= self.case.aim

    @property
    def state_ratio(self) -> float | None:
        """Our state bytes in the checkpoint over those of the peer."""
        return None if self.peer is None else self.mine.state / max(1, self.peer.state)

    @property
    def cpu_ratio(self) -> float | None:
        """Processor time of the peer over ours."""
        mine, other = self.mine.cpu, None if self.peer is None else self.peer.cpu
        return other / mine if mine and other else None

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "name": self.case.name,
            "ratio": self.ratio,
            "aim": self.case.aim,
            "measure": self.case.measure,
            "peer": self.case.peer,
            "events_per_second": self._both("events_per_second"),
            "batch_ms": {side: {"p50": run.p50, "p99": run.p99} for side, run in self.runs.items()},
            "first_batch_ms": self._both("first"),
            "query_seconds": self._both("seconds"),
            "process_seconds": self._both("process_seconds"),
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
            "hot": self.events.hot,
            self.case.shape.word: self._both("panes"),
            "late_events": self._both("dropped"),
            f"checked_{self.case.shape.word}": self.checked,
        }

    def _both(self, name: str) -> dict[str, Any]:
        return {side: getattr(run, name) for side, run in self.runs.items()}


@dataclass
class Racing:
    """Runs cases one after the other; shared runs and checks are done once."""

    do: Do = apart
    total: int | None = None
    files: int | None = None
    keys: int | None = None
    memory: str = "8g"
    cores: int | None = None
    sides: tuple[str, ...] = SIDES
    profile: Path | None = None
    """Folder for profiles of our side; profiling slows it down."""
    warm: int = WARM
    """Number of small warm-up batches before a run."""
    topics: Callable[[Events], str] | None = None
    """Produces events to a Kafka topic, once, and returns its place; None for files."""
    _checked: dict[tuple[Shape, Events], int] = field(default_factory=dict)
    _runs: dict[tuple[str, Shape, Events, int], Run] = field(default_factory=dict)

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
        checked = self._check(case) if case.side == OURS else 0
        mine = self._run(case.side, case, events, place)
        other = (
            self._run(THEIRS, case, events, place)
            if case.against is None
            else self._run(OURS, replace(case, shape=case.against), events, place)
        )
        runs = {case.side: mine, case.peer: other}
        if case.shape.is_join and mine.panes != other.panes:
            # No event is late, so neither side may drop one.
            counts = " and ".join(f"{run.panes:,} pairs of {side}" for side, run in runs.items())
            raise SpecError(f"{case.name}: {counts}, so their times cannot be compared")
        return Raced(case, events, runs, checked)

    def _check(self, case: Case) -> int:
        """The number of panes of a few events, which both sides must emit."""
        shape = replace(case.shape, early=False)
        small = shape, case.data.small()
        if small not in self._checked:
            say(f"{case.name}: checking over few events that both sides emit the same")
            folder = "" if self.topics is None else self.topics(small[1])
            job = Job(*small, folder=folder, memory=self.memory, cores=self.cores)
            self._checked[small] = self.do(job, say)["panes"]
            say(f"{case.name}: equal, {self._checked[small]:,} {case.shape.word}")
        return self._checked[small]

    def _source(self, case: Case, events: Events, place: Path) -> str:
        """The folder or the topic with the events, which are generated if they are not there."""
        if self.topics is not None:
            return self.topics(events)
        folder = place / "events"
        if not (place / _tag(events)).exists():
            folders = f", {len(events.inputs)} times" if events.inputs else ""
            say(
                f"{case.name}: generating {events.files} files of {events.rows:,} events over"
                f" {events.keys:,} keys{folders}"
            )
            shutil.rmtree(place)
            spark_data.write(folder, events)
            (place / _tag(events)).touch()
        return str(folder)

    def _run(self, side: str, case: Case, events: Events, place: Path) -> Run:
        # Spark's own side has no direct source.
        shape = case.shape if side == OURS else replace(case.shape, direct=False)
        warm = self.warm if case.warm is None else min(case.warm, self.warm)
        place_of_run = (side, shape, events, warm)
        known = self._runs.get(place_of_run)
        if known is not None:
            say(f"{case.name}: {side} has already run over this data")
            return known
        source = self._source(case, events, place)
        if warm and self.topics is not None:
            self.topics(events.small(warm * FILES_A_BATCH))
        profile = None if self.profile is None or side != OURS else str(self.profile)
        job = Job(shape, events, side, source, self.memory, self.cores, profile, warm)
        found = run_of(self.do(job, lambda line: say(f"{case.name}: {line}")))
        if found.events != events.total:
            raise SpecError(
                f"{case.name}: {side} read {found.events:,} of {events.total:,} events, so its time"
                " cannot be compared"
            )
        self._runs[place_of_run] = found
        return found


def _tag(events: Events) -> str:
    return "-".join(str(value).replace(" ", "") for value in astuple(events))


def say(line: str) -> None:
    """Print progress to standard error, apart from the results."""
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


def named(text: str | None, cases: Mapping[str, Case] = CASES) -> list[Case]:
    """The cases of a comma-separated list; default: all that have an aim."""
    names = (
        [name for name, case in cases.items() if case.aim is not None]
        if text is None
        else [name.strip() for name in text.split(",") if name.strip()]
    )
    unknown = [name for name in names if name not in cases]
    if unknown or not names:
        wrong = ", ".join(unknown) or text
        raise SpecError(f"unknown benchmark case `{wrong}`. Hint: use one of {', '.join(cases)}")
    return [cases[name] for name in names]


HEAD = (
    f"{'case':<19}{'ratio':>7}{'aim':>5}  "
    f" {'keys':>10}{'events':>12}{'events/s':>11}{'':>11}{'p50 ms':>9}{'':>9}{'p99 ms':>9}{'':>9}"
    f"{'to pane ms':>11}{'':>9}{'workers MB':>11}{'':>7}{'JVM MB':>8}{'':>7}"
    f"{'state MB':>9}{'':>8}{'ratio':>7}\n"
    f"{'':<19}{'':>7}{'':>5}  "
    f" {'':>10}{'':>12}{'ours':>11}{'Spark':>11}{'ours':>9}{'Spark':>9}{'ours':>9}{'Spark':>9}"
    f"{'ours':>11}{'Spark':>9}{'ours':>11}{'Spark':>7}{'ours':>8}{'Spark':>7}"
    f"{'ours':>9}{'Spark':>8}{'':>7}"
)


_NO_PEER = Run(0, 0, 0, 0.0, 0.0, 0.0, None, None, {}, 0, 0)


def line(found: Raced) -> str:
    """One row of the printed table."""
    mine = found.mine
    other = found.peer or _NO_PEER
    aim = "" if found.case.aim is None else f"{found.case.aim:g}"
    verdict = "" if found.is_met else "  over" if found.case.is_lower_better else "  under"
    memory = "".join(
        f"{run.memory.get(role, 0) / 1e6:>{width},.0f}"
        for role, widths in (("workers", (11, 7)), ("jvm", (8, 7)))
        for run, width in zip((mine, other), widths, strict=True)
    )
    return (
        f"{found.case.name:<19}{found.ratio or 0:>7.2f}{aim:>5}  "
        f" {found.events.keys:>10,}{found.events.total:>12,}"
        f"{mine.events_per_second:>11,.0f}{other.events_per_second:>11,.0f}"
        f"{mine.p50:>9,.0f}{other.p50:>9,.0f}{mine.p99:>9,.0f}{other.p99:>9,.0f}"
        f"{mine.event_to_pane or 0:>11,.0f}{other.event_to_pane or 0:>9,.0f}{memory}"
        f"{mine.state / 1e6:>9,.1f}{other.state / 1e6:>8,.1f}"
        f"{found.state_ratio or 0:>7.2f}{verdict}"
    )


def bench(cases: Sequence[Case], racing: Racing, *, as_json: bool) -> None:
    """Race the cases and print a line for each."""
    if not as_json:
        print(HEAD, flush=True)
    for found in racing.race(cases):
        print(json.dumps(found.to_dict()) if as_json else line(found), flush=True)

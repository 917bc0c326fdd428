"""The status of a query: what its operators have done, hold and wait for, as data."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tidegate.html import fields_html, sentences_html
from tidegate.instants import MAX, MIN, format_instant
from tidegate.operators.chain import Operator
from tidegate.operators.explain.facts import Explanation, SourceFacts, WindowFacts, time_text
from tidegate.operators.explain.wording import Wording
from tidegate.operators.inspection.summary import summary
from tidegate.operators.progress import late_by_reason
from tidegate.units import many, rounded

HAPPENINGS = 10
"""The number of next events that a status lists."""


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """One source of an input: a partition or a writer, or the whole input if it has no name."""

    input: int
    key: int
    """Its watermark key."""
    name: str
    status: str
    """`active`, `idle` or `ended`."""
    watermark: int | None
    lag: int | None = None
    """How far its watermark is behind the clock; None without one, or if times are numbers."""
    spoke_at: int | None = None
    """The clock at its last activity; None if it never had any."""
    moved_at: int | None = None
    """The clock when its watermark last advanced; None if it has none."""
    idle_since: int | None = None
    """The clock of its last activity, if it is idle."""
    idle_at: int | None = None
    """The clock at which it becomes idle if it stays silent."""
    holds: bool = False
    """Whether it holds the watermark of the operator back."""
    declared: bool = False
    input_name: str = ""
    """The name of its input in a merge, or its side of a join."""

    @property
    def label(self) -> str:
        """Its name with that of its input; empty for the only source of the first input."""
        of = self.input_name or (f"input {self.input}" if self.input else "")
        return f"{of} {self.name}".strip()

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return _plain(self)


@dataclass(frozen=True, slots=True)
class ShardStatus:
    """One shard of a stateful operator of Spark, or a whole embedded operator."""

    shard: int
    batch: int
    """The last batch in which the shard was called."""
    clock: int
    watermark: int | None
    newest_event: int | None
    windows_open: int
    state_bytes: int
    pending_output_bytes: int = 0
    windows: list[dict[str, Any]] = field(default_factory=list)
    """The windows that complete next, with their number of keys if it is known."""
    rows: dict[str, int] = field(default_factory=dict)
    """The number of stored rows on each side of a join; empty for other operators."""
    late: dict[str, int] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OperatorStatus:
    """The operators that run in one task: their shards, sources, and what each waits for."""

    number: int
    """The number of its first operator, in the order of the data."""
    size: int
    """The number of operators that it runs."""
    shards: tuple[ShardStatus, ...]
    sources: tuple[SourceStatus, ...]
    """The sources of its first operator."""
    explanations: tuple[Explanation | None, ...] = ()
    """What each operator waits for; None if it cannot be known here, see `problem`."""
    problem: str = ""
    """Why explanations are missing."""

    @property
    def late(self) -> dict[str, int]:
        """Late rows by reason, over all shards and since the query was created."""
        return _sums(shard.late for shard in self.shards)

    @property
    def counters(self) -> dict[str, int]:
        """Counts over all shards since the query was created."""
        return _sums(shard.counters for shard in self.shards)

    @property
    def watermark(self) -> int:
        """The watermark of the first operator; `MIN` while there is none.

        A shard that was not called lately may have an older one.
        """
        known = (shard.watermark for shard in self.shards if shard.watermark is not None)
        return max(known, default=MIN)

    @property
    def windows_open(self) -> int:
        return sum(shard.windows_open for shard in self.shards)

    @property
    def state_bytes(self) -> int:
        return sum(shard.state_bytes for shard in self.shards)

    @property
    def rows(self) -> dict[str, int]:
        """The number of stored rows on each side of a join."""
        return _sums(shard.rows for shard in self.shards)

    @property
    def windows(self) -> list[dict[str, Any]]:
        """The windows that complete next, over all shards."""
        keys: dict[tuple[int, int], int | None] = {}
        for shard in self.shards:
            for window in shard.windows:
                bounds = (window["start"], window["end"])
                known, more = keys.get(bounds, 0), window["keys"]
                keys[bounds] = None if known is None or more is None else known + more
        return [
            {"start": start, "end": end, "keys": count}
            for (start, end), count in sorted(keys.items(), key=lambda item: item[0][::-1])
        ]

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "number": self.number,
            "size": self.size,
            "shards": [_plain(shard) for shard in self.shards],
            "sources": [source.to_dict() for source in self.sources],
            "windows_open": self.windows_open,
            "state_bytes": self.state_bytes,
            "rows": self.rows,
            "counters": self.counters,
            "late": self.late,
            "explanations": [
                {"error": self.problem} if found is None else found.to_dict()
                for found in self.explanations
            ],
        }


@dataclass(frozen=True, slots=True)
class Happening:
    """Something that comes next: at an instant of the clock, or when a watermark gets somewhere."""

    text: str
    clock: int | None = None
    watermark: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return _plain(self)


@dataclass(frozen=True, slots=True)
class QueryStatus:
    """The status of a query, or of an embedded operator, after its last batch or call."""

    query: str | None
    """The id of the query; None if it has none."""
    batch: int | None
    """The last committed batch; None if embedded."""
    now: int
    """The clock at which lags and ages are counted: that of the machine while the query runs, else
    that of the last batch.
    """
    operators: tuple[OperatorStatus, ...] = ()
    name: str | None = None
    """The name that the user gave the query."""
    runtime: str = "spark"
    """`spark` or `embedded`."""
    state: str = "unknown"
    """`running`, `ended` or `failed`; `unknown` if it is read from files only."""
    error: str = ""
    """The error of a failed query."""
    specs: list[list[dict[str, Any]]] = field(default_factory=list)
    """The specification of each operator, by stage."""
    phases: Mapping[str, int] = field(default_factory=dict)
    """The duration of each phase of the last batch in milliseconds, under Spark's names."""
    rows_per_second: float | None = None
    """The input rate of the last batch."""
    problem: str = ""
    """Why operators are missing: the checkpoint cannot be read from here."""

    def __repr__(self) -> str:
        return f"QueryStatus({', '.join(f'{name} {value}' for name, value in self._brief())})"

    def __str__(self) -> str:
        from tidegate.operators.status_text import status_text

        return status_text(self)

    def _repr_html_(self) -> str:
        explained = self.explanation
        return fields_html("Status", self._brief()) + (
            "" if explained is None else sentences_html(explained.sentences)
        )

    def _brief(self) -> list[tuple[str, str]]:
        """What matters most, as text."""
        known = [
            ("query", self.name or self.query or self.runtime),
            ("state", self.state),
            ("batch", "" if self.batch is None else f"{self.batch:,}"),
            ("watermark", str(self._time(self.watermark) or "none")),
            ("lag", "" if self.lag is None else rounded(self.lag)),
            ("windows open", f"{self.windows_open:,}"),
            ("late rows", f"{self.counters.get('late_rows', 0):,}"),
            ("problem", _line(self.problem or self.error)),
        ]
        return [(name, value) for name, value in known if value]

    @property
    def watermark(self) -> int | None:
        """The least watermark of the inputs; None while there is none."""
        least = min((one.watermark for one in self.operators), default=MIN)
        return None if least == MIN else least

    @property
    def newest_event(self) -> int | None:
        """The newest event of the input that is not from the future."""
        first = [shard.newest_event for one in self.operators[:1] for shard in one.shards]
        return max((at for at in first if at is not None), default=None)

    @property
    def lag(self) -> int | None:
        """How far the watermark is behind the clock; it grows while the input is silent."""
        mark = self.watermark
        return None if mark is None or self.ticks else self.now - mark

    @property
    def ticks(self) -> bool:
        """Whether times are plain numbers, so that they cannot be compared with the clock."""
        known = [found for one in self.operators for found in one.explanations if found is not None]
        return bool(known) and known[0].ticks

    @property
    def sources(self) -> tuple[SourceStatus, ...]:
        """The sources of the inputs."""
        return self.operators[0].sources if self.operators else ()

    @property
    def counters(self) -> dict[str, int]:
        """Counts since the query was created: events of the input, panes of the last operator,
        late rows of all.
        """
        if not self.operators:
            return {}
        first, last = self.operators[0].counters, self.operators[-1].counters
        found = {
            name: (last if name.startswith(_OF_OUTPUT) else first).get(name, 0)
            for name in {**first, **last}
        }
        found["late_rows"] = sum(one.counters.get("late_rows", 0) for one in self.operators)
        return found

    @property
    def late(self) -> dict[str, int]:
        """Late rows by reason since the query was created."""
        return _sums(one.late for one in self.operators)

    @property
    def windows_open(self) -> int:
        """The open windows of the last operator, and those that are kept for late events."""
        return self.operators[-1].windows_open if self.operators else 0

    @property
    def state_bytes(self) -> int:
        return sum(one.state_bytes for one in self.operators)

    @property
    def pending_output_bytes(self) -> int:
        return sum(shard.pending_output_bytes for one in self.operators for shard in one.shards)

    @property
    def explanations(self) -> tuple[Explanation | None, ...]:
        """What each operator waits for, in the order of the data."""
        return tuple(found for one in self.operators for found in one.explanations)

    @property
    def explanation(self) -> Explanation | None:
        """What the last operator waits for."""
        return self.explanations[-1] if self.explanations else None

    @property
    def waiting(self) -> tuple[WindowFacts, ...]:
        """The windows of the last operator that wait, those that end first before the others."""
        return () if self.explanation is None else self.explanation.windows

    @property
    def happenings(self) -> tuple[Happening, ...]:
        """What comes next: at the clock first, then by the watermark."""
        found = [
            event
            for explanation in self.explanations
            if explanation is not None
            for event in _happenings(explanation)
        ]
        ordered = sorted(
            dict.fromkeys(found),
            key=lambda event: (
                event.clock is None,
                event.watermark if event.clock is None else event.clock,
            ),
        )
        return tuple(ordered[:HAPPENINGS])

    def to_dict(self) -> dict[str, Any]:
        """The JSON form: instants as ISO text, or numbers if the input has plain numbers; spans in
        microseconds.
        """
        return {
            "query": self.query,
            "name": self.name,
            "runtime": self.runtime,
            "state": self.state,
            "error": self.error,
            "batch": self.batch,
            "now": format_instant(self.now),
            "watermark": self._time(self.watermark),
            "newest_event": self._time(self.newest_event),
            "lag": self.lag,
            "windows_open": self.windows_open,
            "state_bytes": self.state_bytes,
            "counters": self.counters,
            "late": self.late,
            "phases": dict(self.phases),
            "rows_per_second": self.rows_per_second,
            "happenings": [event.to_dict() for event in self.happenings],
            "specs": self.specs,
            "operators": [one.to_dict() for one in self.operators],
            "problem": self.problem,
        }

    def _time(self, instant: int | None) -> str | int | None:
        if instant is None or self.ticks:
            return instant
        return time_text(instant, ticks=False)


_OF_OUTPUT = ("panes_", "retractions", "windows_")
"""Counters of the last operator."""


def shard_status(shard: int, summarized: Mapping[str, Any]) -> ShardStatus:
    """The status of a shard from its summary, as `spark.tasks.processor` stores it."""
    counters = summarized["counters"]
    return ShardStatus(
        shard=shard,
        batch=summarized["batch"],
        clock=summarized["clock"],
        watermark=_known(summarized["watermark"]),
        newest_event=_known(summarized["newest_event"]),
        windows_open=summarized["windows_open"],
        state_bytes=summarized["bytes"],
        pending_output_bytes=summarized["pending_output_bytes"],
        windows=summarized["windows"],
        rows=summarized.get("rows", {}),
        late=late_by_reason(counters),
        counters={
            name: count for name, count in counters.items() if not name.startswith("reason.")
        },
    )


def explained_sources(found: Explanation, now: int) -> tuple[SourceStatus, ...]:
    """The sources of an explanation, of all watermark keys; lags and ages count to `now`."""
    return tuple(
        _source(one, source, now) for one in (found, *found.also) for source in _points(one)
    )


def foremost(sources: Sequence[SourceStatus], most: int) -> Sequence[SourceStatus]:
    """At most this many sources: those that hold the watermark back, then those furthest behind."""
    if len(sources) <= most:
        return sources
    behind = sorted(sources, key=lambda one: (not one.holds, -(one.lag or 0)))
    kept = {(one.input, one.key, one.name) for one in behind[:most]}
    return [one for one in sources if (one.input, one.key, one.name) in kept]


def embedded_status(operator: Operator, found: Explanation, now: int) -> QueryStatus:
    """The status of an embedded operator, from what it waits for."""
    progress = operator.progress
    shard = shard_status(
        0,
        {
            "batch": -1,
            "clock": progress.now,
            "watermark": progress.watermark,
            "newest_event": progress.newest,
            "bytes": operator.nbytes,
            "pending_output_bytes": 0,
            "counters": dict(progress.counters),
            **summary([operator]),
        },
    )
    one = OperatorStatus(0, 1, (shard,), explained_sources(found, now), (found,))
    return QueryStatus(
        None,
        None,
        now,
        (one,),
        runtime="embedded",
        state="ended" if found.is_finished else "running",
        specs=[[operator.declared.to_dict()]],
    )


def aged(found: QueryStatus, now: int) -> QueryStatus:
    """The status with lags counted to another instant of the clock."""
    return dataclasses.replace(
        found,
        now=now,
        operators=tuple(
            dataclasses.replace(
                one,
                sources=tuple(
                    dataclasses.replace(
                        source,
                        lag=None if source.lag is None else source.lag + now - found.now,
                    )
                    for source in one.sources
                ),
            )
            for one in found.operators
        ),
    )


def _points(found: Explanation) -> Iterable[SourceFacts]:
    """The sources, and the inputs that count as a single source."""
    named = {source.input for source in found.sources}
    yield from found.sources
    for given in found.inputs:
        if given.input not in named:
            yield SourceFacts(
                given.input,
                "",
                given.status,
                given.promise,
                None,
                given.since if given.promise is not None else None,
                given.holds,
                idle_at=given.idle_at,
            )


def _source(found: Explanation, source: SourceFacts, now: int) -> SourceStatus:
    mark = source.promise
    # A source that was declared and never spoke joined when the operator started.
    spoke = None if source.declared and mark is None else source.spoke_at
    return SourceStatus(
        input=source.input,
        key=found.watermark_key,
        name=source.name,
        status="ended" if found.is_finished else source.status,
        watermark=None if mark is None else _known(mark),
        lag=(
            None
            if mark in (None, MIN, MAX) or found.ticks or found.axis != "event_time"
            else now - int(mark or 0)
        ),
        spoke_at=spoke,
        moved_at=None if mark is None else source.moved_at,
        idle_since=spoke if source.status == "idle" and not found.is_finished else None,
        idle_at=None if found.is_finished else source.idle_at,
        holds=source.holds and not found.is_finished,
        declared=source.declared,
        input_name=found.names[source.input] if source.input < len(found.names) else "",
    )


def _happenings(found: Explanation) -> Iterable[Happening]:
    for source in found.sources:
        is_over = found.is_finished or source.status != "active"
        if source.idle_at not in {None, MAX} and not is_over:
            name = Wording(found).source(source)
            yield Happening(f"{name} becomes idle if it stays silent", clock=source.idle_at)
    for window in found.windows:
        keys = "" if window.keys is None else f" of {many(window.keys, 'key')}"
        bounds = (
            "the global window"
            if (window.start, window.end) == (MIN, MAX)
            else f"window [{time_text(window.start, ticks=found.ticks)},"
            f" {time_text(window.end, ticks=found.ticks)})"
        )
        if window.clock is not None:
            yield Happening(f"{bounds}{keys} fires by the clock", clock=window.clock)
        if window.watermark is not None:
            what = "fires again" if window.is_complete else "is complete and fires"
            yield Happening(f"{bounds}{keys} {what}", watermark=window.watermark)


def _line(text: str, longest: int = 200) -> str:
    """A text on one line."""
    line = " ".join(text.split())
    return line if len(line) <= longest else f"{line[:longest]}..."


def _sums(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for one in counts:
        found.update(one)
    return dict(found)


def _known(instant: int) -> int | None:
    return None if instant in (MIN, MAX) else instant


_CLOCKS = frozenset({"spoke_at", "moved_at", "idle_since", "idle_at", "clock"})


def _plain(row: Any) -> dict[str, Any]:
    """The fields of a record; clocks as ISO text."""
    return {
        given.name: (
            format_instant(value)
            if given.name in _CLOCKS and (value := getattr(row, given.name)) is not None
            else getattr(row, given.name)
        )
        for given in dataclasses.fields(row)
    }

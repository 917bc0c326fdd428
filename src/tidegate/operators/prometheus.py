"""The status of a query as Prometheus metrics: families of samples, and their text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tidegate.operators.progress import REPORTED
from tidegate.operators.status import QueryStatus

TIMINGS = ("early", "on_time", "late")
Sample = tuple[Mapping[str, str], float]


@dataclass(frozen=True)
class Family:
    """All samples of one metric; counters end with `_total`."""

    name: str
    help: str
    samples: tuple[Sample, ...]

    @property
    def kind(self) -> str:
        return "counter" if self.name.endswith("_total") else "gauge"


def families(status: QueryStatus) -> list[Family]:
    """The metrics of a query, labelled with its name, or with its id if it has none.

    Counters count since the query was created, over restarts. What is unknown is left out.
    """
    query = {"query": status.name or status.query or status.runtime}
    found = [
        *_counters(status),
        *_sizes(status),
        *_times(status),
        *_batch(status),
        *_sources(status),
    ]
    return [
        Family(f"tidegate_{name}", text, tuple(({**query, **labels}, n) for labels, n in samples))
        for name, text, samples in found
        if samples
    ]


def text_of(found: Iterable[Family]) -> str:
    """Families as Prometheus text."""
    lines: list[str] = []
    for family in found:
        lines += (f"# HELP {family.name} {family.help}", f"# TYPE {family.name} {family.kind}")
        lines += [
            f"{family.name}{{{_labels(labels)}}} {_number(value)}"
            for labels, value in family.samples
        ]
    return "\n".join(lines) + "\n"


_Part = tuple[str, str, Sequence[Sample]]


def _counters(status: QueryStatus) -> Iterator[_Part]:
    counts = status.counters
    if not counts:
        return
    yield "events_total", "Processed events", _one(counts, "events")
    classes = [({"class": name}, counts.get(name, 0)) for name in REPORTED]
    yield "rows_total", "Rows by class of lateness", classes
    yield "late_rows_total", "Rows in the late output", _one(counts, "late_rows")
    reasons = [({"reason": reason}, n) for reason, n in sorted(status.late.items())]
    yield "late_rows_by_reason_total", "Rows in the late output by reason", reasons
    timings = [({"timing": name}, counts.get(f"panes_{name}", 0)) for name in TIMINGS]
    yield "panes_total", "Panes by timing", timings
    yield "retractions_total", "Retracted panes", _one(counts, "retractions")
    for name in ("opened", "closed"):
        yield f"windows_{name}_total", f"Windows {name}, per key", _one(counts, f"windows_{name}")


def _sizes(status: QueryStatus) -> Iterator[_Part]:
    if not status.operators:
        return
    yield "windows_open", "Open windows, per key", [({}, status.windows_open)]
    yield "state_bytes", "Size of the state", [({}, status.state_bytes)]
    pending = status.pending_output_bytes
    yield "pending_output_bytes", "Output that waits for the next batch", [({}, pending)]
    found = status.explanation
    if found is not None and not found.unlisted:
        waiting = len(found.windows) + found.more_windows
        yield "windows_waiting", "Windows with a pending pane", [({}, waiting)]


def _times(status: QueryStatus) -> Iterator[_Part]:
    yield "clock_seconds", "Clock of these values, in seconds since 1970", [({}, _s(status.now))]
    if status.ticks:
        return
    for name, text, instant in (
        ("watermark", "Watermark, in seconds since 1970", status.watermark),
        ("newest_event", "Time of the newest event, in seconds since 1970", status.newest_event),
    ):
        if instant is not None:
            yield f"{name}_seconds", text, [({}, _s(instant))]
    if status.lag is not None:
        yield "watermark_lag_seconds", "Watermark lag behind the clock", [({}, _s(status.lag))]


def _batch(status: QueryStatus) -> Iterator[_Part]:
    if status.state != "unknown":
        yield "query_running", "Whether the query runs", [({}, int(status.state == "running"))]
    if status.batch is not None:
        yield "batch_id", "Id of the last batch", [({}, status.batch)]
    phases = [({"phase": name}, ms / 1000) for name, ms in sorted(status.phases.items())]
    yield "batch_phase_seconds", "Duration of each phase of the last batch", phases
    if "triggerExecution" in status.phases:
        total = status.phases["triggerExecution"] / 1000
        yield "batch_duration_seconds", "Duration of the last batch", [({}, total)]
    if status.rows_per_second is not None:
        rate = status.rows_per_second
        yield "rows_per_second", "Processed rows per second of the last batch", [({}, rate)]


def _sources(status: QueryStatus) -> Iterator[_Part]:
    labelled = [
        ({"input": str(one.input), "partition": one.name}, one)
        for one in status.sources
        if one.key == 0
    ]
    if not status.ticks:
        marks = [(at, _s(one.watermark)) for at, one in labelled if one.watermark is not None]
        yield "source_watermark_seconds", "Watermark of each source", marks
    lags = [(at, _s(one.lag)) for at, one in labelled if one.lag is not None]
    yield "source_lag_seconds", "Watermark lag of each source behind the clock", lags
    silent = [(at, _s(status.now - one.spoke_at)) for at, one in labelled if one.spoke_at]
    yield "source_silent_seconds", "Time since the last activity of each source", silent
    idle = [(at, int(one.status == "idle")) for at, one in labelled]
    yield "source_idle", "Whether each source is idle", idle
    holds = [(at, int(one.holds)) for at, one in labelled]
    yield "source_holds_watermark", "Whether each source holds the watermark back", holds


def _one(counts: Mapping[str, int], name: str) -> list[Sample]:
    return [({}, counts.get(name, 0))]


def _s(us: int) -> float:
    return us / 1e6


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))


def _labels(labels: Mapping[str, str]) -> str:
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

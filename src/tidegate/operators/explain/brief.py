"""Specifications in a few words, and an aggregation as sentences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidegate.instants import MAX, format_duration
from tidegate.spec.join import JoinSpec, Upstream
from tidegate.spec.operator import AggregateSpec, Input, Retention
from tidegate.spec.short_repr import short_repr
from tidegate.spec.triggers import AfterWatermark, Policy
from tidegate.spec.watermarks import Watermarks
from tidegate.spec.windows import Axis
from tidegate.units import byte_size, many

_BOUNDS = {"within": ("before", "after"), "as_of": ("tolerance",)}
"""Time bounds of a join that are shown."""
_AGGREGATES = 4
_MODES = {
    "accumulating": "each pane holds the whole window so far",
    "discarding": "each pane holds what came since the last one",
    "retracting": "each pane holds the whole window so far, after a retraction of the former pane",
}


def spec_text(spec: Mapping[str, Any]) -> str:
    """The JSON form of an operator in a few words: a window, or a join with its condition."""
    if "join" not in spec:
        return window_text(spec["window"])
    window = spec["window"]
    meets = (
        " and ".join(map(window_text, window)) if isinstance(window, list) else window_text(window)
    )
    fields = ", ".join(left if left == right else f"{left} = {right}" for left, right in spec["on"])
    return f"{spec['how']} join{f' on {fields}' if fields else ''}, {meets}"


def window_text(window: Mapping[str, Any]) -> str:
    """The JSON form of a window in a few words."""
    if window["type"] in _BOUNDS:
        ends = [
            f"{name} {format_duration(window[name])}"
            for name in _BOUNDS[window["type"]]
            if window[name] is not None
        ]
        return " ".join([str(window["type"]).replace("_", " "), *ends])
    axis = window.get("axis", "event_time")
    spans = [
        f"{name} {many(span, 'message') if axis in _COUNTED else format_duration(span)}"
        for name in ("size", "slide", "step", "gap")
        if isinstance(span := window.get(name), int)
    ]
    named = {
        "calendar": lambda: [many(window["n"], window["unit"]), f"in {window['zone']}"],
        "custom": lambda: [f"`{window['name']}`"],
    }
    words = [str(window["type"]).replace("_", " "), *spans]
    words += named[window["type"]]() if window["type"] in named else []
    words += [f"gap of `{window['gap_column']}`"] if window.get("gap_column") else []
    return " ".join([*words, *([] if axis == "event_time" else [_AXES[axis]])])


_COUNTED = ("offset", "ordinal")
_AXES = {"clock": "on the clock", "offset": "on offsets", "ordinal": "of each key"}
_COMPLETION = {
    "event_time": "the watermark reaches the end of the window",
    "clock": "the clock reaches the end of the window",
    "offset": "all offsets of the window have arrived",
    "ordinal": "the key has all messages of the window",
}
"""What completes a window, by axis."""


def brief(spec: Upstream) -> str:
    """A specification on one line: windows, key and aggregates, or the join."""
    if isinstance(spec, JoinSpec):
        return spec_text(spec.to_dict())
    key = f" by {', '.join(spec.input.key)}" if spec.input.key else ""
    names = [name for name, _ in spec.aggregates]
    more = f", {len(names) - _AGGREGATES} more" if len(names) > _AGGREGATES else ""
    return (
        f"{window_text(spec.window.to_dict())}{key}: {', '.join(names[:_AGGREGATES])}{more};"
        f" {spec.mode}"
    )


def fields(spec: Upstream) -> list[tuple[str, str]]:
    """A specification as names and values."""
    if isinstance(spec, JoinSpec):
        return [("join", brief(spec))]
    return [
        ("time", ", ".join(str(given.time) for given in spec.inputs)),
        ("key", ", ".join(spec.input.key) or "none"),
        ("watermark", "; ".join(_watermark(given.watermark) for given in spec.inputs)),
        ("window", window_text(spec.window.to_dict())),
        ("trigger", str(spec.firing)),
        ("mode", spec.mode),
        ("allowed lateness", _lateness(spec)),
        *((f"column {name}", short_repr(one)) for name, one in spec.aggregates),
    ]


def described_aggregate(spec: AggregateSpec) -> str:
    """An aggregation in words: what it reads, when panes fire, and when state is freed."""
    is_watched = spec.window.axis is Axis.EVENT_TIME
    lines = [f"Input: {input_text(given, is_watched=is_watched)}." for given in spec.inputs]
    lines.append(f"Windows: {window_text(spec.window.to_dict())}.")
    lines += _firing(spec)
    lines.append(f"Mode: {spec.mode}; {_MODES[spec.mode]}.")
    lines.append(_late(spec) if is_watched else "Late rows: none; no row is late on this axis.")
    columns = ", ".join(f"{name} = {short_repr(one)}" for name, one in spec.aggregates)
    lines.append(f"Columns: {columns}.")
    if spec.retention:
        bounds = ", ".join(retention_bounds(spec.retention))
        lines.append(f"Past windows can be read, within retention ({bounds}).")
    return "\n".join(lines)


def _watermark(mark: Watermarks) -> str:
    """Where a watermark comes from, with its spans."""
    spans = [
        f"{text} {format_duration(span)}"
        for name, text in _SPANS.items()
        if isinstance(span := getattr(mark, name, None), int)
    ]
    return ", ".join([str(mark.to_dict()["type"]), *spans])


_SPANS = {
    "disorder": "by",
    "lag": "by",
    "floor": "floor",
    "forget_after": "forgets writers after",
    "idle_after": "idle after",
    "align": "aligned within",
}
"""The durations of watermarks, and the words before them."""


def input_text(given: Input, *, is_watched: bool = True) -> str:
    """The columns of an input; `is_watched`: whether windows follow its watermark."""
    columns = [
        *([f"time {given.time}"] if given.time is not None else []),
        f"key {', '.join(given.key)}" if given.key else "no key",
        *([f"partitions by {given.partition}"] if given.partition is not None else []),
    ]
    mark = f"; watermark {_watermark(given.watermark)}" if is_watched else ""
    return f"{', '.join(columns)}{mark}"


def _firing(spec: AggregateSpec) -> list[str]:
    trigger = spec.firing
    if not isinstance(trigger, AfterWatermark | Policy):
        return [f"Panes: whenever the trigger `{trigger}` is ready."]
    lines = [f"On-time pane: when {_COMPLETION[str(spec.window.axis)]}."]
    full = trigger.full if isinstance(trigger, Policy) else None
    if full is not None:
        lines[0] = f"{lines[0][:-1]}, or when `{full}` is ready."
    if trigger.early is not None:
        lines.insert(0, f"Early panes: `{trigger.early}`, before the window is complete.")
    if spec.window.axis is not Axis.EVENT_TIME:
        return lines
    late = (
        "Late panes: none; later rows of a window are late."
        if trigger.late is None
        else f"Late panes: `{trigger.late}`, for rows that arrive after the on-time pane."
    )
    return [*lines, late]


def _late(spec: AggregateSpec) -> str:
    if spec.lateness == MAX:
        return "Late rows: accepted as long as retention keeps their window."
    return (
        f"Late rows: accepted up to {_lateness(spec)} behind the watermark, later ones go to"
        " `late`; a window is freed when the watermark is that far beyond its end."
    )


def retention_bounds(kept: Retention) -> list[str]:
    """The bounds of retention in words."""
    return [
        *([] if kept.time is None else [f"{format_duration(kept.time)} behind the newest"]),
        *([] if kept.windows is None else [f"{many(kept.windows, 'window')} of a key"]),
        *([] if kept.messages is None else [f"{many(kept.messages, 'message')} of a key"]),
        *([] if kept.bytes is None else [byte_size(kept.bytes)]),
    ]


def _lateness(spec: AggregateSpec) -> str:
    return "unlimited" if spec.lateness == MAX else format_duration(spec.lateness)

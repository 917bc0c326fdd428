"""A history as sentences: one line for each step, and what is still open."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidegate.instants import MAX, MIN, format_instant
from tidegate.operators.explain.facts import Explanation
from tidegate.operators.explain.window_text import until
from tidegate.operators.explain.wording import Wording, listed, verb
from tidegate.operators.history.facts import (
    Bounds,
    Contribution,
    Fired,
    History,
    Merged,
    Missed,
    OpenWindow,
    Step,
    Withdrawn,
)
from tidegate.units import many, rounded

_VALUES = 6
"""How many values of a pane a sentence shows."""
_LONGEST_VALUE = 60


def sentences(found: History) -> tuple[str, ...]:
    """The history as text."""
    texts = [_head(found)]
    texts += [f"{_place(found, step)}  {step_text(found, step)}" for step in found.steps]
    texts += [open_text(found, window) for window in found.open]
    if not found.steps and not found.open:
        texts.append(_nothing(found))
    return (*texts, *(f"Note: {note}" for note in found.notes))


def _nothing(found: History) -> str:
    """Why a history is empty: the key is unknown, or the window."""
    there = _range(found)
    text = f"No pane, no late row and no open window of this key was found{there}."
    if any(found.others):
        panes, late, held = found.others
        rows = [
            *([f"{many(panes, 'row')} of panes"] if panes else []),
            *([many(late, "late row")] if late else []),
            *([many(held, "open window")] if held else []),
        ]
        return f"{text} The key has {listed(rows)} elsewhere; omit the window to see them."
    return f"{text} The key has none elsewhere either." if there else text


_EARLY_1970 = 10**13
"""Instants before are what numbers of seconds or milliseconds look like as microseconds."""


def _range(found: History) -> str:
    """The range of a history; empty if it is that of all windows."""
    low, high = found.start, found.end
    if low is None and high is None:
        return ""
    bounds = (MIN if low is None else low, MAX if high is None else high)
    is_instant = low is not None and high == low + 1
    text = f"at {found.time(bounds[0])}" if is_instant else f"in {bounds_text(found, bounds)}"
    is_number = not found.ticks and low is not None and 0 < low < _EARLY_1970
    return f" {text}{' (numbers are microseconds since 1970)' if is_number else ''}"


def _head(found: History) -> str:
    key = ", ".join(
        f"{name}={'null' if value is None else value}" for name, value in found.key.items()
    )
    windows = found.windows
    panes = sum(step.kind == "pane" for step in found.steps)
    late = sum(step.kind == "late" for step in found.steps)
    where = many(len(windows), "window")
    if len(windows) == 1:
        text = bounds_text(found, windows[0])
        where = f"window {text}" if text.startswith("[") else text
    return (
        f"{f'Key {key}' if key else 'All rows'}, {where}: {many(panes, 'pane')},"
        f" {many(late, 'late row')}."
    )


def _place(found: History, step: Step) -> str:
    """When a step happened."""
    at = "" if step.at is None else format_instant(step.at)
    batch = "" if step.batch is None else f"{found.unit} {step.batch}"
    return ", ".join(part for part in (at, batch) if part) or "at an unknown time"


def step_text(found: History, step: Step) -> str:
    """What happened, as one sentence."""
    match step:
        case Contribution():
            place = _of(found, step)
            name = f"the {'later session' if step.is_early else 'window'}"
            return (
                f"{many(step.rows, 'row')} {verb(step.rows, 'arrives', 'arrive')};"
                f" {f'{name} {place}' if place else name} has {step.total:,}"
                f"{' of its rows' if step.is_early else ''}."
            )
        case Fired():
            return _fired(found, step)
        case Merged():
            return _merged(found, step)
        case Withdrawn():
            why = (
                "all of its rows were retracted"
                if step.into is None
                else f"its rows are now in {bounds_text(found, step.into)}"
            )
            return (
                f"Pane {step.pane} of {bounds_text(found, (step.start, step.end))} is retracted"
                f" ({values_text(step.values)}): {why}."
            )
        case Missed():
            return _missed(found, step)
    return ""


def _fired(found: History, step: Fired) -> str:
    timing = step.timing.replace("_", "-")
    rows = (
        ""
        if step.rows is None
        else ", with as many rows as before"
        if step.rows == 0 and step.changes
        else f", with {many(step.rows, 'new row')}"
        if step.rows >= 0
        else f", with {many(-step.rows, 'row')} less"
    )
    last = " It is the last pane." if step.is_last else ""
    former = " The former pane is retracted first." if step.retracts else ""
    place = _of(found, step)
    return (
        f"{timing.capitalize()} pane {step.pane}{f' of {place}' if place else ''}:"
        f" {cause_text(found, step)}{rows}. {_values(step)}{former}{last}".strip()
    )


def _of(found: History, step: Step) -> str:
    """The bounds of the window of a step; empty if the history is of this window only."""
    bounds = (step.start, step.end)
    return "" if found.windows == (bounds,) else bounds_text(found, bounds)


_COMPLETE = {
    "clock": "the clock has reached the end of the window",
    "offset": "all offsets of the window have arrived",
    "ordinal": "all messages of the window have arrived",
}
"""What completes a window off event time, by axis."""


def cause_text(found: History, step: Fired) -> str:
    """What made a pane fire."""
    mark = "" if step.watermark is None else found.time(step.watermark)
    at = f" at watermark {mark}" if mark else " before the first watermark"
    if found.axis != "event_time":
        at = ""
    trigger = f" `{step.trigger}`" if step.trigger else ""
    passed = "had passed" if step.timing == "late" else "has reached"
    texts = {
        "watermark": f"the watermark ({mark}) {passed} the end of the window",
        "early_trigger": f"the early trigger{trigger} fired{at}",
        "late_trigger": f"the late trigger{trigger} fired{at}",
        "trigger": f"the trigger{trigger} fired{at}",
        "full_size": f"the full-size trigger{trigger} fired{at}",
        "expired": f"the window expired{at} with rows that had not fired",
        "evicted": f"retention evicted the window{at}",
        "end_of_input": "the input ended",
        "complete": _COMPLETE.get(found.axis, ""),
    }
    return texts[step.cause]


def _values(step: Fired) -> str:
    if not step.changes:
        return "No value changes."
    shown = [
        f"{name} {_value(new)}" if old is None else f"{name} {_value(old)} → {_value(new)}"
        for name, (old, new) in step.changes.items()
    ]
    more = [f"{len(shown) - _VALUES} more"] if len(shown) > _VALUES else []
    return f"{', '.join([*shown[:_VALUES], *more])}."


def _merged(found: History, step: Merged) -> str:
    whole = bounds_text(found, (step.start, step.end))
    parts = " and ".join(bounds_text(found, part) for part in step.parts)
    if len(step.parts) == 1:
        return f"The session {parts} grows, and is now a part of {whole}."
    return f"The sessions {parts} merge, and are now parts of {whole}."


def _missed(found: History, step: Missed) -> str:
    if step.time is None:
        detail = f" ({step.detail})" if step.detail else ""
        return f"Late: a row without a readable time is in no window, as `{step.reason}`{detail}."
    time = f"the row of {found.time(step.time)}"
    far = ""
    if step.behind is not None and step.behind > 0:
        far = f" It is {_span(found, step.behind)} behind the watermark"
        far += f" ({found.time(step.watermark)})" if step.watermark is not None else ""
        if step.beyond:
            far += f", {_span(found, step.beyond)} more than the allowed lateness"
        far += "."
    detail = f" ({step.detail})" if step.detail else ""
    window = _missed_windows(found, step)
    return f"Late: {time} is not in {window}, as `{step.reason}`{detail}.{far}"


_NAMED = 2
"""How many windows that a row missed a sentence names."""


def _missed_windows(found: History, step: Missed) -> str:
    if len(step.windows) <= 1:
        return _of(found, step) or "the window"
    names = [bounds_text(found, bounds) for bounds in step.windows[:_NAMED]]
    more = len(step.windows) - _NAMED
    return ", ".join(names[:-1] if not more else names) + (
        f" or {many(more, 'other window')}" if more else f" or {names[-1]}"
    )


def open_text(found: History, window: OpenWindow) -> str:
    """What an open window holds and waits for."""
    name = f"Open: {bounds_text(found, (window.start, window.end))} has {many(window.rows, 'row')}"
    panes = f"{many(window.panes, 'pane')} so far" if window.panes else "no pane yet"
    new = window.pending and window.panes
    pending = f", with {many(window.pending, 'row')} since the last one" if new else ""
    if window.waits is None:
        over = (
            "until retention evicts it"
            if window.expiry is None
            else f"until the watermark reaches {found.time(window.expiry)}"
        )
        return f"{name} and {panes}{pending}; it is kept for corrections {over}."
    return f"{name} and {panes}{pending}; it waits {until(_words(found), window.waits)}."


def _words(found: History) -> Wording:
    """The wording of explanations, for the times of a history."""
    return Wording(
        Explanation(
            axis=found.axis,
            watermark=found.watermark,
            since=None,
            now=found.now or 0,
            newest=None,
            is_scheduled=found.unit == "batch",
            ticks=found.ticks,
            trigger=found.trigger,
            needs_all=found.needs_all,
        )
    )


def bounds_text(found: History, bounds: Bounds) -> str:
    """The bounds of a window."""
    if bounds == (MIN, MAX):
        return "the global window"
    return f"[{found.time(bounds[0])}, {found.time(bounds[1])})"


def values_text(values: Mapping[str, Any]) -> str:
    """The values of a pane."""
    shown = [f"{name} {_value(value)}" for name, value in values.items()]
    more = [f"{len(shown) - _VALUES} more"] if len(shown) > _VALUES else []
    return ", ".join([*shown[:_VALUES], *more])


def _value(value: Any) -> str:
    text = "null" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}..."


def _span(found: History, span: int) -> str:
    return many(span, "tick") if found.ticks else rounded(span)

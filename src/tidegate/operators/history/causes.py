"""The cause of a pane, from its columns and the specification of its pipeline.

A pane has the watermark and the clock at which it fired. Together with its timing, the end of its
window and the trigger, they determine what made it fire. Where several parts of a trigger may have
done so, the whole of them is the cause.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.instants import MIN, saturating_add
from tidegate.spec.operator import AggregateSpec
from tidegate.spec.triggers import (
    AfterCount,
    AfterDelay,
    AfterWatermark,
    Default,
    EventInterval,
    Every,
    EveryElement,
    Never,
    Policy,
    Trigger,
)
from tidegate.spec.windows import Axis


@dataclass(frozen=True, slots=True)
class PaneFacts:
    """What the cause of a pane is inferred from."""

    timing: str
    end: int
    watermark: int | None
    rows: int | None
    is_last: bool
    at: int | None = None
    """The clock."""
    is_short: bool = False
    """Whether the window counts messages, and has less than it can hold."""
    is_first: bool = False
    """Whether it fired before there was a watermark."""


def cause_of(pane: PaneFacts, spec: AggregateSpec | None) -> tuple[str, str]:
    """The cause of a pane, and the part of the trigger that fired, as text."""
    if spec is not None and spec.window.axis is not Axis.EVENT_TIME and pane.timing == "on_time":
        return ("end_of_input" if _is_cut(spec.window.axis, pane) else "complete"), ""
    if pane.watermark is None and pane.timing != "early" and not pane.is_first:
        return "end_of_input", ""
    if spec is None:
        return ("watermark" if pane.timing == "on_time" else "trigger"), ""
    early, full, late = _parts(spec.firing)
    if pane.timing == "early":
        return ("trigger" if early is spec.firing else "early_trigger"), _text(early, pane)
    watermark = MIN if pane.watermark is None else pane.watermark
    expires = saturating_add(pane.end, spec.lateness) <= watermark
    if pane.timing == "on_time":
        if watermark < pane.end:
            return ("full_size", _text(full, pane)) if full is not None else ("evicted", "")
        if _follows_watermark(spec.firing):
            return "watermark", ""
        return ("expired", "") if expires and pane.is_last else ("trigger", _text(late, pane))
    if late is None and _follows_watermark(spec.firing):
        # The first row of the window arrived when it was complete.
        return "watermark", ""
    if expires and pane.is_last:
        return "expired", ""
    return ("trigger" if late is spec.firing else "late_trigger"), _text(late, pane)


def _is_cut(axis: Axis, pane: PaneFacts) -> bool:
    """Whether a window off event time was incomplete when it fired: the input had ended."""
    match axis:
        case Axis.CLOCK:
            return pane.at is not None and pane.at < pane.end
        case Axis.OFFSET:
            return pane.watermark is None
    return pane.is_short


def _parts(trigger: Trigger) -> tuple[Trigger | None, Trigger | None, Trigger | None]:
    """The parts of a trigger before, at and after the completion of a window."""
    match trigger:
        case AfterWatermark(early=early, late=late):
            return early, None, late
        case Policy(early=early, full=full, late=late):
            return early, full, late
    return trigger, None, trigger


def _follows_watermark(trigger: Trigger) -> bool:
    """Whether the end of the window makes a part of the trigger ready."""
    return isinstance(trigger, AfterWatermark | Policy | Default) or any(
        _follows_watermark(part) for part in trigger.children
    )


def _text(part: Trigger | None, pane: PaneFacts) -> str:
    """The only leaf that may have fired, or the whole part."""
    if part is None:
        return ""
    possible = [leaf for leaf in _leaves(part) if _may_fire(leaf, pane)]
    return str(possible[0]) if len(possible) == 1 else str(part)


def _leaves(trigger: Trigger) -> list[Trigger]:
    if isinstance(trigger, AfterWatermark | Policy) or not trigger.children:
        return [trigger]
    return [leaf for part in trigger.children for leaf in _leaves(part)]


def _may_fire(leaf: Trigger, pane: PaneFacts) -> bool:
    match leaf:
        case Never():
            return False
        case AfterCount(n=n):
            return pane.rows is None or pane.rows >= n
        case EveryElement():
            return pane.rows is None or pane.rows >= 1
        case EventInterval():
            return pane.watermark is not None
        case AfterWatermark() | Policy() | Default():
            return pane.timing != "early"
        case AfterDelay() | Every():
            return True
    return True

"""What a specification requires of its state, and which shortcuts it allows."""

from __future__ import annotations

from tidegate.instants import MAX
from tidegate.kernel.windows.assigners import Aligned, build
from tidegate.operators.aggregate.aggregate_set import AggregateSet
from tidegate.spec.operator import AggregateSpec
from tidegate.spec.triggers import AfterWatermark, Default, Never, Policy, Trigger
from tidegate.spec.watermarks import PerKey
from tidegate.spec.windows import (
    Axis,
    ByDifference,
    Calendar,
    Cumulative,
    Custom,
    Hopping,
    Inherited,
    Session,
    Tumbling,
    longest,
)


def needs_messages(spec: AggregateSpec, aggregates: AggregateSet, *, retracts: bool) -> bool:
    """Whether panes are computed from the messages themselves, so that these are kept."""
    return (
        aggregates.full_state
        or spec.evictor is not None
        or spec.options.keep_messages
        or isinstance(spec.window, ByDifference)
        # A retraction may split a session, which only its messages can tell.
        or (retracts and (not aggregates.invertible or isinstance(spec.window, Session)))
    )


def message_reach(spec: AggregateSpec) -> int | None:
    """How far before the oldest event that may still come a message can matter; None: no bound."""
    match spec.window:
        case ByDifference(size=size):
            return size
        case Custom() | Inherited():
            # Their messages are stored at the end of their windows.
            return 0
        case _ if spec.options.drop_by == "event":
            return 0
        case Calendar() | Tumbling() | Hopping() | Cumulative():
            return longest(spec.window)
        case Session(gap=int(gap)) if spec.options.session_lateness == "own":
            # Otherwise a session may grow backwards, message by message, without bound.
            return gap
    return None


def window_lateness(spec: AggregateSpec) -> int:
    """How long windows accept messages after their end; `MAX`: until retention evicts them.

    Lateness applies to event time only. A window on offsets is complete when the offsets of all
    known partitions are past it; a new partition may still bring messages for it.
    """
    if isinstance(spec.window, Inherited) or spec.window.axis is Axis.EVENT_TIME:
        return spec.lateness
    has_partitions = spec.input.partition is not None or bool(spec.also)
    return MAX if spec.retention and spec.window.axis is Axis.OFFSET and has_partitions else 0


def takes_partials(spec: AggregateSpec, *, keeps_messages: bool) -> bool:
    """Whether rows may be aggregated before they are assigned to windows.

    That holds where nothing looks at a row before its window is complete, and where times alone
    decide which rows share a window.
    """
    plain = (
        spec.window.axis is not Axis.ORDINAL
        and not isinstance(spec.input.watermark, PerKey)
        and not keeps_messages
        and not spec.retention
    )
    by_time = isinstance(build(spec.window), Aligned) or (
        isinstance(spec.window, Session) and spec.window.gap is not None
    )
    return plain and by_time and _fires_by_watermark(spec.firing)


def _fires_by_watermark(trigger: Trigger) -> bool:
    """Whether elements do not change the trigger before the window is complete."""
    if isinstance(trigger, Policy):
        return trigger.early is None and trigger.full is None
    return isinstance(trigger, Default | Never) or (
        isinstance(trigger, AfterWatermark) and trigger.early is None
    )

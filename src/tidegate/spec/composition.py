"""Composition: what an operator passes to the next one, and which chains have an answer.

Operators exchange changes. For every key and window, an operator passes on the value of the window
so far, after a retraction of the value that it replaces; a window without rows is retracted only.
The mode of a specification decides what the readers of that operator see, not what it passes on.

Contract: what the last operator of a chain emits minus what it retracts is the result of the same
operators over the same rows as a batch. `composed` refuses chains for which that cannot hold.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeVar

from tidegate.errors import SpecError
from tidegate.instants import MAX, saturating_add
from tidegate.spec.aggregates import Count, First, Last, Max, Min, Sum
from tidegate.spec.evictors import EvictCount, EvictDelta
from tidegate.spec.join import LEFT, AsOf, JoinSpec, Upstream
from tidegate.spec.operator import AggregateSpec
from tidegate.spec.triggers import (
    AfterAll,
    AfterAny,
    AfterCount,
    AfterDelay,
    AfterEach,
    AfterWatermark,
    Default,
    EventInterval,
    Every,
    EveryElement,
    Never,
    OrFinally,
    Policy,
    Repeatedly,
    Trigger,
)
from tidegate.spec.windows import (
    Axis,
    ByDifference,
    Custom,
    Global,
    Inherited,
    Session,
    Window,
    longest,
)

Spec = TypeVar("Spec", bound=Upstream)
_PANE_ID = "pane_id"


class _End(IntEnum):
    """When a trigger may finish, after which it takes no more rows."""

    NEVER = 0
    WITH_THE_WINDOW = 1
    """Not before the watermark has reached the end of the window."""
    ANY_TIME = 2


@dataclass(frozen=True)
class Exchange:
    """What an operator passes to the next one."""

    spec: Upstream
    lateness: int
    """How long after the end of a window it may change; `MAX` is unlimited."""
    changes: bool
    """Whether rows may be retracted."""
    comes_late: bool
    """Whether rows may come after the watermark has passed the end of their window."""
    span: int | None
    """The greatest length of its windows; None without a bound."""
    is_endless: bool = False
    """Whether its windows have no end, so that its rows have no time."""
    times_by_arrival: bool = False
    """Whether the order of arrival decides the times of its panes."""
    is_fed: bool = False
    """Whether all of its inputs are fed by other operators."""

    def behind(self, column: str | None) -> int | None:
        """How far a time of its rows may lie behind its watermark; None without a bound."""
        back = self.reach(column)
        return None if back is None else int(saturating_add(self.lateness, back))

    def reach(self, column: str | None) -> int | None:
        """The same without the lateness of its rows."""
        if isinstance(self.spec, JoinSpec):
            return self._join_reach(self.spec, changes=self.changes)
        return self._pane_reach(self.spec, column)

    @staticmethod
    def _join_reach(spec: JoinSpec, *, changes: bool) -> int | None:
        """How far the times of pairs lie behind the watermark beside the lateness of their rows.

        The watermarks of a join allow for its bounds, but not for the rest of a window.
        """
        if not all(spec.is_timed(side) for side in (0, 1)):
            return None if changes else 0
        window = spec.window
        # The watermarks of session joins allow for sessions as long as these may get rows.
        if isinstance(window, Window) and not isinstance(window, Global | Session):
            return longest(window)
        return 0

    def _pane_reach(self, spec: AggregateSpec, column: str | None) -> int | None:
        """How far a time of panes lies before the end of their window."""
        if self.is_endless:
            return None
        if column in ("window_end", "time"):
            return 0
        aggregate = dict(spec.aggregates).get(column or "")
        is_inside = (
            isinstance(aggregate, Min | Max | First | Last) and aggregate.column == spec.input.time
        )
        if isinstance(spec.window, Session) and isinstance(aggregate, Max | Last) and is_inside:
            # The newest event of a session is a gap before its end.
            return spec.window.gap if aggregate.where is None and spec.evictor is None else None
        return self.span if is_inside or column == "window_start" else None


def exchanged(spec: Spec) -> Spec:
    """The specification of an operator that feeds another one: it retracts what it replaces."""
    if isinstance(spec, AggregateSpec) and spec.mode != "retracting":
        return dataclasses.replace(spec, mode="retracting")
    return spec


def composed(spec: Upstream, upstreams: Mapping[int, Exchange]) -> Exchange:
    """What an operator passes on whose inputs, by ordinal, are fed by others.

    Raises `SpecError` where the chain has no answer.
    """
    for ordinal, upstream in upstreams.items():
        _check_sessions(upstream)
        if upstream.changes:
            _check_input(spec, ordinal)
        if isinstance(spec, AggregateSpec):
            _check_trigger(spec, ordinal, upstream)
        if upstream.times_by_arrival and _goes_by_time(spec, ordinal):
            raise SpecError(
                "the order of arrival decides the times of the upstream's panes, and so the windows"
                " here: `timestamp` sees the on-time rows since the last pane. Hint:"
                " timestamp='end_of_window', or as the time an aggregate, such as"
                f" tg.min({upstream.spec.inputs[0].time!r})"
            )
    changes = any(upstream.changes for upstream in upstreams.values())
    if isinstance(spec, JoinSpec):
        fed = [ordinal for ordinal, upstream in upstreams.items() if upstream.changes]
        if not all(spec.is_timed(ordinal) for ordinal in fed):
            raise _refusal(
                "a join by offsets counts rows that are retracted later",
                "join within times: tg.within(...)",
            )
        for ordinal in fed:
            _check_as_of(spec, ordinal, upstreams[ordinal].spec)
        lateness = _lateness(spec, upstreams)
        # An unmatched row that has been emitted finds a partner only among late rows.
        comes_late = changes or isinstance(spec.window, AsOf | Session)
        return Exchange(
            spec, lateness, changes or _retracts(spec), comes_late or bool(lateness), None
        )
    if changes:
        _check_window(spec)
        _check_discarding(spec)
    inherited = [upstream.span for upstream in upstreams.values()]
    span = longest(spec.window)
    if isinstance(spec.window, Inherited) and inherited and None not in inherited:
        span = max(length for length in inherited if length is not None)
    lateness = _lateness(spec, upstreams)
    is_fed = len(upstreams) == len(spec.inputs)
    is_final = not (changes or fires_again(spec.firing))
    found = Exchange(
        spec,
        lateness,
        fires_again(spec.firing),
        _comes_late(spec, upstreams, is_fed=is_fed),
        span,
        isinstance(spec.window, Global)
        or (
            isinstance(spec.window, Inherited)
            and any(upstream.is_endless for upstream in upstreams.values())
        ),
        spec.options.timestamp != "end_of_window"
        and not (is_final and _takes_only_on_time(spec, lateness)),
        is_fed,
    )
    if upstreams:
        _check_sessions(found)
    return found


def _comes_late(spec: AggregateSpec, upstreams: Mapping[int, Exchange], *, is_fed: bool) -> bool:
    """Whether rows may come after the end of their window: late ones, those of a custom window,
    and an event at the end of a session that it extends.
    """
    return (
        isinstance(spec.window, Custom)
        or _fires_before_its_last_event(spec)
        or (bool(spec.lateness) and not is_fed)
        or any(
            upstream.comes_late or _is_behind(spec, ordinal, upstream)
            for ordinal, upstream in upstreams.items()
        )
    )


def _fires_before_its_last_event(spec: AggregateSpec) -> bool:
    """Whether sessions fire with their end, where an event extends them; they expire after it."""
    if not isinstance(spec.window, Session) or not spec.window.reaches_end:
        return False
    return not isinstance(spec.firing, Never) or spec.options.drop_by != "event"


def _is_behind(spec: AggregateSpec, ordinal: int, upstream: Exchange) -> bool:
    """Whether rows of an upstream are behind its watermark by the time that windows go by."""
    is_inherited = isinstance(spec.window, Inherited)
    return not is_inherited and bool(upstream.reach(spec.inputs[ordinal].time))


def _takes_only_on_time(spec: AggregateSpec, lateness: int) -> bool:
    """Whether all rows of a window are on time; those of inherited windows are."""
    if isinstance(spec.window, Inherited):
        return True
    return not lateness and spec.options.drop_by == "event"


def _goes_by_time(spec: Upstream, ordinal: int) -> bool:
    """Whether the column `time` of the panes of an input decides their windows or partners."""
    if spec.inputs[ordinal].time != "time" or not _is_timed(spec, ordinal):
        return False
    return isinstance(spec, JoinSpec) or not isinstance(spec.window, Inherited)


def _lateness(spec: Upstream, upstreams: Mapping[int, Exchange]) -> int:
    """The lateness of an operator: its own, or that of the changes of its upstreams."""
    found = spec.lateness
    for ordinal, upstream in upstreams.items():
        if isinstance(spec, AggregateSpec) and isinstance(spec.window, Inherited):
            found = max(found, upstream.lateness)
        elif _is_timed(spec, ordinal):
            time = spec.inputs[ordinal].time
            behind = upstream.behind(time)
            if behind is None:
                raise SpecError(
                    f"rows of the upstream may lie behind its watermark on `{time}` without a"
                    f" bound: {_unbounded(upstream, time)}"
                )
            found = max(found, behind)
    return found


def _is_timed(spec: Upstream, ordinal: int) -> bool:
    if isinstance(spec, JoinSpec):
        return spec.is_timed(ordinal)
    return spec.window.axis is Axis.EVENT_TIME


def _unbounded(upstream: Exchange, time: str | None) -> str:
    """Why times of an upstream lie behind its watermark without a bound, and what to do."""
    spec = upstream.spec
    if isinstance(spec, JoinSpec):
        return f"it is a join in {spec.window!r}. Hint: join within times: tg.within(...)"
    if upstream.is_endless:
        return "its windows have no end. Hint: inherit them, or window the upstream by time"
    if time == "window_start":
        return "its windows have no greatest length. Hint: time='window_end'"
    return "it is no time of its windows. Hint: time='time', 'window_start' or 'window_end'"


def _retracts(spec: JoinSpec) -> bool:
    """Whether a join retracts rows although its inputs do not."""
    pads = any(spec.pads(side) for side in (0, 1)) and spec.padding != "final"
    return pads or isinstance(spec.window, AsOf | Session)


# Triggers


def fires_again(trigger: Trigger) -> bool:
    """Whether a window may fire more than once."""
    match trigger:
        case AfterWatermark(early=early, late=late) | Policy(early=early, late=late):
            return early is not None or late is not None
        case AfterCount() | AfterDelay() | AfterAll() | AfterAny() | Never():
            return False
        case AfterEach(triggers=triggers):
            return len(triggers) > 1 or fires_again(triggers[0])
    return True


def _end_of(trigger: Trigger) -> _End:
    match trigger:
        case Policy(late=None, full=Trigger()):
            return _End.ANY_TIME
        case AfterWatermark(late=late) | Policy(late=late):
            return _End.WITH_THE_WINDOW if late is None else _End.NEVER
        case Repeatedly() | EveryElement() | Every() | EventInterval() | Never() | Default():
            return _End.NEVER
        case AfterEach(triggers=triggers):
            # The sequence ends with its last part, and gets there if all others end.
            return _latest(*triggers)
        case OrFinally(main=main, until=until):
            ready = _End.NEVER if isinstance(until, Never) else _ready_with(until)
            return max(_end_of(main), ready)
        case AfterAll(triggers=triggers):
            return min(_ready_with(part) for part in triggers)
    return _End.ANY_TIME


def _ready_with(trigger: Trigger) -> _End:
    """Whether a trigger is not ready before the end of the window."""
    match trigger:
        case AfterWatermark(early=None) | Policy(early=None, full=None) | Default():
            return _End.WITH_THE_WINDOW
    return _End.ANY_TIME


def _latest(*triggers: Trigger) -> _End:
    """When a sequence of triggers ends."""
    ends = [_end_of(trigger) for trigger in triggers]
    return _End.NEVER if _End.NEVER in ends else min(ends)


def _check_trigger(spec: AggregateSpec, ordinal: int, upstream: Exchange) -> None:
    """Refuse a trigger that may finish before the last row or correction of the upstream."""
    trigger, time = spec.firing, spec.inputs[ordinal].time
    end = _end_of(trigger)
    is_behind = _is_behind(spec, ordinal, upstream)
    if end is _End.WITH_THE_WINDOW and is_behind and not upstream.comes_late:
        raise SpecError(
            f"{trigger} takes no more rows after the end of the window, but rows of the upstream"
            f" are behind its watermark by their `{time}`. Hint: time='window_end', or add late"
            " panes here, such as late=tg.after_count(1)"
        )
    if end is _End.WITH_THE_WINDOW and upstream.comes_late:
        raise SpecError(
            f"{trigger} takes no more rows after the end of the window, when the upstream may still"
            " emit or correct rows of late events, which would be missing here. Hint: add late"
            " panes here, such as late=tg.after_count(1), or leave out lateness upstream:"
            " allow_lateness(0)"
        )
    if end is _End.ANY_TIME:
        raise SpecError(
            f"{trigger} finishes, and takes no more rows of the upstream then, so that the result"
            f" would depend on the order of arrival. Hint: {_without_end(trigger)}"
        )


def _without_end(trigger: Trigger) -> str:
    """What to do instead of a trigger that finishes."""
    if isinstance(trigger, Policy):
        return "leave `late_arrival()` out, or give it a trigger"
    return f"tg.repeatedly(...), or tg.after_watermark(early={trigger}, late=...)"


def _check_sessions(operator: Exchange) -> None:
    """Refuse sessions of a chain that are over before the last row that they could get."""
    spec = operator.spec
    if not isinstance(spec, AggregateSpec) or not isinstance(spec.window, Session):
        return
    if spec.options.drop_by == "window" and not operator.is_fed and spec.lateness != MAX:
        raise SpecError(
            "with drop_by='window' a session takes rows that are too late for the sessions before"
            " it, and opens another one instead of extending them, so that the result would depend"
            " on the order of arrival. Hint: drop_by='event'"
        )
    end = _end_of(spec.firing)
    if end is _End.NEVER or (end is _End.WITH_THE_WINDOW and not operator.comes_late):
        return
    hint = "add late panes to the sessions, such as late=tg.after_count(1)"
    if end is _End.ANY_TIME:
        hint = _without_end(spec.firing)
    elif spec.lateness:
        hint = f"{hint}, or leave out lateness: allow_lateness(0)"
    raise SpecError(
        f"{spec.firing} closes sessions, and a row that comes for a closed session opens another"
        f" one, so that the result would depend on the order of arrival. Hint: {hint}"
    )


# Windows, inputs and modes


def _check_window(spec: AggregateSpec) -> None:
    """Refuse windows and evictors whose content depends on rows that are retracted."""
    axis, event_time = spec.window.axis, "use a window on event time"
    if axis is Axis.CLOCK:
        raise _refusal("the clock at which a correction arrives decides its window", event_time)
    if not axis.is_time:
        raise _refusal(f"a window on {axis} counts rows that are retracted later", event_time)
    if isinstance(spec.window, ByDifference):
        raise _refusal(
            "windows by difference begin and end at rows, which may be retracted",
            "tg.hopping(...)",
        )
    if isinstance(spec.evictor, EvictCount | EvictDelta):
        raise _refusal(
            "the order of arrival decides what is evicted, and a correction arrives anew",
            "tg.evict_time(...), which goes by the times of rows",
        )
    if spec.evictor is not None and spec.evictor.after:
        raise _refusal(
            "an evictor after the function removes rows with a pane that is replaced later",
            "evict before the function",
        )


def _check_input(spec: Upstream, ordinal: int) -> None:
    """Refuse columns by which a row and its correction would be duplicates."""
    given = spec.inputs[ordinal]
    if given.offset is not None:
        raise _refusal(
            f"rows are recognised by the offset `{given.offset}`, but corrections have none",
            "leave `offset` out",
        )
    if given.id is not None and given.id != _PANE_ID:
        raise _refusal(
            f"a row and its retraction have the same id `{given.id}`",
            f"leave `id` out, or use id='{_PANE_ID}'",
        )


def _check_as_of(spec: JoinSpec, ordinal: int, upstream: Upstream) -> None:
    """Refuse an as-of join whose right rows have equal times by their windows."""
    side = spec.side_of(ordinal)
    if not isinstance(spec.window, AsOf) or side == LEFT or isinstance(upstream, JoinSpec):
        return
    if isinstance(upstream.window, Session | Custom):
        return
    others = [name for name in upstream.input.key if name not in spec.fields(side)]
    if others:
        names = ", ".join(f"`{name}`" for name in others)
        raise _refusal(
            f"panes of one window have one time, and of those with other {names} the last to arrive"
            " counts",
            f"name {names} in `on`, or aggregate without",
        )


def _check_discarding(spec: AggregateSpec) -> None:
    """Refuse discarding where panes cannot hold the change since the last pane."""
    if spec.mode != "discarding":
        return
    rest = "accumulating() or retracting()"
    for name, aggregate in spec.aggregates:
        if not isinstance(aggregate, Count | Sum):
            raise _refusal(
                f"a discarded pane holds the change since the last pane, which `{name}` has not;"
                " only counts and sums do",
                rest,
            )
    if isinstance(spec.window, Session):
        raise _refusal("a session that is split has no change since its last pane", rest)
    if spec.evictor is not None or spec.options.keep_messages:
        raise _refusal("discarded panes are not computed from messages", rest)


def _refusal(reason: str, hint: str) -> SpecError:
    return SpecError(
        f"the upstream changes rows that it has passed on: {reason}, so that the result would"
        f" depend on the order of arrival. Hint: {hint}"
    )

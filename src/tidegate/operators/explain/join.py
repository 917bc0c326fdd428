"""Explanations of a join: its specification in words, and what its output waits for."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from tidegate.instants import MAX, MIN, format_duration, saturating_add
from tidegate.kernel.storage.layout import LARGE_WINDOW
from tidegate.operators.explain.brief import retention_bounds
from tidegate.operators.explain.explanation import explain_inputs
from tidegate.operators.explain.facts import Explanation, time_text
from tidegate.operators.explain.wording import verb
from tidegate.operators.join.operator import WindowedJoin
from tidegate.operators.join.side import layout_of
from tidegate.operators.progress import late_by_reason
from tidegate.spec.join import LEFT, RIGHT, SIDES, AsOf, JoinSpec, Rows, Within
from tidegate.spec.windows import (
    ByDifference,
    Calendar,
    Cumulative,
    Global,
    Hopping,
    Session,
    Tumbling,
    Window,
)
from tidegate.units import many

_KINDS = {
    "inner": "an inner join: pairs only",
    "left": "a left join: left rows without a partner come out padded",
    "right": "a right join: right rows without a partner come out padded",
    "full": "a full join: rows of both sides without a partner come out padded",
    "semi": "a semi join: left rows with a partner come out, once",
    "anti": "an anti join: left rows without a partner come out",
}


def described(spec: JoinSpec, sizes: tuple[bool, bool] | None = None) -> str:
    """The join in words; `sizes`: by side, whether its window is large, if that is known."""
    lines = [
        f"Kind: {_KINDS[spec.how]}.",
        f"Equal fields: {_fields(spec)}.",
        f"Window: {_window(spec)}.",
    ]
    if spec.where is not None:
        lines.append(
            f"Condition: {spec.to_dict()['where']}; a pair for which it is unknown does not meet,"
            " one for which it fails goes to `late`."
        )
    lines += [f"{name.capitalize()} rows: {_freed(spec, side)}" for side, name in enumerate(SIDES)]
    lines += _padding(spec)
    lines += [
        f"Messages of the {name} side: {_kept(spec, large=None if sizes is None else sizes[side])}"
        for side, name in enumerate(SIDES)
    ]
    lines.append(f"Watermarks of the output: {_promises(spec)}.")
    lines.append(f"Output: {_when(spec)}.")
    return "\n".join(lines)


def _fields(spec: JoinSpec) -> str:
    if not spec.on:
        return "none; every row looks at all rows of the other side in its window"
    return (
        ", ".join(a if a == b else f"left {a} = right {b}" for a, b in spec.on)
        + "; a null equals nothing"
    )


def _window(spec: JoinSpec) -> str:
    match spec.window:
        case tuple():
            return " and ".join(_bound(spec, bound) for bound in spec.window)
        case Rows() as rows:
            return f"messages, left {_last(rows, LEFT)} and right {_last(rows, RIGHT)}"
        case AsOf(tolerance=tolerance, strict=strict):
            most = "" if tolerance is None else f", at most {format_duration(tolerance)} older"
            return (
                f"as of: the latest right row {'before' if strict else 'at or before'} the left"
                f" one{most}"
            )
        case Session(gap=gap):
            pairs = "as sessions merge, pairs that become members of one come out, once"
            by = ", ".join(a if a == b else f"left {a} = right {b}" for a, b in spec.session_on)
            of = "sessions" if spec.session_on == spec.on else f"sessions of {by}"
            return f"{of} over both sides with a gap of {_size(spec, gap or 0)}; {pairs}"
        case Window():
            return _shared(spec, spec.window)
    return repr(spec.window)


def _last(rows: Rows, side: int) -> str:
    """The window of a side that new rows of the other side look into."""
    size, span = rows.size(side), rows.span(side)
    if span is not None:
        return f"those less than {format_duration(span)} older than the row that looks"
    return "all that retention keeps" if size is None else f"the last {size:,} by offset"


def _shared(spec: JoinSpec, window: Window) -> str:
    """Windows of a grid that both rows are in."""
    first = "a pair comes out once, with the first that holds both"
    match window:
        case Tumbling(size=size):
            return f"tumbling windows of {_size(spec, size)} that both rows are in"
        case Hopping(size=size, slide=slide):
            return f"hopping windows of {_size(spec, size)} every {_size(spec, slide)}; {first}"
        case Cumulative(size=size, step=step):
            return (
                f"cumulative windows up to {_size(spec, size)} in steps of {_size(spec, step)};"
                f" {first}"
            )
        case ByDifference(size=size):
            return (
                f"sliding windows of {_size(spec, size)} that begin or end at a row; a pair comes"
                " out once, with the window that ends with its later row"
            )
        case Calendar(unit=unit, n=n, zone=zone):
            length = unit if n == 1 else f"{n} {unit}s"
            return f"calendar windows of a {length} in {zone} that both rows are in"
        case Global():
            return "one window over everything"
    return repr(window)


def _size(spec: JoinSpec, size: int) -> str:
    """A size on the axis of the window: a duration, or a number of messages."""
    return format_duration(size) if spec.is_timed(LEFT) else many(size, "message")


def _bound(spec: JoinSpec, bound: Within) -> str:
    left, right = (
        f"{name}.{bound.column(side) or spec.side(side).time}" for side, name in enumerate(SIDES)
    )
    low = None if bound.before is None else _shifted(right, -bound.before)
    high = None if bound.after is None else _shifted(right, bound.after)
    ends = (
        ("[" if bound.closed in ("both", "left") else "("),
        ("]" if bound.closed in ("both", "right") else ")"),
    )
    return f"{left} in {ends[0]}{low or '-inf'}, {high or '+inf'}{ends[1]}"


def _shifted(name: str, step: int) -> str:
    return name if step == 0 else f"{name} {'+' if step > 0 else '-'} {format_duration(abs(step))}"


_UNBOUNDED = "no bound frees them; give `retain(...)` to bound the state"


def _freed(spec: JoinSpec, side: int) -> str:
    """When rows of a side are dropped, and with retention how long they match."""
    bounds = retention_bounds(spec.retention)
    if not bounds:
        return f"{_useful(spec, side)}."
    kept = f"kept within retention ({', '.join(bounds)})"
    useful = _useful(spec, side).removeprefix("kept ")
    if not useful.startswith("until") or (spec.lateness == MAX and spec.is_timed(side)):
        return f"{kept}."
    return f"{kept}, matched {useful}."


def _useful(spec: JoinSpec, side: int) -> str:
    """Until when rows of a side can match."""
    other, late = SIDES[1 - side], format_duration(spec.lateness)
    match spec.window:
        case Rows():
            size, span = spec.window.size(side), spec.window.span(side)
            if span is not None:
                late = format_duration(int(saturating_add(span, spec.lateness)))
                return f"kept until the {other} watermark is {late} beyond them"
            return (
                f"kept until they leave the last {size:,}" if size is not None else "kept for ever"
            )
        case AsOf():
            if side == LEFT:
                return f"kept until the right watermark is {late} beyond them"
            reach = (
                f", or is older than {format_duration(spec.window.tolerance)} before that"
                if spec.window.tolerance is not None
                else ""
            )
            return f"kept until a later one of the same key is {late} behind both watermarks{reach}"
        case Global():
            return _UNBOUNDED
        case Window() if not spec.is_timed(side):
            end = "session" if isinstance(spec.window, Session) else "last window"
            sides = "both sides are" if isinstance(spec.window, Session) else f"the {other} side is"
            return f"kept until all partitions of {sides} beyond the end of their {end}"
        case Session():
            return f"kept until both watermarks are {late} beyond the end of their session"
        case tuple():
            ends = [bound.before if side == LEFT else bound.after for bound in spec.window]
            known = [end for end in ends if end is not None]
            if not known:
                return _UNBOUNDED
            late = format_duration(int(saturating_add(min(known), spec.lateness)))
            return f"kept until the {other} watermark is {late} beyond them"
    return f"kept until the {other} watermark is {late} beyond the end of their last window"


def _padding(spec: JoinSpec) -> list[str]:
    if isinstance(spec.window, AsOf):
        when = {"early": "at once, and corrected", "final": "when it can change no more"}.get(
            spec.padding, "when no better row is expected"
        )
        return [f"Answers: given {when}."]
    if not any(spec.pads(side) for side in (LEFT, RIGHT)):
        return []
    text = {
        "complete": (
            "when the watermark says that no partner is expected; taken back if a late one comes"
        ),
        "early": "at once, and taken back when a partner comes",
        "final": "when no partner could be taken any more; nothing is taken back",
    }
    return [f"Rows without a partner: {text[spec.padding]}."]


def _kept(spec: JoinSpec, *, large: bool | None) -> str:
    if spec.layout is not None:
        return (
            f"{layout_of(spec, is_large=True)} (asked for with"
            f" `keyed_message_store({', '.join(spec.layout)})`)."
        )
    small, big = layout_of(spec, is_large=False), layout_of(spec, is_large=True)
    if small == big:
        why = (
            "there are no equal fields"
            if not spec.on
            else "no condition on time narrows what a row looks at"
        )
        return f"{small} ({why})."
    if large is None:
        return f"{small}; {big} once there are more than {LARGE_WINDOW:,} of them."
    return (
        f"{big if large else small} (there are {'more than' if large else 'at most'}"
        f" {LARGE_WINDOW:,} of them)."
    )


def _promises(spec: JoinSpec) -> str:
    names = [spec.side(side).time for side in (LEFT, RIGHT)]
    if not spec.is_timed(LEFT):
        return (
            "that of the side, but none above the times of the rows that it holds"
            if any(names)
            else "none"
        )
    match spec.window:
        case tuple():
            return ", ".join(_promise(spec, side) for side in (LEFT, RIGHT))
        case Session():
            return "the lesser of both, down to the start of the first session that is open"
        case Global():
            span = spec.retention.time
            return (
                "none before the end, because a row of any age may get a partner"
                if span is None
                else f"that of the side, but at most {format_duration(span)} behind its newest row"
            )
        case Window():
            return "the lesser of both, down to the start of the first window that is open"
    return "the lesser of both"


def _promise(spec: JoinSpec, side: int) -> str:
    own, other = SIDES[side], SIDES[1 - side]
    reach = [bound.before if side == LEFT else bound.after for bound in spec.bounds]
    known = [end for end in reach if end is not None]
    if not known:
        return f"{own} none (no bound on that end)"
    return f"{own} min(W_{own}, {_shifted(f'W_{other}', -min(known))})"


def _when(spec: JoinSpec) -> str:
    if spec.on_time_period is None and spec.late_period is None:
        return "as soon as a row comes"
    words = [
        f"{name} every {format_duration(period)}"
        for name, period in (("on time", spec.on_time_period), ("late", spec.late_period))
        if period
    ]
    return f"held back by the clock: {', '.join(words)}"


def explain_join(operator: WindowedJoin, **facts: Any) -> Explanation:
    """What a join waits for, with facts of the runtime; the join does not change."""
    progress = operator.progress
    counters = {
        name: progress.counters[name]
        for name in ("events", "duplicates", "future", "unreadable", "late_rows", "markers")
    }
    panes = {
        f"panes_{name}": progress.counters[f"panes_{name}"] for name in ("early", "on_time", "late")
    }
    names = operator.spec.input_names
    found = explain_inputs(
        operator.watermark_tracker,
        operator.key,
        ticks=operator.ticks,
        counters={**counters, **panes, **operator.watermark_tracker.stats()},
        has_upstream=operator.is_fed,
        names=names if len(set(names)) == len(names) else (),
        watermark=None if progress.watermark == MIN else progress.watermark,
        newest=None if progress.newest == MIN else progress.newest,
        late=late_by_reason(progress.counters),
        failure=operator.watermark_tracker.failure,
        future_tolerance=operator.spec.options.future_tolerance,
        future_reference=operator.spec.options.future_reference,
        **facts,
    )
    return dataclasses.replace(found, sentences=(*found.sentences, *held_rows([operator])))


def held_rows(shards: Sequence[WindowedJoin]) -> list[str]:
    """The rows that a join holds, in all of its shards, and what they wait for."""
    sentences = []
    for sides in zip(*(shard.sides for shard in shards), strict=True):
        watermark = max(side.watermark for side in sides)
        mark = (
            "has no watermark yet"
            if watermark == MIN
            else f"is at {time_text(watermark, ticks=shards[0].ticks)}"
        )
        rows = sum(len(side.buffer) for side in sides)
        side = SIDES[sides[0].number]
        sentences.append(f"The {side} side {mark} and holds {many(rows, 'row')}.")
    for number, (own, other) in enumerate((SIDES, SIDES[::-1])):
        pending = sum(len(shard.matching.pending(number).at) for shard in shards)
        if pending:
            sentences.append(
                f"{many(pending, f'{own} row')} without a partner"
                f" {verb(pending, 'waits', 'wait')} for the {other} watermark before"
                f" {verb(pending, 'it comes', 'they come')} out alone."
            )
    waiting = sum(shard.emitter.waiting for shard in shards)
    if waiting:
        sentences.append(
            f"{many(waiting, 'row')} of the output {verb(waiting, 'waits', 'wait')} for the clock."
        )
    unnamed = sum(shard.emitter.unnamed for shard in shards)
    if unnamed:
        sentences.append(
            f"{many(unnamed, 'row')} of the output {verb(unnamed, 'waits', 'wait')} until the"
            " columns of the other side are known. Hint: give `schemas`."
        )
    return sentences

"""Random configurations and histories for the windowed aggregate, small enough to be read when one
of them fails.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from support.reference import Config
from tidegate.instants import MAX
from tidegate.spec import triggers as t
from tidegate.spec.windows import (
    Axis,
    ByDifference,
    Cumulative,
    Global,
    Hopping,
    Session,
    Tumbling,
    Window,
)

Row = dict[str, Any]
KEYS = ("a", "b", None)


@dataclass(frozen=True)
class Step:
    """One call: `add` with rows, `watermark` or `timeout` with an instant, `restart` with
    nothing.
    """

    verb: str
    value: Any = None


@dataclass(frozen=True)
class Case:
    """A configuration and what happens to it; the end of input comes after the last step."""

    config: Config
    steps: tuple[Step, ...]


sizes = st.integers(1, 12)
axes = st.sampled_from([Axis.EVENT_TIME] * 5 + [Axis.CLOCK, Axis.OFFSET, Axis.ORDINAL])


@st.composite
def aligned_windows(draw: st.DrawFn, axis: Axis) -> Window:
    size, offset = draw(sizes), draw(st.integers(-5, 5))
    kind = draw(st.sampled_from(["tumbling", "tumbling", "hopping", "cumulative", "global"]))
    if kind == "hopping":
        return Hopping(size, draw(st.integers(max(1, size // 4), 14)), offset, axis)
    if kind == "cumulative":
        return Cumulative(size, draw(st.integers(max(1, size // 4), size)), offset, axis)
    return Global(axis) if kind == "global" else Tumbling(size, offset, axis)


@st.composite
def sessions(draw: st.DrawFn, axis: Axis) -> Session:
    touch = draw(st.sampled_from(["separate", "merge"])) if axis.is_time else "separate"
    # On the clock a gap of zero is over with the message itself; the reference looks at the clock
    # only when it moves.
    varies = axis is not Axis.CLOCK and draw(st.booleans())
    return (
        Session(gap_column="gap", touch=touch, axis=axis)
        if varies
        else Session(draw(st.integers(1, 8)), touch=touch, axis=axis)
    )


@st.composite
def windows(draw: st.DrawFn) -> Window:
    axis = draw(axes)
    kind = draw(st.sampled_from(["aligned", "aligned", "session", "by_difference"]))
    if kind == "session" and axis is not Axis.ORDINAL:
        return draw(sessions(axis))
    return (
        ByDifference(draw(st.integers(1, 6)), axis)
        if kind == "by_difference"
        else draw(aligned_windows(axis))
    )


once = st.one_of(st.integers(1, 4).map(t.AfterCount), st.integers(0, 8).map(t.AfterDelay))
leaves = st.one_of(
    once,
    st.just(t.EveryElement()),
    st.builds(t.Every, st.integers(1, 8), st.booleans()),
    st.integers(1, 8).map(t.EventInterval),
    st.just(t.Never()),
    st.just(t.Default()),
    st.just(t.AfterWatermark()),
)


def _larger(inner: st.SearchStrategy[t.Trigger]) -> st.SearchStrategy[t.Trigger]:
    several = st.lists(inner, min_size=1, max_size=3)
    part = st.none() | inner
    return st.one_of(
        st.builds(t.AfterWatermark, part, part),
        st.builds(t.Policy, part, part, part),
        st.builds(t.Repeatedly, inner),
        several.map(lambda parts: t.AfterEach(*parts)),
        several.map(lambda parts: t.AfterAll(*parts)),
        several.map(lambda parts: t.AfterAny(*parts)),
        st.builds(t.OrFinally, inner, inner),
    )


plain = st.builds(t.AfterWatermark, st.none() | once, st.none() | once) | st.builds(
    t.Policy, st.none() | once, st.none() | once, once
)
triggers = st.one_of(st.none(), plain, plain, leaves, st.recursive(leaves, _larger, max_leaves=5))


def walk(trigger: t.Trigger | None) -> list[t.Trigger]:
    """A trigger and all its parts."""
    return (
        []
        if trigger is None
        else [trigger, *(part for child in trigger.children for part in walk(child))]
    )


@st.composite
def configs(draw: st.DrawFn, *, retention: bool = True) -> Config:
    window = draw(windows())
    mode = draw(st.sampled_from(["accumulating", "discarding", "retracting", "retracting"]))
    identity = (
        "offset" if window.axis is Axis.OFFSET else draw(st.sampled_from(["", "", "offset", "id"]))
    )
    rarely = draw(st.integers(0, 5)) if retention else 0
    # Retention by number is a matter of single messages, and windows by difference appear with
    # messages that came before. Sessions of one batch are merged before a closed one is looked for,
    # and windows by difference of one batch appear together; the reference takes both message by
    # message.
    by_number = rarely in (2, 3) and not isinstance(window, ByDifference)
    return Config(
        window,
        draw(triggers),
        mode,
        draw(st.sampled_from([0, 0, 3, 10, 30, MAX])),
        key=draw(st.sampled_from([(), ("k",), ("k",)])),
        id="id" if identity == "id" and window.axis is Axis.EVENT_TIME else None,
        offset="offset" if identity == "offset" else None,
        partition=(
            "partition"
            if identity == "offset" and window.axis is not Axis.OFFSET and draw(st.booleans())
            else None
        ),
        watermark=draw(st.sampled_from(["explicit", "explicit", "implied"])),
        drop_by=draw(st.sampled_from(["event", "event", "window"])),
        session_lateness=draw(st.sampled_from(["own", "merged"])) if identity != "id" else "own",
        future=draw(st.sampled_from(["process", "reject"])),
        future_tolerance=draw(st.sampled_from([MAX // 2, MAX // 2, 5, 20])),
        future_reference=draw(st.sampled_from(["clock", "watermark"])),
        fire_only_updated=mode != "discarding" and draw(st.integers(0, 3)) == 0,
        aggregates=draw(st.sampled_from([("n", "total"), ("total",), ("n", "total", "values")])),
        on_time=draw(st.sampled_from(["if_nonempty", "if_nonempty", "if_updated", "always"])),
        closing=draw(st.sampled_from(["if_nonempty", "if_nonempty", "always", "never"])),
        granularity=(
            "element"
            if by_number or isinstance(window, Session | ByDifference)
            else draw(st.sampled_from(["element", "element", "batch"]))
        ),
        timestamp=draw(st.sampled_from(["end_of_window", "earliest", "latest"])),
        retain_time=(
            draw(st.integers(1, 30)) if rarely == 1 and window.axis is Axis.EVENT_TIME else None
        ),
        retain_windows=draw(st.integers(1, 4)) if by_number and rarely == 2 else None,
        retain_messages=draw(st.integers(1, 6)) if by_number and rarely == 3 else None,
    )


class Sender:
    """Makes the messages of a history: times wander forward with disorder, offsets and ids count
    up, some messages come again.
    """

    def __init__(
        self, draw: st.DrawFn, partitions: int, clocks: Mapping[str | None, int] | None = None
    ) -> None:
        self.draw = draw
        self.clocks = clocks or {}
        self.front = 0
        self.sent: list[Row] = []
        self.offsets = {f"p{i}": 0 for i in range(partitions)}

    def message(self) -> Row:
        if self.sent and self.draw(st.integers(0, 7)) == 0:
            return dict(self.draw(st.sampled_from(self.sent)))
        self.front += self.draw(st.integers(0, 4))
        partition = self.draw(st.sampled_from(list(self.offsets)))
        self.offsets[partition] += self.draw(st.integers(1, 3))
        time = self.front + self.draw(st.sampled_from([0, 0, 0, 1, 3, -1, -2, -4, -9, -25, 40]))
        key = self.draw(st.sampled_from(KEYS))
        row = {
            "ts": None if self.draw(st.integers(0, 30)) == 0 else time + self.clocks.get(key, 0),
            "k": key,
            "v": self.draw(st.integers(-2, 4)),
            "gap": self.draw(st.sampled_from([0, 1, 2, 3, 5, 8, 8, 5, None, -1])),
            "partition": partition,
            "offset": self.offsets[partition],
            "id": f"m{len(self.sent)}",
        }
        self.sent.append(row)
        return row


@st.composite
def histories(
    draw: st.DrawFn, config: Config, most: int = 14, clocks: Mapping[str | None, int] | None = None
) -> tuple[Step, ...]:
    """Deliveries, watermarks, clock steps and restarts, in any order; a watermark goes back now and
    then, and keys may have clocks of their own.
    """
    sender, mark, now = Sender(draw, 1 if config.partition is None else 2, clocks), 0, 0
    steps: list[Step] = []
    for _ in range(draw(st.integers(1, most))):
        verb = draw(
            st.sampled_from(
                ["add", "add", "add", "add", "watermark", "watermark", "timeout", "restart"]
            )
        )
        if verb == "add":
            steps.append(Step("add", [sender.message() for _ in range(draw(st.integers(1, 6)))]))
        elif verb == "watermark":
            mark = draw(
                st.sampled_from(
                    [
                        mark - 2,
                        sender.front - 6,
                        sender.front - 2,
                        sender.front + 1,
                        sender.front + 9,
                    ]
                )
            )
            steps.append(Step("watermark", mark))
        elif verb == "timeout":
            now += draw(st.integers(0, 9))
            steps.append(Step("timeout", now))
        else:
            steps.append(Step("restart"))
    return tuple(steps)


@st.composite
def cases(draw: st.DrawFn, *, retention: bool = True) -> Case:
    config = draw(configs(retention=retention))
    return Case(config, draw(histories(config)))


def _busy_delivery(draw: st.DrawFn, sender: Sender) -> list[Row]:
    """Many messages, of which one key has most, in rough order of time."""
    drawn = draw(
        st.lists(
            st.tuples(
                st.sampled_from([0, 0, 0, 1, 2]),
                st.sampled_from([0, 0, 0, 0, -1, -2, -5, -12, 6]),
                st.sampled_from([KEYS[0], KEYS[0], KEYS[0], KEYS[0], KEYS[1], KEYS[2]]),
                st.integers(-2, 4),
                st.sampled_from([2, 5, 5, 8]),
            ),
            min_size=8,
            max_size=45,
        )
    )
    rows = []
    for step, jitter, key, value, gap in drawn:
        sender.front += step
        sender.offsets["p0"] += 1
        row = {"ts": sender.front + jitter, "k": key, "v": value, "gap": gap, "partition": "p0"}
        rows.append({**row, "offset": sender.offsets["p0"], "id": f"m{len(sender.sent)}"})
        sender.sent.append(rows[-1])
    return rows


@st.composite
def busy_cases(draw: st.DrawFn) -> Case:
    """Few deliveries with many messages of one key, while clock and watermark move between them."""
    config = dataclasses.replace(draw(configs()), partition=None, granularity="element")
    sender, now, steps = Sender(draw, 1), 0, list[Step]()
    for _ in range(draw(st.integers(1, 3))):
        steps.append(Step("add", _busy_delivery(draw, sender)))
        if draw(st.booleans()):
            steps.append(Step("watermark", sender.front - draw(st.sampled_from([-9, 0, 3, 8]))))
        if draw(st.booleans()):
            now += draw(st.integers(1, 9))
            steps.append(Step("timeout", now))
    return Case(config, tuple(steps))


@st.composite
def per_key_cases(draw: st.DrawFn, *, retention: bool = True) -> Case:
    """The same with a watermark of its own for every key; the clocks of keys may be far apart."""
    config = draw(
        configs(retention=retention).filter(lambda found: found.window.axis is Axis.EVENT_TIME)
    )
    disorder = draw(st.sampled_from([0, 0, 1, 3, 10]))
    floor = disorder + draw(st.sampled_from([0, 2, 10, 40, 1000]))
    tolerance = (
        config.future_tolerance
        if config.future_reference == "clock"
        else max(config.future_tolerance, floor)
    )
    config = dataclasses.replace(
        config,
        key=("k",),
        watermark="per_key",
        disorder=disorder,
        floor=floor,
        max_keys=draw(st.sampled_from([None, None, 1, 2])),
        future_tolerance=tolerance,
    )
    return Case(
        config,
        draw(
            histories(
                config, clocks={key: draw(st.sampled_from([0, 0, -5, -20, 30])) for key in KEYS}
            )
        ),
    )


def is_cut_invariant(config: Config) -> bool:
    """Whether cuts must not matter: no watermark that moves by deliveries, no order inside a
    delivery but that of arrival.
    """
    moves = (
        config.watermark == "implied"
        if config.window.axis is Axis.EVENT_TIME
        else not config.window.axis.is_time
    )
    return config.granularity == "element" and not moves and config.offset is None


@st.composite
def cut_cases(draw: st.DrawFn, *, retention: bool = True) -> tuple[Case, Case]:
    """The same messages in the same order, cut into deliveries in two ways."""
    config = draw(configs(retention=retention))
    config = dataclasses.replace(
        config, watermark="explicit", granularity="element", offset=None, partition=None
    )
    if not is_cut_invariant(config):
        config = dataclasses.replace(config, window=draw(aligned_windows(Axis.EVENT_TIME)))
    steps = draw(histories(config))
    return Case(config, _together(steps)), Case(
        config, tuple(piece for step in steps for piece in _apart(draw, step))
    )


def _together(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """Neighbouring deliveries as one."""
    merged: list[Step] = []
    for step in steps:
        if step.verb == "add" and merged and merged[-1].verb == "add":
            merged[-1] = Step("add", merged[-1].value + step.value)
        elif step.verb != "restart":
            merged.append(step)
    return tuple(merged)


def _apart(draw: st.DrawFn, step: Step) -> list[Step]:
    if step.verb != "add":
        return [] if step.verb == "restart" else [step]
    cut = draw(st.integers(0, len(step.value)))
    return [Step("add", rows) for rows in (step.value[:cut], step.value[cut:]) if rows]

"""Random pipelines of two to four operators, and random histories of their sources."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from hypothesis import strategies as st

import tidegate as tg
from support.composition.embedded import Step
from support.composition.plans import (
    ENOUGH,
    Aggregate,
    Join,
    Match,
    Node,
    Operator,
    Row,
    Source,
    Value,
    Window,
    operators,
    sources,
)

HOWS = ("inner", "left", "right", "full", "semi", "anti")
MODES = ("accumulating", "retracting", "discarding")
OPEN_TRIGGERS = tuple(
    None if trigger is None else str(trigger)
    for trigger in (
        None,
        tg.after_watermark(late=tg.after_count(1)),
        tg.after_watermark(early=tg.after_count(1), late=tg.after_count(1)),
        tg.after_watermark(early=tg.after_count(2), late=tg.after_count(2)),
        tg.after_watermark(early=tg.every(3, unit="us"), late=tg.every(5, unit="us")),
        tg.after_watermark(
            early=tg.event_interval(3, unit="us"),
            late=tg.after_any(tg.after_count(2), tg.after_delay(4, unit="us")),
        ),
        tg.repeatedly(tg.after_count(2)),
        tg.repeatedly(tg.after_all(tg.after_count(2), tg.after_delay(3, unit="us"))),
        tg.after_each(tg.after_count(1), tg.repeatedly(tg.after_count(2))),
        tg.every_element(),
        tg.every(4, unit="us", refire=True),
        tg.never(),
    )
)
"""Triggers that never finish, so that a window takes every change."""
ENDING_TRIGGERS = tuple(
    str(trigger)
    for trigger in (
        tg.after_watermark(),
        tg.after_watermark(early=tg.after_count(1)),
        tg.after_count(2),
        tg.after_delay(5, unit="us"),
        tg.or_finally(tg.repeatedly(tg.after_count(1)), tg.after_watermark()),
    )
)
"""Triggers that close their window."""
TIME_WINDOWS = (
    Window("tumbling", 10),
    Window("tumbling", 4),
    Window("tumbling", 6, offset=1),
    Window("hopping", 10, 5),
    Window("hopping", 6, 4),
    Window("cumulative", 10, 5),
    Window("sliding", 5),
    Window("session", 4),
    Window("session", 3, by="u"),
    Window("session", 7),
    Window("session", 7),
    Window("global"),
)
TUPLE_WINDOWS = (
    Window("tumbling", 2, axis="ordinal"),
    Window("hopping", 3, 1, axis="ordinal"),
    Window("tumbling", 3, axis="offset"),
)
INHERITED = Window("inherited")
MATCHES = (
    Match("within", 3, 5),
    Match("within", 0, 0),
    Match("within", 12, -2),
    Match("tumbling", 10),
    Match("tumbling", 4),
    Match("hopping", 6, 4),
    Match("cumulative", 10, 5),
    Match("sliding", 5),
    Match("global"),
    Match("session", 4),
    Match("as_of", 6),
)
FUNCTIONS = {
    "values": (
        *("sum", "sum", "min", "max", "mean", "median", "count_distinct", "list", "distinct"),
        *("quantile", "stddev", "squares", "spread"),
    ),
    "floats": ("sum", "min", "max", "mean", "median", "list"),
    "texts": ("min", "max", "count_distinct", "list", "distinct"),
}
"""Functions by the kind of their column."""
OPTIONS: tuple[tuple[tuple[str, str], ...], ...] = (
    *[()] * 4,
    (("granularity", "batch"),),
    (("on_time", "always"), ("closing", "always")),
    (("on_time", "if_updated"),),
)


@dataclass(frozen=True)
class Case:
    """A pipeline and what happens to it; the end of input comes after the last step."""

    plan: Operator
    steps: tuple[Step, ...]


class Builder:
    """Draws a tree of operators upwards from its last one."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self._families = iter("abcdefgh")
        self._names = (f"s{number}" for number in count())
        self._values = (f"x{number}" for number in count())

    def one_of(self, *choices: Any) -> Any:
        return self.draw(st.sampled_from(choices))

    def source(self) -> Source:
        return Source(
            next(self._names),
            next(self._families),
            self.one_of("id", "id", "offset"),
            self.one_of("explicit", "explicit", "implied"),
        )

    def node(self, budget: int, *, timed: bool = False) -> Node:
        """A source, or operators; `timed` if the output needs a time."""
        if budget == 0:
            return self.source()
        kind = self.one_of("aggregate", "aggregate", "aggregate", "join", "join", "several")
        if kind == "join":
            return self.join(budget)
        if kind == "several":
            return self.several(budget, timed=timed)
        return self.aggregate((self.node(budget - 1, timed=timed),), timed=timed)

    def several(self, budget: int, *, timed: bool) -> Aggregate:
        """An aggregate of a union or a merge."""
        first = self.node(self.draw(st.integers(0, budget - 1)), timed=True)
        if self.draw(st.booleans()):
            twin = self._twin(first)
            if twin is not None:
                return self.aggregate((first, twin), timed=timed)
        rest = budget - 1 - len(list(operators(first)))
        inputs = _identified_alike(first, self.node(max(rest, 0), timed=True))
        return self.aggregate(inputs, names=("one", "two"), timed=timed)

    def _twin(self, node: Node) -> Node | None:
        """A node with the same columns over other sources."""
        if isinstance(node, Source):
            return replace(node, name=next(self._names))
        if isinstance(node, Aggregate) and len(node.inputs) == 1:
            child = self._twin(node.inputs[0])
            if child is not None:
                mode = self.one_of(*MODES)
                return replace(
                    node,
                    inputs=(child,),
                    trigger=self.one_of(*OPEN_TRIGGERS),
                    mode=mode,
                    only_updated=node.only_updated and mode != "discarding",
                )
        return None

    def aggregate(
        self, inputs: tuple[Node, ...], names: tuple[str, ...] = (), *, timed: bool = False
    ) -> Aggregate:
        common = [name for name in inputs[0].keys if all(name in node.keys for node in inputs)]
        key = tuple(name for name in common if self.draw(st.booleans()))
        values = [Value(next(self._values), "count")]
        for _ in range(self.draw(st.integers(1, 2))):
            number = self.draw(st.integers(0, len(inputs) - 1))
            of = names[number] if names else None
            values += self._value(inputs[number], of, one=len(inputs) == 1)
        behind = not all(isinstance(node, Source) for node in inputs)
        window = self._window(inputs, timed=timed)
        mode = self.one_of(*MODES)
        options = self.one_of(*OPTIONS)
        if not behind and window.kind in ("tumbling", "hopping", "cumulative"):
            options = self.one_of(options, options, (("drop_by", "window"),))
        lateness = self.one_of(ENOUGH, ENOUGH, 0, 5, 20)
        if window.axis != "event_time":
            # Ids are known for that long by the clock.
            lateness = ENOUGH
        # What a closed session misses depends on the order of arrival.
        ends = window.kind != "session" and (not behind or self.draw(st.integers(0, 4)) == 0)
        return Aggregate(
            inputs,
            window,
            key,
            tuple(values),
            self._trigger(ends=ends),
            mode,
            lateness,
            names,
            mode != "discarding" and self.one_of(False, False, True),
            options,
            self.one_of("time", "time", "time", *_other_times(window)),
        )

    def _value(self, node: Node, of: str | None, *, one: bool) -> list[Value]:
        """An aggregate of a column of an input, if it has one of the kind drawn."""
        kind = self.one_of("values", "values", "values", "floats", "texts")
        columns = getattr(node, kind)
        if not columns:
            return []
        functions = list(FUNCTIONS[kind])
        if one and isinstance(node, Source):
            # The order of arrival decides between rows of one time.
            functions += ["first", "last"]
        function = self.one_of(*functions)
        above = self.one_of(None, None, None, 1) if kind == "values" else None
        return [Value(next(self._values), function, self.one_of(*columns), of, above)]

    def _trigger(self, *, ends: bool) -> str | None:
        return self.one_of(*OPEN_TRIGGERS, *(ENDING_TRIGGERS if ends else ()))

    def _window(self, inputs: tuple[Node, ...], *, timed: bool) -> Window:
        if any(not has_time(node) for node in inputs):
            return INHERITED
        windows = [
            w for w in TIME_WINDOWS if w.by is None or all(w.by in node.columns for node in inputs)
        ]
        if len(inputs) == 1 and isinstance(inputs[0], Source):
            windows += [
                w for w in TUPLE_WINDOWS if w.axis != "offset" or inputs[0].identity == "offset"
            ]
        if timed:
            windows = [w for w in windows if w.kind != "global" and w.axis == "event_time"]
        if all(has_window(node) for node in inputs):
            windows += [INHERITED] * 8
        return self.one_of(*windows)

    def join(self, budget: int) -> Join:
        share = self.draw(st.integers(0, budget - 1))
        left = self.node(share, timed=True)
        rest = budget - 1 - len(list(operators(left)))
        right = self.node(max(rest, 0), timed=True)
        match = self.one_of(*MATCHES)
        how = self.one_of(*(HOWS if match.kind != "as_of" else ("inner", "left")))
        common = [name for name in left.keys if name in right.keys]
        on = tuple(name for name in common if self.draw(st.integers(0, 3))) or tuple(common[:1])
        if not on and match.kind == "session":
            match = Match("within", 3, 5)
        if match.kind == "as_of" and not _has_distinct_times(right, on):
            match = Match("within", 3, 5)
        padding = "complete"
        if how in ("left", "right", "full", "anti") or match.kind == "as_of":
            padding = self.one_of("complete", "complete", "early", "final")
        return Join(
            left,
            right,
            match,
            on,
            how,
            self.one_of(ENOUGH, ENOUGH, 0, 5, 20),
            padding,
            self.one_of(0, 1) if how not in ("semi", "anti") else 0,
            match.kind != "as_of"
            and self.one_of(False, False, False, True)
            and _have_values(left, right),
            self.one_of(None, None, None, 4),
        )


def _other_times(window: Window) -> tuple[str, ...]:
    """Columns of panes beside `time` that the next operator may go by."""
    if window.kind in ("session", "inherited"):
        return ("window_end",)
    return ("window_end", "window_start")


def _has_distinct_times(node: Node, on: tuple[str, ...]) -> bool:
    """Whether the order of arrival between rows of one key and time is that of the source, or no
    two rows of a key have one time.
    """
    if isinstance(node, Source):
        return True
    return (
        isinstance(node, Aggregate)
        and set(node.key) <= set(on)
        and node.time != "window_start"
        and node.window.kind in ("tumbling", "hopping", "session")
    )


def _have_values(*nodes: Node) -> bool:
    return all(node.values for node in nodes)


def _identified_alike(first: Node, second: Node) -> tuple[Node, Node]:
    """Inputs of a merge: all have ids, or offsets, or neither."""
    if isinstance(first, Source) and isinstance(second, Source):
        return first, replace(second, identity=first.identity)
    plain = [
        replace(node, identity="none") if isinstance(node, Source) else node
        for node in (first, second)
    ]
    return plain[0], plain[1]


def no_answer(plan: Operator) -> str | None:
    """Why the answer of a pipeline would depend on the order of arrival, so that it is refused."""
    for node in operators(plan):
        behind = [child for child in node.inputs if not isinstance(child, Source)]
        if not behind:
            continue
        if any(isinstance(child, Join) and child.match.kind == "session" for child in behind):
            return "the times of a session join lie behind its watermark without a bound"
        if isinstance(node, Aggregate):
            if node.trigger in ENDING_TRIGGERS:
                return "a trigger ends while its upstream may change"
            if node.window.kind == "sliding" or node.window.axis != "event_time":
                return "windows are made of rows that may be retracted"
    return None


def has_time(node: Node) -> bool:
    """Whether rows have an event time: panes of tuple and global windows have none."""
    if isinstance(node, Aggregate):
        if node.window.kind == "inherited":
            return all(has_time(child) for child in node.inputs)
        return node.window.kind != "global" and node.window.axis == "event_time"
    return True


def has_window(node: Node) -> bool:
    """Whether rows have a window that can be inherited."""
    if isinstance(node, Join):
        return node.match.kind == "tumbling"
    return isinstance(node, Aggregate)


@st.composite
def plans(draw: st.DrawFn) -> Operator:
    """A pipeline of two to four operators."""
    builder = Builder(draw)
    found = builder.node(draw(st.integers(2, 4)))
    assert not isinstance(found, Source)
    return settled(found)


def settled(plan: Operator) -> Operator:
    """A last operator whose panes can be netted: only counts and sums of integers of discarded
    panes add up, and only in windows that do not grow.
    """
    if not isinstance(plan, Aggregate) or plan.mode != "discarding":
        return plan
    floats = {name for node in plan.inputs for name in node.floats}
    adds_up = all(
        value.function in ("count", "sum") and value.column not in floats
        for value in plan.aggregates
    )
    return plan if adds_up and plan.window.kind != "session" else replace(plan, mode="retracting")


class Sender:
    """Makes the rows of the sources of one pipeline: times wander forward with disorder, and some
    rows come again.
    """

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw, self.front, self.numbers = draw, 0, count(1)
        self.sent: dict[str, list[Row]] = {}

    def row(self, source: Source) -> Row:
        sent = self.sent.setdefault(source.name, [])
        if sent and source.identity != "none" and self.draw(st.integers(0, 7)) == 0:
            return dict(self.draw(st.sampled_from(sent)))
        self.front += self.draw(st.integers(0, 2))
        time = self.front + self.draw(st.sampled_from([0, 0, 0, 1, 3, -1, -2, -4, -9, -15]))
        row = {
            source.time: max(time, 0),
            "k": self.draw(st.sampled_from([*"aaaabb", None])),
            "u": self.draw(st.sampled_from([1, 1, 2])),
            source.values[0]: self.draw(st.sampled_from([1, 1, 2, 3, -2, None])),
            source.floats[0]: self.draw(st.sampled_from([0.5, 0.5, 1.25, -3.0, None])),
            source.texts[0]: self.draw(st.sampled_from(["x", "x", "yy", "", None])),
            source.number: next(self.numbers),
        }
        sent.append(row)
        return row


@st.composite
def histories(draw: st.DrawFn, plan: Operator, most: int = 12) -> tuple[Step, ...]:
    """Deliveries, watermarks, clock steps and restarts, in any order; every source has rows."""
    sender, found, now = Sender(draw), list(sources(plan)), 0
    steps = [Step("add", source.name, [sender.row(source)]) for source in found]
    for _ in range(draw(st.integers(1, most))):
        verb = draw(
            st.sampled_from(["add"] * 5 + ["watermark"] * 3 + ["timeout", "timeout", "restart"])
        )
        source = draw(st.sampled_from(found))
        if verb == "add":
            rows = [sender.row(source) for _ in range(draw(st.integers(1, 4)))]
            steps.append(Step("add", source.name, rows))
        elif verb == "watermark":
            mark = sender.front + draw(st.sampled_from([-6, -2, 0, 1, 9]))
            steps += [
                Step("watermark", s.name, mark)
                for s in found
                if s.watermark == "explicit" and (s is source or draw(st.booleans()))
            ]
        elif verb == "timeout":
            now += draw(st.integers(0, 9))
            steps.append(Step("timeout", value=now))
        else:
            steps.append(Step("restart"))
    return tuple(steps)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    plan = draw(plans())
    return Case(plan, draw(histories(plan)))

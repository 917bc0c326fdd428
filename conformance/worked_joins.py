"""The kind `worked_example` for joins: one stream with a window, one unbounded."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tidegate.scenarios.document import Scenario, UnsupportedScenarioError, known, mapping
from tidegate.scenarios.join_adapter import JoinUnderTest, Message, Pair, Terms
from tidegate.scenarios.matching import demand_rows
from tidegate.scenarios.runtimes import Runtime
from tidegate.scenarios.ticks import Ticks
from tidegate.spec.join import LEFT, RIGHT, Rows, Within

WINDOW = "_window"
"""Suffix of the config keys with the window of a stream."""
_CONFIG = frozenset({"equal", "output"})
_EVERY = r"(?:,\s*update every (\S+))?"
_TUPLES = re.compile(rf"(\d+) tuples{_EVERY}")
_SPAN = re.compile(rf"([^\[,]+?)\s*(?:\[[^\]\)]*[\]\)])?\s*{_EVERY}")
_UNBOUNDED = "unbounded"


def run_worked_join(scenario: Scenario, ticks: Ticks, runtime: Runtime) -> None:
    """A join without any watermark: the first stream has a window of tuples or of time, the second
    one is unbounded.
    """
    known("the scenario", scenario.body, {"steps"})
    streams = tuple(name.removesuffix(WINDOW) for name in scenario.config if name.endswith(WINDOW))
    if len(streams) != 2:
        raise UnsupportedScenarioError(
            f"a worked example of a join has the windows of two streams, got {list(streams)}"
        )
    known("`config`", scenario.config, _CONFIG | {f"{name}{WINDOW}" for name in streams})
    terms, steps = (
        _terms(scenario, streams, ticks),
        [mapping("a step", step) for step in scenario.entries("steps")],
    )
    for step in steps:
        known("a step", step, {"at", "expect", *streams})
    start = min((ticks(step["at"]) for step in steps if "at" in step), default=0)
    meeting = JoinUnderTest(terms, ticks, runtime, now=start)
    for number, step in enumerate(steps, 1):
        if "at" in step:
            meeting.run_clock(ticks(step["at"]))
        meeting.add(*(_messages(step.get(name), scenario) for name in streams))
        if "expect" in step:
            pairs, _ = meeting.take()
            if not meeting.is_rehearsed:
                demand_rows(
                    step["expect"], [_row(pair, scenario) for pair in pairs], f"step {number}"
                )


def _terms(scenario: Scenario, streams: tuple[str, ...], ticks: Ticks) -> Terms:
    mine, other = (str(scenario.config[f"{name}{WINDOW}"]).strip() for name in streams)
    if other != _UNBOUNDED:
        raise UnsupportedScenarioError(f"the second stream is `{_UNBOUNDED}`, got `{other}`")
    tuples, keyed = _TUPLES.fullmatch(mine), "equal" in scenario.config
    if tuples:
        every = None if tuples[2] is None else ticks(tuples[2])
        return Terms(Rows(left=int(tuples[1])), keyed=keyed, periods=(every, every))
    span = _SPAN.fullmatch(mine)
    if span is None:
        raise UnsupportedScenarioError(f"`{mine}` is neither a number of tuples nor a span of time")
    size = ticks(span[1])
    # A window of time that is told when it is full says when its stream is looked at; pairs come
    # out with the message that makes them.
    if span[2] is not None and ticks(span[2]) != size:
        raise UnsupportedScenarioError(f"a window of time is updated when it is full, got `{mine}`")
    return Terms((Within(size, None),), keyed=keyed)


def _messages(given: Any, scenario: Scenario) -> list[Message]:
    """The messages of one stream in a step: one, or a list."""
    found = [
        mapping("a message", message)
        for message in (given if isinstance(given, list) else [] if given is None else [given])
    ]
    equal = str(scenario.config.get("equal"))
    known(
        "a message",
        [name for message in found for name in message],
        {"time", "offset", equal, *(scenario.config.get("output") or ())},
    )
    return [{**message, "t": message.get("time"), "k": message.get(equal)} for message in found]


def _row(pair: Pair, scenario: Scenario) -> list[Any]:
    """The output columns, from whichever message has them."""
    both: Mapping[str, Any] = {**(pair.message(RIGHT) or {}), **(pair.message(LEFT) or {})}
    cells = [both.get(name) for name in scenario.config.get("output") or ()]
    return ["retract", *cells] if pair.retract else cells

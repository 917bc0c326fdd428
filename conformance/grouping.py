"""The kinds `groups` and `sessions` by way of operators: events go in, the input ends, and the
panes tell which window each was in.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from conformance.assignment import (
    SESSION_CASE,
    Interval,
    cases_of,
    listed,
    orders,
    same_groups,
    session_of,
    start,
)
from tidegate.instants import MAX
from tidegate.scenarios.aggregate_adapter import AggregateUnderTest
from tidegate.scenarios.document import Scenario, UnsupportedScenarioError, known
from tidegate.scenarios.runtimes import Runtime
from tidegate.scenarios.settings import CONFIG, OperatorSettings
from tidegate.scenarios.ticks import Ticks
from tidegate.scenarios.window_words import window_of
from tidegate.spec.triggers import AfterWatermark
from tidegate.spec.windows import Axis, Window

Deliveries = list[list[dict[str, Any]]]


def group(scenario: Scenario, runtime: Runtime) -> None:
    """Each case: all times in one delivery."""
    ticks = start(scenario)
    known("`config`", scenario.config, CONFIG)
    window = window_of(scenario, ticks)
    for case in cases_of(scenario, {"times", "expect"}):
        delivery = [{"t": time, "v": time} for time in listed(case, "times")]
        for members in _members(window, [delivery], ticks, runtime):
            same_groups(case, members, ticks)


def group_sessions(scenario: Scenario, runtime: Runtime) -> None:
    """Each case: every order of the input is a key, first in one delivery and then with one event a
    delivery.
    """
    ticks = start(scenario)
    known("`config`", scenario.config, CONFIG | {"shuffle_input"})
    window = session_of(scenario, ticks)
    for case in cases_of(scenario, SESSION_CASE):
        lines = [
            [{"t": time, "v": time, "k": number} for time in times]
            for number, times in enumerate(orders(listed(case, "times")))
        ]
        at_once = [[event for line in lines for event in line]]
        one_by_one = [list(events) for events in zip(*lines, strict=True)]
        for deliveries in (at_once, one_by_one):
            for members in _members(window, deliveries, ticks, runtime):
                same_groups(case, members, ticks)


def _members(
    window: Window, deliveries: Deliveries, ticks: Ticks, runtime: Runtime
) -> Iterator[dict[Interval, list[Any]]]:
    """For each key, what was in which window; nothing where it is only rehearsed."""
    if window.axis is not Axis.EVENT_TIME:
        raise UnsupportedScenarioError(
            f"times are put into windows on event time, got a window on {window.axis}"
        )
    settings = OperatorSettings(
        window, AfterWatermark(), "accumulating", MAX, "list", options={"future_tolerance": MAX}
    )
    events = [event for delivery in deliveries for event in delivery]
    operator = AggregateUnderTest(settings, events, ticks, runtime=runtime)
    for delivery in deliveries:
        operator.add(delivery)
    operator.finish()
    found: dict[Any, dict[Interval, list[Any]]] = {event.get("k"): {} for event in events} or {
        None: {}
    }
    for pane in operator.take()[0]:
        found[pane.key].setdefault(pane.window, []).extend(pane.value)
    if not operator.is_rehearsed:
        yield from found.values()

"""The kinds `assign`, `groups`, `sessions`, `merge` and `merge_sequence`: which windows events are
in, and which windows become one.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, permutations
from typing import Any

import numpy as np

from tidegate.errors import SpecError
from tidegate.kernel.windows.assigners import build
from tidegate.kernel.windows.sessions import merge_intervals
from tidegate.scenarios.document import (
    MismatchError,
    Scenario,
    UnsupportedScenarioError,
    known,
    mapping,
)
from tidegate.scenarios.matching import interval, same_bag
from tidegate.scenarios.settings import CONFIG
from tidegate.scenarios.ticks import Ticks, ticks_of
from tidegate.scenarios.window_words import window_of
from tidegate.spec.windows import Session, Touch, Window

Interval = tuple[int, int]
_ORDERS = 200
SESSION_CASE = {"key", "times", "expect"}


def run_assign(scenario: Scenario) -> None:
    """Each case: the windows of one time, or `error: true` where the window must be refused."""
    ticks = start(scenario, {"error"})
    known("`config`", scenario.config, CONFIG | {"error"})
    if scenario.body.get("error") or scenario.config.get("error"):
        _must_be_refused(scenario, ticks, None)
        return
    for case in cases_of(scenario, {"t", "windows", "window", "error"}):
        if case.get("error"):
            _must_be_refused(scenario, ticks, case.get("window"))
            continue
        found = _windows(window_of(scenario, ticks, case.get("window")), [ticks(case["t"])])
        expected = [interval(w, ticks) for w in listed(case, "windows")]
        if sorted(found[0]) != sorted(expected):
            raise MismatchError(
                f"t {case['t']}: expected {_shown(expected, ticks)}, got {_shown(found[0], ticks)}"
            )


def run_groups(scenario: Scenario) -> None:
    """Each case: all times are assigned, then grouped by window."""
    ticks = start(scenario)
    known("`config`", scenario.config, CONFIG)
    window = window_of(scenario, ticks)
    for case in cases_of(scenario, {"times", "expect"}):
        members: dict[Interval, list[Any]] = {}
        times = listed(case, "times")
        for time, windows in zip(times, _windows(window, [ticks(t) for t in times]), strict=True):
            for found in windows:
                members.setdefault(found, []).append(time)
        same_groups(case, members, ticks)


def run_sessions(scenario: Scenario) -> None:
    """Each case: the sessions of one key, found in one go and built up one by one, for every order
    of the input.
    """
    ticks = start(scenario)
    known("`config`", scenario.config, CONFIG | {"shuffle_input"})
    window = session_of(scenario, ticks)
    for case in cases_of(scenario, SESSION_CASE):
        for times in orders(listed(case, "times")):
            protos = [windows[0] for windows in _windows(window, [ticks(t) for t in times])]
            same_groups(case, _members_at_once(times, protos, window), ticks)
            same_groups(case, _members_one_by_one(times, protos, window), ticks)


def run_merge(scenario: Scenario) -> None:
    """Each case: windows of one key, and which of them become one."""
    ticks = start(scenario)
    known("`config`", scenario.config, CONFIG)
    window = session_of(scenario, ticks)
    for case in cases_of(scenario, {"windows", "merges"}):
        given = list(dict.fromkeys(interval(w, ticks) for w in listed(case, "windows")))
        merged = _merged(given, window)
        found = {to: parts for to, parts in merged.items() if len(parts) > 1}
        wanted = _merges(case, ticks)
        if {to: sorted(parts) for to, parts in found.items()} != {
            to: sorted(parts) for to, parts in wanted.items()
        }:
            raise MismatchError(
                f"windows {case['windows']}: expected {_shown_merges(wanted, ticks)}, got"
                f" {_shown_merges(found, ticks)}"
            )


def run_merge_sequence(scenario: Scenario) -> None:
    """Each case adds one window: the resulting session, and the sessions that it merges."""
    ticks = start(scenario)
    known("`config`", scenario.config, CONFIG)
    sessions = MergingSet(session_of(scenario, ticks).touch)
    for case in cases_of(scenario, {"add", "result", "merged"}):
        result, swallowed = sessions.add(interval(case["add"], ticks))
        if "result" in case and result != interval(case["result"], ticks):
            raise MismatchError(
                f"add {case['add']}: expected result {case['result']}, got"
                f" {_shown([result], ticks)}"
            )
        if "merged" in case and sorted(swallowed) != sorted(
            interval(w, ticks) for w in case["merged"]
        ):
            raise MismatchError(
                f"add {case['add']}: expected merged {case['merged']}, got"
                f" {_shown(swallowed, ticks)}"
            )


def start(scenario: Scenario, more: set[str] | None = None) -> Ticks:
    """The conversion of the times of a scenario that has cases and, beside them, nothing that is
    not known.
    """
    known("the scenario", scenario.body, {"cases"} | (more or set()))
    return ticks_of(scenario)


def cases_of(scenario: Scenario, fields: set[str]) -> Iterator[dict[str, Any]]:
    """The cases, with no fields but these."""
    cases = scenario.entries("cases")
    if not cases:
        raise UnsupportedScenarioError("the scenario has no `cases`")
    for case in cases:
        known("a case", mapping("a case", case), fields)
        yield case


def listed(case: dict[str, Any], name: str) -> list[Any]:
    """A field of a case that is a list."""
    value = case.get(name)
    if not isinstance(value, list):
        raise UnsupportedScenarioError(f"`{name}` of a case must be a list, got `{value}`")
    return value


def _must_be_refused(scenario: Scenario, ticks: Ticks, given: Any) -> None:
    try:
        window = window_of(scenario, ticks, given)
    except SpecError:
        return
    raise MismatchError(f"the window must be refused, but {window!r} was accepted")


def _windows(window: Window, times: list[int]) -> list[list[Interval]]:
    found = build(window).assign(np.array(times, np.int64))
    result: list[list[Interval]] = [[] for _ in times]
    for row, begin, end in zip(
        found.row.tolist(), found.start.tolist(), found.end.tolist(), strict=True
    ):
        result[row].append((begin, end))
    return result


def session_of(scenario: Scenario, ticks: Ticks) -> Session:
    """The window, which must be a session."""
    window = window_of(scenario, ticks)
    if not isinstance(window, Session):
        raise UnsupportedScenarioError(f"kind `{scenario.kind}` needs a window of type `session`")
    return window


def orders(times: list[Any]) -> Iterator[list[Any]]:
    """The order as written, the reverse, and a fixed number of further ones."""
    yield times
    yield times[::-1]
    yield from (list(order) for order in islice(permutations(times), _ORDERS))


def _merged(given: list[Interval], window: Session) -> dict[Interval, list[Interval]]:
    begin, end = (
        (np.array(edges, np.int64) for edges in zip(*given, strict=True))
        if given
        else (np.zeros(0, np.int64), np.zeros(0, np.int64))
    )
    merged = merge_intervals(np.zeros(len(given), np.int64), begin, end, window.touch)
    result: dict[Interval, list[Interval]] = {}
    for part, group in zip(given, merged.groups.ids.tolist(), strict=True):
        result.setdefault((int(merged.start[group]), int(merged.end[group])), []).append(part)
    return result


def _members_at_once(
    times: list[Any], protos: list[Interval], window: Session
) -> dict[Interval, list[Any]]:
    inside = {part: to for to, parts in _merged(protos, window).items() for part in parts}
    members: dict[Interval, list[Any]] = {}
    for time, proto in zip(times, protos, strict=True):
        members.setdefault(inside[proto], []).append(time)
    return members


def _members_one_by_one(
    times: list[Any], protos: list[Interval], window: Session
) -> dict[Interval, list[Any]]:
    sessions, members = MergingSet(window.touch), dict[Interval, list[Any]]()
    for time, proto in zip(times, protos, strict=True):
        result, swallowed = sessions.add(proto)
        moved = [member for old in swallowed for member in members.pop(old)]
        members[result] = [*members.get(result, []), *moved, time]
    return members


def same_groups(case: dict[str, Any], members: dict[Interval, list[Any]], ticks: Ticks) -> None:
    """Raise the difference between the groups of a case and those that were found."""
    wanted: dict[Interval, list[Any]] = {}
    for group in listed(case, "expect"):
        known("an expected group", mapping("an expected group", group), {"window", "members"})
        wanted[interval(group["window"], ticks)] = listed(group, "members")
    if members.keys() != wanted.keys() or any(not same_bag(wanted[w], members[w]) for w in wanted):
        raise MismatchError(
            f"times {case['times']}: expected {_shown_groups(wanted, ticks)}, got"
            f" {_shown_groups(members, ticks)}"
        )


def _merges(case: dict[str, Any], ticks: Ticks) -> dict[Interval, list[Interval]]:
    wanted: dict[Interval, list[Interval]] = {}
    for merge in listed(case, "merges"):
        known("a merge", mapping("a merge", merge), {"from", "to"})
        wanted[interval(merge["to"], ticks)] = [interval(w, ticks) for w in listed(merge, "from")]
    return wanted


def _shown(windows: list[Interval], ticks: Ticks) -> str:
    return (
        "[" + ", ".join(f"[{ticks.shown(s)}, {ticks.shown(e)}]" for s, e in sorted(windows)) + "]"
    )


def _shown_groups(groups: dict[Interval, list[Any]], ticks: Ticks) -> str:
    return (
        "{"
        + ", ".join(
            f"{_shown([w], ticks)[1:-1]}: {sorted(m, key=str)}" for w, m in sorted(groups.items())
        )
        + "}"
    )


def _shown_merges(merges: dict[Interval, list[Interval]], ticks: Ticks) -> str:
    return (
        ", ".join(
            f"{_shown(parts, ticks)} to {_shown([to], ticks)[1:-1]}"
            for to, parts in sorted(merges.items())
        )
        or "no merge"
    )


class MergingSet:
    """The sessions of one key, to which windows are added one by one."""

    def __init__(self, touch: Touch = "separate") -> None:
        self._touch = touch
        self.windows: list[Interval] = []

    def add(self, window: Interval) -> tuple[Interval, list[Interval]]:
        """The session that holds the window, and the sessions it replaced, if any."""
        met = [other for other in self.windows if self._meet(window, other)]
        result = min(w[0] for w in (window, *met)), max(w[1] for w in (window, *met))
        if met == [result]:
            return result, []
        self.windows = sorted([w for w in self.windows if w not in met] + [result])
        return result, met

    def _meet(self, a: Interval, b: Interval) -> bool:
        if self._touch == "merge":
            return a[0] <= b[1] and b[0] <= a[1]
        early, late = (a, b) if (a[0], -a[1]) <= (b[0], -b[1]) else (b, a)
        return late[0] < early[1] or a == b

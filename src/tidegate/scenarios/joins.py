"""The kind `join`: a timeline of two streams that are joined, and the pairs that must come out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tidegate.errors import TidegateError
from tidegate.instants import MAX, MIN
from tidegate.scenarios.document import (
    MismatchError,
    Scenario,
    UnsupportedScenarioError,
    is_set,
    known,
    mapping,
    steps_of,
)
from tidegate.scenarios.join_adapter import JoinUnderTest, LateMessage, Message, Pair, Terms
from tidegate.scenarios.join_words import TYPES, read_condition, window_in
from tidegate.scenarios.matching import TIMINGS, same_bag, same_value, same_window, unmatched
from tidegate.scenarios.runtimes import EMBEDDED, Runtime
from tidegate.scenarios.settings import choice, flag, lateness_of
from tidegate.scenarios.ticks import Ticks, ticks_of
from tidegate.spec.join import LEFT, PADDINGS, RIGHT, SIDES
from tidegate.spec.presets import NAMES, system_preset

CONFIG = frozenset(
    {
        "type",
        "match",
        "window",
        "where",
        "keyed",
        "allowed_lateness",
        "padding",
        "update_every",
        "semantics",
        "initial_processing_time",
        "each_case_fresh",
        "ordered",
    }
)
MESSAGE = frozenset({"t", "k", "v", "offset"})
ACTIONS = frozenset(
    {
        "left",
        "right",
        "wm_left",
        "wm_right",
        "wm",
        "processing_time",
        "snapshot_restore",
        "end_of_input",
    }
)
CHECKS = frozenset(
    {"expect", "out_wm", "output_watermark", "late_left", "late_right", "buffer", "error"}
)
PAIR = frozenset({"pair", "timing", "retract", "window"})


def run_join(scenario: Scenario, runtime: Runtime = EMBEDDED) -> None:
    """Apply the steps in order."""
    JoinTimeline(scenario, ticks_of(scenario), runtime).run(scenario)


def terms_of(scenario: Scenario, ticks: Ticks) -> Terms:
    """The settings of a join: the config of a scenario on top of its preset."""
    config = scenario.config
    known("`config`", config, CONFIG)
    check_preset(scenario)
    wanted = read_condition(config["where"], ticks) if "where" in config else None
    if wanted is not None and (wanted.bound or wanted.keyed or wanted.shares_window):
        raise UnsupportedScenarioError(f"`where` is about values, got `{config['where']}`")
    periods = mapping("`update_every`", config.get("update_every", {}))
    known("`update_every`", periods, {"on_time", "late"})
    return Terms(
        window=window_in(scenario, ticks, config),
        how=choice(config, "type", TYPES, "inner"),
        keyed=(
            flag(config, "keyed")
            if "keyed" in config
            else any("k" in message for message in _messages(scenario))
        ),
        where=None if wanted is None else wanted.where,
        allowed_lateness=lateness_of(scenario, ticks),
        options=system_preset(scenario.system).options,
        padding=choice(config, "padding", dict.fromkeys(PADDINGS), "complete"),
        periods=(
            ticks(periods["on_time"]) if "on_time" in periods else None,
            ticks(periods["late"]) if "late" in periods else None,
        ),
    )


def check_preset(scenario: Scenario) -> None:
    """Refuse an unknown `semantics`."""
    if scenario.system not in NAMES:
        raise UnsupportedScenarioError(
            f"`semantics: {scenario.system}` is not one of {', '.join(NAMES)}"
        )


def _messages(scenario: Scenario) -> list[Message]:
    steps = steps_of(scenario, ACTIONS | CHECKS)
    return [
        message
        for step in steps
        for side in SIDES
        if side in step
        for message in _listed(step[side])
    ]


def _listed(given: Any) -> list[Message]:
    """One message, or the messages of a delivery."""
    messages = [
        mapping("a message", message) for message in (given if isinstance(given, list) else [given])
    ]
    for message in messages:
        known("a message", message, MESSAGE)
    return list(messages)


class JoinTimeline:
    """One run over the steps of a scenario."""

    def __init__(self, scenario: Scenario, ticks: Ticks, runtime: Runtime) -> None:
        self._ticks, self._terms = ticks, terms_of(scenario, ticks)
        self._meeting = JoinUnderTest(
            self._terms,
            ticks,
            runtime,
            now=ticks(scenario.config.get("initial_processing_time", 0)),
        )
        self._ordered = "ordered" in scenario.config and flag(scenario.config, "ordered")
        self._marks = [MIN, MIN]
        self._fresh: list[Pair] = []
        self._fresh_late: list[LateMessage] = []
        self._late: list[LateMessage] = []
        self._promised: dict[int | None, int] = {LEFT: MIN, RIGHT: MIN, None: MIN}
        self._forwarded: list[tuple[int | None, int]] = []
        self._where = ""
        self._checks: dict[str, Callable[[Any], None]] = {
            "expect": self._expect,
            "out_wm": self._out_wm,
            "output_watermark": self._output_watermark,
            "late_left": lambda rows: self._late_rows(LEFT, rows),
            "late_right": lambda rows: self._late_rows(RIGHT, rows),
            "buffer": self._buffer,
        }

    def run(self, scenario: Scenario) -> None:
        """Apply the steps in order."""
        for number, step in enumerate(steps_of(scenario, ACTIONS | CHECKS), 1):
            self._step(step, f"step {number}")
        if scenario.must_fail and self._fresh:
            raise MismatchError("pairs were left over that no step expects")

    def _step(self, step: dict[str, Any], where: str) -> None:
        self._where = where
        refused = is_set(step, "error")
        try:
            self._act(step)
        except TidegateError as error:
            if not refused:
                raise MismatchError(f"{where}: was refused: {error}") from error
        else:
            if refused and not self._meeting.is_rehearsed:
                raise MismatchError(f"{where}: {step} must be refused, but it was accepted")
        self._collect()
        for name in step.keys() & self._checks.keys():
            if not self._meeting.is_rehearsed:
                self._checks[name](step[name])

    def _act(self, step: dict[str, Any]) -> None:
        if step.keys() & set(SIDES):
            self._meeting.add(*(_listed(step[side]) if side in step else [] for side in SIDES))
        for name, sides in (("wm_left", (LEFT,)), ("wm_right", (RIGHT,)), ("wm", (LEFT, RIGHT))):
            for side in sides if name in step else ():
                self._marks[side] = max(self._marks[side], self._ticks.watermark(step[name]))
                self._meeting.advance_watermark(side, self._ticks.watermark(step[name]))
        if "processing_time" in step:
            self._meeting.run_clock(self._ticks(step["processing_time"]))
        if is_set(step, "snapshot_restore"):
            self._meeting.restart()
        if is_set(step, "end_of_input"):
            self._marks = [MAX, MAX]
            self._meeting.finish()

    def _collect(self) -> None:
        pairs, late = self._meeting.take()
        self._add_pairs(pairs)
        self._fresh_late += late
        self._late += late
        for side, before in self._promised.items():
            promise = self._meeting.output_watermark(side)
            if promise != before:
                self._promised[side] = promise
                self._forwarded.append((side, promise))

    def _add_pairs(self, pairs: list[Pair]) -> None:
        self._fresh += pairs

    def _unexpected(self, pairs: list[Pair]) -> list[Pair]:
        """Of the pairs that match no expectation, those that are wrong."""
        return pairs

    # What is expected

    def _expect(self, expected: Any) -> None:
        if not isinstance(expected, list):
            raise UnsupportedScenarioError(f"expected pairs must be a list, got `{expected}`")
        wanted = [self._wanted(one) for one in expected]
        missing, extra = unmatched(wanted, self._fresh, self._fits)
        fresh, self._fresh = self._fresh, []
        extra = self._unexpected(extra)
        if self._ordered and not missing and not extra:
            self._check_order(wanted, [pair for pair in fresh if pair not in extra])
        if missing or extra:
            raise MismatchError(
                f"{self._where}: missing {missing}, unexpected"
                f" {[self._shown(pair) for pair in extra]}"
            )

    def _check_order(self, wanted: list[dict[str, Any]], pairs: list[Pair]) -> None:
        if not all(map(self._fits, wanted, pairs)):
            raise MismatchError(
                f"{self._where}: expected the order {[one['pair'] for one in wanted]}, got"
                f" {[self._shown(pair)['pair'] for pair in pairs]}"
            )

    def _wanted(self, one: Any) -> dict[str, Any]:
        """An expected pair: `[left, right]`, or a mapping with more fields."""
        wanted = {"pair": one} if not isinstance(one, dict) else one
        known("an expected pair", wanted, PAIR)
        pair = wanted.get("pair")
        sides = 2 if self._terms.how not in ("semi", "anti") else 1
        if not isinstance(pair, list) or len(pair) != sides:
            raise UnsupportedScenarioError(f"a row of this join is a list of {sides}, got `{pair}`")
        if wanted.get("timing", "early") not in TIMINGS:
            raise UnsupportedScenarioError(
                f"`timing: {wanted['timing']}` is not one of {', '.join(TIMINGS)}"
            )
        return wanted

    def _fits(self, wanted: Mapping[str, Any], pair: Pair) -> bool:
        shown = [_name(pair.message(side)) for side in range(len(wanted["pair"]))]
        return (
            all(map(same_value, wanted["pair"], shown))
            and bool(wanted.get("retract", False)) == pair.retract
            and ("timing" not in wanted or TIMINGS[wanted["timing"]] == pair.timing)
            and (
                "window" not in wanted
                or (
                    pair.window is not None
                    and same_window(wanted["window"], pair.window, self._ticks)
                )
            )
        )

    def _shown(self, pair: Pair) -> dict[str, Any]:
        window = (
            {}
            if pair.window is None
            else {"window": [self._ticks.shown(edge) for edge in pair.window]}
        )
        return {
            "pair": [_name(pair.left), _name(pair.right)],
            "timing": pair.timing,
            **({"retract": True} if pair.retract else {}),
            **window,
        }

    def _late_rows(self, side: int, expected: Any) -> None:
        """Compare with all rows so far, or with those since the last look, as for panes."""
        if not isinstance(expected, list):
            raise UnsupportedScenarioError(f"late rows must be a list, got `{expected}`")
        for one in expected:
            if isinstance(one, dict):
                known("a late row", one, {"row", "reason"})
        fresh, late = (
            [row for row in rows if row.side == side] for rows in (self._fresh_late, self._late)
        )
        self._fresh_late = [row for row in self._fresh_late if row.side != side]
        if any(unmatched(expected, fresh, _is_late)) and any(unmatched(expected, late, _is_late)):
            raise MismatchError(
                f"{self._where}: expected late {SIDES[side]} rows {expected}, got"
                f" {[(_name(r.message), r.reason) for r in fresh]}"
            )

    def _buffer(self, expected: Any) -> None:
        known("a buffer", mapping("a buffer", expected), SIDES)
        for side, name in enumerate(SIDES):
            found = [_name(message) for message in self._meeting.held(side)]
            if name in expected and not same_bag(expected[name], found):
                raise MismatchError(
                    f"{self._where}: expected the {name} rows {expected[name]} to be kept, got"
                    f" {found}"
                )

    def _out_wm(self, expected: Any) -> None:
        """Compare forwarded watermarks: numbers, or pairs of `left` or `right` and a number."""
        forwarded, self._forwarded = self._forwarded, []
        keyed = [one for one in expected if isinstance(one, list)]
        if keyed and (
            len(keyed) != len(expected)
            or not all(len(one) == 2 and one[0] in SIDES for one in keyed)
        ):
            raise UnsupportedScenarioError(
                f"watermarks are numbers, or all have `left` or `right` before them: {expected}"
            )
        for side in (LEFT, RIGHT) if keyed else (None,):
            numbers = (
                [one[1] for one in keyed if one[0] == SIDES[side]] if side is not None else expected
            )
            found = [mark for which, mark in forwarded if which == side]
            if [self._ticks.watermark(number) for number in numbers] != found:
                shown = [self._ticks.shown_watermark(mark) for mark in found]
                raise MismatchError(
                    f"{self._where}: expected {'' if side is None else SIDES[side] + ' '}watermarks"
                    f" {numbers}, got {shown}"
                )

    def _output_watermark(self, expected: Any) -> None:
        """Compare the least output watermark, or those of the sides."""
        wanted = expected if isinstance(expected, dict) else {"": expected}
        known("`output_watermark`", wanted, {"", *SIDES})
        for name, number in wanted.items():
            found = self._promised[SIDES.index(name) if name else None]
            if (MIN if number is None else self._ticks.watermark(number)) != found:
                raise MismatchError(
                    f"{self._where}: expected output watermark {number}, got"
                    f" {self._ticks.shown_watermark(found)}"
                )


def _name(message: Message | None) -> Any:
    """The name of a message in a scenario: its value, or its time where it has none."""
    return None if message is None else message.get("v", message.get("t"))


def _is_late(expected: Any, row: LateMessage) -> bool:
    if isinstance(expected, dict):
        return ("reason" not in expected or expected["reason"] == row.reason) and (
            "row" not in expected or _is_late(expected["row"], row)
        )
    return same_value(expected, _name(row.message))

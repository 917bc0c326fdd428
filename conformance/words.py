"""Words of other systems: their triggers, their presets, and their rules for sessions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from conformance.manual import Manual
from tidegate.scenarios.document import Scenario, UnsupportedScenarioError
from tidegate.scenarios.ticks import ticks_of
from tidegate.scenarios.trigger_words import (
    Call,
    ParsedTrigger,
    TriggerReader,
    TriggerWord,
    counting,
    parse_call,
    plain,
    timed,
    whole_number,
)
from tidegate.scenarios.window_words import events_in
from tidegate.spec.triggers import (
    AfterCount,
    AfterWatermark,
    EventInterval,
    Every,
    Never,
    Policy,
    Repeatedly,
    Trigger,
)

PRESETS = {
    "beam": "beam",
    "flink": "flink",
    "hazelcast": "hazelcast",
    "malhar": "apex",
    "apex": "apex",
    "samza": "samza",
    "spark": "spark",
}
"""The preset of scenarios whose id begins with the name of a system."""
_SAMZA = re.compile(
    r"^(?:early\s*=\s*(?P<early>.+?)\s*,\s*)?default\s*=\s*(?P<default>window end|session gap"
    r" elapsed)$",
    re.DOTALL,
)


def prepared(scenario: Scenario) -> Scenario:
    """The scenario under the preset of its system, with its window in our words."""
    preset = PRESETS.get(scenario.id.split(".", 1)[0], scenario.preset)
    scenario = replace(scenario, preset=preset)
    window = scenario.config.get("window")
    if not isinstance(window, dict) or window.get("type") != "session":
        return scenario
    return replace(scenario, config={**scenario.config, "window": _session(scenario, window)})


def _session(scenario: Scenario, window: Mapping[str, Any]) -> dict[str, Any]:
    written = dict(window)
    if written.get("touch") == "asymmetric":
        _refuse_touching(scenario, window)
        written["touch"] = "separate"
    if "zero_gap_when_v" in written:
        rules = written.get("gap_rule") or []
        written["gap_rule"] = [{"v": written.pop("zero_gap_when_v"), "gap": 0}, *rules]
    return written


def _refuse_touching(scenario: Scenario, window: Mapping[str, Any]) -> None:
    """Malhar's rule equals `separate` unless two events are exactly one gap apart."""
    ticks = ticks_of(scenario)
    if "gap" not in window:
        raise UnsupportedScenarioError("the window of type `session` needs `gap`")
    times = {ticks(event["t"]) for event in events_in(scenario.body) if "t" in event}
    if any(time + ticks(window["gap"]) in times for time in times):
        raise UnsupportedScenarioError(
            "`touch: asymmetric` is not offered, and two events are exactly one gap apart, where it"
            " would matter"
        )


def read_trigger_text(text: str, reader: TriggerReader) -> ParsedTrigger | None:
    """Samza's notation, and Flink's words that set more than the trigger; None for all others."""
    samza = _SAMZA.match(text)
    if samza:
        early = samza["early"] and reader.build(parse_call(samza["early"]))
        return ParsedTrigger(Policy(early=early or None, late=None), clock=True)
    call = parse_call(text)
    if call.name != "Purging":
        return _flink(call)
    call.check(1)
    inner = call.args[0]
    if not isinstance(inner, Call):
        raise UnsupportedScenarioError(f"`{call.name}` takes a trigger")
    return replace(_flink(inner) or ParsedTrigger(reader.build(inner)), mode="discarding")


def _flink(call: Call) -> ParsedTrigger | None:
    if call.name == "ProcessingTime":
        call.check(0)
        return ParsedTrigger(AfterWatermark(), clock=True)
    if call.name == "EndOfStream":
        call.check(0)
        return ParsedTrigger(Never(), closing="if_nonempty")
    return None


def _early_every(call: Call, reader: TriggerReader) -> Trigger:
    """Malhar's early firings; its clock fires again without new elements."""
    call.check(0, 0, frozenset({"time", "count"}))
    if call.named.keys() == {"time"}:
        return AfterWatermark(early=Every(reader.ticks(call.named["time"]), refire=True))
    if call.named.keys() == {"count"}:
        return AfterWatermark(early=AfterCount(whole_number(call.named["count"])))
    raise UnsupportedScenarioError("`EarlyEvery` takes either `time` or `count`")


TRIGGERS: dict[str, TriggerWord] = {
    "EventTime": plain(lambda: AfterWatermark(late=AfterCount(1))),
    "Count": counting(lambda n: Repeatedly(AfterCount(n))),
    "ContinuousEventTime": timed(
        lambda d: AfterWatermark(early=EventInterval(d, refire=True), late=AfterCount(1))
    ),
    "EarlyEvery": _early_every,
    "Manual": plain(Manual),
}

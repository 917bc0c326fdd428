"""Words of other systems: their triggers, their presets, and their rules for sessions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from conformance.manual import Manual
from tidegate.scenarios.document import Scenario, UnsupportedScenarioError, known, mapping
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

_BEAM_PYTHON = ("beam.pipeline.", "beam.transcript.", "beam.driver.")
_GAP_RULE = re.compile(
    r"(?:(?P<key>\w+):|otherwise)\s*(?P<gap>-?\d+)"
    r"(?:\s+if\s+v\s*==\s*(?P<value>-?\d+)\s+else\s+(?P<rest>-?\d+))?"
)


def prepared(scenario: Scenario) -> Scenario:
    """The scenario under the preset of its system, with its words in ours."""
    preset = PRESETS.get(scenario.id.split(".", 1)[0], scenario.preset)
    config, body = {**_habits(scenario), **scenario.config}, scenario.body
    if "one_event_per_tick" in config:
        given = config.pop("one_event_per_tick")
        body = {**body, "steps": [*_one_per_tick(given), *scenario.entries("steps")]}
    scenario = replace(scenario, preset=preset, config=config, body=body)
    if isinstance(config.get("window"), dict):
        config["window"] = _window(scenario, config["window"])
    if isinstance(config.get("plan"), list):
        config["plan"] = [
            {**stage, "window": _window(scenario, stage["window"])}
            if isinstance(stage, dict) and isinstance(stage.get("window"), dict)
            else stage
            for stage in config["plan"]
        ]
    return scenario


def _habits(scenario: Scenario) -> dict[str, Any]:
    """In Beam's Python SDK, a trigger without the watermark has no empty on-time pane."""
    timed = re.search("AfterWatermark|Default", str(scenario.config.get("trigger", "Default")))
    is_python = scenario.id.startswith(_BEAM_PYTHON)
    return {"on_time": "if_nonempty"} if is_python and timed is None else {}


def _one_per_tick(given: Any) -> list[dict[str, Any]]:
    """Steps that move the clock by one and add an event with that time, from a tick to another."""
    known("`one_event_per_tick`", mapping("`one_event_per_tick`", given), {"from", "to"})
    return [
        step
        for tick in range(int(given["from"]), int(given["to"]) + 1)
        for step in ({"processing_time": tick}, {"events": [{"t": tick, "v": tick}]})
    ]


def _window(scenario: Scenario, window: Mapping[str, Any]) -> dict[str, Any]:
    """The window with the words of its system in ours."""
    if window.get("type") == "session":
        return _session(scenario, window)
    written = dict(window)
    if "start_day" in written:
        written["day"] = written.pop("start_day")
    if "month_day" in written:
        month, _, day = str(written.pop("month_day")).partition("-")
        written |= {"month": month, "day": day}
    return written


def _session(scenario: Scenario, window: Mapping[str, Any]) -> dict[str, Any]:
    written = dict(window)
    if written.get("touch") == "asymmetric":
        _refuse_touching(scenario, window)
        written["touch"] = "separate"
    if "zero_gap_when_v" in written:
        rules = written.get("gap_rule") or []
        written["gap_rule"] = [{"v": written.pop("zero_gap_when_v"), "gap": 0}, *rules]
    if isinstance(written.get("gap_rule"), str):
        written["gap_rule"] = [
            rule for part in written["gap_rule"].split(";") for rule in _gap_rules(part.strip())
        ]
    if scenario.system == "spark" and "gap_rule" in written:
        # Spark leaves out events with a gap of zero; in Tidegate they are a session of one point.
        written["gap_rule"] = [{**rule, "gap": rule["gap"] or -1} for rule in written["gap_rule"]]
    return written


def _gap_rules(text: str) -> list[dict[str, Any]]:
    """The rules of `KEY: GAP`, of `KEY: GAP if v == VALUE else GAP` or of `otherwise GAP`."""
    read = _GAP_RULE.fullmatch(text)
    if read is None:
        raise UnsupportedScenarioError(f"the gap rule `{text}` cannot be read")
    key = {} if read["key"] is None else {"k": read["key"]}
    if read["value"] is None:
        return [{**key, "gap": int(read["gap"])}]
    return [
        {**key, "v": int(read["value"]), "gap": int(read["gap"])},
        {**key, "gap": int(read["rest"])},
    ]


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

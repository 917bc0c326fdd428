"""The settings of an operator: the `config` of a scenario on top of its preset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from tidegate.instants import MAX
from tidegate.scenarios.document import Scenario, UnsupportedScenarioError, known
from tidegate.scenarios.ticks import Ticks
from tidegate.scenarios.trigger_words import ParsedTrigger, TriggerReader
from tidegate.scenarios.window_words import gap_rules, window_of
from tidegate.spec.presets import NAMES, system_preset
from tidegate.spec.triggers import AfterDelay, Policy, Trigger
from tidegate.spec.windows import Session, Window

MODES = {
    "accumulating": "accumulating",
    "discarding": "discarding",
    "accumulating_and_retracting": "retracting",
    "retracting": "retracting",
}
GRANULARITIES = {"bundle": "batch", "batch": "batch", "element": "element"}
ON_TIME = {"always": "always", "if_nonempty": "if_updated"}
CLOSING = {
    "always": "always",
    "if_nonempty": "if_nonempty",
    "never": "never",
    "never_without_trigger": "never",
}
COMBINERS = {"end_of_window": "end_of_window", "earliest": "earliest", "latest": "latest"}
LATE_RULES = {"element": "event", "event": "event", "window": "window"}
AGGREGATES = ("list", "sum", "count", "min", "max", "mean")

CONFIG = frozenset(
    {
        "semantics",
        "window",
        "trigger",
        "mode",
        "allowed_lateness",
        "timestamp_combiner",
        "closing",
        "on_time",
        "agg",
        "granularity",
        "time_domain",
        "initial_processing_time",
        "only_updated_panes",
        "fire_only_updated",
        "ordered",
        "late_rule",
        "drop_by",
        "session_lateness",
        "auto_output_watermark",
        "end_of_time",
        "future",
        "future_tolerance",
        "future_reference",
        "strict",
        "each_case_fresh",
    }
)
_LATENESS = 60_000_000
_LATE_DELAY = 10_000_000


@dataclass(frozen=True)
class OperatorSettings:
    """The settings of an operator, except the columns of its input."""

    window: Window
    trigger: Trigger
    mode: str
    allowed_lateness: int
    aggregate: str
    start: int = 0
    ordered: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    gap_rules: list[dict[str, Any]] | None = None


def operator_settings(
    scenario: Scenario, ticks: Ticks, *, more: frozenset[str] = frozenset()
) -> OperatorSettings:
    """The operator settings of a scenario; `more` names further config keys of its kind."""
    config = scenario.config
    known("`config`", config, CONFIG | more)
    if scenario.system not in NAMES:
        raise UnsupportedScenarioError(
            f"`semantics: {scenario.system}` is not one of {', '.join(NAMES)}"
        )
    parsed = _trigger(scenario, ticks)
    window = _on_clock(scenario, ticks) if parsed.clock else window_of(scenario, ticks)
    return OperatorSettings(
        window=window,
        trigger=parsed.trigger or Policy(late=AfterDelay(ticks.microseconds(_LATE_DELAY))),
        mode=parsed.mode or choice(config, "mode", MODES, system_preset(scenario.system).mode),
        allowed_lateness=lateness_of(scenario, ticks),
        aggregate=choice(config, "agg", dict.fromkeys(AGGREGATES), "list")
        and str(config.get("agg", "list")),
        start=ticks(config.get("initial_processing_time", 0)),
        ordered=bool(config.get("ordered", False)),
        options=_options(scenario, ticks, parsed),
        gap_rules=(
            gap_rules(config["window"])
            if isinstance(window, Session) and window.gap_column
            else None
        ),
    )


def _trigger(scenario: Scenario, ticks: Ticks) -> ParsedTrigger:
    text = scenario.config.get("trigger")
    if text is None:
        return ParsedTrigger(system_preset(scenario.system).trigger)
    return TriggerReader(ticks, scenario.extension).read(str(text))


def _on_clock(scenario: Scenario, ticks: Ticks) -> Window:
    """The window on the clock, for a trigger that needs one; refuses event time."""
    if scenario.config.get("time_domain", "processing") != "processing":
        raise UnsupportedScenarioError(
            f"trigger `{scenario.config['trigger']}` needs `time_domain: processing`"
        )
    given = scenario.config.get("window")
    return window_of(
        scenario, ticks, {"axis": "clock", **given} if isinstance(given, dict) else given
    )


def choice(config: Mapping[str, Any], name: str, words: Mapping[str, Any], default: Any) -> Any:
    """The value of an option that is one of a few words."""
    if name not in config:
        return default
    word = config[name]
    if not isinstance(word, str) or word not in words:
        raise UnsupportedScenarioError(f"`{name}: {word}` is not one of {', '.join(words)}")
    return words[word] if words[word] is not None else word


def lateness_of(scenario: Scenario, ticks: Ticks) -> int:
    """The allowed lateness of the config. Default: that of the preset."""
    if "allowed_lateness" in scenario.config:
        return ticks(scenario.config["allowed_lateness"])
    habit = system_preset(scenario.system).allowed_lateness
    return ticks.microseconds(_LATENESS) if habit is None else habit


def _options(scenario: Scenario, ticks: Ticks, parsed: ParsedTrigger) -> dict[str, Any]:
    """The options: those of the config over those of the trigger over those of the preset.

    The guard against events from the future is off by default.
    """
    config = scenario.config
    options: dict[str, Any] = {"future_tolerance": MAX, **system_preset(scenario.system).options}
    if parsed.closing:
        options["closing"] = parsed.closing
    for name, option, words in (
        ("granularity", "granularity", GRANULARITIES),
        ("on_time", "on_time", ON_TIME),
        ("closing", "closing", CLOSING),
        ("timestamp_combiner", "timestamp", COMBINERS),
        ("late_rule", "drop_by", LATE_RULES),
        ("drop_by", "drop_by", LATE_RULES),
        ("session_lateness", "session_lateness", {"own": "own", "merged": "merged"}),
        ("future", "future", {"process": "process", "reject": "reject"}),
        ("future_reference", "future_reference", {"clock": "clock", "watermark": "watermark"}),
    ):
        if name in config:
            options[option] = choice(config, name, words, None)
    for name, option in (
        ("only_updated_panes", "fire_only_updated"),
        ("fire_only_updated", "fire_only_updated"),
        ("strict", "strict"),
    ):
        if name in config:
            options[option] = flag(config, name)
    if "future_tolerance" in config:
        options["future_tolerance"] = ticks(config["future_tolerance"])
    if _watermark_must_be_refused(scenario):
        options["strict"] = True
    return options


def flag(config: Mapping[str, Any], name: str) -> bool:
    """An option that is true or false."""
    if not isinstance(config[name], bool):
        raise UnsupportedScenarioError(f"`{name}` must be true or false, got `{config[name]}`")
    return config[name]


def _watermark_must_be_refused(scenario: Scenario) -> bool:
    steps = scenario.entries("steps")
    pairs = (
        (step, after)
        for step, after in pairwise(steps)
        if isinstance(step, dict) and isinstance(after, dict)
    )
    return any("watermark" in step and after.get("error") for step, after in pairs)

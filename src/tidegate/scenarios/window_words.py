"""Window words: the window of a scenario's `config` as a window specification."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from datetime import date, timedelta
from typing import Any

from tidegate.scenarios.document import Scenario, UnsupportedScenarioError, known, mapping
from tidegate.scenarios.ticks import Ticks, calendar_date
from tidegate.spec.presets import system_preset
from tidegate.spec.windows import (
    Axis,
    ByDifference,
    Calendar,
    Cumulative,
    Global,
    Hopping,
    Session,
    Tumbling,
    Window,
)

GAP_COLUMN = "gap"
_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_FIELDS: dict[str, set[str]] = {
    "fixed": {"size", "offset"},
    "sliding": {"size", "period", "offset"},
    "cumulative": {"size", "step", "offset"},
    "session": {"gap", "touch", "gap_rule"},
    "global": set(),
    "tuples": {"size", "period", "offset"},
    "calendar_days": {"n", "start", "day", "month", "zone"},
    "calendar_weeks": {"n", "start", "day", "month", "zone"},
    "calendar_months": {"n", "start", "day", "month", "zone"},
    "calendar_years": {"n", "start", "day", "month", "zone"},
}
_OTHER_NAMES = {"tumbling": "fixed", "hopping": "sliding", "sessions": "session"}
"""Names of window types elsewhere."""
_RULE = {"k", "v", "gap"}


def window_of(scenario: Scenario, ticks: Ticks, given: Any = None) -> Window:
    """The window specification of a scenario; `given` replaces the window of its config."""
    config = mapping("`config.window`", scenario.config.get("window") if given is None else given)
    kind = config.get("type")
    if kind not in _FIELDS:
        near = _OTHER_NAMES.get(str(kind)) or next(
            iter(difflib.get_close_matches(str(kind), _FIELDS, 1)), None
        )
        hint = (
            f"did you mean `{near}`?"
            if near
            else f"one of {', '.join(f'`{name}`' for name in _FIELDS)}"
        )
        raise UnsupportedScenarioError(
            f"window type `{kind}` is not covered by this version. Hint: {hint}"
        )
    known(f"the window of type `{kind}`", config, _FIELDS[kind] | {"type", "axis", "create"})
    axis = _axis(scenario, config)
    if kind == "session":
        return _session(scenario, ticks, config, axis)
    if kind == "global":
        return Global(axis=axis)
    if kind.startswith("calendar_"):
        return _calendar(config, axis)
    return _aligned(config, ticks if axis.is_time else int, axis)


def _axis(scenario: Scenario, config: Mapping[str, Any]) -> Axis:
    domain = scenario.config.get("time_domain", "event")
    if domain not in {"event", "processing"}:
        raise UnsupportedScenarioError(f"time domain `{domain}` is not one of event, processing")
    default = (
        Axis.ORDINAL
        if config["type"] == "tuples"
        else Axis.CLOCK
        if domain == "processing"
        else Axis.EVENT_TIME
    )
    name = config.get("axis", default)
    if name not in tuple(Axis):
        raise UnsupportedScenarioError(f"axis `{name}` is not one of {', '.join(Axis)}")
    return Axis(name)


def _aligned(config: Mapping[str, Any], size_of: Any, axis: Axis) -> Window:
    size, offset = size_of(_need(config, "size")), size_of(config.get("offset", 0))
    create = config.get("create", "demand")
    if config["type"] == "cumulative":
        return Cumulative(size, size_of(_need(config, "step")), offset, axis, create)
    if "period" in config:
        return Hopping(size, size_of(config["period"]), offset, axis, create)
    if config["type"] == "sliding":
        if "offset" in config or "create" in config:
            raise UnsupportedScenarioError(
                "a sliding window without `period` is made by its events and takes no `offset` or"
                " `create`"
            )
        return ByDifference(size, axis)
    return Tumbling(size, offset, axis, create)


def _session(scenario: Scenario, ticks: Ticks, config: Mapping[str, Any], axis: Axis) -> Session:
    touch = config.get("touch", system_preset(scenario.system).touch)
    if touch not in {"separate", "merge"}:
        raise UnsupportedScenarioError(f"`touch: {touch}` is not one of separate, merge")
    if "gap_rule" in config or any("gap" in event for event in events_in(scenario.body)):
        gap_rules(config)
        return Session(gap_column=GAP_COLUMN, touch=touch, axis=axis)
    gap = _need(config, "gap")
    return Session(gap=ticks(gap) if axis.is_time else int(gap), touch=touch, axis=axis)


def events_in(value: Any) -> list[dict[str, Any]]:
    """All events of a scenario's body."""
    if isinstance(value, dict):
        return [
            e
            for key, inner in value.items()
            for e in (inner if key == "events" else events_in(inner))
            if isinstance(e, dict)
        ]
    return (
        [event for inner in value for event in events_in(inner)] if isinstance(value, list) else []
    )


def _calendar(config: Mapping[str, Any], axis: Axis) -> Calendar:
    unit: Any = config["type"].removeprefix("calendar_").removesuffix("s")
    start = None
    if config.keys() & {"start", "day", "month"}:
        try:
            start = _first_day(config, unit).isoformat()
        except (TypeError, ValueError) as unread:
            raise UnsupportedScenarioError(
                f"the start of the window of type `{config['type']}` cannot be read: {unread}"
            ) from unread
    return Calendar(
        unit,
        int(config.get("n", 1)),
        str(config.get("zone", "UTC")),
        start,
        axis,
        config.get("create", "demand"),
    )


def _first_day(config: Mapping[str, Any], unit: str) -> date:
    """The start of the first calendar window; `day` of weeks is a weekday, by name or from 1."""
    if unit == "week" and "day" in config:
        first = calendar_date(config.get("start", "1970-01-05"))
        name = str(config["day"]).lower()
        number = _WEEKDAYS.index(name) if name in _WEEKDAYS else int(name) - 1
        return first + timedelta(days=(number - first.weekday()) % len(_WEEKDAYS))
    first = calendar_date(config.get("start", "1970"))
    return first.replace(
        month=int(config.get("month", first.month)), day=int(config.get("day", first.day))
    )


def gap_rules(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Gap rules for events without a gap: the first whose `k` and `v` fit, then plain `gap`."""
    rules = list(config.get("gap_rule") or [])
    if not all(isinstance(rule, dict) and "gap" in rule and rule.keys() <= _RULE for rule in rules):
        raise UnsupportedScenarioError(
            "`gap_rule` must be a list of mappings with `gap` and, to narrow it, `k` or `v`"
        )
    if "gap" in config:
        rules.append({"gap": config["gap"]})
    return rules


def gap_of(rules: list[dict[str, Any]], event: Mapping[str, Any]) -> Any:
    """The gap of an event, in units of the scenario; None if it has none and no rule fits."""
    if "gap" in event:
        return event["gap"]
    return next(
        (r["gap"] for r in rules if all(event.get(f) == r[f] for f in ("k", "v") if f in r)), None
    )


def _need(config: Mapping[str, Any], field: str) -> Any:
    if field not in config:
        raise UnsupportedScenarioError(f"the window of type `{config['type']}` needs `{field}`")
    return config[field]

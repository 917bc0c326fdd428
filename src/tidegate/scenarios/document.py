"""Scenario documents: YAML files parsed into scenarios, and the outcome of a scenario."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tidegate.errors import ParseError
from tidegate.scenarios.extension import NO_EXTENSION, Extension

PASS, FAIL, UNSUPPORTED = "pass", "fail", "unsupported"

ENVELOPE = frozenset(
    {
        "id",
        "kind",
        "src",
        "unit",
        "wm",
        "features",
        "config",
        "fidelity",
        "note",
        "must_fail",
        "each_case_fresh",
    }
)
OUR_PRESET = "tidegate"
MOST_PARTS = 1_000_000
"""The maximum number of values in a file, after anchors."""


class UnsupportedScenarioError(Exception):
    """The scenario uses a kind, key or word that the runner does not know; the text names it."""


class MismatchError(Exception):
    """The output differs from the expectation; the text is the difference."""


@dataclass(frozen=True)
class Outcome:
    """How one scenario ended."""

    id: str
    status: str
    detail: str = ""


@dataclass(frozen=True)
class Scenario:
    """One scenario: its envelope, and the fields of its kind as written."""

    id: str
    kind: str
    unit: str = "tick"
    wm: str = "exclusive"
    config: Mapping[str, Any] = field(default_factory=dict)
    body: Mapping[str, Any] = field(default_factory=dict)
    must_fail: bool = False
    each_case_fresh: bool = False
    preset: str = OUR_PRESET
    """The preset where `config` has no `semantics`."""
    extension: Extension = NO_EXTENSION

    @property
    def system(self) -> str:
        """The preset that the scenario runs under."""
        return str(self.config.get("semantics") or self.preset)

    def entries(self, name: str) -> list[Any]:
        """A list of the body, such as `steps` or `cases`."""
        value = self.body.get(name, [])
        if not isinstance(value, list):
            raise UnsupportedScenarioError(f"`{name}` must be a list, got {type(value).__name__}")
        return value


def load(path: Path, extension: Extension = NO_EXTENSION) -> list[Scenario]:
    """The scenarios of one file, in order."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ParseError(f"Scenario file `{path}` cannot be read: {error}.") from error
    return parse(text, str(path), extension)


def parse(text: str, name: str = "<text>", extension: Extension = NO_EXTENSION) -> list[Scenario]:
    """The scenarios of a YAML text; errors call the text `name`."""
    try:
        content = yaml.safe_load(text)
    except RecursionError:
        raise ParseError(
            f"Scenario file `{name}` is nested too deeply. Hint: flatten it."
        ) from None
    except (yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError) as error:
        # The constructors of YAML's types raise any of them for `!!timestamp x`.
        raise ParseError(f"Scenario file `{name}` is not valid YAML: {error}") from error
    _check_size(content, name)
    if not isinstance(content, list):
        raise ParseError(
            f"Scenario file `{name}` must hold one list of scenarios; got {type(content).__name__}."
            " Hint: begin each with `- id:`."
        )
    scenarios = [
        _scenario(item, name, position, extension) for position, item in enumerate(content)
    ]
    ids = Counter(scenario.id for scenario in scenarios)
    twice = [one for one, count in ids.items() if count > 1]
    if twice:
        raise ParseError(
            f"Scenario file `{name}` uses an id more than once: {', '.join(sorted(twice))}."
        )
    return scenarios


def _check_size(content: Any, name: str) -> None:
    """Refuse anchors that expand without bound, or contain themselves."""
    level, parts = [content], 0
    while level:
        value = level.pop()
        inner = [*value, *value.values()] if isinstance(value, dict) else value
        if isinstance(inner, list | tuple | set):
            parts += len(inner)
            level.extend(inner)
        if parts > MOST_PARTS:
            raise ParseError(
                f"Scenario file `{name}` has more than {MOST_PARTS:,} parts, counting what anchors"
                " repeat. Hint: divide it."
            )


def _scenario(item: Any, name: str, position: int, extension: Extension) -> Scenario:
    if not isinstance(item, dict) or not all(isinstance(item.get(f), str) for f in ("id", "kind")):
        raise ParseError(
            f"Entry {position + 1} of scenario file `{name}` must be a mapping with the texts `id`"
            " and `kind`."
        )
    config = item.get("config") or {}
    if not isinstance(config, dict):
        raise ParseError(
            f"`config` of scenario `{item['id']}` in `{name}` must be a mapping; got"
            f" {type(config).__name__}."
        )
    return Scenario(
        id=item["id"],
        kind=item["kind"],
        unit=str(item.get("unit", "tick")),
        wm=str(item.get("wm", "exclusive")),
        config=config,
        body={key: value for key, value in item.items() if key not in ENVELOPE},
        must_fail=bool(item.get("must_fail", False)),
        each_case_fresh=bool(item.get("each_case_fresh", config.get("each_case_fresh", False))),
        extension=extension,
    )


def known(where: str, found: Iterable[Any], allowed: Iterable[str]) -> None:
    """Refuse unknown keys: one of them could change the meaning of all others."""
    unknown = sorted(str(key) for key in set(found) - set(allowed))
    if unknown:
        raise UnsupportedScenarioError(
            f"unknown {'keys' if len(unknown) > 1 else 'key'}"
            f" {', '.join(f'`{key}`' for key in unknown)} in {where}"
        )


def mapping(where: str, value: Any) -> dict[str, Any]:
    """The value, which must be a mapping."""
    if not isinstance(value, dict):
        raise UnsupportedScenarioError(f"{where} must be a mapping, got `{value}`")
    return value


def steps_of(scenario: Scenario, allowed: Iterable[str]) -> list[dict[str, Any]]:
    """The checked steps, in order; a `case` without a fresh start is a group of steps."""
    name = "steps" if "steps" in scenario.body else "cases"
    known("the scenario", scenario.body, {name})
    return _flat(scenario.entries(name), frozenset(allowed))


def _flat(entries: list[Any], allowed: frozenset[str]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for entry in entries:
        step = mapping("a step", entry)
        if "case" in step:
            known("a case", step, {"case"})
            if not isinstance(step["case"], list):
                raise UnsupportedScenarioError(
                    f"a `case` must be a list of steps, got `{step['case']}`"
                )
            found += _flat(step["case"], allowed)
        else:
            known("a step", step, allowed)
            if step.keys() == {"error"} and found:
                # A step with `error` alone is about the step before it.
                found[-1] = found[-1] | step
            else:
                found.append(step)
    return found


def is_set(step: Mapping[str, Any], name: str) -> bool:
    """Whether a step has a flag: `true`, or left out."""
    value = step.get(name, False)
    if not isinstance(value, bool):
        raise UnsupportedScenarioError(f"`{name}` of a step must be true or false, got `{value}`")
    return value

"""Scenario documents: YAML files read into scenarios, and the outcome that a scenario ends with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tidegate.errors import ParseError

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
SYSTEMS = {
    "beam": "beam",
    "flink": "flink",
    "hazelcast": "hazelcast",
    "malhar": "apex",
    "apex": "apex",
    "samza": "samza",
    "spark": "spark",
}


class UnsupportedScenarioError(Exception):
    """The scenario asks for something that this runner does not know; the text says what."""


class MismatchError(Exception):
    """What came out is not what the scenario demands; the text is the difference."""


@dataclass(frozen=True)
class Outcome:
    """How one scenario ended."""

    id: str
    status: str
    detail: str = ""


@dataclass(frozen=True)
class Scenario:
    """One scenario: its envelope, and the fields of its kind as they were written."""

    id: str
    kind: str
    unit: str = "tick"
    wm: str = "exclusive"
    config: Mapping[str, Any] = field(default_factory=dict)
    body: Mapping[str, Any] = field(default_factory=dict)
    must_fail: bool = False
    each_case_fresh: bool = False

    @property
    def system(self) -> str:
        """The preset it runs under: `semantics` of its config, else the system its id begins with,
        else ours.
        """
        return str(
            self.config.get("semantics") or SYSTEMS.get(self.id.split(".", 1)[0], "tidegate")
        )

    def entries(self, name: str) -> list[Any]:
        """A list of the body, such as `steps` or `cases`."""
        value = self.body.get(name, [])
        if not isinstance(value, list):
            raise UnsupportedScenarioError(f"`{name}` must be a list, got {type(value).__name__}")
        return value


def load(path: Path) -> list[Scenario]:
    """The scenarios of one file, in order."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ParseError(f"Scenario file `{path}` cannot be read: {error}.") from error
    return parse(text, str(path))


def parse(text: str, name: str = "<text>") -> list[Scenario]:
    """The scenarios in a YAML text; `name` stands for it in errors."""
    try:
        content = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as error:
        raise ParseError(f"Scenario file `{name}` is not valid YAML: {error}") from error
    if not isinstance(content, list):
        raise ParseError(
            f"Scenario file `{name}` must hold one list of scenarios; got {type(content).__name__}."
            " Hint: begin each with `- id:`."
        )
    scenarios = [_scenario(item, name, position) for position, item in enumerate(content)]
    twice = {s.id for i, s in enumerate(scenarios) if s.id in {t.id for t in scenarios[:i]}}
    if twice:
        raise ParseError(
            f"Scenario file `{name}` uses an id more than once: {', '.join(sorted(twice))}."
        )
    return scenarios


def _scenario(item: Any, name: str, position: int) -> Scenario:
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
    )


def known(where: str, found: Iterable[Any], allowed: Iterable[str]) -> None:
    """Refuse keys that the runner does not know: they could change the meaning of all the
    others.
    """
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

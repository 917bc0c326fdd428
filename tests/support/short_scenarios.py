"""Short scenarios of single kinds, written as the lines of their steps."""

from __future__ import annotations

from typing import Any

import yaml

from conformance import Outcome, parse, run


def outcome(text: str) -> Outcome:
    (scenario,) = parse(text)
    return run(scenario)


def outcome_of(item: dict[str, Any]) -> Outcome:
    return outcome(yaml.safe_dump([item], sort_keys=False))


def coalesced(config: str, *steps: str, wm: str = "exclusive") -> Outcome:
    lines = "\n".join(f"    - {{{step}}}" for step in steps)
    return outcome(
        f"- id: mine.coalesce\n  kind: coalesce\n  wm: {wm}\n  config: {{{config}}}\n "
        f" steps:\n{lines}\n"
    )


def generated(config: str, *steps: str, wm: str = "exclusive") -> Outcome:
    lines = "\n".join(f"    - {{{step}}}" for step in steps)
    return outcome(
        f"- id: mine.generate\n  kind: generate\n  wm: {wm}\n  config: {{{config}}}\n "
        f" steps:\n{lines}\n"
    )


def called(config: str, *steps: str) -> Outcome:
    lines = "\n".join(f"    - {{{step}}}" for step in steps)
    return outcome(f"- id: mine.async\n  kind: async\n  config: {{{config}}}\n  steps:\n{lines}\n")


def timer(semantics: str, *steps: str) -> Outcome:
    lines = ", ".join(f"{{{step}}}" for step in steps)
    return outcome(
        f"- {{id: x, kind: idleness, config: {{semantics: {semantics}}}, steps: [{lines}]}}"
    )


# The same thing in the words of another author.


def idle_timer(config: str, *steps: str) -> Outcome:
    lines = "\n".join(f"    - {{{step}}}" for step in steps)
    return outcome(
        f"- id: mine.idleness\n  kind: idleness\n  config: {{{config}}}\n  steps:\n{lines}\n"
    )

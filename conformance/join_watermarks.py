"""The kind `join_watermark`: the output watermark of a join under those of its inputs."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from tidegate.scenarios.document import (
    MismatchError,
    Scenario,
    UnsupportedScenarioError,
    known,
    mapping,
)
from tidegate.scenarios.join_adapter import JoinUnderTest, Terms
from tidegate.scenarios.join_words import TYPES, read_condition, read_match
from tidegate.scenarios.joins import check_preset
from tidegate.scenarios.runtimes import EMBEDDED, Runtime
from tidegate.scenarios.settings import choice
from tidegate.scenarios.ticks import MICROSECONDS, Ticks, ticks_of
from tidegate.spec.join import LEFT, RIGHT, SIDES
from tidegate.spec.presets import system_preset

# A watermark does not depend on batches, but plans of Spark name their batches.
WATERMARK_CONFIG = frozenset(
    {"no_data_batches", "input_watermark", "input_watermark_ms", "semantics", "each_case_fresh"}
)
CASE = frozenset(
    {
        "match",
        "type",
        "input_watermark",
        "input_watermark_ms",
        "left_watermark",
        "right_watermark",
        "output_watermark",
        "output_watermark_ms",
    }
    | {"output_watermarks"}
)
_LATER = {"spark": Fraction(1, 1000)}
"""In seconds, how much less than it knows a system promises downstream of a join."""


def run_join_watermark(scenario: Scenario, runtime: Runtime = EMBEDDED) -> None:
    """Each case: what is promised downstream under the watermarks of the inputs."""
    known("the scenario", scenario.body, {"cases"})
    known("`config`", scenario.config, WATERMARK_CONFIG)
    check_preset(scenario)
    ticks = ticks_of(scenario)
    for number, case in enumerate(scenario.entries("cases"), 1):
        known("a case", mapping("a case", case), CASE)
        _Promise({**scenario.config, **case}, scenario, ticks, runtime).check(f"case {number}")


class _Promise:
    """One case of the kind `join_watermark`."""

    def __init__(
        self, case: Mapping[str, Any], scenario: Scenario, ticks: Ticks, runtime: Runtime
    ) -> None:
        self._case, self._ticks = case, ticks
        self._later = (
            _LATER.get(scenario.system, Fraction(0)) * 1_000_000 / MICROSECONDS[ticks.unit]
        )
        given = case.get("match")
        bound = (
            read_match(given, ticks)
            if isinstance(given, dict)
            else read_condition(given, ticks).bound
        )
        if bound is None:
            raise UnsupportedScenarioError(
                f"the output watermark follows from bounds of times, got `{given}`"
            )
        terms = Terms(
            (bound,),
            choice(case, "type", TYPES, "inner"),
            options=system_preset(scenario.system).options,
        )
        self._meeting = JoinUnderTest(terms, ticks, runtime)
        for side in (LEFT, RIGHT):
            self._meeting.advance_watermark(side, self._input(f"{SIDES[side]}_watermark"))

    def _input(self, name: str) -> int:
        for word in (name, "input_watermark"):
            if word in self._case:
                return self._ticks.watermark(self._case[word])
        if "input_watermark_ms" in self._case:
            return self._ticks.watermark(f"{self._case['input_watermark_ms']} ms")
        raise UnsupportedScenarioError(
            f"a case needs `{name}`, `input_watermark` or `input_watermark_ms`"
        )

    def check(self, where: str) -> None:
        if self._meeting.is_rehearsed:
            return
        case, units = self._case, Fraction(MICROSECONDS[self._ticks.unit], 1000)
        looks: list[tuple[int | None, Any, Fraction]] = (
            [(None, case["output_watermark"], Fraction(1))] if "output_watermark" in case else []
        )
        looks += (
            [(None, case["output_watermark_ms"], units)] if "output_watermark_ms" in case else []
        )
        sides = mapping("`output_watermarks`", case.get("output_watermarks", {}))
        known("`output_watermarks`", sides, SIDES)
        looks += [(SIDES.index(name), number, Fraction(1)) for name, number in sides.items()]
        if not looks:
            raise UnsupportedScenarioError("a case says no output watermark")
        for side, wanted, scale in looks:
            found = self._meeting.output_watermark(side)
            number = self._ticks.shown_watermark(found)
            found_value = (
                number if isinstance(number, str) else (Fraction(str(number)) - self._later) * scale
            )
            if (Fraction(str(wanted)) if not isinstance(wanted, str) else wanted) != found_value:
                raise MismatchError(f"{where}: expected {wanted} to be promised, got {found_value}")

"""Conformance with other systems: their scenarios, and the kinds and words that these use.

`python -m conformance FILE...`, run from the root of the repository, replays scenario files as
`tidegate replay` does, with the further kinds and words of this package. Tidegate itself never
imports it.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from conformance.kinds import EXTENSION, KINDS
from tidegate import scenarios
from tidegate.scenarios import FAIL, PASS, UNSUPPORTED, Outcome, Scenario, run

FOLDER = Path(__file__).parent / "scenarios"
"""The scenario files of other systems."""

load = partial(scenarios.load, extension=EXTENSION)
parse = partial(scenarios.parse, extension=EXTENSION)

__all__ = [
    "EXTENSION",
    "FAIL",
    "FOLDER",
    "KINDS",
    "PASS",
    "UNSUPPORTED",
    "Outcome",
    "Scenario",
    "load",
    "parse",
    "run",
]

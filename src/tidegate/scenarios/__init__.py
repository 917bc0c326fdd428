"""Scenarios: timelines of events, watermarks and clock times as data, with the panes that must come
out, run against an operator.
"""

from __future__ import annotations

from tidegate.scenarios.document import FAIL, PASS, UNSUPPORTED, Outcome, Scenario, load, parse
from tidegate.scenarios.runner import KINDS, run, run_files

__all__ = [
    "FAIL",
    "KINDS",
    "PASS",
    "UNSUPPORTED",
    "Outcome",
    "Scenario",
    "load",
    "parse",
    "run",
    "run_files",
]

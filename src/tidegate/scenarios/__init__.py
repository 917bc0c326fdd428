"""Scenarios: tests of pipelines as data, with events, watermarks, clock and expected panes."""

from __future__ import annotations

from tidegate.scenarios.document import FAIL, PASS, UNSUPPORTED, Outcome, Scenario, load, parse
from tidegate.scenarios.extension import NO_EXTENSION, Extension, Kind
from tidegate.scenarios.runner import KINDS, run, run_files

__all__ = [
    "FAIL",
    "KINDS",
    "NO_EXTENSION",
    "PASS",
    "UNSUPPORTED",
    "Extension",
    "Kind",
    "Outcome",
    "Scenario",
    "load",
    "parse",
    "run",
    "run_files",
]

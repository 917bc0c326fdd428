"""The runner: gives each scenario to the code of its kind, and turns the result into an outcome."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from tidegate.errors import MissingExtraError, SetupError, TidegateError
from tidegate.scenarios.document import (
    FAIL,
    PASS,
    UNSUPPORTED,
    MismatchError,
    Outcome,
    Scenario,
    UnsupportedScenarioError,
    known,
    load,
)
from tidegate.scenarios.extension import NO_EXTENSION, Extension, Kind
from tidegate.scenarios.joins import run_join
from tidegate.scenarios.merges import run_cogroup
from tidegate.scenarios.panes import run_panes, run_panes_by_window
from tidegate.scenarios.runtimes import Runtime

KINDS: dict[str, Kind] = {
    "panes": Kind(run_panes, run_panes),
    "panes_by_window": Kind(run_panes_by_window, run_panes_by_window),
    "cogroup": Kind(run_cogroup, run_cogroup),
    "join": Kind(run_join, run_join),
}
"""The kinds of `tidegate replay`; extensions add theirs."""


def run_files(
    paths: Iterable[Path], *, runtime: str = "embedded", extension: Extension = NO_EXTENSION
) -> Iterator[Outcome]:
    """The outcomes of all scenarios of all files; reads every file before the first one runs."""
    loaded = [scenario for path in paths for scenario in load(path, extension)]
    if runtime == "embedded":
        return map(run, loaded)
    try:
        from tidegate.scenarios.spark_runtime import run_on_spark
    except ImportError as missing:
        if (missing.name or "").split(".")[0] != "pyspark":
            raise
        if missing.name != "pyspark":
            raise SetupError(
                "scenarios run on Spark 4.2 or newer, the one that is installed is older. Hint: pip"
                " install 'pyspark>=4.2'"
            ) from None
        raise MissingExtraError("pyspark", "spark", "the runtime `spark`") from None
    return iter(run_on_spark(loaded))


def run(scenario: Scenario) -> Outcome:
    """Run one scenario in this process; no scenario makes this raise."""
    return _outcome(scenario, lambda part: _kind(part).run(part))


def run_on(scenario: Scenario, runtime: Runtime) -> Outcome:
    """Run one scenario with operators of a runtime; kinds without operators are unsupported."""

    def run_part(part: Scenario) -> None:
        kind = _kind(part)
        if kind.on is None:
            raise UnsupportedScenarioError(f"kind `{part.kind}` does not involve a runtime")
        kind.on(part, runtime)

    return _outcome(scenario, run_part)


def _outcome(scenario: Scenario, run_part: Callable[[Scenario], None]) -> Outcome:
    try:
        for part in _parts(scenario):
            run_part(part.extension.prepare(part))
    except UnsupportedScenarioError as reason:
        return Outcome(scenario.id, UNSUPPORTED, str(reason))
    except MismatchError as difference:
        return (
            Outcome(scenario.id, PASS)
            if scenario.must_fail
            else Outcome(scenario.id, FAIL, str(difference))
        )
    except TidegateError as error:
        return Outcome(scenario.id, FAIL, f"refused: {error}")
    except Exception as error:  # noqa: BLE001 - the scenarios after it still run
        return Outcome(scenario.id, FAIL, f"broke off with {type(error).__name__}: {error}")
    if scenario.must_fail:
        return Outcome(scenario.id, FAIL, "a mismatch must be found, but everything matched")
    return Outcome(scenario.id, PASS)


def _kind(scenario: Scenario) -> Kind:
    kinds = {**KINDS, **scenario.extension.kinds}
    if scenario.kind not in kinds:
        raise UnsupportedScenarioError(
            f"kind `{scenario.kind}` is not one of {', '.join(sorted(kinds))}"
        )
    return kinds[scenario.kind]


def _parts(scenario: Scenario) -> list[Scenario]:
    """The scenario, or one for each `case` list where every case starts afresh."""
    if not scenario.each_case_fresh:
        return [scenario]
    name = "steps" if "steps" in scenario.body else "cases"
    entries: list[Any] = scenario.entries(name)
    for entry in entries:
        if isinstance(entry, dict) and "case" in entry:
            known("a case", entry, {"case"})
    if not all(
        isinstance(entry, dict) and entry.keys() == {"case"} and isinstance(entry["case"], list)
        for entry in entries
    ):
        raise UnsupportedScenarioError(
            f"with `each_case_fresh`, `{name}` must be a list of `case` lists"
        )
    return [
        replace(scenario, body={**scenario.body, name: entry["case"]}, each_case_fresh=False)
        for entry in entries
    ]

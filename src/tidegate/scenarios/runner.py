"""The runner gives each scenario to the code of its kind and turns what happens into an outcome."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from tidegate.errors import MissingExtraError, SetupError, TidegateError
from tidegate.scenarios.assignment import (
    run_assign,
    run_groups,
    run_merge,
    run_merge_sequence,
    run_sessions,
)
from tidegate.scenarios.asynchrony import run_async
from tidegate.scenarios.checks import run_classify, run_state_store, run_validation
from tidegate.scenarios.coalescing import run_coalesce
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
from tidegate.scenarios.generating import run_generate, run_idleness
from tidegate.scenarios.grouping import group, group_sessions
from tidegate.scenarios.joining import run_join, run_join_watermark
from tidegate.scenarios.machines import run_trigger
from tidegate.scenarios.merging import run_cogroup
from tidegate.scenarios.microbatch import run_microbatch
from tidegate.scenarios.panes import run_panes, run_panes_by_window
from tidegate.scenarios.runtimes import Runtime
from tidegate.scenarios.streams import (
    run_compare,
    run_stream_cut,
    run_time_window,
    run_writer_activity,
    run_writer_marks,
)
from tidegate.scenarios.worked import run_worked_example

Kind = Callable[[Scenario], None]
KINDS: dict[str, Kind] = {
    "panes": run_panes,
    "panes_by_window": run_panes_by_window,
    "trigger": run_trigger,
    "assign": run_assign,
    "groups": run_groups,
    "sessions": run_sessions,
    "merge": run_merge,
    "merge_sequence": run_merge_sequence,
    "classify": run_classify,
    "validation": run_validation,
    "state_store": run_state_store,
    "worked_example": run_worked_example,
    "coalesce": run_coalesce,
    "generate": run_generate,
    "idleness": run_idleness,
    "async": run_async,
    "microbatch": run_microbatch,
    "cogroup": run_cogroup,
    "join": run_join,
    "join_watermark": run_join_watermark,
    "stream_cut": run_stream_cut,
    "writer_activity": run_writer_activity,
    "writer_marks": run_writer_marks,
    "compare": run_compare,
    "time_window": run_time_window,
}
OPERATED: dict[str, Callable[[Scenario, Runtime], None]] = {
    "panes": run_panes,
    "panes_by_window": run_panes_by_window,
    "groups": group,
    "sessions": group_sessions,
    "worked_example": run_worked_example,
    "microbatch": run_microbatch,
    "cogroup": run_cogroup,
    "join": run_join,
    "join_watermark": run_join_watermark,
}
"""The kinds that run operators, and so on a runtime."""


def run_files(paths: Iterable[Path], *, runtime: str = "embedded") -> Iterator[Outcome]:
    """The outcomes of all scenarios of all files; every file is read before the first scenario
    runs.
    """
    loaded = [scenario for path in paths for scenario in load(path)]
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
    """Run one scenario in this process; nothing it contains can make this raise."""
    return outcome(scenario, _kind)


def run_on(scenario: Scenario, runtime: Runtime) -> Outcome:
    """The same by way of operators of a runtime; what has no operators is not supported."""

    def kind(part: Scenario) -> Kind:
        if part.kind in KINDS and part.kind not in OPERATED:
            raise UnsupportedScenarioError(f"kind `{part.kind}` does not involve a runtime")
        _kind(part)
        return lambda scenario: OPERATED[part.kind](scenario, runtime)

    return outcome(scenario, kind)


def outcome(scenario: Scenario, kind: Callable[[Scenario], Kind]) -> Outcome:
    """What becomes of a scenario under the code of its kind."""
    try:
        for part in _parts(scenario):
            kind(part)(part)
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
    except Exception as error:  # noqa: BLE001 - a scenario that breaks the runner has failed, and the ones after it still run
        return Outcome(scenario.id, FAIL, f"broke off with {type(error).__name__}: {error}")
    if scenario.must_fail:
        return Outcome(scenario.id, FAIL, "a mismatch must be found, but everything matched")
    return Outcome(scenario.id, PASS)


def _kind(scenario: Scenario) -> Kind:
    if scenario.kind not in KINDS:
        raise UnsupportedScenarioError(f"kind `{scenario.kind}` is not covered by this version")
    return KINDS[scenario.kind]


def _parts(scenario: Scenario) -> list[Scenario]:
    """One scenario, or one for each `case` list where every case starts from a new instance."""
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

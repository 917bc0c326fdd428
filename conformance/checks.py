"""The kinds `classify`, `validation` and `state_store`: lateness classes, specifications that must
be refused, and what survives a crash.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from tidegate.errors import SpecError
from tidegate.instants import MIN
from tidegate.kernel.events.event_time import CLASSES, classify
from tidegate.scenarios.aggregate_adapter import specification
from tidegate.scenarios.document import (
    MismatchError,
    Scenario,
    UnsupportedScenarioError,
    known,
    mapping,
)
from tidegate.scenarios.settings import CONFIG, operator_settings
from tidegate.scenarios.ticks import ticks_of
from tidegate.state.memory import MemoryStore

_MINUTE = 60_000_000


def run_classify(scenario: Scenario) -> None:
    """Each case: the class of an event at `t`, under the watermark of the config."""
    known("the scenario", scenario.body, {"cases"})
    known(
        "`config`",
        scenario.config,
        {
            "watermark",
            "allowed_lateness",
            "future_tolerance",
            "future_reference",
            "now",
            "granularity",
            "semantics",
        },
    )
    ticks, config = ticks_of(scenario), scenario.config
    minute = ticks.microseconds(_MINUTE)
    reference = config.get("future_reference", "clock")
    if reference not in {"clock", "watermark"}:
        raise UnsupportedScenarioError(
            f"`future_reference: {reference}` is not one of clock, watermark"
        )
    watermark = MIN if config.get("watermark") is None else ticks.watermark(config["watermark"])
    now = ticks(config["now"]) if "now" in config else MIN
    lateness, tolerance = (
        ticks(config[name]) if name in config else minute
        for name in ("allowed_lateness", "future_tolerance")
    )
    for case in scenario.entries("cases"):
        known("a case", mapping("a case", case), {"t", "class"})
        found = CLASSES[
            int(
                classify(
                    np.array([ticks(case["t"])], np.int64),
                    watermark,
                    lateness,
                    now,
                    tolerance,
                    reference,
                )[0]
            )
        ]
        if case["class"] != found:
            raise MismatchError(f"t {case['t']}: expected {case['class']}, got {found}")


def run_validation(scenario: Scenario) -> None:
    """Each case: a config that must be accepted or refused; a case that names no window gets a
    plain one.
    """
    known("the scenario", scenario.body, {"cases"})
    for case in scenario.entries("cases"):
        known("a case", mapping("a case", case), CONFIG | {"retraction_storage", "valid"})
        if not isinstance(case.get("valid"), bool):
            raise UnsupportedScenarioError(
                "a case of kind `validation` needs `valid: true` or `valid: false`"
            )
        given = {name: value for name, value in case.items() if name != "valid"}
        why = _refusal(scenario, given)
        if case["valid"] and why is not None:
            raise MismatchError(f"{given}: expected to be accepted, but it was refused: {why}")
        if not case["valid"] and why is None:
            raise MismatchError(f"{given}: expected to be refused, but it was accepted")


def _refusal(scenario: Scenario, case: dict[str, Any]) -> str | None:
    """Why the specification is refused; None if it is not."""
    config = {"window": {"type": "fixed", "size": 1_000}, "agg": "sum", **scenario.config, **case}
    kept = config.pop("retraction_storage", True)
    merged = replace(scenario, config=config)
    try:
        settings = operator_settings(merged, ticks_of(merged))
        made = specification(settings, keyed=False)
    except SpecError as error:
        return str(error)
    if not kept and (made.mode == "retracting" or made.options.fire_only_updated):
        return "fired values are needed, and the configuration has no storage for them"
    return None


def run_state_store(scenario: Scenario) -> None:
    """Values are put, made durable at a checkpoint, and read again after a crash."""
    known("the scenario", scenario.body, {"steps"})
    known("`config`", scenario.config, CONFIG | {"windows"})
    with TemporaryDirectory(prefix="tidegate-") as folder:
        bench = _Bench(Path(folder) / "state")
        for number, step in enumerate(scenario.entries("steps"), 1):
            known(
                "a step",
                mapping("a step", step),
                {"batch", "put", "checkpoint", "crash_and_restore", "read"},
            )
            bench.step(step, f"step {number}")


class _Bench:
    """A store on a file, and the checkpoint that the file holds."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._store = MemoryStore(path)
        self._checkpoint: Any = None

    def step(self, step: dict[str, Any], where: str) -> None:
        for name, value in mapping("`put`", step.get("put", {})).items():
            self._store.put_json(str(name), value)
        if "checkpoint" in step:
            self._store.commit()
            self._checkpoint = step["checkpoint"]
        if "crash_and_restore" in step:
            self._restore(step["crash_and_restore"])
        for name, value in mapping("`read`", step.get("read", {})).items():
            found = self._store.get_json(str(name))
            if found != value:
                raise MismatchError(f"{where}: `{name}` expected {value}, got {found}")

    def _restore(self, checkpoint: Any) -> None:
        """A crash forgets the store as it is in memory: it is opened again from the file, which has
        the last checkpoint.
        """
        if checkpoint is not True and checkpoint != self._checkpoint:
            raise UnsupportedScenarioError(
                f"only the last checkpoint is kept ({self._checkpoint}), and `{checkpoint}` was"
                " asked for"
            )
        # The operating system releases the lock of a process that crashes.
        self._store.close()
        self._store = MemoryStore(self._path)

"""Outputs of a pipeline file: the sinks of panes, late rows and metrics, and the trigger."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from tidegate.errors import SpecError
from tidegate.instants import duration
from tidegate.spec.operator import included_columns

SINKS = ("parquet", "delta", "postgres", "kafka", "console", "noop")
OUTPUTS = ("to", "late", "metrics")
AVAILABLE_NOW = "available_now"
DEFAULT_TRIGGER = "1 second"


@dataclass(frozen=True)
class PipelineOutput:
    """The sinks by output: `to` (panes), `late`, `metrics`."""

    sinks: Mapping[str, Any]
    checkpoint: str
    trigger: str = DEFAULT_TRIGGER
    shards: int | None = None
    include: tuple[str, ...] = ()
    """The optional columns of the panes."""
    shown: Mapping[str, str] = field(default_factory=dict)
    """The sinks as written, for display."""

    def __post_init__(self) -> None:
        if self.shards is not None and (
            isinstance(self.shards, bool) or not isinstance(self.shards, int) or self.shards <= 0
        ):
            raise SpecError(f"`shards` must be a whole number greater than 0, got {self.shards!r}")
        check_trigger(self.trigger)
        if self.include:
            included_columns(self.include)


def check_trigger(trigger: object) -> None:
    """Validate a trigger: an interval or `available_now`."""
    if trigger == AVAILABLE_NOW:
        return
    if trigger == "once":
        raise SpecError(
            "`trigger` of `write` can't be once, which reads everything in one micro-batch. Hint:"
            " available_now"
        )
    if not isinstance(trigger, str):
        raise SpecError(
            f'`trigger` of `write` is an interval or {AVAILABLE_NOW}, got {trigger!r}. Hint: "1'
            ' second"'
        )
    if duration(trigger) < 0:
        raise SpecError(f"`trigger` of `write` can't be negative, got {trigger}")


def makers() -> dict[str, Any]:
    """The functions of `tg.sinks` by name."""
    module = import_module("tidegate.spark.sinks")
    return {name: getattr(module, name) for name in SINKS if hasattr(module, name)}


def is_path(call: str, parameter: str) -> bool:
    """Whether an argument of an input or a sink is a path."""
    return parameter == "folder" or (call, parameter) == ("delta", "table")

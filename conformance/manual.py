"""The trigger `Manual`, which a scenario makes ready, and the timeline that knows its step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tidegate.kernel.triggers.machine import Machine, register_trigger
from tidegate.kernel.triggers.node import FLAG, Field, Node, State, TriggerContext
from tidegate.operators.aggregate.operator import WindowedAggregate
from tidegate.scenarios.document import Scenario, known, mapping
from tidegate.scenarios.panes import PaneTimeline
from tidegate.scenarios.runtimes import EMBEDDED, Adjustment, Runtime
from tidegate.spec.triggers import Trigger


@dataclass(frozen=True, slots=True)
class Manual(Trigger):
    """Ready, and finished by its next firing, as a `trigger` step demands."""


class ManualNode(Node):
    """The state of `Manual`; the switches are set for all rows."""

    fields: ClassVar[Mapping[str, Field]] = {"done": FLAG}
    fires_on_elements = True
    fires_early = True

    def __init__(self) -> None:
        super().__init__()
        self.is_ready = False
        self.finishes = False

    def ready(self, state: State, ctx: TriggerContext) -> np.ndarray:  # noqa: ARG002
        return ~self.read(state, "done") & self.is_ready

    def fire(self, state: State, mask: np.ndarray, ctx: TriggerContext) -> None:  # noqa: ARG002
        self.write(state, "done", mask, self.finishes)


register_trigger(Manual, ManualNode)


def set_manual(machine: Machine, *, ready: bool, finishes: bool) -> None:
    """Set every `Manual` part of a trigger."""
    for node in machine.nodes:
        if isinstance(node, ManualNode):
            node.is_ready, node.finishes = ready, finishes


def set_operator(operator: WindowedAggregate, *, ready: bool, finishes: bool) -> None:
    """Set every `Manual` part of an operator's trigger."""
    set_manual(operator.machine, ready=ready, finishes=finishes)


class ManualTimeline(PaneTimeline):
    """A timeline with the further step `trigger: {ready, finishes}`."""

    steps = PaneTimeline.steps | {"trigger"}

    def _actions(self) -> dict[str, Callable[[Any], None]]:
        return {**super()._actions(), "trigger": self._trigger}

    def _trigger(self, value: Any) -> None:
        known("a `trigger` step", mapping("a `trigger` step", value), {"ready", "finishes"})
        self._operator.adjust(
            Adjustment(
                f"{__name__}:set_operator",
                {name: bool(value.get(name, False)) for name in ("ready", "finishes")},
            )
        )


def run_panes_of_any_system(scenario: Scenario, runtime: Runtime = EMBEDDED) -> None:
    """The kind `panes` with the further step `trigger`."""
    ManualTimeline(scenario, runtime).run()

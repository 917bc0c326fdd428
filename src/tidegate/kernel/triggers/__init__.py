"""Triggers at run time: `compile_trigger` returns a state machine over (key, window) columns."""

from __future__ import annotations

from tidegate.kernel.triggers.machine import Machine, compile_trigger
from tidegate.kernel.triggers.node import State, TriggerContext
from tidegate.kernel.triggers.schedule import Elements, Schedule, schedule

__all__ = [
    "Elements",
    "Machine",
    "Schedule",
    "State",
    "TriggerContext",
    "compile_trigger",
    "schedule",
]

"""Triggers at run time: `compile_trigger` returns a state machine over (key, window) columns."""

from __future__ import annotations

from tidegate.kernel.triggers.machine import Machine, compile_trigger
from tidegate.kernel.triggers.node import State, TriggerContext

__all__ = ["Machine", "State", "TriggerContext", "compile_trigger"]

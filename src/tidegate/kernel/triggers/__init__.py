"""Triggers at run time: `compile_trigger` makes a machine that steps one trigger for many (key,
window) rows at once.
"""

from __future__ import annotations

from tidegate.kernel.triggers.machine import Machine, compile_trigger
from tidegate.kernel.triggers.node import Context, State

__all__ = ["Context", "Machine", "State", "compile_trigger"]

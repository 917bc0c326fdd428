"""Async calls inside the reading tasks: one event loop for all tasks of a worker process.

The loop outlives tasks and batches, so that clients of a function in an importable module keep
their connections.
"""

from __future__ import annotations

from tidegate.operators.async_map.delivery import DeliveryCalls
from tidegate.operators.async_map.executor import AsyncExecutor
from tidegate.spec.operator import Input, MapStep

_executors: list[AsyncExecutor] = []
"""The executor of this process; empty before the first call."""


def task_calls(given: Input, step: MapStep) -> DeliveryCalls:
    """The calls of one task; a worker process runs one task at a time."""
    if not _executors:
        _executors.append(AsyncExecutor(step.map))
    return DeliveryCalls(given, step, _executors[0])

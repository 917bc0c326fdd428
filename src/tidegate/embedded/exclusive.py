"""Exclusive calls: an operator runs one call at a time, whichever threads make them."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from tidegate.errors import InputError
from tidegate.operators.async_map.executor import LOOP_THREAD

Operator = TypeVar("Operator")


class HasLock(Protocol):
    """An operator, or an input of one."""

    @property
    def lock(self) -> threading.RLock: ...


def lock_of(downstream: object) -> threading.RLock:
    """The lock of an operator: that of its downstream, or a new one.

    Operators that feed each other share a lock, so a call is exclusive over all that it reaches.
    """
    found: threading.RLock | None = getattr(downstream, "lock", None)
    return threading.RLock() if found is None else found


def exclusive(operator: type[Operator]) -> type[Operator]:
    """Make all public methods and properties of a class hold the lock of the operator."""
    for name in dir(operator):
        if name.startswith("_") or name == "lock":
            continue
        found = inspect.getattr_static(operator, name)
        if inspect.isfunction(found):
            setattr(operator, name, _held(found))
        elif isinstance(found, property) and found.fget is not None:
            setattr(operator, name, property(_held(found.fget), doc=found.__doc__))
    return operator


def _held(method: Callable[..., Any]) -> Callable[..., Any]:
    """The method, which waits until no other thread is in a call of the operator."""

    @functools.wraps(method)
    def call(self: HasLock, *args: Any, **named: Any) -> Any:
        lock = self.lock
        if not lock.acquire(blocking=False):
            if threading.current_thread().name == LOOP_THREAD:
                # The call that holds the lock may wait for the answer of this very function.
                raise InputError(
                    f"the function of an async map called `{method.__name__}` of an operator that"
                    " is in a call. Hint: call operators from other threads than that of the map"
                )
            lock.acquire()
        try:
            return method(self, *args, **named)
        finally:
            lock.release()

    return call

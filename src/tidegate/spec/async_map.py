"""The specification of an async map: the coroutine function, the order of results, the limits."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tidegate.errors import SpecError
from tidegate.instants import MAX, format_duration
from tidegate.spec.columns import extended
from tidegate.spec.json_form import qualified_name

SECOND = 1_000_000
LONGEST_PAUSE = 60 * SECOND
"""The maximum that doubling pauses between attempts reach; a longer `backoff` is kept."""

Function = Callable[[dict[str, Any]], Awaitable[Any]]


@dataclass(frozen=True)
class AsyncMap:
    """A coroutine function that is called for every message.

    It returns a mapping, a list of mappings, or None to drop the message. `timeout` and `backoff`
    are in microseconds: the time limit of one attempt, and the pause before the first retry, which
    doubles with every further one.

    `schema` declares the columns of the results; with `extends`, in addition to those of the
    messages. Without it, the first value of a column decides its type.
    """

    function: Function
    ordered: bool = True
    max_in_flight: int = 100
    timeout: int = 30 * SECOND
    retries: int = 0
    backoff: int = SECOND // 10
    schema: pa.Schema | None = None
    extends: bool = False

    def __post_init__(self) -> None:
        if not is_coroutine_function(self.function):
            raise SpecError(
                f"`async_map` calls a coroutine function, got {self.function!r}. Hint: async def"
                " f(row): return {**row, ...}"
            )
        if not isinstance(self.ordered, bool):
            raise SpecError(f"`ordered` is True or False, got {self.ordered!r}")
        for name, least in (("max_in_flight", 1), ("timeout", 1), ("retries", 0), ("backoff", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise SpecError(
                    f"`{name}` of an async map is a whole number, at least {least}, got {value!r}"
                )
        if self.limit >= MAX:
            attempts = f"{self.retries + 1} attempts of {format_duration(self.timeout)}"
            raise SpecError(
                f"every call must end eventually, got {attempts}. Hint: use a shorter `timeout` or"
                " fewer `retries`"
            )

    @property
    def limit(self) -> int:
        """The longest time of a call, with all attempts and pauses."""
        doubled = [self.pause(attempt) for attempt in range(min(self.retries, 64))]
        # A pause does not grow after 64 doublings.
        pauses = sum(doubled) + (self.retries - len(doubled)) * (doubled[-1] if doubled else 0)
        return min(MAX, self.timeout * (self.retries + 1) + pauses)

    def pause(self, attempt: int) -> int:
        """The pause after a failed attempt, counted from 0."""
        return min(self.backoff << min(attempt, 63), max(self.backoff, LONGEST_PAUSE))

    def columns(self, messages: pa.Schema) -> pa.Schema | None:
        """The declared columns of the results of messages with these columns."""
        if self.schema is None or not self.extends:
            return self.schema
        return extended(messages, self.schema)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form of what stored state depends on; limits may change between two runs."""
        return {"function": qualified_name(self.function), "ordered": self.ordered}


def is_coroutine_function(function: object) -> bool:
    """Whether a call returns a coroutine: an `async def`, a method or partial of one, or an object
    with such a `__call__`.
    """
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004
    )

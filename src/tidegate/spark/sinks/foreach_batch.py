"""The sink that calls a function with the rows of each batch as a DataFrame."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidegate.errors import SpecError
from tidegate.spark.sinks.base import FrameSink, SinkTarget

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class ForeachBatch(FrameSink):
    """Calls `function(frame, batch_id)`."""

    function: Callable[[DataFrame, int], Any]

    def write_frame(self, target: SinkTarget, batch: int, frame: DataFrame) -> None:  # noqa: ARG002
        self.function(frame, batch)


def foreach_batch(function: Callable[[DataFrame, int], Any]) -> ForeachBatch:
    """A sink that calls `function(frame, batch_id)` with the rows of each batch.

    A batch that failed is replayed with the same rows and the same batch id. To write exactly once,
    the function must be idempotent: overwrite the rows of a batch id, or skip an id that it has
    written. With Spark Connect, it runs in a process of the server.
    """
    if not callable(function):
        raise SpecError(
            f"foreach_batch takes a function of a DataFrame and a batch id, got {function!r}. "
            "Hint: tg.sinks.foreach_batch(lambda frame, batch_id: ...)"
        )
    return ForeachBatch(function)

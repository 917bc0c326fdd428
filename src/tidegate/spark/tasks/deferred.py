"""A stateful processor that Spark's driver initialises without importing Tidegate.

Before the first batch of a query, Spark starts a process that has the processor declare its state
variables. It loads Spark's modules only, and would import all of Tidegate to load the processor.
Functions above a megabyte are broadcast by Spark, which that process cannot read.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

from pyspark import SparkContext, TaskContext, cloudpickle
from pyspark.core.broadcast import Broadcast
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import StructType

_LARGE = 512 << 10
"""A processor of more bytes is broadcast: with functions of users that hold data."""


def deferred(
    processor: StatefulProcessor, meta: StructType, blob_key: StructType, blob: StructType
) -> StatefulProcessor:
    """A processor that is loaded in the tasks of a query; others know its state variables only.

    The class is local, so that it is pickled itself instead of by its name in this package.
    """
    pickled: bytes = cloudpickle.dumps(processor)  # type: ignore[no-untyped-call]
    context = SparkContext._active_spark_context  # noqa: SLF001 - none with Spark Connect
    if len(pickled) > _LARGE and context is not None:
        pickled = pickle.dumps(context.broadcast(pickled))

    class Deferred(StatefulProcessor):
        def init(self, handle: StatefulProcessorHandle) -> None:
            if TaskContext.get() is None:
                handle.getValueState("meta", meta)
                handle.getMapState("blobs", blob_key, blob)
                return
            loaded = pickle.loads(pickled)  # noqa: S301 - pickled above
            if isinstance(loaded, Broadcast):
                loaded = pickle.loads(loaded.value)  # noqa: S301 - the same
            self._processor = loaded
            self._processor.init(handle)

        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
            return self._processor.handleInputRows(key, rows, timerValues)

        def handleExpiredTimer(  # noqa: N802
            self,
            key: Any,
            timerValues: Any,  # noqa: N803
            expiredTimerInfo: Any,  # noqa: N803
        ) -> Iterator[Any]:
            return self._processor.handleExpiredTimer(key, timerValues, expiredTimerInfo)

        def close(self) -> None:
            """Spark owns the state; there is nothing to close."""

    return Deferred()

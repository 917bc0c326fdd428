"""A stateful processor that Spark's driver initialises without importing Tidegate.

Before the first batch of a query, Spark starts a process that has the processor declare its state
variables. It loads Spark's modules only, and would import all of Tidegate to load the processor.

Spark broadcasts functions above a size, and that process cannot read a broadcast.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

from pyspark import TaskContext, cloudpickle
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import StructType

from tidegate.errors import SetupError

_LIMIT = 960 << 10
"""What a processor may have, with all that is pickled beside it, below the limit of a megabyte."""


def deferred(
    processor: StatefulProcessor,
    meta: StructType,
    blob_key: StructType,
    blob: StructType,
    *,
    limited_by: str | None = None,
) -> StatefulProcessor:
    """A processor that is loaded in the tasks of a query; others know its state variables only.

    `limited_by`: the setting by which Spark broadcasts functions above a megabyte, if it does.
    The class is local, so that it is pickled itself instead of by its name in this package.
    """
    pickled: bytes = cloudpickle.dumps(processor)  # type: ignore[no-untyped-call]
    if limited_by is not None and len(pickled) > _LIMIT:
        raise SetupError(
            f"the functions of this query bring {len(pickled):,} bytes of data, and Spark cannot"
            " pass more than a megabyte to a stateful operator in this session. Hint: start it with"
            f" tg.spark_session(), or with {limited_by}=1g"
        )
    loads = pickle.loads

    class Deferred(StatefulProcessor):
        def init(self, handle: StatefulProcessorHandle) -> None:
            if TaskContext.get() is None:
                handle.getValueState("meta", meta)
                handle.getMapState("blobs", blob_key, blob)
                return
            self._processor = loads(pickled)
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

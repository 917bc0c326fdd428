"""The fluent API of async maps: a stream of results, in front of windows and joins or alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from tidegate.api.running import Pipeline
from tidegate.api.streams import Stream
from tidegate.embedded.async_map import EmbeddedAsyncMap
from tidegate.embedded.async_rows import AsyncResults
from tidegate.embedded.result_queue import Downstream
from tidegate.errors import SpecError
from tidegate.instants import Instant, instant
from tidegate.spec.async_map import AsyncMap
from tidegate.spec.columns import parse_columns
from tidegate.spec.operator import Input, MapStep, Options
from tidegate.spec.watermarks import Watermarks
from tidegate.state.store import Store

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

Columns: TypeAlias = "str | pa.Schema | StructType"


@dataclass(frozen=True, repr=False)
class Mapped(Stream):
    """The results of an asynchronous function, as a stream with the columns of its messages.

    Windows, joins, unions and merges take it like any stream; `embedded` runs the map alone.
    """

    def stream(
        self,
        *,
        time: str | None = None,
        key: str | Sequence[str] | None = None,
        id: str | None = None,
    ) -> Stream:
        """The results with other columns as time, key or id; the rest stays as in the messages.

        The watermark still follows the time of the messages.
        """
        return Stream(*self._inputs(time, key, id), sources=self.sources)

    def _inputs(
        self, time: str | None, key: str | Sequence[str] | None, id: str | None
    ) -> tuple[Input, tuple[Input, ...]]:
        roles: dict[str, Any] = {
            **({} if time is None else {"time": time}),
            **({} if key is None else {"key": (key,) if isinstance(key, str) else tuple(key)}),
            **({} if id is None else {"id": id}),
        }
        for given in self.inputs if time is not None else ():
            _check_time(time, given.watermark)
        first, *others = (dataclasses.replace(given, **roles) for given in self.inputs)
        return first, tuple(others)

    def embedded(
        self,
        *,
        store: Store | None = None,
        downstream: Downstream | Callable[[AsyncResults], bool | None] | None = None,
        now: Instant | None = None,
    ) -> EmbeddedAsyncMap:
        """Run the map alone in this process; see `Panes.embedded`.

        Its calls overlap deliveries, and pending messages are part of its state.
        """
        steps = [given.mapped for given in self.inputs if given.mapped is not None]
        return EmbeddedAsyncMap(
            steps[0].map,
            [step.input for step in steps],
            options=steps[0].options,
            store=store,
            downstream=downstream,
            now=None if now is None else instant(now),
        )


def mapped(stream: Stream, called: AsyncMap, options: Options | None) -> Mapped:
    """The results of a map over the messages of a stream."""
    if stream.names:
        raise SpecError(
            "a merge feeds windows, not an async map. Hint: map the streams, then merge them"
        )
    if any(given.mapped is not None for given in stream.inputs):
        raise SpecError(
            "the stream has an async map already. Hint: await both functions in one coroutine"
            " function"
        )
    if any(isinstance(source, Pipeline) for source in stream.sources):
        raise SpecError(
            "on Spark, an async map is called for the messages of a source, not for panes or"
            " joined rows. Hint: map the messages before the window or the join"
        )
    if stream.sources:
        from tidegate.spark.plan.input import check_map

        check_map(called)
    first, *others = (
        dataclasses.replace(given, computed=(), mapped=MapStep(called, given, options))
        for given in stream.inputs
    )
    return Mapped(first, tuple(others), stream.sources)


def result_columns(schema: Columns | None) -> tuple[pa.Schema | None, bool]:
    """The declared columns of results, and whether they extend those of the messages."""
    if schema is None or isinstance(schema, pa.Schema):
        return schema, False
    if isinstance(schema, str):
        return parse_columns(schema)
    if type(schema).__module__.partition(".")[0] == "pyspark":
        from tidegate.spark.types import arrow_schema

        return arrow_schema(schema), False
    raise SpecError(
        "`schema` of an async map is a pyarrow.Schema, a StructType or text such as 'user string,"
        f" price double', got {schema!r}"
    )


def _check_time(time: str | None, watermark: Watermarks) -> None:
    """Refuse a time column that the watermark reads from the messages for something else."""
    if time in vars(watermark).values():
        raise SpecError(
            f"the watermark {watermark} reads the column `{time}` of the messages, which cannot be"
            " the time of the results. Hint: return the time in another column"
        )

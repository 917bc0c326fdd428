"""What `show` and `plot` look at: the output of a pipeline, a sink or an embedded operator."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tidegate.embedded.feed import OperatorFeed
from tidegate.embedded.operator import EmbeddedOperator
from tidegate.embedded.visible import VisibleOperator
from tidegate.errors import InputError
from tidegate.operators.results import Results
from tidegate.page.feed import Moment, moments
from tidegate.spec.join import JoinSpec

if TYPE_CHECKING:
    from tidegate.api.running import Pipeline
    from tidegate.api.streams import Panes

_BATCH = "batch"


def results_of(panes: Pipeline[Any], of: Any) -> Results:
    """The panes and late rows of `of`; without it, those of the pipeline over its batch source."""
    if isinstance(of, Results):
        return of
    if isinstance(of, VisibleOperator):
        # The results stay where they are, for the program to fetch.
        return of.recorded()
    if of is None:
        return _batch_results(panes)
    if isinstance(of, str | os.PathLike) or hasattr(of, "place"):
        return Results(_written(of), pa.table({}))
    return _run(panes, of).get_result()


def moments_of(panes: Panes, of: Any) -> tuple[list[Moment], bool]:
    """The moments of `of` for a plot, and whether times are plain numbers."""
    if (
        of is not None
        and not isinstance(of, Results | EmbeddedOperator | str | os.PathLike)
        and not hasattr(of, "place")
    ):
        of = _run(panes, of)
    if isinstance(of, EmbeddedOperator):
        return OperatorFeed(of).moments(), of.operator.ticks
    found = results_of(panes, of)
    time = panes.spec.input.time
    numbers: list[Any] = (
        sorted(set(found.panes.column(_BATCH).to_pylist()))
        if _BATCH in found.panes.column_names
        else [None]
    )
    shown: list[Moment] = []
    for number in numbers:
        rows = found.panes if number is None else _of_batch(found.panes, number)
        late = found.late if number == numbers[0] else found.late.slice(0, 0)
        shown += moments(rows, late, time, number)
    ticks = "window_start" in found.panes.column_names and pa.types.is_integer(
        found.panes.schema.field("window_start").type
    )
    return shown, ticks


def _run(panes: Any, messages: Any) -> EmbeddedOperator:
    """The pipeline over messages, as one delivery or as the deliveries that an iterator yields."""
    if isinstance(panes.spec, JoinSpec):
        raise InputError(
            "messages of a join have a side. Hint: pass the embedded join, after `add(left=...,"
            " right=...)`, or its results as `of`"
        )
    operator: EmbeddedOperator = panes.embedded()
    for delivery in messages if isinstance(messages, Iterator) else [messages]:
        operator.add_messages(delivery)
    operator.finish()
    return operator


def _batch_results(panes: Pipeline[Any]) -> Results:
    from tidegate.api.running import has_source

    if not has_source(panes):
        raise InputError(
            "the pipeline has no source of its own to show. Hint: pass messages, the results of an"
            " embedded operator, a sink or a folder as `of`"
        )
    frame = panes.df
    if frame.isStreaming:
        raise InputError(
            "the output of a stream is shown from where it is written. Hint: pass the sink or the"
            " folder as `of`, or call `query.ui()`"
        )
    return Results(frame.toArrow(), pa.table({}))


def _written(of: Any) -> pa.Table:
    """The panes that a sink has written."""
    import pyarrow.compute as pc

    from tidegate.spark.sinks.reading import owner_of, place_of, read_rows

    if hasattr(of, "place"):
        return read_rows(of.place(), "panes", lambda _: pc.scalar(True))
    folder = os.fspath(of)
    rows = read_rows(place_of(folder), "panes", lambda _: pc.scalar(True))
    if not rows.column_names and not owner_of(folder):
        raise InputError(
            f"`{folder}` is not a folder that a query has written. Hint: pass the folder of"
            " tg.sinks.parquet or the table of tg.sinks.delta"
        )
    return rows


def _of_batch(rows: pa.Table, number: int) -> pa.Table:
    import pyarrow.compute as pc

    return rows.filter(pc.equal(rows.column(_BATCH), number))

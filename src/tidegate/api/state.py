"""The state of a query on Spark and the history of its windows, read from files."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidegate.api.running import Pipeline
    from tidegate.instants import Instant
    from tidegate.operators.history.facts import History
    from tidegate.spark.query.state.query_state import QueryState
    from tidegate.spec.join import Upstream


def state(
    checkpoint: str | os.PathLike[str], *, pipeline: Pipeline[Any] | None = None
) -> QueryState:
    """The state of a query after its last committed batch, while it runs or after it stopped.

    It is read from the files of the checkpoint, without Spark. `pipeline`: the pipeline of the
    query, which also may have no source; needed if aggregates use functions of yours, because a
    checkpoint has no code.
    """
    from tidegate.spark.query.state.query_state import read_state

    return read_state(os.fspath(checkpoint), specs=_specs(pipeline))


def why(
    location: str | os.PathLike[str],
    key: Any = None,
    start: Instant | None = None,
    end: Instant | None = None,
    *,
    operator: int = -1,
    pipeline: Pipeline[Any] | None = None,
) -> History:
    """The history of one key and window of a query on Spark, in order: panes with their causes,
    late rows, and what is still open.

    - `location`: the checkpoint of the query, or the folder or Delta table of its panes.
    - `key`: a value, a tuple, or a dictionary by column.
    - `start`, `end`: the bounds of the window; with `start` alone, the windows that contain this
      instant, or that overlap the range of a text like "12:00..12:05".
    - `pipeline`: as for `state`.

    Print it to read sentences; `to_dict` returns the same as data.
    """
    from tidegate.spark.query.history import why as read_why

    return read_why(os.fspath(location), key, start, end, operator=operator, specs=_specs(pipeline))


def _specs(pipeline: Pipeline[Any] | None) -> list[list[Upstream]] | None:
    """The specifications of a pipeline by stage; without one, no part of it is loaded."""
    if pipeline is None:
        return None
    from tidegate.api.running import stage_specs

    return stage_specs(pipeline)

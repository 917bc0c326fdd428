"""The state of a query on Spark, read from its checkpoint."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from tidegate.api.running import Pipeline, stage_specs

if TYPE_CHECKING:
    from tidegate.spark.query.state.query_state import QueryState


def state(
    checkpoint: str | os.PathLike[str], *, pipeline: Pipeline[Any] | None = None
) -> QueryState:
    """The state of a query after its last committed batch, while it runs or after it stopped.

    It is read from the files of the checkpoint, without Spark. `pipeline`: the pipeline of the
    query, which also may have no source; needed if aggregates use functions of yours, because a
    checkpoint has no code.
    """
    from tidegate.spark.query.state.query_state import read_state

    specs = None if pipeline is None else stage_specs(pipeline)
    return read_state(os.fspath(checkpoint), specs=specs)

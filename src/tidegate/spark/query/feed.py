"""The feed of a page from a query on Spark: its status, and the output that it writes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tidegate.errors import TidegateError
from tidegate.operators.history.facts import History
from tidegate.operators.history.question import question
from tidegate.operators.status import QueryStatus
from tidegate.page.feed import Moment, Reading, moments
from tidegate.spark.query.history import QueryHistory
from tidegate.spark.query.metadata import read_metadata
from tidegate.spark.query.state.query_state import read_state
from tidegate.spark.sinks.reading import BATCH, new_batches
from tidegate.spark.tasks.transport import LATE, PANES
from tidegate.spec.join import Upstream

FIRST_BATCHES = 100
"""How many batches of the past the page shows when it starts."""
_COLUMNS = ("window_start", "window_end", "op", "timing", "watermark", "emitted_at")


class QueryFeed:
    """Reads the checkpoint and the output of a query, which may run in another process."""

    def __init__(
        self,
        checkpoint: str,
        *,
        name: str | None = None,
        status: Callable[[], QueryStatus] | None = None,
        specs: Sequence[Sequence[Upstream]] | None = None,
    ) -> None:
        """`status`: of the handle of a running query; default: read from the checkpoint."""
        self._checkpoint, self._specs = checkpoint, specs
        self._status = status or self._stored_status
        # Only the handle of a query has them.
        self.has_phases = status is not None
        self._last = {PANES: -1, LATE: -1}
        metadata = read_metadata(checkpoint)
        stored = None if metadata is None else metadata.name or f"query {metadata.query[:8]}"
        self.name = name or stored or checkpoint.rstrip("/").rpartition("/")[2]
        self._places: Mapping[str, Mapping[str, str]] = {} if metadata is None else metadata.outputs

    def read(self) -> Reading:
        """The status, and a moment for each batch since the last reading."""
        try:
            status = self._status()
        except (TidegateError, OSError) as error:
            return Reading(None, self._moments(None), error=str(error))
        return Reading(dataclasses.replace(status, name=self.name), self._moments(status))

    def _stored_status(self) -> QueryStatus:
        return read_state(self._checkpoint, specs=self._specs).status()

    def _moments(self, status: QueryStatus | None) -> list[Moment]:
        if not self._places:
            metadata = read_metadata(self._checkpoint)
            self._places = {} if metadata is None else metadata.outputs
        time = _time_column(status)
        columns = {PANES: _COLUMNS, LATE: ("watermark", "emitted_at", *([time] if time else []))}
        found: list[Moment] = []
        for output, names in columns.items():
            place = self._places.get(output)
            if place is None:
                continue
            try:
                tables = new_batches(place, output, self._last[output], names, FIRST_BATCHES)
            except (TidegateError, OSError):
                # The page shows the status in any case; a sink that cannot be read has no bars.
                continue
            for batch, rows in tables:
                self._last[output] = max(self._last[output], batch)
                given = rows.drop_columns([BATCH]) if BATCH in rows.column_names else rows
                none = given.slice(0, 0)
                both = (given, none) if output == PANES else (none, given)
                found += moments(*both, time, batch)
        return sorted(found, key=lambda moment: moment.clock)

    def why(self, key: str, window: str) -> History:
        """The history of a key and window."""
        history = QueryHistory(self._checkpoint, specs=self._specs)
        return history.why(*question(key, window, history.key_schema()))


def _time_column(status: QueryStatus | None) -> str | None:
    """The time column of the first input, which late rows have."""
    if status is None or not status.specs or not status.specs[0]:
        return None
    spec: dict[str, Any] = status.specs[0][0]
    found = spec.get("input", {}).get("time")
    return found if isinstance(found, str) else None

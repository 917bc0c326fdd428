"""The feed of a page from an embedded operator: its status and its recording."""

from __future__ import annotations

import dataclasses
from typing import Protocol

import pyarrow as pa

from tidegate.embedded.recording import Recording
from tidegate.instants import MAX, MIN, Instant
from tidegate.operators.chain import Operator
from tidegate.operators.history.facts import History
from tidegate.operators.history.question import question
from tidegate.operators.status import QueryStatus
from tidegate.page.feed import Moment, Reading, bars, moments
from tidegate.spec.join import JoinSpec


class Recorded(Protocol):
    """An embedded operator with a recording."""

    @property
    def operator(self) -> Operator: ...

    @property
    def recording(self) -> Recording: ...

    def status(self) -> QueryStatus: ...

    def why(
        self, key: object = None, start: Instant | None = None, end: Instant | None = None
    ) -> History: ...


class OperatorFeed:
    """Reads an embedded operator, one call of it at a time."""

    def __init__(self, operator: Recorded, name: str = "embedded operator") -> None:
        self.name, self.has_phases = name, False
        self._operator = operator
        self._seen = 0

    def read(self) -> Reading:
        """The status, and a moment for each call since the last reading."""
        status = dataclasses.replace(self._operator.status(), name=self.name)
        return Reading(status, self.moments())

    def moments(self) -> list[Moment]:
        """A moment for each recorded call since the last reading."""
        found: list[Moment] = []
        spec = self._operator.operator.spec
        time = spec.inputs[0].time
        for entry in self._operator.recording.entries(self._seen):
            self._seen = entry.call
            new = [
                moment
                for one in entry.results
                for moment in moments(one.panes, one.late, time, entry.call)
            ]
            mark = None if entry.watermark in {MIN, MAX} else entry.watermark
            # The panes of a call have the watermark that fired them, the last one is that of now.
            found += new or [Moment(entry.clock, entry.call, mark, bars(pa.table({})), _NONE)]
            found[-1] = dataclasses.replace(found[-1], watermark=mark)
        return found

    def why(self, key: str, window: str) -> History:
        """The history of a key and window."""
        if isinstance(self._operator.operator.spec, JoinSpec):
            return self._operator.why()
        names = self._operator.operator.spec.inputs[0].key
        schema = getattr(self._operator.operator, "schema", None)
        known = pa.schema(
            [
                schema.field(name) if schema is not None else pa.field(name, pa.string())
                for name in names
            ]
        )
        return self._operator.why(*question(key, window, known))


_NONE = bars(pa.table({})).start

"""The recent output of an embedded operator, kept in memory for `why` and `plot`.

A recording holds references to tables that exist anyway, and forgets the oldest ones when their
sizes exceed its limit: it costs no copy, and its memory is bounded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from tidegate.errors import InputError
from tidegate.kernel.frame import repeat
from tidegate.operators.history.contributions import Delivered
from tidegate.operators.history.rows import BATCH
from tidegate.operators.ingest.delivery import Arrival
from tidegate.operators.results import Results

DEFAULT_BYTES = 16 << 20
"""The default limit of a recording."""
_OVERHEAD = 512
"""The size of an entry without its tables, in bytes."""


@dataclass(slots=True)
class Entry:
    """One call of an operator: what arrived, and what came out."""

    call: int
    clock: int
    watermark: int
    """The watermark after the call."""
    arrivals: Sequence[Arrival] = ()
    results: list[Results] = field(default_factory=list)
    nbytes: int = _OVERHEAD


class Recording:
    """The entries of the last calls, within a limit of bytes."""

    def __init__(self, limit: int) -> None:
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 0:
            raise InputError(
                f"`history` is a number of bytes, got {limit!r}. Hint: history=0 records nothing"
            )
        self.limit = limit
        self.calls = 0
        self.is_complete = True
        """Whether nothing was forgotten."""
        self._entries: deque[Entry] = deque()
        self._nbytes = 0
        self._arrivals: Sequence[Arrival] = ()

    def deliver(self, arrivals: Sequence[Arrival]) -> None:
        """Note what the next call of the operator processes."""
        self._arrivals = arrivals

    def add(self, results: Sequence[Results], clock: int, watermark: int) -> None:
        """Record a call of the operator."""
        arrivals, self._arrivals = self._arrivals, ()
        self.calls += 1
        if not self.limit or (not results and not arrivals and not self._has_moved(watermark)):
            return
        entry = Entry(self.calls, clock, watermark, arrivals, list(results))
        entry.nbytes += sum(arrival.table.nbytes for arrival in arrivals)
        entry.nbytes += sum(one.panes.nbytes + one.late.nbytes for one in results)
        self._entries.append(entry)
        self._nbytes += entry.nbytes
        while self._nbytes > self.limit and self._entries:
            self._nbytes -= self._entries.popleft().nbytes
            self.is_complete = False

    def _has_moved(self, watermark: int) -> bool:
        return not self._entries or self._entries[-1].watermark != watermark

    def entries(self, after: int = 0) -> list[Entry]:
        """The entries of calls after this one."""
        return [entry for entry in self._entries if entry.call > after]

    def tables(self, empty: Results) -> Results:
        """All recorded panes and late rows, with the number of their call as `batch`."""
        parts = [
            Results(_numbered(one.panes, entry.call), _numbered(one.late, entry.call))
            for entry in self._entries
            for one in entry.results
        ]
        first = Results(_numbered(empty.panes, 0), _numbered(empty.late, 0))
        return Results.together([first, *parts])

    def notes(self) -> tuple[str, ...]:
        """What the recording does not have."""
        if not self.limit:
            return ("nothing is recorded (history=0), so only what is open is known",)
        if not self.is_complete:
            first = self._entries[0].call if self._entries else self.calls + 1
            return (f"the recording starts at call {first}; a larger `history` keeps more",)
        return ()

    def deliveries(self) -> Iterator[Delivered]:
        """What arrived in each recorded call, and what of it was late."""
        for entry in self._entries:
            if entry.arrivals:
                late = [one.late for one in entry.results]
                yield Delivered(entry.call, entry.clock, entry.arrivals, late)


def _numbered(rows: pa.Table, call: int) -> pa.Table:
    return rows.append_column(BATCH, repeat(call, rows.num_rows, pa.int64()))

"""What an operator of a query must know, as log lines: the changes between two statuses."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

from tidegate.operators.status import QueryStatus, SourceStatus
from tidegate.units import SECOND, byte_size, many, rounded, when

LOGGER = logging.getLogger("tidegate.query")
_LEAST_EVENTS = 100
"""The share of late rows says nothing about fewer events than these."""


@dataclass(frozen=True)
class Limits:
    """When a change is worth a line."""

    late_share: float = 0.05
    """The share of events that go to `late` between two looks."""
    held_back: int = 300 * SECOND
    """How long the watermark may stand still while windows wait, in microseconds."""
    growth: float = 2.0
    """By what factor the state may grow before the next line."""
    least_state: int = 256 << 20
    """The size of a state below which growth is not reported, in bytes."""


class StatusLog:
    """Compares each status of a query with the one before."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = Limits() if limits is None else limits
        self._last: QueryStatus | None = None
        self._counted: QueryStatus | None = None
        """The status up to which late rows were counted."""
        self._reported_state = 0
        self._is_late = self._is_held = False

    def log(self, status: QueryStatus, logger: logging.Logger = LOGGER) -> None:
        """Write a line for each change."""
        name = status.name or status.query or status.runtime
        for level, text in self.lines(status):
            logger.log(level, "query %s: %s", name, text)

    def lines(self, status: QueryStatus) -> list[tuple[int, str]]:
        """The changes since the last call, each with its level."""
        before, self._last = self._last, status
        found = [
            *self._sources(before, status),
            *self._late(status),
            *self._held(status),
            *self._state(status),
        ]
        if status.state == "failed" and (before is None or before.state != "failed"):
            found.append((logging.ERROR, f"failed: {' '.join(status.error.split())}"))
        return found

    def _sources(
        self, before: QueryStatus | None, status: QueryStatus
    ) -> Iterator[tuple[int, str]]:
        """Sources that became idle, came back or ended; nothing at the first look."""
        known = {_place(one): one for one in (before.sources if before is not None else ())}
        for one in status.sources:
            former = known.get(_place(one))
            if former is None or former.status == one.status:
                continue
            name = f"partition `{one.label}`" if one.name else one.label or "the input"
            if one.status == "idle":
                silent = f", silent since {when(one.spoke_at)}" if one.spoke_at else ""
                text = f"{name} became idle{silent}, and no longer holds the watermark back"
            elif one.status == "active":
                text = f"{name} is active again, at {when(one.watermark)}"
            else:
                text = f"{name} has ended"
            yield logging.INFO, text

    def _late(self, status: QueryStatus) -> Iterator[tuple[int, str]]:
        """The share of late rows among enough events, once until it falls again."""
        before = self._counted
        if before is None:
            self._counted = status
            return
        events, late = (
            status.counters.get(name, 0) - before.counters.get(name, 0)
            for name in ("events", "late_rows")
        )
        if events < _LEAST_EVENTS:
            # Those of a slow query add up.
            return
        self._counted = status
        was_late, self._is_late = self._is_late, late > self.limits.late_share * events
        if self._is_late and not was_late:
            reasons = ", ".join(
                f"{n - before.late.get(reason, 0):,} {reason}"
                for reason, n in status.late.items()
                if n > before.late.get(reason, 0)
            )
            share = f"{late / events:.0%} of {many(events, 'event')}"
            yield logging.WARNING, f"{share} went to the late output: {reasons}"

    def _held(self, status: QueryStatus) -> Iterator[tuple[int, str]]:
        """A watermark that stands still while windows wait, once until it advances."""
        found = status.explanation
        stands = (
            0
            if found is None or found.is_finished or found.since is None
            else status.now - found.since
        )
        waits = found is not None and bool(found.windows or found.unlisted)
        was_held, self._is_held = self._is_held, waits and stands > self.limits.held_back
        if self._is_held and not was_held and found is not None:
            at = "there is no watermark" if found.watermark is None else "the watermark stands"
            why = " ".join(found.sentences[1:3])
            yield logging.WARNING, f"{at} for {rounded(stands)} while windows wait. {why}"

    def _state(self, status: QueryStatus) -> Iterator[tuple[int, str]]:
        """State that has grown since it was last reported."""
        size = status.state_bytes
        if self._reported_state == 0:
            self._reported_state = max(size, self.limits.least_state)
        elif size > self.limits.growth * self._reported_state:
            former, self._reported_state = self._reported_state, size
            yield (
                logging.WARNING,
                f"the state has grown from {byte_size(former)} to {byte_size(size)}, with"
                f" {many(status.windows_open, 'open window')}",
            )


def _place(source: SourceStatus) -> tuple[int, int, str]:
    return source.input, source.key, source.name

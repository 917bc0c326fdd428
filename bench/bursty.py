"""Sessions over small deliveries with late rows, against a dictionary of sessions in plain Python.

Each key is silent for most of the time and sends bursts, so that sessions end in every delivery.
The peer does the same work per row and per pane: it classifies rows by the watermark, merges
sessions, fires them when they are complete, updates them when late rows come, and purges them.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import pyarrow as pa

from bench.cases import Measured, aggregated, measured, windowed
from bench.racing import OperatorRunner, race
from bench.traffic import SECOND, START, Delivery, shifted
from tidegate.spec.windows import session

_ROWS, _KEYS = 500, 12
"""Rows of a delivery, and the keys whose burst begins in it."""
_SPAN, _BURST = 5 * SECOND, 5
"""Event time of a delivery, and the number of deliveries that a burst lasts."""
_GAP, _LATENESS, _DISORDER, _BATCHED = 30 * SECOND, 60 * SECOND, 10 * SECOND, 10 * SECOND
_LATE = 0.03
"""The share of rows that are 20 to 60 seconds older than their delivery."""


def bursty_sessions(rows: int) -> list[Measured]:
    """Deliveries of 500 rows; a dozen sessions end in each."""
    size = max(_KEYS, min(_ROWS, rows))
    ours = OperatorRunner(aggregated(windowed(session("30 seconds")).allow_lateness("1 minute")))
    peer = DictionaryRunner()
    fill = 30
    times = race(
        {"ours": ours, "peer": peer},
        ([_delivery(number, size)] for number in range(fill + 60)),
        unmeasured=fill,
        steady=False,
    )
    keys = _KEYS * _BURST
    return [measured("bursty_sessions", 1.0, "a dict of sessions", keys, size, ours, times)]


def _delivery(number: int, size: int) -> Delivery:
    random = np.random.default_rng(number)
    begin = number * _SPAN
    times = begin + np.sort(random.integers(0, _SPAN, size))
    late = random.random(size) < _LATE
    times[late] -= random.integers(20 * SECOND, 60 * SECOND, int(late.sum()))
    first = max(0, number - _BURST + 1) * _KEYS
    keys = random.integers(first, (number + 1) * _KEYS, size)
    values = pa.array(random.integers(0, 1_000, size))
    return shifted(START + times, pa.array(keys), values, START + begin + _SPAN)


@dataclass(slots=True)
class _Session:
    """One session of a key."""

    start: int
    end: int
    n: int
    total: int
    top: int
    pane: int = 0
    fired: bool = False
    due: int | None = None
    """When its late rows are due as a pane."""


class DictionaryRunner:
    """A dictionary from key to sessions, in plain Python."""

    def __init__(self) -> None:
        self._sessions: dict[int, list[_Session]] = {}
        self._watermark = self._newest = -(2**62)
        self.panes = 0

    def take(self, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            self._take(delivery)

    def _take(self, delivery: Delivery) -> None:
        rows = delivery.rows
        panes: list[dict[str, object]] = []
        late: list[tuple[int, int, int]] = []
        columns = (rows["key"], rows["ts"].cast(pa.int64()), rows["v"])
        now = delivery.now
        for key, at, value in zip(*(column.to_pylist() for column in columns), strict=True):
            if at < self._watermark - _LATENESS:
                late.append((key, at, value))
                continue
            self._newest = max(self._newest, at)
            self._absorb(key, _Session(at, at + _GAP, 1, value, value), now, panes)
        self._watermark = max(self._watermark, self._newest - _DISORDER)
        self._settle(now, panes)
        self.panes += len(panes)

    def _absorb(self, key: int, made: _Session, now: int, panes: list[dict[str, object]]) -> None:
        held = self._sessions.setdefault(key, [])
        for other in [s for s in held if s.start < made.end and made.start < s.end]:
            start, end = min(made.start, other.start), max(made.end, other.end)
            if other.fired and (start, end) != (other.start, other.end):
                panes.append(self._pane(key, other, -1, now))
            else:
                made.pane, made.fired = other.pane, other.fired
            made.start, made.end = start, end
            made.n += other.n
            made.total += other.total
            made.top = max(made.top, other.top)
            made.due = other.due if made.due is None else made.due
            held.remove(other)
        held.append(made)
        if made.end <= self._watermark and made.due is None:
            if made.fired:
                made.due = now + _BATCHED
            else:
                self._fire(key, made, now, panes)

    def _settle(self, now: int, panes: list[dict[str, object]]) -> None:
        for key, held in list(self._sessions.items()):
            for each in list(held):
                complete = each.end <= self._watermark and not each.fired
                if complete or (each.due is not None and each.due <= now):
                    self._fire(key, each, now, panes)
                if each.end + _LATENESS <= self._watermark:
                    held.remove(each)
            if not held:
                del self._sessions[key]

    def _fire(self, key: int, each: _Session, now: int, panes: list[dict[str, object]]) -> None:
        panes.append(self._pane(key, each, 1, now))
        each.fired, each.due, each.pane = True, None, each.pane + 1

    def _pane(self, key: int, each: _Session, op: int, now: int) -> dict[str, object]:
        name = f"{key}/{each.start}/{each.end}/{each.pane}/{op}"
        return {
            "key": key,
            "window_start": each.start,
            "window_end": each.end,
            "op": "+" if op > 0 else "-",
            "timing": "late" if each.fired else "on_time",
            "pane": each.pane,
            "is_first": each.pane == 0,
            "n": each.n,
            "total": each.total,
            "top": each.top,
            "watermark": self._watermark,
            "emitted_at": now,
            "id": blake2b(name.encode(), digest_size=16).hexdigest(),
        }

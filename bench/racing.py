"""Races peers on the same deliveries, in turns, and measures the time of each turn.

Ratios use processor time, which a busy machine distorts less than wall time. Wall time is reported
beside it.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from bench.traffic import START, Delivery
from tidegate.api.streams import Panes
from tidegate.embedded.recording import DEFAULT_BYTES
from tidegate.kernel.windows.assigners import Aligned


class Runner(Protocol):
    """Something that takes deliveries."""

    def take(self, deliveries: list[Delivery]) -> None: ...


@dataclass(frozen=True)
class Times:
    """Seconds per turn of one runner."""

    processor: float
    wall: float


@dataclass
class _Clock:
    """Stopwatch for the turns of one runner."""

    processor: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)

    def measure(self, runner: Runner, deliveries: list[Delivery]) -> None:
        wall, processor = time.perf_counter(), time.process_time()
        runner.take(deliveries)
        self.processor.append(time.process_time() - processor)
        self.wall.append(time.perf_counter() - wall)

    def read(self, *, steady: bool) -> Times:
        middle = statistics.median if steady else statistics.fmean
        return Times(middle(self.processor), middle(self.wall))


class OperatorRunner:
    """An embedded operator over a memory store; takes results and flushes after every delivery."""

    def __init__(self, panes: Panes, *, history: int = DEFAULT_BYTES) -> None:
        self.operator = panes.embedded(now=START, history=history)

    def take(self, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            self.operator.add_messages(delivery.rows, now=delivery.now)
            self.operator.get_result()
            self.operator.flush()

    @property
    def bytes_per_cell(self) -> float:
        """Bytes of state per key and window."""
        wiring = self.operator.operator.wiring
        if wiring is None:
            return 0.0
        size, pairs = wiring.context.cells.nbytes, len(wiring.context.cells)
        if wiring.slice_buffer is not None and isinstance(wiring.cell_update.assigner, Aligned):
            slices = wiring.slice_buffer.slices
            size += slices.nbytes
            keys = {
                bounds: np.concatenate([frame.ints("key_hash") for frame in slices.frames(bounds)])
                for bounds in slices.bounds()
            }
            pairs += _pairs(
                keys, wiring.cell_update.assigner, self.operator.operator.progress.watermark
            )
        return size / max(1, pairs)


def _pairs(keys: Mapping[tuple[int, int], np.ndarray], assigner: Aligned, watermark: int) -> int:
    """Number of (key, open window) pairs over some slices."""
    if not keys:
        return 0
    distinct, codes = np.unique(np.concatenate(list(keys.values())), return_inverse=True)
    held: dict[tuple[int, int], np.ndarray] = {}
    end = 0
    for bounds, column in keys.items():
        begin, end = end, end + len(column)
        for window in assigner.windows_of_slice(*bounds):
            if window[1] > watermark:
                held.setdefault(window, np.zeros(len(distinct), bool))[codes[begin:end]] = True
    return sum(int(mask.sum()) for mask in held.values())


class GroupByRunner:
    """Bare Arrow: `group_by` window and key per delivery; the window of each row is given."""

    def take(self, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            rows = delivery.rows.append_column("start", delivery.starts)
            rows.group_by(["start", "key"], use_threads=False).aggregate(
                [([], "count_all"), ("v", "sum"), ("v", "max")]
            )


def race(
    runners: Mapping[str, Runner],
    turns: Iterable[list[Delivery]],
    *,
    unmeasured: int,
    steady: bool = True,
) -> dict[str, Times]:
    """Give every turn to every runner; `unmeasured` turns bring the runners to a steady state.

    The result is the median of similar (`steady`) turns. Where some turns do the work of others, it
    is the mean.
    """
    clocks = {name: _Clock() for name in runners}
    gc.collect()
    gc.disable()
    try:
        for number, deliveries in enumerate(turns):
            for name, runner in runners.items():
                clock = clocks[name] if number >= unmeasured else _Clock()
                clock.measure(runner, deliveries)
    finally:
        gc.enable()
    return {name: clock.read(steady=steady) for name, clock in clocks.items()}

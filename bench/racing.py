"""Racing runs peers side by side on the same deliveries, in turns, and keeps what a turn takes.

Times are processor time of the process: on a machine that others use too it says what the work
costs, where a wall clock says how long it had to wait. The wall clock is kept beside it.
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
from tidegate.api import Panes
from tidegate.kernel.windows.assigners import Aligned


class Runner(Protocol):
    """Something that takes deliveries."""

    def take(self, deliveries: list[Delivery]) -> None: ...


@dataclass(frozen=True)
class Times:
    """What a turn of one runner takes, in seconds."""

    processor: float
    wall: float


@dataclass
class _Clock:
    """What the turns of one runner took."""

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
    """An embedded operator whose results are taken and flushed after every delivery, with a store
    in memory.
    """

    def __init__(self, panes: Panes) -> None:
        self.operator = panes.embedded(now=START)

    def take(self, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            self.operator.add_messages(delivery.rows, now=delivery.now)
            self.operator.get_result()
            self.operator.flush()

    @property
    def bytes_per_cell(self) -> float:
        """Bytes of state for each key in each window that is held."""
        parts = self.operator.operator.parts
        if parts is None:
            return 0.0
        size, pairs = parts.core.cells.nbytes, len(parts.core.cells)
        if parts.slice_buffer is not None and isinstance(parts.cell_update.assigner, Aligned):
            slices = parts.slice_buffer.slices
            size += slices.nbytes
            keys = {
                bounds: np.concatenate([frame.ints("key_hash") for frame in slices.frames(bounds)])
                for bounds in slices.bounds()
            }
            pairs += _pairs(
                keys, parts.cell_update.assigner, self.operator.operator.progress.watermark
            )
        return size / max(1, pairs)


def _pairs(keys: Mapping[tuple[int, int], np.ndarray], assigner: Aligned, watermark: int) -> int:
    """How many keys there are in the open windows over some slices, a key counted in every
    window.
    """
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
    """Bare Arrow: a `group_by` by window and key over each delivery; it is given the window of each
    row.
    """

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
    """Every runner takes every turn; the first ones only bring it to its steady state.

    Turns that are alike have a median. Where some do the work of others, the mean is what a turn
    costs.
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

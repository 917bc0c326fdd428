"""Samples of an embedded operator: rows, keys, firings, sources, a hot key and late rows."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from bench.scaling.samples import OPERATOR, STATE, Sample
from bench.traffic import PER_MINUTE, SECOND, START, Traffic, deliver
from tidegate.api.streams import Panes, stream
from tidegate.spec import aggregates
from tidegate.spec.triggers import after_count, after_watermark
from tidegate.spec.watermarks import bounded
from tidegate.spec.windows import tumbling
from tidegate.state.memory import MemoryStore
from tidegate.state.serialization import encode_compact

FILL, TURNS = 2, 3
"""Minutes that fill the state, and minutes that are measured."""


@dataclass(frozen=True)
class Setting:
    """One configuration of an operator and its input."""

    rows: int = 200_000
    """Rows of a delivery, of which there are three per minute of event time."""
    keys: int = 10_000
    sources: int = 1
    hot: float = 0.0
    """The share of the rows that have one key."""
    late: float = 0.0
    """The share of the rows that are 15 to 45 seconds behind the others."""
    early: int | None = None
    """The number of rows of a key and window after which it has another early pane."""
    window: int = 60
    """The length of windows in seconds."""

    @property
    def panes(self) -> Panes:
        """The pipeline."""
        windowed = stream(
            time="ts", key="key", partition="source", watermark=bounded("10 seconds")
        ).window(tumbling(f"{self.window} seconds"))
        if self.early is not None:
            windowed = windowed.trigger(after_watermark(early=after_count(self.early)))
        return windowed.allow_lateness("1 minute").aggregate(
            n=aggregates.count(), total=aggregates.sum("v"), top=aggregates.max("v")
        )

    @property
    def traffic(self) -> Traffic:
        """Its input."""
        return Traffic(self.keys, self.rows, stragglers=round(self.late * 1_000), hot=self.hot)


class CompactStore(MemoryStore):
    """A store that encodes tables like the state store of Spark, and counts the bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.nbytes = 0

    def put_table(self, name: str, table: pa.Table) -> None:
        self.nbytes += encode_compact(table).size
        super().put_table(name, table)

    def put_json(self, name: str, document: Any) -> None:
        super().put_json(name, document)
        self.nbytes += len(self._values[name])


@dataclass
class _Sums:
    """What was measured so far."""

    process: float = 0.0
    flush: float = 0.0
    rows: int = 0
    cells: int = 0
    panes: int = 0
    nbytes: int = 0
    deliveries: int = 0


def measure(setting: Setting, factor: str, value: float) -> list[Sample]:
    """The cost of a delivery in a setting: of the operator, and of saving its state."""
    store = CompactStore()
    operator = setting.panes.embedded(store=store, now=START, history=0)
    sums = _Sums()
    gc.collect()
    gc.disable()
    try:
        for number, (rows, now, cells) in enumerate(_deliveries(setting)):
            store.nbytes = 0
            begin = time.process_time()
            operator.add_messages(rows, now=now)
            panes = operator.get_result().panes.num_rows
            middle = time.process_time()
            operator.flush()
            end = time.process_time()
            if number < FILL * PER_MINUTE:
                continue
            sums.process += middle - begin
            sums.flush += end - middle
            sums.rows += rows.num_rows
            sums.cells += cells
            sums.panes += panes
            sums.nbytes += store.nbytes
            sums.deliveries += 1
    finally:
        gc.enable()
    operator.close()
    return _samples(sums, setting, factor, value)


def _samples(sums: _Sums, setting: Setting, factor: str, value: float) -> list[Sample]:
    deliveries = sums.deliveries
    counts = {
        "batches": 1.0,
        "rows": sums.rows / deliveries,
        "cells": sums.cells / deliveries,
        "panes": sums.panes / deliveries,
        "sources": float(setting.sources),
    }
    saved = {"batches": 1.0, "bytes": sums.nbytes / deliveries}
    return [
        Sample(OPERATOR, factor, value, sums.process / deliveries, counts),
        Sample(STATE, factor, value, sums.flush / deliveries, saved),
    ]


def _deliveries(setting: Setting) -> Iterator[tuple[pa.Table, int, int]]:
    """The rows of each delivery, its clock, and its number of cells."""
    minute = setting.traffic.minute()
    names = pa.array([f"clicks-{n}" for n in range(setting.sources)])
    source = names.take(pa.array(np.arange(setting.rows) % setting.sources))
    for number in range(FILL + TURNS):
        for delivery in deliver(minute, number):
            rows = delivery.rows
            key, at = rows.column("key").to_numpy(), rows.column("ts").cast(pa.int64()).to_numpy()
            cells = len(np.unique(key * 10_000 + (at - START) // (setting.window * SECOND)))
            yield rows.append_column("source", source), delivery.now, cells


def many(number: int, share: float) -> int:
    """A share of a number, at least 1."""
    return max(1, round(number * share))


def scaled(setting: Setting, share: float) -> Setting:
    """The setting with a share of its rows, keys and sources."""
    return replace(
        setting,
        rows=many(setting.rows, share),
        keys=many(setting.keys, share),
        sources=many(setting.sources, share),
    )


KEYS = (1_000, 10_000, 100_000, 1_000_000, 10_000_000)
HOT = (0.0, 0.05, 0.2, 0.5)
LATE = (0.0, 0.01, 0.05, 0.1, 0.2)
FIRINGS = {0: None, 1: 40, 6: 10, 20: 3, 60: 1}
"""The number of early panes of a window with 60 rows, and the rows between two of them."""
FULL = 200_000
"""Rows of a delivery."""
ROWS = (2_000, 20_000, 200_000, 1_000_000)
SOURCES = (1, 100, 1_000, 10_000)
WINDOWS = (10, 20, 60, 300)
"""Lengths of windows in seconds."""
_BASE = Setting()


def growth_settings() -> Iterator[tuple[str, float, Setting]]:
    """The factors of the growth table."""
    for keys in KEYS:
        # Enough rows that a key is in a delivery, or nearly.
        yield "keys", keys, replace(_BASE, keys=keys, rows=1_000_000)
    for hot in HOT:
        yield "hot", hot, replace(_BASE, hot=hot)
    for late in LATE:
        yield "late", late, replace(_BASE, late=late)
    for firings, early in FIRINGS.items():
        yield "firings", firings, replace(_BASE, early=early)


def model_settings() -> Iterator[tuple[str, float, Setting]]:
    """The factors of the model that the growth table lacks."""
    for rows in ROWS:
        yield "rows", rows, replace(_BASE, rows=rows)
    for sources in SOURCES:
        yield "sources", sources, replace(_BASE, sources=sources)
    for seconds in WINDOWS:
        yield "window", seconds, replace(_BASE, window=seconds)

"""Generated Nexmark events: persons, auctions and bids in a fixed order, as columns.

Event `n` is a person if `n mod 50` is 0, an auction if it is 1, 2 or 3, and otherwise a bid. Times
follow from `n` and the rate alone. Within groups of `GROUP` events the order is a fixed
permutation, so events are out of order by less than the delay of the watermark and none is late.
All other columns are random, seeded with the number of the chunk: the same in every run.
"""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

KINDS = ("person", "auction", "bid")
RATE = 10_000
"""Events per second of event time."""
START = 1_700_000_040_000
"""Time of the first event, in milliseconds."""
_EPOCH, _AUCTIONS = 50, 3
_FIRST, _CATEGORY = 1_000, 10
GROUP, _STEP = 1_000, 953
_HOT_EVERY = 100
_ACTIVE, _AHEAD, _IN_FLIGHT = 1_000, 10, 100
_CHANNELS = ("Google", "Facebook", "Baidu", "Apple")
_NAMES = ("Ann", "Bo", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hal", "Ida")
SCHEMAS = {
    "person": "id long, name string, city string, ts timestamp, extra string",
    "auction": "id long, item string, reserve long, seller long, category long, ts timestamp,"
    " extra string",
    "bid": "auction long, bidder long, price long, channel string, ts timestamp, extra string",
}
"""Columns of each kind in the order of the files, which have no header."""
_EXTRA = {"person": 110, "auction": 420, "bid": 40}
"""Mean length of the padding, which brings a row to about 200, 500 and 100 bytes."""


@dataclass(frozen=True)
class Chunk:
    """The events from number `begin` to `end`, excluded."""

    begin: int
    end: int

    def tables(self) -> dict[str, pa.Table]:
        """A table for each kind of event."""
        given = np.arange(self.begin, self.end)
        number = given // GROUP * GROUP + given * _STEP % GROUP
        place = number % _EPOCH
        masks = {"person": place == 0, "auction": (place > 0) & (place <= _AUCTIONS)}
        masks["bid"] = place > _AUCTIONS
        random = np.random.default_rng(self.begin + 1)
        makers = {"person": _persons, "auction": _auctions, "bid": _bids}
        return {kind: makers[kind](number[masks[kind]], random) for kind in KINDS}


def write(folder: Path, events: int, files: int) -> None:
    """Write `events` as `files` CSV files per kind, each covering a stretch of event time."""
    bounds = np.linspace(0, events // GROUP, files + 1).astype(np.int64) * GROUP
    for kind in KINDS:
        (folder / kind).mkdir(parents=True, exist_ok=True)
    for number, (begin, end) in enumerate(itertools.pairwise(bounds)):
        for kind, table in Chunk(int(begin), int(end)).tables().items():
            _append(folder / kind / f"{number:04d}.csv", table, number)


def halves(source: Path, folder: Path, parts: int) -> None:
    """Deal the lines of the files to `parts` files per kind, in turns, in order of time.

    A reader that takes whole files then advances in event time together with the others.
    """
    for kind in KINDS:
        (folder / kind).mkdir(parents=True, exist_ok=True)
        outputs = [(folder / kind / f"{part}.csv").open("wb") for part in range(parts)]
        try:
            for path in sorted((source / kind).glob("*.csv")):
                lines = path.read_bytes().splitlines(keepends=True)
                for part, output in enumerate(outputs):
                    output.writelines(lines[part::parts])
        finally:
            for output in outputs:
                output.close()


def _append(path: Path, table: pa.Table, number: int) -> None:
    options = pa.csv.WriteOptions(include_header=False, quoting_style="none")
    times = pc.strftime(table["ts"], "%Y-%m-%d %H:%M:%S")
    at = table.schema.get_field_index("ts")
    pa.csv.write_csv(table.set_column(at, "ts", times), path, options)
    # Sources read files in order of modification time.
    os.utime(path, (START // 1_000 + number, START // 1_000 + number))


def _times(number: np.ndarray) -> pa.Array:
    return pa.array(START + number * 1_000 // RATE).cast(pa.timestamp("ms"))


def _persons(number: np.ndarray, random: np.random.Generator) -> pa.Table:
    rows = len(number)
    names = [pa.array(_NAMES).take(random.integers(0, len(_NAMES), rows)) for _ in range(2)]
    return pa.table(
        {
            "id": number // _EPOCH + _FIRST,
            "name": pc.binary_join_element_wise(*names, " "),
            "city": pa.array(_CHANNELS).take(random.integers(0, len(_CHANNELS), rows)),
            "ts": _times(number),
            "extra": _padding("person", rows, random),
        }
    )


def _auctions(number: np.ndarray, random: np.random.Generator) -> pa.Table:
    rows = len(number)
    first = number // _EPOCH
    return pa.table(
        {
            "id": first * _AUCTIONS + number % _EPOCH - 1 + _FIRST,
            "item": pc.binary_join_element_wise(
                "item", pa.array(random.integers(0, 1_000, rows)).cast(pa.string()), " "
            ),
            "reserve": _prices(rows, random) + _prices(rows, random),
            "seller": _people(first, 0, 3 / 4, random),
            "category": random.integers(_CATEGORY, _CATEGORY + 5, rows),
            "ts": _times(number),
            "extra": _padding("auction", rows, random),
        }
    )


def _bids(number: np.ndarray, random: np.random.Generator) -> pa.Table:
    rows = len(number)
    last = number // _EPOCH * _AUCTIONS + _AUCTIONS - 1
    hot = last // _HOT_EVERY * _HOT_EVERY
    low = np.maximum(last - _IN_FLIGHT, 0)
    cold = low + (random.random(rows) * (last - low + 1 + _AHEAD)).astype(np.int64)
    other = pa.array(random.integers(0, 10_000, rows)).cast(pa.string())
    known = pa.array(_CHANNELS).take(random.integers(0, len(_CHANNELS), rows))
    return pa.table(
        {
            "auction": np.where(random.random(rows) < 1 / 2, hot, cold) + _FIRST,
            "bidder": _people(number // _EPOCH, 1, 3 / 4, random),
            "price": _prices(rows, random),
            "channel": pc.if_else(
                random.random(rows) < 1 / 2,
                known,
                pc.binary_join_element_wise("channel", other, "-"),
            ),
            "ts": _times(number),
            "extra": _padding("bid", rows, random),
        }
    )


def _people(last: np.ndarray, which: int, hot: float, random: np.random.Generator) -> np.ndarray:
    """A hot person, number `which` of the last hundred, or one of the active and next ones."""
    rows = len(last)
    low = np.maximum(last - _ACTIVE + 1, 0)
    cold = low + (random.random(rows) * (last - low + 1 + _AHEAD)).astype(np.int64)
    chosen = last // _HOT_EVERY * _HOT_EVERY + which
    return np.where(random.random(rows) < hot, chosen, cold) + _FIRST


def _prices(rows: int, random: np.random.Generator) -> np.ndarray:
    return np.round(10 ** (6 * random.random(rows)) * 100).astype(np.int64)


def _padding(kind: str, rows: int, random: np.random.Generator) -> pa.Array:
    mean = _EXTRA[kind]
    longest = "tide gate " * (mean * 2 // 10 + 1)
    sizes = random.integers(int(mean * 0.8), int(mean * 1.2), rows)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    text = (longest * (int(offsets[-1]) // len(longest) + 1))[: int(offsets[-1])]
    buffers = pa.py_buffer(offsets.tobytes()), pa.py_buffer(text.encode())
    return pa.StringArray.from_buffers(rows, *buffers)

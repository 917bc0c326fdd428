"""Spark's source `tidegate`: streams whose writers know the time, with the writers' own watermark
in band.

A row is an event, or a note: a note has neither key nor value, and says how far in time all writers
are at the place that the batch has come to. It is put out with the batch that passes its place,
which is early enough and not too early: what a batch notes counts from its end on. An offset says
how far the stream was read and which watermark was noted last, so a batch that is replayed gives
the same rows.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)

from tidegate.errors import InputError, SetupError, SpecError, StreamError
from tidegate.kernel.frame import repeat
from tidegate.kernel.streams.frontier import Frontier
from tidegate.kernel.streams.segments import Segments
from tidegate.streams.store import Store, open_store
from tidegate.streams.stream import Start, Stream, start_of
from tidegate.streams.watermark_log import WatermarkLog

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
    from pyspark.sql.types import StructType

    HAS_READ_LIMIT = True
else:
    try:
        from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

        HAS_READ_LIMIT = True
    except ImportError:
        # Spark 4.1 asks a source only how far it could be read, and says neither where the query
        # stands nor how much it wants.
        SupportsTriggerAvailableNow, HAS_READ_LIMIT = object, False

NAME = "tidegate"
COLUMNS = (
    "key string, value binary, segment string, offset bigint, appended timestamp, writer string,"
    " noted timestamp"
)
_STAMP = pa.timestamp("us", "UTC")
_EVENT: list[tuple[str, pa.DataType]] = [
    ("key", pa.string()),
    ("value", pa.binary()),
    ("segment", pa.string()),
    ("offset", pa.int64()),
]
_ARROW = pa.schema([*_EVENT, ("appended", _STAMP), ("writer", pa.string()), ("noted", _STAMP)])
READ = 1 << 16
"""How many events are read at once."""
LARGE = 1 << 18
"""What is longer, in one segment, is read by several tasks."""
MOST_TASKS = 64
_OPTIONS = ("store", "stream", "startingPosition", "maxEventsPerTrigger", "failOnDataLoss")
_WHOLE = {"true": True, "false": False}

Range = tuple[str, int, int]
"""A segment, and from where to where it is read."""


@dataclass(frozen=True)
class Settings:
    """What the options of the source say."""

    store: str
    stream: str
    start: Start = "earliest"
    most: int | None = None
    strict: bool = True

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Settings:
        """Read the options, whose names Spark does not tell apart by case."""
        given = {name.lower(): value for name, value in options.items()}
        if unknown := sorted(given.keys() - {name.lower() for name in _OPTIONS}):
            raise SpecError(
                f"the source `{NAME}` has no option `{unknown[0]}`. Hint: it has"
                f" {', '.join(_OPTIONS)}"
            )
        for name in ("store", "stream"):
            if not given.get(name):
                raise SpecError(
                    f'the source `{NAME}` needs the option `{name}`. Hint: .option("store",'
                    ' "events.db").option("stream", "clicks")'
                )
        loss = given.get("failondataloss", "true").lower()
        if loss not in _WHOLE:
            raise SpecError(f"`failOnDataLoss` is true or false, got `{loss}`")
        return cls(
            given["store"],
            given["stream"],
            _start(given.get("startingposition", "earliest")),
            _most(given),
            _WHOLE[loss],
        )

    def resolved(self) -> Settings:
        """The same with an address that means the same in every process."""
        with open_store(self.store, create=False) as store:
            return Settings(store.url, self.stream, self.start, self.most, self.strict)


def _start(text: str) -> Start:
    """Spark's users write words as they like."""
    word = text.lower()
    return start_of(
        word if word in {"earliest", "latest"} else text, "`startingPosition`", '{"0": 17, "1": 4}'
    )


def _most(given: Mapping[str, str]) -> int | None:
    text = given.get("maxeventspertrigger")
    if text is not None and (not text.strip().isdecimal() or int(text) < 1):
        raise SpecError(f"`maxEventsPerTrigger` is a number of at least 1, got `{text}`")
    return None if text is None else int(text)


@dataclass(frozen=True)
class Offset:
    """How far a query has read, and the last watermark that it was told."""

    frontier: Frontier
    number: int = 0
    """The number of the watermark; 0 where none was passed yet."""
    time: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {**self.frontier.to_dict(), "watermark": self.number, "time": self.time}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Offset:
        return cls(Frontier.from_dict(document), document["watermark"], document["time"])


@dataclass(frozen=True)
class Seen:
    """A stream as it was at one moment."""

    segments: Segments
    sealed: frozenset[str]
    bounds: Mapping[str, tuple[int, int]]


class Planner:
    """Says what the batches of a query read; it lives where the driver is."""

    def __init__(self, settings: Settings, store: Store) -> None:
        self._settings, self._stream = settings, Stream(store, settings.stream)
        self._log = WatermarkLog(store, settings.stream)
        self._frozen: Seen | None = None

    def start(self) -> Offset:
        """Where a query begins."""
        return Offset(self._stream.frontier(self._settings.start))

    def freeze(self) -> None:
        """Take no notice of what comes from now on."""
        self._log.refresh()
        self._frozen = self._look()

    def next(self, start: Offset, most: int | None = None) -> Offset:
        """Where the next batch ends, which has at most so many events; the same where there is
        nothing new.

        No batch has the end of a segment and the begin of its successor, so the order of a key's
        events is that of batches.
        """
        if self._frozen is None:
            # What watermarks name is in a description that is read after them.
            self._log.refresh()
        seen = self._frozen or self._look()
        begun = self._settled(seen, start.frontier)
        there = {name: seen.bounds[name][1] - begun.position[name] for name in begun.readable}
        taken = shared({name: count for name, count in there.items() if count}, most)
        read = {name: begun.position[name] + count for name, count in taken.items()}
        return self._noted(seen, self._settled(seen, begun.advanced(seen.segments, read)), start)

    def last(self) -> Offset:
        """The end of the stream as it is now, which is the same wherever reading begins."""
        self._log.refresh()
        at, before = Offset(self._stream.frontier("earliest")), None
        seen = self._look()
        while at != before:
            before, frontier = at, self._settled(seen, at.frontier)
            frontier = frontier.advanced(
                seen.segments, {name: seen.bounds[name][1] for name in frontier.readable}
            )
            at = Offset(self._settled(seen, frontier))
        return self._noted(seen, at.frontier, at)

    def ranges(self, start: Offset, end: Offset) -> list[list[Range]]:
        """What lies between two offsets: what belongs into one list is read in its order, one list
        beside the other.
        """
        seen = self._look()
        found = between(
            seen.segments,
            start.frontier,
            end.frontier,
            {name: last for name, (_, last) in seen.bounds.items()},
        )
        there = [
            [(name, self._first(seen, name, low), high) for name, low, high in chain]
            for chain in found
        ]
        return [
            chain
            for chain in ([one for one in chain if one[1] < one[2]] for chain in there)
            if chain
        ]

    def _look(self) -> Seen:
        described = self._stream.description()
        return Seen(
            described.segments,
            frozenset(described.sealed),
            self._stream.store.bounds(self._stream.name),
        )

    def _settled(self, seen: Seen, frontier: Frontier) -> Frontier:
        """The frontier with the segments begun whose predecessors were read to their ends, and past
        what cannot be read any more.
        """
        while True:
            moved = {
                name: self._first(seen, name, frontier.position[name]) for name in frontier.readable
            }
            ended = {
                name
                for name, at in moved.items()
                if name in seen.sealed and at == seen.bounds[name][1] and self._is_ended(name, at)
            }
            if not ended and all(frontier.position[name] == at for name, at in moved.items()):
                return frontier
            frontier = frontier.advanced(seen.segments, moved, ended)

    def _first(self, seen: Seen, name: str, at: int) -> int:
        """Where reading goes on: at the offset, or at the first one that is still there."""
        first, last = seen.bounds[name]
        if at > last:
            raise StreamError(
                f"the query stands at {at} in the segment `{name}` of `{self._stream.name}`, which"
                f" ends at {last}, so it is not the stream that was read. Hint: start with a new"
                " checkpoint"
            )
        return at if at >= first else skipped(self._settings, name, at, first)

    def _is_ended(self, name: str, at: int) -> bool:
        block = self._stream.store.read(self._stream.name, name, at, 1)
        return block.ended and not block.rows.num_rows

    def _noted(self, seen: Seen, frontier: Frontier, before: Offset) -> Offset:
        """The offset with the last watermark that everything up to it has passed."""
        number = self._log.passed(frontier.position, seen.segments)
        if number <= before.number:
            return Offset(frontier, before.number, before.time)
        time = self._log.marks[number].time
        self._log.forget_before(number)
        return Offset(frontier, number, time)


def skipped(settings: Settings, name: str, at: int, first: int) -> int:
    """Go on at the first offset that can still be read, if that is allowed."""
    what = (
        f"the segment `{name}` of `{settings.stream}` was truncated up to {first}, and the query"
        f" stands at {at}"
    )
    if settings.strict:
        raise StreamError(
            f'{what}. Hint: .option("failOnDataLoss", "false") goes on with what is still there'
        )
    warnings.warn(f"{what}: what stood between is skipped", RuntimeWarning, stacklevel=2)
    return first


def shared(there: Mapping[str, int], most: int | None) -> dict[str, int]:
    """How much of each segment is taken, where each has so much: the same of all as far as they
    have it; of the longest where not all can be.
    """
    if most is None or sum(there.values()) <= most:
        return dict(there)
    longest = sorted(there, key=lambda name: (-there[name], name))[:most]
    taken: dict[str, int] = {}
    left = most
    for many, name in zip(range(len(longest), 0, -1), reversed(longest), strict=True):
        taken[name] = min(there[name], left // many)
        left -= taken[name]
    return taken


def between(
    segments: Segments, start: Frontier, end: Frontier, ends: Mapping[str, int]
) -> list[list[Range]]:
    """What lies between two frontiers, given the ends of segments that were sealed; segments of
    which one succeeds the other are in one list.
    """
    found: list[Range] = []
    for name in segments.by_name:
        if not _is_over(segments, start, name) and (
            name in end.position or _is_over(segments, end, name)
        ):
            low, high = start.position.get(name, 0), end.position.get(name, ends[name])
            if low < high:
                found.append((name, low, high))
    chains: list[list[Range]] = []
    for one in sorted(found, key=lambda piece: (segments[piece[0]].epoch, segments[piece[0]].low)):
        before = [
            chain
            for chain in chains
            if any(segments[one[0]].succeeds(segments[other[0]]) for other in chain)
        ]
        chains = [chain for chain in chains if chain not in before]
        chains.append([*(piece for chain in before for piece in chain), one])
    return chains


def _is_over(segments: Segments, frontier: Frontier, name: str) -> bool:
    """Whether a segment lies before a frontier as a whole."""
    if name in frontier.position:
        return name in frontier.ended
    return any(segments[other].succeeds(segments[name]) for other in frontier.position)


# What Spark calls


class Share(InputPartition):
    """What one task reads: ranges one after the other, and a note behind them."""

    def __init__(self, ranges: Iterable[Range], note: tuple[int, int] | None = None) -> None:
        super().__init__(None)
        self.ranges, self.note = list(ranges), note


def dealt(chains: Iterable[list[Range]], note: tuple[int, int] | None) -> list[InputPartition]:
    """The shares of the tasks; only what is large and in one segment is cut."""
    pieces: list[list[Range]] = []
    for chain in chains:
        if len(chain) > 1:
            pieces.append(chain)
            continue
        (name, low, high), many = chain[0], -(-(chain[0][2] - chain[0][1]) // LARGE)
        bounds = [low + (high - low) * n // many for n in range(many + 1)]
        pieces += [[(name, bounds[n], bounds[n + 1])] for n in range(many)]
    many = min(len(pieces), MOST_TASKS)
    edges = [len(pieces) * n // many for n in range(many + 1)] if many else []
    found = [
        Share(piece for group in pieces[edges[n] : edges[n + 1]] for piece in group)
        for n in range(many)
    ]
    if note is not None:
        found = found or [Share([])]
        found[-1].note = note
    return list(found)


class _Rows:
    """What reading is to batches and to streams alike; it is sent to the tasks before anything was
    opened.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings.resolved()

    def __getstate__(self) -> dict[str, Any]:
        return {"_settings": self._settings}

    @cached_property
    def _store(self) -> Store:
        return open_store(self._settings.store, create=False)

    @cached_property
    def _planner(self) -> Planner:
        return Planner(self._settings, self._store)

    def stop(self) -> None:
        """Let go of the store."""
        if "_store" in self.__dict__:
            self._store.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a share."""
        if not isinstance(partition, Share):
            return
        with open_store(self._settings.store, create=False) as store:
            for piece in partition.ranges:
                yield from self._events(store, *piece)
        if partition.note is not None:
            yield self._note(*partition.note)

    def _events(self, store: Store, segment: str, at: int, end: int) -> Iterator[pa.RecordBatch]:
        settings = self._settings
        while at < end:
            try:
                block = store.read(settings.stream, segment, at, READ, before=end)
            except InputError:
                first = store.bounds(settings.stream)[segment][0]
                if first <= at:
                    raise
                at = skipped(settings, segment, at, first)
                continue
            yield from _batches(block.rows, segment)
            if block.ended:
                return
            if block.next <= at:
                raise StreamError(
                    f"the segment `{segment}` of `{settings.stream}` gives nothing at {at}, though"
                    f" the batch reads it up to {end}"
                )
            at = block.next

    def _note(self, number: int, time: int) -> pa.RecordBatch:
        # The number stands for an offset, so that whoever looks at offsets can tell notes apart.
        row = {"offset": number, "writer": self._settings.stream, "noted": time}
        return pa.RecordBatch.from_arrays(
            [pa.array([row.get(field.name)], field.type) for field in _ARROW], schema=_ARROW
        )


def _batches(rows: pa.Table, segment: str) -> list[pa.RecordBatch]:
    found = []
    for batch in rows.to_batches():
        many = batch.num_rows
        columns = [
            batch.column("key"),
            batch.column("value"),
            repeat(segment, many, pa.string()),
            batch.column("offset"),
        ]
        columns += [
            batch.column("appended").cast(_STAMP),
            pa.nulls(many, pa.string()),
            pa.nulls(many, _STAMP),
        ]
        found.append(pa.RecordBatch.from_arrays(columns, schema=_ARROW))
    return found


class BatchReader(_Rows, DataSourceReader):
    """Reads once what is in a stream; there are no notes, because nothing comes afterwards."""

    def partitions(self) -> list[InputPartition]:
        with self._store:
            planner = self._planner
            return dealt(planner.ranges(planner.start(), planner.last()), None)


class StreamReader(_Rows, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows a stream; the object lives as long as the query, on the side of the driver."""

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return self._planner.start().to_dict()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

        return (
            ReadAllAvailable() if self._settings.most is None else ReadMaxRows(self._settings.most)
        )

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._planner.freeze()

    def latestOffset(  # noqa: N802 - the name is Spark's
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        if start is None:
            return self._planner.last().to_dict()
        return self._planner.next(
            Offset.from_dict(start), getattr(limit, "max_rows", None)
        ).to_dict()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        before, after = Offset.from_dict(start), Offset.from_dict(end)
        note = (
            (after.number, after.time)
            if after.time is not None and after.number != before.number
            else None
        )
        return dealt(self._planner.ranges(before, after), note)


class StreamSource(DataSource):
    """The source as Spark finds it by its name."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        self._settings = Settings.of(options)

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        with open_store(self._settings.store, create=False) as store:
            # A stream that is not there is an error of the query, and not of its first batch.
            Stream(store, self._settings.stream).description()
        return COLUMNS

    def reader(self, schema: StructType) -> BatchReader:
        _check_columns(schema)
        if self._settings.most is not None:
            raise SpecError(
                "`maxEventsPerTrigger` is for streams, and a batch reads all. Hint:"
                " spark.readStream"
            )
        return BatchReader(self._settings)

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802
        _check_columns(schema)
        if self._settings.most is not None and not HAS_READ_LIMIT:
            raise SetupError(
                "`maxEventsPerTrigger` needs Spark 4.2 or newer, which asks a source for so much."
                " Hint: pip install 'pyspark>=4.2'"
            )
        return StreamReader(self._settings)


def _check_columns(schema: StructType) -> None:
    if schema.fieldNames() != _ARROW.names:
        raise SpecError(
            f"the columns of the source `{NAME}` are {COLUMNS}, got"
            f" {', '.join(schema.fieldNames())}. Hint: leave .schema() out"
        )

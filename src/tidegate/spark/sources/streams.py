"""The Spark source `tidegate`: streams with the watermark of their writers in band.

A row is an event or a note. A note has neither key nor value, but the watermark of all writers at a
position of the stream. It is emitted with the batch that passes the position, because a watermark
takes effect at the end of its batch. An offset has the position in the stream and the last
watermark, so a replay gives the same rows.
"""

from __future__ import annotations

import dataclasses
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
from tidegate.spark.failures import marks_errors
from tidegate.spark.sources.admission import limit_events
from tidegate.state.damage import damage_in
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
        # Spark 4.1 asks a source for its latest offset only, without start offset and read limit.
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
READ_EVENTS = 1 << 16
"""The number of events per read."""
SPLIT_EVENTS = 1 << 18
"""Longer ranges of a segment are split between tasks."""
MAX_TASKS = 64
_OPTIONS = ("store", "stream", "startingPosition", "maxEventsPerTrigger", "failOnDataLoss")
_BOOLEANS = {"true": True, "false": False}

Range = tuple[str, int, int]
"""A segment, and the first and last offset (exclusive) to read."""


@dataclass(frozen=True)
class StreamOptions:
    """The options of the source."""

    store: str
    stream: str
    start: Start = "earliest"
    max_events: int | None = None
    fail_on_data_loss: bool = True

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> StreamOptions:
        """Parse the options of Spark, whose names ignore case."""
        texts = {name.lower(): value for name, value in options.items()}
        if unknown := sorted(texts.keys() - {name.lower() for name in _OPTIONS}):
            raise SpecError(
                f"the source `{NAME}` has no option `{unknown[0]}`. Hint: use one of"
                f" {', '.join(_OPTIONS)}"
            )
        for name in ("store", "stream"):
            if not texts.get(name):
                raise SpecError(
                    f'the source `{NAME}` needs the option `{name}`. Hint: .option("store",'
                    ' "events.db").option("stream", "clicks")'
                )
        loss = texts.get("failondataloss", "true").lower()
        if loss not in _BOOLEANS:
            raise SpecError(f"`failOnDataLoss` is true or false, got `{loss}`")
        return cls(
            texts["store"],
            texts["stream"],
            _parse_start(texts.get("startingposition", "earliest")),
            _parse_max_events(texts.get("maxeventspertrigger")),
            _BOOLEANS[loss],
        )

    def resolved(self) -> StreamOptions:
        """The options with an address of the store that is valid in every process."""
        with open_store(self.store, create=False) as store:
            return dataclasses.replace(self, store=store.url)


def _parse_start(text: str) -> Start:
    """The start position; keywords ignore case."""
    word = text.lower()
    return start_of(
        word if word in {"earliest", "latest"} else text, "`startingPosition`", '{"0": 17, "1": 4}'
    )


def _parse_max_events(text: str | None) -> int | None:
    if text is not None and (not text.strip().isdecimal() or int(text) < 1):
        raise SpecError(f"`maxEventsPerTrigger` is a number of at least 1, got `{text}`")
    return None if text is None else int(text)


@dataclass(frozen=True)
class StreamOffset:
    """The position of a query in the stream, and the last watermark that it received."""

    frontier: Frontier
    number: int = 0
    """The number of the watermark; 0 before the first."""
    time: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {**self.frontier.to_dict(), "watermark": self.number, "time": self.time}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> StreamOffset:
        with damage_in("an offset of a stream source"):
            return cls(Frontier.from_dict(document), document["watermark"], document["time"])


@dataclass(frozen=True)
class StreamSnapshot:
    """The segments of a stream at one moment."""

    segments: Segments
    sealed: frozenset[str]
    bounds: Mapping[str, tuple[int, int]]


class OffsetPlanner:
    """Plans the batches of a query, on the driver."""

    def __init__(self, options: StreamOptions, store: Store) -> None:
        self._options, self._stream = options, Stream(store, options.stream)
        self._log = WatermarkLog(store, options.stream)
        self._frozen: StreamSnapshot | None = None

    def start(self) -> StreamOffset:
        """The start offset of a query."""
        return StreamOffset(self._stream.frontier(self._options.start))

    def freeze(self) -> None:
        """Ignore events and watermarks that arrive from now on."""
        self._log.refresh()
        self._frozen = self._snapshot()

    def next(self, start: StreamOffset, max_events: int | None = None) -> StreamOffset:
        """The end of the next batch, of at most `max_events`; `start` if there is nothing new.

        A batch never has the end of a segment and the start of its successor, so batches keep the
        order of the events of a key.
        """
        if self._frozen is None:
            # Read before the snapshot, which then has all segments of the watermarks.
            self._log.refresh()
        snapshot = self._frozen or self._snapshot()
        begun = self._settle(snapshot, start.frontier)
        counts = {name: snapshot.bounds[name][1] - begun.position[name] for name in begun.readable}
        taken = limit_events({name: count for name, count in counts.items() if count}, max_events)
        read = {name: begun.position[name] + count for name, count in taken.items()}
        end = self._settle(snapshot, begun.advanced(snapshot.segments, read))
        return self._with_watermark(snapshot, end, start)

    def last(self) -> StreamOffset:
        """The current end of the stream, which does not depend on the start offset."""
        self._log.refresh()
        at, before = StreamOffset(self._stream.frontier("earliest")), None
        snapshot = self._snapshot()
        while at != before:
            before, frontier = at, self._settle(snapshot, at.frontier)
            frontier = frontier.advanced(
                snapshot.segments, {name: snapshot.bounds[name][1] for name in frontier.readable}
            )
            at = StreamOffset(self._settle(snapshot, frontier))
        return self._with_watermark(snapshot, at.frontier, at)

    def ranges(self, start: StreamOffset, end: StreamOffset) -> list[list[Range]]:
        """The ranges between two offsets; those in the same list must be read in order."""
        snapshot = self._snapshot()
        chains = ranges_between(
            snapshot.segments,
            start.frontier,
            end.frontier,
            {name: last for name, (_, last) in snapshot.bounds.items()},
        )
        available = [
            [(name, self._first(snapshot, name, low), high) for name, low, high in chain]
            for chain in chains
        ]
        return [
            chain
            for chain in ([one for one in chain if one[1] < one[2]] for chain in available)
            if chain
        ]

    def _snapshot(self) -> StreamSnapshot:
        described = self._stream.description()
        return StreamSnapshot(
            described.segments,
            frozenset(described.sealed),
            self._stream.store.bounds(self._stream.name),
        )

    def _settle(self, snapshot: StreamSnapshot, frontier: Frontier) -> Frontier:
        """The frontier past truncated events, with the successors of completed segments."""
        while True:
            moved = {
                name: self._first(snapshot, name, frontier.position[name])
                for name in frontier.readable
            }
            ended = {
                name
                for name, at in moved.items()
                if name in snapshot.sealed
                and at == snapshot.bounds[name][1]
                and self._is_ended(name, at)
            }
            if not ended and all(frontier.position[name] == at for name, at in moved.items()):
                return frontier
            frontier = frontier.advanced(snapshot.segments, moved, ended)

    def _first(self, snapshot: StreamSnapshot, name: str, at: int) -> int:
        """The offset, or the first available one after a truncation."""
        first, last = snapshot.bounds[name]
        if at > last:
            raise StreamError(
                f"the query is at {at} in the segment `{name}` of `{self._stream.name}`, which"
                f" ends at {last}, so the checkpoint is of another stream. Hint: start with a new"
                " checkpoint"
            )
        return at if at >= first else skip_truncated(self._options, name, at, first)

    def _is_ended(self, name: str, at: int) -> bool:
        block = self._stream.store.read(self._stream.name, name, at, 1)
        return block.ended and not block.rows.num_rows

    def _with_watermark(
        self, snapshot: StreamSnapshot, frontier: Frontier, before: StreamOffset
    ) -> StreamOffset:
        """The offset of the frontier, with the last watermark whose cut it has passed."""
        number = self._log.passed(frontier.position, snapshot.segments)
        if number <= before.number:
            return StreamOffset(frontier, before.number, before.time)
        time = self._log.marks[number].time
        self._log.forget_before(number)
        return StreamOffset(frontier, number, time)


def skip_truncated(options: StreamOptions, name: str, at: int, first: int) -> int:
    """The first available offset; an error with `failOnDataLoss`."""
    what = (
        f"the segment `{name}` of `{options.stream}` was truncated up to {first}, and the query is"
        f" at {at}"
    )
    if options.fail_on_data_loss:
        raise StreamError(
            f'{what}. Hint: .option("failOnDataLoss", "false") continues with available events'
        )
    warnings.warn(f"{what}: the events between are skipped", RuntimeWarning, stacklevel=2)
    return first


def ranges_between(
    segments: Segments, start: Frontier, end: Frontier, ends: Mapping[str, int]
) -> list[list[Range]]:
    """The ranges between two frontiers; a segment and its successors are in the same list.

    `ends`: the ends of sealed segments.
    """
    found: list[Range] = []
    for name in segments.by_name:
        if not _is_before(segments, start, name) and (
            name in end.position or _is_before(segments, end, name)
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


def _is_before(segments: Segments, frontier: Frontier, name: str) -> bool:
    """Whether the whole segment is before a frontier."""
    if name in frontier.position:
        return name in frontier.ended
    return any(segments[other].succeeds(segments[name]) for other in frontier.position)


# The data source


class StreamPartition(InputPartition):
    """The input of one task: ranges in order, and a note after them."""

    def __init__(self, ranges: Iterable[Range], note: tuple[int, int] | None = None) -> None:
        super().__init__(None)
        self.ranges, self.note = list(ranges), note


def to_partitions(
    chains: Iterable[list[Range]], note: tuple[int, int] | None
) -> list[InputPartition]:
    """The partitions of a batch; only long ranges of a single segment are split."""
    pieces: list[list[Range]] = []
    for chain in chains:
        if len(chain) > 1:
            pieces.append(chain)
            continue
        (name, low, high), many = chain[0], -(-(chain[0][2] - chain[0][1]) // SPLIT_EVENTS)
        bounds = [low + (high - low) * n // many for n in range(many + 1)]
        pieces += [[(name, bounds[n], bounds[n + 1])] for n in range(many)]
    many = min(len(pieces), MAX_TASKS)
    edges = [len(pieces) * n // many for n in range(many + 1)] if many else []
    found = [
        StreamPartition(piece for group in pieces[edges[n] : edges[n + 1]] for piece in group)
        for n in range(many)
    ]
    if note is not None:
        found = found or [StreamPartition([])]
        found[-1].note = note
    return list(found)


class _StreamRows:
    """The common part of batch and stream readers; Spark sends it to tasks without its store."""

    def __init__(self, options: StreamOptions) -> None:
        self._options = options.resolved()

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options}

    @cached_property
    def _store(self) -> Store:
        return open_store(self._options.store, create=False)

    @cached_property
    def _planner(self) -> OffsetPlanner:
        return OffsetPlanner(self._options, self._store)

    def stop(self) -> None:
        """Close the store."""
        if "_store" in self.__dict__:
            self._store.close()

    @marks_errors
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a task."""
        if not isinstance(partition, StreamPartition):
            return
        with open_store(self._options.store, create=False) as store:
            for piece in partition.ranges:
                yield from self._events(store, *piece)
        if partition.note is not None:
            yield self._note(*partition.note)

    def _events(self, store: Store, segment: str, at: int, end: int) -> Iterator[pa.RecordBatch]:
        options = self._options
        while at < end:
            try:
                block = store.read(options.stream, segment, at, READ_EVENTS, before=end)
            except InputError:
                first = store.bounds(options.stream)[segment][0]
                if first <= at:
                    raise
                at = skip_truncated(options, segment, at, first)
                continue
            yield from _batches(block.rows, segment)
            if block.ended:
                return
            if block.next <= at:
                raise StreamError(
                    f"the segment `{segment}` of `{options.stream}` has no event at {at}, although"
                    f" the batch reads it up to {end}"
                )
            at = block.next

    def _note(self, number: int, time: int) -> pa.RecordBatch:
        # The number of the watermark is the offset of the note, so that notes have unique offsets.
        row = {"offset": number, "writer": self._options.stream, "noted": time}
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


class BatchReader(_StreamRows, DataSourceReader):
    """Reads a stream once, without notes, as no event follows."""

    @marks_errors
    def partitions(self) -> list[InputPartition]:
        with self._store:
            planner = self._planner
            return to_partitions(planner.ranges(planner.start(), planner.last()), None)


class StreamReader(_StreamRows, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a stream in micro-batches; lives as long as the query, on the driver."""

    @marks_errors
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return self._planner.start().to_dict()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

        return (
            ReadAllAvailable()
            if self._options.max_events is None
            else ReadMaxRows(self._options.max_events)
        )

    @marks_errors
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._planner.freeze()

    @marks_errors
    def latestOffset(  # noqa: N802 - the name is Spark's
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        if start is None:
            return self._planner.last().to_dict()
        return self._planner.next(
            StreamOffset.from_dict(start), getattr(limit, "max_rows", None)
        ).to_dict()

    @marks_errors
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        before, after = StreamOffset.from_dict(start), StreamOffset.from_dict(end)
        note = (
            (after.number, after.time)
            if after.time is not None and after.number != before.number
            else None
        )
        return to_partitions(self._planner.ranges(before, after), note)


class StreamSource(DataSource):
    """The data source `tidegate`."""

    @marks_errors
    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(dict(options))
        self._options = StreamOptions.parse(options)

    @classmethod
    def name(cls) -> str:
        return NAME

    @marks_errors
    def schema(self) -> str:
        with open_store(self._options.store, create=False) as store:
            # A missing stream fails at the start of the query, not in its first batch.
            Stream(store, self._options.stream).description()
        return COLUMNS

    @marks_errors
    def reader(self, schema: StructType) -> BatchReader:
        _check_columns(schema)
        if self._options.max_events is not None:
            raise SpecError(
                "`maxEventsPerTrigger` is for streaming queries; a batch query reads everything."
                " Hint: spark.readStream"
            )
        return BatchReader(self._options)

    @marks_errors
    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802
        _check_columns(schema)
        if self._options.max_events is not None and not HAS_READ_LIMIT:
            raise SetupError(
                "`maxEventsPerTrigger` needs Spark 4.2 or newer. Hint: pip install 'pyspark>=4.2'"
            )
        return StreamReader(self._options)


def _check_columns(schema: StructType) -> None:
    if schema.fieldNames() != _ARROW.names:
        raise SpecError(
            f"the columns of the source `{NAME}` are {COLUMNS}, got"
            f" {', '.join(schema.fieldNames())}. Hint: leave .schema() out"
        )

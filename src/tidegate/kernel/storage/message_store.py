"""The message store holds the messages in windows, each once, for whatever needs the messages
themselves: full-state aggregates and joins.

It is a columnar log-structured tree. Every delivery becomes an immutable run, sorted by the layout;
neighbouring runs of similar size are merged, so that cost follows the delivery. A run is cut into
segments that know the range of their positions and of their leading column: reads skip the segments
that cannot matter, and a store that spills loads only the others.

Contract
- The position of a message is its `time`, or its `offset` where the layout has no timestamp. Reads
  and expiry go by position.
- Messages with equal layout fields keep their order of arrival, however the stream was cut into
  deliveries.
- A message below the expired position is never stored and never returned.
- An identity (`uid`) is remembered until its position expires, also when the message itself was
  removed.
- `flush` puts what changed into the store and does not commit: the caller commits it together with
  the rest of its state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from tidegate.errors import CorruptStateError, InputError, SpecError, SpecMismatchError
from tidegate.instants import MAX, MIN
from tidegate.kernel.frame import Frame, concat_frames, repeat, to_arrow
from tidegate.state.store import Store

FORMAT = 1
LARGE_WINDOW = 10_000
"""More messages than this in a window make it large for `choose_layout`."""

SEQ = "seq"
"""The column a read adds: the arrival number of a message, by which `remove` finds it again."""

_COLUMNS = {
    "session_key": "key_hash",
    "equal_fields": "equal_hash",
    "timestamp": "time",
    "offset": "offset",
}
_DTYPES = {"time": np.int64, "offset": np.int64, "key_hash": np.uint64, "equal_hash": np.uint64}
_SEGMENT_BYTES = 4 * 1024 * 1024
_FULL_BYTES = 64 * 1024 * 1024
_FAN = 4


@dataclass(frozen=True, slots=True)
class Layout:
    """The order in which messages are kept: names of key fields, most significant first.

    >>> print(Layout(("session_key", "timestamp", "offset")))
    session_key, timestamp, offset
    """

    fields: tuple[str, ...]

    def __post_init__(self) -> None:
        unknown = [field for field in self.fields if field not in _COLUMNS]
        if unknown:
            raise SpecError(
                f"a layout is made of {', '.join(_COLUMNS)}, but `{unknown[0]}` came. Hint: see"
                " `choose_layout`"
            )
        if len(set(self.fields)) != len(self.fields) or self.fields[-1:] != ("offset",):
            raise SpecError(
                f"a layout names each field once and ends with `offset`, but {self.fields} came."
                " Hint: see `choose_layout`"
            )

    def __str__(self) -> str:
        return ", ".join(self.fields)

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(_COLUMNS[field] for field in self.fields)

    @property
    def position(self) -> str:
        """The column that reads and expiry go by."""
        return "time" if "timestamp" in self.fields else "offset"

    @property
    def expires_eagerly(self) -> bool:
        """Whether the position leads, so that what expires is one range."""
        return self.columns[0] == self.position


def choose_layout(
    axis: Literal["time", "tuple"],
    operation: Literal["aggregate", "join"],
    *,
    equal_fields: bool = False,
    time_range: bool = False,
    large: bool = False,
    session_key: bool = False,
) -> Layout:
    """The layout for a query: what its reads narrow first comes first.

    >>> choose_layout("time", "join", equal_fields=True, time_range=True)
    Layout(fields=('timestamp', 'equal_fields', 'offset'))
    """
    if axis not in {"time", "tuple"} or operation not in {"aggregate", "join"}:
        raise SpecError(
            f"a layout is for `time` or `tuple` and `aggregate` or `join`, but `{axis}` and"
            f" `{operation}` came. Hint: use one of these words"
        )
    by_fields = operation == "join" and equal_fields
    fields: tuple[str, ...] = ("offset",) if axis == "tuple" else ("timestamp", "offset")
    if by_fields and (large or (axis == "time" and not time_range)):
        fields = ("equal_fields", *fields)
    elif by_fields and axis == "time":
        fields = ("timestamp", "equal_fields", "offset")
    return Layout(("session_key", *fields) if session_key else fields)


@dataclass(slots=True, eq=False)
class _Segment:
    """A piece of a run: at most a few megabytes, immutable but for rows skipped at its
    beginning.
    """

    id: int
    rows: int
    skip: int
    low: int
    high: int
    first: int
    last: int
    nbytes: int
    frame: Frame | None = None
    stored: bool = False

    def meets(self, low: int, high: int) -> bool:
        """Whether its positions overlap an inclusive range."""
        return self.low <= high and low <= self.high

    def manifest(self) -> list[int]:
        return [
            self.id,
            self.rows,
            self.skip,
            self.low,
            self.high,
            self.first,
            self.last,
            self.nbytes,
        ]

    @classmethod
    def from_manifest(cls, entry: Sequence[Any]) -> _Segment:
        segment = cls(*entry)
        segment.stored = True
        return segment


_Run = list[_Segment]


def _rows(run: _Run) -> int:
    return sum(segment.rows for segment in run)


def _tier(run: _Run) -> int:
    """The size class of a run; classes are a factor of the fan apart, all small runs are one
    class.
    """
    return max(0, _rows(run).bit_length() - 8) // 2


def _member(values: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Which values occur in `wanted`, which is sorted."""
    if not len(wanted):
        return np.zeros(len(values), bool)
    at = np.searchsorted(wanted, values)
    at[at == len(wanted)] = 0
    found: np.ndarray = wanted[at] == values
    return found


def _ranges(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """All integers of the ranges [low, high), one range after the other."""
    sizes = high - low
    return np.repeat(low - (np.cumsum(sizes) - sizes), sizes) + np.arange(sizes.sum())


class _Runs:
    """Immutable sorted runs, oldest first, over one store prefix."""

    def __init__(
        self, store: Store, prefix: str, order: tuple[str, ...], position: str, segment_rows: int
    ) -> None:
        self._store = store
        self._prefix = prefix
        self._order = order
        self._position = position
        self._segment_rows = segment_rows
        self._runs: list[_Run] = []
        self._next = 0
        self._garbage: list[_Segment] = []
        self.horizon = MIN
        self.changed = False
        self.known: Frame | None = None
        """The columns that there are by now, where older rows may have fewer."""

    def __len__(self) -> int:
        return len(self._runs)

    @property
    def rows(self) -> int:
        return sum(map(_rows, self._runs))

    @property
    def nbytes(self) -> int:
        return sum(segment.nbytes for run in self._runs for segment in run)

    def append(self, frame: Frame) -> None:
        self._runs.append(self._sorted(frame))
        self._merge_tail()

    def pieces(
        self, low: int, high: int, lead: np.ndarray | None, narrow: Callable[[Frame], Frame]
    ) -> list[list[Frame]]:
        """Per run, what lies in the inclusive range of positions, has one of the sorted leading
        values, and passes `narrow`.
        """
        low = max(low, self.horizon)
        found = []
        for run in self._runs:
            candidates = [
                (segment, self._values_in(segment, lead))
                for segment in run
                if segment.meets(low, high)
            ]
            frames = [
                self._piece(run, segment, low, high, values)
                for segment, values in candidates
                if values is None or len(values)
            ]
            parts = [part for part in map(narrow, frames) if len(part)]
            if parts:
                found.append(parts)
        self._runs = [run for run in self._runs if run]
        return found

    def expire(self, before: int) -> None:
        """Drop what lies below a position: whole segments always; single rows now if they are a
        range, else when they are next touched.
        """
        if before <= self.horizon:
            return
        self.horizon = before
        self.changed = True
        for run in self._runs:
            for segment in run:
                if segment.high < before:
                    self._discard(segment)
                elif segment.low < before and self._order[0] == self._position:
                    self._trim(segment)
            run[:] = [segment for segment in run if segment.high >= before]
        self._runs = [run for run in self._runs if run]

    def filter(
        self, low: int, high: int, lead: tuple[int, int], gone: Callable[[Frame], np.ndarray]
    ) -> int:
        """Rewrite the segments in range without the rows that are gone; how many there were."""
        count = 0
        for run in self._runs:
            for segment in [
                s for s in run if s.meets(low, high) and s.first <= lead[1] and lead[0] <= s.last
            ]:
                frame = self._load(segment)
                alive = frame.ints(self._position) >= self.horizon
                hit = gone(frame) & alive
                if hit.any():
                    count += int(hit.sum())
                    self._replace(run, segment, frame.where(alive & ~hit))
        self._runs = [run for run in self._runs if run]
        return count

    def compact(self) -> None:
        """Merge everything into one run, without what has expired."""
        if len(self._runs) > 1 or any(
            segment.low < self.horizon for run in self._runs for segment in run
        ):
            self._merge(0)

    def resort(self, order: tuple[str, ...], position: str, arrival: str) -> None:
        """Keep the same rows in another order."""
        runs, self._runs = self._runs, []
        frames = [self._take_out(run) for run in runs]
        self._order, self._position = order, position
        self._runs = [
            self._sorted(frame.take(np.argsort(frame.ints(arrival))))
            for frame in frames
            if len(frame)
        ]

    def sort(self, frame: Frame) -> Frame:
        return frame.take(self._argsort(frame))

    def flush(self) -> None:
        for segment in self._garbage:
            self._store.delete(self._name(segment))
        self._garbage.clear()
        for segment in (s for run in self._runs for s in run):
            self._save(segment)
        self.changed = False

    def manifest(self) -> dict[str, Any]:
        return {
            "next": self._next,
            "runs": [[segment.manifest() for segment in run] for run in self._runs],
        }

    def restore(self, manifest: dict[str, Any], horizon: int) -> None:
        self._next = manifest["next"]
        self._runs = [[_Segment.from_manifest(entry) for entry in run] for run in manifest["runs"]]
        self.horizon = horizon

    def _name(self, segment: _Segment) -> str:
        return f"{self._prefix}{segment.id:012d}"

    def _save(self, segment: _Segment) -> None:
        if not segment.stored and segment.frame is not None:
            self._store.put_table(self._name(segment), segment.frame.to_table())
            segment.stored = True
        if self._store.spills:
            segment.frame = None

    def _load(self, segment: _Segment) -> Frame:
        frame = segment.frame
        if frame is None:
            frame = self._fetch(segment)
            if not self._store.spills:
                segment.frame = frame
        frame = frame if self.known is None else _completed(frame, self.known)
        return frame.slice(segment.skip, segment.skip + segment.rows) if segment.skip else frame

    def _fetch(self, segment: _Segment) -> Frame:
        name = self._name(segment)
        try:
            frame = Frame.from_table(self._store.get_table(name))
        except KeyError:
            raise CorruptStateError(
                f"the message store lacks its part `{name}`. Hint: restore the state from a copy,"
                " or replay the input"
            ) from None
        if len(frame) != segment.skip + segment.rows:
            what = f"has {len(frame)} messages instead of {segment.skip + segment.rows}"
            raise CorruptStateError(
                f"the part `{name}` of the message store {what}. Hint: restore the state from a"
                " copy, or replay the input"
            )
        return frame

    def _discard(self, segment: _Segment) -> None:
        self.changed = True
        if segment.stored:
            self._garbage.append(segment)

    def _argsort(self, frame: Frame) -> np.ndarray:
        return np.lexsort([frame.ints(name) for name in reversed(self._order)])

    def _sorted(self, frame: Frame) -> _Run:
        order = self._argsort(frame)
        step = max(1, min(self._segment_rows, _SEGMENT_BYTES * len(frame) // max(1, frame.nbytes)))
        # Each segment is taken on its own: it owns its memory, which is free again as soon as the
        # segment is dropped.
        return [
            self._segment(frame.take(order[at : at + step])) for at in range(0, len(frame), step)
        ]

    def _segment(self, frame: Frame) -> _Segment:
        at, lead = frame.ints(self._position), frame.ints(self._order[0])
        self.changed = True
        self._next += 1
        return _Segment(
            self._next - 1,
            len(frame),
            0,
            int(at.min()),
            int(at.max()),
            int(lead[0]),
            int(lead[-1]),
            frame.nbytes,
            frame,
        )

    @staticmethod
    def _values_in(segment: _Segment, lead: np.ndarray | None) -> np.ndarray | None:
        """The wanted leading values that a segment can hold."""
        if lead is None:
            return None
        kind = lead.dtype.type
        return lead[
            np.searchsorted(lead, kind(segment.first)) : np.searchsorted(
                lead, kind(segment.last), "right"
            )
        ]

    def _piece(
        self, run: _Run, segment: _Segment, low: int, high: int, lead: np.ndarray | None
    ) -> Frame:
        frame = self._drop_expired(run, segment, self._load(segment))
        return self._between(self._led(frame, lead), low, high)

    def _led(self, frame: Frame, lead: np.ndarray | None) -> Frame:
        """The rows with one of the leading values, found by binary search."""
        if lead is None:
            return frame
        column = frame.ints(self._order[0])
        return frame.take(
            _ranges(np.searchsorted(column, lead), np.searchsorted(column, lead, "right"))
        )

    def _between(self, frame: Frame, low: int, high: int) -> Frame:
        at = frame.ints(self._position)
        if self._order[0] == self._position:
            return frame.slice(
                int(np.searchsorted(at, np.int64(low))),
                int(np.searchsorted(at, np.int64(high), "right")),
            )
        return frame.where((at >= low) & (at <= high))

    def _drop_expired(self, run: _Run, segment: _Segment, frame: Frame) -> Frame:
        """Rewrite a segment once half of it has expired; before that, rewriting costs more than it
        frees.
        """
        if segment.low >= self.horizon:
            return frame
        alive = frame.ints(self._position) >= self.horizon
        if 2 * int(alive.sum()) > len(frame):
            return frame
        frame = frame.where(alive)
        self._replace(run, segment, frame)
        return frame

    def _replace(self, run: _Run, segment: _Segment, frame: Frame) -> None:
        at = run.index(segment)
        run[at : at + 1] = [self._segment(frame)] if len(frame) else []
        self._discard(segment)

    def _trim(self, segment: _Segment) -> None:
        """Skip the expired beginning of a segment that is sorted by position."""
        at = self._load(segment).ints(self._position)
        cut = int(np.searchsorted(at, np.int64(self.horizon)))
        segment.nbytes -= segment.nbytes * cut // segment.rows
        segment.low = segment.first = int(at[cut])
        segment.skip += cut
        segment.rows -= cut

    def _merge_tail(self) -> None:
        """Merge the youngest runs while enough of them are of one size class; a full run stays as
        it is.
        """
        while True:
            tier = _tier(self._runs[-1])
            start = len(self._runs)
            while (
                start
                and _tier(self._runs[start - 1]) <= tier
                and sum(s.nbytes for s in self._runs[start - 1]) < _FULL_BYTES
            ):
                start -= 1
            if len(self._runs) - start < _FAN:
                return
            self._merge(start)
            if not self._runs:
                return

    def _merge(self, start: int) -> None:
        """Replace the runs from `start` on by one; older rows stay before younger ones of the same
        key.
        """
        frame = self._take_out([segment for run in self._runs[start:] for segment in run])
        del self._runs[start:]
        if len(frame):
            self._runs.append(self._sorted(frame))

    def _take_out(self, segments: _Run) -> Frame:
        """What is alive in some segments, which are given up."""
        frames = [self._load(segment) for segment in segments]
        for segment in segments:
            self._discard(segment)
        return concat_frames(
            [frame.where(frame.ints(self._position) >= self.horizon) for frame in frames]
        )


class MessageStore:
    """Messages in windows, kept in the order of a layout over a state store."""

    def __init__(
        self, store: Store, layout: Layout, prefix: str, *, segment_rows: int = 65_536
    ) -> None:
        """A new, empty message store: its first flush replaces whatever the store had under the
        prefix. See `open` for the other way.
        """
        self.layout = layout
        self._store = store
        self._prefix = prefix
        self._segment_rows = segment_rows
        self._messages = _Runs(
            store, f"{prefix}/messages/", layout.columns, layout.position, segment_rows
        )
        self._identities = _Runs(store, f"{prefix}/identities/", ("uid",), "at", segment_rows)
        self._next_seq = 0
        self._empty: Frame | None = None
        self._new = True
        self._learned = False

    @classmethod
    def open(
        cls, store: Store, layout: Layout, prefix: str, *, segment_rows: int = 65_536
    ) -> MessageStore:
        """The message store as it was last flushed under this prefix; an empty one if there was
        none.
        """
        messages = cls(store, layout, prefix, segment_rows=segment_rows)
        manifest = store.get_json(f"{prefix}/manifest")
        if manifest is not None:
            messages._restore(manifest)
        return messages

    @property
    def count(self) -> int:
        """Messages held; those that expired lazily count until they are dropped."""
        return self._messages.rows

    @property
    def nbytes(self) -> int:
        """Size of all that is held, in memory or spilled, as it is when decoded."""
        return self._messages.nbytes + self._identities.nbytes

    @property
    def runs(self) -> int:
        return len(self._messages)

    @property
    def expired_before(self) -> int:
        """The position below which nothing is stored or returned."""
        return self._messages.horizon

    def add(self, frame: Frame) -> np.ndarray:
        """Store a delivery; True for each message that was new. One that is expired or whose `uid`
        is known already changes nothing.
        """
        frame = self._checked(frame)
        at = frame.ints(self.layout.position)
        fresh = at >= self.expired_before
        if "uid" in frame:
            fresh = self._first_seen(_uids(frame), fresh)
        new = frame.where(fresh)
        if len(new):
            if "uid" in new:
                self._identities.append(
                    Frame.of({"uid": _uids(new), "at": new.ints(self.layout.position)})
                )
            seq = np.arange(self._next_seq, self._next_seq + len(new), dtype=np.int64)
            self._next_seq += len(new)
            self._messages.append(new.with_columns(**{SEQ: seq}))
        return fresh

    def read(
        self,
        start: int,
        end: int,
        *,
        start_offset: int | None = None,
        end_offset: int | None = None,
        key_hashes: np.ndarray | None = None,
        equal_hashes: np.ndarray | None = None,
    ) -> Frame:
        """The messages from (start, start_offset) to (end, end_offset), both included, in the order
        of the layout.

        `key_hashes` and `equal_hashes` keep only the messages with one of these session keys, one
        of these equal fields. Where the layout has no timestamp, start and end are offsets already.
        """
        if self.layout.position == "offset" and not (start_offset is None and end_offset is None):
            raise InputError(
                f"the layout `{self.layout}` is read by offset, but `start_offset` or `end_offset`"
                " came too. Hint: give them as start and end"
            )
        wanted = {
            name: np.unique(np.asarray(values, np.uint64))
            for name, values in (("key_hash", key_hashes), ("equal_hash", equal_hashes))
            if values is not None
        }
        lead = wanted.pop(self.layout.columns[0], None)
        narrow = _Narrow(start, end, start_offset, end_offset, wanted)
        found = self._messages.pieces(start, end, lead, narrow)
        if not found:
            return self._nothing()
        frame = concat_frames([part for parts in found for part in parts])
        return frame if len(found) == 1 else self._messages.sort(frame)

    def window(
        self,
        start: int,
        end: int,
        key_hashes: np.ndarray | None = None,
        equal_hashes: np.ndarray | None = None,
    ) -> Frame:
        """The messages of the half-open window [start, end); an end of +inf excludes nothing."""
        if start >= end:
            return self._nothing()
        return self.read(
            start, end if end == MAX else end - 1, key_hashes=key_hashes, equal_hashes=equal_hashes
        )

    def expire(self, before: int) -> None:
        """Forget the messages below a position, now and for good: the position never goes back.

        Where the position leads the layout they go at once. Otherwise a segment goes when all of it
        has expired, and single messages go with the next merge or read that touches them; until
        then they are hidden.
        """
        self._messages.expire(before)
        self._identities.expire(before)

    def remove(
        self,
        messages: Frame | None = None,
        mask: np.ndarray | None = None,
        *,
        uids: np.ndarray | None = None,
    ) -> int:
        """Take out messages that a read gave (all, or those under the mask), or those with the
        given identities; how many there were.
        """
        if (messages is None) == (uids is None):
            raise InputError(
                "`remove` takes either messages that were read or `uids`, but both or neither came."
                " Hint: give one of the two"
            )
        if messages is not None:
            return self._remove_messages(messages if mask is None else messages.where(mask))
        return self._remove_uids(np.unique(np.asarray(uids).astype(np.uint64)))

    def compact(self) -> None:
        """Merge all runs into one and drop everything that has expired."""
        self._messages.compact()
        self._identities.compact()

    def relayout(self, layout: Layout) -> None:
        """Keep the messages in another order from now on, for instance when windows turn out to be
        large.
        """
        if layout.position != self.layout.position:
            raise SpecError(
                f"a layout by `{self.layout.position}` cannot become `{layout}`. Hint: the axis of"
                " a query is fixed"
            )
        if self._empty is not None:
            _require(self._empty, layout)
        self._messages.resort(layout.columns, layout.position, SEQ)
        self.layout = layout
        self._messages.changed = True

    def widen(self, types: Mapping[str, pa.DataType]) -> None:
        """There are new columns, or columns that held nothing have a type: what is stored holds
        nulls there.
        """
        if self._empty is None:
            return
        new = {
            name: repeat(None, 0, type)
            for name, type in types.items()
            if name not in self._empty or _untyped(self._empty, name)
        }
        self._empty = self._messages.known = self._empty.with_mapping(new)
        self._learned = True

    def flush(self) -> None:
        """Put new segments and the manifest into the store and delete the replaced ones; if nothing
        changed, do nothing.
        """
        if self._new:
            self._store.delete_prefix(f"{self._prefix}/")
        elif not (self._messages.changed or self._identities.changed or self._learned):
            return
        self._new = False
        self._messages.flush()
        self._identities.flush()
        if self._learned and self._empty is not None:
            self._store.put_table(f"{self._prefix}/schema", self._empty.to_table())
        self._learned = False
        self._store.put_json(f"{self._prefix}/manifest", self._manifest())

    def _manifest(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "layout": list(self.layout.fields),
            "expired_before": self.expired_before,
            "next_seq": self._next_seq,
            "schema": self._empty is not None,
            "messages": self._messages.manifest(),
            "identities": self._identities.manifest(),
        }

    def _restore(self, manifest: dict[str, Any]) -> None:
        if manifest.get("format") != FORMAT:
            came = manifest.get("format")
            raise CorruptStateError(
                f"the message store `{self._prefix}` has format {came}; this version reads"
                f" {FORMAT}. Hint: replay the input"
            )
        if tuple(manifest["layout"]) != self.layout.fields:
            stored = ", ".join(manifest["layout"])
            raise SpecMismatchError(
                f"messages were stored in the layout `{stored}`, but `{self.layout}` is asked for."
                " Hint: open it as stored, then call `relayout`"
            )
        self._new = False
        self._next_seq = manifest["next_seq"]
        if manifest["schema"]:
            self._empty = self._messages.known = Frame.from_table(
                self._store.get_table(f"{self._prefix}/schema")
            )
        self._messages.restore(manifest["messages"], manifest["expired_before"])
        self._identities.restore(manifest["identities"], manifest["expired_before"])

    def _checked(self, frame: Frame) -> Frame:
        """The delivery with its key columns as integers; its columns are those of all former
        ones.
        """
        _require(frame, self.layout)
        if SEQ in frame:
            raise InputError(
                f"a column `{SEQ}` came with the messages; the message store numbers them itself."
                " Hint: drop or rename it"
            )
        if "uid" in frame:
            _refuse_nulls(frame, "uid")
        frame = frame.with_mapping(
            {name: _integers(frame, name) for name in _DTYPES if name in frame}
        )
        self._learn(frame)
        return frame

    def _learn(self, frame: Frame) -> None:
        """Remember names and types, for reads that find nothing."""
        known = self._empty
        if known is not None and set(known.names) - {SEQ} != set(frame.names):
            raise InputError(
                f"messages have the columns {sorted(set(known.names) - {SEQ})}, but"
                f" {sorted(frame.names)} came. Hint: deliver all columns"
            )
        if known is None or any(
            _untyped(known, name) and not _untyped(frame, name) for name in frame.names
        ):
            self._empty = frame.slice(0, 0).with_columns(**{SEQ: np.zeros(0, np.int64)})
            self._learned = True

    def _first_seen(self, uids: np.ndarray, fresh: np.ndarray) -> np.ndarray:
        """Of the fresh messages, the first of each identity that is not known."""
        rows = np.flatnonzero(fresh)
        values, first = np.unique(uids[rows], return_index=True)
        known = self._identities.pieces(MIN, MAX, values, lambda frame: frame)
        unknown = np.ones(len(values), bool)
        for parts in known:
            unknown &= ~_member(values, np.concatenate([part.ints("uid") for part in parts]))
        seen = np.zeros(len(uids), bool)
        seen[rows[first[unknown]]] = True
        return seen

    def _remove_messages(self, messages: Frame) -> int:
        if SEQ not in messages:
            raise InputError(
                f"the messages to remove have no column `{SEQ}`. Hint: pass the rows of a read as"
                " they are"
            )
        if not len(messages):
            return 0
        at, lead = messages.ints(self.layout.position), messages.ints(self.layout.columns[0])
        seq = np.sort(messages.ints(SEQ))
        return self._messages.filter(
            int(at.min()),
            int(at.max()),
            (int(lead.min()), int(lead.max())),
            lambda frame: _member(frame.ints(SEQ), seq),
        )

    def _remove_uids(self, uids: np.ndarray) -> int:
        """The identities know the positions of their messages, which leaves few segments to look
        at.
        """
        known = self._identities.pieces(MIN, MAX, uids, lambda frame: frame)
        if not known:
            return 0
        at = np.concatenate([part.ints("at") for parts in known for part in parts])
        return self._messages.filter(
            int(at.min()), int(at.max()), (MIN, 2**64), lambda frame: _member(_uids(frame), uids)
        )

    def _nothing(self) -> Frame:
        if self._empty is not None:
            return self._empty
        names: Sequence[str] = [
            "time",
            "offset",
            "key_hash",
            *(["equal_hash"] if "equal_fields" in self.layout.fields else []),
        ]
        return Frame.of(
            {**{name: np.zeros(0, _DTYPES[name]) for name in names}, SEQ: np.zeros(0, np.int64)}
        )


def _completed(frame: Frame, known: Frame) -> Frame:
    """A stored frame with the columns that came later, and with the types of those that held
    nothing then.
    """
    lacking = [
        name
        for name in known.names
        if name not in frame or (_untyped(frame, name) and not _untyped(known, name))
    ]
    return (
        frame.with_mapping(
            {name: repeat(None, len(frame), to_arrow(known[name]).type) for name in lacking}
        )
        if lacking
        else frame
    )


@dataclass(frozen=True, slots=True)
class _Narrow:
    """What a read asks beside the range of positions: offsets at its ends, and values of columns
    that do not lead.
    """

    start: int
    end: int
    start_offset: int | None
    end_offset: int | None
    wanted: dict[str, np.ndarray]

    def __call__(self, frame: Frame) -> Frame:
        if self.start_offset is not None:
            frame = frame.where(
                (frame.ints("time") > self.start) | (frame.ints("offset") >= self.start_offset)
            )
        if self.end_offset is not None:
            frame = frame.where(
                (frame.ints("time") < self.end) | (frame.ints("offset") <= self.end_offset)
            )
        for name, values in self.wanted.items():
            _require_column(frame, name)
            frame = frame.where(_member(frame.ints(name), values))
        return frame


def _require(frame: Frame, layout: Layout) -> None:
    for name in ("time", "offset", "key_hash", *layout.columns):
        _require_column(frame, name)


def _require_column(frame: Frame, name: str) -> None:
    if name not in frame:
        raise InputError(
            f"messages need the column `{name}`, but {frame.names} came. Hint: add it to what is"
            " delivered"
        )


def _refuse_nulls(frame: Frame, name: str) -> None:
    column = frame[name]
    if not isinstance(column, np.ndarray) and column.null_count:
        raise InputError(
            f"the column `{name}` of messages holds {column.null_count} nulls. Hint: send rows"
            " without it to the late output first"
        )


def _integers(frame: Frame, name: str) -> np.ndarray:
    _refuse_nulls(frame, name)
    return frame.ints(name).astype(_DTYPES[name], copy=False)


def _uids(frame: Frame) -> np.ndarray:
    return frame.ints("uid").astype(np.uint64, copy=False)


def _untyped(frame: Frame, name: str) -> bool:
    column = frame[name]
    return not isinstance(column, np.ndarray) and pa.types.is_null(column.type)

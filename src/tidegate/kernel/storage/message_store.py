"""Message store: the messages of open windows, each stored once.

Serves aggregates that need the messages themselves: exact quantiles, lists, evictors, windows by
difference and retractions.

Messages and identities are run stores. Large runs are cut into segments: a read skips the segments
whose positions or leading values lie outside its range, and a store that spills loads only the
others.

Contract
- The position of a message is its `time`, or its `offset` where the layout has no timestamp. Reads
  and retention go by position.
- Messages with equal layout fields keep their order of arrival, however the stream was cut into
  deliveries.
- A message below the expired position is never stored and never returned.
- An identity (`uid`) is remembered until its position expires, also when the message itself was
  removed.
- `flush` puts what changed into the store and does not commit: the caller commits it together with
  the rest of its state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.errors import CorruptStateError, InputError, SpecError, SpecMismatchError
from tidegate.instants import MAX, MIN
from tidegate.kernel.frame import Column, Frame, concat_frames, is_untyped, repeat, to_arrow
from tidegate.kernel.groups import expand_ranges, lookup
from tidegate.kernel.storage.layout import Layout
from tidegate.kernel.storage.run_store import Places, Run, RunStore
from tidegate.state.store import Store

FORMAT = 1
SEQ = "seq"
"""The column a read adds: the arrival number of a message, by which `remove` finds it again."""

_DTYPES = {"time": np.int64, "offset": np.int64, "key_hash": np.uint64, "equal_hash": np.uint64}
_SEGMENT_BYTES = 4 * 1024 * 1024


class _Segments(RunStore):
    """A run store whose runs are cut into segments and read by ranges of positions."""

    def __init__(
        self, store: Store, prefix: str, order: Sequence[str], position: str, segment_rows: int
    ) -> None:
        super().__init__(store, prefix, order, watch=tuple(dict.fromkeys((position, order[0]))))
        self._position = position
        self._segment_rows = segment_rows

    @property
    def horizon(self) -> int:
        return self.horizons[self._position]

    def read(
        self, low: int, high: int, lead: np.ndarray | None, narrow: Callable[[Frame], Frame]
    ) -> list[list[Frame]]:
        """By run, the live rows in an inclusive range of positions that have one of the sorted
        leading values and pass `narrow`.
        """
        found: dict[int, list[Frame]] = {}
        for run in self._candidates(low, high):
            values = self._values_in(run, lead)
            if values is None or len(values):
                part = narrow(self._rows(run, low, high, values))
                if len(part):
                    found.setdefault(run.group, []).append(part)
                self._spill(run)
                self.shrink(run)
        return list(found.values())

    def find(
        self, low: int, high: int, lead: tuple[int, int], wanted: Callable[[Frame], np.ndarray]
    ) -> Places:
        """The live rows in a range of positions and of leading values for which a mask is True."""
        found = []
        for run in self._candidates(low, high):
            if run.lows[self.order[0]] <= lead[1] and lead[0] <= run.highs[self.order[0]]:
                mask = wanted(self._frame(run)) & self._live(run)
                found.append((self._runs.index(run), np.flatnonzero(mask)))
                self._spill(run)
        return Places.of(found)

    def expire_before(self, position: int) -> None:
        """Expire the rows below a position, at once where runs are sorted by it."""
        if position > self.horizon:
            self.expire({self._position: position})
            self.trim(self._position)

    def _candidates(self, low: int, high: int) -> Iterator[Run]:
        low = max(low, self.horizon)
        for run in list(self._runs):
            if run.lows[self._position] <= high and low <= run.highs[self._position]:
                yield run

    def _values_in(self, run: Run, lead: np.ndarray | None) -> np.ndarray | None:
        """The wanted leading values that a run can hold."""
        if lead is None:
            return None
        kind, name = lead.dtype.type, self.order[0]
        first, last = kind(run.lows[name]), kind(run.highs[name])
        return lead[np.searchsorted(lead, first) : np.searchsorted(lead, last, "right")]

    def _rows(self, run: Run, low: int, high: int, lead: np.ndarray | None) -> Frame:
        """The live rows of a run with one of the leading values and a position in a range."""
        frame, low = self._frame(run), max(low, self.horizon)
        if lead is None and self.order[0] == self._position:
            at = frame.ints(self._position)
            start, end = np.searchsorted(at, low), np.searchsorted(at, high, "right")
            frame = frame.slice(int(start), int(end))
            return frame if run.alive is None else frame.where(run.alive[start:end])
        index = None
        if lead is not None:
            column = frame.ints(self.order[0])
            first = np.searchsorted(column, lead)
            index = expand_ranges(first, np.searchsorted(column, lead, "right") - first)
            frame = frame.take(index)
        at = frame.ints(self._position)
        mask = (at >= low) & (at <= high)
        if run.alive is not None:
            mask &= run.alive if index is None else run.alive[index]
        return frame.where(mask)

    def relayout(self, layout: Layout) -> None:
        """Sort all rows by another layout; ties keep their order of arrival."""
        frames = [frame.take(np.argsort(frame.ints(SEQ))) for frame in self._group_frames()]
        horizons = {layout.position: self.horizon}
        self.clear()
        self.order, self._position = layout.columns, layout.position
        self.watched = tuple(dict.fromkeys((layout.position, layout.columns[0])))
        self.horizons = {**dict.fromkeys(self.watched, MIN), **horizons}
        for frame in frames:
            self._append(self.sorted(frame))

    def _group_frames(self) -> list[Frame]:
        """The live rows of each run as one frame."""
        return [
            frame
            for group in self._groups()
            if len(frame := concat_frames([self._frame(r).where(self._live(r)) for r in group]))
        ]

    def _spill(self, run: Run) -> None:
        if self.store.spills:
            self._release(run)

    def _cuts(self, frame: Frame) -> Sequence[tuple[int, int]]:
        rows = len(frame)
        step = max(1, min(self._segment_rows, _SEGMENT_BYTES * rows // max(1, frame.nbytes)))
        return [(start, min(rows, start + step)) for start in range(0, rows, step)]


class MessageStore:
    """Messages in windows, kept in the order of a layout over a state store."""

    def __init__(
        self, store: Store, layout: Layout, prefix: str, *, segment_rows: int = 65_536
    ) -> None:
        """An empty message store: its first flush replaces what the store has under the prefix.

        See `open` to continue from there instead.
        """
        self.layout = layout
        self._store = store
        self._prefix = prefix
        self._messages = _Segments(
            store, f"{prefix}/messages", layout.columns, layout.position, segment_rows
        )
        self._identities = _Segments(store, f"{prefix}/identities", ("uid",), "at", segment_rows)
        self._next_seq = 0
        self._empty: Frame | None = None
        """A frame of no rows with the names and types of all columns."""
        self._is_new = True
        self._is_schema_new = False
        self._flushed: dict[str, Any] | None = None
        """The manifest of the last flush."""

    @classmethod
    def open(
        cls, store: Store, layout: Layout, prefix: str, *, segment_rows: int = 65_536
    ) -> MessageStore:
        """The message store as last flushed under this prefix; empty if there is none."""
        messages = cls(store, layout, prefix, segment_rows=segment_rows)
        manifest = store.get_json(f"{prefix}/manifest")
        if manifest is not None:
            messages._restore(manifest)
        return messages

    @property
    def count(self) -> int:
        """Number of messages; those that expired lazily count until they are dropped."""
        return self._messages.held

    @property
    def nbytes(self) -> int:
        """Decoded size of messages and identities, in memory or spilled."""
        return self._messages.nbytes + self._identities.nbytes

    @property
    def runs(self) -> int:
        return self._messages.runs

    @property
    def expired_before(self) -> int:
        """The position below which nothing is stored or returned."""
        return self._messages.horizon

    def add(self, frame: Frame) -> np.ndarray:
        """Store a delivery, and return which messages are new.

        A message that is expired or whose `uid` is known changes nothing.
        """
        frame = self._checked(frame)
        at = frame.ints(self.layout.position)
        fresh = at >= self.expired_before
        if "uid" in frame:
            fresh = self._first_seen(_uids(frame), fresh)
        new = frame.where(fresh)
        if len(new):
            if "uid" in new:
                self._identities.add(
                    Frame.of({"uid": _uids(new), "at": new.ints(self.layout.position)})
                )
            seq = np.arange(self._next_seq, self._next_seq + len(new), dtype=np.int64)
            self._next_seq += len(new)
            self._messages.add(new.with_columns(**{SEQ: seq}))
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
        found = self._messages.read(start, end, lead, narrow)
        if not found:
            return self._nothing()
        frame = concat_frames([part for parts in found for part in parts])
        # Stored frames have their columns in another order.
        frame = frame.select(self._nothing().names)
        return frame if len(found) == 1 else self._messages.sorted(frame)

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
        """Drop the messages below a position, which never goes back.

        Where the position leads the layout they go at once. Otherwise a segment goes when all of it
        has expired, and single messages go with the next merge or read of their segment; until then
        they are hidden.
        """
        self._messages.expire_before(before)
        self._identities.expire_before(before)

    def remove(
        self,
        messages: Frame | None = None,
        mask: np.ndarray | None = None,
        *,
        uids: np.ndarray | None = None,
        forget: bool = False,
    ) -> int:
        """Remove messages that a read returned (all, or those under the mask), or those with the
        given identities, and return how many there were.

        With `forget`, the identities of the messages that were read are forgotten too.
        """
        if (messages is None) == (uids is None):
            raise InputError(
                "`remove` takes either messages that were read or `uids`, but both or neither came."
                " Hint: give one of the two"
            )
        if messages is not None:
            gone = messages if mask is None else messages.where(mask)
            if forget and "uid" in gone and len(gone):
                self._forget(gone)
            return self._remove_messages(gone)
        return self._remove_uids(np.unique(np.asarray(uids).astype(np.uint64)))

    def replace(self, messages: Frame, **columns: np.ndarray) -> None:
        """Change columns, other than those of the layout, of messages that a read returned."""
        if len(messages):
            self._remove_messages(messages)
            seq = np.arange(self._next_seq, self._next_seq + len(messages), dtype=np.int64)
            self._next_seq += len(messages)
            self._messages.add(messages.with_columns(**columns, **{SEQ: seq}))

    def compact(self) -> None:
        """Merge all runs into one and drop everything that has expired."""
        self._messages.merge_all()
        self._identities.merge_all()

    def relayout(self, layout: Layout) -> None:
        """Store the messages in another order, for instance because windows become large."""
        if layout.position != self.layout.position:
            raise SpecError(
                f"a layout by `{self.layout.position}` cannot become `{layout}`. Hint: the axis of"
                " a query is fixed"
            )
        if self._empty is not None:
            _require(self._empty, layout)
        self._messages.relayout(layout)
        self.layout = layout

    def widen(self, types: Mapping[str, pa.DataType]) -> None:
        """Add columns, or types of columns that held only nulls; stored messages have nulls."""
        if self._empty is None:
            return
        new = {
            name: repeat(None, 0, type)
            for name, type in types.items()
            if name not in self._empty or _untyped(self._empty, name)
        }
        self._set_schema(self._empty.with_mapping(new))
        self._is_schema_new = True

    def flush(self) -> None:
        """Write new segments, the masks that changed and the manifest into the store."""
        if self._is_new:
            self._store.delete_prefix(f"{self._prefix}/")
        if self._is_schema_new and self._empty is not None:
            self._store.put_table(f"{self._prefix}/schema", self._empty.to_table())
        manifest = self._save()
        if manifest != self._flushed:
            self._store.put_json(f"{self._prefix}/manifest", manifest)
        if self._store.spills:
            self._messages.release()
            self._identities.release()
        self._is_new = self._is_schema_new = False
        self._flushed = manifest

    def _save(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "layout": list(self.layout.fields),
            "next_seq": self._next_seq,
            "schema": self._empty is not None,
            "messages": self._messages.save(),
            "identities": self._identities.save(),
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
        self._is_new, self._flushed = False, manifest
        self._next_seq = manifest["next_seq"]
        if manifest["schema"]:
            self._set_schema(Frame.from_table(self._store.get_table(f"{self._prefix}/schema")))
        self._messages.restore(manifest["messages"])
        self._identities.restore(manifest["identities"])

    def _checked(self, frame: Frame) -> Frame:
        """The delivery with its key columns as integers, after checking its columns."""
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
        """Remember names and types, for reads that find nothing and for older messages."""
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
            self._is_schema_new = True

    def _set_schema(self, empty: Frame) -> None:
        """Set the columns of all messages, of which stored ones may lack some."""
        self._empty = empty
        self._messages.complete = lambda frame: _completed(frame, empty)

    def _first_seen(self, uids: np.ndarray, fresh: np.ndarray) -> np.ndarray:
        """Of the fresh messages, the first of each identity that is not known."""
        rows = np.flatnonzero(fresh)
        values, first = np.unique(uids[rows], return_index=True)
        unknown = np.ones(len(values), bool)
        for parts in self._identities.read(MIN, MAX, values, lambda frame: frame):
            known = np.concatenate([part.ints("uid") for part in parts])
            unknown &= ~lookup(known, values)[1]
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
        return self._remove(
            self._messages.find(
                int(at.min()),
                int(at.max()),
                (int(lead.min()), int(lead.max())),
                lambda frame: lookup(seq, frame.ints(SEQ))[1],
            )
        )

    def _forget(self, messages: Frame) -> None:
        """Forget the identities of messages."""
        at, uids = messages.ints(self.layout.position), np.unique(_uids(messages))
        self._identities.remove(
            self._identities.find(
                int(at.min()),
                int(at.max()),
                (int(uids[0]), int(uids[-1])),
                lambda frame: lookup(uids, frame.ints("uid"))[1],
            )
        )
        self._identities.compact(expired=False)

    def _remove_uids(self, uids: np.ndarray) -> int:
        """Remove by identity: the positions of identities leave few segments to search."""
        known = self._identities.read(MIN, MAX, uids, lambda frame: frame)
        if not known:
            return 0
        at = np.concatenate([part.ints("at") for parts in known for part in parts])
        return self._remove(
            self._messages.find(
                int(at.min()),
                int(at.max()),
                (MIN, 2**64),
                lambda frame: lookup(uids, _uids(frame))[1],
            )
        )

    def _remove(self, places: Places) -> int:
        self._messages.remove(places)
        # Retention by bytes relies on exact sizes.
        self._messages.compact(expired=False)
        return len(places.run)

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
    """A stored frame with the columns and types that became known later."""
    lacking: dict[str, Column] = {}
    for name in known.names:
        if name not in frame:
            lacking[name] = repeat(None, len(frame), to_arrow(known[name]).type)
        elif _untyped(frame, name):
            lacking[name] = to_arrow(frame[name]).cast(to_arrow(known[name]).type)
    return frame.with_mapping(lacking) if lacking else frame


@dataclass(frozen=True, slots=True)
class _Narrow:
    """The conditions of a read beside positions: offsets at its ends and values of columns."""

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
            frame = frame.where(lookup(values, frame.ints(name))[1])
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
    return not isinstance(column, np.ndarray) and is_untyped(column.type)

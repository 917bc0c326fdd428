"""Readers and reader groups.

The readers of a group share the segments of a stream, checkpoint what they have read, and know
which time window they are in.
"""

from __future__ import annotations

import time as clocks
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import pyarrow as pa

from tidegate.errors import InputError, SpecError, StreamError
from tidegate.instants import Duration, duration
from tidegate.kernel.streams.frontier import Frontier
from tidegate.kernel.streams.reader_group import GroupState
from tidegate.kernel.streams.segments import Segments
from tidegate.kernel.streams.watermarks import TimeWindow, time_window
from tidegate.streams.description import checked_name
from tidegate.streams.events import Event, table_of
from tidegate.streams.store import Block, Conflict, Swap
from tidegate.streams.stream import Start, Stream
from tidegate.streams.watermark_log import WatermarkLog

_GROUPS = "group/"
_PAUSES = (0.005, 0.1)
"""Polling interval of a waiting reader, in seconds: initial and maximum."""


@dataclass(frozen=True)
class ReaderGroup:
    """Readers that read a stream together: each event goes to one of them."""

    stream: Stream
    name: str
    lease: int

    @classmethod
    def opened(cls, stream: Stream, name: str, start: Start, lease: int) -> ReaderGroup:
        """Open the group, and create it at `start` if it does not exist."""
        if lease <= 0:
            raise SpecError("`lease` must be greater than 0")
        group = cls(stream, checked_name("a group", name), lease)
        if stream.store.cell(stream.name, group.cell) is None:
            try:
                stream.store.swap(
                    stream.name, Swap(group.cell, GroupState(stream.frontier(start)).to_dict(), 0)
                )
            except Conflict:
                return group
        return group

    @property
    def cell(self) -> str:
        return f"{_GROUPS}{self.name}"

    def state(self) -> GroupState:
        """Assigned segments and checkpointed position."""
        return self._read()[0]

    def position(self) -> Frontier:
        """The position that all readers have checkpointed; usable as the `start` of a group."""
        return self.state().frontier

    def reset(self, start: Start) -> None:
        """Continue at another position.

        Readers lose what they have not checkpointed, and continue there.
        """
        frontier = self.stream.frontier(start)
        self.changed(lambda _: GroupState(frontier))

    def reader(self, reader_id: str) -> Reader:
        """A reader of the group.

        After a crash, a reader with the same id can rejoin at once and continues at its last
        checkpoint.
        """
        return Reader(self, checked_name("a reader", reader_id))

    def delete(self) -> None:
        """Delete the group with its position."""
        while cell := self.stream.store.cell(self.stream.name, self.cell):
            try:
                self.stream.store.swap(self.stream.name, Swap(self.cell, None, cell.version))
            except Conflict:
                continue

    def changed(self, change: Callable[[GroupState], GroupState]) -> GroupState:
        """Change the state, with retries on conflict.

        Writes nothing if the state stays the same.
        """
        after: GroupState | None = None
        while True:
            before, version = self._read()
            if before == after:
                # The change was made, and only the response was lost.
                return before
            after = change(before)
            if after == before:
                return before
            try:
                self.stream.store.swap(self.stream.name, Swap(self.cell, after.to_dict(), version))
            except Conflict:
                continue
            return after

    def _read(self) -> tuple[GroupState, int]:
        cell = self.stream.store.cell(self.stream.name, self.cell)
        if cell is None:
            raise StreamError(
                f"the stream `{self.stream.name}` no longer has a reader group `{self.name}`."
                f" Hint: stream.group('{self.name}')"
            )
        return GroupState.from_dict(cell.document), cell.version


class Reader:
    """A reader of a group; not thread-safe.

    `checkpoint` confirms what `read` returned. If a reader closes, or is silent for the lease and
    expires, the other readers receive everything after its last checkpoint again.
    """

    def __init__(self, group: ReaderGroup, reader_id: str) -> None:
        self.group, self.id = group, reader_id
        self._stream = group.stream
        self._log = WatermarkLog(self._stream.store, self._stream.name)
        self._segments = self._stream.description().segments
        self._at: dict[str, int] = {}
        """Next offset in each assigned segment."""
        self._confirmed: dict[str, int] = {}
        self._ended: set[str] = set()
        self._given: set[str] = set()
        """Segments with events returned since the last checkpoint."""
        self._state = self._join()

    # Public interface

    def read(self, most: int = 1000, *, wait: Duration = "0 s") -> list[Event]:
        """The next events, at most `most`; waits up to `wait` for the first one.

        Raises `StreamError` if this reader has expired and has returned events that it has not
        checkpointed.
        """
        table = self.read_table(most, wait=wait)
        columns = [
            table.column(name).to_pylist()
            for name in ("value", "key", "segment", "offset", "appended")
        ]
        return [Event(*row) for row in zip(*columns, strict=True)]

    def read_table(self, most: int = 1000, *, wait: Duration = "0 s") -> pa.Table:
        """Like `read`, as a table: `segment`, `offset`, `key`, `value` and `appended`."""
        if most < 1:
            raise SpecError(f"a read returns at least one event, got a limit of {most}")
        until, pause = clocks.monotonic() + duration(wait) / 1e6, _PAUSES[0]
        while True:
            self._renew()
            try:
                found = self._next(most)
            except StreamError:
                # The group may have been reset, or other readers may have advanced it.
                if not self._settle():
                    raise
                continue
            if found.num_rows:
                return found
            # Segments may be free, or successors may be readable: try them before waiting.
            if not self._settle():
                left = until - clocks.monotonic()
                if left <= 0:
                    return found
                clocks.sleep(min(pause, left))
                pause = min(2 * pause, _PAUSES[1])

    def checkpoint(self) -> None:
        """Confirm everything read so far: the group does not deliver it again.

        Successors of segments read to their end become readable. Raises `StreamError` if this
        reader has expired or the group was reset: the events are delivered again, and this reader
        rejoins.
        """
        try:
            self._change(set(self._at))
        except _Lost:
            if self._given:
                raise self._given_up() from None
            self._join()

    def position(self) -> Frontier:
        """The position of the group: checkpoints of the others, and what this reader has read."""
        frontier = self._state.frontier
        return (
            frontier.advanced(self._known(frontier), self._at, self._ended)
            if self._holds(self._state)
            else frontier
        )

    def current_time_window(self) -> TimeWindow | None:
        """The time window that the group reads in; None if there is no watermark around it.

        A bound is None if no watermark determines it: `lower` before the first watermark, `upper`
        after the last one.
        """
        self._state = self.group.state()
        self._log.refresh()
        # Read the description last, so that it has all segments that the state refers to.
        self._segments = self._stream.description().segments
        position = self.position().position
        found = time_window(position, self._log.around(position, self._segments), self._segments)
        return None if found == TimeWindow() else found

    @property
    def segments(self) -> list[str]:
        """The segments assigned to this reader."""
        return sorted(self._at)

    def close(self) -> None:
        """Leave the group; the other readers take over its segments from their checkpoints."""
        self._let_go()
        self.group.changed(lambda state: state.without(self.id))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # Implementation

    def _now(self) -> int:
        return self._stream.clock()

    def _given_up(self) -> StreamError:
        """Rejoin, and raise."""
        self._join()
        details = (
            "so events since its last checkpoint are delivered again. Hint: checkpoint more"
            " often, or use a longer `lease`"
        )
        return StreamError(f"the reader `{self.id}` has expired, or its group was reset, {details}")

    def _let_go(self) -> None:
        self._at, self._confirmed, self._ended, self._given = {}, {}, set(), set()

    def _join(self) -> GroupState:
        """Take a share of the segments; release all that this id held before."""
        self._let_go()
        now, until = self._now(), self._now() + self.group.lease
        return self._adopt(
            self.group.changed(
                lambda state: (
                    state.without(self.id).without_silent(now, self.id).dealt(self.id, until)
                )
            )
        )

    def _adopt(self, state: GroupState) -> GroupState:
        """Adopt the assigned segments, at their read position if known, else at the checkpoint."""
        mine = state.segments_of(self.id)
        self._state = state
        self._confirmed = {name: state.frontier.position[name] for name in mine}
        # Keep the former order, so that every segment gets its turn.
        kept = {name: at for name, at in self._at.items() if name in mine}
        self._at = kept | {name: at for name, at in self._confirmed.items() if name not in kept}
        self._ended.intersection_update(mine)
        return state

    def _holds(self, state: GroupState) -> bool:
        """Whether the group still assigns these segments to this reader at its checkpoints."""
        mine = set(state.segments_of(self.id))
        return mine.issuperset(self._confirmed) and all(
            state.frontier.position.get(name) == at for name, at in self._confirmed.items()
        )

    def _known(self, frontier: Frontier, *, ended: bool = False) -> Segments:
        """The segments of the stream, refreshed if the state refers to unknown ones."""
        if ended or not frontier.position.keys() <= self._segments.by_name.keys():
            self._segments = self._stream.description().segments
        return self._segments

    def _until(self, state: GroupState) -> int:
        """When the lease of this reader ends; it is renewed before half of it has passed."""
        mine, now = state.members.get(self.id), self._now()
        return (
            mine.until
            if mine is not None and mine.until - now > self.group.lease // 2
            else now + self.group.lease
        )

    def _renew(self) -> None:
        mine = self._state.members.get(self.id)
        if mine is None or mine.until != self._until(self._state):
            self._settle()

    def _settle(self) -> bool:
        """Rebalance with the other readers; returns whether the assigned segments changed.

        Segments without returned events need no checkpoint: the end of an empty segment is
        confirmed here, so that its successors become readable. An expired reader without
        unconfirmed events rejoins.
        """
        before = dict(self._at)
        try:
            self._change(self._ended - self._given)
        except _Lost:
            if self._given:
                raise self._given_up() from None
            self._join()
        return self._at != before

    def _change(self, whole: set[str]) -> None:
        """Confirm these segments, renew the lease, take free segments, release surplus ones.

        Segments with other unconfirmed events are kept.
        """

        def change(state: GroupState) -> GroupState:
            if not self._holds(state):
                raise _Lost
            ended = self._ended.intersection(whole)
            segments = self._known(state.frontier, ended=bool(ended))
            until = self._until(state)
            state = state.confirmed(
                self.id, segments, {name: self._at[name] for name in whole}, ended
            )
            return state.without_silent(self._now(), self.id).dealt(
                self.id, until, keep=self._given - whole
            )

        self._adopt(self.group.changed(change))
        self._given -= whole

    def _next(self, most: int) -> pa.Table:
        """The next events of the assigned segments, round-robin."""
        found: dict[str, Block] = {}
        room = most
        for name in self._turn():
            found[name] = self._block(name, room)
            room -= found[name].rows.num_rows
            if not room:
                break
        # Only now, because events read before an error are not returned.
        self._at |= {name: block.next for name, block in found.items()}
        self._ended.update(name for name, block in found.items() if block.ended)
        self._given.update(name for name, block in found.items() if block.rows.num_rows)
        return table_of(found)

    def _turn(self) -> list[str]:
        """The readable segments, rotated by one on each call."""
        names = [name for name in self._at if name not in self._ended]
        if names:
            first = self._at.pop(names[0])
            self._at[names[0]] = first
        return names

    def _block(self, name: str, most: int) -> Block:
        try:
            return self._stream.store.read(self._stream.name, name, self._at[name], most)
        except InputError as error:
            hint = f'Hint: stream.group("{self.group.name}").reset("earliest")'
            raise StreamError(
                f"the group `{self.group.name}` cannot continue in the segment `{name}` ({error})."
                f" {hint}"
            ) from error


class _Lost(Exception):  # noqa: N818 - control flow, not a failure
    """This reader no longer owns its segments."""

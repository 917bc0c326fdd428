"""Readers and reader groups: several readers share the segments of a stream, confirm what they have
read, and know which time they are in.
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
from tidegate.kernel.streams.cuts import Segments
from tidegate.kernel.streams.groups import GroupState
from tidegate.kernel.streams.reading import Frontier
from tidegate.kernel.streams.time_windows import TimeWindow, time_window
from tidegate.streams.description import checked_name
from tidegate.streams.events import Event, table_of
from tidegate.streams.store import Block, Conflict, Swap
from tidegate.streams.stream import Start, Stream
from tidegate.streams.watermarks import WatermarkLog

_GROUPS = "group/"
_PAUSES = (0.005, 0.1)
"""How many seconds a reader that waits lets pass between two looks, at first and at last."""


@dataclass(frozen=True)
class ReaderGroup:
    """Readers that read a stream together: every event comes to one of them."""

    stream: Stream
    name: str
    lease: int

    @classmethod
    def opened(cls, stream: Stream, name: str, start: Start, lease: int) -> ReaderGroup:
        """The group, which is made at its start where there is none yet."""
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
        """Who reads what, and how far the group is."""
        return self._read()[0]

    def position(self) -> Frontier:
        """What the readers have confirmed together: a checkpoint of the group, where it or another
        group can `start`.
        """
        return self.state().frontier

    def reset(self, start: Start) -> None:
        """Read from elsewhere; readers that are under way lose what they have not confirmed, and go
        on there.
        """
        frontier = self.stream.frontier(start)
        self.changed(lambda _: GroupState(frontier))

    def reader(self, reader_id: str) -> Reader:
        """A reader of the group. One that died may come back with its id at once, and goes on where
        it has confirmed last.
        """
        return Reader(self, checked_name("a reader", reader_id))

    def delete(self) -> None:
        """Forget the group and how far it has read."""
        while cell := self.stream.store.cell(self.stream.name, self.cell):
            try:
                self.stream.store.swap(self.stream.name, Swap(self.cell, None, cell.version))
            except Conflict:
                continue

    def changed(self, change: Callable[[GroupState], GroupState]) -> GroupState:
        """Change the state, again where somebody else was faster; nothing is written where it stays
        as it is.
        """
        after: GroupState | None = None
        while True:
            before, version = self._read()
            if before == after:
                # The change has come through, and only the answer was lost.
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
                f"the stream `{self.stream.name}` has no reader group `{self.name}` any more. Hint:"
                f" stream.group('{self.name}')"
            )
        return GroupState.from_dict(cell.document), cell.version


class Reader:
    """One reader of a group; not for several threads at once.

    What `read` gives is confirmed by `checkpoint`: a reader that ends, or that is given up because
    it was silent for the lease, leaves the rest to the others, who get it again.
    """

    def __init__(self, group: ReaderGroup, reader_id: str) -> None:
        self.group, self.id = group, reader_id
        self._stream = group.stream
        self._log = WatermarkLog(self._stream.store, self._stream.name)
        self._segments = self._stream.description().segments
        self._at: dict[str, int] = {}
        """Where this reader goes on in each of its segments."""
        self._confirmed: dict[str, int] = {}
        self._ended: set[str] = set()
        self._given: set[str] = set()
        """The segments of which events were given out since the last checkpoint."""
        self._state = self._join()

    # What a user calls

    def read(self, most: int = 1000, *, wait: Duration = "0 s") -> list[Event]:
        """The next events, at most so many; an empty list where there are none, after waiting for
        some that long.

        `StreamError` where this reader was given up and has given out events that it has not
        confirmed, as `checkpoint` says it.
        """
        table = self.read_table(most, wait=wait)
        columns = [
            table.column(name).to_pylist()
            for name in ("value", "key", "segment", "offset", "appended")
        ]
        return [Event(*row) for row in zip(*columns, strict=True)]

    def read_table(self, most: int = 1000, *, wait: Duration = "0 s") -> pa.Table:
        """The same as a table: `segment`, `offset`, `key`, `value` and `appended`."""
        if most < 1:
            raise SpecError(f"a reader reads at least one event, got {most}")
        until, pause = clocks.monotonic() + duration(wait) / 1e6, _PAUSES[0]
        while True:
            self._renew()
            try:
                found = self._next(most)
            except StreamError:
                # The group may have been reset meanwhile, or others may be further than this
                # reader.
                if not self._settle():
                    raise
                continue
            if found.num_rows:
                return found
            # Segments may have come free, or successors begun: those are looked at before anybody
            # waits.
            if not self._settle():
                left = until - clocks.monotonic()
                if left <= 0:
                    return found
                clocks.sleep(min(pause, left))
                pause = min(2 * pause, _PAUSES[1])

    def checkpoint(self) -> None:
        """Confirm all that was read: nobody of the group gets it again. What comes after the end of
        a segment is begun then.

        `StreamError` where this reader was given up meanwhile, or the group was reset: others get
        it again, and this reader starts anew.
        """
        try:
            self._change(set(self._at))
        except _Lost:
            if self._given:
                raise self._given_up() from None
            self._join()

    def position(self) -> Frontier:
        """How far the group is, as others have confirmed it and as this reader has read it."""
        frontier = self._state.frontier
        return (
            frontier.advanced(self._known(frontier), self._at, self._ended)
            if self._holds(self._state)
            else frontier
        )

    def current_time_window(self) -> TimeWindow:
        """The times between which the group reads now: a bound is None where no writer is known
        there.
        """
        self._state = self.group.state()
        self._log.refresh()
        # Read last, so that all segments of the others are known.
        self._segments = self._stream.description().segments
        position = self.position().position
        return time_window(position, self._log.around(position, self._segments), self._segments)

    @property
    def segments(self) -> list[str]:
        """The segments that this reader has now."""
        return sorted(self._at)

    def close(self) -> None:
        """Leave the group: its segments go to the others, from where they were confirmed."""
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

    # How it is done

    def _now(self) -> int:
        return self._stream.clock()

    def _given_up(self) -> StreamError:
        """Start anew, and say so."""
        self._join()
        told = (
            "so what it has read since its last checkpoint comes again. Hint: checkpoint more"
            " often, or a longer `lease`"
        )
        return StreamError(f"the reader `{self.id}` was given up, or its group was reset, {told}")

    def _let_go(self) -> None:
        self._at, self._confirmed, self._ended, self._given = {}, {}, set(), set()

    def _join(self) -> GroupState:
        """Take a share, and nothing of what this reader or a former one of its name had before."""
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
        """Read what the group says is this reader's: on where it has read already, else from where
        it was confirmed.
        """
        mine = state.segments_of(self.id)
        self._state = state
        self._confirmed = {name: state.frontier.position[name] for name in mine}
        # In the order of before, so that every segment has its turn.
        kept = {name: at for name, at in self._at.items() if name in mine}
        self._at = kept | {name: at for name, at in self._confirmed.items() if name not in kept}
        self._ended.intersection_update(mine)
        return state

    def _holds(self, state: GroupState) -> bool:
        """Whether the group still takes this reader for the one who reads its segments, from where
        it has confirmed them.
        """
        mine = set(state.segments_of(self.id))
        return mine.issuperset(self._confirmed) and all(
            state.frontier.position.get(name) == at for name, at in self._confirmed.items()
        )

    def _known(self, frontier: Frontier, *, ended: bool = False) -> Segments:
        """The segments of the stream; others may have begun, or succeed what has ended, since they
        were asked for last.
        """
        if ended or not frontier.position.keys() <= self._segments.by_name.keys():
            self._segments = self._stream.description().segments
        return self._segments

    def _until(self, state: GroupState) -> int:
        """When this reader is given up: it says that it lives before half of its lease is over."""
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
        """Look what others have left or taken, and return whether this reader reads elsewhere now.

        Segments of which nothing was given out since the last checkpoint need none: an end without
        events is confirmed here, so that successors begin. A reader that was given up meanwhile,
        and owes nobody a confirmation, joins anew.
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
        """Confirm these segments as far as they were read, renew the lease, take what has come
        free, and give back what is too much.

        What was given out of other segments is not confirmed yet, so these are kept.
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
        """The next events of this reader's segments, in turn."""
        found: dict[str, Block] = {}
        room = most
        for name in self._turn():
            found[name] = self._block(name, room)
            room -= found[name].rows.num_rows
            if not room:
                break
        # Only now, because what was read before an error is not given out.
        self._at |= {name: block.next for name, block in found.items()}
        self._ended.update(name for name, block in found.items() if block.ended)
        self._given.update(name for name, block in found.items() if block.rows.num_rows)
        return table_of(found)

    def _turn(self) -> list[str]:
        """The segments that are to be read, another one first each time."""
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
                f"the group `{self.group.name}` cannot go on in the segment `{name}` ({error})."
                f" {hint}"
            ) from error


class _Lost(Exception):  # noqa: N818 - how a change is given up
    """This reader does not have its segments any more."""

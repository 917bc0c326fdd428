"""Membership of controllers, and the leases of the streams that they own.

A controller announces itself in a cell of the store, `controller/NAME`, with the time until which
it counts as live. It owns a stream while it holds the lease in the stream's cell `owner`. Both
change by compare-and-swap, so that a stream never has two owners. Every controller computes the
same assignment from the cells: it releases what is assigned to another, and acquires what is
assigned to itself and has no owner.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from tidegate.instants import MIN
from tidegate.kernel.streams.ownership import Accepts, assign_owners
from tidegate.streams.description import CELL
from tidegate.streams.store import Cell, Conflict, Store, Swap

OWNER = "owner"
MEMBERS = "controller/"
_NO_STREAM = ""
"""The owner of cells that belong to no stream."""


@dataclass(frozen=True)
class Lease:
    """The right to publish watermarks of a stream."""

    until: int
    is_new: bool
    """Whether another controller may have owned the stream before."""


class Ownership:
    """The streams that one controller owns, by leases of `lease` microseconds."""

    def __init__(self, store: Store, name: str, streams: Iterable[str] | None, lease: int) -> None:
        self._store, self._name, self._lease = store, name, lease
        self._accepts: Accepts = None if streams is None else frozenset(streams)
        self._ownerless: dict[str, int] = {}
        """Streams without an owner, and when each was first seen without one."""
        self.owned: set[str] = set()
        """The streams whose lease this controller has acquired and not lost."""

    def share(self, now: int) -> list[str]:
        """The streams that this controller should look after now; releases those of others.

        A stream without an owner belongs to the controller that it is assigned to. If that one
        does not acquire it for half a lease, every other may.
        """
        members = self._announce(now)
        owners: dict[str, str | None] = {}
        for stream in self._store.streams():
            if self._store.cell(stream, CELL) is not None:
                owner, until = _lease_of(self._store.cell(stream, OWNER))
                owners[stream] = owner if until > now else None
        assigned = assign_owners(owners, members)
        self._ownerless = {
            stream: self._ownerless.get(stream, now)
            for stream, owner in owners.items()
            if owner is None
        }
        mine = []
        for stream, owner in owners.items():
            if assigned.get(stream) == self._name:
                mine.append(stream)
            elif owner == self._name:
                self.release(stream)
            elif self._is_abandoned(stream, now):
                mine.append(stream)
        self.owned &= set(mine)
        return mine

    def _is_abandoned(self, stream: str, now: int) -> bool:
        since = self._ownerless.get(stream)
        accepted = self._accepts is None or stream in self._accepts
        return accepted and since is not None and now - since >= self._lease // 2

    def acquire(self, stream: str, now: int) -> Lease | None:
        """Acquire or renew the lease of a stream; None if another controller owns the stream."""
        cell = self._store.cell(stream, OWNER)
        owner, until = _lease_of(cell)
        if owner != self._name:
            self.owned.discard(stream)
            if until > now:
                return None
        elif until - now > self._lease // 2:
            self.owned.add(stream)
            return Lease(until, is_new=False)
        self._store.swap(
            stream,
            Swap(
                OWNER,
                {"controller": self._name, "until": now + self._lease},
                0 if cell is None else cell.version,
            ),
        )
        self.owned.add(stream)
        return Lease(now + self._lease, is_new=owner != self._name)

    def release(self, stream: str) -> None:
        """Give up a stream; without effect if another controller owns it."""
        self.owned.discard(stream)
        cell = self._store.cell(stream, OWNER)
        if cell is not None and cell.document["controller"] == self._name:
            with suppress(Conflict):
                self._store.swap(stream, Swap(OWNER, None, cell.version))

    def leave(self) -> None:
        """Give up all streams and the membership, so that others take over at once."""
        for stream in sorted(self.owned):
            self.release(stream)
        self._remove(MEMBERS + self._name)

    def _announce(self, now: int) -> dict[str, Accepts]:
        """Renew the own membership, and return the live members; expired ones are removed."""
        cells = self._store.cells(_NO_STREAM, MEMBERS)
        key = MEMBERS + self._name
        mine = cells.get(key)
        if mine is None or mine.document["until"] - now <= self._lease // 2:
            streams = None if self._accepts is None else sorted(self._accepts)
            document = {"until": now + self._lease, "streams": streams}
            # A conflict means that it was renewed under the same name.
            with suppress(Conflict):
                self._store.swap(
                    _NO_STREAM, Swap(key, document, 0 if mine is None else mine.version)
                )
        members: dict[str, Accepts] = {self._name: self._accepts}
        for other, cell in cells.items():
            if other == key:
                continue
            if cell.document["until"] > now:
                streams = cell.document["streams"]
                members[other.removeprefix(MEMBERS)] = (
                    None if streams is None else frozenset(streams)
                )
            elif cell.document["until"] + self._lease <= now:
                # Well beyond its end, because the clock of the other may be behind.
                self._remove(other)
        return members

    def _remove(self, key: str) -> None:
        cell = self._store.cell(_NO_STREAM, key)
        if cell is not None:
            with suppress(Conflict):
                self._store.swap(_NO_STREAM, Swap(key, None, cell.version))


def _lease_of(cell: Cell | None) -> tuple[str | None, int]:
    """The controller that has a lease, and its end, which may have passed."""
    if cell is None:
        return None, MIN
    return cell.document["controller"], int(cell.document["until"])

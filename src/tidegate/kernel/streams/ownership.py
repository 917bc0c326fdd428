"""Which controller owns which stream.

Contract: every stream that some controller accepts has an owner, and the numbers of streams of two
controllers that accept the same streams differ by at most one. An owner keeps its streams unless
it has too many, so that a controller that joins or leaves moves only as many as it has to. The
result depends on the arguments alone: controllers that see the same streams and members agree
without exchanging messages.
"""

from __future__ import annotations

from collections.abc import Mapping

Accepts = frozenset[str] | None
"""The streams that a controller accepts; None for all."""


def assign_owners(
    owners: Mapping[str, str | None], members: Mapping[str, Accepts]
) -> dict[str, str]:
    """The controller that should own each stream, from the present owners and the live members.

    >>> assign_owners({"a": "x", "b": "x", "c": None}, {"x": None, "y": None})
    {'a': 'x', 'b': 'x', 'c': 'y'}
    >>> assign_owners({"a": "x", "b": "x", "c": "x"}, {"x": None, "y": None})
    {'a': 'y', 'b': 'x', 'c': 'x'}
    """
    loads = dict.fromkeys(sorted(members), 0)
    accepting = {stream: _accepting(stream, members) for stream in sorted(owners)}
    assigned: dict[str, str] = {}
    for stream, able in accepting.items():
        owner = owners[stream]
        if owner is not None and owner in able:
            assigned[stream] = owner
            loads[owner] += 1
    for stream, able in accepting.items():
        if able and stream not in assigned:
            assigned[stream] = min(able, key=lambda one: (loads[one], one))
            loads[assigned[stream]] += 1
    while _even_out(assigned, accepting, loads):
        pass
    return assigned


def _accepting(stream: str, members: Mapping[str, Accepts]) -> list[str]:
    return [name for name in sorted(members) if (some := members[name]) is None or stream in some]


def _even_out(
    assigned: dict[str, str], accepting: Mapping[str, list[str]], loads: dict[str, int]
) -> bool:
    """Move streams from owners with too many to those with the fewest; whether one was moved."""
    moved = False
    for stream, owner in assigned.items():
        least = min(accepting[stream], key=lambda one: (loads[one], one))
        if loads[owner] > loads[least] + 1:
            assigned[stream] = least
            loads[owner] -= 1
            loads[least] += 1
            moved = True
    return moved

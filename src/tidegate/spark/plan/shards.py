"""Shards: the groups of keys that Spark moves around, and how many of them each partition of a
query gets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidegate.errors import SpecMismatchError

_MASK = 0xFFFFFFFF
_SEED = 42


@dataclass(frozen=True)
class Layout:
    """The shards of a query: fixed at its first start, because stored state is found by them."""

    partitions: int
    ids: tuple[int, ...]
    """What Spark groups by: shard n has the n-th id, and ids are chosen so that every partition has
    the same number of them.
    """

    @classmethod
    def balanced(cls, partitions: int, shards: int | None = None) -> Layout:
        """As many shards as wanted (one a partition unless said), dealt out evenly."""
        wanted = partitions if shards is None else shards
        homes: list[list[int]] = [[] for _ in range(partitions)]
        candidate, need = 0, -(-wanted // partitions)
        while min(len(home) for home in homes) < need:
            homes[home_of(candidate, partitions)].append(candidate)
            candidate += 1
        return cls(partitions, tuple(homes[n % partitions][n // partitions] for n in range(wanted)))

    def __len__(self) -> int:
        return len(self.ids)

    def to_dict(self) -> dict[str, object]:
        """The JSON form."""
        return {"partitions": self.partitions, "ids": list(self.ids)}


def check_layout(stored: Mapping[str, object], wanted: Layout) -> None:
    """State is found by the shards of its query: other ones would not find it."""
    if stored != wanted.to_dict():
        raise SpecMismatchError(
            f"the state of this query is kept in {stored}, and it was started with"
            f" {wanted.to_dict()}. Hint: set spark.sql.shuffle.partitions as it was, or start with"
            " `write(checkpoint=...)`, which remembers it"
        )


def home_of(shard: int, partitions: int) -> int:
    """The partition that Spark sends an integer key to: its Murmur3 hash, modulo the number of
    partitions.
    """
    value = _mix_last(_mix(_SEED, _scramble(shard & _MASK)), 4)
    signed = value - (1 << 32) if value >= 1 << 31 else value
    return signed % partitions


def _rotate(value: int, bits: int) -> int:
    return ((value << bits) | (value >> (32 - bits))) & _MASK


def _scramble(word: int) -> int:
    return (_rotate((word * 0xCC9E2D51) & _MASK, 15) * 0x1B873593) & _MASK


def _mix(state: int, word: int) -> int:
    return (_rotate(state ^ word, 13) * 5 + 0xE6546B64) & _MASK


def _mix_last(state: int, length: int) -> int:
    value = state ^ length
    value = ((value ^ (value >> 16)) * 0x85EBCA6B) & _MASK
    value = ((value ^ (value >> 13)) * 0xC2B2AE35) & _MASK
    return value ^ (value >> 16)

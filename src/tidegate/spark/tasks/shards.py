"""Shards: groups of keys, which Spark distributes over the partitions of a query."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidegate.errors import SpecMismatchError
from tidegate.kernel.keys import FIXED, KeyHasher

_MASK = 0xFFFFFFFF
_SEED = 42


@dataclass(frozen=True)
class ShardLayout:
    """The shards of a query; fixed at its first start, because they are the keys of its state."""

    partitions: int
    ids: tuple[int, ...]
    """The grouping key of each shard, chosen so that all partitions have equally many shards."""
    hasher: KeyHasher = FIXED
    """The identities of keys, which decide on their shards."""

    @classmethod
    def balanced(
        cls, partitions: int, shards: int | None = None, *, hasher: KeyHasher = FIXED
    ) -> ShardLayout:
        """A layout that distributes shards evenly; by default, one per partition."""
        wanted = partitions if shards is None else shards
        members: list[list[int]] = [[] for _ in range(partitions)]
        candidate, need = 0, -(-wanted // partitions)
        while min(len(ids) for ids in members) < need:
            members[spark_partition(candidate, partitions)].append(candidate)
            candidate += 1
        return cls(
            partitions,
            tuple(members[n % partitions][n // partitions] for n in range(wanted)),
            hasher,
        )

    def __len__(self) -> int:
        return len(self.ids)

    def to_dict(self) -> dict[str, object]:
        """The JSON form."""
        return {"partitions": self.partitions, "ids": list(self.ids)}


def check_layout(stored: Mapping[str, object], layout: ShardLayout) -> None:
    """Refuse a layout that differs from the stored one: it would not find the state."""
    if stored != layout.to_dict():
        raise SpecMismatchError(
            f"the state of this query is sharded as {stored}, and the query was started with"
            f" {layout.to_dict()}. Hint: restore the value of spark.sql.shuffle.partitions, or"
            " start with `write(checkpoint=...)`, which stores it"
        )


def spark_partition(shard: int, partitions: int) -> int:
    """The partition of an integer key: its Murmur3 hash, modulo the number of partitions."""
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

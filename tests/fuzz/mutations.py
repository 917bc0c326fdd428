"""Deterministic mutations of valid inputs, for the short form of the fuzzing."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

_TOKENS = (
    *(b"{}", b"[]", b"null", b"-1", b"1e999", b"9223372036854775808", b"NaN", b'""', b"\x00"),
    *(
        b"\xff\xfe",
        b"[" * 300,
        b"(" * 300,
        b"&a *a",
        b"!!timestamp x",
        b"\xed\xa0\x80",
        b"'",
        b"\n",
    ),
)


def mutated(seeds: Sequence[bytes], seed: int, count: int) -> Iterator[bytes]:
    """Inputs that differ from a valid one in one to four places."""
    dice = random.Random(seed)
    for _ in range(count):
        data = bytearray(dice.choice(seeds))
        for _ in range(dice.choice((1, 1, 2, 4))):
            at = dice.randrange(len(data) + 1)
            end = min(len(data), at + dice.choice((1, 1, 2, 8, 64)))
            match dice.randrange(6):
                case 0 if data:
                    data[at % len(data)] ^= 1 << dice.randrange(8)
                case 1:
                    data[at:end] = bytes(end - at)
                case 2:
                    del data[at:end]
                case 3:
                    data[at:at] = dice.choice(_TOKENS)
                case 4:
                    data[at:end] = dice.choice(_TOKENS)
                case _:
                    data[at:at] = data[end : end + 20]
        yield bytes(data) if dice.random() < 0.9 else bytes(data[: dice.randrange(len(data) + 1)])

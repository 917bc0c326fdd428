"""SipHash-2-4 with 128 bits of output, over whole columns.

SipHash is a pseudo-random function: without the key, values that collide can neither be computed
nor learned from hashes that were seen. Rows are processed in blocks that fit the cache, and each
step works on the words of all rows of a block at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_WORD = 8
_BLOCK = 16384
_INIT = tuple(
    np.uint64(value)
    for value in (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)
)
_WIDE, _SECOND = np.uint64(0xEE), np.uint64(0xDD)
_ROUNDS, _LAST_ROUNDS = 2, 4
_ONE, _BITS = np.uint64(1), np.uint64(3)
_TURNS, _OTHER_TURNS = (np.array([[13], [16]], np.uint64), np.array([[17], [21]], np.uint64))
"""How far the odd words are rotated, v1 and v3 at once."""
_HALF, _WHOLE = np.uint64(32), np.uint64(64)

Key = tuple[np.uint64, np.uint64]
Hashes = tuple[np.ndarray, np.ndarray]


def hash_words(columns: Sequence[np.ndarray], rows: int, key: Key) -> Hashes:
    """The hashes of rows that are the same number of 64-bit words each, one column a word."""
    length = np.uint64(len(columns) * _WORD % 256 << 56)
    first, second = (np.empty(rows, np.uint64) for _ in range(2))
    room = _Room(rows)
    for begin in range(0, rows, _BLOCK):
        block = slice(begin, min(rows, begin + _BLOCK))
        state = room.state(block.stop - begin, key)
        for column in columns:
            state.take(column[block])
        state.take(length)
        first[block], second[block] = state.finish()
    return first, second


def hash_bytes(data: np.ndarray, begin: np.ndarray, length: np.ndarray, key: Key) -> Hashes:
    """The hashes of byte strings: `length` bytes of `data` from `begin`, for each row."""
    rows = len(begin)
    first, second = (np.empty(rows, np.uint64) for _ in range(2))
    padded = np.concatenate([data, np.zeros(_WORD, np.uint8)])
    # Element n of this view is the word that starts at byte n.
    words = np.ndarray((len(data) + 1,), "<u8", padded, 0, (1,))
    room = _Room(rows)
    for low in range(0, rows, _BLOCK):
        block = slice(low, min(rows, low + _BLOCK))
        state = room.state(block.stop - low, key)
        order = _absorb(state, words, begin[block], length[block])
        first[block][order], second[block][order] = state.finish()
    return first, second


def _absorb(
    state: _State, words: np.ndarray, begin: np.ndarray, length: np.ndarray
) -> np.ndarray | slice:
    """Absorb the bytes of all rows; returns the order of the rows in the state.

    Rows are in the order of their lengths in words, so that those with a further word are together.
    """
    whole = length // _WORD
    counts = np.bincount(whole)
    order: np.ndarray | slice = slice(None)
    if counts[-1] < len(whole):
        order = np.argsort(whole.astype(np.min_scalar_type(len(counts))), kind="stable")
    at, size = begin[order].astype(np.int64), length[order].astype(np.uint64)
    done = 0
    for end in np.cumsum(counts).tolist():
        word = words[at[done:]].astype(np.uint64, copy=False)
        # The first rows end in this word.
        last, ending = word[: end - done], size[done:end]
        last &= (_ONE << (ending % np.uint64(_WORD) << _BITS)) - _ONE
        last |= ending << np.uint64(56)
        state.take(word, done)
        at += _WORD
        done = end
    return order


class _Room:
    """The memory of one block after the other, so that it stays in the cache."""

    def __init__(self, rows: int) -> None:
        self._parts = [np.empty((2, min(rows, _BLOCK)), np.uint64) for _ in range(3)]

    def state(self, rows: int, key: Key) -> _State:
        """The initial state of a block."""
        state = _State(*(part[:, :rows] for part in self._parts))
        first, second = key
        for part, word, initial in (
            (state.even[0], first, _INIT[0]),
            (state.odd[0], second ^ _WIDE, _INIT[1]),
            (state.even[1], first, _INIT[2]),
            (state.odd[1], second, _INIT[3]),
        ):
            part[:] = word ^ initial
        return state


@dataclass(frozen=True, slots=True, eq=False)
class _State:
    """The four words of state of each row: v0 and v2, and v1 and v3, which do the same steps."""

    even: np.ndarray
    odd: np.ndarray
    spare: np.ndarray

    def take(self, word: np.ndarray | np.uint64, begin: int = 0) -> None:
        """Absorb the next word of the rows from `begin`."""
        rows = _State(self.even[:, begin:], self.odd[:, begin:], self.spare[:, begin:])
        rows.odd[1] ^= word
        rows.mix(_ROUNDS)
        rows.even[0] ^= word

    def finish(self) -> Hashes:
        """Both halves of the hash of each row."""
        self.even[1] ^= _WIDE
        self.mix(_LAST_ROUNDS)
        first = self._combined()
        self.odd[0] ^= _SECOND
        self.mix(_LAST_ROUNDS)
        return first, self._combined()

    def _combined(self) -> np.ndarray:
        found: np.ndarray = self.even[0] ^ self.even[1]
        found ^= self.odd[0]
        found ^= self.odd[1]
        return found

    def mix(self, rounds: int) -> None:
        """Rounds of SipHash, in place."""
        even, odd, spare = self.even, self.odd, self.spare
        (v0, v2), (v1, v3), half = even, odd, spare[0]
        for _ in range(rounds):
            even += odd
            _rotate(odd, _TURNS, spare)
            odd ^= even
            _rotate(v0, _HALF, half)
            v2 += v1
            v0 += v3
            _rotate(odd, _OTHER_TURNS, spare)
            v1 ^= v2
            v3 ^= v0
            _rotate(v2, _HALF, half)


def _rotate(values: np.ndarray, bits: np.ndarray | np.uint64, spare: np.ndarray) -> None:
    np.right_shift(values, _WHOLE - bits, out=spare)
    np.left_shift(values, bits, out=values)
    values |= spare

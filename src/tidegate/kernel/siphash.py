"""SipHash-2-4 with 128 bits of output, over whole columns.

SipHash is a pseudo-random function: without the key, values that collide can neither be computed
nor learned from hashes that were seen. Rows are processed in blocks that fit the cache, and each
step works on the words of all rows of a block at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_WORD = 8
_BLOCK = 8192
_INIT = tuple(
    np.uint64(value)
    for value in (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)
)
_WIDE, _SECOND = np.uint64(0xEE), np.uint64(0xDD)
_ROUNDS, _LAST_ROUNDS = 2, 4
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)

Key = tuple[np.uint64, np.uint64]
Hashes = tuple[np.ndarray, np.ndarray]


def hash_words(columns: Sequence[np.ndarray], rows: int, key: Key) -> Hashes:
    """The hashes of rows that are the same number of 64-bit words each, one column a word."""
    length = np.uint64(len(columns) * _WORD % 256 << 56)
    first, second = (np.empty(rows, np.uint64) for _ in range(2))
    for begin in range(0, rows, _BLOCK):
        block = slice(begin, min(rows, begin + _BLOCK))
        state = _State(block.stop - begin, key)
        for column in columns:
            state.take(column[block])
        state.take(np.full(block.stop - begin, length))
        first[block], second[block] = state.finish()
    return first, second


def hash_bytes(data: np.ndarray, begin: np.ndarray, length: np.ndarray, key: Key) -> Hashes:
    """The hashes of byte strings: `length` bytes of `data` from `begin`, for each row."""
    rows = len(begin)
    first, second = (np.empty(rows, np.uint64) for _ in range(2))
    padded = np.concatenate([data, np.zeros(_WORD, np.uint8)])
    # Row n of this view is the eight bytes that start at byte n.
    words = np.lib.stride_tricks.as_strided(padded, (len(data) + 1, _WORD), (1, 1), writeable=False)
    for low in range(0, rows, _BLOCK):
        block = slice(low, min(rows, low + _BLOCK))
        first[block], second[block] = _hash_block(words, begin[block], length[block], key)
    return first, second


def _hash_block(words: np.ndarray, begin: np.ndarray, length: np.ndarray, key: Key) -> Hashes:
    state = _State(len(begin), key)
    whole = length // _WORD
    least, most = int(whole.min()), int(whole.max())
    for number in range(least):
        state.take(_gathered(words, begin + number * _WORD))
    for number in range(least, most + 1):
        # Only some rows have a word here; for those that end in it, it is padded.
        rows = np.flatnonzero(whole >= number)
        at, size = begin[rows] + number * _WORD, length[rows]
        left = size - number * _WORD
        word = _gathered(words, at)
        ends = left < _WORD
        shift = (np.minimum(left, _WORD - 1) * _WORD).astype(np.uint64)
        word &= np.where(ends, ~(_ALL << shift), _ALL)
        word |= np.where(ends, size.astype(np.uint64) << np.uint64(56), np.uint64(0))
        state.take(word, None if len(rows) == len(begin) else rows)
    return state.finish()


def _gathered(words: np.ndarray, at: np.ndarray) -> np.ndarray:
    return words[at].view("<u8").ravel().astype(np.uint64, copy=False)


class _State:
    """The four words of state of each row."""

    def __init__(self, rows: int, key: Key) -> None:
        keys = (key[0], key[1] ^ _WIDE, key[0], key[1])
        self._v = [np.full(rows, k ^ i, np.uint64) for k, i in zip(keys, _INIT, strict=True)]

    def take(self, word: np.ndarray, rows: np.ndarray | None = None) -> None:
        """Absorb the next word of all rows, or of some."""
        state = self._v if rows is None else [part[rows] for part in self._v]
        state[3] ^= word
        _mix(state, _ROUNDS)
        state[0] ^= word
        if rows is not None:
            for part, changed in zip(self._v, state, strict=True):
                part[rows] = changed

    def finish(self) -> Hashes:
        state = self._v
        state[2] ^= _WIDE
        _mix(state, _LAST_ROUNDS)
        first = state[0] ^ state[1] ^ state[2] ^ state[3]
        state[1] ^= _SECOND
        _mix(state, _LAST_ROUNDS)
        return first, state[0] ^ state[1] ^ state[2] ^ state[3]


def _mix(state: list[np.ndarray], rounds: int) -> None:
    """Rounds of SipHash, in place."""
    v0, v1, v2, v3 = state
    spare = np.empty_like(v0)
    for _ in range(rounds):
        v0 += v1
        v2 += v3
        _rotate(v1, 13, spare)
        _rotate(v3, 16, spare)
        v1 ^= v0
        v3 ^= v2
        _rotate(v0, 32, spare)
        v2 += v1
        v0 += v3
        _rotate(v1, 17, spare)
        _rotate(v3, 21, spare)
        v1 ^= v2
        v3 ^= v0
        _rotate(v2, 32, spare)


def _rotate(values: np.ndarray, bits: int, spare: np.ndarray) -> None:
    np.right_shift(values, np.uint64(64 - bits), out=spare)
    np.left_shift(values, np.uint64(bits), out=values)
    values |= spare

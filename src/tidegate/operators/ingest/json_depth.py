"""The nesting depth of JSON text, without decoding it.

Decoders recurse into nested values, so a short text with thousands of brackets exhausts their
stack. The depth is exact up to the first syntax error, where every decoder stops.
"""

from __future__ import annotations

import itertools

import numpy as np

MAX_DEPTH = 100
"""The maximum nesting depth of a JSON value; a deeper one is malformed."""
_STRIDE = MAX_DEPTH // 2
_CHUNK = 256 << 10
"""The number of bytes per step, which fit into the cache of a core."""
_QUOTE = ord('"')
_OTHER = bytes(byte for byte in range(256) if byte not in b'[]{}"')


def is_too_deep(text: bytes) -> bool:
    """Whether JSON lines have a value that is nested deeper than `MAX_DEPTH`."""
    return not _is_surely_flat(text) and depth(text) > MAX_DEPTH


def depth(text: bytes) -> int:
    """The nesting depth of the deepest value."""
    if b"\\" in text:
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    marks = np.frombuffer(text.translate(None, _OTHER), np.uint8)
    is_quote = marks == _QUOTE
    # Sums of bytes overflow to even numbers, so the parity stays right.
    is_text = (np.cumsum(is_quote, dtype=np.uint8) & 1).astype(bool)
    brackets = marks[~is_text & ~is_quote]
    # Opening brackets lack the bit with the value 4, which closing brackets have.
    steps = 1 - ((brackets >> 1) & 2).astype(np.int64)
    return int(np.cumsum(steps).max(initial=0))


def _is_surely_flat(text: bytes) -> bool:
    """Whether an object ends among any `_STRIDE` opening brackets, so that depth cannot add up.

    `}` and `{` on adjacent lines are the end of an object and the start of the next one, or a
    syntax error. This takes a fraction of the time of `depth`, and suffices for most files.
    """
    marks = _openings(text)[::_STRIDE].tolist()
    return all(
        text.find(b"}\n{", start, end + 1) >= 0 or text.find(b"}\r\n{", start, end + 1) >= 0
        for start, end in itertools.pairwise(marks)
    )


def _openings(text: bytes) -> np.ndarray:
    """The positions of opening brackets; `[` and `{` differ in one bit."""
    data = np.frombuffer(text, np.uint8)
    found = [
        np.flatnonzero((data[start : start + _CHUNK] | 0x20) == ord("{")) + start
        for start in range(0, len(data), _CHUNK)
    ]
    return np.concatenate(found) if found else np.zeros(0, np.int64)

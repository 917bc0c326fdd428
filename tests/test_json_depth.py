"""The depth of JSON text is found without decoding it, whatever the text has in it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.examples import examples
from tidegate.operators.ingest.json_depth import MAX_DEPTH, depth, is_too_deep

values = st.recursive(
    st.none() | st.integers() | st.text(alphabet='[]{}"\\\n é', max_size=12),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text('[{"\\'), inner, max_size=3)
    ),
)


def depth_of(value: Any) -> int:
    if isinstance(value, list):
        return 1 + max(map(depth_of, value), default=0)
    if isinstance(value, dict):
        return 1 + max(map(depth_of, value.values()), default=0)
    return 0


@examples(100)
@given(values, st.booleans(), st.sampled_from([None, 1]))
def test_the_depth_is_that_of_the_decoded_value(value: Any, ascii_only: bool, indent: Any) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    assert depth(text.encode()) == depth_of(value)


def nested(levels: int, start: str = "[", end: str = "]") -> str:
    return '{"x": ' + start * (levels - 1) + end * (levels - 1) + "}"


FLAT = '{"key": 1, "items": [{"a": "[[[["}, {"b": "}}"}]}'


@pytest.mark.parametrize("line_end", ["\n", "\r\n", " \n"])
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (FLAT, False),
        (nested(MAX_DEPTH), False),
        (nested(MAX_DEPTH + 1), True),
        (nested(100_000), True),
        (nested(MAX_DEPTH, '{"a":', "}") + nested(1), False),
        ('{"x": ' + '{"a":' * MAX_DEPTH + "1" + "}" * MAX_DEPTH + "}", True),
        ('{"x": "' + "[" * 1000 + '"}', False),
        ('{"x": "\\"' + "[" * 1000 + '"}', False),
        ('{"x": "\\\\", "y": ' + "[" * 1000, True),
        ('{"hides": "' + "]" * 1000 + '", "x": ' + "[" * 1000, True),
        ('{"x": ' + "[\n" * 1000 + "]\n" * 1000 + "}", True),
        ('{"x": [' + '{"a": 1},' * 1000 + "1]}", False),
    ],
)
def test_a_deep_value_is_found_among_other_lines(line: str, expected: bool, line_end: str) -> None:
    for others in (0, 1, 500):
        lines = [FLAT] * others + [line] + [FLAT] * others
        assert is_too_deep(line_end.join(lines).encode()) is expected
    assert not is_too_deep(b"")

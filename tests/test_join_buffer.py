"""What a join is built on: finding the rows in a range, following sessions, and the buffer of a side."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.instants import MAX, MIN
from tidegate.kernel.frame import Frame
from tidegate.kernel.joins.join_buffer import LAYOUTS, JoinBuffer, Query
from tidegate.kernel.joins.range_matching import Index, ordered
from tidegate.kernel.storage.layout import LARGE_WINDOW
from tidegate.kernel.windows.sessions import PointSessions, reach_of, session_history
from tidegate.state.memory import MemoryStore

# How ranges are found

places = st.lists(st.tuples(st.integers(0, 4), st.integers(-9, 9)), min_size=1, max_size=30)
far = st.lists(
    st.tuples(st.integers(0, 4), st.sampled_from([MIN + 1, -(2**61), 0, 2**61, MAX - 1])),
    min_size=1,
    max_size=12,
)


@given(
    places | far,
    st.lists(st.tuples(st.integers(-1, 5), st.integers(-12, 12), st.integers(0, 6)), max_size=10),
)
def test_an_index_finds_the_rows_of_a_lead_in_a_range(rows, asked):
    lead, at = (np.array(column) for column in zip(*rows, strict=True))
    order = ordered(lead.astype(np.uint64), at).order
    assert order.tolist() == sorted(range(len(rows)), key=lambda n: (*rows[n], n))
    index = Index.over(lead[order].astype(np.uint64), at[order])
    if not asked:
        return
    leads, codes = np.unique(
        np.array([np.uint64(max(0, one[0]) + 9 * (one[0] < 0)) for one in asked], np.uint64),
        return_inverse=True,
    )
    low, high = np.array([one[1] for one in asked]), np.array([one[1] + one[2] for one in asked])
    first, last = index.ranges(leads, codes, low, high)
    for n, (key, begin, size) in enumerate(asked):
        wanted = [
            place
            for place in order.tolist()
            if rows[place][0] == key and begin <= rows[place][1] <= begin + size
        ]
        assert order[first[n] : last[n]].tolist() == wanted


@given(places, st.integers(1, 5), st.booleans())
def test_sessions_are_followed_row_by_row(rows, gap, touch):
    code, at = (np.array(column) for column in zip(*rows, strict=True))
    reach = reach_of(gap, "merge" if touch else "separate")
    found = session_history(code, at, PointSessions.none(), reach)
    sessions: dict[int, list[tuple[int, int]]] = {}
    joined = []
    for n, (key, time) in enumerate(rows):
        near = [s for s in sessions.get(key, []) if s[0] - gap - touch < time < s[1] + gap + touch]
        session = min([time, *(s[0] for s in near)]), max([time, *(s[1] for s in near)])
        if len(near) > 1:
            joined.append(n)
        sessions[key] = sorted([*(s for s in sessions.get(key, []) if s not in near), session])
        assert (found.start[n], found.last[n]) == session
    assert sorted(found.bridges.row.tolist()) == joined
    table = found.sessions
    left = [(key, *session) for key in sorted(sessions) for session in sessions[key]]
    assert (
        list(zip(table.key.tolist(), table.start.tolist(), table.last.tolist(), strict=True))
        == left
    )


# How rows are kept


def frame(rows):
    lead, at = (np.array(column) for column in zip(*rows, strict=True))
    return Frame.of(
        {
            "equal_hash": lead.astype(np.uint64),
            "position": at,
            "seq": np.arange(len(rows)),
            "m.v": pa.array([f"{a}" for a in at]),
        }
    )


def asked(buffer, lead, low, high):
    one = np.array([lead], np.uint64)
    found = buffer.probe(Query(ordered(one, np.array([low])), np.array([low]), np.array([high])))
    return (
        sorted(pa.array(buffer.take(found, ["m.v"])["m.v"]).to_pylist()) if len(found.row) else []
    )


@pytest.mark.parametrize("layouts", [LAYOUTS, LAYOUTS[1:] * 2, LAYOUTS[:1] * 2])
def test_a_buffer_finds_rows_in_either_layout_through_merges_and_restarts(layouts):
    store = MemoryStore()
    buffer = JoinBuffer(store, "rows", layouts=layouts)
    for n in range(9):
        buffer.add(frame([(n % 2, 10 * n), (1, 10 * n + 5)]))
    assert asked(buffer, 1, 15, 35) == ["15", "25", "30", "35"]
    buffer.expire({"position": 30})
    assert (len(buffer), asked(buffer, 1, MIN, 40)) == (12, ["30", "35"])
    manifest = buffer.save()
    again = JoinBuffer(store, "rows", layouts=layouts)
    again.restore(manifest)
    assert (len(again), asked(again, 1, MIN, 40)) == (12, ["30", "35"])
    assert again.runs < 9


def test_a_buffer_is_kept_by_lead_when_it_is_large():
    buffer = JoinBuffer(MemoryStore(), "rows")
    buffer.add(frame([(n % 7, n) for n in range(10)]))
    assert str(buffer.layout) == "timestamp, equal_fields, offset"
    buffer.add(frame([(n % 7, n) for n in range(LARGE_WINDOW)]))
    assert str(buffer.layout) == "equal_fields, timestamp, offset"
    assert asked(buffer, 3, 3, 3) == ["3", "3"]


def test_rows_that_were_removed_give_their_room_back():
    buffer = JoinBuffer(MemoryStore(), "rows")
    buffer.add(frame([(0, n) for n in range(100)]))
    before = buffer.held_bytes
    buffer.remove(buffer.places({"position": 60}))
    assert len(buffer) == 40
    buffer.tidy()
    assert buffer.held_bytes < before / 2

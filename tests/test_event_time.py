"""Times as people write them: columns of texts in one format or in several."""

from __future__ import annotations

from datetime import datetime

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tidegate.kernel.events.event_time import BAD, NULL, OK, read_times

STAMPS = st.one_of(
    st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1)).map(str),
    st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1)).map(lambda at: f"{at.isoformat()}Z"),
    st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1)).map(lambda at: f"{at}-05:30"),
    st.dates().map(str),
    st.sampled_from([None, "", "soon", "2024-13-01", "12:00", "2024-01-01T00:00:00Zz", "10:00-x"]),
)


@given(st.lists(STAMPS, max_size=12), st.integers(1, 30))
def test_texts_of_any_formats_are_read_as_each_one_alone(texts, times):
    whole = texts * times
    ticks, verdict = read_times(pa.array(whole, pa.string()), "t")
    alone = [read_times(pa.array([text], pa.string()), "t") for text in texts]
    assert ticks.tolist() == [int(one[0]) for one, _ in alone] * times
    assert verdict.tolist() == [int(one[0]) for _, one in alone] * times


def test_one_unreadable_text_leaves_the_others_as_they_are():
    texts = [f"2024-01-01 00:00:{n % 60:02d}" for n in range(1000)]
    texts[500], texts[700] = "yesterday", None
    ticks, verdict = read_times(pa.array(texts), "t")
    assert [n for n in range(1000) if verdict[n] != OK] == [500, 700]
    assert (verdict[500], verdict[700]) == (BAD, NULL)
    assert ticks[999] - ticks[0] == 39_000_000

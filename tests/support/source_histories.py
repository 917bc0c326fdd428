"""Random histories of sources: watermark specifications, rows that speak to every generator, and
what happens to partitions and the clock.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from tidegate.spec.watermarks import Bounded, Explicit, Implied, Lagging, Noted, Punctuated

SCHEMA = pa.schema(
    {"ts": pa.int64(), "p": pa.string(), "wm": pa.int64(), "m": pa.bool_(), "writer": pa.string()}
)

watched = st.fixed_dictionaries(
    {
        "idle_after": st.sampled_from([None, 5, 20]),
        "declared": st.sampled_from([(), (), ("a",), ("a", "b")]),
        "align": st.sampled_from([None, None, 6]),
    }
)
specs = st.one_of(
    st.just(Implied()),
    st.builds(Lagging, st.integers(0, 9)),
    watched.map(lambda more: Explicit(**more)),
    st.tuples(watched, st.integers(0, 6)).map(lambda both: Bounded(both[1], **both[0])),
    watched.map(lambda more: Punctuated(column="wm", **more)),
    watched.map(lambda more: Punctuated(marker="m", **more)),
    st.tuples(watched, st.sampled_from([None, 25])).map(
        lambda both: Noted("wm", forget_after=both[1], **both[0])
    ),
)
names = st.sampled_from(["a", "b", "c"])
row = st.fixed_dictionaries(
    {
        "ts": st.integers(0, 60) | st.none(),
        "p": names | st.none(),
        "wm": st.none() | st.integers(0, 60),
        "m": st.sampled_from([True, False, None]),
        "writer": st.sampled_from(["a", "b", None]),
    }
)
_input = st.integers(0, 2)
_delivery = st.tuples(
    st.just("deliver"), _input, st.lists(row, min_size=1, max_size=4), st.integers(0, 8)
)


def histories(
    *further: st.SearchStrategy[tuple[Any, ...]], most: int = 20
) -> st.SearchStrategy[list[tuple[Any, ...]]]:
    """What happens one after the other; deliveries more often than the rest."""
    return st.lists(
        st.one_of(
            _delivery,
            _delivery,
            st.tuples(st.just("timeout"), st.integers(0, 25)),
            st.tuples(st.just("promise"), _input, st.integers(0, 60), names | st.none()),
            st.tuples(st.just("idle"), _input, names | st.none()),
            st.tuples(st.just("end"), _input, names | st.none()),
            st.tuples(st.just("join"), _input, names),
            st.tuples(st.just("leave"), _input, names),
            *further,
        ),
        max_size=most,
    )

"""Evictors: which messages of a window the function does not see, or does not see again."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tidegate as tg

TWICE = tg.after_watermark(early=tg.repeatedly(tg.after_count(3)), late=tg.after_count(1))


def run(
    evictor: Any,
    rows: list[dict[str, Any]],
    *,
    trigger: Any = TWICE,
    mode: str = "accumulating",
    window: Any = None,
) -> list[tuple[Any, ...]]:
    keyed = tg.stream(time="ts", key="k", watermark=tg.explicit()).window(
        window or tg.tumbling(1000, unit="us")
    )
    op = (
        getattr(keyed.trigger(trigger), mode)()
        .evict(evictor)
        .aggregate(all=tg.list_("v"), n=tg.count())
        .embedded(now=0)
    )
    op.add_messages(rows)
    op.finish()
    result = op.get_result()
    assert result.late.num_rows == 0
    return [(p["k"], p["op"], p["all"], p["n"]) for p in result.panes.to_pylist()]


def rows(*values: Any, times: Any = None) -> list[dict[str, Any]]:
    return [
        {"ts": t, "k": "a", "v": v}
        for t, v in zip(times or range(len(values)), values, strict=True)
    ]


def test_count_before_the_function_sees_the_last_messages_only():
    assert run(tg.evict_count(2), rows(1, 2, 3, 4)) == [
        ("a", "+", [2, 3], 2),
        ("a", "+", [3, 4], 2),
    ]


def test_count_before_the_function_forgets_nothing():
    """What was left out of one pane is there for the next: the window still has it."""
    assert run(tg.evict_count(4), rows(1, 2, 3, 4, 5)) == [
        ("a", "+", [1, 2, 3], 3),
        ("a", "+", [2, 3, 4, 5], 4),
    ]


def test_count_after_the_function_keeps_the_last_messages_for_the_next_pane():
    assert run(tg.evict_count(1, after=True), rows(1, 2, 3, 4, 5)) == [
        ("a", "+", [1, 2, 3], 3),
        ("a", "+", [3, 4, 5], 3),
    ]


def test_keeping_nothing_before_the_function_gives_an_empty_pane():
    assert [
        (p[2] or [], p[3]) for p in run(tg.evict_count(0), rows(1, 2), trigger=tg.after_watermark())
    ] == [([], 0)]


def test_keeping_nothing_after_the_function_is_discarding():
    assert run(tg.evict_count(0, after=True), rows(1, 2, 3, 4)) == [
        ("a", "+", [1, 2, 3], 3),
        ("a", "+", [4], 1),
    ]


def test_time_keeps_what_is_at_most_that_much_older_than_the_newest():
    messages = rows(1, 2, 3, times=[100, 50, 49])
    assert run(tg.evict_time(50, unit="us"), messages, trigger=tg.after_watermark()) == [
        ("a", "+", [2, 1], 2)
    ]


def test_time_after_the_function():
    messages = rows(1, 2, 3, 4, times=[10, 95, 100, 101])
    assert run(tg.evict_time(5, unit="us", after=True), messages) == [
        ("a", "+", [1, 2, 3], 3),
        ("a", "+", [2, 3, 4], 3),
    ]


@pytest.mark.parametrize("edge", [-(2**63) + 1, 2**63 - 2])
def test_time_works_at_the_ends_of_time(edge):
    messages = rows(1, 2, times=[edge, 0])
    keyed = tg.stream(time="ts", key="k", watermark=tg.explicit()).window(tg.global_window())
    op = keyed.evict(tg.evict_time(50, unit="us")).aggregate(all=tg.list_("v")).embedded(now=0)
    op.add_messages(messages)
    op.finish()
    assert op.get_result().panes["all"].to_pylist() == [[2] if edge < 0 else [1]]


def test_delta_drops_what_differs_from_the_last_by_the_threshold_or_more():
    assert run(
        tg.evict_delta("v", 3), rows(10, 7, 8, 13, 12, 10), trigger=tg.after_watermark()
    ) == [("a", "+", [10, 8, 12, 10], 4)]


def test_delta_after_the_function():
    assert run(tg.evict_delta("v", 3, after=True), rows(1, 9, 10, 11)) == [
        ("a", "+", [1, 9, 10], 3),
        ("a", "+", [9, 10, 11], 3),
    ]


def test_delta_takes_a_missing_value_as_far_from_everything():
    assert run(tg.evict_delta("v", 3), rows(9, None, 10), trigger=tg.after_watermark()) == [
        ("a", "+", [9, 10], 2)
    ]


def test_delta_whose_last_value_is_missing_keeps_nothing():
    """A missing value is far from everything, itself included."""
    assert [
        p[3] for p in run(tg.evict_delta("v", 3), rows(9, 10, None), trigger=tg.after_watermark())
    ] == [0]


def test_delta_over_a_column_that_is_not_there_or_no_number_is_refused_with_its_name():
    for column in ("price", "k"):
        with pytest.raises(tg.TidegateError, match=f"`{column}`"):
            run(tg.evict_delta(column, 3), rows(1, 2))


def test_windows_and_keys_are_evicted_on_their_own():
    messages = [
        {"ts": t, "k": k, "v": 10 * t + i} for t in (1, 2, 1001) for i, k in enumerate("ab")
    ]
    found = run(tg.evict_count(1), messages, trigger=tg.after_watermark())
    assert sorted(found) == [
        ("a", "+", [20], 1),
        ("a", "+", [10010], 1),
        ("b", "+", [21], 1),
        ("b", "+", [10011], 1),
    ]


def test_overlapping_windows_are_evicted_on_their_own():
    """What one window has dropped after its function is still in the other."""
    found = run(
        tg.evict_count(1, after=True),
        rows(1, 2, 3, 4, times=[10, 11, 12, 13]),
        window=tg.hopping(20, 10, unit="us"),
    )
    assert found == [
        ("a", "+", [1, 2, 3], 3),
        ("a", "+", [1, 2, 3], 3),
        ("a", "+", [3, 4], 2),
        ("a", "+", [3, 4], 2),
    ]


def test_retractions_take_back_what_was_told():
    found = run(tg.evict_count(2), rows(1, 2, 3, 4), mode="retracting")
    assert found == [("a", "+", [2, 3], 2), ("a", "-", [2, 3], 2), ("a", "+", [3, 4], 2)]


def test_discarding_evicts_from_what_is_new():
    assert run(tg.evict_count(2), rows(1, 2, 3, 4), mode="discarding") == [
        ("a", "+", [2, 3], 2),
        ("a", "+", [4], 1),
    ]


def test_what_was_evicted_after_the_function_stays_so_over_a_restart():
    panes = (
        tg.stream(time="ts", key="k", watermark=tg.explicit())
        .window(tg.tumbling(1000, unit="us"))
        .trigger(TWICE)
        .evict(tg.evict_count(1, after=True))
        .aggregate(all=tg.list_("v"))
    )
    store = tg.MemoryStore()
    op = panes.embedded(store=store, now=0)
    op.add_messages(rows(1, 2, 3))
    op.get_result()
    op.flush()
    again = panes.embedded(store=store, now=0)
    again.add_messages(rows(4, 5, times=[3, 4]))
    again.finish()
    assert again.get_result().panes["all"].to_pylist() == [[3, 4, 5]]


def test_sessions_that_merge_keep_what_each_has_evicted():
    found = run(
        tg.evict_count(1, after=True),
        rows(1, 2, 3, 4, 5, times=[10, 11, 12, 18, 15]),
        window=tg.session(5, unit="us"),
        trigger=tg.after_watermark(early=tg.repeatedly(tg.after_count(3))),
    )
    assert found[0] == ("a", "+", [1, 2, 3], 3)
    assert sorted(found[-1][2]) == [3, 4, 5]


@pytest.mark.parametrize(
    "make",
    [
        lambda: tg.evict_count(-1),
        lambda: tg.evict_time(-1, unit="us"),
        lambda: tg.evict_delta("v", -0.5),
    ],
)
def test_negative_bounds_are_refused(make):
    with pytest.raises(tg.SpecError):
        make()


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9)), min_size=1, max_size=12),
    st.sampled_from(["count", "time", "delta"]),
    st.integers(0, 6),
    st.booleans(),
    st.integers(1, 4),
)
def test_differential_against_a_list(events, kind, bound, after, every):
    evictor = {
        "count": tg.evict_count(bound, after=after),
        "time": tg.evict_time(bound, unit="us", after=after),
        "delta": tg.evict_delta("v", bound, after=after),
    }[kind]
    window: list[tuple[int, int]] = []
    wanted = []
    pending = 0
    for number, event in enumerate(events, 1):
        window.append(event)
        pending += 1
        if pending == every or number == len(events):
            pending = 0
            kept = keep(kind, bound, window)
            wanted.append([v for _, v in sorted(window if after else kept, key=lambda e: e[0])])
            window = kept if after else window
    messages = [{"ts": ts, "k": "a", "v": v} for ts, v in events]
    found = run(
        evictor, messages, trigger=tg.after_watermark(early=tg.repeatedly(tg.after_count(every)))
    )
    assert [p[2] or [] for p in found][: len(wanted)] == wanted


def keep(kind: str, bound: int, window: list[tuple[int, int]]) -> list[tuple[int, int]]:
    if kind == "count":
        return window[len(window) - bound :] if bound <= len(window) else window[:]
    if kind == "time":
        return [e for e in window if e[0] >= max(t for t, _ in window) - bound]
    return [e for e in window if abs(e[1] - window[-1][1]) < bound]

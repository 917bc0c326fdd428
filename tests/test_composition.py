"""Composition: operators exchange changes, so that a chain ends in the answer of a batch."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tidegate as tg
from support.examples import examples

EAGER = tg.after_watermark(early=tg.every_element(), late=tg.every_element())
LATE_ONLY = tg.after_watermark(late=tg.every_element())


def source(key: Any = ("c", "u"), window: Any = None, trigger: Any = EAGER) -> tg.Windowed:
    return (
        tg.stream(time="ts", key=list(key), watermark=tg.explicit())
        .window(tg.tumbling("10 s") if window is None else window)
        .trigger(trigger)
    )


def seconds(*times: int, c: str = "x", u: str = "a") -> list[dict[str, Any]]:
    return [{"ts": t * 1_000_000, "c": c, "u": u} for t in times]


def rows_of(operator: tg.EmbeddedOperator, *names: str) -> list[tuple[Any, ...]]:
    """Op, window in seconds, and the named columns of all panes."""
    result = operator.get_result()
    assert result.late.to_pylist() == []
    return [
        (p["op"], p["window_start"] // 10**6, p["window_end"] // 10**6, *(p[n] for n in names))
        for p in result.panes.to_pylist()
    ]


def netted(rows: list[tuple[Any, ...]]) -> set[tuple[Any, ...]]:
    """Emits minus retracts; nothing is retracted that was not emitted."""
    left: Counter[tuple[Any, ...]] = Counter()
    for op, *rest in rows:
        left[tuple(rest)] += 1 if op == "+" else -1
        assert left[tuple(rest)] >= 0, rest
    assert set((+left).values()) <= {1}
    return set(+left)


@pytest.mark.parametrize("mode", ["accumulating", "discarding", "retracting"])
@pytest.mark.parametrize(
    ("trigger", "before", "after"),
    [(LATE_ONLY, (1,), (2,)), (EAGER, (1, 2), (3,))],
    ids=["late", "early"],
)
def test_a_chain_counts_once_whatever_the_mode_of_the_upstream(mode, trigger, before, after):
    last = (
        tg.stream(key="c")
        .inherit()
        .trigger(trigger)
        .retracting()
        .aggregate(n=tg.sum("n"))
        .embedded(now=0)
    )
    first = getattr(source(trigger=trigger), mode)().aggregate(n=tg.count())
    with first.embedded(downstream=last, now=0) as op:
        op.add_messages(seconds(*before))
        op.advance_watermark(10_000_000)
        op.add_messages(seconds(*after))
        op.finish()
    assert netted(rows_of(last, "n")) == {(0, 10, len(before) + len(after))}


@pytest.mark.parametrize("trigger", [EAGER, LATE_ONLY], ids=["early", "late"])
@pytest.mark.parametrize("order", [(0, 15, 8), (0, 8, 15), (15, 8, 0), (8, 0, 15)])
@pytest.mark.parametrize("mode", ["accumulating", "retracting"])
def test_a_window_whose_rows_were_all_retracted_is_withdrawn(trigger, order, mode):
    last = getattr(tg.stream(key="c").inherit().trigger(trigger), mode)().aggregate(n=tg.sum("n"))
    op2 = last.embedded(now=0)
    sessions = source(window=tg.session("10 s"), trigger=trigger).retracting()
    with sessions.aggregate(n=tg.count()).embedded(downstream=op2, now=0) as op:
        for t in order:
            op.add_messages(seconds(t))
            if trigger is LATE_ONLY:
                op.advance_watermark(30_000_000)
        op.finish()
    rows = rows_of(op2, "n")
    assert all(row[3] for row in rows), "no pane shows a window without rows"
    if mode == "accumulating":
        assert current(rows) == {(0, 25): (3,)}
    else:
        assert netted(rows) == {(0, 25, 3)}


def current(rows: list[tuple[Any, ...]]) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    """The table of an upsert sink: `+` puts the row of a window, `-` deletes it."""
    table: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    for op, start, end, *rest in rows:
        if op == "+":
            table[start, end] = tuple(rest)
        else:
            assert table.pop((start, end)) == tuple(rest)
    return table


@pytest.mark.parametrize("trigger", [EAGER, LATE_ONLY], ids=["early", "late"])
def test_sessions_that_grow_withdraw_the_windows_they_replace_in_accumulating_mode(trigger):
    sessions = source(key=("c",), window=tg.session("10 s"), trigger=trigger)
    with sessions.accumulating().aggregate(n=tg.count()).embedded(now=0) as op:
        op.add_messages(seconds(0))
        op.advance_watermark(11_000_000 if trigger is LATE_ONLY else 1)
        op.add_messages(seconds(5))
        op.advance_watermark(16_000_000)
        rows = list(dict.fromkeys(rows_of(op, "n")))
    assert rows == [("+", 0, 10, 1), ("-", 0, 10, 1), ("+", 0, 15, 2)]
    assert current(rows) == {(0, 15): (2,)}


def test_a_window_that_opens_again_continues_its_pane_numbers():
    """The ids of panes stay unique; the first pane of the new life is a first pane again."""
    last = tg.stream(key="c").inherit().trigger(EAGER).aggregate(n=tg.count()).embedded(now=0)
    panes = {
        "c": "x",
        "window_start": 0,
        "window_end": 10,
        "time": 9,
        "n": 1,
    }
    for op in "+-+-+":
        last.add_messages([{**panes, "op": op}])
    found = last.get_result().panes.to_pylist()
    assert [(p["op"], p["pane"], p["is_first"]) for p in found] == [
        ("+", 0, True),
        ("-", 0, True),
        ("+", 1, True),
        ("-", 1, True),
        ("+", 2, True),
    ]
    assert len({p["pane_id"] for p in found}) == len(found)
    last.add_messages([{**panes, "op": "-"}])
    assert last.stats()["windows"] == 0


def test_a_retraction_in_the_middle_of_a_session_splits_it():
    """A user's session that grows moves its row away, and the sessions of the city fall apart."""
    last = (
        tg.stream(time="time", key="c", watermark=tg.explicit())
        .window(tg.session("10 s"))
        .trigger(EAGER)
        .aggregate(n=tg.count(), users=tg.list_("u"))
        .embedded(now=0)
    )
    users = source(window=tg.session("1 s"), trigger=EAGER).aggregate(n=tg.count())
    with users.embedded(downstream=last, now=0) as op:
        for at, user in ((0, "a"), (8, "b"), (16, "d")):
            op.add_messages(seconds(at, u=user))
        assert current(rows_of(last, "n")) == {(0, 26): (3,)}
        last.flush()
        op.add_messages([{"ts": 8_900_000 + 900_000 * i, "c": "x", "u": "b"} for i in range(14)])
    rows = rows_of(last, "n")
    assert current([("+", 0, 26, 3), *rows]) == {(0, 10): (1,), (16, 31): (2,)}
    assert last.stats()["windows"] == 2


def sessions_of(times: list[int], gap: int) -> list[tuple[int, int, int]]:
    """Start, end and number of rows of the sessions of some times."""
    found: list[tuple[int, int, int]] = []
    for t in sorted(times):
        if found and t < found[-1][1]:
            start, end, n = found.pop()
            found.append((start, max(end, t + gap), n + 1))
        else:
            found.append((t, t + gap, 1))
    return found


@given(
    st.lists(
        st.tuples(st.integers(0, 60), st.sampled_from("ab"), st.sampled_from("xy")), max_size=20
    ),
    st.integers(1, 5),
    st.sampled_from(["accumulating", "discarding", "retracting"]),
    st.sampled_from(
        [EAGER, LATE_ONLY, tg.after_watermark(early=tg.after_count(2), late=tg.after_count(2))]
    ),
    st.sampled_from([EAGER, LATE_ONLY]),
)
@examples(30)
def test_oracle_sessions_of_sessions_end_in_the_answer_of_a_batch(events, cut, mode, first, second):
    last = (
        tg.stream(time="time", key="c", watermark=tg.explicit())
        .window(tg.session(9, unit="us"))
        .trigger(second)
        .allow_lateness(1000, unit="us")
        .retracting()
        .aggregate(n=tg.sum("n"), rows=tg.count())
        .embedded(now=0)
    )
    head = getattr(source(window=tg.session(5, unit="us"), trigger=first), mode)()
    rows = [{"ts": t, "c": c, "u": u} for t, u, c in events]
    with (
        head.allow_lateness(1000, unit="us")
        .aggregate(n=tg.count())
        .embedded(downstream=last, now=0) as op
    ):
        for at in range(0, len(rows), cut):
            op.add_messages(rows[at : at + cut])
            op.advance_watermark(max(r["ts"] for r in rows[: at + cut]) - 5)
        op.finish()
    result = last.get_result()
    assert result.late.num_rows == 0
    left: Counter[tuple[Any, ...]] = Counter()
    for p in result.panes.to_pylist():
        left[p["c"], p["window_start"], p["window_end"], p["n"], p["rows"]] += (
            1 if p["op"] == "+" else -1
        )
    wanted = []
    for c in "xy":
        ends = [
            (end - 1, n)
            for u in "ab"
            for _, end, n in sessions_of([t for t, v, w in events if (v, w) == (u, c)], 5)
        ]
        for start, end, n in sessions_of([t for t, _ in ends], 9):
            wanted.append((c, start, end, sum(m for t, m in ends if start <= t < end), n))
    assert {key: n for key, n in left.items() if n} == dict.fromkeys(wanted, 1)


# Lateness


@pytest.mark.parametrize("time", ["time", "window_start", "window_end", "newest"])
def test_no_change_of_the_upstream_is_late_downstream(time):
    """The downstream allows no lateness of its own, and takes all corrections of the upstream."""
    last = (
        tg.stream(time=time, key="c", watermark=tg.explicit())
        .window(tg.tumbling("5 s"))
        .trigger(LATE_ONLY)
        .allow_lateness(0)
        .options(drop_by="event")
        .retracting()
        .aggregate(n=tg.sum("n"))
        .embedded(now=0)
    )
    head = source(trigger=EAGER).allow_lateness("30 s")
    with head.aggregate(n=tg.count(), newest=tg.max("ts")).embedded(downstream=last, now=0) as op:
        for now, late in ((0, 1), (9, 3), (10, 4), (34, 5), (33, 9)):
            op.advance_watermark(now * 1_000_000)
            op.add_messages(seconds(late))
        op.advance_watermark(1_000_000_000)
        op.finish()
    rows = netted(rows_of(last, "n"))
    assert sum(row[2] for row in rows) == 5
    assert len(rows) == 1
    assert last.stats()["windows"] == 0


def test_lateness_adds_up_along_a_chain_that_is_connected_from_its_end():
    last = (
        tg.stream(time="window_start", key="c", watermark=tg.explicit())
        .window(tg.tumbling("1 s"))
        .allow_lateness(0)
        .aggregate(n=tg.sum("n"))
        .embedded(now=0)
    )
    middle = (
        tg.stream(time="time", key="c", watermark=tg.explicit())
        .window(tg.tumbling("20 s"))
        .allow_lateness("1 s")
        .aggregate(n=tg.sum("n"))
        .embedded(downstream=last, now=0)
    )
    assert last.spec.lateness == 21_000_000
    source(trigger=None).allow_lateness("30 s").aggregate(n=tg.count()).embedded(
        downstream=middle, now=0
    )
    assert middle.spec.lateness == 30_000_000
    assert last.spec.lateness == 50_000_000


# Refusals

CORRECTED = source(trigger=LATE_ONLY)
FINAL = source(trigger=tg.after_watermark())
ON_TIME = FINAL.allow_lateness(0)


def inherited(trigger: Any) -> tg.Windowed:
    return tg.stream(key="c").inherit().trigger(trigger)


def timed(window: Any = None, **stream: Any) -> tg.Windowed:
    return tg.stream(**{"time": "time", "key": "c", "watermark": tg.explicit(), **stream}).window(
        tg.tumbling("1 minute") if window is None else window
    )


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        (CORRECTED, inherited(tg.after_watermark()), "late=tg.after_count"),
        (FINAL, inherited(tg.after_watermark()), "allow_lateness(0)"),
        (FINAL, inherited(tg.after_count(1)), "tg.repeatedly"),
        (ON_TIME, inherited(tg.after_count(1)), "tg.repeatedly"),
        (
            ON_TIME,
            tg.stream(key="c").inherit().full_size(tg.after_count(2)).late_arrival(),
            "late_arrival()",
        ),
        (source(trigger=tg.never()), inherited(tg.after_watermark()), "allow_lateness(0)"),
        (
            ON_TIME,
            timed(time="window_start").trigger(tg.after_watermark()),
            "time='window_end'",
        ),
        (CORRECTED, tg.stream(key="c").inherit().late_arrival(), "late=tg.after_count"),
        (CORRECTED, inherited(tg.after_count(3)), "tg.repeatedly"),
        (source(trigger=EAGER), inherited(tg.after_count(3)), "tg.repeatedly"),
        (CORRECTED, inherited(tg.or_finally(tg.every_element(), tg.after_count(9))), "repeatedly"),
        (CORRECTED, timed(tg.tumbling("1 minute", axis="clock")), "event time"),
        (CORRECTED, timed(tg.tumbling(5, axis="ordinal")), "event time"),
        (CORRECTED, timed(tg.tumbling(5, axis="offset"), offset="pane"), "leave `offset` out"),
        (CORRECTED, timed(tg.sliding("1 minute")), "tg.hopping"),
        (CORRECTED, timed(id="n"), "id='pane_id'"),
        (CORRECTED, timed().evict(tg.evict_count(3)), "tg.evict_time"),
        (CORRECTED, timed().evict(tg.evict_delta("n", 3)), "tg.evict_time"),
        (CORRECTED, timed().evict(tg.evict_time("1 s", after=True)), "before the function"),
        (CORRECTED, timed(tg.session("1 minute")).discarding(), "accumulating"),
        (CORRECTED, timed(time="n"), "time='time'"),
        (source(window=tg.session("1 s")), timed(time="window_start"), "time='window_end'"),
        (
            source(window=tg.session("1 s")).options(timestamp="earliest"),
            timed(),
            "timestamp='end_of_window'",
        ),
        (CORRECTED.options(timestamp="earliest"), timed(), "tg.min('ts')"),
        (FINAL.options(timestamp="latest"), timed(), "tg.min('ts')"),
        (ON_TIME.options(timestamp="latest", drop_by="window"), timed(), "tg.min"),
        (source(window=tg.global_window()), timed(), "inherit them"),
        (source(window=tg.session("5 s"), trigger=tg.after_watermark()), inherited(EAGER), "late="),
        (source(window=tg.session("5 s"), trigger=tg.after_count(2)), timed(), "tg.repeatedly"),
        (
            source(
                window=tg.session("5 s", touch="merge"), trigger=tg.after_watermark()
            ).allow_lateness(0),
            inherited(EAGER),
            "late=tg.after_count",
        ),
        (source(window=tg.session("5 s")).options(drop_by="window"), timed(), "drop_by='event'"),
    ],
)
def test_a_chain_without_an_answer_is_refused_when_it_is_built(first, second, said):
    last = second.aggregate(n=tg.sum("n")).embedded(now=0)
    with pytest.raises(tg.SpecError, match="Hint") as refused:
        first.aggregate(n=tg.count()).embedded(downstream=last, now=0)
    assert said in str(refused.value)


@pytest.mark.parametrize("right", [CORRECTED, source(window=tg.session("5 s")), FINAL])
def test_an_as_of_join_needs_the_whole_key_of_panes_that_change(right):
    """Panes of one window have one time, and the last to arrive would count."""
    left = tg.stream(time="ts", watermark=tg.explicit())
    panes = tg.stream(time="time", watermark=tg.explicit())
    for on in (["c"], ["c", "u"]):
        port = left.join(panes, tg.as_of("1 minute"), on=on).embedded(now=0).port("right")
        if right is CORRECTED and on == ["c"]:
            with pytest.raises(tg.SpecError, match="name `u` in `on`"):
                right.aggregate(n=tg.count()).embedded(downstream=port, now=0)
        else:
            right.aggregate(n=tg.count()).embedded(downstream=port, now=0)


def test_discarding_behind_changes_is_refused_for_other_aggregates_than_counts_and_sums():
    last = timed().discarding().aggregate(n=tg.max("n")).embedded(now=0)
    with pytest.raises(tg.SpecError, match="only counts and sums do"):
        CORRECTED.aggregate(n=tg.count()).embedded(downstream=last, now=0)
    FINAL.aggregate(n=tg.count()).embedded(downstream=last, now=0)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (ON_TIME, inherited(tg.after_watermark())),
        (ON_TIME, timed(time="window_end").trigger(tg.after_watermark())),
        (source(trigger=tg.never()).allow_lateness(0), inherited(tg.after_watermark())),
        (
            source(trigger=tg.after_watermark(early=tg.every_element())).allow_lateness(0),
            inherited(tg.after_watermark()),
        ),
        (FINAL, inherited(LATE_ONLY)),
        (FINAL, tg.stream(key="c").inherit().full_size(tg.after_count(2))),
        (FINAL, timed(tg.tumbling(5, axis="ordinal"))),
        (FINAL, timed(tg.sliding("1 minute"))),
        (FINAL, timed(id="n")),
        (CORRECTED, timed(id="pane_id")),
        (CORRECTED, inherited(tg.repeatedly(tg.after_count(3)))),
        (CORRECTED, inherited(tg.never())),
        (source(window=tg.global_window()), inherited(EAGER)),
        (ON_TIME.options(timestamp="earliest"), timed()),
        (CORRECTED.options(timestamp="earliest"), timed(time="window_start")),
        (CORRECTED.options(timestamp="earliest"), inherited(LATE_ONLY)),
        (CORRECTED, timed().evict(tg.evict_time("1 s"))),
        (
            source(window=tg.session("5 s"), trigger=tg.after_watermark()).allow_lateness(0),
            inherited(tg.after_watermark()),
        ),
        # The sessions of the second get no late row, whatever lateness they allow.
        (ON_TIME, timed(tg.session("5 s"), time="window_end").trigger(tg.after_watermark())),
    ],
)
def test_a_chain_with_an_answer_is_accepted(first, second):
    last = second.aggregate(n=tg.sum("n")).embedded(now=0)
    with first.aggregate(n=tg.count()).embedded(downstream=last, now=0) as op:
        op.add_messages(seconds(1, 2))
        op.add_messages(seconds(3, u="b"))
        op.finish()
    assert last.get_result().panes.num_rows > 0


def test_a_window_that_a_late_event_opens_reaches_the_end_of_a_chain():
    """Its first pane comes after the window of the next operator has closed or has had its pane."""
    last = inherited(LATE_ONLY).retracting().aggregate(n=tg.sum("n")).embedded(now=0)
    with FINAL.aggregate(n=tg.count()).embedded(downstream=last, now=0) as op:
        op.add_messages(seconds(1))
        op.advance_watermark(10_000_000)
        op.add_messages(seconds(2, u="b"))
        op.finish()
    assert netted(rows_of(last, "n")) == {(0, 10, 2)}


def test_an_event_at_the_end_of_a_session_extends_it_as_long_as_it_may_come():
    """It is not too late, and a batch has it in that session."""
    last = inherited(EAGER).retracting().aggregate(n=tg.sum("n")).embedded(now=0)
    sessions = source(window=tg.session("3 s", touch="merge"), trigger=EAGER).allow_lateness("5 s")
    with sessions.aggregate(n=tg.count()).embedded(downstream=last, now=0) as op:
        op.add_messages(seconds(1))
        op.advance_watermark(9_000_000)
        op.add_messages(seconds(4))
        op.advance_watermark(9_000_001)
        op.add_messages(seconds(10))
        op.advance_watermark(18_000_001)
        op.add_messages(seconds(13))
        op.finish()
        assert [row["reason"] for row in op.get_result().late.to_pylist()] == ["very_late"]
    assert netted(rows_of(last, "n")) == {(1, 7, 2), (10, 13, 1)}


def test_an_event_at_the_time_of_an_event_without_a_gap_joins_its_session():
    """The watermark has reached the end of the first session, and the second event is not late."""
    last = inherited(EAGER).retracting().aggregate(n=tg.sum("n")).embedded(now=0)
    sessions = source(window=tg.session(gap_column="gap"), trigger=EAGER).allow_lateness(0)
    with sessions.aggregate(n=tg.count()).embedded(downstream=last, now=0) as op:
        op.add_messages([{**row, "gap": 0} for row in seconds(4)])
        op.advance_watermark(4_000_000)
        op.add_messages([{**row, "gap": 2_000_000} for row in seconds(4)])
        op.finish()
        assert not op.get_result().late.num_rows
    assert netted(rows_of(last, "n")) == {(4, 6, 2)}


def test_the_last_time_of_a_session_is_a_time_for_the_next_operator():
    """It lies a gap before the end of the session, which bounds how late its changes come."""
    sessions = source(window=tg.session("5 s"), trigger=EAGER).allow_lateness("4 s")
    last = timed(time="last", watermark=tg.explicit()).trigger(EAGER).retracting()
    last = last.aggregate(n=tg.sum("n")).embedded(now=0)
    panes = sessions.aggregate(n=tg.count(), last=tg.max("ts"))
    with panes.embedded(downstream=last, now=0) as op:
        op.add_messages(seconds(1, 4))
        op.advance_watermark(12_000_000)
        op.add_messages(seconds(8))
        op.finish()
    assert netted(rows_of(last, "n")) == {(0, 60, 3)}
    with pytest.raises(tg.SpecError, match="no time of its windows"):
        sessions.aggregate(last=tg.max("ts", where="u")).embedded(downstream=last)


def test_sessions_that_retention_keeps_are_divided_by_retractions():
    """A session of panes is shortened when the session of events that it ends with grows."""
    last = tg.stream(time="time", key="c", watermark=tg.explicit()).window(tg.session("12 s"))
    last = last.trigger(EAGER).retracting().retain(windows=100).aggregate(n=tg.count())
    end = last.embedded(now=0)
    panes = source(window=tg.session("5 s"), trigger=EAGER).aggregate(n=tg.count())
    with panes.embedded(downstream=end, now=0) as op:
        op.add_messages(seconds(0))
        op.add_messages(seconds(10))
        op.add_messages(seconds(4, 8))
        op.finish()
    assert netted(rows_of(end, "n")) == {(14, 26, 1)}


@pytest.mark.parametrize("touch", ["separate", "merge"])
@pytest.mark.parametrize("how", ["inner", "full"])
def test_a_session_join_feeds_windows_on_its_time(how, touch):
    """A late row brings rows together that are far before the watermark."""
    second, at = 10**6, "left_ts" if how == "full" else "right_ts"
    last = (
        tg.stream(time=at, watermark=tg.explicit())
        .window(tg.tumbling("5 s"))
        .trigger(EAGER)
        .retracting()
        .aggregate(n=tg.count())
        .embedded(now=0)
    )
    side = tg.stream(time="ts", key="c", watermark=tg.explicit())
    joined = side.join(side, tg.session("4 s", touch=touch), how=how).allow_lateness("6 s")
    with joined.embedded(downstream=last, now=0) as op:
        op.add(left=seconds(1, 4), right=seconds(9))
        for mark in (11, 12):
            for side_name in ("left", "right"):
                op.advance_watermark(mark * second, input=side_name)
        op.add(right=seconds(7))
        op.add(left=seconds(6))
        op.finish()
    # All rows are in one session: three left rows meet two right ones.
    rows = [(r[0], r[2]) for r in sorted(netted(rows_of(last, "n")))]
    assert rows == ([(0, 4), (5, 2)] if how == "full" else [(5, 6)])


# Discarding


def test_discarding_at_the_end_of_a_chain_shows_the_changes_of_sums():
    """A user's session moves to another window: the first window gives back what it had shown."""
    last = (
        tg.stream(time="time", key="c", watermark=tg.explicit())
        .window(tg.tumbling("10 s"))
        .trigger(EAGER)
        .discarding()
        .aggregate(n=tg.sum("n"), sessions=tg.count())
        .embedded(now=0)
    )
    sessions = source(window=tg.session("3 s"), trigger=EAGER)
    with sessions.aggregate(n=tg.count()).embedded(downstream=last, now=0) as op:
        for at in (1, 3, 5, 7, 9):
            op.add_messages(seconds(at))
        op.finish()
    totals: dict[int, list[int]] = {}
    for op_, start, _, n, count in rows_of(last, "n", "sessions"):
        assert op_ == "+"
        total = totals.setdefault(start, [0, 0])
        total[0] += n or 0  # null where nothing has changed
        total[1] += count
    assert totals == {0: [0, 0], 10: [5, 1]}
    assert last.stats()["windows"] == 0


def test_a_sum_of_floats_cannot_be_discarded_behind_changes():
    last = timed().discarding().aggregate(n=tg.sum("n")).embedded(now=0)
    rows = [{**row, "v": 0.5} for row in seconds(1)]
    op = CORRECTED.aggregate(n=tg.sum("v")).embedded(downstream=last, now=0)
    with pytest.raises(tg.SpecError, match="floats"):
        op.add_messages(rows)


# Exactness


def test_aggregates_of_floats_are_exact_under_retractions():
    """A sum that forgets a small number beside a large one remembers it when that is retracted."""
    last = (
        tg.stream(key="c")
        .inherit()
        .trigger(EAGER)
        .aggregate(total=tg.sum("v"), mean=tg.mean("v"), spread=tg.stddev("v"))
        .embedded(now=0)
    )
    with source(trigger=EAGER).aggregate(v=tg.last("v")).embedded(downstream=last, now=0) as op:
        for user, value in (("a", 1.0), ("b", 1e300), ("d", float("inf")), ("b", 2.0), ("d", 3.0)):
            op.add_messages([{"ts": 1, "c": "x", "u": user, "v": value}])
        op.finish()
    last_pane = last.get_result().panes.to_pylist()[-1]
    assert (last_pane["total"], last_pane["mean"], last_pane["spread"]) == (6.0, 2.0, 1.0)


def test_an_upstream_without_lateness_corrects_nothing_after_the_end_of_its_windows():
    last = (
        tg.stream(time="time", key="c")
        .window(tg.tumbling("20 s"))
        .trigger(tg.after_watermark())
        .aggregate(n=tg.sum("n"))
        .embedded(now=0)
    )
    op = source(trigger=EAGER).allow_lateness("0 s").aggregate(n=tg.count())
    with op.embedded(downstream=last, now=0) as first:
        first.add_messages(seconds(1, 2, 12))
        first.advance_watermark(20_000_000)
        first.add_messages(seconds(3))
        assert [row["reason"] for row in first.get_result().late.to_pylist()] == ["very_late"]
    assert rows_of(last, "n") == [("+", 0, 20, 3)]


def test_inherited_windows_without_an_end_have_no_time_for_windows_or_joins():
    endless = source(window=tg.global_window()).aggregate(n=tg.count())
    inherited = tg.stream(endless, key="c").inherit().aggregate(n=tg.sum("n"))
    with pytest.raises(tg.SpecError, match=r"its windows have no end\. Hint"):
        tg.stream(inherited, time="time", key="c").window(tg.tumbling("1 min")).aggregate(
            n=tg.sum("n")
        )

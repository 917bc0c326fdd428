"""Chains: a downstream operator inherits the windows of its upstream's panes and retractions."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tidegate as tg

EAGER = tg.after_watermark(early=tg.after_count(1), late=tg.after_count(1))


def upstream(trigger: Any = EAGER, lateness: int = 100, **stream: Any) -> tg.Windowed:
    keyed = tg.stream(time="ts", key=["city", "user"], watermark=tg.explicit(), **stream)
    windowed = (
        keyed.window(tg.tumbling(10, unit="us")).allow_lateness(lateness, unit="us").retracting()
    )
    return windowed if trigger is None else windowed.trigger(trigger)


def linked(first: tg.Panes, second: tg.Panes) -> tuple[tg.EmbeddedOperator, tg.EmbeddedOperator]:
    last = second.embedded(now=0)
    return first.embedded(downstream=last, now=0), last


def row(ts: int, user: str = "a", city: str = "X", v: int = 1) -> dict[str, Any]:
    return {"ts": ts, "city": city, "user": user, "v": v}


def taken(operator: tg.EmbeddedOperator) -> list[dict[str, Any]]:
    result = operator.get_result()
    assert result.late.num_rows == 0
    operator.flush()
    return result.panes.to_pylist()


def net(panes: list[dict[str, Any]], *names: str) -> dict[tuple[Any, ...], Any]:
    """Emitted minus retracted rows; at most one row remains per key and window."""
    left: Counter[tuple[Any, ...]] = Counter()
    for pane in panes:
        left[
            (
                pane["city"],
                pane["window_start"],
                pane["window_end"],
                *(pane[name] for name in names),
            )
        ] += 1 if pane["op"] == "+" else -1
    assert set((+left).values()) <= {1}
    assert not -left
    return {key[:3]: key[3:] for key in +left}


def last(panes: list[dict[str, Any]], *names: str) -> dict[tuple[Any, ...], Any]:
    """The last emitted pane of each window."""
    return {
        (p["city"], p["window_start"], p["window_end"]): tuple(p[n] for n in names)
        for p in panes
        if p["op"] == "+"
    }


def test_a_downstream_without_a_window_inherits_those_of_the_panes():
    first, second = linked(
        upstream(tg.after_watermark()).aggregate(total=tg.sum("v")),
        tg.stream(key="city").aggregate(total=tg.sum("total"), users=tg.count()),
    )
    first.add_messages([row(1), row(2, "b", v=5), row(3, "b", "Y", v=7), row(15, "c", v=9)])
    first.advance_watermark(20)
    panes = taken(second)
    assert last(panes, "total", "users") == {
        ("X", 0, 10): (6, 2),
        ("Y", 0, 10): (7, 1),
        ("X", 10, 20): (9, 1),
    }
    assert {p["timing"] for p in panes} == {"on_time"}


def test_a_downstream_may_have_no_key_at_all():
    first, second = linked(
        upstream(tg.after_watermark()).aggregate(total=tg.sum("v")),
        tg.stream().aggregate(total=tg.sum("total")),
    )
    first.add_messages([row(1), row(2, "b", "Y", v=5)])
    first.advance_watermark(10)
    assert [p["total"] for p in taken(second)] == [6]


def test_the_end_of_input_goes_through_the_chain():
    first, second = linked(
        upstream().aggregate(total=tg.sum("v")),
        tg.stream(key="city").aggregate(total=tg.sum("total")),
    )
    first.add_messages([row(1), row(2)])
    first.finish()
    assert last(taken(second), "total") == {("X", 0, 10): (2,)}
    assert second.stats()["windows"] == 0


INVERTIBLE = {"total": tg.sum("total"), "users": tg.count(), "mean": tg.mean("total")}
OTHERS = {
    "best": tg.max("total"),
    "least": tg.min("total"),
    "middle": tg.median("total"),
    "all": tg.list_("total"),
}


def batch(rows: list[dict[str, Any]]) -> dict[tuple[Any, ...], list[int]]:
    """The sorted totals of the users, by city and window."""
    totals: Counter[tuple[Any, ...]] = Counter()
    for r in rows:
        start = r["ts"] // 10 * 10
        totals[r["city"], start, start + 10, r["user"]] += r["v"]
    found: dict[tuple[Any, ...], list[int]] = {}
    for (city, start, end, _), total in totals.items():
        found.setdefault((city, start, end), []).append(total)
    return {key: sorted(values) for key, values in found.items()}


def test_retractions_leave_the_truth_in_invertible_aggregates():
    first, second = linked(
        upstream().aggregate(total=tg.sum("v")),
        tg.stream(key="city").inherit().retracting().aggregate(**INVERTIBLE),
    )
    rows = [row(1), row(2, v=4), row(3, "b", v=10), row(4, v=-3), row(12, "b", v=2)]
    for r in rows:
        first.add_messages([r])
    first.advance_watermark(10)
    first.add_messages([row(5, "b", v=100)])
    first.finish()
    assert net(taken(second), "total", "users") == {("X", 0, 10): (112, 2), ("X", 10, 20): (2, 1)}


def test_retractions_leave_the_truth_in_aggregates_that_cannot_subtract():
    """A retracted maximum is not the maximum any more."""
    first, second = linked(
        upstream().aggregate(total=tg.sum("v")),
        tg.stream(key="city").inherit().retracting().aggregate(**OTHERS),
    )
    first.add_messages([row(1, v=50), row(2, "b", v=7), row(3, v=-48)])
    first.advance_watermark(10)
    panes = taken(second)
    assert net(
        [{**p, "all": tuple(sorted(p["all"]))} for p in panes], "best", "least", "middle", "all"
    ) == {("X", 0, 10): (7, 2, 4.5, (2, 7))}


def test_a_retraction_of_equal_panes_takes_one_of_them_back():
    """Two users have the same total; a correction of one does not change the other."""
    first, second = linked(
        upstream(None)
        .trigger(tg.after_watermark(late=tg.after_count(1)))
        .aggregate(total=tg.sum("v")),
        tg.stream(key="city").inherit().aggregate(best=tg.max("total"), n=tg.count()),
    )
    first.add_messages([row(1, "a", v=5), row(1, "b", v=5)])
    first.advance_watermark(10)
    first.add_messages([row(1, "a", v=-4)])
    first.finish()
    assert last(taken(second), "best", "n") == {("X", 0, 10): (5, 2)}


def test_a_window_whose_panes_were_all_taken_back_counts_nothing():
    """A session that grows replaces its window: nothing is left downstream in the old bounds."""
    sessions = (
        tg.stream(time="ts", key=["city", "user"], watermark=tg.explicit())
        .window(tg.session(5, unit="us"))
        .allow_lateness(50, unit="us")
    )
    first, second = linked(
        sessions.retracting().trigger(EAGER).aggregate(total=tg.sum("v")),
        tg.stream(key="city")
        .inherit()
        .retracting()
        .aggregate(total=tg.sum("total"), best=tg.max("total"), n=tg.count()),
    )
    for ts in (1, 4, 8):
        first.add_messages([row(ts)])
    first.finish()
    panes = [p for p in taken(second) if p["n"] or p["op"] == "-"]
    assert {key: value for key, value in net(panes, "total", "best", "n").items() if value[2]} == {
        ("X", 1, 13): (3, 3, 1)
    }


@given(
    st.lists(
        st.tuples(
            st.integers(0, 29), st.sampled_from("ab"), st.sampled_from("XY"), st.integers(-3, 3)
        ),
        min_size=1,
        max_size=25,
    ),
    st.integers(1, 4),
    st.sampled_from(["accumulating", "retracting"]),
    st.booleans(),
)
def test_oracle_a_chain_ends_in_the_answer_of_a_batch(events, cut, mode, use_messages):
    """Random traffic through a retracting upstream that fires for every element."""
    aggregates = OTHERS if use_messages else INVERTIBLE
    second = getattr(tg.stream(key="city").inherit(), mode)().aggregate(**aggregates)
    first, final = linked(upstream(lateness=1000).aggregate(total=tg.sum("v")), second)
    rows = [row(ts, user, city, v) for ts, user, city, v in events]
    for at in range(0, len(rows), cut):
        first.add_messages(rows[at : at + cut])
        first.advance_watermark(max(r["ts"] for r in rows[: at + cut]) - 5)
    first.finish()
    panes = taken(final)
    names = list(aggregates)
    found = (
        last(panes, *names)
        if mode == "accumulating"
        else net([{**p, "all": tuple(p.get("all") or ())} for p in panes], *names)
    )
    wanted = batch(rows)
    assert set(found) == set(wanted)
    for key, totals in wanted.items():
        values = dict(zip(names, found[key], strict=True))
        if use_messages:
            assert (values["best"], values["least"], sorted(values["all"])) == (
                max(totals),
                min(totals),
                totals,
            )
        else:
            assert (values["total"], values["users"]) == (sum(totals), len(totals))


def test_panes_with_inherited_windows_are_never_late_downstream():
    first, second = linked(
        upstream().aggregate(total=tg.sum("v")),
        tg.stream(key="city").aggregate(total=tg.sum("total")),
    )
    first.add_messages([row(1)])
    first.advance_watermark(100)
    first.add_messages([row(2)])
    first.add_messages([row(3)])
    first.finish()
    result = second.get_result()
    assert result.late.to_pylist() == []
    assert last(result.panes.to_pylist(), "total") == {("X", 0, 10): (3,)}


def test_the_downstream_keeps_windows_as_long_as_the_upstream_corrects_them():
    first, second = linked(
        upstream(lateness=10_000_000_000).aggregate(total=tg.sum("v")),
        tg.stream(key="city").aggregate(total=tg.sum("total")),
    )
    first.add_messages([row(1)])
    first.advance_watermark(9_000_000_000)
    first.add_messages([row(2)])
    first.finish()
    assert last(taken(second), "total") == {("X", 0, 10): (2,)}


def test_the_downstream_is_not_told_more_than_the_upstream_has_delivered():
    first, second = linked(
        upstream(None).aggregate(total=tg.sum("v")),
        tg.stream(key="city").aggregate(total=tg.sum("total")),
    )
    first.add_messages([row(1)])
    first.advance_watermark(5)
    assert (second.watermark or 0) <= 5
    first.advance_watermark(10)
    assert second.watermark == 10
    assert last(taken(second), "total") == {("X", 0, 10): (1,)}


def test_late_batches_of_the_upstream_hold_the_downstream_open():
    """The downstream keeps the window open until the clock fires the upstream's correction."""
    first, second = linked(
        upstream(None, lateness=20).aggregate(total=tg.sum("v")),
        tg.stream(key="city").aggregate(total=tg.sum("total")),
    )
    first.add_messages([row(1)])
    first.advance_watermark(12)
    first.add_messages([row(2, v=5)])
    first.advance_watermark(29)
    first.timeout(60_000_000)
    first.timeout(120_000_000)
    first.finish()
    assert last(taken(second), "total") == {("X", 0, 10): (6,)}


def test_a_window_without_ends_can_be_inherited():
    first, second = linked(
        tg.stream(time="ts", key=["city", "user"], watermark=tg.explicit())
        .window(tg.global_window())
        .trigger(tg.repeatedly(tg.after_count(1)))
        .retracting()
        .aggregate(total=tg.sum("v")),
        tg.stream(key="city")
        .inherit()
        .trigger(tg.repeatedly(tg.after_count(1)))
        .retracting()
        .aggregate(best=tg.max("total")),
    )
    first.add_messages([row(1, v=5), row(2, "b", v=3), row(3, v=-4)])
    first.finish()
    assert net(taken(second), "best") == {("X", None, None): (3,)}


def test_timestamps_go_through_a_chain():
    first, second = linked(
        tg.stream(time="ts", key=["city", "user"], watermark=tg.explicit())
        .window(tg.tumbling("1 minute"))
        .aggregate(total=tg.sum("v")),
        tg.stream(key="city").aggregate(total=tg.sum("total")),
    )
    first.add_messages(
        [{**row(0), "ts": "2024-02-29T23:59:59Z"}, {**row(0, "b"), "ts": "2024-02-29T23:59:01Z"}]
    )
    first.finish()
    [pane] = taken(second)
    assert (str(pane["window_start"]), str(pane["window_end"]), pane["total"]) == (
        "2024-02-29 23:59:00+00:00",
        "2024-03-01 00:00:00+00:00",
        2,
    )


def test_three_in_a_row():
    middle = (
        tg.stream(key="city")
        .inherit()
        .retracting()
        .trigger(EAGER)
        .aggregate(total=tg.sum("total"), best=tg.max("total"))
    )
    end = tg.stream().inherit().retracting().aggregate(total=tg.sum("total"), best=tg.max("best"))
    third = end.embedded(now=0)
    second = middle.embedded(downstream=third, now=0)
    first = upstream().aggregate(total=tg.sum("v")).embedded(downstream=second, now=0)
    first.add_messages([row(1, v=9), row(2, "b", "Y", v=4), row(3, v=-8), row(4, "b", "X", v=2)])
    first.finish()
    panes = [{**p, "city": None} for p in taken(third)]
    assert net(panes, "total", "best") == {(None, 0, 10): (7, 4)}


def test_a_chain_whose_end_refuses_holds_the_first_operator_back():
    accept: list[bool] = [False]
    got: list[dict[str, Any]] = []

    def sink(results: tg.Results) -> bool:
        if accept[0]:
            got.extend(results.panes.to_pylist())
        return accept[0]

    second = (
        tg.stream(key="city")
        .inherit()
        .trigger(EAGER)
        .aggregate(total=tg.sum("total"))
        .embedded(downstream=sink, now=0)
    )
    first = upstream().aggregate(total=tg.sum("v")).embedded(downstream=second, now=0)
    first.add_messages([row(1)])
    assert second.is_refusing
    first.add_messages([row(2, "b")])
    with pytest.raises(tg.BackpressureError):
        first.add_messages([row(3)])
    accept[0] = True
    for now in range(1, 5):
        first.timeout(now)
    first.add_messages([row(3)])
    first.finish()
    for now in range(5, 9):
        first.timeout(now)
    assert last(got, "total") == {("X", 0, 10): (3,)}
    assert second.stats()["windows"] == 0


def test_a_finish_that_the_end_refuses_is_finished_by_timeout():
    accept: list[bool] = [True]
    got: list[dict[str, Any]] = []

    def sink(results: tg.Results) -> bool:
        if accept[0]:
            got.extend(results.panes.to_pylist())
        return accept[0]

    second = tg.stream(key="city").aggregate(total=tg.sum("total")).embedded(downstream=sink, now=0)
    first = upstream(None).aggregate(total=tg.sum("v")).embedded(downstream=second, now=0)
    first.add_messages([row(1), row(21), row(31)])
    accept[0] = False
    first.finish()
    accept[0] = True
    for now in range(1, 6):
        first.timeout(now)
    assert last(got, "total") == {("X", start, start + 10): (1,) for start in (0, 20, 30)}
    assert second.stats()["windows"] == 0


def test_a_downstream_is_on_record_before_its_upstream_says_delivered():
    """A crash between both commits may repeat panes, but loses none."""

    class Noting(tg.MemoryStore):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

        def commit(self) -> None:
            order.append(self.name)
            super().commit()

    order: list[str] = []
    second = (
        tg.stream(key="city")
        .aggregate(total=tg.sum("total"))
        .embedded(store=Noting("second"), now=0)
    )
    first = (
        upstream(None)
        .aggregate(total=tg.sum("v"))
        .embedded(store=Noting("first"), downstream=second, now=0)
    )
    first.add_messages([row(1)])
    order.clear()
    first.advance_watermark(10)
    assert order, "accepted output is flushed"
    assert order.index("second") < order.index("first")
    order.clear()
    first.flush()
    assert order.index("second") < order.index("first")


def test_panes_that_come_again_are_recognised_by_their_id():
    second = (
        tg.stream(key="city", id="pane_id")
        .inherit()
        .retracting()
        .aggregate(total=tg.sum("total"), best=tg.max("total"))
        .embedded(now=0)
    )
    first = upstream().aggregate(total=tg.sum("v")).embedded(now=0)
    for v in (5, -3):
        first.add_messages([row(1, v=v)])
    panes = first.get_result().panes
    for delivery in (panes, panes.slice(1), panes):
        second.add_messages(delivery)
    second.finish()
    assert net(taken(second), "total", "best") == {("X", 0, 10): (2, 2)}


def test_panes_fetched_from_one_operator_may_be_given_to_the_next_by_hand():
    second = tg.stream(key="city").inherit().retracting().aggregate(best=tg.max("total"))
    by_hand, linked_last = second.embedded(now=0), second.embedded(now=0)
    alone = upstream().aggregate(total=tg.sum("v")).embedded(now=0)
    first = upstream().aggregate(total=tg.sum("v")).embedded(downstream=linked_last, now=0)
    for r in [row(1, v=5), row(2, v=-3), row(3, "b", v=4)]:
        alone.add_messages([r])
        by_hand.add_messages(alone.get_result().panes)
        alone.flush()
        first.add_messages([r])
    first.advance_watermark(10)
    by_hand.advance_watermark(10)
    assert net(taken(by_hand), "best") == net(taken(linked_last), "best") == {("X", 0, 10): (4,)}


def test_a_downstream_with_a_window_of_its_own_takes_retractions_for_what_they_are():
    """Emitted minus retracted rows are correct, whatever windows follow."""
    hourly = tg.stream(time="time", key="city", watermark=tg.explicit()).window(
        tg.tumbling(100, unit="us")
    )
    first, second = linked(
        upstream().aggregate(total=tg.sum("v")), hourly.aggregate(total=tg.sum("total"))
    )
    for r in [row(1), row(2, v=4), row(15, v=10)]:
        first.add_messages([r])
    first.finish()
    assert last(taken(second), "total") == {("X", 0, 100): (15,)}


def test_panes_of_overlapping_windows_stay_apart_where_messages_are_kept():
    """The time of a pane lies in other windows too, but it belongs to its own window only."""
    tail = tg.stream(key="c").aggregate(n=tg.sum("n"), most=tg.max("n")).embedded(now=0)
    head = (
        tg.stream(time="ts", key=["c", "u"], watermark=tg.explicit())
        .window(tg.hopping("10 us", "5 us"))
        .aggregate(n=tg.count())
    )
    op = head.embedded(now=0, downstream=tail)
    op.add_messages(
        [{"ts": t, "c": "x", "u": u} for t, u in ((1, "p"), (4, "p"), (2, "q"), (6, "q"))]
    )
    op.finish()
    found = [(p["window_start"], p["n"], p["most"]) for p in tail.get_result().panes.to_pylist()]
    assert found == [(-5, 3, 2), (0, 4, 2), (5, 1, 1)]


def test_a_chain_goes_on_after_a_restart():
    """The downstream restores that it takes retractions, and the lateness of its upstream."""
    stores = tg.MemoryStore(), tg.MemoryStore()
    head = (
        tg.stream(time="ts", key="u", watermark=tg.explicit())
        .window(tg.tumbling("10 us"))
        .trigger(tg.repeatedly(tg.after_count(1)))
    )
    head = head.allow_lateness("5 minutes").retracting().aggregate(n=tg.count())
    inherited = tg.stream().aggregate(total=tg.sum("n"))

    def opened() -> tuple[tg.EmbeddedOperator, tg.EmbeddedOperator]:
        tail = inherited.embedded(store=stores[1], now=0)
        return head.embedded(store=stores[0], now=0, downstream=tail), tail

    op, _ = opened()
    op.add_messages([{"ts": 1, "u": "a"}])
    op.flush()
    op, tail = opened()
    op.add_messages([{"ts": 2, "u": "a"}])
    op.finish()
    assert tail.get_result().panes.to_pylist()[-1]["total"] == 2


def test_late_rows_of_an_upstream_stay_to_be_fetched(tmp_path):
    """A downstream operator takes panes; late rows of the upstream stay available."""
    panes = upstream(tg.after_watermark(), lateness=0).aggregate(n=tg.count())
    first = panes.embedded(
        downstream=tg.stream(key="city").aggregate(n=tg.sum("n")).embedded(now=0),
        store=tg.MemoryStore(tmp_path / "first"),
        now=0,
    )
    first.advance_watermark(50)
    first.add_messages([row(1), row(60)])
    first.advance_watermark(100)
    assert first.get_result().late["reason"].to_pylist() == ["very_late"]
    first.close()
    again = panes.embedded(
        downstream=tg.stream(key="city").aggregate(n=tg.sum("n")).embedded(now=0),
        store=tg.MemoryStore(tmp_path / "first"),
        now=0,
    )
    assert again.get_result().late["ts"].to_pylist() == [1]
    again.flush()
    assert again.get_result().late.num_rows == 0


def test_a_window_may_feed_an_async_map_that_feeds_a_window():
    async def named(pane: dict[str, Any]) -> dict[str, Any]:
        return {**pane, "country": {"X": "FR"}.get(pane["city"], "?")}

    countries = tg.stream(time="time", key="country", watermark=tg.explicit()).window(
        tg.tumbling(20, unit="us")
    )
    by_country = countries.aggregate(n=tg.sum("n")).embedded(now=0)
    enrich = (
        tg.stream(time="time", watermark=tg.explicit())
        .async_map(named)
        .embedded(downstream=by_country, now=0)
    )
    first = (
        upstream().aggregate(n=tg.count()).embedded(downstream=enrich, now=0)
    )  # early panes, each retracted by the next
    first.add_messages([row(1), row(2, "b"), row(3, "b"), row(13, "c"), row(14, "c", "Y")])
    first.advance_watermark(40)
    first.finish()
    found = [
        (p["country"], p["window_start"], p["window_end"], p["n"])
        for p in by_country.get_result().panes.to_pylist()
    ]
    assert sorted(found) == [("?", 0, 20, 1), ("FR", 0, 20, 4)]
    assert by_country.get_result().late.num_rows == 0
    enrich.close()


def test_retractions_are_not_given_to_an_async_map_that_may_reorder_them():
    async def same(pane: dict[str, Any]) -> dict[str, Any]:
        return pane

    unordered = (
        tg.stream(time="time", watermark=tg.explicit())
        .async_map(same, ordered=False)
        .embedded(now=0)
    )
    with pytest.raises(tg.SpecError, match="retract"):
        upstream().aggregate(n=tg.count()).embedded(downstream=unordered, now=0)


def test_an_operator_that_is_fed_takes_the_watermark_of_its_upstream_and_makes_none():
    async def same(message: dict[str, Any]) -> dict[str, Any]:
        return message

    counts = (
        tg.stream(time="ts")
        .window(tg.tumbling(10, unit="us"))
        .allow_lateness(0)
        .aggregate(n=tg.count())
        .embedded(now=0)
    )
    mapped = (
        tg.stream(time="ts", watermark=tg.bounded(100, unit="us"))
        .async_map(same)
        .embedded(downstream=counts, now=0)
    )
    with mapped:
        for ts in (150, 60, 55):  # none is late at the input: the watermark is 50
            mapped.add_message({"ts": ts})
        mapped.finish()
    assert counts.get_result().late.num_rows == 0
    assert sorted(counts.get_result().panes["n"].to_pylist()) == [1, 1, 1]


def test_a_watermark_of_its_own_is_refused_where_an_upstream_tells_it():
    async def same(message: dict[str, Any]) -> dict[str, Any]:
        return message

    counts = (
        tg.stream(time="ts", watermark=tg.bounded(1, unit="us"))
        .window(tg.tumbling(10, unit="us"))
        .aggregate(n=tg.count())
    )
    with pytest.raises(tg.SpecError, match="the upstream provides the watermark"):
        tg.stream(time="ts").async_map(same).embedded(downstream=counts.embedded(now=0), now=0)
    late = (
        tg.stream(time="time", watermark=tg.lagging("1 s"))
        .window(tg.tumbling(10, unit="us"))
        .aggregate(n=tg.count())
    )
    with pytest.raises(tg.SpecError, match="the upstream provides the watermark"):
        upstream().aggregate(n=tg.count()).embedded(downstream=late.embedded(now=0), now=0)


def test_a_downstream_is_told_the_clock_with_the_panes():
    second = (
        tg.stream(time="time", watermark=tg.explicit())
        .window(tg.tumbling("1 hour"))
        .options(future="reject")
        .aggregate(n=tg.count())
    )
    last = second.embedded(now=0)
    minutes = (
        tg.stream(time="ts", watermark=tg.bounded("1 second"))
        .window(tg.tumbling("1 minute"))
        .aggregate(n=tg.count())
    )
    first = minutes.embedded(now=0, downstream=last)
    for minute in range(10):
        instant = minute * 60_000_000
        first.add_messages([{"ts": instant}], now=instant)
    first.finish()
    assert (last.stats()["future"], last.stats()["late_by_reason"]) == (0, {})
    assert last.get_result().panes["n"].to_pylist() == [10]


def test_panes_reach_the_downstream_when_the_same_delivery_has_late_rows():
    second = (
        tg.stream(time="time").window(tg.tumbling("20 us")).aggregate(n=tg.sum("n")).embedded(now=0)
    )
    first = (
        tg.stream(time="t", watermark=tg.bounded("0 us"))
        .window(tg.tumbling("10 us"))
        .trigger(tg.after_watermark())
        .allow_lateness("0 us")
        .aggregate(n=tg.count())
        .embedded(downstream=second, now=0)
    )
    first.add_messages([{"t": 25}, {"t": 26}])
    first.add_messages([{"t": 3}, {"t": 35}])
    first.finish()
    assert [row["t"] for row in first.get_result().late.to_pylist()] == [3]
    assert [row["n"] for row in second.get_result().panes.to_pylist()] == [3]


def test_discarded_sums_behind_changes_hold_the_difference():
    """A pane whose rows were replaced, or retracted, shows by how much the sum has changed."""
    first, second = linked(
        upstream().aggregate(total=tg.sum("v")),
        tg.stream(key="city")
        .inherit()
        .trigger(tg.every_element())
        .discarding()
        .aggregate(n=tg.count(), total=tg.sum("total")),
    )
    for r in (row(1, v=5), row(2, v=2), row(3, "b", v=-4)):
        first.add_messages([r])
    first.finish()
    panes = taken(second)
    assert sum(p["n"] for p in panes) == 2
    assert sum(p["total"] or 0 for p in panes) == 3

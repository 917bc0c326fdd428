"""Migration: stored state follows new aggregates and a longer lateness, and refuses every other
change with the difference.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tidegate as tg
from support.examples import examples

pytestmark = pytest.mark.slow

Row = dict[str, Any]
Call = tuple[str, Any]
Opener = Callable[[], Any]

EAGER = tg.after_watermark(early=tg.after_count(2), late=tg.after_count(1))
SCHEMA = pa.schema({"o": pa.int64(), "ts": pa.int64(), "k": pa.string(), "v": pa.int64()})
WINDOWS = {
    "tumbling": tg.tumbling(10, unit="us"),
    "hopping": tg.hopping(12, 4, unit="us"),
    "cumulative": tg.cumulative(12, 4, unit="us"),
    "session": tg.session(4, unit="us"),
    "by difference": tg.sliding(6, unit="us"),
    "global": tg.global_window(),
    "offsets": tg.tumbling(7, axis="offset"),
    "ordinals": tg.tumbling(3, axis="ordinal"),
}
BASE = {"n": tg.count(), "total": tg.sum("v")}
NEW = {"m": tg.sum("v"), "best": tg.max("v"), "mean": tg.mean("v")}
KEYS = ("a", "b")


@pytest.fixture(params=["memory", pytest.param("rocksdb", marks=pytest.mark.rocksdb)])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Opener:
    """Opens the same store again and again; the one before must be closed."""
    kind = {"memory": tg.MemoryStore, "rocksdb": tg.RocksDBStore}[request.param]
    return lambda: kind(tmp_path / "state")


def windowed(
    window: str = "tumbling",
    *,
    mode: str = "accumulating",
    trigger: Any = None,
    lateness: int = 8,
    **stream: Any,
) -> tg.Windowed:
    given = {"time": "ts", "key": "k", "offset": "o", "watermark": tg.explicit(), **stream}
    made = getattr(
        tg.stream(**given).window(WINDOWS[window]).allow_lateness(lateness, unit="us"), mode
    )()
    return made if trigger is None else made.trigger(trigger)


def call(op: tg.EmbeddedOperator, verb: str, value: Any) -> None:
    if verb == "add":
        op.add_messages(pa.Table.from_pylist(value, SCHEMA))
    else:
        {"watermark": op.advance_watermark, "timeout": op.timeout}[verb](value)


def taken(op: tg.EmbeddedOperator) -> tuple[list[Row], list[Row]]:
    """The results that wait, which are gone then; and everything durable."""
    results = op.get_result()
    op.flush()
    return results.panes.to_pylist(), results.late.to_pylist()


def held(op: tg.EmbeddedOperator) -> set[tuple[str, int | None, int | None]]:
    return {
        (key, w["window_start"], w["window_end"]) for key in KEYS for w in op.get_windows(key=key)
    }


def is_old(pane: Row, windows: set[tuple[str, int | None, int | None]], *, merges: bool) -> bool:
    """Whether a pane's window held something: the window itself, or a session that it has grown
    from.
    """
    start, end = pane["window_start"], pane["window_end"]
    if not merges:
        return (pane["k"], start, end) in windows
    return any(key == pane["k"] and start <= s and e <= end for key, s, e in windows)


class History:
    """Deliveries, watermarks and clocks, drawn from small numbers."""

    def __init__(self, draw: Any, length: int) -> None:
        self.calls: list[Call] = []
        offset = now = mark = 0
        for _ in range(length):
            verb = draw(st.sampled_from(["add", "add", "add", "watermark", "timeout"]))
            if verb == "add":
                rows = draw(
                    st.lists(
                        st.tuples(
                            st.integers(mark - 12, mark + 14),
                            st.sampled_from(KEYS),
                            st.integers(-9, 9),
                        ),
                        min_size=1,
                        max_size=5,
                    )
                )
                self.calls.append(
                    (
                        "add",
                        [
                            {"o": offset + i, "ts": ts, "k": k, "v": v}
                            for i, (ts, k, v) in enumerate(rows)
                        ],
                    )
                )
                offset += len(rows)
            elif verb == "watermark":
                mark += draw(st.integers(1, 12))
                self.calls.append(("watermark", mark))
            else:
                now += draw(st.integers(1, 9))
                self.calls.append(("timeout", now))


@st.composite
def histories(draw: st.DrawFn) -> list[Call]:
    return History(draw, draw(st.integers(2, 14))).calls


triggers = st.sampled_from(
    [
        None,
        tg.after_watermark(),
        EAGER,
        tg.repeatedly(tg.after_count(2)),
        tg.after_watermark(early=tg.after_delay(5, unit="us")),
    ]
)
modes = st.sampled_from(["accumulating", "discarding", "retracting"])
kinds = st.sampled_from(["tumbling", "tumbling", "hopping", "session", "session", *WINDOWS])


def spec_of(made: tg.Windowed, base: dict[str, Any], *added: str) -> tg.Panes:
    """The aggregates in another order than they were added in."""
    return made.aggregate(**{name: NEW[name] for name in reversed(added)}, **base)


def compare_with_new_from_the_start(
    made: tg.Windowed, base: dict[str, Any], calls: list[Call], cuts: dict[int, str], opened: Opener
) -> None:
    """At each cut one more aggregate appears; it is null for windows that held something then, and
    right for all others.
    """
    whole = spec_of(made, base, *cuts.values()).embedded(now=0)
    added: list[str] = []
    unknown: dict[str, set[Any]] = {}
    op = spec_of(made, base).embedded(store=opened(), now=0)
    merges = made.windows == WINDOWS["session"]
    for at, (verb, value) in enumerate([*calls, ("finish", None)]):
        if at in cuts:
            taken(op)
            unknown[cuts[at]] = held(op)
            op.close()
            added.append(cuts[at])
            op = spec_of(made, base, *added).embedded(store=opened(), now=0)
        for one in (op, whole):
            one.finish() if verb == "finish" else call(one, verb, value)
        (panes, late), (wanted, wanted_late) = taken(op), taken(whole)
        assert late == wanted_late
        for pane in wanted:
            for name in cuts.values():
                if name not in added:
                    del pane[name]
                elif is_old(pane, unknown[name], merges=merges):
                    pane[name] = None
        assert panes == wanted
    op.close()


@examples(50, deadline=None)
@given(data=st.data())
def test_oracle_a_new_aggregate_is_null_for_windows_that_were_open_and_right_for_all_others(
    data, tmp_path_factory
):
    path = tmp_path_factory.mktemp("state") / "s"
    window, calls = data.draw(kinds), data.draw(histories())
    made = windowed(window, mode=data.draw(modes), trigger=data.draw(triggers))
    if data.draw(st.booleans()):
        made = made.options(
            drop_by="window", session_lateness=data.draw(st.sampled_from(["own", "merged"]))
        )
    base = BASE | ({"all": tg.list_("v")} if data.draw(st.integers(0, 3)) == 0 else {})
    cuts = dict(
        zip(
            sorted(data.draw(st.sets(st.integers(0, len(calls)), min_size=1, max_size=3))),
            NEW,
            strict=False,
        )
    )
    compare_with_new_from_the_start(made, base, calls, cuts, lambda: tg.MemoryStore(path))


@examples(40, deadline=None)
@given(data=st.data())
def test_oracle_values_that_did_not_change_do_not_fire_again_after_a_migration(
    data, tmp_path_factory
):
    path = tmp_path_factory.mktemp("state") / "s"
    calls = data.draw(histories())
    made = windowed(
        data.draw(kinds),
        mode=data.draw(st.sampled_from(["accumulating", "retracting"])),
        trigger=data.draw(triggers),
    )
    # The new aggregate changes with one that was there, so that both operators see the same
    # changes.
    cut = {data.draw(st.integers(0, len(calls))): "m"}
    compare_with_new_from_the_start(
        made.options(fire_only_updated=True), BASE, calls, cut, lambda: tg.MemoryStore(path)
    )


# One story

STORY: list[Call] = [
    (
        "add",
        [
            {"o": 0, "ts": 1, "k": "a", "v": 5},
            {"o": 1, "ts": 12, "k": "a", "v": 7},
            {"o": 2, "ts": 13, "k": "b", "v": 1},
        ],
    ),
    ("watermark", 11),
    (
        "add",
        [
            {"o": 3, "ts": 14, "k": "a", "v": 9},
            {"o": 4, "ts": 25, "k": "a", "v": 2},
            {"o": 5, "ts": 3, "k": "a", "v": 4},
        ],
    ),
    ("watermark", 21),
    ("add", [{"o": 6, "ts": 26, "k": "b", "v": 3}, {"o": 7, "ts": 15, "k": "b", "v": 8}]),
]


@pytest.mark.parametrize("mode", ["accumulating", "discarding", "retracting"])
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("trigger", [None, EAGER], ids=["quiet", "eager"])
def test_state_follows_in_every_store(window, mode, trigger, open_store):
    compare_with_new_from_the_start(
        windowed(window, mode=mode, trigger=trigger), BASE, STORY, {2: "m", 4: "best"}, open_store
    )


def test_the_same_where_messages_are_kept(open_store):
    made = windowed("session", mode="retracting", trigger=EAGER)
    compare_with_new_from_the_start(
        made, BASE | {"middle": tg.median("v")}, STORY, {2: "m", 4: "best"}, open_store
    )


def test_what_was_fired_before_is_taken_back_with_null(open_store):
    made = windowed(mode="retracting", trigger=EAGER)
    op = made.aggregate(n=tg.count()).embedded(store=open_store(), now=0)
    call(op, "add", [{"o": 0, "ts": 1, "k": "a", "v": 5}, {"o": 1, "ts": 2, "k": "a", "v": 7}])
    assert [(p["op"], p["n"]) for p in taken(op)[0]] == [("+", 2)]
    op.close()
    op = made.aggregate(total=tg.sum("v"), n=tg.count()).embedded(store=open_store(), now=0)
    call(
        op,
        "add",
        [
            {"o": 2, "ts": 3, "k": "a", "v": 1},
            {"o": 3, "ts": 4, "k": "a", "v": 1},
            {"o": 4, "ts": 3, "k": "b", "v": 1},
        ],
    )
    call(op, "watermark", 10)
    # Panes of one key come in order; those of several keys may alternate.
    panes = sorted(taken(op)[0], key=lambda p: p["k"])
    assert [(p["op"], p["k"], p["total"], p["n"]) for p in panes] == [
        ("-", "a", None, 2),
        ("+", "a", None, 4),
        ("-", "a", None, 4),
        ("+", "a", None, 4),
        ("+", "b", 1, 1),
    ]


def test_a_restart_after_a_migration_needs_none_and_the_old_specification_is_refused_then(
    open_store,
):
    made = windowed()
    op = made.aggregate(n=tg.count()).embedded(store=open_store(), now=0)
    call(op, "add", [{"o": 0, "ts": 1, "k": "a", "v": 5}])
    taken(op)
    op.close()
    new = made.aggregate(n=tg.count(), total=tg.sum("v"))
    for _ in range(3):
        op = new.embedded(store=open_store(), now=0)
        assert op.peek()["total"].to_pylist() == [None]
        taken(op)
        op.close()
    store = open_store()
    assert list(store.get_json("operator")["spec"]["aggregates"]) == ["n", "total"]
    store.close()
    with pytest.raises(
        tg.SpecMismatchError,
        match=r"aggregates\.total.*can be added, but not changed or left out.*Hint",
    ):
        made.aggregate(n=tg.count()).embedded(store=open_store(), now=0)


def test_state_that_was_not_flushed_after_a_migration_is_still_that_of_the_old_specification(
    open_store,
):
    made = windowed()
    op = made.aggregate(n=tg.count()).embedded(store=open_store(), now=0)
    call(op, "add", [{"o": 0, "ts": 1, "k": "a", "v": 5}])
    taken(op)
    op.close()
    op = made.aggregate(n=tg.count(), total=tg.sum("v")).embedded(store=open_store(), now=0)
    call(op, "add", [{"o": 1, "ts": 2, "k": "a", "v": 5}])
    op.close()
    op = made.aggregate(n=tg.count()).embedded(store=open_store(), now=0)
    op.finish()
    assert [p["n"] for p in taken(op)[0]] == [1]


def test_nothing_that_is_kept_is_read_when_state_is_migrated(tmp_path, monkeypatch):
    made = windowed("hopping")
    op = made.aggregate(n=tg.count()).embedded(store=tg.MemoryStore(tmp_path / "s"), now=0)
    call(op, "add", [{"o": o, "ts": o, "k": "a", "v": 5} for o in range(40)])
    call(op, "watermark", 20)
    op.flush()
    op.close()
    read: list[str] = []
    get = tg.MemoryStore.get_table
    monkeypatch.setattr(
        tg.MemoryStore, "get_table", lambda self, name: (read.append(name), get(self, name))[1]
    )
    op = made.aggregate(n=tg.count(), total=tg.sum("v")).embedded(
        store=tg.MemoryStore(tmp_path / "s"), now=0
    )
    assert not [
        name
        for name in read
        if name.startswith(("slices/", "cells/")) and not name.endswith("/alive")
    ]
    op.finish()
    assert [name for name in read if name.startswith("slices/")]


def test_one_who_never_migrates_pays_nothing(tmp_path):
    op = (
        windowed(trigger=EAGER)
        .aggregate(**BASE)
        .embedded(store=tg.MemoryStore(tmp_path / "s"), now=0)
    )
    call(op, "add", [{"o": 0, "ts": 1, "k": "a", "v": 5}])
    op.flush()
    names = op.operator.bound().context.cells.all().names
    assert not [name for name in names if name.startswith("known.")]
    assert op._store.get_json("operator")["migrated"] is None


# Columns


@pytest.mark.parametrize("trigger", [None, EAGER], ids=["quiet", "eager"])
def test_a_new_aggregate_may_read_a_column_that_is_new_as_well(trigger, open_store):
    made = windowed(trigger=trigger)
    op = made.aggregate(n=tg.count()).embedded(store=open_store(), now=0)
    op.add_messages([{"o": 0, "ts": 1, "k": "a"}])
    taken(op)
    op.close()
    new = made.aggregate(n=tg.count(), names=tg.last("name"), cost=tg.sum("cost"))
    op = new.embedded(store=open_store(), now=0)
    op.add_messages(
        [
            {"o": 1, "ts": 2, "k": "a", "name": "x", "cost": 2},
            {"o": 2, "ts": 13, "k": "a", "name": "y", "cost": 3},
        ]
    )
    taken(op)
    op.close()
    op = new.embedded(store=open_store(), now=0)
    op.finish()
    found = [
        (p["n"], p["names"], p["cost"])
        for p in taken(op)[0]
        if p["is_last"] or p["timing"] == "on_time"
    ]
    assert found == [(2, None, None), (1, "y", 3)]


def test_an_aggregate_that_cannot_read_its_column_is_refused(open_store):
    op = windowed().aggregate(n=tg.count()).embedded(store=open_store(), now=0)
    call(op, "add", [{"o": 0, "ts": 1, "k": "a", "v": 5}])
    taken(op)
    op.close()
    with pytest.raises(
        tg.SpecMismatchError,
        match=r"`aggregates\.total` cannot be added.*needs numbers.*column `k`.*Hint",
    ):
        windowed().aggregate(n=tg.count(), total=tg.sum("k")).embedded(store=open_store(), now=0)


def test_an_aggregate_that_needs_messages_is_refused_where_none_were_kept(open_store):
    op = windowed().aggregate(n=tg.count()).embedded(store=open_store(), now=0)
    call(op, "add", [{"o": 0, "ts": 1, "k": "a", "v": 5}])
    taken(op)
    op.close()
    with pytest.raises(
        tg.SpecMismatchError, match=r"`aggregates\.middle`.*messages themselves.*not kept.*Hint"
    ):
        windowed().aggregate(n=tg.count(), middle=tg.median("v")).embedded(
            store=open_store(), now=0
        )


def test_kept_messages_do_not_have_a_column_that_is_new(open_store):
    op = windowed().aggregate(middle=tg.median("v")).embedded(store=open_store(), now=0)
    call(op, "add", [{"o": 0, "ts": 1, "k": "a", "v": 5}])
    taken(op)
    op.close()
    with pytest.raises(
        tg.SpecMismatchError,
        match=r"`aggregates\.cost`.*messages that are kept have no column `cost`.*Hint",
    ):
        windowed().aggregate(middle=tg.median("v"), cost=tg.sum("cost")).embedded(
            store=open_store(), now=0
        )


def test_where_nothing_has_come_any_aggregate_can_be_added(open_store):
    op = windowed().aggregate(n=tg.count()).embedded(store=open_store(), now=0)
    call(op, "watermark", 5)
    taken(op)
    op.close()
    op = (
        windowed(lateness=30)
        .aggregate(n=tg.count(), middle=tg.median("v"))
        .embedded(store=open_store(), now=0)
    )
    call(op, "add", [{"o": 0, "ts": 1, "k": "a", "v": 5}])
    op.finish()
    assert [p["middle"] for p in taken(op)[0]] == [5.0]


# Lateness


def test_windows_that_are_held_are_kept_as_long_as_the_longer_lateness_says(open_store):
    op = (
        windowed(lateness=10, trigger=EAGER)
        .aggregate(n=tg.count())
        .embedded(store=open_store(), now=0)
    )
    call(op, "add", [{"o": 0, "ts": 1, "k": "a", "v": 5}, {"o": 1, "ts": 11, "k": "a", "v": 5}])
    call(op, "watermark", 15)
    assert [(p["window_start"], p["n"]) for p in taken(op)[0]] == [(0, 1)]
    op.close()
    op = (
        windowed(lateness=30, trigger=EAGER)
        .aggregate(n=tg.count())
        .embedded(store=open_store(), now=0)
    )
    # Under the old lateness these would have been very late, but their window is whole.
    call(op, "add", [{"o": 2, "ts": 4, "k": "a", "v": 5}])
    call(op, "watermark", 39)
    call(op, "add", [{"o": 3, "ts": 9, "k": "a", "v": 5}, {"o": 4, "ts": 8, "k": "a", "v": 5}])
    panes, late = taken(op)
    assert [(p["window_start"], p["n"], p["timing"]) for p in panes] == [
        (0, 2, "late"),
        (10, 1, "on_time"),
        (0, 3, "late"),
    ]
    assert [(row["o"], row["reason"]) for row in late] == [(4, "very_late")]
    call(op, "watermark", 40)
    assert [w["window_start"] for w in op.get_windows()] == [10]


def test_an_upstream_that_becomes_more_patient_takes_its_downstream_along(tmp_path):
    """The downstream inherits windows, so it has to keep them as long as the upstream may correct
    them.
    """

    def opened(lateness: int) -> tuple[tg.EmbeddedOperator, tg.EmbeddedOperator]:
        inheriting = (
            tg.stream(key="k").inherit().trigger(EAGER).retracting().aggregate(total=tg.sum("n"))
        )
        second = inheriting.embedded(store=tg.MemoryStore(tmp_path / "2"), now=0)
        first = windowed(mode="retracting", trigger=EAGER, lateness=lateness).aggregate(
            n=tg.count()
        )
        return (
            first.embedded(store=tg.MemoryStore(tmp_path / "1"), downstream=second, now=0),
            second,
        )

    first, second = opened(2)
    call(first, "add", [{"o": 0, "ts": 1, "k": "a", "v": 1}, {"o": 1, "ts": 2, "k": "a", "v": 1}])
    call(first, "watermark", 11)
    first.flush()
    taken(second)
    for op in (first, second):
        op.close()
    first, second = opened(100)
    call(first, "watermark", 50)
    call(first, "add", [{"o": 2, "ts": 3, "k": "a", "v": 1}])
    panes, late = taken(second)
    assert [(pane["op"], pane["total"]) for pane in panes] == [("-", 2), ("+", 3)]
    assert late == []


@pytest.mark.parametrize("drop_by", ["event", "window"])
def test_windows_that_had_expired_stay_so(drop_by, open_store):
    op = (
        windowed(lateness=0, trigger=EAGER)
        .options(drop_by=drop_by)
        .aggregate(n=tg.count())
        .embedded(store=open_store(), now=0)
    )
    call(op, "add", [{"o": 0, "ts": 1, "k": "a", "v": 5}, {"o": 1, "ts": 11, "k": "a", "v": 5}])
    call(op, "watermark", 10)
    assert [(p["window_start"], p["n"]) for p in taken(op)[0]] == [(0, 1)]
    op.close()
    for at in (2, 3):
        # Nor after a further restart.
        op = (
            windowed(lateness=30, trigger=EAGER)
            .options(drop_by=drop_by)
            .aggregate(n=tg.count())
            .embedded(store=open_store(), now=0)
        )
        call(op, "add", [{"o": at, "ts": 9, "k": "a", "v": 5}])
        panes, late = taken(op)
        assert panes == []
        assert [(row["reason"], row["windows"]) for row in late] == [
            ("window_expired", [{"window_start": 0, "window_end": 10}])
        ]
        op.close()


def test_ids_that_were_forgotten_count_once_all_the_same(open_store):
    def made(lateness: int) -> tg.Panes:
        return windowed(lateness=lateness, trigger=EAGER, offset=None, id="o").aggregate(
            n=tg.count()
        )

    op = made(2).embedded(store=open_store(), now=0)
    call(op, "add", [{"o": 0, "ts": 1, "k": "a", "v": 5}])
    call(op, "watermark", 9)
    taken(op)
    op.close()
    op = made(50).embedded(store=open_store(), now=0)
    call(op, "add", [{"o": 0, "ts": 1, "k": "a", "v": 5}, {"o": 1, "ts": 7, "k": "a", "v": 5}])
    call(op, "watermark", 12)
    panes, late = taken(op)
    assert [row["reason"] for row in late] == ["very_late"]
    assert [p["n"] for p in panes][-1] == 2


def with_longer_and_longer_lateness(
    made: Callable[[int], tg.Panes], calls: list[Call], cuts: dict[int, int], first: int, path: Path
) -> list[Row]:
    """Panes and late rows, in order, of an operator whose lateness is made longer at each cut."""
    op = made(first).embedded(store=tg.MemoryStore(path), now=0)
    found: list[Row] = []
    for at, (verb, value) in enumerate([*calls, ("finish", None)]):
        if at in cuts:
            op.close()
            op = made(cuts[at]).embedded(store=tg.MemoryStore(path), now=0)
        op.finish() if verb == "finish" else call(op, verb, value)
        panes, late = taken(op)
        found += [*panes, *late]
    return found


@st.composite
def longer_and_longer(draw: st.DrawFn) -> tuple[list[Call], dict[int, int], int]:
    calls = draw(histories())
    first, *rest = sorted(draw(st.sets(st.integers(0, 40), min_size=2, max_size=3)))
    cuts = sorted(draw(st.sets(st.integers(0, len(calls)), min_size=1, max_size=len(rest))))
    return calls, dict(zip(cuts, rest, strict=False)), first


@examples(50, deadline=None)
@given(
    history=longer_and_longer(),
    window=st.sampled_from(["tumbling", "hopping"]),
    trigger=st.sampled_from([None, tg.after_watermark(), EAGER]),
    stream=st.sampled_from([{}, {"offset": None, "id": "o"}]),
    drop_by=st.sampled_from(["event", "window"]),
    whole=st.booleans(),
)
def test_oracle_with_a_longer_lateness_a_pane_holds_every_row_that_was_taken(
    tmp_path_factory, history, window, trigger, stream, drop_by, whole
):
    def made(lateness: int) -> tg.Panes:
        kept = {"all": tg.list_("v")} if whole else {}
        return (
            windowed(window, lateness=lateness, trigger=trigger, **stream)
            .options(drop_by=drop_by)
            .aggregate(n=tg.count(), **kept)
        )

    found = with_longer_and_longer_lateness(made, *history, tmp_path_factory.mktemp("state") / "s")
    missed = {
        (row["o"], w["window_start"]) for row in found if "reason" in row for w in row["windows"]
    }
    last = {(p["k"], p["window_start"], p["window_end"]): p["n"] for p in found if "op" in p}
    rows = [row for verb, value in history[0] if verb == "add" for row in value]
    for (key, start, end), n in last.items():
        assert n == len(
            [
                r
                for r in rows
                if r["k"] == key and start <= r["ts"] < end and (r["o"], start) not in missed
            ]
        )


@examples(50, deadline=None)
# A trigger that finishes is left out: it closes its session, and a later one may lie over it.
@given(history=longer_and_longer(), trigger=st.sampled_from([None, EAGER]), whole=st.booleans())
def test_oracle_with_a_longer_lateness_sessions_never_overlap_one_that_is_gone(
    tmp_path_factory, history, trigger, whole
):
    def made(lateness: int) -> tg.Panes:
        kept = {"all": tg.list_("v")} if whole else {}
        return windowed("session", mode="retracting", lateness=lateness, trigger=trigger).aggregate(
            n=tg.count(), **kept
        )

    found = with_longer_and_longer_lateness(made, *history, tmp_path_factory.mktemp("state") / "s")
    missed = {row["o"] for row in found if "reason" in row}
    standing: dict[Any, int] = {}
    for pane in found:
        identity = (pane["k"], pane.get("window_start"), pane.get("window_end"))
        if pane.get("op") == "+":
            standing[identity] = pane["n"]
        elif pane.get("op") == "-":
            del standing[identity]
    rows = [
        row
        for verb, value in history[0]
        if verb == "add"
        for row in value
        if row["o"] not in missed
    ]
    assert sum(standing.values()) == len(rows)
    for (key, start, end), n in standing.items():
        assert n == len([r for r in rows if r["k"] == key and start <= r["ts"] < end])
        assert not [other for other in standing if other[0] == key and start < other[1] < end]


# Refusals


def refused(made: tg.Panes, wanted: tg.Panes, rows: list[Row] | None = None) -> str:
    store = tg.MemoryStore()
    op = made.embedded(store=store, now=0)
    op.add_messages(rows or [{"o": 0, "ts": 1, "k": "a", "v": 1}])
    op.flush()
    with pytest.raises(tg.SpecMismatchError) as told:
        wanted.embedded(store=store, now=0)
    return str(told.value)


def test_a_refusal_says_which_of_the_changes_is_the_obstacle():
    told = refused(
        windowed().aggregate(n=tg.count()),
        windowed("hopping", lateness=20).aggregate(n=tg.count(), total=tg.sum("v")),
    )
    everything, obstacle = told.split(". Of these, state cannot follow ")
    assert all(
        f"`{name}`" in everything
        for name in ("aggregates.total", "allowed_lateness", "window.type")
    )
    assert "`window.type`" in obstacle
    assert "aggregates" not in obstacle
    assert "allowed_lateness" not in obstacle


def test_a_shorter_lateness_and_an_aggregate_that_changes_are_refused():
    told = refused(
        windowed().aggregate(n=tg.count(), m=tg.sum("v")),
        windowed(lateness=7).aggregate(n=tg.count(), m=tg.max("v")),
    )
    assert "`allowed_lateness` was 8 microseconds and is now 7 microseconds" in told
    assert "`aggregates.m.kind` was 'sum' and is now 'max'" in told
    assert "longer, but not shorter" in told
    assert "not changed or left out" in told
    assert "Of these" not in told


def test_a_longer_lateness_is_refused_where_keys_have_watermarks_of_their_own():
    def made(lateness: int, **more: Any) -> tg.Panes:
        mark = tg.per_key("5 us", floor="50 us")
        return windowed(lateness=lateness, watermark=mark).aggregate(n=tg.count(), **more)

    assert "per-key watermarks" in refused(made(8), made(9))
    store = tg.MemoryStore()
    op = made(8).embedded(store=store, now=0)
    call(op, "add", [{"o": 0, "ts": 1, "k": "a", "v": 1}])
    op.flush()
    assert made(8, total=tg.sum("v")).embedded(store=store, now=0).peek()["total"].to_pylist() == [
        None
    ]


# Formats


def test_state_of_an_unknown_format_is_refused():
    store = tg.MemoryStore()
    made = windowed()
    op = made.aggregate(n=tg.count()).embedded(store=store, now=0)
    call(op, "add", [{"o": 0, "ts": 1, "k": "a", "v": 1}])
    op.flush()
    document = json.loads(json.dumps(store.get_json("operator")))
    assert made.aggregate(n=tg.count(), m=tg.sum("v")).embedded(store=store, now=0).peek()[
        "m"
    ].to_pylist() == [None]
    store.put_json("operator", {**document, "format": 3})
    with pytest.raises(
        tg.CorruptStateError, match="format 3 cannot be read; this version reads format 2"
    ):
        made.aggregate(n=tg.count()).embedded(store=store, now=0)

"""Per-key watermarks: the progress of keys by itself, the operator by example and against its
references.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import tidegate as tg
from support.reference import Config
from support.strategies import KEYS, Case, Step, per_key_cases, walk
from test_differential import Embedded, compare, late, panes, play, specification
from tidegate.api.streams import Panes
from tidegate.errors import SpecError
from tidegate.instants import MAX, MIN
from tidegate.kernel.watermarks.per_key import KeyProgress
from tidegate.spec.evictors import EvictCount
from tidegate.spec.operator import AggregateSpec, Input, Options
from tidegate.spec.triggers import EventInterval
from tidegate.spec.watermarks import PerKey
from tidegate.spec.windows import ByDifference, Hopping, Session, Tumbling
from tidegate.state.memory import MemoryStore

HOUR, SECOND = 3_600, 1_000_000
FAR = {"future_tolerance": MAX // 2}
Opener = Callable[[], Any]


@pytest.fixture(params=["memory", pytest.param("rocksdb", marks=pytest.mark.rocksdb)])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Opener:
    """Opens the same store again and again; the one before must be closed."""
    kind = {"memory": tg.MemoryStore, "rocksdb": tg.RocksDBStore}[request.param]
    return lambda: kind(tmp_path / "state")


# Progress by itself


def columns(keys: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Some keys share their first hash."""
    found = np.array(keys, np.uint64)
    return found // np.uint64(2), found


class Keys:
    """Progress of keys that are small numbers, a call at a time."""

    def __init__(self, disorder: int = 0, max_keys: int | None = None, store: Any = None) -> None:
        self.progress = KeyProgress(store or MemoryStore(), disorder, max_keys)
        self.floor = MIN

    def hear(self, events: list[tuple[int, int]], floor: int = MIN) -> list[int]:
        """A delivery of (key, time), after which the floor is where it is said; the answer is who
        rose.
        """
        self.progress.begin()
        key_hash, key_check = columns([key for key, _ in events])
        self.progress.meet(key_hash, key_check)
        risen = self.progress.advance(
            key_hash, key_check, np.array([time for _, time in events], np.int64), self.floor
        )
        self.floor = self.progress.bounded(max(self.floor, floor))
        self.progress.forget(self.floor)
        return [] if risen is None else risen.ints("key_check").tolist()

    def of(self, *keys: int) -> list[int]:
        return self.progress.watermark(*columns(list(keys)), self.floor).tolist()


def test_every_key_is_disorder_behind_its_own_newest_event():
    keys = Keys(disorder=2)
    assert keys.hear([(1, 10), (2, 100), (1, 30), (1, 20)]) == [1, 2]
    assert keys.of(1, 2, 1) == [28, 98, 28]
    assert keys.of(3) == [MIN]


def test_an_older_event_moves_nothing():
    keys = Keys()
    keys.hear([(1, 10)])
    assert keys.hear([(1, 9), (1, 10)]) == []
    assert keys.of(1) == [10]


def test_a_key_that_the_floor_has_reached_needs_no_memory():
    keys = Keys()
    keys.hear([(1, 10), (2, 20)])
    keys.hear([(3, 30)], floor=20)
    assert keys.of(1, 2, 3, 4) == [20, 20, 30, 20]
    assert len(keys.progress) == 1
    assert keys.hear([(1, 15)]) == []
    assert len(keys.progress) == 1


def test_of_too_many_keys_the_slowest_are_given_up_and_the_floor_is_raised_to_them():
    keys = Keys(max_keys=2)
    keys.hear([(1, 10), (2, 20), (3, 30), (4, 40)])
    assert (keys.floor, len(keys.progress)) == (20, 2)
    assert keys.of(1, 2, 3, 4) == [20, 20, 30, 40]


def test_of_keys_that_are_equally_slow_all_are_given_up():
    keys = Keys(max_keys=2)
    keys.hear([(1, 10), (2, 10), (3, 10)])
    assert (keys.floor, len(keys.progress)) == (10, 0)


def test_within_a_call_both_the_present_and_the_former_watermark_are_known():
    progress = KeyProgress(MemoryStore(), 0, None)
    one, both, other = columns([1]), columns([1, 2, 1]), columns([2])
    for time, before in ((10, MIN), (20, 10)):
        progress.begin()
        progress.meet(*one)
        progress.advance(*one, np.array([time]), MIN)
        assert progress.watermark(*both, -5).tolist() == [time, -5, time]
        assert progress.before(*both, -5).tolist() == [max(before, -5), -5, max(before, -5)]
        assert progress.before(*other, MIN).tolist() == [MIN]
        progress.forget(-5)
    progress.begin()
    assert progress.before(*one, -5).tolist() == [20]


def test_progress_survives_a_restart(open_store):
    store = open_store()
    keys = Keys(disorder=1, store=store)
    keys.hear([(n, 100 + n) for n in range(50)])
    keys.hear([(3, 500), (4, 101)], floor=120)
    store.put_json("keys", keys.progress.save())
    store.commit()
    store.close()
    store = open_store()
    again = Keys(disorder=1, store=store)
    again.floor = keys.floor
    again.progress.restore(store.get_json("keys"))
    assert again.of(*range(60)) == keys.of(*range(60))
    assert len(again.progress) == len(keys.progress)
    assert again.hear([(3, 400), (5, 700), (70, 300)]) == [5, 70]
    store.put_json("keys", again.progress.save())
    store.commit()
    store.close()


events = st.lists(st.tuples(st.integers(0, 9), st.integers(-20, 60)), max_size=12)


@given(
    st.lists(st.tuples(events, st.just(MIN) | st.integers(-20, 60), st.booleans()), max_size=25),
    st.integers(0, 5),
    st.sampled_from([None, 1, 3]),
)
def test_progress_is_what_a_dictionary_says(calls, disorder, max_keys):
    store = MemoryStore()
    keys, own, floor = Keys(disorder, max_keys, store), {}, MIN
    for heard, told, restarts in calls:
        before = {key: max(own.get(key, MIN), floor) for key in range(12)}
        for key, time in heard:
            own[key] = max(own.get(key, MIN), time - disorder)
        rose = keys.hear(heard, told)
        assert rose == sorted(key for key in {k for k, _ in heard} if own[key] > before[key])
        floor = max(floor, told)
        ahead = sorted(mark for mark in own.values() if mark > floor)
        if max_keys is not None and len(ahead) > max_keys:
            floor = ahead[len(ahead) - max_keys - 1]
        assert keys.floor == floor
        assert keys.of(*range(12), *range(12)) == 2 * [
            max(own.get(key, MIN), floor) for key in range(12)
        ]
        assert len(keys.progress) == sum(mark > floor for mark in own.values())
        if restarts:
            document = keys.progress.save()
            store.commit()
            keys.progress = KeyProgress(store, disorder, max_keys)
            keys.progress.restore(document)


# The operator by example


def devices(watermark: Any = None, window: Any = None, **aggregates: Any) -> Panes:
    watermark = tg.per_key("10 seconds", floor="1 day") if watermark is None else watermark
    stream = tg.stream(time="ts", key="device", watermark=watermark).window(
        tg.tumbling("1 hour") if window is None else window
    )
    return (
        stream.trigger(tg.after_watermark(late=tg.after_count(1)))
        .allow_lateness("10 minutes")
        .aggregate(**(aggregates or {"n": tg.count()}))
    )


def told(op: Any, *rows: tuple[str, float]) -> list[tuple[Any, ...]]:
    """Messages of (device, hours) in one delivery; the panes that they cause, as (device, hour of
    the window, n, timing).
    """
    schema = pa.schema({"device": pa.string(), "ts": pa.timestamp("us", "UTC")})
    times = [round(hours * HOUR * SECOND) for _, hours in rows]
    if rows:
        op.add_messages(
            pa.table(
                [
                    pa.array([device for device, _ in rows]),
                    pa.array(times, schema.field("ts").type),
                ],
                schema,
            )
        )
    found = [
        (p["device"], p["window_start"].timestamp() / HOUR, p["n"], p["timing"])
        for p in op.get_result().panes.to_pylist()
    ]
    op.flush()
    return found


def opened(found: Panes, store: Any = None) -> Any:
    return found.embedded(store=store, now=1_000 * 24 * HOUR * SECOND)


def test_each_device_fires_by_its_own_clock_and_a_slow_one_is_not_late():
    op = opened(devices())
    assert told(op, ("fast", 100.1), ("slow", 90.1)) == []
    assert told(op, ("fast", 101.1)) == [("fast", 100, 1, "on_time")]
    assert told(op, ("slow", 90.2), ("slow", 90.9)) == []
    assert told(op, ("slow", 91.1)) == [("slow", 90, 3, "on_time")]
    assert op.stats()["very_late"] == op.stats()["mildly_late"] == 0
    assert op.stats()["keys_ahead"] == 2


def test_a_device_that_is_late_by_its_own_clock_is_late_and_is_told_so():
    op = opened(devices())
    told(op, ("fast", 100.1), ("slow", 90.1))
    told(op, ("fast", 101.1))
    assert told(op, ("fast", 100.95)) == [("fast", 100, 2, "late")]
    op.add_messages(
        [{"device": "fast", "ts": "1970-01-05T04:30:00Z"}, {"device": "slow", "ts": None}]
    )
    rows = op.get_result().late.to_pylist()
    assert [(row["device"], row["reason"]) for row in rows] == [
        ("slow", "null_time"),
        ("fast", "very_late"),
    ]
    assert [row["watermark"].timestamp() for row in rows] == [
        round(90.1 * HOUR) - 10,
        round(101.1 * HOUR) - 10,
    ]


def test_panes_show_the_watermark_of_their_key():
    op = opened(devices())
    told(op, ("fast", 100.1), ("slow", 90.1))
    op.add_messages(
        [
            {"device": "fast", "ts": "1970-01-05T06:00:00Z"},
            {"device": "slow", "ts": "1970-01-04T20:00:00Z"},
        ]
    )
    marks = {
        pane["device"]: pane["watermark"].timestamp() for pane in op.get_result().panes.to_pylist()
    }
    assert marks == {"fast": 102 * HOUR - 10, "slow": 92 * HOUR - 10}


def test_the_floor_closes_what_a_silent_device_left_and_frees_it():
    op = opened(devices())
    told(op, ("silent", 50.5), ("loud", 50.5))
    assert told(op, ("loud", 74.9)) == [("loud", 50, 1, "on_time")]
    assert told(op, ("loud", 75.5)) == [("silent", 50, 1, "on_time"), ("loud", 74, 1, "on_time")]
    assert op.stats()["keys_ahead"] == 1
    assert told(op, ("loud", 76.05)) == [("loud", 75, 1, "on_time")]
    assert told(op, ("silent", 51.95)) == [("silent", 51, 1, "late")]
    assert op.stats()["mildly_late"] == 1
    assert told(op, ("loud", 77.9)) == [("loud", 76, 1, "on_time")]
    assert op.stats()["cells"] == 1


def test_the_window_of_a_key_and_what_the_floor_closes_move_in_one_step():
    """A key that the floor overtakes in the delivery that moves it completes and expires at once:
    one pane, and it is the last.
    """
    op = opened(devices(tg.per_key("10 seconds", floor="2 hours")))
    told(op, ("a", 10.5), ("b", 10.5))
    op.add_messages(
        [
            {"device": "a", "ts": "1970-01-01T11:00:20Z"},
            {"device": "b", "ts": "1970-01-01T14:00:00Z"},
        ]
    )
    found = [
        (p["window_start"].hour, p["device"], p["timing"], p["is_last"])
        for p in op.get_result().panes.to_pylist()
    ]
    assert sorted(found) == [
        (10, "a", "on_time", True),
        (10, "b", "on_time", True),
        (11, "a", "on_time", False),
    ]
    assert op.watermark / SECOND == 12 * HOUR


def test_of_too_many_devices_the_slowest_are_given_up():
    op = opened(devices(tg.per_key("10 seconds", floor="30 days", max_keys=2)))
    told(op, ("a", 10.5), ("b", 20.5))
    assert told(op, ("c", 30.5)) == []
    assert told(op, ("c", 31.5)) == [("c", 30, 1, "on_time")]
    assert op.stats()["keys_ahead"] == 2
    assert op.watermark / SECOND == 10.5 * HOUR - 10
    op.add_messages([{"device": "d", "ts": "1970-01-01T10:00:00Z"}])
    assert [row["reason"] for row in op.get_result().late.to_pylist()] == ["very_late"]


def test_what_is_promised_downstream_is_the_floor_and_not_beyond_what_is_owed():
    op = opened(devices(tg.per_key("10 seconds", floor="2 hours")))
    told(op, ("a", 10.5), ("b", 14.5))
    assert op.output_watermark / SECOND == 12.5 * HOUR
    told(op, ("b", 15.5))
    assert op.output_watermark / SECOND == 13.5 * HOUR
    assert op.hold / SECOND == pytest.approx(16 * HOUR)


def test_an_event_from_the_future_moves_neither_its_key_nor_the_floor():
    op = devices().embedded(now=100 * HOUR * SECOND)
    told(op, ("a", 99.5), ("b", 99.5))
    assert told(op, ("a", 500.5)) == []
    assert op.stats()["future"] == 1
    assert op.watermark / SECOND == 75.5 * HOUR
    assert told(op, ("a", 99.6), ("b", 99.7)) == []
    assert op.stats()["mildly_late"] == 0


def test_by_the_watermark_a_key_is_from_the_future_by_its_own():
    """A key may run away from the floor step by step, and takes the floor along; one leap is from
    the future.
    """
    options = {"future_reference": "watermark", "future_tolerance": 2 * HOUR * SECOND}
    spec = devices(tg.per_key("10 seconds", floor="2 hours")).spec
    op = Panes(
        dataclasses.replace(spec, options=dataclasses.replace(spec.options, **options))
    ).embedded(now=0)
    told(op, ("a", 10), ("b", 10))
    for hour in range(11, 20):
        told(op, ("a", hour))
    assert op.stats()["future"] == 0
    assert op.watermark / SECOND == 17 * HOUR
    told(op, ("a", 30))
    assert op.stats()["future"] == 1
    assert op.watermark / SECOND == 17 * HOUR


def test_a_partition_that_is_idle_does_not_hold_the_floor():
    stream = tg.stream(
        time="ts",
        key="device",
        partition="p",
        watermark=PerKey(0, 10, declared=("x", "y"), idle_after=5),
    )
    op = stream.window(tg.tumbling(10, unit="us")).aggregate(n=tg.count()).embedded(now=0)
    op.add_messages([{"device": "a", "ts": 15, "p": "x"}])
    assert op.watermark is None
    op.timeout(6)
    assert op.watermark == 5


def test_a_watermark_that_is_told_lifts_every_key():
    op = opened(devices())
    told(op, ("a", 10.5), ("b", 20.5))
    op.advance_watermark(12 * HOUR * SECOND)
    assert told(op) == [("a", 10, 1, "on_time")]
    assert told(op, ("c", 11.9)) == [("c", 11, 1, "late")]


def test_the_end_leaves_nothing():
    op = opened(devices(None, None, n=tg.count(), all=tg.list_("device")))
    told(op, ("a", 10.5), ("b", 20.5))
    op.finish()
    assert sorted(told(op)) == [("a", 10, 1, "on_time"), ("b", 20, 1, "on_time")]
    assert [op.stats()[name] for name in ("cells", "messages", "keys_ahead")] == [0, 0, 0]


@pytest.mark.slow
@pytest.mark.parametrize(
    "window",
    [Tumbling(10), Hopping(20, 10), Session(5), Session(gap_column="gap"), ByDifference(5)],
    ids=str,
)
@pytest.mark.parametrize("drop_by", ["event", "window"])
def test_messages_of_a_fast_key_go_without_the_floor_and_all_go_at_last(window, drop_by):
    options = Options(drop_by=drop_by, **FAR)
    watermark = PerKey(0, 1_000_000)
    spec = AggregateSpec(
        Input("ts", ("k",), watermark=watermark),
        window,
        (("all", tg.list_("v")),),
        None,
        "accumulating",
        5,
        options,
    )
    op = Panes(spec).embedded(now=0)
    for step in range(200):
        rows = [
            {"ts": 7 * step + (0 if k == "a" else -500), "k": k, "v": step, "gap": 4} for k in "ab"
        ]
        op.add_messages([*rows, {"ts": 3, "k": "silent", "v": 0, "gap": 4}] if step == 0 else rows)
        op.get_result()
        op.flush()
        assert op.stats()["messages"] <= 60
    assert op.stats()["messages"] > 0
    op.advance_watermark(10_000)
    assert [op.stats()[name] for name in ("cells", "messages", "keys_ahead")] == [0, 0, 0]


def test_keys_survive_restarts_and_windows_fire_as_if_there_had_been_none(open_store):
    rows = [(f"d{n % 7}", 100 + n / 10 - (n % 7) * 3) for n in range(300)]
    whole, expected = opened(devices(None, None, n=tg.count(), all=tg.list_("device"))), []
    for n in range(0, 300, 10):
        expected.append(sorted(told(whole, *rows[n : n + 10])))
    found = []
    for n in range(0, 300, 10):
        with opened(devices(None, None, n=tg.count(), all=tg.list_("device")), open_store()) as op:
            found.append(sorted(told(op, *rows[n : n + 10])))
            stats = op.stats()
    assert found == expected
    assert stats["keys_ahead"] == 7
    assert stats["very_late"] == 0


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda: tg.per_key("1 minute", floor="1 second"), "can't be less than"),
        (lambda: tg.per_key("1 minute", floor="1 hour", max_keys=0), "`max_keys`"),
        (lambda: PerKey(-1, 5), "can't be negative"),
        (
            lambda: (
                tg.stream(time="ts", watermark=PerKey(0, 1))
                .window(Tumbling(1))
                .aggregate(n=tg.count())
            ),
            "need a key",
        ),
        (
            lambda: (
                tg.stream(time="ts", key="k", watermark=PerKey(0, 1))
                .window(Tumbling(1, create="static"))
                .aggregate(n=tg.count())
            ),
            "static windows",
        ),
        (
            lambda: AggregateSpec(
                Input("ts", ("k",), watermark=PerKey(0, 1)),
                Tumbling(1, axis="ordinal"),
                (("n", tg.count()),),
            ),
            "event time",
        ),
        (
            lambda: AggregateSpec(
                Input("ts", ("k",), watermark=PerKey(0, 10)),
                Tumbling(1),
                (("n", tg.count()),),
                options=Options(future_reference="watermark", future_tolerance=9),
            ),
            "at least as large as the floor",
        ),
    ],
)
def test_what_cannot_be_is_refused_before_it_starts(change, text):
    with pytest.raises(SpecError, match=text):
        change()


# The operator against its references


@given(per_key_cases(retention=False))
def test_per_key_is_what_the_reference_does(case):
    compare(case)


@given(per_key_cases())
def test_per_key_with_retention_is_what_the_reference_does(case):
    assume(case.config.retain_time or case.config.retain_windows or case.config.retain_messages)
    # A window that had no room, and has some when a newer one has closed, finds messages that it
    # was not given.
    assume(case.config.retain_windows is None or "values" not in case.config.aggregates)
    compare(case)


def only(case: Case, key: str | None) -> Case:
    """What happens to one key alone."""
    steps = [
        (
            Step(step.verb, [row for row in step.value if row["k"] == key])
            if step.verb == "add"
            else step
        )
        for step in case.steps
    ]
    return Case(case.config, tuple(steps))


def same(config: Config, one: list[Any], other: list[Any]) -> None:
    for number, (left, right) in enumerate(zip(one, other, strict=True)):
        assert panes(config, plainly(left[0])) == panes(config, plainly(right[0])), number
        assert late(config, plainly(left[1])) == late(config, plainly(right[1])), number


def plainly(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Where nothing has come yet there is no watermark, or a floor that is as far away."""
    return [
        {
            **row,
            "watermark": (
                None
                if row["watermark"] is None or row["watermark"] < -1_000_000
                else row["watermark"]
            ),
        }
        for row in rows
    ]


@given(per_key_cases())
def test_with_one_key_and_the_floor_at_the_disorder_it_is_a_bounded_watermark(case):
    steps = [
        Step(step.verb, [{**row, "k": "a"} for row in step.value]) if step.verb == "add" else step
        for step in case.steps
    ]
    config = dataclasses.replace(case.config, floor=case.config.disorder, partition=None)
    bounded = dataclasses.replace(config, watermark="bounded")
    same(
        config,
        play(Embedded(config), Case(config, tuple(steps))),
        play(Embedded(bounded), Case(bounded, tuple(steps))),
    )


def far_apart(case: Case) -> tuple[Config, Config]:
    """The case with a floor that is far behind, and what one key of it is."""
    tolerance = (
        case.config.future_tolerance if case.config.future_reference == "clock" else MAX // 2
    )
    offset = case.config.offset if case.config.partition is None else None
    config = dataclasses.replace(
        case.config,
        floor=MAX // 4,
        max_keys=None,
        offset=offset,
        partition=None,
        id=None,
        future_tolerance=tolerance,
    )
    return config, dataclasses.replace(config, watermark="bounded")


@pytest.mark.slow
@given(per_key_cases(retention=False))
def test_it_is_one_operator_with_a_bounded_watermark_for_each_key(case):
    # A tick of event time after a pane is the first above the watermark, if there is any; a floor
    # is one however far it is.
    assume(not any(isinstance(part, EventInterval) for part in walk(case.config.trigger)))
    config, bounded = far_apart(case)
    whole = play(Embedded(config), Case(config, case.steps))
    each = [play(Embedded(bounded), only(Case(bounded, case.steps), key)) for key in KEYS]
    together = [
        tuple([row for output in outputs for row in output[which]] for which in (0, 1))
        for outputs in zip(*each, strict=True)
    ]
    same(config, whole, together)


class Evicting(Embedded):
    """The operator with an evictor, which the reference does not know."""

    def __init__(self, config: Config, evictor: EvictCount) -> None:
        self.evictor = evictor
        super().__init__(config)

    def open(self) -> None:
        self.panes = Panes(dataclasses.replace(self.panes.spec, evictor=self.evictor))
        super().open()


@pytest.mark.slow
@given(per_key_cases(retention=False), st.booleans())
def test_evictors_see_the_windows_of_one_key(case, after):
    assume(not any(isinstance(part, EventInterval) for part in walk(case.config.trigger)))
    config, bounded = far_apart(case)
    whole = play(Evicting(config, EvictCount(2, after)), Case(config, case.steps))
    each = [
        play(Evicting(bounded, EvictCount(2, after)), only(Case(bounded, case.steps), key))
        for key in KEYS
    ]
    together = [
        tuple([row for output in outputs for row in output[which]] for which in (0, 1))
        for outputs in zip(*each, strict=True)
    ]
    same(config, whole, together)


def test_the_specification_of_the_reference_is_that_of_the_operator():
    config = Config(Tumbling(10), key=("k",), watermark="per_key", disorder=3, floor=9, max_keys=4)
    assert specification(config).input.watermark == PerKey(3, 9, 4)


def test_what_is_future_for_its_key_does_not_move_a_floor_that_is_not_there_yet():
    stream = tg.stream(time="ts", key="k", partition="p", watermark=tg.per_key("0 s", floor="0 s"))
    windowed = stream.window(tg.tumbling(10, unit="us")).options(
        future_reference="watermark", future_tolerance="5 us"
    )
    op = windowed.aggregate(n=tg.count()).embedded(now=0)
    op.add_messages([{"ts": 0, "k": "a", "p": "0"}, {"ts": None, "k": "a", "p": "1"}])
    op.add_messages(
        [{"ts": 40, "k": "a", "p": "1"}]
    )  # 40 beyond what `a` has shown, and `1` has promised nothing yet
    assert op.watermark is None
    op.add_messages([{"ts": 3, "k": "a", "p": "1"}])
    assert op.watermark == 0

"""Micro-batches of several arrivals: one watermark step, shards with the same watermarks, rows that
are refused, and when to look at the clock.
"""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import tidegate as tg
from support import source_histories as sources
from support.strategies import Case, Step, cases, per_key_cases
from test_differential import SCHEMA, Embedded, Output, late, panes, specification
from tidegate.embedded.operator import EmbeddedOperator
from tidegate.errors import InputError, WatermarkError
from tidegate.instants import MAX, MIN
from tidegate.kernel.watermarks.row_selection import condense
from tidegate.operators import snapshot as stored
from tidegate.operators.aggregate.operator import WindowedAggregate
from tidegate.operators.ingest.delivery import Arrival, merged_arrivals
from tidegate.spec.operator import AggregateSpec, Input, Options, Retention
from tidegate.spec.watermarks import (
    Bounded,
    Explicit,
    Implied,
    Lagging,
    Noted,
    PerKey,
    Punctuated,
    Watermarks,
)
from tidegate.spec.windows import Axis, Session, Tumbling, Window
from tidegate.state.memory import MemoryStore

FAR = 10**9
COUNTED = (("n", tg.count()),)
Row = dict[str, Any]


def rows_of(*rows: Row) -> pa.Table:
    return pa.Table.from_pylist(list(rows), SCHEMA)


def at(*times: int | None, key: str = "a", **more: Any) -> pa.Table:
    return rows_of(*({"ts": ts, "k": key, "v": 1, **more} for ts in times))


def spec(*marks: Watermarks, window: Window | None = None, **more: Any) -> AggregateSpec:
    first, *others = (
        Input("ts", ("k",), watermark=mark, **more.pop(f"input{n}", {}))
        for n, mark in enumerate(marks)
    )
    options = Options(**{"future_tolerance": FAR, **more.pop("options", {})})
    return AggregateSpec(
        first,
        window or Tumbling(10),
        COUNTED,
        options=options,
        also=tuple(others),
        **{"allowed_lateness": 0, **more},
    )


def operator(*marks: Watermarks, now: int = 0, **more: Any) -> WindowedAggregate:
    return WindowedAggregate(spec(*marks, **more), MemoryStore(), now=now)


def fired(output: Any) -> list[tuple[int, int, int]]:
    return sorted(
        (start, end, n)
        for frame in output.panes
        for start, end, n in zip(
            frame.ints("start").tolist(),
            frame.ints("end").tolist(),
            frame["a.n"].to_pylist(),
            strict=True,
        )
    )


def reasons(output: Any) -> list[tuple[str, int]]:
    return [(rows.reason, len(rows)) for rows in output.late]


# One step of the watermark


def test_all_arrivals_of_a_micro_batch_are_judged_by_the_watermark_before():
    op = operator(Bounded(0), Bounded(0))
    first = op.process_all([Arrival(0, at(35)), Arrival(1, at(31)), Arrival(0, at(2))], 0)
    assert first.late == []
    assert fired(first) == [(0, 10, 1)]
    assert op.progress.watermark == 31
    assert op.watermark_tracker.across.advances == 1
    assert reasons(op.process_all([Arrival(1, at(2))], 0)) == [("very_late", 1)]


def test_with_hold_the_watermark_stays_until_the_last_piece():
    op = operator(Bounded(0))
    assert op.process_all([Arrival(0, at(50))], 0, hold=True).is_empty
    assert op.progress.watermark == MIN
    held = op.process_all([Arrival(0, at(5))], 0, hold=True)
    assert held.is_empty, "the second piece is not late"
    assert fired(op.process_all([], 0)) == [(0, 10, 1)]
    assert op.progress.watermark == 50


def test_watermarks_of_keys_rise_at_the_end_of_the_micro_batch():
    op = operator(PerKey(0, FAR))
    op.process_all(
        [Arrival(0, at(50)), Arrival(0, at(20, key="b").select(["ts", "k"]))], 0, hold=True
    )
    assert op.process_all([Arrival(0, at(5)), Arrival(0, at(6, key="b"))], 0, hold=True).is_empty
    assert fired(op.process_all([], 0)) == [(0, 10, 1), (0, 10, 1)]
    assert reasons(
        op.process_all([Arrival(0, at(5)), Arrival(0, at(15, key="b").select(["ts", "k"]))], 0)
    ) == [("very_late", 1), ("very_late", 1)]


def test_retention_by_time_goes_by_what_was_newest_before_the_micro_batch():
    op = operator(Explicit(), retention=Retention(time=20))
    assert op.process_all([Arrival(0, at(100))], 0, hold=True).is_empty
    assert op.process_all([Arrival(0, at(5))], 0, hold=True).is_empty
    assert fired(op.process_all([], 0)) == [(0, 10, 1)], "pushed out at the end"
    assert reasons(op.process_all([Arrival(0, at(5))], 0)) == [("out_of_retention", 1)]


def test_neighbouring_arrivals_of_one_input_have_one_order_of_offsets():
    op = operator(Explicit(), input0={"offset": "offset"})
    op.process_all(
        [Arrival(0, at(1, offset=7)), Arrival(0, at(2, offset=3)), Arrival(0, at(3, offset=7))], 0
    )
    assert (op.progress.counters["events"], op.progress.counters["duplicates"]) == (2, 1)


def test_arrivals_without_rows_are_none_and_others_are_joined_by_input_and_schema():
    other = at(4).select(["ts", "k"])
    given = [
        Arrival(0, at()),
        Arrival(0, at(1)),
        Arrival(1, at()),
        Arrival(0, at(2)),
        Arrival(1, at(3)),
        Arrival(0, at(4)),
        Arrival(0, other),
    ]
    found = merged_arrivals(given)
    assert [(arrival.ordinal, arrival.table.column("ts").to_pylist()) for arrival in found] == [
        (0, [1, 2]),
        (1, [3]),
        (0, [4]),
        (0, [4]),
    ]


def test_dictionaries_of_several_arrivals_are_joined():
    def encoded(ts: int, key: str) -> pa.Table:
        return pa.table({"ts": [ts], "k": pa.array([key]).dictionary_encode()})

    op = operator(Bounded(0))
    op.process_all([Arrival(0, encoded(1, "x")), Arrival(0, encoded(2, "y"))], 0)
    assert fired(op.finish()) == [(0, 10, 1), (0, 10, 1)]


def test_a_first_micro_batch_that_is_refused_decides_nothing():
    op = operator(Bounded(0))
    with pytest.raises(InputError):
        op.process_all([Arrival(0, pa.table({"ts": [1]}))], 0)
    assert op.schema is None


# What others have seen


def test_observed_rows_move_the_watermark_and_arrivals_do_not():
    op = operator(Bounded(0))
    out = op.process_all([Arrival(0, at(5, 90))], 0, observed=[Arrival(0, at(20).select(["ts"]))])
    assert fired(out) == [(0, 10, 1)]
    assert op.progress.watermark == 20


def test_nothing_observed_is_not_the_same_as_looking_at_the_arrivals():
    op = operator(Bounded(0))
    assert op.process_all([Arrival(0, at(5, 90))], 0, observed=[]).is_empty
    assert op.progress.watermark == MIN
    assert op.schema is not None


def test_observed_rows_count_without_any_arrival():
    op = operator(Bounded(0), Bounded(0))
    op.process_all([Arrival(0, at(5))], 0, observed=[Arrival(0, at(5))])
    assert op.process_all([], 0, observed=[Arrival(0, at(30).select(["ts"]))]).is_empty
    assert fired(op.process_all([], 0, observed=[Arrival(1, at(25))])) == [(0, 10, 1)]


def test_observed_rows_may_come_before_the_schema_is_known():
    op = operator(Bounded(0))
    assert op.process_all([], 0, observed=[Arrival(0, at(30).select(["ts"]))]).is_empty
    assert (op.progress.watermark, op.schema) == (30, None)
    assert reasons(op.process_all([Arrival(0, at(5))], 0, observed=[])) == [("very_late", 1)]


def test_observed_rows_are_a_sign_of_life_and_those_from_the_future_are_not():
    op = operator(Bounded(0, idle_after=10), options={"future_tolerance": 5})
    op.process_all([], 0, observed=[Arrival(0, at(3))])
    op.process_all([], 8, observed=[Arrival(0, at(2))])
    assert not op.is_idle
    op.advance_clock(17)
    assert not op.is_idle
    op.process_all([], 17, observed=[Arrival(0, at(99))])
    op.advance_clock(18)
    assert op.is_idle
    assert op.progress.watermark == 3


def test_markers_among_arrivals_are_no_events_though_others_told_the_watermark():
    table = pa.table({"ts": [5, 12, None], "k": ["a", "a", "a"], "m": [False, True, True]})
    op = operator(Punctuated(marker="m"))
    out = op.process_all(
        [Arrival(0, table)], 0, observed=[Arrival(0, pa.table({"ts": [20], "m": [True]}))]
    )
    assert fired(out) == [(0, 10, 1)]
    assert reasons(out) == [("null_time", 1)]
    assert (op.progress.counters["markers"], op.progress.counters["events"]) == (1, 2)


def test_a_watermark_that_goes_back_is_refused_before_anything_is_taken():
    op = operator(Punctuated(column="v"), options={"strict": True})
    op.process_all([], 0, observed=[Arrival(0, rows_of({"ts": 1, "v": 50}))])
    with pytest.raises(WatermarkError):
        op.process_all([Arrival(0, at(60))], 0, observed=[Arrival(0, rows_of({"ts": 1, "v": 40}))])
    assert op.progress.counters["events"] == 0


def test_on_offsets_the_watermark_follows_what_all_have_taken():
    op = operator(Implied(), window=Tumbling(10, axis=Axis.OFFSET), input0={"offset": "offset"})
    assert op.process_all(
        [Arrival(0, at(1, offset=3))], 0, observed=[Arrival(0, at(1, offset=8))], hold=True
    ).is_empty
    assert op.process_all([Arrival(0, at(1, offset=5))], 0, observed=[]).is_empty, (
        "a piece of a micro-batch does not make the next a duplicate"
    )
    assert fired(op.process_all([], 0, observed=[Arrival(0, at(1, offset=14))])) == [(0, 10, 2)]


def test_the_newest_event_of_all_counts_for_retention():
    op = operator(Explicit(), retention=Retention(time=20))
    op.process_all([Arrival(0, at(5))], 0, observed=[Arrival(0, at(5))])
    assert fired(op.process_all([], 0, observed=[Arrival(0, at(100).select(["ts"]))])) == [
        (0, 10, 1)
    ]


# Rows that are refused


def test_refused_rows_go_to_late_and_are_counted():
    op = operator(Bounded(0, idle_after=10), input0={"offset": "offset"})
    out = op.refuse(at(5, None, offset=None), 3, "null_offset", "`offset` is null")
    (rows,) = out.late
    assert (rows.reason, rows.detail.to_pylist(), rows.emitted_at) == (
        "null_offset",
        ["`offset` is null"] * 2,
        3,
    )
    assert rows.table.column("ts").to_pylist() == [5, None]
    assert (
        op.progress.counters["unreadable"],
        op.progress.counters["reason.null_offset"],
        op.progress.counters["events"],
    ) == (2, 2, 2)
    assert op.progress.watermark == MIN
    op.advance_clock(10)
    assert op.is_idle, "they are no sign of life"


def test_refused_rows_are_brought_to_the_schema():
    op = operator(Bounded(0))
    op.process(at(1))
    out = op.refuse(pa.table({"ts": ["x"], "k": ["a"], "v": ["many"]}), 0, "bad", "why")
    assert out.late[0].table.schema.equals(op.schema)
    assert out.late[0].table.column("k").to_pylist() == ["a"]
    assert op.refuse(at(), 0, "bad", "why").is_empty


def test_refused_rows_of_an_input_that_lacks_a_key_cannot_be_told():
    with pytest.raises(InputError, match="no column `k`"):
        operator(Bounded(0)).refuse(pa.table({"ts": [1]}), 0, "bad", "why")


# After a pause


@pytest.mark.parametrize(("counts", "idle"), [(0, False), (3, False), (4, True), (1000, True)])
def test_so_much_of_a_pause_is_silence_as_is_said(counts, idle):
    store = MemoryStore()
    op = WindowedAggregate(spec(Bounded(0, idle_after=10)), store)
    op.process(at(5), 1)
    op.advance_clock(7)
    stored.save(op)
    store.commit()
    again = WindowedAggregate(spec(Bounded(0, idle_after=10)), store, now=1000)
    assert stored.restore(again, counts=counts)
    again.advance_clock(1000)
    assert again.watermark_tracker.is_idle() is idle


# Shards and pieces against the whole


class InPieces(Embedded):
    """The same operator, which gets its micro-batches in pieces."""

    def __init__(self, case: Case, cut: int) -> None:
        self.cut = cut
        super().__init__(case.config)

    def add(self, rows: list[Row]) -> Output:
        if self.operator.spec.input.offset is not None:
            rows = sorted(rows, key=lambda row: (row["partition"], row["offset"]))
        for start in range(0, len(rows), self.cut):
            self._take(rows[start : start + self.cut], hold=True)
        self._take([], hold=False)
        return self.results()

    def _take(self, rows: list[Row], *, hold: bool) -> None:
        self.operator._emit(
            self.operator.operator.process_all([Arrival(0, rows_of(*rows))], self.now, hold=hold)
        )


class Sharded:
    """Several operators, each with some of the keys; all see the same condensed rows."""

    def __init__(self, case: Case, cut: int) -> None:
        self.config, self.cut, self.shards = (
            case.config,
            cut,
            [Embedded(case.config) for _ in range(3)],
        )

    def add(self, rows: list[Row]) -> Output:
        given, options = self.shards[0].operator.spec.input, self.shards[0].operator.spec.options
        limit = (
            None
            if options.future_reference == "watermark"
            else self.shards[0].now + options.future_tolerance
        )
        whole = rows_of(*rows)
        cut = [whole.slice(start, self.cut) for start in range(0, len(rows), self.cut)]
        observed = [
            Arrival(0, condense(piece, given, limit, axis=self.config.window.axis)) for piece in cut
        ]
        for number, shard in enumerate(self.shards):
            share = [row for row in rows if ("a", "b", None).index(row["k"]) == number]
            shard.operator._emit(
                shard.operator.operator.process_all(
                    [Arrival(0, rows_of(*share))], shard.now, observed=observed
                )
            )
        marks = {shard.operator.operator.progress.watermark for shard in self.shards}
        assert len(marks) == 1
        return self.results()

    def results(self) -> Output:
        found = [shard.results() for shard in self.shards]
        return [row for panes, _ in found for row in panes], [
            row for _, late in found for row in late
        ]

    def restart(self) -> Output:
        return self._all("restart")

    def finish(self) -> Output:
        return self._all("finish")

    def advance_watermark(self, watermark: int) -> Output:
        return self._all("advance_watermark", watermark)

    def timeout(self, now: int) -> Output:
        return self._all("timeout", now)

    def _all(self, verb: str, *args: Any) -> Output:
        found = [getattr(shard, verb)(*args) for shard in self.shards]
        return [row for panes, _ in found for row in panes], [
            row for _, late in found for row in late
        ]


def played(machine: Any, step: Step | None) -> Output:
    if step is None:
        return machine.finish()
    verbs = {
        "add": "add",
        "watermark": "advance_watermark",
        "timeout": "timeout",
        "restart": "restart",
    }
    return getattr(machine, verbs[step.verb])(*(() if step.verb == "restart" else (step.value,)))


def check_same(case: Case, machine: Any) -> None:
    whole = Embedded(case.config)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for step in (*case.steps, None):
            want, have = played(whole, step), played(machine, step)
            assert panes(case.config, have[0]) == panes(case.config, want[0]), step
            assert late(case.config, have[1]) == late(case.config, want[1]), step


cuts = st.integers(1, 3)


@pytest.mark.slow
@given(cases() | per_key_cases(), cuts)
def test_a_micro_batch_in_pieces_is_the_whole_one(case, cut):
    assume(case.config.granularity == "element" and case.config.window.axis is not Axis.ORDINAL)
    # Sessions of one piece are merged before a closed one is looked for, and a key has room for
    # windows as its messages come.
    assume(not isinstance(case.config.window, Session) or not case.config.retain_windows)
    check_same(case, InPieces(case, cut))


@pytest.mark.slow
@given(cases() | per_key_cases(), cuts)
def test_shards_do_together_what_one_operator_does(case, cut):
    config = case.config
    # How many keys are ahead, and whether an event is from the future for its key, is known where
    # the keys are.
    assume(
        config.max_keys is None
        and (config.watermark != "per_key" or config.future_reference == "clock")
    )
    # What was from the future and comes again when it is not is a duplicate, and at the edge nobody
    # knows.
    assume((config.id is None and config.offset is None) or config.future_tolerance > 1000)
    case = dataclasses.replace(case, config=dataclasses.replace(config, key=("k",)))
    check_same(case, Sharded(case, cut))


# When to look at the clock


def follows_clock(op: WindowedAggregate) -> bool:
    return op.spec.window.axis is Axis.CLOCK or any(
        isinstance(given.watermark, Lagging) for given in op.spec.inputs
    )


def check_quiet(op: WindowedAggregate, share: float) -> None:
    """Nothing happens before the next instant that is due, however the clock gets near it."""
    now, due = op.progress.now, op.next_due
    assert due is None or due > now
    last = now + 1000 if due is None else due - 1
    for instant in sorted({now + int((last - now) * share), last}):
        if instant > now:
            before = (op.progress.watermark, op.watermark_tracker.is_idle(op.key))
            assert op.advance_clock(instant).is_empty
            assert (
                follows_clock(op)
                or (op.progress.watermark, op.watermark_tracker.is_idle(op.key)) == before
            )
    if due is not None:
        assert op.next_due is not None
        assert op.next_due >= due, (
            "later only where a source is paused, whose silence does not count"
        )


@given(cases(), st.floats(0, 1))
def test_nothing_happens_before_the_next_instant_that_is_due(case, share):
    op = WindowedAggregate(specification(case.config), MemoryStore(), now=0)
    for step in case.steps:
        if step.verb == "add":
            op.process(rows_of(*step.value))
        elif step.verb == "watermark":
            op.change_sources(
                lambda watermark_tracker, step=step: watermark_tracker.promise(step.value)
            )
        elif step.verb == "timeout":
            op.advance_clock(step.value)
        check_quiet(op, share)


@given(st.lists(sources.specs, min_size=1, max_size=3), sources.histories(), st.floats(0, 1))
def test_no_source_falls_silent_before_the_next_instant_that_is_due(marks, history, share):
    inputs = [Input("ts", (), partition="p", watermark=mark) for mark in marks]
    found = AggregateSpec(
        inputs[0],
        Tumbling(10),
        COUNTED,
        options=Options(future_tolerance=FAR),
        also=tuple(inputs[1:]),
    )
    op = WindowedAggregate(found, MemoryStore(), now=0)
    for verb, *args in history:
        ordinal = args[0] % len(marks) if verb != "timeout" else 0
        if verb == "deliver":
            op.process(
                pa.Table.from_pylist(args[1], sources.SCHEMA), op.progress.now + args[2], ordinal
            )
        elif verb == "timeout":
            op.advance_clock(op.progress.now + args[0])
        elif verb == "promise":
            op.change_sources(
                lambda watermark_tracker, a=args, n=ordinal: watermark_tracker.promise(
                    a[1], ordinal=n, partition=a[2]
                )
            )
        elif verb in {"join", "leave"}:
            op.change_sources(
                lambda watermark_tracker, v=verb, a=args, n=ordinal: getattr(watermark_tracker, v)(
                    a[1], ordinal=n
                )
            )
        else:
            op.change_sources(
                lambda watermark_tracker, v=verb, a=args, n=ordinal: getattr(watermark_tracker, v)(
                    ordinal=n, partition=a[1]
                )
            )
        check_quiet(op, share)


def test_a_window_on_the_clock_is_due_when_it_ends():
    op = operator(Implied(), window=Tumbling(10, axis=Axis.CLOCK))
    assert op.next_due is None
    op.process(at(1), 3)
    assert op.next_due == 10
    assert fired(op.advance_clock(10)) == [(0, 10, 1)]


def test_static_windows_on_the_clock_are_due_one_after_the_other():
    op = operator(Implied(), window=Tumbling(10, axis=Axis.CLOCK, create="static"))
    op.process(at(1), 3)
    op.advance_clock(10)
    assert op.next_due == 20


def test_silence_and_forgetting_are_due():
    op = operator(Bounded(0, idle_after=30))
    assert op.next_due == 30, "an input that never spoke"
    op.process(at(5), 12)
    assert op.next_due == 42
    op.advance_clock(42)
    assert op.next_due is None
    writers = operator(Noted("v", writer="k", idle_after=30, forget_after=50))
    writers.process(at(5), 12)
    assert writers.next_due == 42
    writers.advance_clock(42)
    assert writers.next_due == 62
    writers.advance_clock(62)
    assert writers.next_due is None


def test_what_follows_the_clock_is_due_when_it_reaches_what_waits():
    op = operator(Lagging(7), now=20)
    assert op.next_due is None, "nothing waits"
    op.process(at(25), 20)
    assert op.next_due == 37
    assert op.advance_clock(36).is_empty
    assert fired(op.advance_clock(37)) == [(20, 30, 1)]


def test_what_waits_for_somebody_else_is_not_due():
    op = operator(Lagging(7), Explicit(), now=20)
    op.process(at(25), 20)
    op.advance_clock(50)
    assert op.next_due is None
    assert fired(
        op.change_sources(lambda watermark_tracker: watermark_tracker.promise(30, ordinal=1))
    ) == [(20, 30, 1)]


def test_what_is_overdue_is_due_at_the_next_instant():
    op = operator(Bounded(0, idle_after=5))
    op.process(at(5), 0)
    op.refuse(at(1), 50, "bad", "why")
    assert op.next_due == 51
    op.advance_clock(51)
    assert op.watermark_tracker.is_idle()


def test_a_late_update_that_waits_is_due():
    op = operator(Explicit(), allowed_lateness=MAX)
    op.process(at(5), 0)
    op.change_sources(lambda watermark_tracker: watermark_tracker.promise(20))
    op.process(at(6), 3)
    assert op.next_due == 3 + 10_000_000
    assert isinstance(op.next_due, int)


def test_an_embedded_operator_knows_it_too():
    with EmbeddedOperator(spec(Bounded(0, idle_after=30)), now=0) as found:
        assert found.operator.next_due == 30

"""The operator does what the reference does, for random configurations and histories."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import assume, given

import tidegate as tg
from support.reference import Config, Reference
from support.reference.model import SECOND
from support.strategies import Case, Step, busy_cases, cases, cut_cases
from tidegate.api.streams import Panes
from tidegate.instants import MAX
from tidegate.kernel.frame import to_arrow
from tidegate.spec.operator import AggregateSpec, Input, Options, Retention
from tidegate.spec.triggers import AfterCount, Never, Policy
from tidegate.spec.watermarks import Bounded, Explicit, Implied, PerKey, Watermarks
from tidegate.spec.windows import Axis, ByDifference, Hopping, Session, Tumbling
from tidegate.state.memory import MemoryStore

Output = tuple[list[dict[str, Any]], list[dict[str, Any]]]
SCHEMA = pa.schema(
    {
        "ts": pa.int64(),
        "k": pa.string(),
        "v": pa.int64(),
        "gap": pa.int64(),
        "partition": pa.string(),
        "offset": pa.int64(),
        "id": pa.string(),
    }
)
AGGREGATES = {"n": tg.count(), "total": tg.sum("v"), "values": tg.list_("v")}
OPTIONS = {field.name for field in dataclasses.fields(Options)} & {
    field.name for field in dataclasses.fields(Config)
}
PANE = (
    "k",
    "window_start",
    "window_end",
    "op",
    "timing",
    "pane",
    "pane_nonspeculative",
    "is_first",
    "is_last",
    "time",
    "emitted_at",
)


def watermark(config: Config) -> Watermarks:
    if config.watermark == "per_key":
        return PerKey(config.disorder, config.floor, config.max_keys)
    if config.watermark == "bounded":
        return Bounded(config.disorder)
    return Implied() if config.watermark == "implied" else Explicit()


def specification(config: Config) -> AggregateSpec:
    """The specification of the operator that a configuration means."""
    timed = config.window.axis is Axis.EVENT_TIME
    return AggregateSpec(
        Input(
            time=config.time if timed else None,
            key=config.key,
            id=config.id,
            offset=config.offset,
            partition=config.partition,
            watermark=watermark(config),
        ),
        config.window,
        tuple((name, AGGREGATES[name]) for name in config.aggregates),
        config.trigger,
        config.mode,
        config.allowed_lateness,
        Options(**{name: getattr(config, name) for name in OPTIONS}),
        Retention(config.retain_time, config.retain_windows, config.retain_messages),
    )


class Embedded:
    """The operator behind the calls of the reference."""

    def __init__(self, config: Config) -> None:
        self.panes, self.store, self.now = Panes(specification(config)), MemoryStore(), config.now
        self.open()

    def open(self) -> None:
        self.operator = self.panes.embedded(store=self.store, now=self.now)

    def restart(self) -> Output:
        self.operator.flush()
        self.open()
        return self.results()

    def add(self, rows: list[dict[str, Any]]) -> Output:
        self.operator.add_messages(pa.Table.from_pylist(rows, SCHEMA))
        return self.results()

    def advance_watermark(self, watermark: int) -> Output:
        self.operator.advance_watermark(watermark)
        return self.results()

    def timeout(self, now: int) -> Output:
        self.now = now
        self.operator.timeout(now)
        return self.results()

    def finish(self) -> Output:
        self.operator.finish()
        return self.results()

    def readable(self) -> dict[Any, int]:
        """By key and window, how many messages each readable window holds."""
        spec, schema = self.panes.spec, self.operator.operator.schema
        if schema is None:
            return {}
        wiring = self.operator.operator.bound()
        cells = wiring.context.cells.all()
        if cells is None:
            return {}
        keys = zip(*(to_arrow(cells[f"k.{name}"]).to_pylist() for name in spec.key), strict=True)
        spans = zip(cells.ints("start").tolist(), cells.ints("end").tolist(), strict=True)
        held = zip(list(keys) if spec.key else [()] * len(cells), spans, strict=True)
        return dict(zip(held, cells.ints("row_count").tolist(), strict=True))

    def results(self) -> Output:
        result = self.operator.get_result()
        self.operator.flush()
        return in_ticks(result.panes).to_pylist(), in_ticks(result.late).to_pylist()


class Model(Reference):
    """The reference, which restarts by a copy of itself."""

    def restart(self) -> Output:
        self.restore(self.snapshot())
        return [], []


def in_ticks(table: pa.Table) -> pa.Table:
    """The table with instants as numbers, as the reference has them."""
    kinds = [as_number(field.type) for field in table.schema]
    return table.cast(pa.schema(list(zip(table.column_names, kinds, strict=True))))


def as_number(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.int64()
    if pa.types.is_list(kind):
        return pa.list_(as_number(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, as_number(field.type)) for field in kind])
    return kind


def verbs(machine: Any) -> dict[str, Any]:
    return {
        "add": machine.add,
        "watermark": machine.advance_watermark,
        "timeout": machine.timeout,
        "restart": lambda _: machine.restart(),
    }


def play(machine: Any, case: Case) -> list[Output]:
    """What each step gives; the last is the end of input."""
    known = verbs(machine)
    return [*(known[step.verb](step.value) for step in case.steps), machine.finish()]


def retained(machine: Any, case: Case) -> list[dict[Any, int]]:
    """After each step, the windows that can be read and how many messages each holds."""
    known, found = verbs(machine), []
    for step in case.steps:
        known[step.verb](step.value)
        found.append(machine.readable())
    return found


def panes(config: Config, rows: list[dict[str, Any]]) -> list[str]:
    """The panes of one step in an order that does not depend on who made them."""
    names = [*PANE, *config.aggregates, *(["watermark"] if config.window.axis.is_time else [])]
    return sorted(
        repr({name: plain(row, name) for name in names if name != "k" or config.key})
        for row in rows
    )


def plain(row: dict[str, Any], name: str) -> Any:
    """A field of a pane; a list of values is a multiset, and empty where there is nothing."""
    return sorted(row[name] or []) if name == "values" else row.get(name)


def late(config: Config, rows: list[dict[str, Any]]) -> list[str]:
    """The late rows of one step; what never fired is told by window, because an operator need not
    keep the messages.
    """
    told = Counter(
        repr((row.get("k") if config.key else None, spans(row)))
        for row in rows
        if row["reason"] == "unfired"
    )
    names = [
        *SCHEMA.names,
        "class",
        "reason",
        *(["watermark"] if config.window.axis.is_time else []),
        "emitted_at",
    ]
    if (config.retain_time or config.retain_windows or config.retain_messages) and isinstance(
        config.window, Session
    ):
        # A session that retention keeps after its expiry is closed and expired: both are reasons.
        rows = [
            {**row, "reason": "window_expired"} if row["reason"] == "window_closed" else row
            for row in rows
        ]
    single = sorted(
        repr([*(row.get(name) for name in names), spans(row)])
        for row in rows
        if row["reason"] != "unfired"
    )
    return [*single, *sorted(told)]


def spans(row: dict[str, Any]) -> list[tuple[Any, ...]]:
    found = [tuple(s.values()) if isinstance(s, dict) else tuple(s) for s in row["windows"] or []]
    return sorted(found, key=repr)


def check_order(
    rows: list[dict[str, Any]], standing: dict[tuple[Any, ...], Any], names: tuple[str, ...]
) -> None:
    """A retraction takes back what stands, and a pane does not replace one that still does."""
    for row in rows:
        window, value = (
            (row.get("k"), row["window_start"], row["window_end"]),
            [row[name] for name in names],
        )
        if row["op"] == "-":
            assert standing.pop(window) == value
        else:
            assert window not in standing
            standing[window] = value


def compare(case: Case) -> None:
    standing: dict[tuple[Any, ...], Any] = {}
    wanted, got = play(Model(case.config), case), play(Embedded(case.config), case)
    for number, (want, have) in enumerate(zip(wanted, got, strict=True)):
        step = case.steps[number] if number < len(case.steps) else "finish"
        assert panes(case.config, have[0]) == panes(case.config, want[0]), step
        assert late(case.config, have[1]) == late(case.config, want[1]), step
        if case.config.mode == "retracting":
            check_order(have[0], standing, case.config.aggregates)


@given(busy_cases())
def test_differential_many_messages_of_one_key_in_a_delivery(case):
    compare(case)


def test_a_message_that_misses_windows_closed_by_different_firings_is_one_late_row():
    config = Config(
        Hopping(6, 2), AfterCount(3), key=("k",), allowed_lateness=0, future_tolerance=MAX // 2
    )
    rows = [message(number, ts) for number, ts in enumerate([0, 0, 4, 0, 4, 4, 4, 2, 3, 5, 1])]
    compare(Case(config, (Step("add", rows),)))


def test_a_window_that_retention_pushes_out_has_the_messages_before_that_in_its_delivery():
    config = Config(
        Tumbling(5), key=("k",), allowed_lateness=10, future_tolerance=MAX // 2, retain_windows=1
    )
    rows = [message(number, ts) for number, ts in enumerate([0, 1, 2, 6, 7, 3, 8, 12, 13])]
    compare(Case(config, (Step("add", rows[:2]), Step("add", rows[2:]))))


@pytest.mark.parametrize("aggregates", [("n",), ("n", "values")])
def test_a_session_that_its_trigger_has_completed_stays_so_until_it_grows(aggregates):
    config = Config(
        Session(5),
        Policy(late=AfterCount(1), full=AfterCount(2)),
        key=("k",),
        future_tolerance=MAX // 2,
        aggregates=aggregates,
    )
    rows = [message(number, ts) for number, ts in enumerate([0, 0, 0, 0, 0, 2, 2, 1, 1, 4, 4])]
    compare(Case(config, (Step("add", rows[:4]), Step("add", rows[4:]))))


def message(number: int, ts: int, gap: int = 0) -> dict[str, Any]:
    return {
        "ts": ts,
        "k": "a",
        "v": number,
        "gap": gap,
        "partition": "p0",
        "offset": number,
        "id": f"m{number}",
    }


@pytest.mark.parametrize("touch", ["separate", "merge"])
@pytest.mark.parametrize("lateness", [0, 3])
def test_a_session_that_ends_at_the_watermark_leaves_nothing_to_a_later_one_in_its_place(
    touch, lateness
):
    config = Config(
        Session(gap_column="gap", touch=touch),
        allowed_lateness=lateness,
        key=("k",),
        future_tolerance=MAX // 2,
    )
    past = Step("watermark", 42 + lateness)
    compare(
        Case(
            config,
            (
                Step("add", [message(1, 42)]),
                past,
                Step("add", [message(2, 42)]),
                Step("add", [message(3, 42, 4), message(4, 40, 2)]),
            ),
        )
    )
    compare(
        Case(
            config,
            (
                Step("add", [message(1, 40, 2), message(2, 42)]),
                past,
                Step("add", [message(3, 42)]),
                Step("add", [message(4, 42, 3)]),
            ),
        )
    )


def test_sessions_that_are_too_late_are_told_as_each_message_alone_makes_them():
    config = Config(
        Session(gap_column="gap"),
        Never(),
        key=("k",),
        future_tolerance=MAX // 2,
        drop_by="window",
        session_lateness="merged",
    )
    compare(
        Case(
            config,
            (
                Step("watermark", 100 * SECOND),
                Step("add", [message(1, -5, 8), message(2, -1, 1), message(3, -3, 8)]),
            ),
        )
    )


MERGED = Config(
    Session(7),
    allowed_lateness=0,
    key=("k",),
    future_tolerance=MAX // 2,
    drop_by="window",
    session_lateness="merged",
)


def test_a_session_keeps_a_message_that_is_older_than_any_that_would_be_taken_alone():
    late = (
        Step("add", [message(3, 0)]),
        Step("add", [message(4, 3)]),
        Step("add", [message(5, 0)]),
        Step("add", [message(6, -6)]),
    )
    compare(
        Case(MERGED, (Step("add", [message(1, 0), message(2, 0)]), Step("watermark", 9), *late))
    )


def test_a_session_that_grows_backwards_does_not_find_what_an_expired_one_held():
    """Another key has an older session, so no position tells that the messages of the expired one
    are of no use.
    """
    older = [{**message(number, at), "k": "b"} for number, at in ((1, 2), (2, 8))]
    back = (Step("add", [message(4, 6)]), Step("add", [message(5, 3)]))
    compare(Case(MERGED, (Step("add", [*older, message(3, 4)]), Step("watermark", 12), *back)))


def test_a_late_message_joins_a_session_of_its_own_delivery_only_if_that_came_before_it():
    """A trigger that waits for the watermark alone takes deliveries at once, but for keys with late
    messages.
    """
    quiet = dataclasses.replace(MERGED, trigger=Never())
    compare(
        Case(
            quiet,
            (Step("watermark", 9), Step("add", [message(1, 0), message(2, 3), message(3, 1)])),
        )
    )


@pytest.mark.parametrize("window", [Session(7), Session(gap_column="gap")], ids=str)
def test_a_session_does_not_find_what_an_expired_one_held_inside_a_closed_one(window):
    """The closed session [0, 19) holds no messages, and those of [2, 9) must go though they lie
    after its start.
    """
    config = dataclasses.replace(MERGED, window=window, trigger=AfterCount(3))
    closed, inside = (
        [message(n, at, 7) for n, at in ((1, 0), (2, 6), (3, 12))],
        Step("add", [message(4, 2, 7)]),
    )
    compare(
        Case(
            config,
            (
                Step("add", closed),
                inside,
                Step("watermark", 10),
                Step("add", [message(5, 6, 7)]),
                Step("add", [message(6, 1, 7)]),
            ),
        )
    )


def test_windows_behind_a_horizon_and_windows_without_room_are_told_in_one_late_row():
    config = Config(Hopping(7, 2), key=("k",), future_tolerance=MAX // 2, retain_windows=3)
    compare(
        Case(
            config,
            (
                Step("add", [message(1, -18)]),
                Step("add", [message(2, 28)]),
                Step("add", [message(3, -13)]),
            ),
        )
    )


def test_of_sessions_that_end_together_the_one_that_starts_later_has_the_room():
    config = Config(
        Session(gap_column="gap"), key=("k",), future_tolerance=MAX // 2, retain_windows=1
    )
    compare(
        Case(
            config,
            (
                Step("add", [message(1, 2, 5)]),
                Step("add", [message(2, 7)]),
                Step("restart"),
                Step("add", [message(3, 6, 1)]),
            ),
        )
    )


def test_an_id_is_known_as_long_as_a_window_by_difference_can_take_its_message():
    config = Config(
        ByDifference(6),
        key=("k",),
        id="id",
        future_tolerance=MAX // 2,
        drop_by="window",
        allowed_lateness=10,
    )
    compare(
        Case(
            config,
            (
                Step("add", [message(1, 5), message(2, 8)]),
                Step("watermark", 16),
                Step("add", [message(1, 5)]),
            ),
        )
    )


def test_a_very_late_event_evicts_nothing():
    config = Config(
        Tumbling(1), key=("k",), future_tolerance=MAX // 2, allowed_lateness=0, retain_time=1
    )
    case = Case(
        config,
        (Step("add", [message(1, -2)]), Step("watermark", 1), Step("add", [message(2, 0)])),
    )
    compare(case)
    windows = {(("a",), (-2, -1)): 1}
    assert retained(Embedded(config), case) == retained(Model(config), case) == [windows] * 3


@given(cases(retention=False))
def test_differential_operator(case):
    compare(case)


@given(cases())
def test_differential_retention(case):
    assume(case.config.retain_time or case.config.retain_windows or case.config.retain_messages)
    compare(case)
    assert retained(Embedded(case.config), case) == retained(Model(case.config), case)


@given(cut_cases(retention=False))
def test_cuts_do_not_matter(pair):
    one, other = (play(Embedded(case.config), case) for case in pair)
    config = pair[0].config
    for which, normal in enumerate((panes, late)):
        assert normal(config, [row for out in one for row in out[which]]) == normal(
            config, [row for out in other for row in out[which]]
        )


@given(cases(retention=False))
def test_emits_minus_retracts_are_what_stands_in_the_reference(case):
    """The net of the operator's rows is what the reference has standing; that this is the batch
    answer is checked in `test_reference`.
    """
    config = dataclasses.replace(
        case.config,
        mode="retracting",
        fire_only_updated=False,
        closing="if_nonempty",
        aggregates=("n", "total"),
    )
    outputs = play(Embedded(config), Case(config, case.steps))
    net: Counter[str] = Counter()
    for row in (row for out in outputs for row in out[0]):
        net[
            repr([row.get(name) for name in ("k", "window_start", "window_end", "n", "total")])
        ] += 1 if row["op"] == "+" else -1
    truth: Counter[str] = Counter()
    for row in last_of_each(
        row for out in play(Model(config), Case(config, case.steps)) for row in out[0]
    ):
        truth[
            repr([row.get(name) for name in ("k", "window_start", "window_end", "n", "total")])
        ] += 1
    assert +net == truth
    assert not -net


def last_of_each(rows: Any) -> list[dict[str, Any]]:
    """What stands at the end."""
    standing: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        window = (row.get("k"), row["window_start"], row["window_end"])
        if row["op"] == "-":
            del standing[window]
        else:
            standing[window] = row
    return list(standing.values())

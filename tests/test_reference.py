"""The reference agrees with the scenarios of the systems it is modelled after, under the preset of
each system.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given

from conformance.manual import Manual
from support.contradictions import CONTRADICTIONS
from support.reference import Config, Reference
from support.reference.triggers import Moment, start
from support.reference.windows import aligned, proto
from support.strategies import Case, cases, cut_cases
from tidegate.errors import WatermarkError
from tidegate.instants import MAX, MIN
from tidegate.spec import triggers as t
from tidegate.spec.trigger_text import parse_trigger
from tidegate.spec.windows import Axis, ByDifference, Global, Hopping, Session, Tumbling, Window

FOLDER = Path(__file__).parent.parent / "conformance" / "scenarios"
ENDS = {"-inf": MIN, "+inf": MAX}
SHIFT = {"inclusive": 1, "strict": -1}
PRESETS: dict[str, dict[str, Any]] = {
    "beam": {
        "mode": "discarding",
        "drop_by": "window",
        "granularity": "batch",
        "on_time": "always",
    },
    "flink": {"drop_by": "window", "session_lateness": "merged", "closing": "never"},
    "hazelcast": {"mode": "discarding"},
    "malhar": {"allowed_lateness": MAX, "granularity": "batch"},
    "samza": {"mode": "discarding"},
    "design": {},
}
# Steps about the watermark that an operator forwards: the reference has none.
NOT_LOOKED_AT = {"hold", "output_watermark", "out_wm", "state_windows_hint"}

# Scenarios whose words only the runner of conformance reads: gaps by rule, windows that are merged
# again, empty panes by SDK.
NOT_READ = {
    "flink.window.dynamic_gap_sessions",
    "beam.trigger.after_all_merge_rewinds",
    "beam.pipeline.repeated_processing_time",
    "beam.transcript.timestamp_combiner_custom_timestamping_earliest_2",
    "beam.driver.sessions_after_each",
    "beam.reducefn.global_processing_time_then_empty_drain",
}


SCENARIOS = [
    scenario
    for path in sorted(FOLDER.glob("*.yaml"))
    for scenario in yaml.safe_load(path.read_text("utf-8"))
    if scenario["id"] not in NOT_READ
]


def load(*kinds: str) -> list[Any]:
    return [
        pytest.param(scenario, id=scenario["id"])
        for scenario in SCENARIOS
        if scenario["kind"] in kinds
    ]


def instant(value: Any) -> Any:
    return ENDS.get(value, value)


def words(scenario: dict[str, Any], text: str) -> t.Trigger:
    """The trigger that a scenario names in the words of its system."""
    refire = scenario["id"].startswith("malhar.")
    if found := re.fullmatch(r"EarlyEvery\((time|count)=(\d+)\)", text):
        n = int(found[2])
        return t.AfterWatermark(early=t.Every(n, refire) if found[1] == "time" else t.AfterCount(n))
    if found := re.fullmatch(r"(?:early=(.*), )?default=(?:window end|session gap elapsed)", text):
        return t.AfterWatermark(early=parse_trigger(found[1]) if found[1] else None)
    if found := re.fullmatch(r"Purging\((.*)\)", text):
        return words(scenario, found[1])
    if found := re.fullmatch(r"Count\((\d+)\)", text):
        return t.Repeatedly(t.AfterCount(int(found[1])))
    if found := re.fullmatch(r"ContinuousEventTime\((\d+)\)", text):
        return t.AfterWatermark(early=t.EventInterval(int(found[1])), late=t.EveryElement())
    named = {
        "Manual": Manual(),
        "EventTime": t.Default(),
        "ProcessingTime": t.AfterWatermark(),
        "EndOfStream": t.AfterWatermark(),
        "none": t.Never(),
    }
    return named[text] if text in named else parse_trigger(text)


def window_of(config: dict[str, Any]) -> Window:
    given, axis = (
        config["window"],
        Axis.CLOCK if config.get("time_domain") == "processing" else Axis.EVENT_TIME,
    )
    match given["type"]:
        case "fixed":
            return Tumbling(given["size"], given.get("offset", 0), axis)
        case "sliding":
            return Hopping(given["size"], given["period"], given.get("offset", 0), axis)
        case "session":
            # Malhar's order-dependent rule is not offered; its scenario has no touching sessions.
            touch = {"asymmetric": "separate"}.get(
                given.get("touch"), given.get("touch", "separate")
            )
            by_column = "zero_gap_when_v" in given
            return Session(
                None if by_column else given["gap"], "gap" if by_column else None, touch, axis
            )
    return Global(axis)


def config_of(scenario: dict[str, Any]) -> Config:
    given, system = scenario["config"], scenario["id"].split(".")[0]
    options: dict[str, Any] = {
        "now": given.get("initial_processing_time", 0),
        "future_tolerance": MAX,
        **PRESETS[system],
    }
    if "mode" in given:
        options["mode"] = given["mode"].replace("accumulating_and_retracting", "retracting")
    if "allowed_lateness" in given:
        options["allowed_lateness"] = instant(given["allowed_lateness"])
    options["granularity"] = (
        "batch" if given.get("granularity") in ("bundle", "batch") else "element"
    )
    # Beam's "if non-empty" asks whether anything came since the last pane.
    options["on_time"] = (
        "if_updated"
        if given.get("on_time") == "if_nonempty"
        else given.get("on_time", options.get("on_time", "if_nonempty"))
    )
    options["closing"] = (
        "never"
        if given.get("closing") == "never_without_trigger"
        else given.get("closing", options.get("closing", "if_nonempty"))
    )
    options["timestamp"] = given.get("timestamp_combiner", "end_of_window")
    options["fire_only_updated"] = given.get("only_updated_panes", False)
    options["aggregates"] = ("values",) if given.get("agg") == "list" else ("total",)
    options["strict"] = any("error" in step for step in scenario.get("steps", []))
    return Config(window_of(given), words(scenario, given["trigger"]), key=("k",), **options)


class Player:
    """Plays the steps of one scenario."""

    def __init__(self, scenario: dict[str, Any]) -> None:
        self.scenario, self.given = scenario, scenario["config"]
        self.reference = Reference(config_of(scenario))
        self.panes: list[dict] = []
        self.all_panes: list[dict] = []
        self.late: list[dict] = []
        self.failed = False

    def play(self, steps: list[dict[str, Any]]) -> None:
        for step in steps:
            ((verb, value),) = step.items()
            if verb not in NOT_LOOKED_AT:
                getattr(self, verb)(value)

    def take(self, output: tuple[list[dict], list[dict]]) -> None:
        self.panes += output[0]
        self.all_panes += output[0]
        self.late += output[1]

    def events(self, events: list[dict[str, Any]]) -> None:
        rows = [{"ts": e.get("t", 0), "v": e.get("v"), "k": e.get("k")} for e in events]
        window = self.given["window"]
        if "zero_gap_when_v" in window:
            rows = [
                {**row, "gap": 0 if row["v"] == window["zero_gap_when_v"] else window["gap"]}
                for row in rows
            ]
        self.take(self.reference.add(rows))

    def watermark(self, value: Any) -> None:
        moved = instant(value)
        if moved >= self.given.get("end_of_time", MAX):
            moved = MAX
        try:
            self.take(
                self.reference.advance_watermark(
                    moved if moved == MAX else moved + SHIFT.get(self.scenario["wm"], 0)
                )
            )
        except WatermarkError:
            self.failed = True

    def processing_time(self, now: Any) -> None:
        self.take(self.reference.timeout(now))

    def clock_only(self, now: Any) -> None:
        self.reference.now = now

    def batch(self, batch: dict[str, Any]) -> None:
        self.clock_only(batch["processing_time"])
        self.events(batch["events"])
        if "watermark" in batch:
            self.watermark(batch["watermark"])
        self.processing_time(batch["processing_time"])

    def end_of_input(self, _: bool) -> None:
        self.take(self.reference.finish())

    def trigger(self, switches: dict[str, bool]) -> None:
        self.reference.switch(ready=switches["ready"], finishes=switches.get("finishes", False))

    def snapshot_restore(self, _: bool) -> None:
        again = Reference(self.reference.config)
        again.restore(self.reference.snapshot())
        self.reference = again

    def expect(self, expected: list[dict[str, Any]]) -> None:
        got, self.panes = self.panes, []
        assert len(got) == len(expected), got
        if self.given.get("ordered"):
            assert all(self.fits(pane, want) for pane, want in zip(got, expected, strict=True)), got
        for want in expected:
            found = next((i for i, pane in enumerate(got) if self.fits(pane, want)), None)
            assert found is not None, (want, got)
            del got[found]

    def fits(self, pane: dict[str, Any], want: dict[str, Any]) -> bool:
        return fits(pane, want, "n" if self.given["agg"] == "count" else "total")

    def expect_count(self, n: int) -> None:
        assert len(self.all_panes) == n

    def expect_pane_of(self, want: dict[str, Any]) -> None:
        assert any(self.fits(pane, want) for pane in self.all_panes)

    def late_output(self, expected: list[dict[str, Any]]) -> None:
        got, self.late = self.late, []
        assert [{"t": row["ts"], "v": row["v"], "k": row["k"]} for row in got] == expected

    def dropped(self, n: int) -> None:
        assert self.reference.stats["dropped_pairs"] == n

    def error(self, expected: bool) -> None:
        assert self.failed is expected

    def state_windows(self, expected: list[list[int]]) -> None:
        assert sorted(s for _, s in self.reference.states) == sorted(map(tuple, expected))

    def state(self, expected: list[dict[str, Any]]) -> None:
        held = [
            (s.span, s.key[0], sum(e.row["v"] for e in s.elements))
            for s in self.reference.states.values()
        ]
        assert Counter(held) == Counter((tuple(e["window"]), e.get("k"), e["v"]) for e in expected)


def fits(pane: dict[str, Any], want: dict[str, Any], value: str) -> bool:
    """Whether a pane has all that is wanted of it; `value` names the aggregate that the scenario
    calls `v`.
    """
    timing = {"default": "on_time"}.get(want.get("timing"), want.get("timing"))
    got = {
        "window": [pane["window_start"], pane["window_end"]],
        "k": pane["k"],
        "v": pane[value],
        "n": pane["n"],
        "values": sorted(map(str, pane["values"])),
        "t": pane["time"],
        "timing": pane["timing"],
        "first": pane["is_first"],
        "last": pane["is_last"],
        "index": pane["pane"],
        "ns_index": pane["pane_nonspeculative"],
        "pane_id": pane["window_start"],
    }
    wanted = {**want, **({"timing": timing} if timing else {})}
    if "values" in wanted:
        wanted["values"] = sorted(map(str, wanted["values"]))
    if (
        wanted.pop("retract", False) is not (pane["op"] == "-")
        or wanted.pop("not_timing", None) == pane["timing"]
    ):
        return False
    return all(got[name] == value for name, value in wanted.items())


@pytest.mark.parametrize("scenario", load("panes"))
def test_panes(scenario):
    player = Player(scenario)
    if "must_fail" in scenario or scenario["id"] in CONTRADICTIONS:
        with pytest.raises(AssertionError):
            player.play(scenario["steps"])
    else:
        player.play(scenario["steps"])


@pytest.mark.parametrize("scenario", load("panes_by_window"))
def test_panes_by_window(scenario):
    for size in scenario["bundle_sizes"]:
        player = Player(scenario)
        play_bundles(player, scenario["data"], size)
        player.watermark("+inf")
        play_bundles(player, scenario.get("late_data", []), size)
        got: dict[tuple, list] = {}
        for pane in [pane for pane in player.panes if pane["op"] == "+"]:
            got.setdefault((pane["window_start"], pane["window_end"]), []).append(
                sorted(pane["values"])
            )
        assert got == {
            tuple(e["window"]): [sorted(p) for p in e["panes"]] for e in scenario["expect"]
        }, size


def play_bundles(player: Player, data: list[list[Any]], size: int) -> None:
    ordered = data if size > 0 else data[::-1]
    for i in range(0, len(ordered), abs(size)):
        player.events([{"t": t, "v": v} for t, v in ordered[i : i + abs(size)]])


def reference(window: Window, trigger: t.Trigger | None = None, **options: Any) -> Reference:
    return Reference(
        Config(window, trigger, **{"allowed_lateness": 10, "future_tolerance": MAX, **options})
    )


def feed(ref: Reference, *times: int) -> tuple[list[dict], list[dict]]:
    return ref.add([{"ts": ts, "v": ts} for ts in times])


def short(panes: list[dict]) -> list[tuple]:
    return [
        (p["op"], p["window_start"], p["window_end"], p["values"], p["timing"], p["is_last"])
        for p in panes
    ]


def test_defaults_one_pane_when_complete_and_late_updates_batched_for_ten_seconds():
    ref = reference(Tumbling(10))
    feed(ref, 1, 12)
    assert short(ref.advance_watermark(15)[0]) == [("+", 0, 10, [1], "on_time", False)]
    assert feed(ref, 7) == ([], [])
    assert ref.timeout(9_999_999) == ([], [])
    assert short(ref.timeout(10_000_000)[0]) == [("+", 0, 10, [1, 7], "late", False)]
    assert short(ref.advance_watermark(20)[0]) == [("+", 10, 20, [12], "on_time", False)]


def test_very_late_goes_to_late_with_its_windows():
    ref = reference(Hopping(10, 5))
    ref.advance_watermark(30)
    (row,) = feed(ref, 19)[1]
    assert (row["class"], row["reason"], row["windows"], row["watermark"]) == (
        "very_late",
        "very_late",
        [(10, 20), (15, 25)],
        30,
    )
    assert not feed(ref, 20)[1]


def test_by_window_an_event_is_dropped_only_for_the_windows_that_have_expired():
    ref = reference(Hopping(10, 5), drop_by="window")
    ref.advance_watermark(30)
    (row,) = feed(ref, 19)[1]
    assert (row["class"], row["reason"], row["windows"]) == (
        "very_late",
        "window_expired",
        [(10, 20)],
    )
    assert [s for _, s in ref.states] == [(15, 25)]


def test_a_future_event_does_not_move_an_implied_watermark():
    ref = reference(Tumbling(10), future_tolerance=20, watermark="implied")
    feed(ref, 5, 100)
    assert ref.watermark == 5
    assert ref.stats["future"] == 1
    ref = reference(Tumbling(10), future_tolerance=20, future="reject")
    assert [(r["ts"], r["reason"]) for r in feed(ref, 5, 100)[1]] == [(100, "future")]


def test_without_a_watermark_the_first_message_at_the_end_completes_a_window():
    ref = reference(Tumbling(10), t.AfterWatermark(), watermark="implied")
    assert feed(ref, 3, 9)[0] == []
    assert short(feed(ref, 10)[0]) == [("+", 0, 10, [3, 9], "on_time", True)]


def test_a_tuple_window_is_complete_with_its_last_message():
    ref = reference(Tumbling(3, axis=Axis.ORDINAL), t.AfterWatermark(), key=("k",))
    panes, _ = ref.add([{"k": k, "v": v} for v, k in enumerate("ababa")])
    assert short(panes) == [("+", 0, 3, [0, 2, 4], "on_time", True)]
    assert short(ref.finish()[0]) == [("+", 0, 3, [1, 3], "on_time", True)]


def test_a_tuple_session_ends_after_n_messages_without_its_key():
    ref = reference(Session(2, axis=Axis.OFFSET), t.AfterWatermark(), key=("k",), offset="o")
    panes, _ = ref.add([{"k": k, "v": o, "o": o} for o, k in enumerate("axabbba")])
    assert (
        short(panes)
        == [("+", 0, 5, [0, 2], "on_time", True), ("+", 1, 4, [1], "on_time", True)][::-1]
    )


def test_duplicates_are_recognised_by_offset_and_by_id():
    by_offset = reference(Global(), t.Default(), offset="o")
    rows = [{"ts": 1, "v": o, "o": o} for o in (1, 2)]
    by_offset.add(rows)
    by_offset.add([*rows, {"ts": 1, "v": 3, "o": 3}, {"ts": 1, "v": 3, "o": 3}])
    assert by_offset.finish()[0][0]["values"] == [1, 2, 3]
    by_id = reference(Tumbling(10), id="i")
    old = {"ts": 1, "v": 1, "i": "x"}
    by_id.advance_watermark(20)
    assert [len(by_id.add([old])[1]) for _ in range(2)] == [1, 0]
    by_id.advance_watermark(31)
    assert by_id.ids == {}


def test_by_difference_makes_the_windows_that_begin_or_end_at_an_event():
    ref = reference(ByDifference(3), t.AfterWatermark())
    feed(ref, 5, 7, 6)
    held = {(p["window_start"], p["window_end"]): p["values"] for p in ref.finish()[0]}
    assert held == {(3, 6): [5], (4, 7): [5, 6], (5, 8): [5, 7, 6], (6, 9): [7, 6], (7, 10): [7]}


@pytest.mark.parametrize(
    ("retention", "pushed", "refused"),
    [
        ({"retain_time": 5}, [(0, 10)], []),
        ({"retain_windows": 1}, [(0, 10)], [3]),
        ({"retain_messages": 1}, [(0, 10)], [3]),
    ],
)
def test_retention_pushes_windows_out_with_what_they_hold(retention, pushed, refused):
    ref = reference(Tumbling(10), **retention)
    feed(ref, 2)
    panes, late = feed(ref, 15, 3)
    assert [(p["window_start"], p["window_end"]) for p in panes] == pushed
    assert panes[0]["is_last"]
    assert [row["ts"] for row in late if row["reason"] == "out_of_retention"] == refused


def test_a_session_that_grows_past_the_watermark_is_completed_again():
    ref = reference(Session(10), t.AfterWatermark(late=t.AfterCount(5)), mode="retracting")
    feed(ref, 1)
    assert short(ref.advance_watermark(12)[0]) == [("+", 1, 11, [1], "on_time", False)]
    assert short(feed(ref, 9)[0]) == [("-", 1, 11, [1], "on_time", False)]
    assert short(ref.advance_watermark(19)[0]) == [("+", 1, 19, [1, 9], "on_time", False)]


def test_what_never_fired_is_told_when_closing_is_never():
    ref = reference(Tumbling(10), t.AfterCount(3), closing="never")
    feed(ref, 1, 2)
    assert [(r["ts"], r["reason"]) for r in ref.advance_watermark(20)[1]] == [
        (1, "unfired"),
        (2, "unfired"),
    ]


class Machines:
    """One trigger per window, driven by the steps of a scenario of kind `trigger`."""

    def __init__(self, scenario: dict[str, Any]) -> None:
        self.window, self.spec = (
            window_of(scenario["config"]),
            words(scenario, scenario["config"]["trigger"]),
        )
        self.nodes: dict[tuple, Any] = {}
        self.pending: Counter[tuple] = Counter()
        self.mark, self.now = MIN, 0

    def name(self, window: Any) -> tuple:
        return (MIN, MAX) if window == "global" else tuple(window)

    def at(self, window: tuple, x: int = 0) -> Moment:
        return Moment(window[1], self.mark, self.now, self.pending[window], x)

    def node(self, window: tuple) -> Any:
        return self.nodes.setdefault(window, start(self.spec, self.now))

    def events(self, times: list[int]) -> None:
        for x in times:
            spans = (
                [proto(self.window, x, self.window.gap)]
                if isinstance(self.window, Session)
                else aligned(self.window, x)
            )
            for s in [self.covering(s) for s in spans]:
                self.node(s).element(self.at(s, x))
                self.pending[s] += 1

    def covering(self, span: tuple) -> tuple:
        """An element falls into a window that a merge has made, if that is still running."""
        return next(
            (
                w
                for w, n in self.nodes.items()
                if not n.finished and w[0] <= span[0] and span[1] <= w[1]
            ),
            span,
        )

    def watermark(self, value: Any) -> None:
        self.mark = instant(value)

    def processing_time(self, now: int) -> None:
        self.now = now

    def merge(self, merge: dict[str, Any]) -> None:
        old, whole = [self.name(w) for w in merge["from"]], self.name(merge["to"])
        nodes = [self.nodes.pop(w) for w in old]
        self.nodes[whole] = start(self.spec, self.now)
        self.nodes[whole].merge(nodes, self.at(whole))
        self.pending[whole] = sum(self.pending.pop(w) for w in old)

    def fire(self, window: Any) -> None:
        name = self.name(window)
        if self.node(name).ready(self.at(name)):
            self.node(name).fire(self.at(name))
            self.pending[name] = 0

    def check(self, check: dict[str, Any]) -> None:
        name = self.name(check["window"])
        got = {"ready": self.node(name).ready(self.at(name)), "finished": self.node(name).finished}
        assert all(got[word] == check[word] for word in ("ready", "finished") if word in check), (
            check
        )


@pytest.mark.parametrize("scenario", load("trigger"))
def test_trigger(scenario):
    machines = Machines(scenario)
    for step in scenario["steps"]:
        ((verb, value),) = step.items()
        getattr(machines, verb)(value)


def test_the_scenarios_are_there():
    assert len(load("panes")) > 60
    assert len(load("panes_by_window")) > 5
    assert len(load("trigger")) > 10


def run(case: Case) -> list[tuple[list[dict], list[dict]]]:
    """What each step gives; the last is the end of input."""
    reference, outputs = Reference(case.config), []
    for step in case.steps:
        if step.verb == "restart":
            again = Reference(case.config)
            again.restore(reference.snapshot())
            reference, output = again, ([], [])
        else:
            verb = {
                "add": reference.add,
                "watermark": reference.advance_watermark,
                "timeout": reference.timeout,
            }[step.verb]
            output = verb(step.value)
        outputs.append(output)
    return [*outputs, reference.finish()]


def rows(outputs: list[tuple[list[dict], list[dict]]], which: int) -> list[dict]:
    return [row for output in outputs for row in output[which]]


@given(cut_cases(retention=False))
def test_cuts_do_not_matter(pair):
    one, other = (run(case) for case in pair)
    assert rows(one, 0) == rows(other, 0)
    assert rows(one, 1) == rows(other, 1)


@given(cases())
def test_retractions_take_back_what_stands(case):
    standing: dict[tuple, Any] = {}
    for pane in rows(run(case), 0):
        name = (pane.get("k"), pane["window_start"], pane["window_end"])
        if pane["op"] == "-":
            assert standing.pop(name) == pane["values"]
        else:
            assert case.config.mode != "retracting" or name not in standing
            standing[name] = pane["values"]


@given(cases())
def test_nothing_is_lost(case):
    """Every message is in a pane or in `late`, unless it falls between two windows."""
    outputs = run(
        Case(dataclasses.replace(case.config, value="id", aggregates=("values",)), case.steps)
    )
    seen = {name for pane in rows(outputs, 0) for name in pane["values"]} | {
        row["id"] for row in rows(outputs, 1)
    }
    sent = {row["id"] for step in case.steps if step.verb == "add" for row in step.value}
    gaps = (
        isinstance(case.config.window, Hopping)
        and case.config.window.slide > case.config.window.size
    )
    assert seen <= sent
    assert gaps or sent == seen


@given(cases())
def test_emits_minus_retracts_are_the_batch_answer(case):
    """Of windows that never merge, the panes that stand at the end hold exactly the messages that
    did not go to `late`.
    """
    config = dataclasses.replace(
        case.config,
        value="id",
        id=None,
        offset=None,
        partition=None,
        mode="retracting",
        closing="if_nonempty",
    )
    config = dataclasses.replace(config, fire_only_updated=False)
    if config.window.axis is not Axis.EVENT_TIME or isinstance(
        config.window, Session | ByDifference
    ):
        config = dataclasses.replace(config, window=Tumbling(7))
    outputs = run(Case(config, case.steps))
    net: Counter[tuple] = Counter()
    for pane in rows(outputs, 0):
        window = (pane["window_start"], pane["window_end"])
        sign = 1 if pane["op"] == "+" else -1
        for name in pane["values"]:
            net[pane.get("k"), window, name] += sign
    batch: Counter[tuple] = Counter()
    for step in case.steps:
        for row in step.value if step.verb == "add" else []:
            if row["ts"] is not None:
                batch.update(
                    (key_of(config, row), ends(span), row["id"])
                    for span in aligned(config.window, row["ts"])
                )
    for row in rows(outputs, 1):
        batch.subtract((key_of(config, row), tuple(span), row["id"]) for span in row["windows"])
    assert +net == +batch
    assert not -net


def key_of(config: Config, row: dict[str, Any]) -> Any:
    return row["k"] if config.key else None


def ends(span: tuple[int, int]) -> tuple[int | None, int | None]:
    return None if span[0] == MIN else span[0], None if span[1] == MAX else span[1]


@given(cases())
def test_the_end_is_empty(case):
    reference = Reference(case.config)
    for step in case.steps:
        if step.verb != "restart":
            {
                "add": reference.add,
                "watermark": reference.advance_watermark,
                "timeout": reference.timeout,
            }[step.verb](step.value)
    reference.finish()
    assert not reference.states
    assert not reference.closed

"""The history of one key and window, embedded: `op.why` against a history that the test knows."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import tidegate as tg
from support.known_history import (
    BASE,
    DELIVERIES,
    HISTORY,
    SECOND,
    at,
    known,
    panes,
    rows,
)
from tidegate.instants import MAX
from tidegate.operators.history.facts import History
from tidegate.operators.history.history import Recorded, history
from tidegate.operators.history.question import parse_key, parse_range, question
from tidegate.operators.history.rows import Selection


def stream() -> tg.Stream:
    return tg.stream(time="ts", key="user", watermark=tg.bounded("5 seconds"))


def instants(messages: list[dict[str, Any]]) -> pa.Table:
    """The messages with times as timestamps."""
    table = pa.Table.from_pylist(messages)
    return table.set_column(1, "ts", table.column("ts").cast(pa.timestamp("us", "UTC")))


def played(history: int = 1 << 20) -> tg.EmbeddedOperator:
    op = panes(stream()).embedded(now=at(0), history=history)
    for number, delivery in enumerate(DELIVERIES):
        op.add_messages(
            instants(rows(number)), now=at(max(second for _, second, _ in delivery) + 5)
        )
    return op


def kinds(found: History) -> list[str]:
    return [step.kind for step in found.steps]


def test_the_history_has_all_that_happened_in_order():
    found = played().why("a", at(0), at(60))
    assert [known(step, 1) for step in found.steps] == HISTORY
    assert found.open == ()
    first = found.steps[0]
    assert (first.at, found.steps[-1].watermark) == (at(8), at(95))


def test_the_history_does_not_depend_on_flushes():
    op = played()
    before = op.why("a").to_dict()
    op.get_result()
    op.flush()
    assert op.why("a").to_dict() == before


def test_a_pane_names_the_values_that_it_changed():
    late = next(
        step for step in played().why("a").steps if step.kind == "pane" and step.timing == "late"
    )
    assert late.changes == {"n": (5, 6), "total": (38, 138)}
    assert late.watermark == at(35)


def test_an_open_window_says_what_it_waits_for():
    found = played().why("a", at(101))
    (window,) = found.open
    assert "has 1 row and no pane yet; it waits until the watermark" in str(found)
    assert (window.start, window.end) == (at(101), at(111))
    assert (window.rows, window.pending, window.panes) == (1, 1, 0)
    assert window.waits is not None
    assert (window.waits.watermark, window.waits.to_go) == (at(111), 15 * SECOND)


def test_the_sentences_tell_the_story():
    text = str(played().why("a", at(0), at(60)))
    for words in (
        "Key user=a, 3 windows: 5 panes, 1 late row.",
        "the early trigger `AfterCount(2)` fired",
        "has reached the end of the window",
        "merge, and are now parts of [2023-11-14T22:14:01Z, 2023-11-14T22:14:31Z)",
        "n 5 → 6, total 38 → 138.",
        "1 minute 13 seconds behind the watermark",
        "53 seconds more than the allowed lateness",
    ):
        assert words in text


def test_the_json_form_is_json():
    document = json.loads(json.dumps(played().why("a").to_dict()))
    assert document["steps"][1]["start"] == "2023-11-14T22:14:01Z"
    assert document["key"] == {"user": "a"}


def test_a_key_without_rows_has_an_empty_history():
    found = played().why("nobody")
    assert (found.steps, found.open) == ((), ())
    assert "No pane, no late row and no open window" in str(found)


def test_the_order_of_rows_in_a_table_does_not_matter():
    op = played()
    tables = op.recorded()
    known = history(Recorded(tables.panes, tables.late, op.spec), Selection({"user": "a"}))
    turned = pc.sort_indices(tables.panes, sort_keys=[("op", "descending"), ("pane", "descending")])
    shuffled = tables.panes.take(turned)
    again = history(Recorded(shuffled, tables.late, op.spec), Selection({"user": "a"}))
    for bounds in known.windows:
        steps, expected = (
            [step for step in one.steps if (step.start, step.end) == bounds]
            for one in (again, known)
        )
        assert steps == expected
    assert again.windows == known.windows


def test_panes_of_discarding_mode_stand_for_themselves():
    windowed = stream().window(tg.tumbling("10 seconds")).trigger(tg.every_element()).discarding()
    op = windowed.aggregate(n=tg.count()).embedded(now=at(0))
    for _ in range(2):
        op.add_messages(message(1), now=at(1))
    shown = [step.changes for step in op.why("a").steps if step.kind == "pane"]
    assert shown == [{"n": (None, 1)}, {"n": (None, 1)}]


def test_a_window_that_opens_when_it_is_complete_fires_by_the_watermark():
    op = tumbling(tg.after_watermark(early=tg.every_element()))
    op.add_messages(message(30), now=at(30))
    op.add_messages(message(11), now=at(31))
    assert causes(op, at(10)) == [("watermark", "")]
    assert "had passed the end of the window" in str(op.why("a", at(10)))


def test_outputs_that_were_never_written_have_no_rows():
    nothing = pa.table({})
    found = history(Recorded(nothing, nothing), Selection({"user": None}, 1, 2))
    assert (found.steps, found.others) == ((), (0, 0, 0))


def test_late_rows_of_an_operator_before_this_one_have_their_time():
    op = played()
    missed = op.why("a", at(0), at(60))
    row = next(step for step in missed.steps if step.kind == "late" and step.beyond)
    second = tg.stream(panes(stream()), key="user").window(tg.tumbling("1 minute"))
    fed = second.aggregate(rows=tg.count()).spec
    recorded = op.recorded()
    asked = Selection({"user": "a"})
    known = history(Recorded(recorded.panes, recorded.late, fed, late_time="ts"), asked)
    late = [step for step in known.steps if step.kind == "late"]
    assert row.time in {step.time for step in late}
    assert all(step.beyond is None for step in late), "the lateness is that of the other operator"


def test_a_window_without_rows_differs_from_an_unknown_key():
    op = played()
    elsewhere = op.why("a", at(500), at(600))
    assert (elsewhere.steps, elsewhere.open, elsewhere.others) == ((), (), (9, 1, 1))
    assert "The key has 9 rows of panes, 1 late row and 1 open window elsewhere" in str(elsewhere)
    assert op.why("nobody", at(0), at(60)).others == (0, 0, 0)
    assert "The key has none elsewhere either." in str(op.why("nobody", at(0), at(60)))
    with pytest.raises(tg.InputError, match="a window ends after its start, got"):
        op.why("a", at(60), at(0))


def test_a_row_without_a_time_is_in_the_history_of_its_key():
    op = panes(stream()).embedded(now=at(0))
    op.add_messages([{"user": "a", "ts": None, "v": 1}, {"user": None, "ts": at(1), "v": 1}])
    found = op.why("a")
    assert [(step.kind, step.time, step.reason) for step in found.steps] == [
        ("late", None, "null_time")
    ]
    assert "a row without a readable time is in no window, as `null_time`" in str(found)
    json.dumps(found.to_dict())
    assert op.why("a", at(0), at(60)).steps == (), "it is in none of these windows"
    assert str(op.why((None,))).startswith("Key user=null, ")


def test_the_global_window_is_open_until_the_input_ends():
    op = stream().window(tg.global_window()).aggregate(n=tg.count()).embedded(now=at(0))
    op.add_messages(message(1), now=at(1))
    assert str(op.why("a")).startswith("Key user=a, the global window: 0 panes")


@pytest.mark.parametrize(
    ("texts", "key"),
    [
        (["ann smith", "7"], {"user": "ann smith", "nr": 7}),
        (["nr=-7", "user=a=b,c"], {"user": "a=b,c", "nr": -7}),
        (["nr=7", "Zoë"], {"user": "Zoë", "nr": 7}),
        (["user=null", "nr=null"], {"user": None, "nr": None}),
        (['user="null"', "nr=1"], {"user": "null", "nr": 1}),
    ],
)
def test_keys_of_the_command_line(texts: list[str], key: dict[str, Any]):
    schema = pa.schema([("user", pa.string()), ("nr", pa.int64())])
    assert parse_key(texts, schema) == key


NOON, LATER = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC), dt.datetime(2026, 3, 1, 13, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("text", "bounds"),
    [
        ("2026-03-01T12:00:00Z/2026-03-01T13:00:00Z", (NOON, LATER)),
        ("[2026-03-01T12:00:00Z, 2026-03-01T13:00:00Z)", (NOON, LATER)),
        ("2026-03-01 12:00:00+00:00 - 2026-03-01 13:00:00+00:00", (NOON, LATER)),
        ("2026-03-01 12:00 to 2026-03-01 14:00+01:00", (NOON, LATER)),
        ("2026-03-01 12:00", (NOON, None)),
        ("2026-03-01 12:00 UTC", (NOON, None)),
        ("2026-03-01T12:00Z/", (NOON, MAX)),
        ("0", (0, None)),
        ("0/10", (0, 10)),
        ("[-5,10)", (-5, 10)),
        ("", (None, None)),
    ],
)
def test_windows_as_people_type_them(text: str, bounds: tuple[object, object]):
    assert parse_range(text) == bounds


def test_a_time_of_day_is_of_today():
    low, high = parse_range("9:30:05")
    assert isinstance(low, dt.datetime)
    assert (f"{low:%H:%M:%S}", low.tzinfo, high) == ("09:30:05", dt.UTC, None)
    assert abs(dt.datetime.now(dt.UTC) - low) <= dt.timedelta(days=1)


def test_a_window_from_zero_is_not_all_windows():
    op = tg.stream(key="user").window(tg.tumbling(2, axis="ordinal")).aggregate(n=tg.count())
    running = op.embedded(now=at(0))
    running.add_messages([{"user": "a"}] * 5, now=at(1))
    assert running.why(*question("a", "0", pa.schema([("user", pa.string())]))).windows == ((0, 2),)


@pytest.mark.parametrize(
    ("axis", "complete", "waits"),
    [
        ("clock", "the clock has reached the end", "it waits until the clock reaches"),
        ("offset", "all offsets of the window have arrived", "until all offsets below 4 have"),
        ("ordinal", "all messages of the window have arrived", "until 1 more message of"),
    ],
)
def test_windows_off_event_time_are_complete_by_their_axis(axis: str, complete: str, waits: str):
    size = "2 seconds" if axis == "clock" else 2
    pipeline = tg.stream(key="user", offset="o" if axis == "offset" else None)
    op = pipeline.window(tg.tumbling(size, axis=axis)).aggregate(n=tg.count()).embedded(now=at(0))
    for n in range(3):
        op.add_messages([{"user": "a", "o": n}], now=at(n))
    op.timeout(at(2))
    text = str(op.why("a"))
    first = next(line for line in text.splitlines() if "On-time pane" in line)
    assert complete in first
    assert waits in text
    assert "watermark" not in text
    op.finish()
    assert "the input ended" in str(op.why("a"))


def test_a_window_with_the_default_trigger_waits_for_the_watermark_alone():
    op = stream().window(tg.tumbling("10 seconds")).aggregate(n=tg.count()).embedded(now=at(0))
    op.add_messages(message(1), now=at(1))
    (window,) = op.why("a").open
    assert window.waits is not None
    assert (window.waits.clock, window.waits.watermark) == (None, at(10))
    assert "clock" not in str(op.why("a"))


def test_a_key_of_the_page_may_hold_commas():
    schema = pa.schema([("user", pa.string()), ("nr", pa.int64())])
    assert question('"user=a, b",nr=1', "", schema)[0] == {"user": "a, b", "nr": 1}
    assert question("a, b", "", schema.remove(1).with_metadata(None))[0] == {"user": "a, b"}
    with pytest.raises(tg.InputError, match=r"`x` is not a value of the key column `nr` of type"):
        parse_key(["a", "x"], schema)
    with pytest.raises(tg.InputError, match="the key columns are user, nr, got no key"):
        parse_key([], schema)


def test_a_key_of_other_columns_is_refused():
    with pytest.raises(tg.InputError, match="the key columns are user"):
        played().why(("a", "b"))


def test_a_key_of_another_type_names_its_column():
    with pytest.raises(tg.InputError, match="column `user` of the key is of type string, got 7"):
        played().why(7)


def test_a_recording_is_bounded_and_says_so():
    op = played(history=3000)
    found = op.why("a")
    assert "the recording starts at call" in found.notes[0]
    assert len(found.steps) < len(HISTORY)
    assert played(history=0).why("a").steps == ()
    with pytest.raises(tg.InputError, match="`history` is a number of bytes"):
        panes(stream()).embedded(history=-1)


def tumbling(trigger: tg.api.streams.Trigger | str, **options: object) -> tg.EmbeddedOperator:
    windowed = stream().window(tg.tumbling("10 seconds")).trigger(trigger)
    return windowed.allow_lateness("20 seconds").aggregate(n=tg.count()).embedded(now=at(0))


def causes(op: tg.EmbeddedOperator, start: int | None = None) -> list[tuple[str, str]]:
    steps = op.why("a", start).steps
    return [(step.cause, step.trigger) for step in steps if step.kind == "pane"]


def message(second: float) -> list[dict[str, object]]:
    return [{"user": "a", "ts": at(second), "v": 1}]


def test_the_part_of_a_trigger_that_fired_is_named():
    op = tumbling(tg.repeatedly(tg.after_any(tg.after_count(3), tg.every("1 minute"))))
    op.add_messages(message(1) * 3, now=at(1))
    op.add_messages(message(2), now=at(2))
    op.timeout(at(70))
    assert causes(op) == [
        ("trigger", 'Repeatedly(AfterAny(AfterCount(3), Every("1 minute")))'),
        ("trigger", 'Every("1 minute")'),
    ]


def test_the_end_of_the_input_is_a_cause():
    op = tumbling(tg.after_watermark())
    op.add_messages(message(1), now=at(1))
    op.finish()
    assert causes(op) == [("end_of_input", "")]


def test_rows_that_never_fired_are_emitted_when_the_window_expires():
    op = tumbling(tg.after_watermark(late=tg.after_count(5)))
    op.add_messages(message(1), now=at(1))
    op.add_messages(message(17), now=at(17))
    op.add_messages(message(2), now=at(18))
    op.add_messages(message(60), now=at(60))
    assert causes(op, at(0)) == [("watermark", ""), ("expired", "")]


def test_a_row_of_another_window_of_the_range_is_left_out():
    op = tumbling(tg.after_watermark())
    op.add_messages([*message(1), *message(11), *message(30)], now=at(30))
    found = op.why("a", at(0), at(10))
    assert {(step.start, step.end) for step in found.steps} == {(at(0), at(10))}
    assert len({step.start for step in op.why("a", at(5), at(15)).steps}) == 2


def test_the_rows_of_one_delivery_are_in_the_order_of_windows():
    op = tumbling(tg.after_watermark())
    op.add_messages([*message(35), *message(1), *message(12)], now=at(35))
    rows = [step for step in op.why("a").steps if step.kind == "rows"]
    assert [step.start for step in rows] == [at(0), at(10), at(30)]


def test_duplicates_are_counted_once():
    op = (
        tg.stream(time="ts", key="user", id="id", watermark=tg.bounded("5 seconds"))
        .window(tg.tumbling("10 seconds"))
        .aggregate(n=tg.count())
        .embedded(now=at(0))
    )
    row = {"user": "a", "ts": at(1), "id": "x"}
    op.add_messages([row, row], now=at(1))
    op.add_messages([row, {**row, "id": "y"}], now=at(2))
    assert [(step.rows, step.total) for step in op.why("a", BASE).steps] == [(1, 1), (1, 2)]


def test_times_that_are_plain_numbers_stay_numbers():
    op = panes(stream()).embedded(now=at(0))
    op.add_messages(rows(0), now=at(8))
    found = op.why("a", at(1), at(13))
    assert found.ticks
    assert found.to_dict()["steps"][0]["start"] == at(1)


def test_a_session_that_fires_and_grows_in_one_delivery_is_told_in_order():
    op = (
        stream()
        .window(tg.session("10 seconds"))
        .trigger(tg.after_watermark(early=tg.every_element()))
        .retracting()
        .aggregate(n=tg.count())
        .embedded(now=at(0))
    )
    op.add_messages([*message(1), *message(3)], now=at(5))
    found = op.why("a")
    assert kinds(found) == ["rows", "pane", "merge", "withdrawn", "pane"]
    assert [step.rows for step in found.steps if step.kind == "pane"] == [1, 1]

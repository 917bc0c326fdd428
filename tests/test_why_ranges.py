"""What a range selects from the history of a key: sessions, late rows, texts, and nothing."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

import tidegate as tg
from tidegate.instants import instant
from tidegate.spark.query.history import arrived

START = dt.datetime(2026, 3, 1, 10, tzinfo=dt.UTC)


def at(second: float) -> dt.datetime:
    return START + dt.timedelta(seconds=second)


def tick(second: float) -> int:
    return instant(at(second))


def message(*seconds: float) -> list[dict[str, Any]]:
    return [{"user": "a", "ts": at(second)} for second in seconds]


def stream() -> tg.Stream:
    return tg.stream(time="ts", key="user", watermark=tg.bounded("5 seconds"))


def sessions() -> tg.EmbeddedOperator:
    """Two sessions merge, the whole grows, and two very late rows would be near its end."""
    op = (
        stream()
        .window(tg.session("30 seconds"))
        .trigger(tg.after_watermark(early=tg.every_element(), late=tg.every_element()))
        .allow_lateness("2 minutes")
        .retracting()
        .aggregate(n=tg.count())
        .embedded(now=at(0))
    )
    op.add_messages(message(0, 40), now=at(41))
    op.add_messages(message(20), now=at(45))
    op.add_messages(message(65), now=at(66))
    op.add_messages(message(600), now=at(602))
    op.add_messages(message(80, 81), now=at(603))
    return op


def test_very_late_rows_are_not_among_the_rows_of_a_session():
    found = sessions().why("a", at(0), at(70))
    assert [step.rows for step in found.steps if step.kind == "rows"] == [2, 1, 1]
    assert [step.time for step in found.steps if step.kind == "late"] == [tick(80), tick(81)]


def test_a_part_of_a_session_selects_the_whole_of_it():
    op = sessions()
    whole = op.why("a", at(0), at(95))
    for start, end in [(at(50), None), (at(0), at(30)), (at(94), None)]:
        part = op.why("a", start, end)
        assert (part.steps, part.windows) == (whole.steps, whole.windows)
    assert "The sessions [2026-03-01T10:00:00Z, 2026-03-01T10:00:30Z) and [" in str(
        op.why("a", at(50))
    )


def test_rows_are_not_added_to_a_session_before_it_has_its_bounds():
    text = str(sessions().why("a", at(0)))
    whole = "[2026-03-01T10:00:00Z, 2026-03-01T10:01:35Z)"
    assert f"call 1  2 rows arrive; the later session {whole} has 2 of its rows." in text
    assert f"call 3  1 row arrives; the window {whole} has 4." in text


def test_a_late_row_names_all_windows_that_it_missed():
    op = stream().window(tg.sliding("1 minute", "20 seconds")).aggregate(n=tg.count()).embedded()
    op.add_messages(message(50), now=at(50))
    op.add_messages(message(600), now=at(600))
    op.add_messages(message(50), now=at(601))
    named = "[2026-03-01T10:00:00Z, 2026-03-01T10:01:00Z)"
    other = "[2026-03-01T10:00:20Z, 2026-03-01T10:01:20Z)"
    text = str(op.why("a"))
    assert f"is not in {named}, {other} or 1 other window, as `very_late`" in text
    assert f"is not in {named} or {other}, as" in str(op.why("a", at(0), at(40)))
    assert "is not in the window, as" in str(op.why("a", at(0), at(60)))
    (missed,) = (step for step in op.why("a").steps if step.kind == "late")
    assert [low for low, _ in missed.windows] == [tick(0), tick(20), tick(40)]


def test_a_pane_before_the_first_watermark_is_not_the_end_of_the_input():
    windowed = stream().window(tg.tumbling("1 minute")).retain(windows=1)
    op = windowed.aggregate(n=tg.count()).embedded(now=at(0))
    op.add_messages(message(10, 70), now=at(71))
    op.add_messages(message(130), now=at(131))
    op.finish()
    panes = [step for step in op.why("a").steps if step.kind == "pane"]
    assert [step.cause for step in panes] == ["evicted", "evicted", "end_of_input"]
    assert "retention evicted the window before the first watermark" in str(op.why("a", at(0)))


def test_a_replaced_row_adds_no_row():
    counted = stream().window(tg.tumbling("10 seconds")).trigger(tg.every_element()).retracting()
    upper = counted.aggregate(n=tg.count())
    panes = tg.stream(upper, key="user").window(tg.tumbling("1 minute")).trigger(tg.every_element())
    op = panes.retracting().aggregate(most=tg.max("n"), rows=tg.count()).embedded(now=at(0))
    source = upper.embedded(now=at(0), downstream=op)
    source.add_messages(message(1), now=at(1))
    source.add_messages(message(2), now=at(2))
    assert "with as many rows as before. most 1 → 2." in str(op.why("a"))


@pytest.mark.parametrize(
    ("start", "end"),
    [
        ("2026-03-01 10:00", "2026-03-01 10:01 UTC"),
        ("2026-03-01 10:00 .. 2026-03-01 10:01", None),
        ("[2026-03-01T10:00:00Z, 2026-03-01T10:01:00Z)", None),
        (str(tick(30)), None),
        ("2026-03-01T12:00:30+02:00", None),
    ],
)
def test_texts_are_read_as_on_the_command_line(start: str, end: str | None):
    op = stream().window(tg.tumbling("1 minute")).aggregate(n=tg.count()).embedded(now=at(0))
    op.add_messages(message(10, 70), now=at(71))
    assert op.why("a", start, end).windows == ((tick(0), tick(60)),)


def test_an_empty_history_names_its_range_and_what_is_elsewhere():
    op = stream().window(tg.tumbling("1 minute")).aggregate(n=tg.count()).embedded(now=at(0))
    op.add_messages(message(10), now=at(11))
    assert "found in [2026-03-01T11:00:00Z, 2026-03-01T11:01:00Z). The key has 1 open" in str(
        op.why("a", "2026-03-01T11:00Z/2026-03-01T11:01Z")
    )
    seconds = str(op.why("a", int(START.timestamp())))
    assert "found at 1970-01-01T00:29:32.359200Z (numbers are microseconds since 1970)" in seconds


def test_a_key_of_null_is_a_tuple():
    op = stream().window(tg.tumbling("1 minute")).aggregate(n=tg.count()).embedded(now=at(0))
    with pytest.raises(tg.InputError, match=r"a null is `\(None,\)`"):
        op.why(None)


def test_rows_of_sessions_that_merge_within_a_batch_are_counted_once():
    totals: dict[tuple[int, int], int] = {}
    known = {(5, 9): 2, (3, 9): 4, (0, 9): 6, (20, 30): 1}
    assert [*arrived(known, totals, merges=True)] == [((0, 9), 6, 6), ((20, 30), 1, 1)]
    # Both become parts of a larger one, with one row more.
    assert [*arrived({(0, 30): 8}, totals, merges=True)] == [((0, 30), 8, 1)]
    assert [*arrived({(0, 30): 8}, totals, merges=True)] == []


def test_rows_of_windows_that_overlap_count_in_each():
    totals = {(0, 10): 1}
    known = {(0, 10): 2, (5, 10): 1}
    assert [*arrived(known, totals, merges=False)] == [((0, 10), 2, 1), ((5, 10), 1, 1)]

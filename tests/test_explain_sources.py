"""`explain_watermark` for unusual sources: without a name, without a time, or after their end."""

from __future__ import annotations

import pytest

import tidegate as tg
from support.explanations import NOON, at, explained, partitioned, row, started, text
from tidegate.instants import instant


def test_a_partition_without_a_name_is_not_the_whole_input():
    op = partitioned(tg.bounded("10 seconds"))
    op.add_messages([row(5, p=""), row(50, p="b")])
    assert "Partition `` holds the watermark back: it has promised" in str(explained(op))


@pytest.mark.parametrize("vain", [None, at(9999)], ids=["unreadable", "future"])
def test_who_sends_only_what_cannot_be_followed_has_spoken_all_the_same(vain):
    op = partitioned(tg.bounded("10 seconds", partitions=["bad", "good"]))
    op.add_messages([row(5, p="good"), {"ts": vain, "k": "a", "p": "bad"}], now=at(20))
    assert (
        "Partition `bad` (declared) has not sent an event that advances the watermark yet; it has"
        f" held the watermark back since {text(0)}" in str(explained(op))
    )


def test_a_partition_of_an_input_that_has_ended_moves_nothing():
    op = partitioned(tg.bounded("10 seconds"))
    op.add_messages([row(50, p="a")])
    op.end_input()
    op.add_partition("b")
    op.mark_idle(partition="b")
    assert (
        "Every source has ended, so the highest promise was released; `finish` fires the"
        " remaining windows." in explained(op).sentences
    )


def test_promises_of_a_generator_are_not_said_to_be_in_rows():
    op = started(tg.generated(lambda observed: observed.newest() + 10**15))
    op.add_messages([row(5)])
    assert "1 watermark was refused as unreadable or in the future." in explained(op).sentences


def test_an_error_of_several_lines_stays_in_its_sentence():
    def failing(observed):
        raise ValueError("one\ntwo")

    op = started(tg.generated(failing))
    with pytest.warns(RuntimeWarning):
        op.add_messages([row(5)])
    assert any(
        sentence.endswith("the last error was: ValueError: one two.")
        for sentence in explained(op).sentences
    )


def test_all_who_came_back_behind_the_watermark_hold_it():
    op = partitioned(tg.bounded("10 seconds"))
    op.add_messages([row(20, p="a"), row(30, p="b"), row(55, p="c")])
    op.mark_idle(partition="a")
    op.mark_idle(partition="b")
    op.end_input(partition="c")
    assert op.watermark == instant(at(45))
    op.add_messages([row(21, p="a"), row(31, p="b")])
    found = explained(op)
    assert [source.name for source in found.sources if source.holds] == ["a", "b"]
    promised = (
        f"they have promised {text(11)} to {text(21)}; the watermark advances when all of them have"
        f" promised more than {text(45)}."
    )
    assert f"Partitions `a` and `b` hold the watermark back: {promised}" in found.sentences


def test_the_only_one_left_holds_the_watermark_that_it_is_behind():
    op = partitioned(tg.bounded("10 seconds"))
    op.add_messages([row(20, p="a"), row(55, p="b")])
    op.mark_idle(partition="a")
    op.end_input(partition="b")
    op.add_messages([row(25, p="a")])
    promised = (
        f"it has promised {text(15)}; the watermark advances when it has promised more than"
        f" {text(45)}."
    )
    assert f"Partition `a` holds the watermark back: {promised}" in explained(op).sentences


def test_an_input_that_no_upstream_feeds_is_told_by_the_program():
    fed = tg.stream(time="time", watermark=tg.explicit())
    last = (
        tg.union(fed, fed).window(tg.tumbling("1 hour")).aggregate(n=tg.count()).embedded(now=NOON)
    )
    first = started(tg.bounded("10 seconds"), downstream=last)
    first.add_messages([row(50)])
    said = str(explained(last))
    assert "has not been advanced for input 1" in said
    assert "The upstream" not in said


def test_partitions_under_other_names_than_the_declared_ones_are_named():
    op = partitioned(tg.bounded("10 seconds", partitions=2))
    with pytest.warns(RuntimeWarning, match=r"come from `clicks-0`.*declared `0`, `1`.*Hint"):
        op.add_messages([row(5, p="clicks-0")])
    op.add_messages([row(5, p="clicks-1")])
    text = str(explained(op))
    assert "(declared) have not sent an event yet" in text
    assert "All messages come from partitions `clicks-0` and `clicks-1`. Hint: declare" in text
    op.add_messages([row(5, p="1")])
    assert "All messages come from" not in str(explained(op))

"""Triggers as values: equality, validation, and a text form that parses back."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import ParseError, SpecError
from tidegate.instants import MAX
from tidegate.spec import triggers as spec
from tidegate.spec.trigger_text import parse_trigger
from tidegate.spec.triggers import (
    AfterAll,
    AfterAny,
    AfterCount,
    AfterDelay,
    AfterEach,
    AfterWatermark,
    Default,
    EventInterval,
    Every,
    EveryElement,
    Never,
    OrFinally,
    Policy,
    Repeatedly,
    Trigger,
)

_ticks = st.integers(1, MAX)
_leaves = st.one_of(
    st.sampled_from([EveryElement(), Never(), Default()]),
    st.builds(AfterCount, _ticks),
    st.builds(AfterDelay, st.integers(0, MAX)),
    st.builds(Every, _ticks, st.booleans()),
    st.builds(EventInterval, _ticks),
)


def _composites(part: st.SearchStrategy[Trigger]) -> st.SearchStrategy[Trigger]:
    several = st.lists(part, min_size=1, max_size=3)
    optional = st.none() | part
    return st.one_of(
        st.builds(AfterWatermark, optional, optional),
        st.builds(Policy, optional, optional),
        st.builds(Repeatedly, part),
        st.builds(OrFinally, part, part),
        several.map(lambda parts: AfterEach(*parts)),
        several.map(lambda parts: AfterAll(*parts)),
        several.map(lambda parts: AfterAny(*parts)),
    )


triggers = st.recursive(_leaves, _composites, max_leaves=6)


@given(triggers)
def test_text_and_repr_give_the_trigger_back(trigger):
    assert parse_trigger(str(trigger)) == trigger
    assert eval(repr(trigger), vars(spec)) == trigger  # noqa: S307 - a repr of this project
    assert hash(parse_trigger(str(trigger))) == hash(trigger)


@pytest.mark.parametrize(
    ("text", "trigger"),
    [
        (
            "AfterWatermark(early=AfterCount(2), late=AfterCount(1))",
            AfterWatermark(AfterCount(2), AfterCount(1)),
        ),
        ("AfterWatermark", AfterWatermark()),
        ("AfterWatermark(late=Never)", AfterWatermark(late=Never())),
        ("AfterProcessingTime(5)", AfterDelay(5)),
        ('AfterDelay("10 seconds")', AfterDelay(10_000_000)),
        ("AfterDelay('1 minute 30 s')", AfterDelay(90_000_000)),
        ("AfterDelay(250ms)", AfterDelay(250_000)),
        (" Every ( 10 seconds , refire = True ) ", Every(10_000_000, refire=True)),
        ("Every(interval=7)", Every(7)),
        ("Always", EveryElement()),
        ("Never()", Never()),
        ("Policy()", Policy(late=AfterDelay(10_000_000))),
        ("Policy(late=None)", Policy(late=None)),
        ("AfterFirst(AfterCount(2), AfterWatermark())", AfterAny(AfterCount(2), AfterWatermark())),
        (
            "OrFinally(Repeatedly(AfterCount(2)), until=AfterCount(3))",
            OrFinally(Repeatedly(AfterCount(2)), AfterCount(3)),
        ),
    ],
)
def test_text_is_read(text, trigger):
    assert parse_trigger(text) == trigger


@pytest.mark.parametrize(
    ("trigger", "text"),
    [
        (
            AfterWatermark(AfterCount(2), AfterCount(1)),
            "AfterWatermark(early=AfterCount(2), late=AfterCount(1))",
        ),
        (AfterWatermark(), "AfterWatermark()"),
        (Every(10_000_000, refire=True), 'Every("10 seconds", refire=True)'),
        (
            AfterEach(AfterDelay(90_000_000), Never()),
            'AfterEach(AfterDelay("1 minute 30 seconds"), Never())',
        ),
        (Policy(), 'Policy(late=AfterDelay("10 seconds"))'),
    ],
)
def test_text_is_printed(trigger, text):
    assert str(trigger) == text


@pytest.mark.parametrize(
    ("text", "position", "says"),
    [
        ("", 0, "expected a trigger, got nothing"),
        ("AfterCont(2)", 0, "did you mean `AfterCount`?"),
        ("AfterAny(Never, Zebra)", 16, "there is no trigger `Zebra`"),
        ("AfterCount()", 0, "needs its argument `n`"),
        ("AfterCount(2", 12, "expected `,` or `)`, got the end"),
        ("AfterCount(2))", 13, "expected the end of the text, got `)`"),
        ("AfterCount(2, 3)", 14, "takes 1 argument, got more"),
        ("AfterCount(1 second)", 11, "`n` cannot be 1 second"),
        ("AfterCount(Never)", 11, "`n` needs a number, got `Never`"),
        ("AfterCount(@)", 11, "got `@`"),
        ("AfterAny(Never Never)", 15, "got `Never`"),
        ("AfterAny(first=Never)", 9, "takes no argument named `first`"),
        ("AfterWatermark(erly=Never)", 15, "Hint: it takes early, late"),
        ("AfterWatermark(early=Never, early=Never)", 28, "`early` is given twice"),
        ("AfterWatermark(early=Never, Never)", 28, "a positional argument follows a named one"),
        ("Every('10 parsecs')", 6, "`interval` cannot be '10 parsecs'"),
        ("Default(Never)", 8, "takes 0 arguments"),
        ("AfterAny(Never, AfterCount(0))", 16, "at least 1, got 0"),
        ("AfterAny()", 0, "at least one trigger"),
        ("Repeatedly(None)", 0, "must be a trigger, got None"),
        ("AfterWatermark(early=True)", 0, "must be a trigger, got True"),
        ("Repeatedly(" * 60 + "Never" + ")" * 60, 561, "nested more than 50 deep"),
    ],
)
def test_unreadable_text_is_refused_with_its_position(text, position, says):
    with pytest.raises(ParseError) as caught:
        parse_trigger(text)
    assert says in str(caught.value)
    assert f"position {position} " in str(caught.value)


@given(st.text("AfterCountNever(),=\"' 12", max_size=30))
def test_any_text_is_read_or_refused(text):
    try:
        trigger = parse_trigger(text)
    except ParseError:
        return
    assert parse_trigger(str(trigger)) == trigger


def test_a_text_that_is_no_text_is_refused():
    with pytest.raises(ParseError, match="a trigger text is a string"):
        parse_trigger(AfterCount(1))


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (lambda: AfterCount(0), "at least 1, got 0"),
        (lambda: AfterCount(True), "got True"),
        (lambda: AfterCount(1.5), "got 1.5"),
        (lambda: AfterCount(MAX + 1), "whole number of elements"),
        (lambda: AfterDelay(-1_000_000), "of at least 0, got -1 second"),
        (lambda: Every(0), "greater than 0, got 0 seconds"),
        (lambda: Every(1, refire="yes"), "got 'yes'"),
        (lambda: EventInterval(0), "greater than 0, got 0 seconds"),
        (lambda: AfterWatermark(early=2), "`early` of `AfterWatermark` must be a trigger, got 2"),
        (lambda: Policy(late="AfterCount(1)"), "`late` of `Policy`"),
        (lambda: Repeatedly(None), "`trigger` of `Repeatedly`"),
        (lambda: OrFinally(Never(), None), "`until` of `OrFinally`"),
        (AfterEach, "at least one trigger"),
        (lambda: AfterAll(Never(), 3), "`argument 2` of `AfterAll`"),
    ],
)
def test_a_trigger_that_makes_no_sense_is_refused(broken, says):
    with pytest.raises(SpecError) as caught:
        broken()
    assert says in str(caught.value)


def test_factories_take_durations_as_people_write_them():
    assert spec.every("10 seconds") == Every(10_000_000)
    assert spec.every(10, unit="ms", refire=True) == Every(10_000, refire=True)
    assert spec.after_delay(timedelta(minutes=1)) == AfterDelay(60_000_000)
    assert spec.event_interval("1 h") == EventInterval(3_600_000_000)
    assert spec.after_watermark(
        early=spec.every_element(), late=spec.after_count(3)
    ) == AfterWatermark(EveryElement(), AfterCount(3))
    assert spec.policy(early=spec.never()) == Policy(Never(), AfterDelay(10_000_000))
    parts = (AfterCount(1), Never())
    assert spec.after_each(*parts) == AfterEach(*parts)
    assert spec.after_all(*parts) == AfterAll(*parts)
    assert spec.after_any(*parts) == AfterAny(*parts)
    assert spec.or_finally(*parts) == AfterCount(1).or_finally(Never()) == OrFinally(*parts)
    assert spec.repeatedly(Never()) == Repeatedly(Never())


def test_the_same_parts_in_another_trigger_are_not_equal():
    assert AfterAll(Never()) != AfterAny(Never())
    assert AfterAll(Never(), Default()) != AfterAll(Default(), Never())

"""What the machine of a trigger says about it before anything runs."""

from __future__ import annotations

import pytest

from tidegate.kernel.triggers import compile_trigger
from tidegate.spec.trigger_text import parse_trigger


@pytest.mark.parametrize(
    ("text", "early", "elements", "clock"),
    [
        ("AfterWatermark", False, True, False),
        ("AfterWatermark(early=Never, late=AfterCount(1))", False, True, False),
        ("AfterWatermark(early=AfterDelay(5))", True, True, True),
        ("AfterWatermark(late=AfterDelay(5))", False, True, True),
        ("AfterAll(AfterCount(5), AfterWatermark)", False, True, False),
        ("AfterAny(AfterCount(5), AfterWatermark)", True, True, False),
        ("AfterEach(AfterWatermark, Repeatedly(AfterCount(1)))", False, True, False),
        ("Repeatedly(AfterDelay(5))", True, False, True),
        ("OrFinally(Default, Every(5))", True, True, True),
        ("Default", False, True, False),
        ("Never", False, False, False),
    ],
)
def test_flags(text, early, elements, clock):
    machine = compile_trigger(parse_trigger(text))
    assert (machine.fires_early, machine.fires_on_elements, machine.needs_clock) == (
        early,
        elements,
        clock,
    )

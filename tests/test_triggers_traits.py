"""What the machine of a trigger says about it before anything runs: flags, and the rule by which
elements alone fire.
"""

from __future__ import annotations

import pytest

from tidegate.kernel.triggers import compile_trigger
from tidegate.spec.trigger_text import parse_trigger


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("AfterWatermark", (None, None)),
        ("AfterWatermark(early=AfterCount(2), late=AfterCount(1))", (2, 1)),
        ("AfterWatermark(early=Repeatedly(AfterCount(3)), late=Always)", (3, 1)),
        ("AfterWatermark(early=Every(5), late=AfterDelay(5))", (None, None)),
        ("AfterWatermark(early=AfterCount(2), late=Never)", (2, None)),
        ("Policy", (None, None)),
        ("Policy(early=Repeatedly(AfterCount(4)), late=AfterCount(2))", (4, 2)),
        ("Repeatedly(AfterCount(5))", (5, 5)),
        ("Always", (1, 1)),
        ("Default", (None, 1)),
        ("Policy(early=AfterCount(2))", None),
        ("AfterCount(2)", None),
        ("Never", None),
        ("Every(5)", None),
        ("Repeatedly(AfterWatermark())", None),
        ("AfterWatermark(early=AfterDelay(0))", None),
        ("AfterWatermark(early=EventInterval(5))", None),
        ("AfterWatermark(early=AfterAny(AfterCount(2), AfterDelay(5)))", None),
    ],
)
def test_count_rule(text, rule):
    assert compile_trigger(parse_trigger(text)).count_rule() == rule


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

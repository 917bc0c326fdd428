"""Pipelines of several operators end with the answer of a batch in plain Python, as a Spark batch
and as a Spark stream.

`tests/test_random_pipelines.py` does this embedded for many pipelines and histories. Here, a few
chosen pipelines and two random ones run as real queries, each file a delivery.
"""

from __future__ import annotations

import random
from itertools import count

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

import tidegate as tg
from support.composition.batch import wanted
from support.composition.embedded import net
from support.composition.plans import (
    Aggregate,
    Join,
    Match,
    Operator,
    Row,
    Source,
    Value,
    Window,
    operators,
    sources,
)
from support.composition.spark import Delivery, Inputs, ends_by_time, patient
from support.composition.strategies import plans

pytestmark = [pytest.mark.spark, pytest.mark.slow]

LATE = str(tg.after_watermark(late=tg.after_count(1)))
EAGER = str(tg.after_watermark(early=tg.after_count(2), late=tg.after_count(1)))
FIRST, TWIN, OTHER = Source("s0", "a"), Source("s1", "a"), Source("s2", "b")
ROWS = Value("rows", "count")


def spent(window: Window, mode: str, trigger: str = LATE, source: Source = FIRST) -> Aggregate:
    """Windows of both keys over a source."""
    total = Value("total", "sum", source.values[0])
    return Aggregate((source,), window, ("k", "u"), (ROWS, total), trigger, mode)


def summary(*columns: str) -> tuple[Value, ...]:
    """A count, and for each column aggregates with and without an inverse."""
    found = [Value("n", "count")]
    for name in columns:
        found += [Value(f"{function}_{name}", function, name) for function in ("sum", "max")]
    return tuple(found)


TUMBLING = Window("tumbling", 10)
CHOSEN: dict[str, Operator] = {
    "accumulating": Aggregate(
        (spent(Window("tumbling", 4), "accumulating"),),
        TUMBLING,
        ("k",),
        summary("rows", "total"),
        LATE,
        "retracting",
    ),
    "discarding": Aggregate(
        (spent(Window("hopping", 10, 5), "discarding", EAGER),),
        Window("inherited"),
        (),
        (*summary("total"), Value("middle", "median", "rows")),
        LATE,
    ),
    "sessions": Aggregate(
        (spent(Window("session", 4), "accumulating", EAGER),),
        Window("inherited"),
        ("k", "u"),
        summary("rows", "total"),
        EAGER,
        "retracting",
    ),
    "anti": Aggregate(
        (Join(FIRST, OTHER, Match("within", 1, 2), ("k", "u"), "anti"),),
        TUMBLING,
        ("k",),
        summary("v_a"),
        LATE,
    ),
    "left": Aggregate(
        (
            Join(
                spent(Window("tumbling", 4), "accumulating"),
                OTHER,
                Match("within", 3, 1),
                ("k", "u"),
                "left",
                padding="early",
            ),
        ),
        Window("session", 4, by="u"),
        ("u",),
        summary("total", "v_b"),
        EAGER,
        "retracting",
    ),
    "union": Aggregate(
        (
            spent(Window("session", 4), "retracting"),
            spent(Window("session", 4), "discarding", EAGER, TWIN),
        ),
        TUMBLING,
        ("u",),
        summary("rows", "total"),
        LATE,
        "retracting",
    ),
    "merge": Aggregate(
        (spent(Window("tumbling", 4), "accumulating"), Source("s3", "b", "none")),
        TUMBLING,
        ("k",),
        (
            Value("n", "count"),
            Value("most", "max", "total", "one"),
            Value("other", "sum", "v_b", "two"),
        ),
        LATE,
        names=("one", "two"),
    ),
}


def drawn(number: int) -> Operator:
    """A random pipeline of at most three operators."""
    found: list[Operator] = []

    @seed(number)
    @settings(
        max_examples=30,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(plans().map(patient))
    def collect(plan: Operator) -> None:
        if ends_by_time(plan) and 2 <= len(list(operators(plan))) <= 3:
            found.append(plan)

    collect()
    return found[-1]


def deliveries(plan: Operator, dice: random.Random, size: int = 8) -> list[Delivery]:
    """Three deliveries of disordered rows; some are late, and some come again."""
    numbers, sent = count(1), {source.name: list[Row]() for source in sources(plan)}
    others = random.Random(7)

    def row(source: Source, front: int) -> Row:
        if sent[source.name] and source.identity != "none" and dice.random() < 0.1:
            return dice.choice(sent[source.name])
        sent[source.name].append(
            {
                source.time: max(front + dice.choice([0, 0, 0, 1, 3, -1, -2, -4, -9, -15]), 0),
                "k": dice.choice("aab"),
                "u": dice.choice([1, 1, 2]),
                source.values[0]: dice.choice([1, 1, 2, 3, -2, None]),
                source.floats[0]: others.choice([0.5, 0.5, 1.25, -3.0, None]),
                source.texts[0]: others.choice(["x", "x", "yy", "", None]),
                source.number: next(numbers),
            }
        )
        return sent[source.name][-1]

    return [
        {
            source.name: [row(source, 12 * turn + 2 * place) for place in range(size)]
            for source in sources(plan)
        }
        for turn in range(3)
    ]


def check(spark, plan: Operator, dice: random.Random, folder) -> list[Row]:
    """The panes of a stream, after it and a batch have given the answer."""
    inputs = Inputs(plan, deliveries(plan, dice), folder / "in")
    answer = wanted(plan, inputs.accepted)
    assert answer
    assert net(plan, inputs.batch(spark)) == answer
    panes, late = inputs.stream(spark, folder / "ck")
    assert net(plan, panes) == answer
    assert {row["reason"] for row in late} <= {"null_time"}
    return panes


@pytest.mark.parametrize("name", CHOSEN)
def test_oracle_a_chosen_pipeline_gives_the_batch_answer(spark, tmp_path, name):
    """With late panes in the stream, so that the last operator corrects what it showed."""
    panes = check(spark, CHOSEN[name], random.Random(6), tmp_path)
    assert "late" in {pane["timing"] for pane in panes}


@pytest.mark.parametrize("number", [1, 3])
def test_oracle_a_random_pipeline_gives_the_batch_answer(spark, tmp_path, number):
    check(spark, drawn(number), random.Random(number), tmp_path)

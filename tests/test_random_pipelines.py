"""Random pipelines of two to four operators end with the answer of a batch."""

from __future__ import annotations

import pytest
from hypothesis import event, given

from support.composition.batch import wanted
from support.composition.embedded import Pipeline, Step, net
from support.composition.plans import Aggregate, Operator, Source, Value, Window, sources
from support.composition.strategies import Case, cases, no_answer
from support.examples import examples
from tidegate.errors import SpecError


def checked(plan: Operator, steps: tuple[Step, ...]) -> Pipeline:
    """A run whose net is the answer over the rows that its first operators accepted; operators
    behind them refuse no row but those without a time, which outer joins pad.
    """
    run = Pipeline(plan)
    run.play(steps)
    assert {row["reason"] for row in run.late} <= {"null_time"}
    assert net(plan, run.panes) == wanted(plan, run.accepted)
    return run


def is_refused(plan: Operator) -> bool:
    """Whether the pipeline is refused when it is built, as one without an answer."""
    try:
        Pipeline(plan)
    except SpecError as error:
        message = str(error)
    else:
        return False
    reason = no_answer(plan)
    assert reason is not None, message
    assert "Hint: " in message
    event(f"refused: {reason}")
    return True


@examples(60, derandomize=True)
@given(case=cases())
def test_oracle_a_pipeline_ends_with_the_answer_of_a_batch(case: Case):
    """Over any history, and over the same rows in one delivery."""
    if is_refused(case.plan):
        return
    event("answered")
    run = checked(case.plan, case.steps)
    if run.accepted.missed:
        return
    rows = run.accepted.rows
    whole = tuple(Step("add", s.name, rows[s.name]) for s in sources(case.plan) if rows[s.name])
    batch = checked(case.plan, whole)
    if batch.accepted == run.accepted:
        assert net(case.plan, batch.panes) == net(case.plan, run.panes)


@pytest.mark.parametrize("mode", ["accumulating", "retracting", "discarding"])
@pytest.mark.parametrize("restarts", [0, 1, 2])
def test_a_sum_over_a_column_whose_type_comes_after_its_first_windows(mode: str, restarts: int):
    """The changes of an upstream open windows before the first row of the other input."""
    panes = Aggregate(
        (Source("s0", "a"),),
        Window("tumbling", 4),
        ("k",),
        (Value("x0", "count"),),
        "Repeatedly(AfterCount(1))",
    )
    plan = Aggregate(
        (panes, Source("s1", "b", "none")),
        Window("tumbling", 8),
        ("k",),
        (Value("x1", "count"), Value("x2", "sum", "x0", "one"), Value("x3", "sum", "v_b", "two")),
        "Repeatedly(AfterCount(2))",
        mode,
        names=("one", "two"),
    )
    number = iter(range(1, 100))

    def rows(family: str, *times: int) -> list[dict[str, int | str]]:
        return [
            {f"ts_{family}": t, "k": "a", "u": 1, f"v_{family}": t, f"n_{family}": next(number)}
            for t in times
        ]

    again = (Step("restart"),) * restarts
    checked(
        plan,
        (
            Step("add", "s0", rows("a", 1, 2, 5)),
            *again,
            Step("add", "s1", rows("b", 3)),
            *again,
            Step("add", "s0", rows("a", 3, 3, 6)),
            Step("add", "s1", rows("b", 3, 4, 9)),
        ),
    )

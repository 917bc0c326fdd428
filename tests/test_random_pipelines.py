"""Random pipelines of two to four operators end with the answer of a batch."""

from __future__ import annotations

from hypothesis import event, given

from support.composition.batch import wanted
from support.composition.embedded import Pipeline, Step, net
from support.composition.plans import Operator, sources
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

"""Errors of Tidegate that Spark reports as the text of a traceback are raised as what they are."""

from __future__ import annotations

import traceback

import pytest

from tidegate import errors
from tidegate.errors import MissingExtraError, ParseError, SinkError, TidegateError, WatermarkError
from tidegate.pipeline.diagnostics import PipelineFileError, Problem
from tidegate.spark.failures import marks_errors, reported_error, spark_errors

KINDS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, TidegateError)
]


def report(error: Exception, *, times: int = 1) -> str:
    """The text by which Spark reports an error of a function that it calls."""

    def fail() -> None:
        raise error

    for _ in range(times):
        fail = marks_errors(fail)
    try:
        fail()
    except type(error):
        return f"Job aborted: {traceback.format_exc()}\n\tat org.apache.spark.Worker.run(1)\n"
    raise AssertionError("it must fail")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_class_of_error_is_found_with_its_message(kind):
    message = 'the rule: 1 }\nsecond line "x" · {}. Hint: y'
    error = kind.__new__(kind, message)
    super(kind, error).__init__(message)
    found = reported_error(RuntimeError(report(error, times=2)))
    assert type(found) is kind
    assert str(found) == message


def test_an_error_with_arguments_of_its_own_keeps_its_message():
    original = MissingExtraError("delta", "delta", "the sink")
    found = reported_error(RuntimeError(report(original)))
    assert (type(found), str(found)) == (MissingExtraError, str(original))


def test_a_private_subclass_becomes_the_public_class():
    original = PipelineFileError("x.yaml", [Problem(1, 1, "wrong")])
    found = reported_error(RuntimeError(report(original)))
    assert type(found) is ParseError
    assert str(found) == str(original)


def test_the_last_error_of_a_chain_counts():
    error = SinkError("the disk is full")
    error.__cause__ = WatermarkError("went back")
    found = reported_error(RuntimeError(report(error)))
    assert isinstance(found, SinkError)


def test_a_generator_marks_what_it_raises_after_its_first_value():
    @marks_errors
    def rows():
        yield 1
        raise SinkError("broken")

    values = rows()
    assert next(values) == 1
    with pytest.raises(SinkError) as caught:
        next(values)
    assert reported_error(RuntimeError(caught.value.__notes__[0])) is not None


def test_other_errors_pass_unchanged():
    with pytest.raises(ZeroDivisionError), spark_errors():
        raise ZeroDivisionError
    assert reported_error(RuntimeError(report(ValueError("tidegate-error: {")))) is None
    assert reported_error(RuntimeError('tidegate-error: {"class": "Unknown"}')) is None


def test_the_exception_of_spark_is_the_cause():
    spark = RuntimeError(report(WatermarkError("went back")))
    with pytest.raises(WatermarkError, match=r"^went back$") as caught, spark_errors():
        raise spark
    assert caught.value.__cause__ is spark

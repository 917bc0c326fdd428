"""Errors of Tidegate across the processes of a query.

Spark reports the error of a task, or of `foreachBatch`, as the text of its traceback inside an
exception of its own. `marks_errors` adds a note to an error of Tidegate: one line with its class
and its message, as JSON. `spark_errors` finds the note in an exception of Spark, and raises the
error again; the exception of Spark is its cause.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import re
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

from tidegate import errors
from tidegate.errors import TidegateError

P = ParamSpec("P")
T = TypeVar("T")
_MARK = "tidegate-error: "
_ESSENCE = re.compile(r"^(?:[\w.]+\.)?(\w+(?:Error|Exception): .+)$", re.MULTILINE)


def marks_errors(function: Callable[P, T]) -> Callable[P, T]:
    """Mark the errors of Tidegate that leave a function or a generator that Spark calls."""
    if inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def generate(*args: P.args, **named: P.kwargs) -> Any:
            with _marked():
                return (yield from function(*args, **named))

        return generate

    @functools.wraps(function)
    def call(*args: P.args, **named: P.kwargs) -> T:
        with _marked():
            return function(*args, **named)

    return call


@contextlib.contextmanager
def _marked() -> Iterator[None]:
    try:
        yield
    except TidegateError as error:
        mark = _MARK + json.dumps({"class": _public_class(error), "message": str(error)})
        if mark not in getattr(error, "__notes__", ()):
            error.add_note(mark)
        raise


@contextlib.contextmanager
def spark_errors() -> Iterator[None]:
    """Raise the errors of Tidegate that Spark reports inside the block as what they are.

    Use it around actions on `panes.df` and queries that you start yourself; `write` and the handle
    of its query do it already. Other errors of Spark pass unchanged.

        with tg.spark_errors():
            panes.df.collect()
    """
    try:
        yield
    except TidegateError:
        raise
    except Exception as error:
        found = reported_error(error)
        if found is None:
            raise
        raise found from error


def reported_error(error: Exception) -> TidegateError | None:
    """The error of Tidegate that an exception of Spark reports; None if it reports another one."""
    # The last one of a traceback is the one that was raised.
    _, mark, rest = str(error).rpartition(_MARK)
    if not mark:
        return None
    try:
        document, _ = json.JSONDecoder().raw_decode(rest)
        kind, message = getattr(errors, document["class"]), document["message"]
    except (ValueError, KeyError, AttributeError):
        return None
    found: TidegateError = kind.__new__(kind, message)
    # A class may compose its message from other arguments.
    super(kind, found).__init__(message)
    return found


def _public_class(error: TidegateError) -> str:
    """The name of the first class of an error that `tidegate.errors` defines."""
    return next(kind.__name__ for kind in type(error).__mro__ if kind.__module__ == errors.__name__)


def essence(text: str) -> str:
    """The error that a text ends with, or its first line."""
    found = _ESSENCE.findall(text)
    return found[-1] if found else next((line for line in text.splitlines() if line.strip()), "")

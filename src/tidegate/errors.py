"""The exceptions of Tidegate, one tree.

    TidegateError
    ├── SpecError               a specification breaks a rule; raised before anything runs
    │   └── ParseError          a text (duration, instant, trigger, scenario) cannot be parsed
    │       └── SqlError        a SQL text cannot be parsed or planned; points at its place
    ├── InputError              a call or a delivery is not acceptable (unknown column, wrong type)
    ├── WatermarkError          a watermark went back in strict mode
    ├── BackpressureError       the downstream refuses results, so input is refused too
    ├── StateError              stored state is unusable
    │   ├── SpecMismatchError   it was written under another specification
    │   └── CorruptStateError   it is damaged or has an unknown format
    ├── StreamError             a writer, transaction or reader of a stream cannot continue
    ├── SinkError               a sink cannot accept the rows of a micro-batch
    ├── SetupError              Java, Spark or a session is unsuitable; tells you how to fix it
    └── MissingExtraError       an optional package is missing; tells you how to install it

A message has the broken rule, the value received, and a hint what to do.
"""

from __future__ import annotations


class TidegateError(Exception):
    """Base of every error that Tidegate raises on purpose."""


class SpecError(TidegateError, ValueError):
    """A specification breaks a rule."""


class ParseError(SpecError):
    """A text cannot be parsed."""


class SqlError(ParseError):
    """A SQL text cannot be parsed or planned; `line` and `column` count from 1."""

    def __init__(self, message: str, line: int | None = None, column: int | None = None) -> None:
        # The text may hold halves of characters, which no output takes.
        super().__init__(message.encode("utf-8", "replace").decode())
        self.line, self.column = line, column


class InputError(TidegateError, ValueError):
    """A call or a delivery is not acceptable."""


class WatermarkError(TidegateError):
    """A watermark went back in strict mode."""


class BackpressureError(TidegateError):
    """Results are pending because the downstream refuses them; call `timeout` to retry."""


class StateError(TidegateError):
    """Stored state is unusable."""


class SpecMismatchError(StateError):
    """Stored state was written under another specification."""


class CorruptStateError(StateError):
    """Stored state is damaged or of an unknown format."""


class StreamError(TidegateError):
    """A writer, a transaction or a reader of a stream cannot continue."""


class SinkError(TidegateError):
    """A sink cannot accept the rows of a micro-batch."""


class SetupError(TidegateError, RuntimeError):
    """The machine or the Spark session does not meet the requirements."""


class MissingExtraError(TidegateError, ImportError):
    """An optional package is not installed."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs `{package}`, which is not installed. Hint: pip install"
            f" 'tidegate[{extra}]'"
        )

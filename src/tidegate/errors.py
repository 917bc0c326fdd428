"""The exceptions of Tidegate, one tree.

    TidegateError
    ├── SpecError            a specification breaks a rule; raised before anything runs
    │   └── ParseError       a text (duration, instant, trigger, scenario) cannot be read
    ├── InputError           a call or a delivery cannot be taken as it is (unknown column, wrong type of the whole column)
    ├── WatermarkError       a watermark went back in strict mode
    ├── BackpressureError    the downstream refuses results, so input is refused until they are taken
    ├── StateError           stored state cannot be used
    │   ├── SpecMismatchError   it was written under another specification
    │   └── CorruptStateError   it is damaged or of an unknown format
    ├── StreamError          a writer, a transaction or a reader of a stream is at its end, or its store does not answer
    ├── SinkError            a sink cannot take the rows of a batch, or holds what cannot be its own
    ├── SetupError           Java, Spark or a session is not as it must be; the message says how to mend it
    └── MissingExtraError    an optional package is needed; the message says how to install it

A message says which rule was broken, what came, and what to do.
"""

from __future__ import annotations


class TidegateError(Exception):
    """Base of every error that Tidegate raises on purpose."""


class SpecError(TidegateError, ValueError):
    """A specification breaks a rule."""


class ParseError(SpecError):
    """A text cannot be read."""


class InputError(TidegateError, ValueError):
    """A call or a delivery cannot be taken as it is."""


class WatermarkError(TidegateError):
    """A watermark went back although `strict` forbids it."""


class BackpressureError(TidegateError):
    """Results wait for a downstream that refuses them; call `timeout` to offer them again."""


class StateError(TidegateError):
    """Stored state cannot be used."""


class SpecMismatchError(StateError):
    """Stored state was written under another specification."""


class CorruptStateError(StateError):
    """Stored state is damaged or of an unknown format."""


class StreamError(TidegateError):
    """A writer, a transaction or a reader of a stream cannot go on."""


class SinkError(TidegateError):
    """A sink cannot take the rows of a batch."""


class SetupError(TidegateError, RuntimeError):
    """The machine or the Spark session is not as it must be."""


class MissingExtraError(TidegateError, ImportError):
    """An optional package is not installed."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs `{package}`, which is not installed. Hint: pip install"
            f" 'tidegate[{extra}]'"
        )

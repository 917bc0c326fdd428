"""The boundary around the decoding of stored data: whatever fails there is damage."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tidegate.errors import CorruptStateError, TidegateError


@contextmanager
def damage_in(what: str) -> Iterator[None]:
    """Raise the errors of decoders as `CorruptStateError`; ours and the disk's stay as they are.

    Decoders of checked bytes trust their structure, so damage that a checksum misses shows as any
    error of Python, NumPy or Arrow.
    """
    try:
        yield
    except TidegateError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        text = str(error).partition("\n")[0][:500]
        raise CorruptStateError(
            f"{what} is damaged ({type(error).__name__}: {text}). Hint: restore it from a copy, or"
            " start anew and replay the input"
        ) from error

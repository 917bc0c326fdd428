"""A repr that can be pasted back and leaves out what has its default."""

from __future__ import annotations

import dataclasses
from typing import Any


def short_repr(value: Any) -> str:
    """The call that creates a dataclass, without arguments that equal their defaults.

    Fields that do not count for equality are left out.
    """
    given = [
        f"{one.name}={_text(getattr(value, one.name))}"
        for one in dataclasses.fields(value)
        if one.init and one.repr and one.compare and not _is_default(one, getattr(value, one.name))
    ]
    return f"{type(value).__qualname__}({', '.join(given)})"


def _text(value: Any) -> str:
    """The repr of a value; dataclasses within it are short, too."""
    if isinstance(value, tuple) and type(value) is tuple:
        inner = ", ".join(map(_text, value))
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    parameters = getattr(type(value), "__dataclass_params__", None)
    # A class with a repr of its own keeps it.
    return short_repr(value) if parameters is not None and parameters.repr else repr(value)


def _is_default(field: dataclasses.Field[Any], value: Any) -> bool:
    if field.default is not dataclasses.MISSING:
        return bool(type(value) is type(field.default) and value == field.default)
    if field.default_factory is not dataclasses.MISSING:
        return bool(value == field.default_factory())
    return False

"""The JSON form of specification fields; a user's function appears by its qualified name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa


def qualified_name(function: Callable[..., Any]) -> str:
    """The module and name of a function, or of the class of a callable object."""
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{getattr(function, '__module__', '?')}:{name}"


def json_form(value: Any) -> Any:
    """The JSON form of a field."""
    if isinstance(value, pa.DataType):
        return str(value)
    if callable(value):
        return {"function": qualified_name(value)}
    if isinstance(value, Mapping):
        return {str(k): json_form(v) for k, v in value.items()}
    return [json_form(v) for v in value] if isinstance(value, (tuple, list)) else value

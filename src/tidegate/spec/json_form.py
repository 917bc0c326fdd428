"""The JSON form of specification fields; a user's function appears by its qualified name.

Pipeline files name functions in the same form: `{function: "module:name"}`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from operator import attrgetter
from typing import Any

import pyarrow as pa

from tidegate.errors import SpecError


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


def is_function_form(value: object) -> bool:
    """Whether a value names a function: `{"function": "module:name"}`."""
    return isinstance(value, Mapping) and "function" in value


def function_from(form: Mapping[str, Any]) -> Callable[..., Any]:
    """The function that a form names; its module is imported.

    >>> function_from({"function": "math:floor"}).__name__
    'floor'
    """
    text = form["function"]
    module, _, name = text.partition(":") if isinstance(text, str) else ("", "", "")
    if not module or not name:
        raise SpecError(f"a `function` is named as `module:name`, got {text!r}")
    try:
        found = attrgetter(name)(import_module(module))
    except (ImportError, AttributeError, ValueError) as error:
        raise SpecError(
            f"the `function` {text} cannot be imported: {error}. Hint: install its module, or add"
            " its folder to PYTHONPATH"
        ) from error
    if not callable(found):
        raise SpecError(f"the `function` {text} is a {type(found).__name__}, not a function")
    return found

"""Specifications from their JSON form: the inverse of `to_dict`.

A document has no functions. A function that only processes new rows is replaced by an
`UnavailableFunction`; a specification whose stored values need a function cannot be restored.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

from tidegate.errors import SpecError
from tidegate.spec import evictors, watermarks
from tidegate.spec.aggregates import aggregate_from_dict
from tidegate.spec.evictors import Evictor
from tidegate.spec.join import AsOf, JoinSpec, JoinWindow, Rows, Upstream, Within
from tidegate.spec.operator import AggregateSpec, Input, Options, Retention, TimeColumn
from tidegate.spec.projection import Projection
from tidegate.spec.trigger_text import parse_trigger
from tidegate.spec.watermarks import Watermarks
from tidegate.spec.windows import Axis, Custom, Window, window_from_dict

_FUNCTION = "function"
_WATERMARKS: dict[str, type[Watermarks]] = {
    kind.__name__.lower(): kind
    for kind in (
        watermarks.Implied,
        watermarks.Lagging,
        watermarks.Explicit,
        watermarks.Bounded,
        watermarks.Punctuated,
        watermarks.Noted,
        watermarks.Generated,
        watermarks.PerKey,
    )
}
_EVICTORS: dict[str, type[Evictor]] = {
    kind.__name__: kind for kind in (evictors.EvictCount, evictors.EvictTime, evictors.EvictDelta)
}
_UNREADABLE = (
    *(LookupError, TypeError, ValueError, AttributeError, ArithmeticError, ImportError),
    # Of the text of an evictor, which is parsed as an expression of Python.
    *(SyntaxError, RecursionError, MemoryError),
)
_BOUNDS: dict[str, type[Within | Rows | AsOf]] = {"within": Within, "rows": Rows, "as_of": AsOf}


class UnavailableFunction:
    """Takes the place of a user's function in a specification that was read from a document."""

    def __init__(self, name: str) -> None:
        self.__module__, _, self.__qualname__ = name.rpartition(":")

    def __repr__(self) -> str:
        return f"UnavailableFunction('{self.__module__}:{self.__qualname__}')"

    def __call__(self, *_args: Any, **_options: Any) -> Any:
        raise SpecError(
            f"the function `{self.__qualname__}` of a stored specification is not available. Hint:"
            " pass the pipeline that defines it"
        )


def spec_from_dict(document: Mapping[str, Any]) -> Upstream:
    """The specification of an aggregate or a join; SpecError if the document is not enough."""
    try:
        return _join(document) if "join" in document else _aggregate(document)
    except SpecError:
        raise
    except _UNREADABLE as problem:
        raise SpecError(
            f"a specification cannot be read from a document: {type(problem).__name__}: {problem}."
            " Hint: read it with the version that wrote it"
        ) from problem


def input_from_dict(document: Mapping[str, Any]) -> Input:
    """The inverse of `Input.to_dict`."""
    others = tuple(
        TimeColumn(other["column"], _watermarks(other["watermark"]), other["key"])
        for other in document["others"]
    )
    fields = {**_fields(document), "watermark": _watermarks(document["watermark"])}
    projections = tuple(map(Projection.from_dict, document.get("projections", ())))
    return Input(**{**fields, "others": others, "projections": projections})


def _aggregate(document: Mapping[str, Any]) -> AggregateSpec:
    return AggregateSpec(
        input=input_from_dict(document["input"]),
        also=tuple(map(input_from_dict, document.get("also", ()))),
        names=tuple(document.get("names", ())),
        window=_window(document["window"]),
        aggregates=tuple(
            (name, aggregate_from_dict(aggregate))
            for name, aggregate in document["aggregates"].items()
        ),
        trigger=parse_trigger(document["trigger"]),
        mode=document["mode"],
        allowed_lateness=document["allowed_lateness"],
        options=Options(**_fields(document["options"])),
        retention=Retention(**document["retention"]),
        evictor=_evictor(document["evictor"]),
    )


def _join(document: Mapping[str, Any]) -> JoinSpec:
    where, layout = document["where"], document["layout"]
    on_time_period, late_period = document["periods"]
    return JoinSpec(
        left=input_from_dict(document["join"]["left"]),
        right=input_from_dict(document["join"]["right"]),
        window=_join_window(document["window"]),
        on=tuple((left, right) for left, right in document["on"]),
        how=document["how"],
        # The text of an Arrow expression cannot be parsed.
        where=UnavailableFunction(f":{where}") if isinstance(where, str) else _field(where),
        names=tuple(document["names"]),
        allowed_lateness=document["allowed_lateness"],
        options=Options(**_fields(document["options"])),
        retention=Retention(**document["retention"]),
        padding=document["padding"],
        on_time_period=on_time_period,
        late_period=late_period,
        layout=None if layout is None else tuple(layout),
    )


def _watermarks(document: Mapping[str, Any]) -> Watermarks:
    kind = _WATERMARKS[document["type"]]
    return kind(**_fields({name: v for name, v in document.items() if name != "type"}))


def _window(document: Mapping[str, Any]) -> Window:
    if document["type"] == Custom.kind:
        name = document["name"]
        return Custom(UnavailableFunction(f":{name}"), name, Axis(document["axis"]))
    return window_from_dict(_fields(document))


def _join_window(document: Any) -> JoinWindow:
    if isinstance(document, Sequence):
        return tuple(_bound(bound) for bound in document)
    return _bound(document)


def _bound(document: Mapping[str, Any]) -> Any:
    """A bound of a join, or the window of one."""
    kind = _BOUNDS.get(document["type"])
    if kind is None:
        return _window(document)
    return kind(**{name: value for name, value in document.items() if name != "type"})


def _evictor(text: str) -> Evictor | None:
    """An evictor from its `repr`."""
    found = ast.parse(text, mode="eval").body
    if isinstance(found, ast.Constant) and found.value is None:
        return None
    if not isinstance(found, ast.Call) or not isinstance(found.func, ast.Name):
        raise TypeError(f"`{text}` is not an evictor")
    options = {one.arg: ast.literal_eval(one.value) for one in found.keywords if one.arg}
    return _EVICTORS[found.func.id](**options)


def _fields(document: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a specification: lists as tuples, names of functions as functions."""
    return {name: _field(value) for name, value in document.items()}


def _field(value: Any) -> Any:
    if isinstance(value, Mapping) and value.keys() == {_FUNCTION}:
        return UnavailableFunction(value[_FUNCTION])
    return tuple(map(_field, value)) if isinstance(value, list) else value

"""Function calls in a pipeline file: windows, watermarks, aggregates, inputs and sinks.

They call the functions of the Python API by name, written as text, `tumbling(1 minute, offset=10
seconds)`, or as a mapping, `{type: tumbling, size: 1 minute, offset: 10 seconds}`. Parentheses are
optional for a call without arguments.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from tidegate.pipeline.diagnostics import Diagnostics
from tidegate.pipeline.document import Part

Maker = Callable[..., Any]
_CALL = re.compile(r"\s*(?P<name>[A-Za-z_]\w*)\s*(?:\((?P<inside>.*)\))?\s*", re.DOTALL)
_ARGUMENT = re.compile(r"""(?:"[^"]*"|'[^']*'|\[[^\]]*\]|[^,\[\]"'])+""")
_NAMED = re.compile(r"\s*([A-Za-z_]\w*)\s*=(.*)", re.DOTALL)


@dataclass(frozen=True)
class Call:
    """A call as written in the file, not yet executed."""

    part: Part
    name: str
    values: tuple[Any, ...] = ()
    """Positional arguments."""
    named: Mapping[str, Part] = field(default_factory=dict)


def read_call(
    part: Part, what: str, problems: Diagnostics, known: Iterable[str] = ()
) -> Call | None:
    """The call that a part describes; None, with a problem, if it is not a call.

    `known`: the names of functions that a hint may suggest.
    """
    if isinstance(part.value, str):
        return _of_text(part, what, problems)
    if not part.is_mapping:
        problems.add(
            part,
            f"{what} is a string or a mapping, got {_shown(part)}",
            "for instance `name(value)`, or `type: name` with its arguments",
        )
        return None
    name = part.value.get("type", part.value.get("kind"))
    if name is None or not isinstance(name.value, str):
        problems.add(
            part if name is None else name,
            f"{what} needs a `type`",
            _typed(part.value, what, known),
        )
        return None
    return Call(
        part,
        name.value,
        named={word: value for word, value in part.value.items() if value is not name},
    )


def _typed(words: Mapping[str, Part], what: str, known: Iterable[str]) -> str:
    """How to name the type of a mapping, for a reader who began with `name: argument`."""
    name, part = next(iter(words.items()), ("", Part(None, (0, 0))))
    if name not in known:
        return "name one: `type: name`"
    is_plain = not part.is_mapping and not isinstance(part.value, list)
    return f"{what} is a call, `{name}({part.shown() if is_plain else '...'})`"


def make(call: Call, makers: Mapping[str, Maker], what: str, problems: Diagnostics) -> Any:
    """The result of the call; None, with problems, if it breaks a rule."""
    if call.name not in makers:
        place = (
            call.part.value.get("type", call.part.value.get("kind"))
            if call.part.is_mapping
            else call.part
        )
        problems.unknown(place, call.name, what, makers)
        return None
    maker, before = makers[call.name], len(problems.found)
    named = _fitting(call, maker, what, problems)
    if len(problems.found) > before:
        return None
    try:
        return maker(*call.values, **{word: part.plain() for word, part in named.items()})
    except (TypeError, ValueError) as error:
        problems.add(guilty(call.part, call.named, str(error)), str(error))
        return None


def _fitting(call: Call, maker: Maker, what: str, problems: Diagnostics) -> Mapping[str, Part]:
    """The named arguments, checked against the parameters of the function."""
    parameters = inspect.signature(maker).parameters
    positional = [p.name for p in parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    if len(call.values) > len(positional):
        takes = (
            f"`{call.name}` takes {len(positional)} positional argument(s), got {len(call.values)}"
        )
        problems.add(
            call.part,
            takes,
            (
                f"name the others; parameters are {', '.join(parameters)}"
                if parameters
                else "omit them"
            ),
        )
    given = set(positional[: len(call.values)])
    for word, part in call.named.items():
        if word not in parameters:
            problems.unknown(
                part.key or part, word, f"a parameter of {what} `{call.name}`", parameters
            )
        elif word in given:
            problems.add(
                part.key or part, f"`{word}` of `{call.name}` is given twice", "remove one of them"
            )
    for name, parameter in parameters.items():
        if parameter.default is parameter.empty and name not in given and name not in call.named:
            problems.add(call.part, f"`{call.name}` needs `{name}`", f"add `{name}`")
    return call.named


def _of_text(part: Part, what: str, problems: Diagnostics) -> Call | None:
    found = _CALL.fullmatch(part.value)
    if not found:
        problems.add(
            part,
            f"{what} is a call, got `{part.written}`",
            "for instance `name(value, word=value)`; quote values with commas",
        )
        return None
    values: list[Any] = []
    named: dict[str, Part] = {}
    for text in _ARGUMENT.findall(found.group("inside") or ""):
        word = _NAMED.fullmatch(text)
        value = _value(word.group(2) if word else text)
        if not word and named:
            problems.add(part, f"a positional argument follows a named one in `{part.written}`")
        elif word and word.group(1) in named:
            problems.add(part, f"`{word.group(1)}` is given twice in `{part.written}`")
        elif word:
            named[word.group(1)] = _as_part(value, part.place)
        else:
            values.append(value)
    return Call(part, found.group("name"), tuple(values), named)


def _as_part(value: Any, place: tuple[int, int]) -> Part:
    """An argument in a text as a part; the items of a list and of a mapping are parts, too."""
    if isinstance(value, dict):
        value = {str(word): _as_part(inner, place) for word, inner in value.items()}
    elif isinstance(value, list):
        value = [_as_part(inner, place) for inner in value]
    return Part(value, place)


def _value(text: str) -> Any:
    """An argument, parsed as YAML: a number, true, null, a list, or else text."""
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, AttributeError):
        return text.strip()


def guilty(whole: Part, words: Mapping[str, Part], text: str) -> Part:
    """The argument that an error message names first, else the whole call."""
    places = {text.find(f"`{word}`"): part for word, part in words.items() if f"`{word}`" in text}
    return places[min(places)] if places else whole


def _shown(part: Part) -> str:
    return (
        "a list"
        if isinstance(part.value, list)
        else "nothing"
        if part.value is None
        else f"`{part.value}`"
    )

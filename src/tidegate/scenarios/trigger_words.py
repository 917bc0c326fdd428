"""Trigger words: the text in which a scenario names a trigger, in the words of Beam, Flink, Malhar,
Samza or our own.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from tidegate.errors import SpecError
from tidegate.scenarios.document import UnsupportedScenarioError
from tidegate.scenarios.ticks import Ticks
from tidegate.spec.triggers import (
    AfterAll,
    AfterAny,
    AfterCount,
    AfterDelay,
    AfterEach,
    AfterWatermark,
    Default,
    EventInterval,
    Every,
    EveryElement,
    Manual,
    Never,
    OrFinally,
    Policy,
    Repeatedly,
    Trigger,
)

_TOKEN = re.compile(
    r"\s*(?:(?P<name>[A-Za-z_]\w*)|(?P<number>\d+(?:\.\d+)?)|(?P<text>\"[^\"]*\"|'[^']*')|(?P<sign>[(),=]))"
)
_SAMZA = re.compile(
    r"^(?:early\s*=\s*(?P<early>.+?)\s*,\s*)?default\s*=\s*(?P<default>window end|session gap"
    r" elapsed)$",
    re.DOTALL,
)


@dataclass(frozen=True)
class Reading:
    """A trigger as read, and what its words say beside the trigger itself."""

    trigger: Trigger | None
    mode: str | None = None
    closing: str | None = None
    clock: bool = False


@dataclass(frozen=True)
class _Call:
    """A name with its arguments, as written."""

    name: str
    args: list[Any] = field(default_factory=list)
    named: dict[str, Any] = field(default_factory=dict)


def read_trigger(text: str, ticks: Ticks) -> Reading:
    """The trigger that a scenario's text names."""
    try:
        return _read(text.strip(), ticks)
    except SpecError as error:
        raise UnsupportedScenarioError(f"trigger `{text}` breaks a rule: {error}") from error


def _read(text: str, ticks: Ticks) -> Reading:
    samza = _SAMZA.match(text)
    if samza:
        early = samza["early"] and _build(_parse(samza["early"]), ticks)
        return Reading(Policy(early=early or None, late=None), clock=True)
    if text == "none":
        return Reading(Never(), closing="never")
    call = _parse(text)
    if call.name == "Purging":
        return replace(_read_call(_only(call), ticks), mode="discarding")
    return _read_call(call, ticks)


def _read_call(call: _Call, ticks: Ticks) -> Reading:
    if call.name == "ProcessingTime":
        _arity(call, 0)
        return Reading(AfterWatermark(), clock=True)
    if call.name == "EndOfStream":
        _arity(call, 0)
        return Reading(Never(), closing="if_nonempty")
    return Reading(_build(call, ticks))


def _build(call: Any, ticks: Ticks) -> Trigger:
    if not isinstance(call, _Call):
        raise UnsupportedScenarioError(f"a trigger was expected where `{call}` stands")
    maker = _MAKERS.get(call.name)
    if maker is None:
        raise UnsupportedScenarioError(f"trigger `{call.name}` is not covered by this version")
    return maker(call, ticks)


def _arity(
    call: _Call, least: int, most: int | None = None, named: frozenset[str] = frozenset()
) -> None:
    most = least if most is None else most
    if not least <= len(call.args) <= most or call.named.keys() - named:
        raise UnsupportedScenarioError(f"the arguments of trigger `{call.name}` are not understood")


def _only(call: _Call) -> _Call:
    _arity(call, 1)
    if not isinstance(call.args[0], _Call):
        raise UnsupportedScenarioError(f"`{call.name}` takes a trigger")
    return call.args[0]


def _plain(made: Callable[[], Trigger]) -> Callable[[_Call, Ticks], Trigger]:
    def make(call: _Call, _: Ticks) -> Trigger:
        _arity(call, 0)
        return made()

    return make


def _counting(made: Callable[[int], Trigger]) -> Callable[[_Call, Ticks], Trigger]:
    def make(call: _Call, _: Ticks) -> Trigger:
        _arity(call, 1)
        return made(_whole(call.args[0]))

    return make


def _timed(made: Callable[[int], Trigger]) -> Callable[[_Call, Ticks], Trigger]:
    def make(call: _Call, ticks: Ticks) -> Trigger:
        _arity(call, 1)
        return made(ticks(call.args[0]))

    return make


def _joined(
    made: Callable[..., Trigger], least: int, most: int
) -> Callable[[_Call, Ticks], Trigger]:
    def make(call: _Call, ticks: Ticks) -> Trigger:
        _arity(call, least, most)
        return made(*(_build(part, ticks) for part in call.args))

    return make


def _phased(made: Callable[..., Trigger]) -> Callable[[_Call, Ticks], Trigger]:
    def make(call: _Call, ticks: Ticks) -> Trigger:
        _arity(call, 0, 0, frozenset({"early", "late"}))
        return made(
            **{
                name: None if _is_none(part) else _build(part, ticks)
                for name, part in call.named.items()
            }
        )

    return make


def _is_none(part: Any) -> bool:
    return isinstance(part, _Call) and part.name == "None"


def _every(call: _Call, ticks: Ticks) -> Trigger:
    _arity(call, 1, 1, frozenset({"refire"}))
    flag = call.named.get("refire")
    return Every(
        ticks(call.args[0]), refire=isinstance(flag, _Call) and flag.name.lower() == "true"
    )


def _early_every(call: _Call, ticks: Ticks) -> Trigger:
    """Malhar's early firings: its clock ticks fire again although nothing came."""
    _arity(call, 0, 0, frozenset({"time", "count"}))
    if call.named.keys() == {"time"}:
        return AfterWatermark(early=Every(ticks(call.named["time"]), refire=True))
    if call.named.keys() == {"count"}:
        return AfterWatermark(early=AfterCount(_whole(call.named["count"])))
    raise UnsupportedScenarioError("`EarlyEvery` takes either `time` or `count`")


def _whole(value: Any) -> int:
    if not isinstance(value, int):
        raise UnsupportedScenarioError(f"a whole number was expected where `{value}` stands")
    return value


_MANY = 1_000
_MAKERS: dict[str, Callable[[_Call, Ticks], Trigger]] = {
    "Default": _plain(Default),
    "Always": _plain(EveryElement),
    "EveryElement": _plain(EveryElement),
    "Never": _plain(Never),
    "Manual": _plain(Manual),
    "AfterWatermark": _phased(AfterWatermark),
    "Policy": _phased(Policy),
    "AfterCount": _counting(AfterCount),
    "AfterProcessingTime": _timed(AfterDelay),
    "AfterDelay": _timed(AfterDelay),
    "EventInterval": _timed(EventInterval),
    "Every": _every,
    "Repeatedly": _joined(Repeatedly, 1, 1),
    "OrFinally": _joined(OrFinally, 2, 2),
    "AfterEach": _joined(AfterEach, 1, _MANY),
    "AfterAll": _joined(AfterAll, 1, _MANY),
    "AfterAny": _joined(AfterAny, 1, _MANY),
    "EventTime": _plain(lambda: AfterWatermark(late=AfterCount(1))),
    "Count": _counting(lambda n: Repeatedly(AfterCount(n))),
    "ContinuousEventTime": _timed(
        lambda d: AfterWatermark(early=EventInterval(d, refire=True), late=AfterCount(1))
    ),
    "EarlyEvery": _early_every,
}


def _parse(text: str) -> _Call:
    tokens = _tokens(text)
    call, rest = _expression(tokens, 0, text)
    if rest != len(tokens) or not isinstance(call, _Call):
        raise _unreadable(text)
    return call


def _tokens(text: str) -> list[tuple[str, str]]:
    tokens, position = [], 0
    while text[position:].strip():
        found = _TOKEN.match(text, position)
        if not found:
            raise _unreadable(text)
        tokens.append((str(found.lastgroup), found[found.lastgroup or 0]))
        position = found.end()
    return tokens


def _expression(tokens: list[tuple[str, str]], at: int, text: str) -> tuple[Any, int]:
    """The value that begins at a token, and the token after it."""
    kind, word = tokens[at] if at < len(tokens) else ("end", "")
    if kind == "number":
        return (float(word) if "." in word else int(word)), at + 1
    if kind == "text":
        return word[1:-1], at + 1
    if kind != "name":
        raise _unreadable(text)
    call = _Call(word)
    if at + 1 < len(tokens) and tokens[at + 1] == ("sign", "("):
        return call, _arguments(call, tokens, at + 2, text)
    return call, at + 1


def _arguments(call: _Call, tokens: list[tuple[str, str]], at: int, text: str) -> int:
    """Fills in the arguments of a call, from behind its opening bracket; the token after the
    closing one.
    """
    while at < len(tokens) and tokens[at] != ("sign", ")"):
        if tokens[at][0] == "name" and tokens[at + 1 : at + 2] == [("sign", "=")]:
            call.named[tokens[at][1]], at = _expression(tokens, at + 2, text)
        else:
            value, at = _expression(tokens, at, text)
            call.args.append(value)
        if at < len(tokens) and tokens[at] == ("sign", ","):
            at += 1
        elif tokens[at : at + 1] != [("sign", ")")]:
            raise _unreadable(text)
    if at >= len(tokens):
        raise _unreadable(text)
    return at + 1


def _unreadable(text: str) -> UnsupportedScenarioError:
    return UnsupportedScenarioError(f"trigger `{text}` cannot be read")

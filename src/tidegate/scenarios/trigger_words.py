"""Trigger words: the text in which a scenario names a trigger."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tidegate.errors import SpecError
from tidegate.scenarios.document import UnsupportedScenarioError
from tidegate.scenarios.extension import NO_EXTENSION, Extension
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
    Never,
    OrFinally,
    Policy,
    Repeatedly,
    Trigger,
)

_TOKEN = re.compile(
    r"\s*(?:(?P<name>[A-Za-z_]\w*)|(?P<number>\d+(?:\.\d+)?)|(?P<text>\"[^\"]*\"|'[^']*')|(?P<sign>[(),=]))"
)


@dataclass(frozen=True)
class ParsedTrigger:
    """A trigger, and the settings that its text implies."""

    trigger: Trigger | None
    mode: str | None = None
    closing: str | None = None
    clock: bool = False
    """Whether windows are on the clock."""


@dataclass(frozen=True)
class Call:
    """A name with its arguments, as written."""

    name: str
    args: list[Any] = field(default_factory=list)
    named: dict[str, Any] = field(default_factory=dict)

    def check(
        self, least: int, most: int | None = None, named: frozenset[str] = frozenset()
    ) -> None:
        """Refuse too few, too many or unknown arguments."""
        most = least if most is None else most
        if not least <= len(self.args) <= most or self.named.keys() - named:
            raise UnsupportedScenarioError(
                f"the arguments of trigger `{self.name}` are not understood"
            )


@dataclass(frozen=True)
class TriggerReader:
    """Reads trigger texts in our words and those of an extension."""

    ticks: Ticks
    extension: Extension = NO_EXTENSION

    def read(self, text: str) -> ParsedTrigger:
        """The trigger that a text names."""
        plain = text.strip()
        try:
            if plain == "none":
                return ParsedTrigger(Never(), closing="never")
            other = self.extension.trigger_text(plain, self)
            return other or ParsedTrigger(self.build(parse_call(plain)))
        except SpecError as error:
            raise UnsupportedScenarioError(f"trigger `{text}` breaks a rule: {error}") from error

    def build(self, call: Any) -> Trigger:
        """The trigger of a parsed call."""
        if not isinstance(call, Call):
            raise UnsupportedScenarioError(f"a trigger was expected where `{call}` stands")
        word = self.extension.triggers.get(call.name) or _WORDS.get(call.name)
        if word is None:
            raise UnsupportedScenarioError(f"trigger `{call.name}` is not covered by this version")
        return word(call, self)


TriggerWord = Callable[[Call, TriggerReader], Trigger]


def plain(made: Callable[[], Trigger]) -> TriggerWord:
    """A word without arguments."""

    def word(call: Call, _: TriggerReader) -> Trigger:
        call.check(0)
        return made()

    return word


def counting(made: Callable[[int], Trigger]) -> TriggerWord:
    """A word with a number."""

    def word(call: Call, _: TriggerReader) -> Trigger:
        call.check(1)
        return made(whole_number(call.args[0]))

    return word


def timed(made: Callable[[int], Trigger]) -> TriggerWord:
    """A word with a duration."""

    def word(call: Call, reader: TriggerReader) -> Trigger:
        call.check(1)
        return made(reader.ticks(call.args[0]))

    return word


def _composed(made: Callable[..., Trigger], least: int, most: int) -> TriggerWord:
    def word(call: Call, reader: TriggerReader) -> Trigger:
        call.check(least, most)
        return made(*(reader.build(part) for part in call.args))

    return word


def _phased(made: Callable[..., Trigger]) -> TriggerWord:
    def word(call: Call, reader: TriggerReader) -> Trigger:
        call.check(0, 0, frozenset({"early", "late"}))
        return made(
            **{
                name: None if _is_none(part) else reader.build(part)
                for name, part in call.named.items()
            }
        )

    return word


def _is_none(part: Any) -> bool:
    return isinstance(part, Call) and part.name == "None"


def _every(call: Call, reader: TriggerReader) -> Trigger:
    call.check(1, 1, frozenset({"refire", "aligned"}))
    flags = {
        name: isinstance(flag, Call) and flag.name.lower() == "true"
        for name, flag in call.named.items()
    }
    return Every(reader.ticks(call.args[0]), **flags)


def whole_number(value: Any) -> int:
    """The value, which must be a whole number."""
    if not isinstance(value, int):
        raise UnsupportedScenarioError(f"a whole number was expected where `{value}` stands")
    return value


_MANY = 1_000
_WORDS: dict[str, TriggerWord] = {
    "Default": plain(Default),
    "Always": plain(EveryElement),
    "EveryElement": plain(EveryElement),
    "Never": plain(Never),
    "AfterWatermark": _phased(AfterWatermark),
    "Policy": _phased(Policy),
    "AfterCount": counting(AfterCount),
    "AfterProcessingTime": timed(AfterDelay),
    "AfterDelay": timed(AfterDelay),
    "EventInterval": timed(EventInterval),
    "Every": _every,
    "Repeatedly": _composed(Repeatedly, 1, 1),
    "OrFinally": _composed(OrFinally, 2, 2),
    "AfterEach": _composed(AfterEach, 1, _MANY),
    "AfterAll": _composed(AfterAll, 1, _MANY),
    "AfterAny": _composed(AfterAny, 1, _MANY),
}


def parse_call(text: str) -> Call:
    """The call that a text holds, arguments included."""
    tokens = _tokens(text)
    call, rest = _expression(tokens, 0, text)
    if rest != len(tokens) or not isinstance(call, Call):
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
    """The value at a token, and the position after it."""
    kind, word = tokens[at] if at < len(tokens) else ("end", "")
    if kind == "number":
        return (float(word) if "." in word else int(word)), at + 1
    if kind == "text":
        return word[1:-1], at + 1
    if kind != "name":
        raise _unreadable(text)
    call = Call(word)
    if at + 1 < len(tokens) and tokens[at + 1] == ("sign", "("):
        return call, _arguments(call, tokens, at + 2, text)
    return call, at + 1


def _arguments(call: Call, tokens: list[tuple[str, str]], at: int, text: str) -> int:
    """Fill in the arguments of a call; returns the position after its closing bracket."""
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

"""The parser of the text form of triggers.

An example is `AfterWatermark(early=AfterCount(2), late=AfterDelay("10 seconds"))`. Durations are
quoted or bare (`"10 seconds"`, `10 seconds`) or integers, which are ticks. Parentheses are
optional for a trigger without arguments. `parse_trigger(str(trigger)) == trigger`.

>>> parse_trigger("AfterWatermark(early=AfterCount(2), late=Always)")
AfterWatermark(early=AfterCount(n=2), late=EveryElement())
"""

from __future__ import annotations

import difflib
import re
from dataclasses import MISSING, fields
from typing import Any, NoReturn

from tidegate.errors import ParseError, SpecError
from tidegate.instants import duration
from tidegate.spec import triggers as spec
from tidegate.spec.triggers import Trigger

_TOKEN = re.compile(
    r"""(?P<name>[A-Za-z_]\w*)|(?P<quoted>"[^"]*"|'[^']*')|(?P<number>[-+]?\d[^,()="']*)|(?P<mark>[(),=])|(?P<wrong>\S)|(?P<end>)"""
)
_CLASSES: dict[str, type[Trigger]] = {
    kind.__name__: kind
    for kind in (
        *(
            spec.AfterWatermark,
            spec.AfterCount,
            spec.EveryElement,
            spec.AfterDelay,
            spec.Every,
            spec.EventInterval,
            spec.Repeatedly,
        ),
        *(
            spec.AfterEach,
            spec.AfterAll,
            spec.AfterAny,
            spec.OrFinally,
            spec.Never,
            spec.Default,
            spec.Policy,
        ),
    )
}
_ALIASES = {"AfterProcessingTime": "AfterDelay", "Always": "EveryElement", "AfterFirst": "AfterAny"}
_SEVERAL = (spec.AfterEach, spec.AfterAll, spec.AfterAny)
_DEEPEST = 50


def parse_trigger(text: str) -> Trigger:
    """Parse the text form of a trigger."""
    if not isinstance(text, str):
        raise ParseError(
            f"a trigger text is a string, got {text!r}. Hint: a trigger object needs no parsing"
        )
    parser = _TriggerParser(text)
    trigger = parser.trigger(0)
    if parser.kind != "end":
        parser.fail(f"expected the end of the text, got `{parser.token}`")
    return trigger


class _TriggerParser:
    """A parser of one text; `kind`, `token` and `at` describe the next token."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.kind, self.token, self.at, self.next = "end", "", 0, 0
        self.advance()

    def advance(self) -> None:
        while self.next < len(self.text) and self.text[self.next].isspace():
            self.next += 1
        self.at = self.next
        found = _TOKEN.match(self.text, self.at)
        if found:
            self.kind, self.token, self.next = (
                found.lastgroup or "end",
                found.group().rstrip(),
                found.end(),
            )

    def fail(self, why: str, at: int | None = None, hint: str = "") -> NoReturn:
        position = self.at if at is None else at
        hint = f". Hint: {hint}" if hint else ""
        raise ParseError(
            f"a trigger text cannot be parsed: {why} at position {position} of `{self.text}`{hint}"
        )

    def take(self, mark: str) -> bool:
        """Consume a punctuation mark if it is the next token."""
        found = self.kind == "mark" and self.token == mark
        if found:
            self.advance()
        return found

    def trigger(self, depth: int) -> Trigger:
        start, kind = self.at, self.trigger_class()
        if depth > _DEEPEST:
            self.fail(f"triggers are nested more than {_DEEPEST} deep", start)
        self.advance()
        given: list[tuple[str | None, Any, int]] = []
        if self.take("("):
            given = self.arguments(kind, depth)
        return self.build(kind, given, start)

    def trigger_class(self) -> type[Trigger]:
        if self.kind != "name":
            self.fail(
                f"expected a trigger, got {f'`{self.token}`' if self.token else 'nothing'}",
                hint="for instance `AfterCount(2)`",
            )
        name = _ALIASES.get(self.token, self.token)
        if name not in _CLASSES:
            near = difflib.get_close_matches(name, [*_CLASSES, *_ALIASES], 1)
            self.fail(
                f"there is no trigger `{name}`",
                hint=f"did you mean `{near[0]}`?"
                if near
                else f"triggers are {', '.join(_CLASSES)}",
            )
        return _CLASSES[name]

    def arguments(self, kind: type[Trigger], depth: int) -> list[tuple[str | None, Any, int]]:
        """The arguments up to the closing parenthesis: name or None, value, position."""
        given: list[tuple[str | None, Any, int]] = []
        while not self.take(")"):
            if given and not self.take(","):
                self.fail(
                    f"expected `,` or `)`, got {f'`{self.token}`' if self.token else 'the end'}"
                )
            start, word = self.at, self.keyword()
            parameter = word or self.parameter(kind, len(given), start)
            given.append((word, self.value(parameter, depth), start))
        return given

    def keyword(self) -> str | None:
        """Consume and return the name before an equals sign, if there is one."""
        if self.kind != "name" or not self.text[self.next :].lstrip().startswith("="):
            return None
        word = self.token
        self.advance()
        self.advance()
        return word

    def parameter(self, kind: type[Trigger], position: int, at: int) -> str:
        if issubclass(kind, _SEVERAL):
            return "trigger"
        names = [field.name for field in fields(kind)]  # type: ignore[arg-type]
        if position >= len(names):
            self.fail(
                f"`{kind.__name__}` takes {len(names)} argument{'' if len(names) == 1 else 's'},"
                " got more",
                at,
            )
        return names[position]

    def value(self, parameter: str, depth: int) -> Any:
        if parameter in ("n", "delay", "interval"):
            return self.number(parameter)
        if self.kind == "name" and self.token in ("None", "True", "False"):
            word = {"None": None, "True": True, "False": False}[self.token]
            self.advance()
            return word
        return self.trigger(depth + 1)

    def number(self, parameter: str) -> int:
        token, at = self.token, self.at
        if self.kind not in ("number", "quoted"):
            self.fail(
                f"`{parameter}` needs a number{'' if parameter == 'n' else ' or a duration'}, got"
                f" {f'`{token}`' if token else 'nothing'}"
            )
        self.advance()
        if re.fullmatch(r"[-+]?\d+", token):
            return int(token)
        try:
            return duration(token.strip("\"'")) if parameter != "n" else int(token)
        except ValueError as error:
            self.fail(f"`{parameter}` cannot be {token} ({error})", at)

    def build(
        self, kind: type[Trigger], given: list[tuple[str | None, Any, int]], start: int
    ) -> Trigger:
        if issubclass(kind, _SEVERAL):
            words: dict[str, Any] = {}
            values = [value for _, value, _ in given]
            unknown = next(((word, at) for word, _, at in given if word is not None), None)
            if unknown:
                self.fail(f"`{kind.__name__}` takes no argument named `{unknown[0]}`", unknown[1])
        else:
            values, words = [], self.by_name(kind, given, start)
        try:
            return kind(*values, **words)
        except SpecError as error:
            raise ParseError(
                f"{error}; at position {start} of the trigger text `{self.text}`"
            ) from None

    def by_name(
        self, kind: type[Trigger], given: list[tuple[str | None, Any, int]], start: int
    ) -> dict[str, Any]:
        known = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
        words: dict[str, Any] = {}
        for position, (word, value, at) in enumerate(given):
            if word is None and any(earlier is not None for earlier, _, _ in given[:position]):
                self.fail("a positional argument follows a named one", at)
            name = word or list(known)[position]
            if name not in known:
                self.fail(
                    f"`{kind.__name__}` takes no argument named `{name}`",
                    at,
                    f"it takes {', '.join(known) or 'none'}",
                )
            if name in words:
                self.fail(f"`{name}` is given twice", at)
            words[name] = value
        missing = [
            name for name, field in known.items() if field.default is MISSING and name not in words
        ]
        if missing:
            self.fail(f"`{kind.__name__}` needs its argument `{missing[0]}`", start)
        return words

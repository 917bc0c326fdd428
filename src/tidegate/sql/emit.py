"""The parser of the clauses after a query: `EMIT`, `ALLOW LATENESS`, modes, retention, options.

A trigger is written as it is read:

    EVERY INTERVAL '10' SECOND [REFIRE] [ALIGNED]   the clock
    EVERY INTERVAL '10' SECOND OF EVENT TIME        the watermark
    EVERY ROW, EVERY 100 ROWS, AFTER 100 ROWS       numbers of rows
    AFTER DELAY INTERVAL '10' SECOND                the clock since the first row
    AFTER WATERMARK [(EARLY ... LATE ...)]          the end of the window
    AT WATERMARK, NEVER, REPEAT (...)
    ... AND ..., ... OR ..., ... THEN ..., ... UNTIL ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from sqlglot import exp
from sqlglot.tokenizer_core import Token, TokenType

from tidegate.errors import SpecError
from tidegate.instants import MAX
from tidegate.spec import evictors
from tidegate.spec import triggers as t
from tidegate.spec.operator import Retention
from tidegate.spec.triggers import Trigger
from tidegate.sql.intervals import ticks
from tidegate.sql.statements import EmitClause

if TYPE_CHECKING:
    from sqlglot.parsers.spark import SparkParser

    _Base: TypeAlias = SparkParser
else:
    _Base = object

_MODES = ("ACCUMULATING", "DISCARDING", "RETRACTING")
_AFTER_EMIT = frozenset(
    {"AFTER", "EARLY", "LATE", "EVERY", "STREAM", "CHANGES", "FINAL", "ON", "AT", "NEVER"}
    | {"DEFAULT"}
    | {"REPEAT", "POLICY", "ALLOW", "RETAIN", "EVICT", "WITH", "WITHOUT", "ALL", "ANY", "EACH", "("}
    | set(_MODES)
)
_DEEPEST = 50
DEFAULT_LATENESS = -1
"""Stands for the lateness that the API takes by default."""


def starts_clause(parser: SparkParser) -> bool:
    """Whether the next tokens are clauses after a query, and no alias."""
    word, following = parser._curr.text.upper(), parser._next.text.upper()  # noqa: SLF001
    if parser._curr.token_type == TokenType.IDENTIFIER:  # noqa: SLF001
        return False
    return (word == "EMIT" and following in _AFTER_EMIT) or (
        word == "ALLOW" and following == "LATENESS"
    )


class EmitParser(_Base):
    """The part of the parser that reads clauses after a query."""

    def _parse_emit(self) -> EmitClause:
        found: dict[str, Any] = {"options": ()}
        self._match_text_seq("EMIT")
        while self._emit_part(found):
            # The parts may be connected by AND or commas.
            self._match(TokenType.AND) or self._match(TokenType.COMMA)
        return self._emit_clause(found)

    def _emit_clause(self, found: dict[str, Any]) -> EmitClause:
        parts = {name: found.pop(name) for name in ("early", "late") if name in found}
        retention = {name: found.pop(name) for name in _RETAINED if name in found}
        whole = [word for word, name in _WHOLE.items() if found.get(name)]
        if whole and (parts or "trigger" in found or len(whole) > 1):
            self.raise_error(f"{whole[0]} goes with no other trigger", self._prev)
        if parts:
            trigger = found.get("trigger", t.AfterWatermark())
            if not isinstance(trigger, t.AfterWatermark):
                self.raise_error("EARLY and LATE go with AFTER WATERMARK")
            early = parts.get("early", getattr(trigger, "early", None))
            found["trigger"] = t.AfterWatermark(early, parts.get("late"))
        return EmitClause(**found, retention=Retention(**retention))

    def _emit_part(self, found: dict[str, Any]) -> bool:
        word = self._curr.text.upper()
        if word in _MODES:
            self._advance()
            self._emit_once(found, "mode", word.lower())
        elif self._match_text_seq("ALLOW", "LATENESS"):
            self._emit_once(found, "lateness", self._emit_ticks(unbounded=True))
        elif self._match_text_seq("DEFAULT"):
            self._emit_once(found, "is_default", True)
        elif self._match_text_seq("EARLY"):
            self._emit_once(found, "early", self._emit_trigger())
        elif self._match_text_seq("LATE"):
            self._emit_once(found, "late", self._emit_trigger())
        elif self._match_text_seq("RETAIN"):
            self._emit_retained(found)
        elif self._match_text_seq("EVICT"):
            self._emit_once(found, "evictor", self._emit_evictor())
        elif self._match(TokenType.WITH) and self._match(TokenType.L_PAREN, advance=False):
            self._emit_once(found, "options", self._emit_options())
        elif self._match_text_seq("STREAM"):
            self._emit_once(found, "trigger", self._emit_stream())
        elif self._match_text_seq("CHANGES"):
            self._emit_once(found, "trigger", t.EveryElement())
        elif self._match_text_seq("FINAL") or self._match_text_seq("ON", "WINDOW", "CLOSE"):
            self._emit_once(found, "is_final", True)
        elif word in _TRIGGERS or self._curr.token_type == TokenType.L_PAREN:
            self._emit_once(found, "trigger", self._emit_trigger())
        else:
            return False
        return True

    def _emit_once(self, found: dict[str, Any], name: str, value: Any) -> None:
        if name in found and name != "options":
            self.raise_error(f"Found more than one {name} in EMIT", self._prev)
        found[name] = value

    def _emit_stream(self) -> Trigger:
        """`EMIT STREAM`: every change; with a delay or the watermark, as these say."""
        delay = None
        if self._match_text_seq("AFTER", "DELAY"):
            delay = t.AfterDelay(self._emit_ticks())
            if not self._match_text_seq("AND", "AFTER", "WATERMARK"):
                return t.Repeatedly(delay)
            return t.AfterWatermark(delay, delay)
        if self._match_text_seq("AFTER", "WATERMARK"):
            if self._match_text_seq("AND", "AFTER", "DELAY"):
                delay = t.AfterDelay(self._emit_ticks())
            return t.AfterWatermark(delay, delay)
        return t.EveryElement()

    # Triggers

    def _emit_trigger(self, depth: int = 0) -> Trigger:
        return self._emit_connected(depth, (("THEN", t.AfterEach), ("OR", t.AfterAny)))

    def _emit_connected(self, depth: int, kinds: tuple[tuple[str, Any], ...]) -> Trigger:
        """Triggers connected by a word; those connected by the following words bind tighter."""
        (word, kind), rest = (kinds[0], kinds[1:]) if kinds else (("AND", t.AfterAll), None)

        def part() -> Trigger:
            if rest is None:
                return self._emit_until(depth)
            return self._emit_connected(depth, rest)

        parts = [part()]
        while self._curr.text.upper() == word and self._next.text.upper() in _OPERANDS:
            self._advance()
            parts.append(part())
        return parts[0] if len(parts) == 1 else kind(*parts)

    def _emit_until(self, depth: int) -> Trigger:
        found = self._emit_single_trigger(depth)
        while self._match_text_seq("UNTIL"):
            found = t.OrFinally(found, self._emit_single_trigger(depth))
        return found

    def _emit_single_trigger(self, depth: int) -> Trigger:
        token = self._curr
        try:
            return self._emit_operand(token, depth)
        except SpecError as error:
            self.raise_error(str(error), token)
            raise AssertionError from None

    def _emit_operand(self, token: Token, depth: int) -> Trigger:
        if depth > _DEEPEST:
            self.raise_error(f"Triggers are nested more than {_DEEPEST} deep")
        if self._match(TokenType.L_PAREN):
            found = self._emit_trigger(depth + 1)
            self._match_r_paren()
            return found
        if token.text.upper() not in _TRIGGERS:
            self.raise_error("Expected a trigger")
        self._advance()
        match token.text.upper():
            case "EVERY":
                return self._emit_every()
            case "AFTER":
                return self._emit_after(depth)
            case "AT":
                self._emit_expect("WATERMARK")
                return t.Default()
            case "NEVER":
                return t.Never()
            case "REPEAT":
                return t.Repeatedly(self._emit_single_trigger(depth + 1))
            case "ALL" | "ANY" | "EACH" as word:
                return self._emit_several(word, depth)
            case "POLICY":
                return t.Policy(**{"late": None, **self._emit_parts(depth, ("full",))})
        self.raise_error("Expected a trigger", token)
        raise AssertionError

    def _emit_several(self, word: str, depth: int) -> Trigger:
        self._match_l_paren()
        parts = [self._emit_trigger(depth + 1)]
        while self._match(TokenType.COMMA):
            parts.append(self._emit_trigger(depth + 1))
        self._match_r_paren()
        return {"ALL": t.AfterAll, "ANY": t.AfterAny, "EACH": t.AfterEach}[word](*parts)

    def _emit_every(self) -> Trigger:
        if self._match_text_seq("ROW"):
            return t.EveryElement()
        if self._curr.token_type == TokenType.NUMBER and self._next.text.upper() in _ROWS:
            return t.Repeatedly(t.AfterCount(self._emit_rows()))
        interval = self._emit_ticks()
        is_event_time = self._match_text_seq("OF", "EVENT", "TIME")
        refire = bool(self._match_text_seq("REFIRE"))
        if is_event_time:
            return t.EventInterval(interval, refire)
        return t.Every(interval, refire, bool(self._match_text_seq("ALIGNED")))

    def _emit_after(self, depth: int) -> Trigger:
        if self._match_text_seq("WATERMARK"):
            return t.AfterWatermark(**self._emit_parts(depth))
        if self._match_text_seq("DELAY"):
            return t.AfterDelay(self._emit_ticks())
        if self._curr.token_type == TokenType.NUMBER and self._next.text.upper() in _ROWS:
            return t.AfterCount(self._emit_rows())
        return t.AfterDelay(self._emit_ticks())

    def _emit_parts(self, depth: int, more: tuple[str, ...] = ()) -> dict[str, Trigger]:
        """`(EARLY ... LATE ...)`."""
        found: dict[str, Trigger] = {}
        names = ("early", "late", *more)
        if self._next.text.lower() not in names or not self._match(TokenType.L_PAREN):
            return found
        while self._curr.text.lower() in names:
            name = self._curr.text.lower()
            self._advance()
            self._emit_once(found, name, self._emit_trigger(depth + 1))
        self._match_r_paren()
        return found

    def _emit_rows(self) -> int:
        token = self._curr
        number = self._parse_number()
        if number is None or not number.is_int or not self._match_texts(_ROWS):
            self.raise_error("Expected a number of rows", token)
            return 1
        if int(number.name) < 1:
            self.raise_error("A number of rows is at least 1", token)
        return max(1, int(number.name))

    # Retention, evictors and options

    def _emit_retained(self, found: dict[str, Any]) -> None:
        while True:
            token = self._curr
            if token.token_type == TokenType.NUMBER:
                number = self._parse_number()
                unit = _COUNTED.get(self._curr.text.upper())
                if unit is None or number is None or not number.is_int or int(number.name) < 1:
                    self.raise_error("Expected WINDOWS, ROWS or BYTES", token)
                    return
                self._advance()
                self._emit_once(found, unit, int(number.name))
            else:
                self._emit_once(found, "time", self._emit_ticks())
            if not (
                self._curr.token_type in (TokenType.COMMA, TokenType.AND)
                and self._next.token_type in (TokenType.NUMBER, TokenType.INTERVAL)
            ):
                return
            self._advance()

    def _emit_evictor(self) -> evictors.Evictor:
        after = bool(self._match_text_seq("AFTER", "AGGREGATION"))
        token = self._curr
        if self._match_text_seq("DELTA"):
            column = self._parse_wrapped(self._parse_id_var)
            threshold = self._parse_number()
            if column is None or threshold is None:
                self.raise_error("Expected a column and a number", token)
                raise AssertionError
            return evictors.EvictDelta(column.name, float(threshold.name), after)
        self._emit_expect("KEEP")
        if self._curr.token_type == TokenType.NUMBER:
            number = self._parse_number()
            if number is None or not number.is_int or not self._match_texts(_ROWS):
                self.raise_error("Expected a number of rows", token)
                raise AssertionError
            return evictors.EvictCount(int(number.name), after)
        return evictors.EvictTime(self._emit_ticks(), after)

    def _emit_options(self) -> tuple[tuple[str, Any], ...]:
        def option() -> tuple[str, Any]:
            name = self._parse_string() or self._parse_id_var(any_token=True)
            if name is None or not self._match(TokenType.EQ):
                self.raise_error("Expected an option: name = value")
                raise AssertionError
            return name.name.lower(), _value(self._parse_interval() or self._parse_bitwise())

        return tuple(self._parse_wrapped_csv(option))

    def _emit_ticks(self, *, unbounded: bool = False) -> int:
        token = self._curr
        if unbounded and self._match_text_seq("UNBOUNDED"):
            return MAX
        if unbounded and self._match_text_seq("DEFAULT"):
            return DEFAULT_LATENESS
        try:
            found = self._parse_interval() or self._parse_loose_interval()  # type: ignore[attr-defined]
            if found is None:
                self.raise_error("Expected an interval", token)
                return 1
            size = ticks(found)
        except SpecError as error:
            self.raise_error(str(error), token)
            return 1
        if size < 0:
            self.raise_error("An interval of EMIT can't be negative", token)
        return size

    def _emit_expect(self, word: str) -> None:
        if not self._match_text_seq(word):
            self.raise_error(f"Expected {word}")


_ROWS = ("ROW", "ROWS")
_RETAINED = ("time", "windows", "messages", "bytes")
_COUNTED = {
    "WINDOW": "windows",
    "WINDOWS": "windows",
    "ROW": "messages",
    "ROWS": "messages",
    "BYTE": "bytes",
    "BYTES": "bytes",
}
_TRIGGERS = frozenset({"EVERY", "AFTER", "AT", "NEVER", "REPEAT", "ALL", "ANY", "EACH", "POLICY"})
_OPERANDS = _TRIGGERS | {"("}
_WHOLE = {"DEFAULT": "is_default", "EMIT FINAL": "is_final"}
"""Parts that stand for a trigger, and their fields."""


def _value(node: exp.Expr | None) -> Any:
    """The Python value of an option."""
    if isinstance(node, exp.Interval):
        return ticks(node)
    if isinstance(node, exp.Boolean):
        return bool(node.this)
    if isinstance(node, exp.Array):
        return tuple(_value(part) for part in node.expressions)
    if isinstance(node, exp.Literal) and not node.is_string:
        return int(node.name) if node.is_int else float(node.name)
    return None if node is None or isinstance(node, exp.Null) else node.name

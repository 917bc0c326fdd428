"""Statements that are a few words: `SET`, `RESET`, `USE`, `SHOW` and `DESCRIBE`."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot.tokenizer_core import Token, TokenType

from tidegate.sql.nodes import NAMESPACES, local_name
from tidegate.sql.positions import Place
from tidegate.sql.statements import SetOption, Show, Statement

WORDS = ("SET", "RESET", "USE", "SHOW", "DESCRIBE", "DESC")


def command(text: str, tokens: Sequence[Token]) -> Statement | None:
    """The statement of these tokens; None if it is none of them, or has nothing to do."""
    place = Place(text, tokens[0].start, tokens[0].end)
    word, rest = tokens[0].text.upper(), tokens[1:]
    if word in ("SET", "RESET"):
        return _setting(text, word, rest, place)
    if word == "USE":
        _check_used(text, rest, place)
        return None
    words = [token.text.upper() for token in rest]
    if word == "SHOW":
        if words in (["TABLES"], ["VIEWS"]):
            return Show(words[0], "", place)
        if words[:1] == ["CREATE"] and words[1:2] in (["TABLE"], ["VIEW"]) and words[2:]:
            return Show("CREATE", _name(rest[2:]), _span(text, rest[2:]))
        raise place.error(
            "this form of SHOW is not supported", "SHOW TABLES, SHOW VIEWS, SHOW CREATE TABLE name"
        )
    rest = rest[1:] if words[:1] in (["EXTENDED"], ["TABLE"]) and rest[1:] else rest
    if not rest:
        raise place.error("DESCRIBE takes a table or a view", "DESCRIBE name")
    return Show("COLUMNS", _name(rest), _span(text, rest))


def _setting(text: str, word: str, rest: Sequence[Token], place: Place) -> Statement:
    if word == "RESET":
        return SetOption(_words(text, rest) or None, None, place)
    if not rest:
        return Show("SETTINGS", "", place)
    equals = next((n for n, token in enumerate(rest) if token.token_type == TokenType.EQ), None)
    name = _words(text, rest[:equals]) if equals is not None else ""
    value = rest[equals + 1 :] if equals is not None else []
    if not name or not value:
        raise place.error("SET takes one option", "SET 'name' = 'value'")
    return SetOption(name, _words(text, value), place)


def _words(text: str, tokens: Sequence[Token]) -> str:
    """A quoted text without its quotes, or words as they are."""
    if len(tokens) == 1:
        return tokens[0].text
    return text[tokens[0].start : tokens[-1].end + 1].replace("`", "") if tokens else ""


def _check_used(text: str, rest: Sequence[Token], place: Place) -> None:
    """`USE [CATALOG] name`: there is one catalog with one database, and they are in use."""
    rest = rest[1:] if rest and rest[0].text.upper() == "CATALOG" else rest
    names = [token.text.lower() for token in rest if token.token_type != TokenType.DOT]
    if not names or not set(names) <= set(NAMESPACES):
        raise (_span(text, rest) if rest else place).error(
            "there is one catalog with one database", f"USE {'.'.join(NAMESPACES)}"
        )


def _name(tokens: Sequence[Token]) -> str:
    return local_name([token.text for token in tokens if token.token_type != TokenType.DOT])


def _span(text: str, tokens: Sequence[Token]) -> Place:
    return Place(text, tokens[0].start, tokens[-1].end)

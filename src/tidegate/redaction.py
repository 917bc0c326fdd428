"""Redaction: options, connection strings and URLs for display, without the secrets in them.

A text is redacted generously. A password may contain any character, so where its end is uncertain
the rest of the text is hidden too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

HIDDEN = "***"
_WORDS = (
    "password",
    "passwd",
    "passphrase",
    "pwd",
    "secret",
    "token",
    "credential",
    "jaas",
    "apikey",
    "accesskey",
    "accountkey",
    "privatekey",
    "signature",
    "userinfo",
    "oauthbearerconfig",
)
_WHOLE_NAMES = frozenset({"sig", "auth"})
"""The signature in the URLs of Azure's storage, and what a client authenticates with."""
_PARTS = frozenset({"pass", "sas"})
"""Parts of names that hold secrets, such as `fs.azure.sas.CONTAINER.ACCOUNT`."""
_SEPARATORS = re.compile(r"[^a-z0-9]+")
_VARIABLE = re.compile(r"\$\{\w+\}")
_USER_INFO = re.compile(r"(://[^:@]*:).*@", re.DOTALL)
"""The password of a URL ends with the last `@`, because it may contain others."""
_USER_ALONE = re.compile(r"(?i)(\bhttps?://)[^/@:\s]+@")
"""A token is often the user of a URL without a password."""
_ASSIGNED = re.compile(r"""(?P<name>[\w.-]+)["']?\s*(?:=|:(?!//))\s*""")
_QUOTED = re.compile(
    r"""(?P<quote>["'])(?:\\.|(?!(?P=quote))[^\\])*(?P=quote)(?=$|[\s,;&)\]}"'])""", re.DOTALL
)
_BEARER = re.compile(r"(?i)\b(bearer|basic)\s+\S.*", re.DOTALL)
_SQL_OPTION = re.compile(
    r"""'(?P<name>(?:[^']|''){0,200}+)'\s*+=?\s*+'(?P<value>(?:[^']|'')*+)(?:'|$)"""
)
"""An option in a SQL text, also one without its equals sign or its last quote."""
_FLAG = re.compile(r"(?P<name>--[\w.-]+)\s+(?:(?!\s--).)+", re.DOTALL)
"""An option of a command line with its value."""
_PEM = "-----BEGIN"
"""A certificate or a key, whose lines may look like assignments."""
_NEXT_NAME = re.compile(r"\s+[A-Za-z_][\w.]*\s*=")


def is_secret(name: str) -> bool:
    """Whether an option with this name holds a secret."""
    parts = [part for part in _SEPARATORS.split(name.lower()) if part]
    joined = "".join(parts)
    return (
        any(word in joined for word in _WORDS)
        or (len(parts) > 1 and "key" in parts)
        or not _PARTS.isdisjoint(parts)
        or joined in _WHOLE_NAMES
    )


def redacted(text: str) -> str:
    """The text with the passwords of URLs, and the values of secret names, hidden."""
    text = _USER_INFO.sub(rf"\g<1>{HIDDEN}@", text)
    text = _USER_ALONE.sub(rf"\g<1>{HIDDEN}@", text)
    if "authorization" in text.lower():
        text = _BEARER.sub(rf"\g<1> {HIDDEN}", text)
    text = _FLAG.sub(_hidden_flag, text)
    kept, start = [], 0
    while found := _ASSIGNED.search(text, start):
        kept.append(text[start : found.end()])
        start = found.end()
        if is_secret(found["name"]):
            end = _end_of_value(text, start)
            value = text[start:end]
            kept.append(value if _VARIABLE.fullmatch(value) else HIDDEN if value else "")
            start = end
    return "".join([*kept, text[start:]])


def masked_sql(text: str) -> str:
    """A SQL text with stars for the secrets of its options; all else stays in its place."""

    def one(found: re.Match[str]) -> str:
        value = found["value"]
        if not is_secret(found["name"]) and redacted(value) == value:
            return found.group()
        start, end = (at - found.start() for at in found.span("value"))
        whole = found.group()
        return whole[:start] + re.sub(r"[^\n]", "*", value) + whole[end:]

    return _SQL_OPTION.sub(one, text)


def redacted_lines(text: str) -> str:
    """A text of several independent lines, such as an error with a traceback, redacted."""
    return "\n".join(redacted(line) for line in text.split("\n"))


def redacted_value(name: str, value: Any) -> Any:
    """The value of an option for display; a reference to a variable is not a secret."""
    if isinstance(value, Mapping):
        return redacted_options(value)
    if isinstance(value, list | tuple):
        return [redacted_value(name, inner) for inner in value]
    if is_secret(name):
        return value if isinstance(value, str) and _VARIABLE.fullmatch(value) else HIDDEN
    return redacted(value) if isinstance(value, str) else value


def redacted_options(options: Mapping[Any, Any]) -> dict[Any, Any]:
    """Options for display."""
    return {name: redacted_value(str(name), value) for name, value in options.items()}


def _hidden_flag(found: re.Match[str]) -> str:
    return f"{found['name']} {HIDDEN}" if is_secret(found["name"]) else found.group()


def _end_of_value(text: str, start: int) -> int:
    """The end of a secret: its closing quote, the next `name=` after a space, or the text's end."""
    quoted = _QUOTED.match(text, start)
    if quoted:
        return quoted.end()
    if text.startswith(_PEM, start):
        return len(text)
    following = _NEXT_NAME.search(text, start)
    return following.start() if following else len(text)

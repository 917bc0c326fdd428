"""YAML with locations: variables are expanded, and duplicate keys are rejected."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import yaml

from tidegate.pipeline.diagnostics import Diagnostics, PipelineFileError, Problem
from tidegate.redaction import redacted_value

MOST_PARTS = 10_000
"""Limit for the expansion of anchors."""
MOST_BITS = 1000
"""The largest number in a pipeline file, in bits."""
MOST_SHOWN = 100
"""The length of a value in an error, in characters."""
_VARIABLE = re.compile(r"\$\$|\$\{(?P<name>[^}:]{0,200}+)(?::-(?P<default>[^}]*+))?\}")
_MERGE = "tag:yaml.org,2002:merge"
_EMPTY = (
    "a pipeline needs at least `input`, `window`, `aggregate` and `write`; see docs/pipelines.md"
)


@dataclass(frozen=True)
class Part:
    """A value of the file: a scalar, a list of parts, or a mapping of keys to parts."""

    # Not in `repr`: it may contain secrets.
    value: Any = field(repr=False)
    place: tuple[int, int]
    written: str = field(default="", repr=False)
    """The text as written in the file, with variables not expanded."""
    key: tuple[int, int] | None = None
    """The location of its key."""

    @property
    def is_mapping(self) -> bool:
        return isinstance(self.value, dict)

    def plain(self) -> Any:
        """The value without locations."""
        if isinstance(self.value, dict):
            return {word: part.plain() for word, part in self.value.items()}
        return [part.plain() for part in self.value] if isinstance(self.value, list) else self.value

    def shown(self) -> Any:
        """The value as written, for display: variables are not expanded, secrets are hidden."""
        return redacted_value("", self.unexpanded())

    def unexpanded(self) -> Any:
        """The value as written, with its secrets: not for display."""
        if isinstance(self.value, dict):
            return {word: part.unexpanded() for word, part in self.value.items()}
        if isinstance(self.value, list):
            return [part.unexpanded() for part in self.value]
        return self.written or self.value


def read(text: str, problems: Diagnostics, environment: Mapping[str, str] | None = None) -> Part:
    """The single document of a YAML text.

    Syntax errors are raised at once; other problems are collected in `problems`.
    """
    loader = yaml.SafeLoader(_printable(text, problems))
    try:
        with _syntax(problems.name):
            node = loader.get_single_node()
        if node is None or node.value == "":
            raise PipelineFileError(problems.name, [Problem(1, 1, "the file is empty", _EMPTY)])
        return _DocumentLoader(
            loader, problems, os.environ if environment is None else environment
        ).part(node, ())
    finally:
        loader.dispose()


def _printable(text: str, problems: Diagnostics) -> str:
    """The text, checked for control characters: YAML rejects them without a location."""
    found = yaml.reader.Reader.NON_PRINTABLE.search(text)
    if found:
        line = text.count("\n", 0, found.start()) + 1
        place = (line, found.start() - text.rfind("\n", 0, found.start()))
        rule = f"the character {found.group()!r} is not allowed in a YAML file"
        raise PipelineFileError(
            problems.name, [Problem(*place, rule, "a pipeline file is plain text in UTF-8")]
        )
    return text


@contextmanager
def _syntax(name: str) -> Iterator[None]:
    try:
        yield
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        message = " ".join(filter(None, (error.context, error.problem)))
        hint = (
            "indent with spaces; a line must not start with a tab"
            if "'\\t'" in message
            else "quote strings that contain `: ` or `#`, or start with a sign"
        )
        raise PipelineFileError(
            name, [Problem(*place, f"this is not YAML: {message}", hint)]
        ) from None
    except RecursionError:
        raise PipelineFileError(name, [Problem(1, 1, "the file is nested too deeply")]) from None


class _DocumentLoader:
    """Converts YAML nodes to parts."""

    def __init__(
        self, loader: yaml.SafeLoader, problems: Diagnostics, environment: Mapping[str, str]
    ) -> None:
        self.loader, self.problems, self.environment = loader, problems, environment
        self.parts = 0

    def part(
        self, node: yaml.Node, inside: tuple[int, ...], key: tuple[int, int] | None = None
    ) -> Part:
        place = _place(node)
        self.parts += 1
        if self.parts > MOST_PARTS:
            raise PipelineFileError(
                self.problems.name,
                [
                    Problem(
                        *place, f"the file has more than {MOST_PARTS} parts", "use fewer anchors"
                    )
                ],
            )
        if id(node) in inside:
            self.problems.add(
                place, "an anchor contains itself", "write the part out where it is used"
            )
            return Part(None, place, key=key)
        inside = (*inside, id(node))
        if isinstance(node, yaml.MappingNode):
            return Part(self.mapping(node, inside), place, key=key)
        if isinstance(node, yaml.SequenceNode):
            return Part([self.part(item, inside) for item in node.value], place, key=key)
        return self.scalar(node, key)

    def mapping(self, node: yaml.MappingNode, inside: tuple[int, ...]) -> dict[str, Part]:
        found: dict[str, Part] = {}
        merged: dict[str, Part] = {}
        for word, value in node.value:
            if word.tag == _MERGE:
                merged |= self.merged(value, inside)
            elif not isinstance(word, yaml.ScalarNode):
                self.problems.add(_place(word), "a key must be a string")
            elif word.value in found:
                first = found[word.value].key or (0, 0)
                self.problems.add(
                    _place(word),
                    f"`{word.value}` is given twice, first in line {first[0]}",
                    "remove one of them",
                )
            else:
                found[word.value] = self.part(value, inside, _place(word))
        return {**merged, **found}

    def merged(self, node: yaml.Node, inside: tuple[int, ...]) -> dict[str, Part]:
        """The content of `<<: *anchor`; keys of the mapping itself take precedence."""
        given = self.part(node, inside)
        parts = given.value if isinstance(given.value, list) else [given]
        if not all(part.is_mapping for part in parts):
            self.problems.add(
                _place(node),
                "`<<` takes a mapping, or a list of mappings",
                "name an anchor of a mapping: `<<: *defaults`",
            )
            return {}
        return {word: value for part in reversed(parts) for word, value in part.value.items()}

    def scalar(self, node: yaml.Node, key: tuple[int, int] | None) -> Part:
        try:
            value = self.loader.construct_object(node)
            if isinstance(value, int) and value.bit_length() > MOST_BITS:
                raise ValueError(f"a number has at most {MOST_BITS} bits")  # noqa: TRY301
        except (yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError) as error:
            message = getattr(error, "problem", None) or error
            written = f"{node.value}"[:MOST_SHOWN]
            self.problems.add(
                _place(node), f"`{written}` cannot be read: {message}", "put it in quotes"
            )
            return Part(None, _place(node), key=key)
        if isinstance(value, str):
            return Part(self.filled(value, node), _place(node), value, key)
        return Part(value, _place(node), key=key)

    def filled(self, text: str, node: yaml.Node) -> str:
        """The text with `${NAME}` and `${NAME:-default}` expanded; `$$` is a dollar sign."""

        def one(found: re.Match[str]) -> str:
            if found.group() == "$$":
                return "$"
            name = found.group("name")
            if name in self.environment:
                return self.environment[name]
            if found.group("default") is None:
                hint = f"export {name}=..., or give a default: ${{{name}:-...}}"
                self.problems.add(_place(node), f"the environment has no variable `{name}`", hint)
                # A placeholder, so that the rest of the text can be checked too.
                return name
            return found.group("default")

        # No reference ends behind the last brace, so that none is searched there from every dollar.
        end = text.rfind("}") + 1
        return _VARIABLE.sub(one, text[:end]) + text[end:].replace("$$", "$")


def _place(node: yaml.Node) -> tuple[int, int]:
    return node.start_mark.line + 1, node.start_mark.column + 1

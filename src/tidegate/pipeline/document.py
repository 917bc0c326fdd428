"""YAML with places: a file read into parts that know their line, with the environment filled in and
nothing accepted twice.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import yaml

from tidegate.pipeline.problems import PipelineFileError, Problem, Problems

MOST_PARTS = 10_000
"""Anchors can make a short file grow without end."""
_VARIABLE = re.compile(r"\$\$|\$\{(?P<name>[^}:]*)(?::-(?P<default>[^}]*))?\}")
_MERGE = "tag:yaml.org,2002:merge"
_EMPTY = (
    "a pipeline needs at least `input`, `window`, `aggregate` and `write`; see docs/pipelines.md"
)


@dataclass(frozen=True)
class Part:
    """A value of the file: a scalar, a list of parts, or a mapping of words to parts."""

    value: Any
    place: tuple[int, int]
    written: str = ""
    """A text as it stands in the file: what the environment fills in is not shown."""
    key: tuple[int, int] | None = None
    """Where the word stands in front of it."""

    @property
    def is_mapping(self) -> bool:
        return isinstance(self.value, dict)

    def plain(self) -> Any:
        """The value without places."""
        if isinstance(self.value, dict):
            return {word: part.plain() for word, part in self.value.items()}
        return [part.plain() for part in self.value] if isinstance(self.value, list) else self.value

    def shown(self) -> Any:
        """The same as it is written, for people: variables keep their names."""
        if isinstance(self.value, dict):
            return {word: part.shown() for word, part in self.value.items()}
        return (
            [part.shown() for part in self.value]
            if isinstance(self.value, list)
            else self.written or self.value
        )


def read(text: str, problems: Problems, environment: Mapping[str, str] | None = None) -> Part:
    """The one document of a YAML text; syntax errors end the reading at once, everything else is
    gathered in `problems`.
    """
    loader = yaml.SafeLoader(_printable(text, problems))
    try:
        with _syntax(problems.name):
            node = loader.get_single_node()
        if node is None or node.value == "":
            raise PipelineFileError(problems.name, [Problem(1, 1, "the file is empty", _EMPTY)])
        return _Reading(loader, problems, os.environ if environment is None else environment).part(
            node, ()
        )
    finally:
        loader.dispose()


def _printable(text: str, problems: Problems) -> str:
    """YAML refuses control characters as soon as it is made, without a line."""
    found = yaml.reader.Reader.NON_PRINTABLE.search(text)
    if found:
        line = text.count("\n", 0, found.start()) + 1
        place = (line, found.start() - text.rfind("\n", 0, found.start()))
        rule = f"the character {found.group()!r} cannot stand in a YAML file"
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
        said = " ".join(filter(None, (error.context, error.problem)))
        hint = (
            "indent with spaces, a tab cannot begin a line"
            if "'\\t'" in said
            else "quote texts that hold `: `, `#`, or begin with a sign"
        )
        raise PipelineFileError(name, [Problem(*place, f"this is no YAML: {said}", hint)]) from None
    except RecursionError:
        raise PipelineFileError(name, [Problem(1, 1, "the file is nested too deeply")]) from None


class _Reading:
    """One walk over the nodes."""

    def __init__(
        self, loader: yaml.SafeLoader, problems: Problems, environment: Mapping[str, str]
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
                place, "an anchor holds itself", "write the part out where it is used"
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
                self.problems.add(_place(word), "the word in front of a colon must be a text")
            elif word.value in found:
                first = found[word.value].key or (0, 0)
                self.problems.add(
                    _place(word),
                    f"`{word.value}` is said twice, first in line {first[0]}",
                    "remove one of them",
                )
            else:
                found[word.value] = self.part(value, inside, _place(word))
        return {**merged, **found}

    def merged(self, node: yaml.Node, inside: tuple[int, ...]) -> dict[str, Part]:
        """What `<<: *anchor` brings in; the words of the mapping itself go before it."""
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
        except (yaml.YAMLError, ValueError) as error:
            said = getattr(error, "problem", None) or error
            self.problems.add(
                _place(node), f"`{node.value}` cannot be read: {said}", "put it in quotes"
            )
            return Part(None, _place(node), key=key)
        if isinstance(value, str):
            return Part(self.filled(value, node), _place(node), value, key)
        return Part(value, _place(node), key=key)

    def filled(self, text: str, node: yaml.Node) -> str:
        """The text with `${NAME}` and `${NAME:-default}` replaced; `$$` stands for a dollar
        sign.
        """

        def one(found: re.Match[str]) -> str:
            if found.group() == "$$":
                return "$"
            name = found.group("name")
            if name in self.environment:
                return self.environment[name]
            if found.group("default") is None:
                hint = f"export {name}=..., or give a default: ${{{name}:-...}}"
                self.problems.add(_place(node), f"the environment has no variable `{name}`", hint)
                # Something stands for it, so that the rest of the text can be read too.
                return name
            return found.group("default")

        return _VARIABLE.sub(one, text)


def _place(node: yaml.Node) -> tuple[int, int]:
    return node.start_mark.line + 1, node.start_mark.column + 1

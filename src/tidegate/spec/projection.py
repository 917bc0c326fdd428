"""Projections: columns computed from the rows of a delivery by SQL, and the rows that stay.

A projection is data: texts in the SQL of DuckDB, which evaluates them on whole Arrow tables. It
stands in front of an operator, between two operators, or behind the last one.

Contract:
- The value of a row depends on that row alone.
- Rows that `where` drops still determine the watermark of a source.
- Rows between operators carry a protocol: whether they retract, their window, their id. These
  columns stay (`keeps="protocol"`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidegate.errors import SpecError

PROTOCOL = frozenset(
    {
        *("window_start", "window_end", "op", "timing", "pane", "pane_nonspeculative"),
        *("is_first", "is_last", "time", "watermark", "emitted_at", "pane_id", "pair_id"),
        "_change_type",
    }
)
"""The columns of panes and pairs that describe them, beside keys and values."""
_FIXED = frozenset({"op", "pane_id", "pair_id"})
"""The columns that an operator or a sink reads and that no expression may replace."""
_KEEPS = ("nothing", "protocol", "all")
_REFERENCE = re.compile(r'"((?:[^"]|"")*)"')


def reference(name: str) -> str:
    """The SQL text of a column."""
    return '"' + name.replace('"', '""') + '"'


def referenced(text: str) -> str | None:
    """The column that a text refers to and does nothing else with."""
    found = _REFERENCE.fullmatch(text)
    return None if found is None else found.group(1).replace('""', '"')


@dataclass(frozen=True)
class Unnest:
    """Turns every element of a list of structs into a row, with its fields as columns."""

    column: str
    fields: tuple[str, ...]
    position: str | None = None
    """The column with the number of the element in its list, from 1."""

    def to_dict(self) -> dict[str, Any]:
        return {"column": self.column, "fields": list(self.fields), "position": self.position}


@dataclass(frozen=True)
class Projection:
    """The columns of the rows that leave, and the condition for them to leave."""

    columns: tuple[tuple[str, str], ...] = ()
    """Names, and expressions over the columns of the rows."""
    where: str | None = None
    """A condition over the columns of the rows, as they are before the expressions."""
    keeps: str = "nothing"
    """Which further columns stay: nothing, the protocol of operators, or all."""
    unnest: Unnest | None = None
    """What happens to the rows before everything else."""

    def __post_init__(self) -> None:
        if self.keeps not in _KEEPS:
            raise SpecError(f"`keeps` is one of {', '.join(_KEEPS)}; got {self.keeps!r}")
        names = [name for name, _ in self.columns]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise SpecError(
                f"several columns are named `{twice[0]}`. Hint: name one of them with AS"
            )
        for name, text in self.columns:
            if self.keeps == "protocol" and name in _FIXED and referenced(text) != name:
                raise SpecError(
                    f"`{name}` is a column of the results of windows and joins, and no expression"
                    " can have this name. Hint: use another alias"
                )

    def stays(self, present: Sequence[str]) -> list[str]:
        """The columns that stay beside the computed ones, in their order."""
        replaced = {name for name, _ in self.columns}
        if self.keeps == "nothing":
            return []
        kept = [name for name in present if name not in replaced]
        return kept if self.keeps == "all" else [name for name in kept if name in PROTOCOL]

    def passes(self, name: str) -> bool:
        """Whether a column leaves with the values with which it came."""
        for named, text in self.columns:
            if named == name:
                return referenced(text) == name
        return self.keeps == "all" or (self.keeps == "protocol" and name in PROTOCOL)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form of what stored state depends on."""
        return {
            "columns": [list(column) for column in self.columns],
            "where": self.where,
            "keeps": self.keeps,
            "unnest": None if self.unnest is None else self.unnest.to_dict(),
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Projection:
        """The inverse of `to_dict`."""
        unnest = document["unnest"]
        return cls(
            tuple((name, text) for name, text in document["columns"]),
            document["where"],
            document["keeps"],
            None
            if unnest is None
            else Unnest(unnest["column"], tuple(unnest["fields"]), unnest["position"]),
        )


def pass_unchanged(projections: Sequence[Projection], names: Collection[str]) -> bool:
    """Whether columns leave the last of these projections with the values they had before."""
    return all(projection.passes(name) for projection in projections for name in names)

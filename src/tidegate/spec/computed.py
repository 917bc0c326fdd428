"""Columns that a user's function computes from the other columns of a delivery.

Contract of such a function:
- It receives an Arrow table with the columns of the delivery and returns an Arrow column with one
  value per row. It is called with whole deliveries, and with an empty table to learn the type.
- The value of a row depends on that row alone, so that it is the same however the stream is cut
  into deliveries, and after a replay.
- A row for which the function raises goes to `late` as `bad_value`. A null is a missing time, gap
  or key.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tidegate.errors import SpecError
from tidegate.spec.json_form import function_from, json_form

ColumnFunction = Callable[[pa.Table], pa.Array | pa.ChunkedArray]


@dataclass(frozen=True)
class Computed:
    """A column with the result of a function over the other columns."""

    name: str
    function: ColumnFunction

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise SpecError(
                f"the column `{self.name}` is computed by a function over columns, got"
                f" {self.function!r}. Hint: lambda table: table['ms']"
            )

    def to_dict(self) -> dict[str, Any]:
        """The JSON form, with the qualified name of the function."""
        return {"name": self.name, **json_form(self.function)}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Computed:
        """The inverse of `to_dict`; imports the function."""
        return cls(document["name"], function_from(document))

    @classmethod
    def of(cls, role: str, function: ColumnFunction, taken: Collection[str] = ()) -> Computed:
        """The column of a function, named after it; a lambda is named after its role.

        Underscores make the name differ from the names that are taken.
        """
        name = str(getattr(function, "__name__", role))
        name = role if name == "<lambda>" else name
        while name in taken:
            name += "_"
        return cls(name, function)

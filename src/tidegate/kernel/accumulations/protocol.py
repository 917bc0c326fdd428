"""The protocol of accumulations: lift rows to partials, combine partials, lower them to results.

Contract: `lift` and `combine` return one entry per group of the `Groups` they get, also for an
empty group. `combine` is associative: a lift of all rows equals the combined lifts of any split of
them (up to float rounding). Partial columns are NumPy where values are fixed-width and non-null,
Arrow otherwise, and survive a round trip through `Frame.to_table` and `from_table`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from tidegate.kernel.frame import Column, to_arrow
from tidegate.kernel.groups import Groups

Partials = Mapping[str, Column]


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Rows as accumulations see them: input columns, event time, sequence number and weight.

    A row of weight -1 is a retraction.
    """

    table: pa.Table
    time: np.ndarray
    order: np.ndarray
    weight: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.time)

    def column(self, name: str) -> pa.Array:
        """One input column as a contiguous array; a dictionary is decoded."""
        array = to_arrow(self.table.column(name))
        return array.dictionary_decode() if isinstance(array, pa.DictionaryArray) else array

    def select(self, names: tuple[str, ...] | None) -> Rows:
        """The same rows with the named columns only, to make filtering cheap; None keeps all."""
        return (
            self
            if names is None
            else Rows(self.table.select(list(names)), self.time, self.order, self.weight)
        )

    def where(self, mask: np.ndarray) -> Rows:
        if mask.all():
            return self
        kept = np.flatnonzero(mask)
        weight = None if self.weight is None else self.weight[kept]
        return Rows(self.table.take(pa.array(kept)), self.time[kept], self.order[kept], weight)


@dataclass(frozen=True, slots=True, eq=False)
class Lifted:
    """Partials of each group; `failed` marks rows that a user function rejected."""

    partials: dict[str, Column]
    failed: np.ndarray | None = None
    why: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Lowered:
    """Results of each group; `failed` marks groups without a valid result (null)."""

    values: pa.Array
    failed: np.ndarray | None = None
    why: str = ""
    reason: str = "accumulation_failed"


class Accumulation(Protocol):
    """One bound aggregate."""

    @property
    def partial_types(self) -> dict[str, pa.DataType]: ...

    @property
    def result_type(self) -> pa.DataType: ...

    @property
    def invertible(self) -> bool:
        """Whether rows of weight -1 are supported."""
        ...

    @property
    def full_state(self) -> bool:
        """Whether it needs the messages themselves."""
        ...

    def lift(self, rows: Rows, groups: Groups) -> Lifted: ...

    def combine(self, partials: Partials, groups: Groups) -> dict[str, Column]: ...

    def evaluate(self, partials: Partials) -> Lowered:
        """Results and failures, in one pass."""
        ...

    def lower(self, partials: Partials) -> pa.Array: ...

    def overflowed(self, partials: Partials) -> np.ndarray | None: ...


class Base:
    """Defaults of most accumulations: no retractions, no messages, no failures when lowered."""

    invertible = False
    full_state = False

    def __init__(self, partial_types: dict[str, pa.DataType], result_type: pa.DataType) -> None:
        self.partial_types = partial_types
        self.result_type = result_type

    def evaluate(self, partials: Partials) -> Lowered:
        return Lowered(self.lower(partials))

    def lower(self, partials: Partials) -> pa.Array:
        return self.evaluate(partials).values

    def overflowed(self, partials: Partials) -> np.ndarray | None:  # noqa: ARG002
        return None


class Fallible(Base):
    """An accumulation whose result may not exist; subclasses define `evaluate`."""

    def overflowed(self, partials: Partials) -> np.ndarray | None:
        return self.evaluate(partials).failed

"""A bundle is the aggregates of one operator, lifted, combined and lowered together as columns of one frame."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from tidegate.kernel.accumulations import bind
from tidegate.kernel.accumulations.protocol import Accumulation, Rows
from tidegate.kernel.frame import Column, Frame
from tidegate.kernel.groups import Groups
from tidegate.spec.operator import AggregateSpec


class Bundle:
    """All aggregates of a specification over one input schema."""

    def __init__(self, accumulations: Mapping[str, Accumulation]) -> None:
        self._accumulations = dict(accumulations)
        self._names = {
            name: {part: f"p.{name}.{part}" for part in accumulation.partial_types} for name, accumulation in self._accumulations.items()
        }

    @classmethod
    def bound(cls, spec: AggregateSpec, schema: pa.Schema, *, retractions: bool) -> Bundle:
        return cls({name: bind(aggregate, schema, retractions=retractions) for name, aggregate in spec.aggregates})

    @property
    def full_state(self) -> bool:
        return any(a.full_state for a in self._accumulations.values())

    @property
    def invertible(self) -> bool:
        return all(a.invertible for a in self._accumulations.values())

    @property
    def result_types(self) -> dict[str, pa.DataType]:
        return {name: a.result_type for name, a in self._accumulations.items()}

    def lift(self, rows: Rows, groups: Groups) -> tuple[dict[str, Column], np.ndarray | None, str]:
        """Partials by group, the rows that a user's function refused, and why."""
        columns: dict[str, Column] = {}
        failed: np.ndarray | None = None
        why = ""
        for name, accumulation in self._accumulations.items():
            lifted = accumulation.lift(rows, groups)
            columns.update({self._names[name][part]: column for part, column in lifted.partials.items()})
            if lifted.failed is not None and lifted.failed.any():
                failed = lifted.failed if failed is None else failed | lifted.failed
                why = why or f"{name}: {lifted.why}"
        return columns, failed, why

    def combine(self, frame: Frame, groups: Groups) -> dict[str, Column]:
        """One row a group from the partial columns of a frame."""
        columns: dict[str, Column] = {}
        for name, accumulation in self._accumulations.items():
            names = self._names[name]
            merged = accumulation.combine({part: frame[column] for part, column in names.items()}, groups)
            columns.update({names[part]: column for part, column in merged.items()})
        return columns

    def lower(self, frame: Frame) -> tuple[dict[str, pa.Array], dict[str, tuple[np.ndarray, str]]]:
        """Results by row, and for each aggregate the rows that have no right result."""
        values: dict[str, pa.Array] = {}
        failures: dict[str, tuple[np.ndarray, str]] = {}
        for name, accumulation in self._accumulations.items():
            lowered = accumulation.evaluate({part: frame[column] for part, column in self._names[name].items()})
            values[name] = lowered.values
            if lowered.failed is not None and lowered.failed.any():
                failures[name] = (lowered.failed, lowered.why)
        return values, failures

    @property
    def partial_columns(self) -> list[str]:
        return [column for names in self._names.values() for column in names.values()]

    def empty(self, schema: pa.Schema, n: int) -> dict[str, Column]:
        """Partials of n windows in which nothing came."""
        nothing = np.zeros(0, np.int64)
        return self.lift(Rows(schema.empty_table(), nothing, nothing), Groups(nothing, n))[0]

"""A bundle is the aggregates of one operator, lifted, combined and lowered together as columns of one frame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from tidegate.kernel.accumulations import bind, prefix_combine
from tidegate.kernel.accumulations.protocol import Accumulation, Rows
from tidegate.kernel.frame import Column, Frame
from tidegate.kernel.groups import Groups
from tidegate.spec.operator import AggregateSpec


class Bundle:
    """All aggregates of a specification over one input schema."""

    def __init__(self, accumulations: Mapping[str, Accumulation], *, retractions: bool, untyped: Sequence[str] = ()) -> None:
        self.retractions = retractions
        self._untyped = tuple(untyped)
        self._accumulations = dict(accumulations)
        self._names = {
            name: {part: f"p.{name}.{part}" for part in accumulation.partial_types} for name, accumulation in self._accumulations.items()
        }

    @classmethod
    def bound(cls, spec: AggregateSpec, schema: pa.Schema, *, retractions: bool) -> Bundle:
        # Of a column that has held nothing but nulls so far nothing is known; any type that can be added up holds nothing just as well.
        untyped = [f.name for f in schema if pa.types.is_null(f.type)]
        typed = pa.schema([f.with_type(pa.float64()) if f.name in untyped else f for f in schema])
        bound = {name: bind(aggregate, typed, retractions=retractions) for name, aggregate in spec.aggregates}
        return cls(bound, retractions=retractions, untyped=untyped)

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
        if self._untyped:
            rows = replace(rows, table=self._with_types(rows.table))
        for name, accumulation in self._accumulations.items():
            lifted = accumulation.lift(rows, groups)
            columns.update({self._names[name][part]: column for part, column in lifted.partials.items()})
            if lifted.failed is not None and lifted.failed.any():
                failed = lifted.failed if failed is None else failed | lifted.failed
                why = why or f"{name}: {lifted.why}"
        return columns, failed, why

    def _with_types(self, table: pa.Table) -> pa.Table:
        for name in self._untyped:
            table = table.set_column(table.column_names.index(name), name, table.column(name).cast(pa.float64()))
        return table

    def combine(self, frame: Frame, groups: Groups) -> dict[str, Column]:
        """One row a group from the partial columns of a frame."""
        columns: dict[str, Column] = {}
        for name, accumulation in self._accumulations.items():
            names = self._names[name]
            merged = accumulation.combine({part: frame[column] for part, column in names.items()}, groups)
            columns.update({names[part]: column for part, column in merged.items()})
        return columns

    def prefix(self, frame: Frame, groups: Groups) -> dict[str, Column]:
        """For each row the combination of its group up to it."""
        columns: dict[str, Column] = {}
        for name, accumulation in self._accumulations.items():
            names = self._names[name]
            running = prefix_combine(accumulation, {part: frame[column] for part, column in names.items()}, groups)
            columns.update({names[part]: column for part, column in running.items()})
        return columns

    def lower(self, frame: Frame) -> tuple[dict[str, pa.Array], dict[str, tuple[np.ndarray, str, str]]]:
        """Results by row, and for each aggregate the rows that have no right result, with reason and detail."""
        values: dict[str, pa.Array] = {}
        failures: dict[str, tuple[np.ndarray, str, str]] = {}
        for name, accumulation in self._accumulations.items():
            lowered = accumulation.evaluate({part: frame[column] for part, column in self._names[name].items()})
            values[name] = lowered.values
            if lowered.failed is not None and lowered.failed.any():
                failures[name] = (lowered.failed, lowered.reason, lowered.why)
        return values, failures

    @property
    def partial_columns(self) -> list[str]:
        return [column for names in self._names.values() for column in names.values()]

    def empty(self, schema: pa.Schema, n: int) -> dict[str, Column]:
        """Partials of n windows in which nothing came."""
        nothing = np.zeros(0, np.int64)
        return self.lift(Rows(schema.empty_table(), nothing, nothing), Groups(nothing, n))[0]

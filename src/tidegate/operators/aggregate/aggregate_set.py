"""The aggregates of one operator, lifted, combined and lowered together as columns of a frame."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from tidegate.errors import SpecError, TidegateError
from tidegate.kernel.accumulations import bind, prefix_combine
from tidegate.kernel.accumulations.protocol import Accumulation, Rows
from tidegate.kernel.frame import Column, Frame, constant, is_constant, squeezed_all, to_numpy
from tidegate.kernel.groups import Groups
from tidegate.spec.aggregates import Aggregate, AllTrue, AnyTrue
from tidegate.spec.operator import AggregateSpec


def _flags(aggregate: Aggregate) -> tuple[str, ...]:
    """The columns that an aggregate takes as booleans."""
    condition = (aggregate.where,) if isinstance(aggregate.where, str) else ()
    return (*condition, aggregate.column) if isinstance(aggregate, AnyTrue | AllTrue) else condition


def _bound_all(spec: AggregateSpec, schema: pa.Schema) -> dict[str, Accumulation]:
    """The aggregates over these columns; one error has all that do not fit."""
    found: dict[str, Accumulation] = {}
    refused: list[SpecError] = []
    for name, aggregate in spec.aggregates:
        try:
            found[name] = bind(aggregate, schema)
        except SpecError as error:
            refused.append(error)
    if len(refused) == 1:
        raise refused[0]
    if refused:
        listed = "\n".join(f"  {error}" for error in refused)
        raise SpecError(f"{len(refused)} aggregates do not fit the columns:\n{listed}")
    return found


def _check_additive(accumulations: Mapping[str, Accumulation]) -> None:
    """Refuse to discard what cannot be subtracted."""
    for name, accumulation in accumulations.items():
        if not accumulation.invertible:
            raise SpecError(
                f"`{name}` sums floats behind an upstream that changes rows, and the change since"
                " the last pane is not exact for floats. Hint: accumulating() or retracting(), or"
                " sum decimals"
            )


class _Everywhere:
    """Whether something holds for all rows of a group."""

    def combine(self, partials: Mapping[str, Column], groups: Groups) -> dict[str, Column]:
        return {name: self._all(to_numpy(column), groups) for name, column in partials.items()}

    @staticmethod
    def _all(column: np.ndarray, groups: Groups) -> np.ndarray:
        return constant(column[0], groups.n) if is_constant(column) else groups.all(column)


class AggregateSet:
    """All aggregates of a specification over one input schema.

    A `recent` aggregate was added to existing state. A boolean column beside its partials tells
    whether it covers the whole window; its result is null where it does not.
    """

    def __init__(
        self,
        accumulations: Mapping[str, Accumulation],
        *,
        retractions: bool,
        untyped: Mapping[str, pa.DataType] | None = None,
        recent: Sequence[str] = (),
        open_types: Mapping[str, pa.DataType] | None = None,
    ) -> None:
        self.retractions = retractions
        self._open_types = dict(open_types or {})
        self._untyped = dict(untyped or {})
        self._accumulations = dict(accumulations)
        self._names = {
            name: {part: f"p.{name}.{part}" for part in accumulation.partial_types}
            for name, accumulation in self._accumulations.items()
        }
        self._nothing: tuple[pa.Schema, dict[str, Column]] | None = None
        """The partials of an empty window, once they were asked for under a schema."""
        self._known = {name: f"known.{name}" for name in recent}

    @classmethod
    def bound(cls, spec: AggregateSpec, schema: pa.Schema, *, retractions: bool) -> AggregateSet:
        # The type of a column of nulls is unknown; any type that its aggregates take will do. Sums
        # of integers can be subtracted, sums of floats cannot, and discarded panes need the former.
        flags = {name for _, aggregate in spec.aggregates for name in _flags(aggregate)}
        number = pa.int64() if retractions and spec.mode == "discarding" else pa.float64()
        untyped = {
            f.name: pa.bool_() if f.name in flags else number
            for f in schema
            if pa.types.is_null(f.type)
        }
        typed = pa.schema([f.with_type(untyped.get(f.name, f.type)) for f in schema])
        bound = _bound_all(spec, typed)
        if retractions and spec.mode == "discarding":
            _check_additive(bound)
        open_types = {
            name: _open_type(aggregate, bound[name].result_type, schema, untyped)
            for name, aggregate in spec.aggregates
            if untyped
        }
        return cls(bound, retractions=retractions, untyped=untyped, open_types=open_types)

    def since(self, recent: Sequence[str]) -> AggregateSet:
        """The same aggregates, with some of them marked as added to existing state."""
        return AggregateSet(
            self._accumulations,
            retractions=self.retractions,
            untyped=self._untyped,
            recent=recent,
            open_types=self._open_types,
        )

    @property
    def recent(self) -> tuple[str, ...]:
        """The aggregates that were added to existing state."""
        return tuple(self._known)

    @property
    def known_columns(self) -> list[str]:
        """The columns that tell whether a recent aggregate covers the whole window."""
        return list(self._known.values())

    def all_known(self, n: int) -> dict[str, Column]:
        """The known columns of n windows that every aggregate covers."""
        return {column: constant(np.True_, n) for column in self._known.values()}

    def unseen(self, frame: Frame) -> list[str]:
        """The aggregates that were added after a frame was stored."""
        return [name for name, column in self._known.items() if column not in frame]

    def nothing_seen(self, names: Sequence[str], schema: pa.Schema, n: int) -> dict[str, Column]:
        """Partials of aggregates that cover no row of n windows."""
        nothing = np.zeros(0, np.int64)
        rows, groups = self._typed(Rows(schema.empty_table(), nothing, nothing)), Groups(nothing, n)
        columns: dict[str, Column] = {}
        for name in names:
            lifted = self._accumulations[name].lift(rows, groups)
            columns.update(
                {self._names[name][part]: column for part, column in lifted.partials.items()}
            )
        return columns

    @property
    def full_state(self) -> bool:
        return any(a.full_state for a in self._accumulations.values())

    @property
    def invertible(self) -> bool:
        return all(a.invertible for a in self._accumulations.values())

    @property
    def result_types(self) -> dict[str, pa.DataType]:
        return {name: a.result_type for name, a in self._accumulations.items()}

    @property
    def shown_types(self) -> dict[str, pa.DataType]:
        """The types of the results in panes: null where they follow from a column of nulls, whose
        type is not known yet.
        """
        return {**self.result_types, **self._open_types}

    def lift(self, rows: Rows, groups: Groups) -> tuple[dict[str, Column], np.ndarray | None, str]:
        """Partials by group, the rows that a user function refused, and why."""
        columns: dict[str, Column] = {}
        failed: np.ndarray | None = None
        why = ""
        rows = self._typed(rows)
        for name, accumulation in self._accumulations.items():
            lifted = accumulation.lift(rows, groups)
            columns.update(
                {self._names[name][part]: column for part, column in lifted.partials.items()}
            )
            if lifted.failed is not None and lifted.failed.any():
                failed = lifted.failed if failed is None else failed | lifted.failed
                why = why or f"{name}: {lifted.why}"
        columns.update(self.all_known(groups.n))
        return squeezed_all(columns), failed, why

    def _typed(self, rows: Rows) -> Rows:
        if not self._untyped:
            return rows
        table = rows.table
        for name, kind in self._untyped.items():
            table = table.set_column(
                table.column_names.index(name), name, table.column(name).cast(kind)
            )
        return replace(rows, table=table)

    def combine(self, frame: Frame, groups: Groups) -> dict[str, Column]:
        """One row per group from the partial columns of a frame."""
        columns: dict[str, Column] = {}
        for name, accumulation in self._accumulations.items():
            names = self._names[name]
            merged = accumulation.combine(
                {part: frame[column] for part, column in names.items()}, groups
            )
            columns.update({names[part]: column for part, column in merged.items()})
        columns.update(self.combine_known(frame, groups))
        return squeezed_all(columns)

    def combine_known(self, frame: Frame, groups: Groups) -> dict[str, Column]:
        """The known columns of each group: all parts have to be known."""
        return _Everywhere().combine(
            {column: frame[column] for column in self._known.values()}, groups
        )

    def prefix(self, frame: Frame, groups: Groups) -> dict[str, Column]:
        """For each row the combination of its group up to it."""
        columns: dict[str, Column] = {}
        for name, accumulation in self._accumulations.items():
            names = self._names[name]
            running = prefix_combine(
                accumulation, {part: frame[column] for part, column in names.items()}, groups
            )
            columns.update({names[part]: column for part, column in running.items()})
        columns.update(
            prefix_combine(
                _Everywhere(), {column: frame[column] for column in self._known.values()}, groups
            )
        )
        return columns

    def lower(
        self, frame: Frame
    ) -> tuple[dict[str, pa.Array], dict[str, tuple[np.ndarray, str, str]]]:
        """Results by row, and the failures of each aggregate.

        A failure lists the rows without a correct result, with reason and detail.
        """
        values: dict[str, pa.Array] = {}
        failures: dict[str, tuple[np.ndarray, str, str]] = {}
        for name, accumulation in self._accumulations.items():
            lowered = accumulation.evaluate(
                {part: frame[column] for part, column in self._names[name].items()}
            )
            values[name], failed = lowered.values, lowered.failed
            if name in self._known and not (known := frame.ints(self._known[name])).all():
                values[name] = values[name].take(pa.array(np.arange(len(frame)), mask=~known))
                failed = None if failed is None else failed & known
            if failed is not None and failed.any():
                failures[name] = (failed, lowered.reason, lowered.why)
        return values, failures

    @property
    def partial_columns(self) -> list[str]:
        return [
            *(column for names in self._names.values() for column in names.values()),
            *self._known.values(),
        ]

    def empty(
        self, schema: pa.Schema, n: int, zeros: np.ndarray | None = None
    ) -> dict[str, Column]:
        """Partials of n empty windows; those that are zero share one column, or `zeros`."""
        if self._nothing is None or self._nothing[0] is not schema:
            none = np.zeros(0, np.int64)
            rows = Rows(schema.empty_table(), none, none)
            self._nothing = schema, self.lift(rows, Groups(none, 1))[0]
        zeros = constant(np.int64(0), n) if zeros is None else zeros
        columns: dict[str, Column] = {}
        for name, column in self._nothing[1].items():
            if not isinstance(column, np.ndarray):
                columns[name] = column.take(pa.array(np.zeros(n, np.int64)))
            elif column.dtype == np.int64 and not column[0]:
                columns[name] = zeros
            else:
                columns[name] = constant(column[0], n)
        return columns


_ANY_TYPE = (pa.int64(), pa.decimal128(38, 1), pa.timestamp("us"), pa.string())
"""Types that a column of nulls may turn out to have."""


def _open_type(
    aggregate: Aggregate, found: pa.DataType, schema: pa.Schema, untyped: Mapping[str, pa.DataType]
) -> pa.DataType:
    """The result type of an aggregate, with null for what depends on the type of the columns that
    have none yet.
    """
    for kind in _ANY_TYPE:
        other = pa.schema([f.with_type(kind if f.name in untyped else f.type) for f in schema])
        with contextlib.suppress(TidegateError):
            found = _common(found, bind(aggregate, other).result_type)
    return found


def _common(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """What two types have in common; null where they differ."""
    if one == other:
        return one
    if pa.types.is_list(one) and pa.types.is_list(other):
        return pa.list_(_common(one.value_type, other.value_type))
    return pa.null()

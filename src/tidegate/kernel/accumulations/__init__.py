"""Accumulations: aggregates bound to the column types of an input by `bind`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tidegate.errors import SpecError
from tidegate.kernel.accumulations import collect, numeric, order, python
from tidegate.kernel.accumulations.filtered import Bound
from tidegate.kernel.accumulations.prefix import prefix_combine
from tidegate.kernel.accumulations.protocol import Accumulation, Lifted, Lowered, Rows
from tidegate.kernel.accumulations.values import orderable, storage_dtype
from tidegate.spec import aggregates as spec

__all__ = ["Accumulation", "Lifted", "Lowered", "Rows", "bind", "prefix_combine"]


@dataclass(frozen=True)
class _Source:
    """What a builder needs to know about the input."""

    kind: str
    schema: pa.Schema

    def type(self, column: str) -> pa.DataType:
        if column not in self.schema.names:
            raise SpecError(
                f"`{self.kind}` reads column `{column}`, but the input has"
                f" {', '.join(f'`{n}`' for n in self.schema.names)}"
            )
        type = self.schema.field(column).type
        return type.value_type if pa.types.is_dictionary(type) else type

    def refuse(self, column: str, wanted: str) -> SpecError:
        return SpecError(
            f"`{self.kind}` needs {wanted}, but column `{column}` is of type {self.type(column)}."
            " Hint: convert the column first"
        )

    def numeric(self, column: str) -> pa.DataType:
        type = self.type(column)
        if (
            pa.types.is_integer(type)
            or pa.types.is_floating(type)
            or pa.types.is_decimal(type)
            or pa.types.is_boolean(type)
        ):
            return type
        raise self.refuse(column, "numbers")

    def orderable(self, column: str) -> pa.DataType:
        if not orderable(self.type(column)):
            raise self.refuse(column, "values that can be sorted")
        return self.type(column)

    def boolean(self, column: str) -> pa.DataType:
        if not pa.types.is_boolean(self.type(column)):
            raise self.refuse(column, "booleans")
        return self.type(column)

    def columns(self, names: tuple[str, ...] | None) -> tuple[str, ...]:
        """The named columns, or all of them."""
        for name in names or ():
            self.type(name)
        return tuple(self.schema.names) if names is None else names


def _count(a: spec.Count, s: _Source) -> Accumulation:
    if a.column is not None:
        s.type(a.column)
    return numeric.Count(a.column)


def _sum(a: spec.Sum, s: _Source) -> Accumulation:
    type = s.type(a.column)
    if pa.types.is_duration(type):
        return numeric.ExactSum(a.column, type, type)
    if pa.types.is_floating(s.numeric(a.column)):
        return numeric.FloatSum(a.column, mean=False)
    return numeric.ExactSum(a.column, type, _sum_type(type))


def _sum_type(type: pa.DataType) -> pa.DataType:
    if not pa.types.is_decimal(type):
        return pa.int64()
    return (
        pa.decimal256(76, type.scale)
        if pa.types.is_decimal256(type)
        else pa.decimal128(38, type.scale)
    )


def _mean(a: spec.Mean, s: _Source) -> Accumulation:
    type = s.type(a.column)
    if pa.types.is_duration(type):
        return numeric.ExactMean(a.column, type, type)
    if pa.types.is_floating(s.numeric(a.column)):
        return numeric.FloatSum(a.column, mean=True)
    return numeric.ExactMean(a.column, type, pa.float64())


def _extreme(a: spec.Min | spec.Max, s: _Source) -> Accumulation:
    type = s.orderable(a.column)
    dtype, largest = storage_dtype(type), isinstance(a, spec.Max)
    return (
        order.RankedExtreme(a.column, type, largest=largest)
        if dtype is None
        else order.Extreme(a.column, type, dtype, largest=largest)
    )


def _spread(a: spec.Variance | spec.Stddev, s: _Source) -> Accumulation:
    s.numeric(a.column)
    return numeric.Spread(a.column, a.ddof, root=isinstance(a, spec.Stddev))


def _edge(a: spec.First | spec.Last, s: _Source) -> Accumulation:
    return order.Edge(
        a.column, s.type(a.column), last=isinstance(a, spec.Last), ignore_nulls=a.ignore_nulls
    )


def _arg(a: spec.ArgMin | spec.ArgMax, s: _Source) -> Accumulation:
    return order.ArgExtreme(
        a.column, s.type(a.column), a.by, s.orderable(a.by), largest=isinstance(a, spec.ArgMax)
    )


def _any_all(a: spec.AnyTrue | spec.AllTrue, s: _Source) -> Accumulation:
    s.boolean(a.column)
    return numeric.AnyAll(a.column, every=isinstance(a, spec.AllTrue))


def _quantile(a: spec.Quantile, s: _Source) -> Accumulation:
    s.numeric(a.column)
    if a.exact:
        return collect.ExactQuantile(a.column, a.q)
    from tidegate.kernel.accumulations import sketches  # sketches are an extra

    return sketches.ApproxQuantile(a.column, a.q)


def _approx_distinct(a: spec.ApproxDistinct, s: _Source) -> Accumulation:
    type = s.orderable(a.column)
    if pa.types.is_struct(type):
        raise s.refuse(a.column, "plain values")
    from tidegate.kernel.accumulations import sketches  # sketches are an extra

    return sketches.ApproxDistinct(a.column)


def _top_k(a: spec.TopK, s: _Source) -> Accumulation:
    type = s.orderable(a.column) if a.by is None or a.distinct else s.type(a.column)
    by = None if a.by is None else s.orderable(a.by)
    if a.ascending and (
        by is None or not pa.types.is_struct(by) or by.num_fields != len(a.ascending)
    ):
        raise s.refuse(str(a.by), f"a struct of {len(a.ascending)} fields")
    return collect.TopK(a.column, type, a.k, a.by, by, distinct=a.distinct, ascending=a.ascending)


def _distinct(a: spec.Distinct, s: _Source) -> Accumulation:
    return collect.Distinct((a.column,), (s.orderable(a.column),))


def _count_distinct(a: spec.CountDistinct, s: _Source) -> Accumulation:
    return collect.CountDistinct((a.column,), (s.orderable(a.column),))


def _collect(a: spec.Collect, s: _Source) -> Accumulation:
    return collect.Collect(a.column, s.type(a.column), ignore_nulls=a.ignore_nulls)


def _python(a: spec.Python, s: _Source) -> Accumulation:
    s.columns(a.reads())
    return python.PlainPython(a)


def _columnar(a: spec.Columnar, s: _Source) -> Accumulation:
    s.columns(a.reads())
    return python.OverColumns(a)


def _apply(a: spec.Apply, s: _Source) -> Accumulation:
    return python.OverRows(a, {name: s.type(name) for name in s.columns(a.columns)})


_BUILDERS: dict[type[spec.Aggregate], Callable[[Any, _Source], Accumulation]] = {
    spec.Count: _count,
    spec.Sum: _sum,
    spec.Mean: _mean,
    spec.Min: _extreme,
    spec.Max: _extreme,
    spec.Variance: _spread,
    spec.Stddev: _spread,
    spec.First: _edge,
    spec.Last: _edge,
    spec.ArgMin: _arg,
    spec.ArgMax: _arg,
    spec.AnyTrue: _any_all,
    spec.AllTrue: _any_all,
    spec.Quantile: _quantile,
    spec.ApproxDistinct: _approx_distinct,
    spec.TopK: _top_k,
    spec.Distinct: _distinct,
    spec.CountDistinct: _count_distinct,
    spec.Collect: _collect,
    spec.Python: _python,
    spec.Columnar: _columnar,
    spec.Apply: _apply,
}

# Kinds whose result changes with `distinct`, and that do not implement it themselves.
_COUNTS_TWICE = (
    spec.Count,
    spec.Sum,
    spec.Mean,
    spec.Variance,
    spec.Stddev,
    spec.Quantile,
    spec.Collect,
    spec.Python,
    spec.Columnar,
    spec.Apply,
)


def bind(aggregate: spec.Aggregate, schema: pa.Schema) -> Accumulation:
    """The accumulation of an aggregate over rows of a schema."""
    build = _BUILDERS.get(type(aggregate))
    if build is None:
        raise SpecError(
            f'{aggregate!r} is not an aggregate. Hint: write tg.count(), tg.sum("price") or another'
            " of the aggregates"
        )
    source = _Source(aggregate.kind, schema)
    if isinstance(aggregate.where, str):
        source.boolean(aggregate.where)
    made = build(aggregate, source)
    if aggregate.distinct and isinstance(aggregate, _COUNTS_TWICE):
        columns = source.columns(aggregate.reads())
        made = collect.OverDistinct(
            made, columns, tuple(source.orderable(name) for name in columns)
        )
    return Bound(made, aggregate)

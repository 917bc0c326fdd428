"""Aggregate specifications: what a window computes from its messages. They are stateless.

Every aggregate takes `where=` (the name of a boolean column, or a vectorised function from a table
to booleans; null counts as false), `distinct=True` (each value counts once) and, in a merge of
several streams, `of=` (the name of the input whose messages count; default: all inputs). `to_dict`
returns the form that goes into files and fingerprints; a user's function appears there by its
qualified name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, MISSING, dataclass, fields
from typing import Any, ClassVar, TypeVar

import pyarrow as pa

from tidegate.errors import SpecError
from tidegate.spec.json_form import json_form

Where = str | Callable[[pa.Table], Any] | None
Step = Callable[[Any, Any], Any]
Steps = Step | tuple[tuple[str, Step], ...]
"""One function for all messages, or one for each input of a merge."""
INPUT = "input"
"""Column of every message of a merge: the name of its input."""


@dataclass(frozen=True)
class Aggregate:
    """Base of all aggregates."""

    _: KW_ONLY
    where: Where = None
    distinct: bool = False
    of: str | None = None

    kind: ClassVar[str] = ""

    def __post_init__(self) -> None:
        if self.where is not None and not isinstance(self.where, str) and not callable(self.where):
            raise SpecError(
                f"`where` of `{self.kind}` must be a column name or a function of a table, got"
                f' {self.where!r}. Hint: where="is_valid" or where=lambda t: pc.greater(t["v"], 0)'
            )
        if not isinstance(self.distinct, bool):
            raise SpecError(
                f"`distinct` of `{self.kind}` must be True or False, got {self.distinct!r}"
            )
        if self.of is not None and not isinstance(self.of, str):
            raise SpecError(
                f"`of` of `{self.kind}` must be the name of an input of a merge, got {self.of!r}."
                ' Hint: of="orders"'
            )
        self._check()

    def _check(self) -> None:
        """Validates the fields of one kind of aggregate."""

    def reads(self) -> tuple[str, ...] | None:
        """The columns that the aggregate reads (without `where`); None means all."""
        named = (getattr(self, field, None) for field in ("column", "by"))
        return tuple(dict.fromkeys(name for name in named if name is not None))

    def inputs_used(self) -> tuple[str, ...]:
        """The inputs of a merge that the aggregate refers to."""
        return () if self.of is None else (self.of,)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form: the kind, and every field that differs from its default."""
        doc: dict[str, Any] = {"kind": self.kind}
        for field in fields(self):
            value = getattr(self, field.name)
            if field.default is MISSING or (value is not field.default and value != field.default):
                doc[field.name] = json_form(value)
        return doc


@dataclass(frozen=True)
class _OfColumn(Aggregate):
    """An aggregate over one column."""

    column: str

    def __post_init__(self) -> None:
        if not isinstance(self.column, str):
            raise SpecError(
                f"`{self.kind}` takes the name of a column, got {self.column!r}. Hint:"
                f' tg.{self.kind}("price")'
            )
        super().__post_init__()


@dataclass(frozen=True)
class Count(Aggregate):
    """The number of rows, or of non-null values of `column`."""

    column: str | None = None
    kind: ClassVar[str] = "count"

    def _check(self) -> None:
        if self.column is not None and not isinstance(self.column, str):
            raise SpecError(f"`count` takes the name of a column or nothing, got {self.column!r}")
        if self.distinct and self.column is None:
            raise SpecError(
                "`count` with `distinct=True` needs a column: rows have no value to compare. Hint:"
                ' tg.count("user", distinct=True)'
            )


@dataclass(frozen=True)
class Sum(_OfColumn):
    """The sum; exact for integers, decimals and durations."""

    kind: ClassVar[str] = "sum"


@dataclass(frozen=True)
class Mean(_OfColumn):
    """The arithmetic mean, as float64 (a duration for durations, rounded down)."""

    kind: ClassVar[str] = "mean"


@dataclass(frozen=True)
class Min(_OfColumn):
    """The smallest value; NaN only if there is nothing else."""

    kind: ClassVar[str] = "min"


@dataclass(frozen=True)
class Max(_OfColumn):
    """The largest value; NaN only if there is nothing else."""

    kind: ClassVar[str] = "max"


@dataclass(frozen=True)
class _Spread(_OfColumn):
    ddof: int = 1

    def _check(self) -> None:
        if not isinstance(self.ddof, int) or self.ddof < 0:
            raise SpecError(
                f"`ddof` of `{self.kind}` must be an integer of at least 0, got {self.ddof!r}."
                " Hint: 1 for a sample, 0 for the population"
            )


@dataclass(frozen=True)
class Variance(_Spread):
    """The variance. Default: of a sample (`ddof=1`)."""

    kind: ClassVar[str] = "variance"


@dataclass(frozen=True)
class Stddev(_Spread):
    """The standard deviation. Default: of a sample (`ddof=1`)."""

    kind: ClassVar[str] = "stddev"


@dataclass(frozen=True)
class First(_OfColumn):
    """The value with the smallest event time; ties go to the first arrival."""

    ignore_nulls: bool = False
    kind: ClassVar[str] = "first"


@dataclass(frozen=True)
class Last(_OfColumn):
    """The value with the largest event time; ties go to the last arrival."""

    ignore_nulls: bool = False
    kind: ClassVar[str] = "last"


@dataclass(frozen=True)
class _By(_OfColumn):
    by: str

    def _check(self) -> None:
        if not isinstance(self.by, str):
            raise SpecError(
                f"`{self.kind}` takes the name of the column to compare by, got {self.by!r}. Hint:"
                f' tg.{self.kind}("item", "price")'
            )


@dataclass(frozen=True)
class ArgMin(_By):
    """The value of `column` in the row with the smallest `by`; ties go to the earliest row."""

    kind: ClassVar[str] = "arg_min"


@dataclass(frozen=True)
class ArgMax(_By):
    """The value of `column` in the row with the largest `by`; ties go to the earliest row."""

    kind: ClassVar[str] = "arg_max"


@dataclass(frozen=True)
class AnyTrue(_OfColumn):
    """Whether a boolean column contains a true."""

    kind: ClassVar[str] = "any"


@dataclass(frozen=True)
class AllTrue(_OfColumn):
    """Whether a boolean column contains no false."""

    kind: ClassVar[str] = "all"


@dataclass(frozen=True)
class ApproxDistinct(_OfColumn):
    """The approximate number of distinct values (HyperLogLog, relative error about 1.6 %)."""

    kind: ClassVar[str] = "approx_distinct"


@dataclass(frozen=True)
class Quantile(_OfColumn):
    """The value below which the fraction `q` of the values lies; a list of `q` returns a list.

    `exact=True` stores every value and interpolates linearly. The default is an estimate from a
    t-digest of bounded size.
    """

    q: float | tuple[float, ...]
    exact: bool = False
    kind: ClassVar[str] = "quantile"

    def _check(self) -> None:
        wanted = self.q if isinstance(self.q, tuple) else (self.q,)
        good = [
            isinstance(q, (int, float)) and not isinstance(q, bool) and 0 <= q <= 1 for q in wanted
        ]
        if not good or False in good:
            raise SpecError(
                f"`q` of `quantile` must lie between 0 and 1, got {self.q!r}. Hint: 0.95 for the"
                " 95th percentile"
            )


@dataclass(frozen=True)
class TopK(_OfColumn):
    """The `k` largest values in descending order, or the values of `column` by descending `by`.

    `ascending` has a flag for each field of a struct `by`: whether its smallest value comes first.
    """

    k: int
    by: str | None = None
    ascending: tuple[bool, ...] = ()
    kind: ClassVar[str] = "top_k"

    def _check(self) -> None:
        if not isinstance(self.k, int) or isinstance(self.k, bool) or self.k < 1:
            raise SpecError(f"`k` of `top_k` must be an integer of at least 1, got {self.k!r}")
        if self.by is not None and not isinstance(self.by, str):
            raise SpecError(f"`by` of `top_k` must be the name of a column, got {self.by!r}")
        if self.ascending and (
            self.by is None or False in [isinstance(flag, bool) for flag in self.ascending]
        ):
            raise SpecError(
                "`ascending` of `top_k` has True or False for each field of the struct `by`, got"
                f" {self.ascending!r} with by={self.by!r}"
            )


@dataclass(frozen=True)
class Distinct(_OfColumn):
    """The distinct non-null values, sorted, as a list."""

    kind: ClassVar[str] = "distinct"


@dataclass(frozen=True)
class CountDistinct(_OfColumn):
    """The exact number of distinct non-null values."""

    kind: ClassVar[str] = "count_distinct"


@dataclass(frozen=True)
class Collect(_OfColumn):
    """All values as a list, by event time and then by arrival."""

    ignore_nulls: bool = False
    kind: ClassVar[str] = "list_"


@dataclass(frozen=True)
class _Custom(Aggregate):
    """An aggregate with user-defined functions."""

    def reads(self) -> tuple[str, ...] | None:
        columns = vars(self)["columns"]
        return (columns,) if isinstance(columns, str) else columns


@dataclass(frozen=True)
class Columnar(_Custom):
    """A user-defined accumulation over columns.

    `lift(table, groups)` returns one partial value per group for every name of `partial_types`.
    `combine(partials, groups)` merges partials and must be associative. `lower(partials)` returns
    one result for each. `groups.ids` is the group of every row.
    """

    lift: Callable[..., Any]
    combine: Callable[..., Any]
    lower: Callable[..., Any]
    partial_types: tuple[tuple[str, pa.DataType], ...]
    result_type: pa.DataType
    columns: tuple[str, ...] | None = None
    name: str | None = None
    kind: ClassVar[str] = "columnar"

    def _check(self) -> None:
        if not self.partial_types:
            raise SpecError(
                "`partial_types` of `columnar` is empty: an accumulation needs at least one"
                " partial column"
            )
        if [n for n, _ in self.partial_types if n == "present"]:
            raise SpecError(
                "`present` is a reserved name among the partial columns of `columnar`. Hint:"
                " choose another name"
            )


@dataclass(frozen=True)
class Python(_Custom):
    """A user-defined accumulation in plain Python.

    `add(state, row)` takes each row, `merge(left, right)` combines states, `result(state)` returns
    the result. The state must be JSON-serialisable. If `columns` is a single name, `add` receives
    the value instead of a dict. In a merge, `add` and `remove` may be one function for each input.
    """

    zero: Any
    add: Steps
    merge: Step
    result: Callable[[Any], Any]
    result_type: pa.DataType
    remove: Steps | None = None
    columns: str | tuple[str, ...] | None = None
    encode: Callable[[Any], str] = json.dumps
    decode: Callable[[str], Any] = json.loads
    name: str | None = None
    kind: ClassVar[str] = "python"

    def _check(self) -> None:
        if self.of is not None and self.inputs_used() != (self.of,):
            raise SpecError(
                "`python` has a function for each input, so `of` must not be given, got"
                f" {self.of!r}. Hint: omit `of`"
            )

    def inputs_used(self) -> tuple[str, ...]:
        named = [
            name
            for steps in (self.add, self.remove)
            if isinstance(steps, tuple)
            for name, _ in steps
        ]
        return tuple(dict.fromkeys([*super().inputs_used(), *named]))

    def reads(self) -> tuple[str, ...] | None:
        columns = super().reads()
        is_parted = isinstance(self.add, tuple) or isinstance(self.remove, tuple)
        return (
            (*columns, INPUT)
            if columns is not None and is_parted and INPUT not in columns
            else columns
        )


@dataclass(frozen=True)
class Apply(_Custom):
    """A user-defined function of all rows of one key and window.

    It receives a table, sorted by event time and then by arrival.
    """

    function: Callable[[pa.Table], Any]
    result_type: pa.DataType
    columns: tuple[str, ...] | None = None
    kind: ClassVar[str] = "apply"


A = TypeVar("A", bound=Aggregate)


def count(
    column: str | None = None, *, where: Where = None, of: str | None = None, distinct: bool = False
) -> Count:
    """The number of rows, or of non-null values of `column`."""
    return Count(column, where=where, of=of, distinct=distinct)


def sum(column: str, *, where: Where = None, of: str | None = None, distinct: bool = False) -> Sum:
    """The sum; null without values."""
    return Sum(column, where=where, of=of, distinct=distinct)


def mean(
    column: str, *, where: Where = None, of: str | None = None, distinct: bool = False
) -> Mean:
    """The mean; null without values."""
    return Mean(column, where=where, of=of, distinct=distinct)


def min(column: str, *, where: Where = None, of: str | None = None, distinct: bool = False) -> Min:
    """The smallest value, of any type with an order."""
    return Min(column, where=where, of=of, distinct=distinct)


def max(column: str, *, where: Where = None, of: str | None = None, distinct: bool = False) -> Max:
    """The largest value, of any type with an order."""
    return Max(column, where=where, of=of, distinct=distinct)


def variance(
    column: str,
    *,
    ddof: int = 1,
    where: Where = None,
    of: str | None = None,
    distinct: bool = False,
) -> Variance:
    """The variance; null with `ddof` values or fewer."""
    return Variance(column, ddof, where=where, of=of, distinct=distinct)


def stddev(
    column: str,
    *,
    ddof: int = 1,
    where: Where = None,
    of: str | None = None,
    distinct: bool = False,
) -> Stddev:
    """The standard deviation; null with `ddof` values or fewer."""
    return Stddev(column, ddof, where=where, of=of, distinct=distinct)


def first(
    column: str,
    *,
    ignore_nulls: bool = False,
    where: Where = None,
    of: str | None = None,
    distinct: bool = False,
) -> First:
    """The earliest value by event time."""
    return First(column, ignore_nulls, where=where, of=of, distinct=distinct)


def last(
    column: str,
    *,
    ignore_nulls: bool = False,
    where: Where = None,
    of: str | None = None,
    distinct: bool = False,
) -> Last:
    """The latest value by event time."""
    return Last(column, ignore_nulls, where=where, of=of, distinct=distinct)


def arg_min(
    column: str, by: str, *, where: Where = None, of: str | None = None, distinct: bool = False
) -> ArgMin:
    """`column` where `by` is smallest."""
    return ArgMin(column, by, where=where, of=of, distinct=distinct)


def arg_max(
    column: str, by: str, *, where: Where = None, of: str | None = None, distinct: bool = False
) -> ArgMax:
    """`column` where `by` is largest."""
    return ArgMax(column, by, where=where, of=of, distinct=distinct)


def any(
    column: str, *, where: Where = None, of: str | None = None, distinct: bool = False
) -> AnyTrue:
    """Whether one value is true; nulls are ignored, and null results if there is nothing else."""
    return AnyTrue(column, where=where, of=of, distinct=distinct)


def all(
    column: str, *, where: Where = None, of: str | None = None, distinct: bool = False
) -> AllTrue:
    """Whether all values are true; nulls are ignored, and null results if there is nothing else."""
    return AllTrue(column, where=where, of=of, distinct=distinct)


def approx_distinct(
    column: str, *, where: Where = None, of: str | None = None, distinct: bool = False
) -> ApproxDistinct:
    """The approximate number of distinct values, in bounded state. Needs the extra `sketches`."""
    return ApproxDistinct(column, where=where, of=of, distinct=distinct)


def quantile(
    column: str,
    q: float | Sequence[float],
    *,
    exact: bool = False,
    where: Where = None,
    of: str | None = None,
    distinct: bool = False,
) -> Quantile:
    """The `q`-quantile, estimated (extra `sketches`) or exact; a list of `q` returns a list."""
    wanted = q if isinstance(q, (int, float, str)) else tuple(q)
    return Quantile(column, wanted, exact, where=where, of=of, distinct=distinct)


def approx_quantile(
    column: str,
    q: float | Sequence[float],
    *,
    where: Where = None,
    of: str | None = None,
    distinct: bool = False,
) -> Quantile:
    """The estimated `q`-quantile."""
    return quantile(column, q, where=where, of=of, distinct=distinct)


def median(
    column: str, *, where: Where = None, of: str | None = None, distinct: bool = False
) -> Quantile:
    """The exact median."""
    return quantile(column, 0.5, exact=True, where=where, of=of, distinct=distinct)


def top_k(
    column: str,
    k: int,
    by: str | None = None,
    *,
    ascending: Sequence[bool] = (),
    where: Where = None,
    of: str | None = None,
    distinct: bool = False,
) -> TopK:
    """The `k` largest values, or the values of the rows with the largest `by`.

    With `ascending`, `by` is a struct: its fields decide in turn, each in its own direction, and
    null is smallest.
    """
    return TopK(column, k, by, tuple(ascending), where=where, of=of, distinct=distinct)


def distinct(column: str, *, where: Where = None, of: str | None = None) -> Distinct:
    """The distinct values, sorted."""
    return Distinct(column, where=where, of=of)


def count_distinct(column: str, *, where: Where = None, of: str | None = None) -> CountDistinct:
    """The exact number of distinct values."""
    return CountDistinct(column, where=where, of=of)


def list_(
    column: str,
    *,
    ignore_nulls: bool = False,
    where: Where = None,
    of: str | None = None,
    distinct: bool = False,
) -> Collect:
    """All values by event time; with `distinct=True` the distinct ones, sorted."""
    return Collect(column, ignore_nulls, where=where, of=of, distinct=distinct)


def columnar(
    *,
    lift: Callable[..., Any],
    combine: Callable[..., Any],
    lower: Callable[..., Any],
    partial_types: Mapping[str, pa.DataType],
    result_type: pa.DataType,
    columns: Sequence[str] | None = None,
    name: str | None = None,
    where: Where = None,
    of: str | None = None,
    distinct: bool = False,
) -> Columnar:
    """A user-defined accumulation over columns; see `Columnar`.

    In a merge of several streams, the table passed to `lift` has a column `input` with the name of
    the input of each row.
    """
    return Columnar(
        lift,
        combine,
        lower,
        tuple(partial_types.items()),
        result_type,
        _names(columns),
        name,
        where=where,
        of=of,
        distinct=distinct,
    )


def python(
    *,
    zero: Any,
    add: Step | Mapping[str, Step],
    merge: Step,
    result: Callable[[Any], Any],
    result_type: pa.DataType,
    remove: Step | Mapping[str, Step] | None = None,
    columns: str | Sequence[str] | None = None,
    encode: Callable[[Any], str] = json.dumps,
    decode: Callable[[str], Any] = json.loads,
    name: str | None = None,
    where: Where = None,
    of: str | None = None,
    distinct: bool = False,
) -> Python:
    """A user-defined accumulation in plain Python; with `remove` it supports retractions.

    In a merge of several streams, a row has a field `input` with the name of its input, and None in
    the columns of other inputs. Alternatively, pass a function for each input: `add={"orders":
    add_order, "clicks": add_click}`, and `remove` likewise.
    """
    named = columns if isinstance(columns, str) else _names(columns)
    adds, removes = _steps("add", add), None if remove is None else _steps("remove", remove)
    return Python(
        zero,
        adds,
        merge,
        result,
        result_type,
        removes,
        named,
        encode,
        decode,
        name,
        where=where,
        of=of,
        distinct=distinct,
    )


def apply(
    function: Callable[[pa.Table], Any],
    result_type: pa.DataType,
    columns: Sequence[str] | None = None,
    *,
    where: Where = None,
    of: str | None = None,
    distinct: bool = False,
) -> Apply:
    """A user-defined function over the rows of one key and window.

    In a merge, their column `input` has the name of the input of each row.
    """
    return Apply(function, result_type, _names(columns), where=where, of=of, distinct=distinct)


def _steps(role: str, given: Step | Mapping[str, Step]) -> Steps:
    """The functions of a role: one, or one for each input."""
    steps = tuple(given.items()) if isinstance(given, Mapping) else given
    functions = [step for _, step in steps] if isinstance(steps, tuple) else [steps]
    if not functions or False in [callable(function) for function in functions]:
        raise SpecError(
            f"`{role}` of `python` takes a function, or one for each input of a merge, got"
            f" {given!r}"
        )
    return steps


def _names(columns: Sequence[str] | None) -> tuple[str, ...] | None:
    if columns is None:
        return None
    return (columns,) if isinstance(columns, str) else tuple(columns)


_READABLE: dict[str, type[Aggregate]] = {
    cls.kind: cls
    for cls in (
        Count,
        Sum,
        Mean,
        Min,
        Max,
        Variance,
        Stddev,
        First,
        Last,
        ArgMin,
        ArgMax,
        AnyTrue,
        AllTrue,
        ApproxDistinct,
        Quantile,
        TopK,
        Distinct,
        CountDistinct,
        Collect,
    )
}


def aggregate_from_dict(doc: Mapping[str, Any]) -> Aggregate:
    """The inverse of `to_dict`, for aggregates without user-defined functions."""
    kind = doc.get("kind")
    if kind not in _READABLE:
        raise SpecError(
            f"`kind` of an aggregate must be one of {', '.join(_READABLE)}, got {kind!r}. Hint:"
            " define aggregates with functions in code"
        )
    options: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in doc.items()
        if name != "kind"
    }
    if isinstance(options.get("where"), Mapping):
        raise SpecError(
            f"`where` of `{kind}` is a function ({options['where'].get('function')}), which cannot"
            " be restored from a document"
        )
    try:
        return _READABLE[kind](**options)
    except TypeError as problem:
        raise SpecError(
            f"aggregate `{kind}` cannot be read from {dict(doc)!r}: {problem}"
        ) from None

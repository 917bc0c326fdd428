"""Merging: what a merge knows of its inputs beside their specifications: which columns each has
brought, and whether they fit together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from tidegate.errors import InputError, SpecError
from tidegate.kernel.events.times import is_ticks
from tidegate.operators.ingest.schema_cast import MARK, bindable
from tidegate.spec.aggregates import INPUT, Aggregate
from tidegate.spec.operator import AggregateSpec


class Merging:
    """The columns of the inputs of one merge, which become known as the inputs speak."""

    def __init__(self, spec: AggregateSpec) -> None:
        self._spec = spec
        self._brought: dict[int, dict[str, bool]] = {}
        """By input its columns, and whether they had a type."""

    def whole(self, schema: pa.Schema) -> pa.Schema:
        """A schema with the column that names the input, and with those that aggregates read and
        that other inputs have to bring.
        """
        read = [
            name
            for _, aggregate in self._spec.aggregates
            for name in _read_by(aggregate)
            if name != INPUT
        ]
        kinds = {INPUT: pa.string(), **dict.fromkeys(read, pa.null())}
        return pa.schema(
            [
                *schema,
                *(pa.field(name, kind) for name, kind in kinds.items() if name not in schema.names),
            ]
        )

    def expected(self, ordinal: int, known: pa.Schema | None) -> pa.Schema | None:
        """The columns that an input brought before, with the types that they were brought to."""
        brought = self._brought.get(ordinal)
        return (
            None
            if known is None or brought is None
            else pa.schema([field for field in known if brought.get(field.name)])
        )

    def check(self, ordinal: int, came: pa.Schema, known: pa.Schema | None) -> None:
        """Refuse a table whose columns do not fit those of other inputs, or that lacks what nobody
        else can bring.
        """
        given, name = self._spec.inputs[ordinal], self._spec.names[ordinal]
        came = bindable(came)
        if INPUT in came.names:
            raise InputError(
                f"the stream `{name}` has a column `{INPUT}`, which in a merge names the input."
                " Hint: rename the column"
            )
        brought = self._brought.get(ordinal, {})
        if known is not None:
            self._check_time(ordinal, came, known)
            for field in came:
                new = (
                    not brought.get(field.name)
                    and field.name in known.names
                    and field.name != given.time
                )
                if new and not _fits(
                    known.field(field.name).type, field.type, is_key=field.name in given.key
                ):
                    raise InputError(
                        f"the column `{field.name}` is {field.type} in the stream `{name}` and"
                        f" {known.field(field.name).type} in another one of the merge. Hint: cast"
                        " or rename one of them"
                    )
        self._check_read({**self._brought, ordinal: {**brought, **_columns(came)}})

    def _check_time(self, ordinal: int, came: pa.Schema, known: pa.Schema) -> None:
        """Times of all inputs are on one axis: instants, or plain numbers."""
        column, name = self._spec.inputs[ordinal].time, self._spec.names[ordinal]
        others = [
            (self._spec.names[n], self._spec.inputs[n].time) for n in self._brought if n != ordinal
        ]
        for other, time in others:
            if (
                column is not None
                and time is not None
                and is_ticks(came.field(column).type) != is_ticks(known.field(time).type)
            ):
                raise InputError(
                    f"the time `{column}` of the stream `{name}` is {came.field(column).type} and"
                    f" `{time}` of `{other}` is {known.field(time).type}; of the streams of a merge"
                    " all have instants, or all have numbers. Hint: cast one of them"
                )

    def _check_read(self, brought: dict[int, dict[str, bool]]) -> None:
        """Once all inputs that an aggregate is made of have spoken, one of them has its columns."""
        for name, aggregate in self._spec.aggregates:
            counting = [
                n for n, label in enumerate(self._spec.names) if aggregate.of in (None, label)
            ]
            if not all(n in brought for n in counting):
                continue
            there = list(dict.fromkeys(column for n in counting for column in brought[n]))
            for column in _read_by(aggregate):
                if column != INPUT and column not in there:
                    whose = (
                        "the inputs have"
                        if aggregate.of is None
                        else f"the input `{aggregate.of}` has"
                    )
                    raise SpecError(
                        f"`{name}` reads column `{column}`, but {whose}"
                        f" {', '.join(f'`{one}`' for one in there)}"
                    )

    def note(self, ordinal: int, came: pa.Schema) -> None:
        """A table with these columns was taken."""
        before = self._brought.get(ordinal, {})
        now = _columns(bindable(came))
        self._brought[ordinal] = {
            **before,
            **{name: typed or before.get(name, False) for name, typed in now.items()},
        }

    def save(self) -> Any:
        return [[ordinal, brought] for ordinal, brought in sorted(self._brought.items())]

    def restore(self, document: Any) -> None:
        self._brought = {ordinal: dict(brought) for ordinal, brought in document}


def check_schemas(spec: AggregateSpec, schemas: Sequence[pa.Schema], united: pa.Schema) -> None:
    """Refuse a merge of inputs with these columns, which become those of `united`, before anything
    has come.
    """
    merging = Merging(spec)
    try:
        for ordinal, schema in enumerate(schemas):
            merging.check(ordinal, schema, bindable(united))
            merging.note(ordinal, schema)
    except InputError as problem:
        raise SpecError(str(problem)) from problem


def _columns(schema: pa.Schema) -> dict[str, bool]:
    return {
        field.name: not pa.types.is_null(field.type)
        for field in schema
        if field.name not in {MARK, INPUT}
    }


def _read_by(aggregate: Aggregate) -> Iterator[str]:
    """The columns that an aggregate names."""
    yield from aggregate.reads() or ()
    if isinstance(aggregate.where, str):
        yield aggregate.where


def _fits(known: pa.DataType, came: pa.DataType, *, is_key: bool) -> bool:
    """Whether all values of one type have a place in another; keys are the same whatever the width
    of their numbers is.
    """
    if known == came or pa.types.is_null(known) or pa.types.is_null(came):
        return True
    if is_key and pa.types.is_integer(known) and pa.types.is_integer(came):
        return True
    for texts in (
        (pa.types.is_string, pa.types.is_large_string),
        (pa.types.is_binary, pa.types.is_large_binary),
    ):
        if any(is_text(known) for is_text in texts) and any(is_text(came) for is_text in texts):
            return True
    if is_key:
        return False
    try:
        wider = pa.unify_schemas(
            [pa.schema([("", known)]), pa.schema([("", came)])], promote_options="permissive"
        )
    except pa.ArrowException:
        return False
    return wider.field(0).type == known

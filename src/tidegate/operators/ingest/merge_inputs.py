"""The columns of merged inputs: which input has brought which, and whether their types agree."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from tidegate.errors import InputError, SpecError
from tidegate.kernel.events.event_time import is_ticks
from tidegate.kernel.frame import is_untyped, typed
from tidegate.operators.ingest.delivery import check_label
from tidegate.operators.ingest.schema_cast import BROKEN, bindable
from tidegate.spec.aggregates import INPUT, Aggregate
from tidegate.spec.operator import AggregateSpec


class MergedInputs:
    """The columns of the inputs of one merge, learned from their tables."""

    def __init__(self, spec: AggregateSpec) -> None:
        self._spec = spec
        self._brought: dict[int, dict[str, bool]] = {}
        """By input, its columns and whether each had a type other than null."""

    def whole(self, schema: pa.Schema) -> pa.Schema:
        """The schema with the input name and with the columns that aggregates read from other
        inputs.
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
        """The columns of an input so far, with the types that they are cast to."""
        brought = self._brought.get(ordinal)
        return (
            None
            if known is None or brought is None
            else pa.schema([field for field in known if brought.get(field.name)])
        )

    def check(self, ordinal: int, came: pa.Schema, known: pa.Schema | None) -> None:
        """Raise an error if columns do not fit those of other inputs, or if a column is missing in
        all of them.
        """
        given, name = self._spec.inputs[ordinal], self._spec.names[ordinal]
        came = bindable(came)
        check_label(name, came.names)
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
        """Raise an error unless the times of all inputs are instants, or all are plain numbers."""
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
                    f" `{time}` of `{other}` is {known.field(time).type}; the times of merged"
                    " streams are all instants or all numbers. Hint: cast one of them"
                )

    def _check_read(self, brought: dict[int, dict[str, bool]]) -> None:
        """Raise an error if all inputs of an aggregate are known and none has a column of it."""
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
        """Remember the columns of a table that was accepted."""
        before = self._brought.get(ordinal, {})
        now = _columns(bindable(came))
        self._brought[ordinal] = {
            **before,
            **{name: known or before.get(name, False) for name, known in now.items()},
        }

    def save(self) -> Any:
        return [[ordinal, brought] for ordinal, brought in sorted(self._brought.items())]

    def restore(self, document: Any) -> None:
        self._brought = {ordinal: dict(brought) for ordinal, brought in document}


def check_schemas(spec: AggregateSpec, schemas: Sequence[pa.Schema], united: pa.Schema) -> None:
    """Raise `SpecError` if inputs with these schemas, cast to `united`, cannot be merged."""
    merging = MergedInputs(spec)
    try:
        for ordinal, schema in enumerate(schemas):
            merging.check(ordinal, schema, bindable(united))
            merging.note(ordinal, schema)
    except InputError as problem:
        raise SpecError(str(problem)) from problem


def _columns(schema: pa.Schema) -> dict[str, bool]:
    return {
        field.name: not is_untyped(field.type)
        for field in schema
        if field.name not in {BROKEN, INPUT}
    }


def _read_by(aggregate: Aggregate) -> Iterator[str]:
    """The columns that an aggregate reads."""
    yield from aggregate.reads() or ()
    if isinstance(aggregate.where, str):
        yield aggregate.where


def _fits(known: pa.DataType, came: pa.DataType, *, is_key: bool) -> bool:
    """Whether the known type holds all values of the other; integer keys match at any width."""
    if typed([known, came]) == typed([came, known]):
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

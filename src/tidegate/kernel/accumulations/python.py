"""User-defined accumulations: Python per row, functions over columns, a function over all rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.errors import SpecError
from tidegate.kernel.accumulations import lists
from tidegate.kernel.accumulations.collect import Items, Kept, by_arrival, present
from tidegate.kernel.accumulations.filtered import describe, isolate
from tidegate.kernel.accumulations.order import NONE, pick
from tidegate.kernel.accumulations.protocol import Fallible, Lifted, Lowered, Partials, Rows
from tidegate.kernel.accumulations.values import typed, typed_list
from tidegate.kernel.frame import Column, Frame, take, to_arrow, to_numpy
from tidegate.kernel.groups import Groups
from tidegate.spec import aggregates as spec


def _results(
    call: Callable[[Any], Any], inputs: list[Any], type: pa.DataType, name: str
) -> Lowered:
    """Calls a user function for each group.

    A group for which it raises, or returns a value that the type cannot hold, has no result.
    """
    failed = np.zeros(len(inputs), bool)
    why = ""
    values: list[Any] = []
    for i, given in enumerate(inputs):
        try:
            value = None if given is None else call(given)
            values.append(value.as_py() if isinstance(value, pa.Scalar) else value)
        except Exception as problem:  # noqa: BLE001 - a user's function may raise anything
            failed[i], why = True, why or f"the result of `{name}` raised {describe(problem)}"
            values.append(None)
    array, misfits, misfit = _array(values, type, name)
    failed |= misfits
    return Lowered(array, failed if failed.any() else None, why or misfit)


def _array(values: list[Any], type: pa.DataType, name: str) -> tuple[pa.Array, np.ndarray, str]:
    """Values as an array; values of another type become null and are marked."""
    bad = np.zeros(len(values), bool)
    try:
        return pa.array(values, type), bad, ""
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, TypeError, ValueError):
        why = ""
    for i, value in enumerate(values):
        try:
            pa.array([value], type)
        except (
            pa.ArrowInvalid,
            pa.ArrowTypeError,
            OverflowError,
            TypeError,
            ValueError,
        ) as problem:
            bad[i], why = True, why or f"the result {value!r} of `{name}` is not {type}: {problem}"
    return pa.array([None if b else v for v, b in zip(values, bad, strict=True)], type), bad, why


def _is_json(value: Any) -> bool:
    """Whether a value survives a JSON round trip; tuples and non-text keys do not."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_json(item) for key, item in value.items())
    return (
        all(map(_is_json, value))
        if isinstance(value, list)
        else value is None or type(value) in (str, int, float, bool)
    )


def _by_input(steps: spec.Steps, names: list[str]) -> dict[str, spec.Step]:
    """The function of each input."""
    return dict(steps) if isinstance(steps, tuple) else dict.fromkeys(names, steps)


class PlainPython(Fallible):
    """zero, add, merge, result: one JSON text per group, null for an empty group."""

    def __init__(self, aggregate: spec.Python) -> None:
        super().__init__({"state": pa.string()}, aggregate.result_type)
        self.spec = aggregate
        self.invertible = aggregate.remove is not None
        self.name = aggregate.name or str(getattr(aggregate.add, "__qualname__", "python"))
        zero = aggregate.zero
        self.zero = self._write(zero() if callable(zero) else zero)

    def _zero(self) -> Any:
        """A new state, because a function may mutate its argument."""
        return self.spec.decode(self.zero)

    def _encode(self, state: Any) -> str:
        try:
            text = self.spec.encode(state)
        except (TypeError, ValueError) as problem:
            raise self._not_json(state, str(problem)) from problem
        if not isinstance(text, str):
            raise self._not_json(state, f"`encode` gave {type(text).__name__}, not text")
        return text

    def _write(self, state: Any) -> str:
        """The state as text; rejected if JSON would change it."""
        if self.spec.encode is json.dumps and not _is_json(state):
            raise self._not_json(state, "it would come back changed")
        return self._encode(state)

    def _not_json(self, state: Any, detail: str) -> SpecError:
        return SpecError(
            f"the state of the accumulation `{self.name}` must be what JSON can hold, got"
            f" {state!r}: {detail}. Hint: use lists, dicts with text keys, texts, numbers, booleans"
            " and None, or give `encode` and `decode`"
        )

    def lift(self, rows: Rows, groups: Groups) -> Lifted:
        inputs, steps = self._inputs(rows), self._steps(rows)
        ids = groups.ids.tolist()
        states: dict[int, Any] = {}
        failed = np.zeros(len(rows), bool)
        why = ""
        for i, group in enumerate(ids):
            try:
                states[group] = steps[i](
                    states[group] if group in states else self._zero(), inputs[i]
                )
            except Exception as problem:  # noqa: BLE001 - a user's function may raise anything
                failed[i], why = True, why or f"`{self.name}` raised {describe(problem)}"
        if failed.any():
            self._redo(states, ids, inputs, steps, failed)
        texts: list[str | None] = [None] * groups.n
        for group, state in states.items():
            texts[group] = self._write(state)
        return Lifted(
            {"state": pa.array(texts, pa.string())}, failed if failed.any() else None, why
        )

    def _inputs(self, rows: Rows) -> list[Any]:
        columns = self.spec.columns
        if isinstance(columns, str):
            values: list[Any] = rows.column(columns).to_pylist()
            return values
        return (rows.table if columns is None else rows.table.select(list(columns))).to_pylist()

    def _steps(self, rows: Rows) -> list[spec.Step]:
        """The function for each row: `add` or `remove`, and that of its input if each has its
        own.
        """
        add, remove = self.spec.add, self.spec.remove
        weights = [1] * len(rows) if rows.weight is None or remove is None else rows.weight.tolist()
        if not isinstance(add, tuple) and not isinstance(remove, tuple):
            return [add if weight > 0 or remove is None else remove for weight in weights]
        names: list[Any] = rows.column(spec.INPUT).to_pylist()
        adds, removes = _by_input(add, names), _by_input(remove or add, names)
        return [
            adds[name] if weight > 0 else removes[name]
            for name, weight in zip(names, weights, strict=True)
        ]

    def _redo(
        self,
        states: dict[int, Any],
        ids: list[int],
        inputs: list[Any],
        steps: list[spec.Step],
        failed: np.ndarray,
    ) -> None:
        """Process groups with a failure again, with a copy before each step.

        A function that raised may have mutated its state halfway.
        """
        broken = {ids[i] for i in np.flatnonzero(failed).tolist()}
        texts: dict[int, str] = {}
        for i, group in enumerate(ids):
            if group not in broken or failed[i]:
                continue
            before = self.spec.decode(texts[group]) if group in texts else self._zero()
            try:
                texts[group] = self._encode(steps[i](before, inputs[i]))
            except SpecError:
                raise
            except Exception:  # noqa: BLE001 - a user's function may raise anything
                failed[i] = True
        for group in broken:
            states.pop(group, None)
        states.update({group: self.spec.decode(text) for group, text in texts.items()})

    def combine(self, partials: Partials, groups: Groups) -> dict[str, Column]:
        merged: list[str | None] = [None] * groups.n
        open_states: dict[int, Any] = {}
        for group, text in zip(
            groups.ids.tolist(), typed(partials["state"], pa.string()).to_pylist(), strict=True
        ):
            if text is None:
                continue
            if merged[group] is None:
                merged[group] = text
                continue
            left = open_states[group] if group in open_states else self.spec.decode(merged[group])
            open_states[group] = self.spec.merge(left, self.spec.decode(text))
        for group, state in open_states.items():
            merged[group] = self._write(state)
        return {"state": pa.array(merged, pa.string())}

    def evaluate(self, partials: Partials) -> Lowered:
        texts = typed(partials["state"], pa.string()).to_pylist()
        states = [(self._zero() if text is None else self.spec.decode(text),) for text in texts]
        return _results(
            lambda state: self.spec.result(state[0]), states, self.result_type, self.name
        )


def _plain(array: pa.Array) -> Column:
    """NumPy if the values are fixed-width and non-null."""
    return Frame.from_table(pa.table({"column": array}))["column"]


class OverColumns(Fallible):
    """User-defined lift, combine and lower over whole columns; never called with empty groups."""

    def __init__(self, aggregate: spec.Columnar) -> None:
        self.own = dict(aggregate.partial_types)
        super().__init__({**self.own, "present": pa.bool_()}, aggregate.result_type)
        self.spec = aggregate
        self.name = aggregate.name or str(getattr(aggregate.lift, "__qualname__", "columnar"))

    def lift(self, rows: Rows, groups: Groups) -> Lifted:
        table = (
            rows.table if self.spec.columns is None else rows.table.select(list(self.spec.columns))
        )
        try:
            return Lifted(self._spread(*self._lift(table, groups.ids), groups.n))
        except SpecError:
            raise
        except Exception:  # noqa: BLE001 - a user's function may raise anything
            failed, why = isolate(
                lambda part: self._lift(table.take(pa.array(part)), groups.ids[part]), len(rows)
            )
        kept = np.flatnonzero(~failed)
        try:
            partials = self._spread(
                *self._lift(table.take(pa.array(kept)), groups.ids[kept]), groups.n
            )
        except Exception as problem:  # noqa: BLE001 - a user's function may raise anything
            # Each row succeeds alone, but not all together: no row is to blame more than others.
            failed, why = np.ones(len(rows), bool), why or describe(problem)
            partials = self._spread({}, np.zeros(0, np.int64), groups.n)
        return Lifted(partials, failed, f"`{self.name}` raised {why}")

    def _lift(self, table: pa.Table, ids: np.ndarray) -> tuple[dict[str, Column], np.ndarray]:
        """Partials of the groups that occur, and the numbers of these groups."""
        found, dense = np.unique(ids, return_inverse=True)
        return (
            self._checked("lift", self.spec.lift(table, Groups(dense, len(found))), len(found))
            if len(found)
            else {}
        ), found

    def _checked(self, step: str, answer: Any, n: int) -> dict[str, Column]:
        if not isinstance(answer, Mapping) or set(answer) != set(self.own):
            got = sorted(answer) if isinstance(answer, Mapping) else answer
            raise SpecError(
                f"`{step}` of `{self.name}` must give the partial columns {sorted(self.own)}, got"
                f" {got!r}"
            )
        for column_name, column in answer.items():
            if len(column) != n:
                raise SpecError(
                    f"`{step}` of `{self.name}` must give one value per group ({n}) in"
                    f" `{column_name}`, got {len(column)}"
                )
        return {key: _plain(typed(to_arrow(answer[key]), type)) for key, type in self.own.items()}

    def _spread(self, partials: dict[str, Column], found: np.ndarray, n: int) -> dict[str, Column]:
        """Partials of some groups at their positions among all groups."""
        index = np.full(n, NONE, np.int64)
        index[found] = np.arange(len(found))
        columns = partials or {key: _plain(pa.array([], type)) for key, type in self.own.items()}
        return {**{key: pick(columns[key], index) for key in self.own}, "present": index != NONE}

    def _present(self, partials: Partials) -> tuple[dict[str, Column], np.ndarray]:
        rows = np.flatnonzero(to_numpy(partials["present"]))
        own = {key: typed(partials[key], type) for key, type in self.own.items()}
        return {key: _plain(to_arrow(take(column, rows))) for key, column in own.items()}, rows

    def combine(self, partials: Partials, groups: Groups) -> dict[str, Column]:
        own, rows = self._present(partials)
        found, dense = np.unique(groups.ids[rows], return_inverse=True)
        merged = (
            self._checked("combine", self.spec.combine(own, Groups(dense, len(found))), len(found))
            if len(found)
            else {}
        )
        return self._spread(merged, found, groups.n)

    def evaluate(self, partials: Partials) -> Lowered:
        own, rows = self._present(partials)
        n = len(to_numpy(partials["present"]))
        index = np.full(n, NONE, np.int64)
        index[rows] = np.arange(len(rows))
        if not len(rows):
            return Lowered(pa.array([None] * n, self.result_type))
        try:
            return Lowered(to_arrow(pick(self._lower(own), index)))
        except SpecError:
            raise
        except Exception:  # noqa: BLE001 - a user's function may raise anything
            frame = Frame.of(own, len(rows))
            failed, why = isolate(lambda part: self._lower(frame.take(part).columns), len(rows))
        good = np.flatnonzero(~failed)
        index[rows] = NONE
        index[rows[good]] = np.arange(len(good))
        values = (
            self._lower(frame.take(good).columns) if len(good) else pa.array([], self.result_type)
        )
        broken = np.zeros(n, bool)
        broken[rows[failed]] = True
        return Lowered(
            to_arrow(pick(values, index)), broken, f"`lower` of `{self.name}` raised {why}"
        )

    def _lower(self, partials: Partials) -> pa.Array:
        answer = to_arrow(self.spec.lower(dict(partials)))
        wanted = len(next(iter(partials.values())))
        if len(answer) != wanted:
            raise SpecError(
                f"`lower` of `{self.name}` must give one value per group ({wanted}), got"
                f" {len(answer)}"
            )
        return typed(answer, self.result_type)


class OverRows(Kept, Fallible):
    """A user function of the rows of a group, as a table by event time and arrival; null if
    empty.
    """

    full_state = True

    def __init__(self, aggregate: spec.Apply, columns: dict[str, pa.DataType]) -> None:
        self.columns = {f"c.{name}": name for name in columns}
        items = {f"c.{name}": type for name, type in columns.items()}
        super().__init__({**items, "time": pa.int64(), "order": pa.int64()}, aggregate.result_type)
        self.function = aggregate.function
        self.name = getattr(aggregate.function, "__qualname__", "apply")

    def lift(self, rows: Rows, groups: Groups) -> Lifted:
        items, ids = present(
            rows, {kept: rows.column(name) for kept, name in self.columns.items()}, None, groups
        )
        return Lifted(self.keep(items, ids, groups.n))

    def arrange(self, items: Items, ids: np.ndarray) -> np.ndarray:
        return by_arrival(items, ids)

    def evaluate(self, partials: Partials) -> Lowered:
        columns = {
            name: typed_list(partials[kept], self.partial_types[kept])
            for kept, name in self.columns.items()
        }
        count = lists.lengths(typed_list(partials["time"], self.partial_types["time"]))
        whole = pa.table({name: column.flatten() for name, column in columns.items()})
        tables = [
            whole.slice(end - n, n) if n else None
            for end, n in zip(np.cumsum(count).tolist(), count.tolist(), strict=True)
        ]
        return _results(self.function, tables, self.result_type, self.name)

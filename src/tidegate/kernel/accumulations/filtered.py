"""Outer layer of every accumulation: `of=`, `where=`, failing rows, unsupported retractions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.errors import InputError
from tidegate.kernel.accumulations.protocol import Accumulation, Lifted, Lowered, Partials, Rows
from tidegate.kernel.frame import Column, to_arrow
from tidegate.kernel.groups import Groups
from tidegate.spec.aggregates import INPUT, Aggregate


def describe(problem: BaseException) -> str:
    """An exception as one line."""
    return f"{type(problem).__name__}: {problem}"


def isolate(call: Callable[[np.ndarray], Any], n: int) -> tuple[np.ndarray, str]:
    """The rows that make a vectorised call fail, found by bisection, and the first exception."""
    failed = np.zeros(n, bool)
    why = ""
    waiting = [(0, n)] if n else []
    while waiting:
        start, stop = waiting.pop()
        try:
            call(np.arange(start, stop))
        except Exception as problem:  # noqa: BLE001 - a user's function may raise anything
            if stop - start == 1:
                failed[start], why = True, why or describe(problem)
            else:
                middle = (start + stop) // 2
                waiting += [(middle, stop), (start, middle)]
    return failed, why


def _as_mask(answer: Any, rows: int) -> np.ndarray:
    """The result of a filter as booleans; null is false."""
    array = to_arrow(
        answer if isinstance(answer, (pa.Array, pa.ChunkedArray)) else pa.array(answer)
    )
    if not pa.types.is_boolean(array.type) or len(array) != rows:
        raise InputError(
            f"`where` must give one boolean per row ({rows}), got {len(array)} of type {array.type}"
        )
    return array.fill_null(False).to_numpy(zero_copy_only=False)


def _lift_some(
    lift: Callable[[Rows, Groups], Lifted], rows: Rows, groups: Groups, mask: np.ndarray
) -> Lifted:
    """Lift some of the rows; failed rows are marked among all rows."""
    lifted = lift(rows.where(mask), Groups(groups.ids[mask], groups.n))
    if lifted.failed is None:
        return lifted
    failed = np.zeros(len(rows), bool)
    failed[np.flatnonzero(mask)[lifted.failed]] = True
    return Lifted(lifted.partials, failed, lifted.why)


class Bound:
    """An accumulation bound to its input."""

    def __init__(self, inner: Accumulation, aggregate: Aggregate) -> None:
        self.inner, self.kind, self.condition, self.of = (
            inner,
            aggregate.kind,
            aggregate.where,
            aggregate.of,
        )
        self.reads = aggregate.reads()
        conditions = () if self.condition is None else (self.condition,)
        self.needs = (
            None
            if self.reads is None or callable(self.condition)
            else tuple(dict.fromkeys([*self.reads, *conditions]))
        )
        self.partial_types, self.result_type = inner.partial_types, inner.result_type
        self.invertible, self.full_state = inner.invertible, inner.full_state

    def lift(self, rows: Rows, groups: Groups) -> Lifted:
        if self.of is None:
            return self._lift(rows, groups)
        mine = _as_mask(pc.equal(rows.column(INPUT), self.of), len(rows))
        return (
            self._lift(rows, groups)
            if mine.all()
            else _lift_some(self._lift, rows.select(self.needs), groups, mine)
        )

    def _lift(self, rows: Rows, groups: Groups) -> Lifted:
        if not self.invertible and rows.weight is not None and (rows.weight < 0).any():
            raise InputError(
                f"`{self.kind}` does not support retractions, got rows of weight -1. Hint:"
                " compute it from the messages of the window"
            )
        if self.condition is None:
            return self.inner.lift(rows, groups)
        mask, failed, why = self._mask(self.condition, rows)
        if mask.all():
            return self.inner.lift(rows, groups)
        lifted = _lift_some(self.inner.lift, rows.select(self.reads), groups, mask)
        both = [one for one in (failed, lifted.failed) if one is not None]
        return Lifted(
            lifted.partials, np.logical_or.reduce(both) if both else None, why or lifted.why
        )

    def _mask(
        self, condition: str | Callable[[pa.Table], Any], rows: Rows
    ) -> tuple[np.ndarray, np.ndarray | None, str]:
        """Rows that pass the filter, rows for which it raised, and the exception."""
        if isinstance(condition, str):
            return _as_mask(rows.column(condition), len(rows)), None, ""
        try:
            return _as_mask(condition(rows.table), len(rows)), None, ""
        except Exception:  # noqa: BLE001 - a user's function may raise anything
            return self._piecewise(condition, rows)

    def _piecewise(
        self, condition: Callable[[pa.Table], Any], rows: Rows
    ) -> tuple[np.ndarray, np.ndarray | None, str]:
        mask = np.zeros(len(rows), bool)

        def evaluate(part: np.ndarray) -> None:
            mask[part] = _as_mask(condition(rows.table.slice(int(part[0]), len(part))), len(part))

        failed, why = isolate(evaluate, len(rows))
        return mask, failed, f"`where` of `{self.kind}` raised {why}" if why else ""

    def combine(self, partials: Partials, groups: Groups) -> dict[str, Column]:
        return self.inner.combine(partials, groups)

    def evaluate(self, partials: Partials) -> Lowered:
        return self.inner.evaluate(partials)

    def lower(self, partials: Partials) -> pa.Array:
        return self.inner.lower(partials)

    def overflowed(self, partials: Partials) -> np.ndarray | None:
        return self.inner.overflowed(partials)

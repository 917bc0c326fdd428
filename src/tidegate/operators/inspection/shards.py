"""Inspection of an operator whose keys are distributed over shards.

The results have the content of the same calls on one operator with all keys, as Arrow tables. Keys
of the same window have no particular order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.instants import Instant
from tidegate.kernel.keys import shard_of
from tidegate.operators.aggregate.operator import WindowedAggregate
from tidegate.operators.inspection.aggregate import AggregateInspection
from tidegate.operators.inspection.join import JoinInspection
from tidegate.operators.inspection.key_identity import key_identity
from tidegate.operators.join.operator import WindowedJoin
from tidegate.spec.join import SIDES
from tidegate.spec.operator import ordinal_of
from tidegate.spec.windows import Session

OFFSETS = pa.list_(
    pa.struct([("partition", pa.string()), ("first", pa.int64()), ("last", pa.int64())])
)
"""The type of the column `offsets` of windows: the first and last offset by partition."""
_WINDOW = ("window_start", "window_end")


class _Aggregate(AggregateInspection):
    def __init__(self, operator: WindowedAggregate) -> None:
        self.operator = operator


class _Join(JoinInspection):
    def __init__(self, operator: WindowedJoin) -> None:
        self.operator = operator


class ShardedAggregate:
    """Read-only access to the windows, messages and values of an aggregate."""

    def __init__(self, operators: Sequence[WindowedAggregate]) -> None:
        """`operators`: one per shard; those that have not seen a row are left out."""
        self._shards = [_Aggregate(operator) for operator in operators if operator.is_bound]

    def windows(
        self, start: Instant | None = None, end: Instant | None = None, *, key: Any = None
    ) -> pa.Table:
        """The windows that overlap a range; see `AggregateInspection.get_windows`."""
        rows = [row for shard in self._shards for row in shard.get_windows(start, end, key=key)]
        if not rows:
            return pa.table({})
        operator = self._shards[0].operator
        keys = [name for name in operator.spec.input.key if name in rows[0]]
        if not keys:
            rows = _merged(rows)
        schema, instants = operator.bound().context.schema, operator.renderer().instants
        types = {
            **{name: schema.field(name).type for name in keys},
            **dict.fromkeys(_WINDOW, instants(np.zeros(0, np.int64)).type),
            **dict.fromkeys(("count", "panes"), pa.int64()),
        }
        columns = {
            name: pa.array([row[name] for row in rows], kind) for name, kind in types.items()
        }
        columns["offsets"] = pa.array([_offset_list(row["offsets"]) for row in rows], OFFSETS)
        return _sorted(pa.table(columns), _WINDOW)

    def messages(
        self, start: Instant | None = None, end: Instant | None = None, **selected: Any
    ) -> pa.Table:
        """The messages of a range; see `AggregateInspection.get_messages`."""
        tables = [shard.get_messages(start, end, **selected) for shard in self._shards]
        inputs = {(given.time, given.offset) for shard in self._shards for given in _inputs(shard)}
        # The inputs of a merge may have different time columns.
        return _sorted(_concat(tables), inputs.pop() if len(inputs) == 1 else ())

    def peek(
        self, start: Instant | None = None, end: Instant | None = None, *, key: Any = None
    ) -> pa.Table:
        """The current values of windows; see `AggregateInspection.peek`."""
        tables = [shard.peek(start, end, key=key) for shard in self._shards]
        return _sorted(_concat(tables), _WINDOW)


class ShardedJoin:
    """Read-only access to the rows and windows of both sides of a join."""

    def __init__(self, operators: Sequence[WindowedJoin]) -> None:
        """`operators`: one per shard."""
        self._shards = [_Join(operator) for operator in operators]

    def windows(
        self,
        side: int | str,
        start: Instant | None = None,
        end: Instant | None = None,
        *,
        key: Any = None,
    ) -> pa.Table:
        """The windows of a side that overlap a range; see `JoinInspection.get_windows`.

        Within time bounds, windows and their counts are those of each shard.
        """
        rows = [
            row for shard in self._shards for row in shard.get_windows(side, start, end, key=key)
        ]
        spec = self._shards[0].operator.spec if rows else None
        # Sessions of different keys are different windows, even if they are equal.
        if spec is not None and spec.has_windows and not isinstance(spec.window, Session):
            rows = _merged(rows)
        return _sorted(pa.Table.from_pylist(rows), _WINDOW) if rows else pa.table({})

    def messages(
        self,
        side: int | str,
        start: Instant | None = None,
        end: Instant | None = None,
        **selected: Any,
    ) -> pa.Table:
        """The messages of a side in a range; see `JoinInspection.get_messages`."""
        tables = [shard.get_messages(side, start, end, **selected) for shard in self._shards]
        if not tables:
            return pa.table({})
        spec = self._shards[0].operator.spec
        number = ordinal_of(SIDES, side)
        given = spec.inputs[number]
        return _sorted(
            _concat(tables), (given.time if spec.is_timed(number) else None, given.offset)
        )


def shard_number(operator: WindowedAggregate, key: Any, shards: int) -> int:
    """The number of the shard that has a key of an aggregate."""
    names = operator.spec.input.key
    if not names or shards == 1:
        return 0
    schema = operator.bound().context.schema
    key_hash, _ = key_identity(key, names, schema, "key columns", operator.hasher)
    return int(shard_of(np.array([key_hash]), shards)[0])


def _inputs(shard: _Aggregate) -> Iterable[Any]:
    return shard.operator.spec.inputs


def _concat(tables: Sequence[pa.Table]) -> pa.Table:
    """The rows of all tables; their columns may have different orders."""
    found = [table for table in tables if table.num_rows] or tables[:1]
    if not found:
        return pa.table({})
    return pa.concat_tables([table.select(found[0].column_names) for table in found])


def _sorted(table: pa.Table, columns: Iterable[str | None]) -> pa.Table:
    """The rows by these columns, as far as the table has them; equal ones stay in order."""
    present = [(name, "ascending") for name in columns if name in table.column_names]
    if not present:
        return table
    return table.take(pc.sort_indices(table, sort_keys=present))


def _merged(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Windows that several shards have, once: counts are added up, offsets are combined."""
    found: dict[tuple[Any, Any], dict[str, Any]] = {}
    for row in rows:
        window = (row["window_start"], row["window_end"])
        found[window] = _added(found[window], row) if window in found else dict(row)
    return list(found.values())


def _added(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    counts = {name: one[name] + other[name] for name in ("count", "panes") if name in one}
    offsets = dict(one.get("offsets", {}))
    for partition, (first, last) in other.get("offsets", {}).items():
        low, high = offsets.get(partition, (first, last))
        offsets[partition] = (min(low, first), max(high, last))
    return {**one, **counts, **({"offsets": offsets} if "offsets" in one else {})}


def _offset_list(offsets: Mapping[str, tuple[int, int]]) -> list[dict[str, Any]]:
    return [
        {"partition": partition, "first": first, "last": last}
        for partition, (first, last) in sorted(offsets.items())
    ]

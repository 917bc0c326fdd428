"""A delivery is what reaches an operator at once, as columns: the rows, their times, keys, order
and weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.errors import InputError
from tidegate.kernel.events.lateness import FUTURE, ON_TIME
from tidegate.kernel.events.partitions import partitions_of
from tidegate.kernel.events.times import is_ticks, read_times
from tidegate.kernel.frame import Column, Frame, constant, is_constant, repeat, to_arrow, to_numpy
from tidegate.kernel.groups import Groups
from tidegate.kernel.keys import DenseKeys, Identities, identify
from tidegate.kernel.watermarks.generators import check_columns, columns_of
from tidegate.spec.aggregates import INPUT
from tidegate.spec.operator import Input


@dataclass(frozen=True, slots=True, eq=False)
class Arrival:
    """Rows of one input, as they came."""

    ordinal: int
    table: pa.Table


def joined(arrivals: Iterable[Arrival]) -> list[Arrival]:
    """The arrivals that have rows; those of one input that follow each other are one, so that their
    offsets have one order.
    """
    runs: list[tuple[int, list[pa.Table]]] = []
    for arrival in arrivals:
        if not arrival.table.num_rows:
            continue
        if (
            runs
            and runs[-1][0] == arrival.ordinal
            and runs[-1][1][0].schema.equals(arrival.table.schema)
        ):
            runs[-1][1].append(arrival.table)
        else:
            runs.append((arrival.ordinal, [arrival.table]))
    return [
        Arrival(ordinal, tables[0] if len(tables) == 1 else pa.concat_tables(tables))
        for ordinal, tables in runs
    ]


@dataclass(frozen=True, slots=True, eq=False)
class Delivery:
    """Rows that an operator works on; `seq` numbers them in the order of arrival over the life of
    the operator.
    """

    table: pa.Table
    time: np.ndarray
    identities: Identities
    seq: np.ndarray
    offset: np.ndarray
    partition: np.ndarray
    partitions: list[str]
    verdict: np.ndarray
    weight: np.ndarray | None = None
    x: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.time)

    @property
    def key_hash(self) -> np.ndarray:
        """The first word of the identity of each row's key."""
        return self.identities.all[0]

    @property
    def key_check(self) -> np.ndarray:
        """The second one."""
        return self.identities.all[1]

    @property
    def position(self) -> np.ndarray:
        """Where each row is on the window's axis."""
        if self.x is None:
            raise InputError(
                "rows have no position on the window's axis before they are classified"
            )
        return self.x

    @property
    def is_on_time(self) -> np.ndarray:
        """Which rows were not behind the watermark when they came."""
        return (self.verdict == ON_TIME) | (self.verdict == FUTURE)

    def take(self, index: np.ndarray) -> Delivery:
        return self._picked(self.table.take(pa.array(index)), index)

    def where(self, mask: np.ndarray) -> Delivery:
        return self if mask.all() else self._picked(self.table.filter(pa.array(mask)), mask)

    def _picked(self, table: pa.Table, pick: np.ndarray) -> Delivery:
        return replace(
            self,
            table=table,
            time=self.time[pick],
            identities=Identities.known(
                *(_pick(word, pick, table.num_rows) for word in self.identities.all)
            ),
            seq=self.seq[pick],
            offset=_pick(self.offset, pick, table.num_rows),
            partition=_pick(self.partition, pick, table.num_rows),
            verdict=self.verdict[pick],
            weight=None if self.weight is None else self.weight[pick],
            x=None if self.x is None else self.x[pick],
        )

    def with_seq(self, seq: np.ndarray) -> Delivery:
        return replace(self, seq=seq)

    def with_classes(self, classes: np.ndarray) -> Delivery:
        return replace(self, verdict=classes)

    def with_position(self, x: np.ndarray) -> Delivery:
        return replace(self, x=x)

    def with_table(self, table: pa.Table) -> Delivery:
        return replace(self, table=table)

    def grouped(
        self, key: Sequence[str], part: np.ndarray, inside: np.ndarray
    ) -> tuple[Groups, int]:
        """The rows of each key and part, by part, then by key, and how many groups have rows
        inside.

        The other rows ride along and are in the last groups: few are, and leaving them out would
        cost a copy.
        """
        outside = None
        if not inside.all():
            part = np.where(inside, part, part.min())
            outside = part.max() + 1
            np.putmask(part, ~inside, outside)
        near = DenseKeys.of([self.table.column(name) for name in key], len(self))
        groups = (
            Groups.in_order(self.key_hash, self.key_check, part)
            if near is None
            else Groups.of_numbers(near.numbers, near.key_hash_of, part)
        )
        return groups, (
            groups.n if outside is None else int(np.searchsorted(part[groups.lasts], outside))
        )

    def keys(self, names: tuple[str, ...], index: np.ndarray) -> dict[str, Column]:
        """The key columns at the given rows, under the names that state uses."""
        taken = self.table.select(list(names)).take(pa.array(index)) if names else None
        return (
            {} if taken is None else {f"k.{name}": to_arrow(taken.column(name)) for name in names}
        )


@dataclass(frozen=True)
class DeliveryReader:
    """Turns a table into a delivery by the input's specification; the columns that it names must be
    there.
    """

    spec: Input
    op_column: str | None = None
    null_time: int | None = None
    """What a missing time means; None where it means that the row is broken."""
    prefix: str = ""
    """What stands before the names of partitions, to tell those of several inputs apart."""
    label: str | None = None
    """The name of the input in a merge, which its rows get as a column."""
    reads_time: bool = True
    """Whether rows have the times of the time column; if not, all have that of the clock."""

    @property
    def time(self) -> str | None:
        """The column that times are read from."""
        return self.spec.time if self.reads_time else None

    def required(self) -> list[str]:
        named = [
            self.time,
            *self.spec.key,
            self.spec.id,
            self.spec.offset,
            self.spec.partition,
            self.op_column,
        ]
        named += columns_of(self.spec.watermark)
        return [name for name in named if name is not None]

    def check(self, schema: pa.Schema) -> None:
        missing = [name for name in self.required() if name not in schema.names]
        if missing:
            raise InputError(
                f"the input has no column {', '.join(f'`{m}`' for m in missing)}; it has"
                f" {', '.join(schema.names)}"
            )
        check_columns(self.spec.watermark, schema)

    def labelled(self, table: pa.Table) -> pa.Table:
        """The table with the name of its input, where inputs are told apart."""
        return (
            table
            if self.label is None
            else table.append_column(INPUT, repeat(self.label, table.num_rows, pa.string()))
        )

    def ticks(self, schema: pa.Schema) -> bool:
        """Whether event times are plain numbers."""
        return self.spec.time is None or is_ticks(schema.field(self.spec.time).type)

    def read(self, table: pa.Table, times: pa.ChunkedArray | None, now: int) -> Delivery:
        """All rows in (partition, offset) order; nothing is judged yet but whether the time can be
        read.
        """
        rows = table.num_rows
        partition, names = partitions_of(table, self.spec.partition)
        names = [self.prefix + name for name in names]
        offset = self.offsets(table)
        if self.spec.offset is not None and rows > 1:
            order = np.lexsort((offset, partition))
            if (np.diff(order) != 1).any():
                table, partition, offset = (
                    table.take(pa.array(order)),
                    partition[order],
                    offset[order],
                )
                times = None if times is None else times.take(pa.array(order))
        if self.time is None or times is None:
            time, verdict = np.full(rows, now, np.int64), np.zeros(rows, np.int8)
        else:
            time, verdict = read_times(times, self.time, null_is=self.null_time)
        identities = Identities([table.column(name) for name in self.spec.key], rows)
        return Delivery(
            table,
            time,
            identities,
            np.arange(rows),
            offset,
            partition,
            names,
            verdict,
            self._weights(table),
        )

    def identities(self, delivery: Delivery) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The hashed id of each row, and whether it has one."""
        column = to_arrow(delivery.table.column(self.spec.id or ""))
        # Messages of different inputs of a merge are different ones, whatever their ids.
        labels = [] if self.label is None else [delivery.table.column(INPUT)]
        key_hash, key_check = identify([column, *labels], len(delivery))
        return key_hash, key_check, column.is_valid().to_numpy(zero_copy_only=False)

    def offsets(self, table: pa.Table) -> np.ndarray:
        """The offset of each row."""
        if self.spec.offset is None:
            return constant(np.int64(0), table.num_rows)
        column = to_arrow(table.column(self.spec.offset))
        if not pa.types.is_integer(column.type):
            raise InputError(
                f"the offset column `{self.spec.offset}` has type `{column.type}`; offsets are"
                " whole numbers. Hint: cast it to int64"
            )
        if column.null_count:
            raise InputError(
                f"the offset column `{self.spec.offset}` has {column.null_count} null(s); every"
                " message of a stream has an offset"
            )
        return to_numpy(column.cast(pa.int64()))

    def _weights(self, table: pa.Table) -> np.ndarray | None:
        if self.op_column is None:
            return None
        minus = pc.equal(to_arrow(table.column(self.op_column)), "-")
        return np.where(pc.fill_null(minus, False).to_numpy(zero_copy_only=False), -1, 1).astype(
            np.int64
        )


def _pick(column: np.ndarray, pick: np.ndarray, rows: int) -> np.ndarray:
    """Rows of a column; one that repeats a single value stays free of memory."""
    return constant(column[0], rows) if is_constant(column) else column[pick]


def as_frame(delivery: Delivery) -> Frame:
    """The input columns as a frame, for window assigners that look at them."""
    return Frame.of(
        {name: to_arrow(delivery.table.column(name)) for name in delivery.table.column_names},
        len(delivery),
    )

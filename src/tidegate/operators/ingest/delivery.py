"""Deliveries: the rows that reach an operator at once, with times, keys, order and weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.errors import InputError
from tidegate.instants import MAX
from tidegate.kernel.events.duplicates import partitions_of
from tidegate.kernel.events.event_time import FUTURE, ON_TIME, is_ticks, read_times
from tidegate.kernel.frame import Column, Frame, constant, is_constant, repeat, to_arrow, to_numpy
from tidegate.kernel.groups import Groups, dense_codes
from tidegate.kernel.keys import FIXED, Identities, KeyHasher, RankedKeys
from tidegate.kernel.watermarks.generators import check_columns, columns_of
from tidegate.spec.aggregates import INPUT
from tidegate.spec.operator import Input


@dataclass(frozen=True, slots=True, eq=False)
class Arrival:
    """A table of one input, as it arrived."""

    ordinal: int
    table: pa.Table


def merged_arrivals(arrivals: Iterable[Arrival]) -> list[Arrival]:
    """The arrivals that have rows, with consecutive arrivals of one input merged into one.

    The offsets of a merged arrival are then in one order.
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
class KeyGroups:
    """Rows grouped by part, then by key."""

    groups: Groups
    bounds: list[int]
    """The first group of each part that counts, and one past the groups of the last one."""
    rows: np.ndarray
    """A row of each of these parts."""
    hashes: tuple[np.ndarray, np.ndarray]
    """The (key_hash, key_check) of each group."""
    keys: Mapping[str, Column]
    """The key columns of each group, under their names in state."""

    @property
    def kept(self) -> int:
        """The number of groups in parts that count; they come first."""
        return self.bounds[-1]


@dataclass(frozen=True, slots=True, eq=False)
class Delivery:
    """The rows of a delivery as columns.

    `seq` numbers rows in the order of arrival over the life of the operator. `verdict` is first
    whether the time is readable (`OK`, `NULL`, `BAD`), and then the lateness class.
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
    window_position: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.time)

    @property
    def key_hash(self) -> np.ndarray:
        """The first word of the identity of each row's key."""
        return self.identities.all[0]

    @property
    def key_check(self) -> np.ndarray:
        """The second word of the identity of each row's key."""
        return self.identities.all[1]

    @property
    def position(self) -> np.ndarray:
        """The position of each row on the axis of the window."""
        if self.window_position is None:
            raise InputError(
                "rows have no position on the axis of the window before they are classified"
            )
        return self.window_position

    @property
    def is_on_time(self) -> np.ndarray:
        """Which rows were not behind the watermark when they arrived."""
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
            identities=self.identities.known(
                *(_pick(word, pick, table.num_rows) for word in self.identities.all)
            ),
            seq=self.seq[pick],
            offset=_pick(self.offset, pick, table.num_rows),
            partition=_pick(self.partition, pick, table.num_rows),
            verdict=self.verdict[pick],
            weight=None if self.weight is None else self.weight[pick],
            window_position=(None if self.window_position is None else self.window_position[pick]),
        )

    def with_seq(self, seq: np.ndarray) -> Delivery:
        return replace(self, seq=seq)

    def with_classes(self, classes: np.ndarray) -> Delivery:
        return replace(self, verdict=classes)

    def with_position(self, position: np.ndarray) -> Delivery:
        return replace(self, window_position=position)

    def with_table(self, table: pa.Table) -> Delivery:
        return replace(self, table=table)

    def grouped(self, key: tuple[str, ...], part: np.ndarray, inside: np.ndarray) -> KeyGroups:
        """The rows grouped by part, then by key.

        Rows that are not inside are in the last groups: there are few, and dropping them would
        cost a copy.
        """
        outside = None
        if not inside.all():
            part = np.where(inside, part, part.min())
            outside = part.max() + 1
            np.putmask(part, ~inside, outside)
        ranked = self._ranked(key)
        if ranked is None:
            groups = Groups.in_order(self.key_hash, self.key_check, part)
            some = groups.lasts
            of = part[some]
            begins = np.flatnonzero(np.concatenate([[True], of[1:] != of[:-1]])[: len(of)])
            hashes, keys, rows = self.identities.at(some), self.keys(key, some), some[begins]
        else:
            groups, rank, begins, rows = Groups.of_ranks(ranked.rank, len(ranked.hashes[0]), part)
            hashes = ranked.hashes_of(rank)
            keys = (
                self.keys(key, groups.lasts)
                if ranked.keys is None
                else {f"k.{key[0]}": ranked.keys.take(pa.array(rank))}
            )
        bounds = [*begins.tolist(), groups.n]
        return KeyGroups(
            groups,
            bounds if outside is None else bounds[:-1],
            rows[: len(rows) - (outside is not None)],
            hashes,
            keys,
        )

    def _ranked(self, key: tuple[str, ...]) -> RankedKeys | None:
        """The keys by their hashes, where that takes no hashing of all rows."""
        dense = self.identities.hasher.dense.ranked(
            [self.table.column(name) for name in key], len(self)
        )
        if dense is not None:
            return dense
        encoded = self.identities.encoded
        return None if encoded is None else encoded.ranked()

    def key_codes(self, key: tuple[str, ...], row: np.ndarray) -> tuple[Frame, np.ndarray]:
        """The distinct keys of some rows, sorted, and the number of each row's key among them."""
        ranked = self._ranked(key)
        if ranked is None:
            return key_codes(self.key_hash[row], self.key_check[row])
        ids, ranks = dense_codes(ranked.rank[row], len(ranked.hashes[0]))
        return _keys(*ranked.hashes_of(ranks)), ids

    def keys(self, names: tuple[str, ...], index: np.ndarray) -> dict[str, Column]:
        """The key columns of some rows, under their names in state."""
        rows = pa.array(index)
        return {f"k.{name}": to_arrow(self.table.column(name).take(rows)) for name in names}


def check_label(name: str, columns: Iterable[str]) -> None:
    """Raise an error if an input of a merge has the column that the merge adds."""
    if INPUT in columns:
        raise InputError(
            f"the stream `{name}` has a column `{INPUT}`, which in a merge is the name of the"
            " input. Hint: rename the column"
        )


@dataclass(frozen=True)
class DeliveryReader:
    """Reads tables of one input as deliveries."""

    spec: Input
    op_column: str | None = None
    null_time: int | None = None
    """The time of rows without one; None if such rows are unreadable."""
    prefix: str = ""
    """A prefix for partition names, which keeps those of several inputs apart."""
    label: str | None = None
    """The name of the input in a merge, which its rows get as a column."""
    reads_time: bool = True
    """Whether to read the time column; if not, the time of every row is the clock."""
    hasher: KeyHasher = FIXED
    """The identities of keys and ids."""

    @property
    def time(self) -> str | None:
        """The column that times are read from."""
        return self.spec.time if self.reads_time else None

    def required(self) -> list[str]:
        """The columns that the specification of the input names."""
        named = [
            self.time,
            *self.spec.key,
            self.spec.id,
            self.spec.offset,
            self.spec.partition,
            self.op_column,
        ]
        named += columns_of(self.spec.row_watermark)
        return [name for name in named if name is not None]

    def check(self, schema: pa.Schema) -> None:
        """Raise `InputError` if a required column is missing; without `op` rows are emits."""
        known = {*schema.names, self.op_column}
        missing = [name for name in self.required() if name not in known]
        if missing:
            raise InputError(
                f"the input has no column {', '.join(f'`{m}`' for m in missing)}; it has"
                f" {', '.join(schema.names)}"
            )
        check_columns(self.spec.row_watermark, schema)

    def labelled(self, table: pa.Table) -> pa.Table:
        """The table with the name of its input as a column, in a merge."""
        if self.label is None:
            return table
        check_label(self.label, table.column_names)
        return table.append_column(INPUT, repeat(self.label, table.num_rows, pa.string()))

    def ticks(self, schema: pa.Schema) -> bool:
        """Whether event times are plain numbers."""
        return self.spec.time is None or is_ticks(schema.field(self.spec.time).type)

    def read(self, table: pa.Table, times: pa.ChunkedArray | None, now: int) -> Delivery:
        """All rows in (partition, offset) order, each with whether its time is readable."""
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
        identities = self.hasher.identities([table.column(name) for name in self.spec.key], rows)
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
        """The hashed id of each row, and whether the row has one."""
        column = to_arrow(delivery.table.column(self.spec.id or ""))
        # Messages of different inputs of a merge are different even if their ids are equal.
        labels = [] if self.label is None else [delivery.table.column(INPUT)]
        key_hash, key_check = self.hasher.identify([column, *labels], len(delivery))
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
        if self.known_offsets(table) is not None:
            raise InputError(
                f"the offset column `{self.spec.offset}` has a null, or an offset beyond {MAX}."
                " Hint: drop these rows"
            )
        return to_numpy(column.cast(pa.int64()))

    def known_offsets(self, table: pa.Table) -> np.ndarray | None:
        """Which rows have an offset, where some have none: null, or beyond 64 bits."""
        if self.spec.offset is None:
            return None
        column = to_arrow(table.column(self.spec.offset))
        if not pa.types.is_integer(column.type):
            return None
        if not column.null_count and not pa.types.is_uint64(column.type):
            # Most deliveries: nothing is read.
            return None
        known = column.is_valid()
        if pa.types.is_uint64(column.type):
            known = pc.and_kleene(known, pc.less_equal(column, pa.scalar(MAX, pa.uint64())))
        found = np.asarray(pc.fill_null(known, False))
        return None if found.all() else found

    def with_offsets(self, table: pa.Table) -> pa.Table:
        """The rows that have an offset."""
        known = self.known_offsets(table)
        return table if known is None else table.filter(pa.array(known))

    def _weights(self, table: pa.Table) -> np.ndarray | None:
        if self.op_column is None or self.op_column not in table.column_names:
            return None
        minus = pc.equal(to_arrow(table.column(self.op_column)), "-")
        return np.where(pc.fill_null(minus, False).to_numpy(zero_copy_only=False), -1, 1).astype(
            np.int64
        )


def _pick(column: np.ndarray, pick: np.ndarray, rows: int) -> np.ndarray:
    """Some rows of a column; a constant column stays one without memory."""
    return constant(column[0], rows) if is_constant(column) else column[pick]


def as_frame(delivery: Delivery) -> Frame:
    """The input columns as a frame, for window assigners that read them."""
    return Frame.of(
        {name: to_arrow(delivery.table.column(name)) for name in delivery.table.column_names},
        len(delivery),
    )


def key_codes(key_hash: np.ndarray, key_check: np.ndarray) -> tuple[Frame, np.ndarray]:
    """The distinct keys, sorted, and the number of each key among them."""
    groups = Groups.in_order(key_hash, key_check, constant(np.int64(0), len(key_hash)))
    return _keys(key_hash[groups.lasts], key_check[groups.lasts]), groups.ids


def _keys(key_hash: np.ndarray, key_check: np.ndarray) -> Frame:
    return Frame({"key_hash": key_hash, "key_check": key_check}, len(key_hash))

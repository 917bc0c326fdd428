"""Messages of a partition as a table: the columns of their values, and those of the messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.operators.ingest.schema_cast import BROKEN, with_errors
from tidegate.operators.ingest.typed_rows import malformed_row
from tidegate.spark.sources.topics.offsets import Place, partition_name
from tidegate.spark.sources.topics.values import ValueDecoder, message_text, to_column

STAMP = pa.timestamp("us", "UTC")
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
PARTS: dict[str, pa.DataType] = {
    "partition": pa.string(),
    "offset": pa.int64(),
    "timestamp": STAMP,
    "key": pa.string(),
    "headers": HEADERS,
}
"""The parts of a message beside its value, and their types."""


@dataclass(frozen=True)
class MessageReader:
    """Converts messages to tables of a schema."""

    decoder: ValueDecoder
    columns: tuple[tuple[str, str], ...]
    """Parts of messages, and the names of their columns."""
    key_type: pa.DataType

    @property
    def schema(self) -> pa.Schema:
        """The columns of the values and of the messages."""
        types = {**PARTS, "key": self.key_type}
        return pa.schema(
            [*self.decoder.schema, *(pa.field(name, types[part]) for part, name in self.columns)]
        )

    def table(self, chunks: Sequence[tuple[Place, Sequence[Any]]]) -> pa.Table:
        """The rows of messages of some partitions; malformed ones have an error text."""
        names = [partition_name(place) for place, _ in chunks]
        number = np.repeat(np.arange(len(chunks)), [len(some) for _, some in chunks])
        messages = chunks[0][1] if len(chunks) == 1 else [one for _, some in chunks for one in some]

        def describe(row: int, why: str, value: bytes) -> str:
            return message_text(names[number[row]], messages[row].offset(), why, value)

        decoded = self.decoder.decode([message.value() for message in messages], describe)
        places = pa.array(names, pa.string()).take(pa.array(number))
        found, problems = self._parts(places, messages)
        texts = {
            row: describe(row, f"its key is {why}", messages[row].key() or b"")
            for row, why in problems.items()
        }
        if decoded.counts is not None:
            index = np.repeat(np.arange(len(messages)), decoded.counts)
            found = [column.take(pa.array(index)) for column in found]
            texts = {n: texts[row] for n, row in enumerate(index.tolist()) if row in texts}
        table = decoded.table
        for (_, name), column in zip(self.columns, found, strict=True):
            table = table.append_column(name, column)
        if BROKEN in table.column_names:
            table = table.select([*self.schema.names, BROKEN])
        return with_errors(table, texts) if texts else table

    def lost(self, place: Place, low: int, high: int) -> pa.Table:
        """One row for messages that the brokers deleted before they were read."""
        where = partition_name(place)
        text = f"messages {low} to {high - 1} of `{where}` were deleted before they were read"
        table = malformed_row(self.schema, text)
        known = {"partition": where, "offset": low}
        for part, name in self.columns:
            if part in known:
                at = table.column_names.index(name)
                table = table.set_column(at, name, pa.array([known[part]], PARTS[part]))
        return table

    def _parts(
        self, places: pa.Array, messages: Sequence[Any]
    ) -> tuple[list[pa.Array], dict[int, str]]:
        found: list[pa.Array] = []
        problems: dict[int, str] = {}
        for part, _ in self.columns:
            if part == "key":
                column, problems = to_column([one.key() for one in messages], self.key_type)
                found.append(column)
            elif part == "partition":
                found.append(places)
            elif part == "offset":
                found.append(pa.array([one.offset() for one in messages], pa.int64()))
            elif part == "timestamp":
                found.append(_timestamps(messages))
            else:
                found.append(_headers(messages))
        return found, problems


def _timestamps(messages: Sequence[Any]) -> pa.Array:
    """The time that the producer or the broker has set; null if none has."""
    pairs = np.array([one.timestamp() for one in messages], np.int64).reshape(-1, 2)
    return pa.array(pairs[:, 1] * 1000, pa.int64(), mask=pairs[:, 0] == 0).view(STAMP)


def _headers(messages: Sequence[Any]) -> pa.Array:
    values = [
        [
            {"key": name, "value": value.encode() if isinstance(value, str) else value}
            for name, value in one.headers() or []
        ]
        for one in messages
    ]
    return pa.array(values, HEADERS)

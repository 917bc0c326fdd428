"""The sink that stores rows as Arrow tables in this process, for tests and small results."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from tidegate.errors import InputError, SinkError
from tidegate.spark.sinks.base import DriverSink, SinkTarget, without_pane_id


@dataclass
class _Rows:
    """The rows that one query wrote under a name."""

    query: str
    schema: pa.Schema
    batches: dict[int, list[pa.Table]] = field(default_factory=dict)
    former: set[str] = field(default_factory=set)
    """Queries that wrote under the name before."""


# By name and output. A sink may be a copy from another process, so its rows are found by its name.
_stored: dict[tuple[str, str], _Rows] = {}
_lock = threading.Lock()


@dataclass(frozen=True)
class Memory(DriverSink):
    """Rows by batch in this process, under a name; a replay replaces its batch."""

    name: str

    def place(self) -> dict[str, str]:
        return {**super().place(), "path": self.name}

    def write(self, target: SinkTarget, batch: int, tables: Iterator[pa.Table]) -> None:
        received = [without_pane_id(target, table) for table in tables if table.num_rows]
        with _lock:
            stored = self._of_query(target)
            stored.schema = target.schema
            if received:
                stored.batches[batch] = received
            else:
                stored.batches.pop(batch, None)

    def table(self, output: str | None = None) -> pa.Table:
        """All rows, in the order of batches; `output` is required if there is more than one."""
        with _lock:
            stored = self._written(output)
            parts = [part for batch in sorted(stored.batches) for part in stored.batches[batch]]
            schema = stored.schema
        try:
            return pa.concat_tables([schema.empty_table(), *parts], promote_options="permissive")
        except pa.ArrowException as error:
            raise InputError(
                f"the batches of the memory sink `{self.name}` have incompatible types ({error})."
                " Hint: read them with .rows()"
            ) from error

    def rows(self, output: str | None = None) -> list[dict[str, Any]]:
        """All rows as dicts, in the order of batches."""
        with _lock:
            stored = self._written(output)
            parts = [part for batch in sorted(stored.batches) for part in stored.batches[batch]]
        return [row for part in parts for row in part.to_pylist()]

    def batches(self, output: str) -> pa.Table:
        """All rows with the number of their batch in a column `batch`; none if none was written."""
        with _lock:
            stored = _stored.get((self.name, output))
            parts = [
                part.append_column("batch", pa.array([batch] * part.num_rows, pa.int64()))
                for batch in sorted(stored.batches if stored is not None else ())
                for part in (stored.batches[batch] if stored is not None else ())
            ]
        return pa.concat_tables(parts, promote_options="permissive") if parts else pa.table({})

    def clear(self) -> None:
        """Delete all rows under this name."""
        with _lock:
            for known in [known for known in _stored if known[0] == self.name]:
                del _stored[known]

    def _of_query(self, target: SinkTarget) -> _Rows:
        """The rows of this query; a new query replaces the former one under the name."""
        stored = _stored.get((self.name, target.output))
        if stored is not None and stored.query == target.query:
            return stored
        if stored is not None and target.query in stored.former:
            raise SinkError(
                f"two queries write to the memory sink `{self.name}` at once, and a name holds the"
                " rows of one. Hint: give each its own name, or none: tg.sinks.memory()"
            )
        fresh = _Rows(
            target.query,
            target.schema,
            former=set() if stored is None else stored.former | {stored.query},
        )
        _stored[self.name, target.output] = fresh
        return fresh

    def _written(self, output: str | None) -> _Rows:
        found = {
            known: stored
            for (name, known), stored in _stored.items()
            if name == self.name and output in {None, known}
        }
        if len(found) == 1:
            return next(iter(found.values()))
        if found:
            raise InputError(
                f"the memory sink `{self.name}` holds several outputs: {', '.join(sorted(found))}."
                " Hint: name one, as in .table('panes')"
            )
        what = "" if output is None else f"the output `{output}` "
        raise InputError(
            f"no query of this process has written {what}to the memory sink `{self.name}`. Hint:"
            " wait for its first batch; under Spark Connect the rows are in the server's process"
            " and cannot be read here, so write to parquet or delta"
        )


def memory(name: str | None = None) -> Memory:
    """A sink that stores all rows in this process; read them with `.table()` or `.rows()`.

    `name`: sinks of the same name share their rows, so `tg.sinks.memory("clicks").table()` reads
    them anywhere in the process. Default: a unique name. A query with a new checkpoint replaces the
    rows under its name. Rows stay until `.clear()`; a query that is restarted in a new process has
    only the batches since then.
    """
    return Memory(uuid.uuid4().hex if name is None else name)

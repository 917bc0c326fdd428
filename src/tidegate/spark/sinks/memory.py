"""The sink that keeps its rows as Arrow tables in the process of `foreachBatch`: for tests,
notebooks and small results.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from tidegate.errors import InputError, SinkError
from tidegate.spark.sinks.base import DriverSink, Target, without_pane_id


@dataclass
class _Kept:
    """What one query wrote under a name."""

    query: str
    schema: pa.Schema
    batches: dict[int, list[pa.Table]] = field(default_factory=dict)
    former: set[str] = field(default_factory=set)


# By name and output. The sink itself may be a copy that was sent to another process: only the name
# says where its rows are.
_kept: dict[tuple[str, str], _Kept] = {}
_lock = threading.Lock()


@dataclass(frozen=True)
class Memory(DriverSink):
    """Rows by batch in this process, under a name; a replay of a batch replaces it."""

    name: str

    def write(self, target: Target, batch: int, tables: Iterator[pa.Table]) -> None:
        came = [without_pane_id(target, table) for table in tables if table.num_rows]
        with _lock:
            kept = self._of_query(target)
            kept.schema = target.schema
            if came:
                kept.batches[batch] = came
            else:
                kept.batches.pop(batch, None)

    def table(self, output: str | None = None) -> pa.Table:
        """All rows in the order of their batches; `output` is needed where more than one output was
        written under this name.
        """
        with _lock:
            kept = self._written(output)
            parts = [part for batch in sorted(kept.batches) for part in kept.batches[batch]]
            schema = kept.schema
        try:
            return pa.concat_tables([schema.empty_table(), *parts], promote_options="permissive")
        except pa.ArrowException as error:
            raise InputError(
                f"the batches of the memory sink `{self.name}` do not fit into one table ({error})."
                " Hint: read them with .rows(), which needs no common type"
            ) from error

    def rows(self, output: str | None = None) -> list[dict[str, Any]]:
        """All rows as dicts, in the order of their batches."""
        with _lock:
            kept = self._written(output)
            parts = [part for batch in sorted(kept.batches) for part in kept.batches[batch]]
        return [row for part in parts for row in part.to_pylist()]

    def clear(self) -> None:
        """Forget every row under this name."""
        with _lock:
            for known in [known for known in _kept if known[0] == self.name]:
                del _kept[known]

    def _of_query(self, target: Target) -> _Kept:
        """What this query wrote; another query that begins to write under the name takes it
        over.
        """
        kept = _kept.get((self.name, target.output))
        if kept is not None and kept.query == target.query:
            return kept
        if kept is not None and target.query in kept.former:
            raise SinkError(
                f"two queries write to the memory sink `{self.name}` at once, and a name holds the"
                " rows of one. Hint: give each its own name, or none: tg.sinks.memory()"
            )
        fresh = _Kept(
            target.query,
            target.schema,
            former=set() if kept is None else kept.former | {kept.query},
        )
        _kept[self.name, target.output] = fresh
        return fresh

    def _written(self, output: str | None) -> _Kept:
        found = {
            known: kept
            for (name, known), kept in _kept.items()
            if name == self.name and output in {None, known}
        }
        if len(found) == 1:
            return next(iter(found.values()))
        if found:
            raise InputError(
                f"the memory sink `{self.name}` holds several outputs: {', '.join(sorted(found))}."
                " Hint: say which one, as in .table('panes')"
            )
        what = "" if output is None else f"the output `{output}` "
        raise InputError(
            f"no query of this process has written {what}to the memory sink `{self.name}`. Hint:"
            " wait for its first batch; under Spark Connect the rows are in the server's process"
            " and cannot be read here, so write to parquet or delta"
        )


def memory(name: str | None = None) -> Memory:
    """A sink that keeps all rows in the process that started the query, to be read with `.table()`
    or `.rows()`.

    Sinks of one name share their rows, so `tg.sinks.memory("clicks").table()` reads them anywhere
    in the process; without a name it gets one of its own. A query that starts afresh (another
    checkpoint) takes over the name. Rows are kept until `.clear()`, and lost with the process: a
    query that is restarted in a new process has only the batches since then.
    """
    return Memory(uuid.uuid4().hex if name is None else name)

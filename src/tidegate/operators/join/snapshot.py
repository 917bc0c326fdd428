"""Snapshot of a join: what a flush writes, and how a join is restored from it.

It is a module of its own because it imports the operator, as `operators.snapshot` does for
aggregates.
"""

from __future__ import annotations

import base64
from typing import Any

import pyarrow as pa

from tidegate.errors import CorruptStateError
from tidegate.operators.aggregate.migration import check_same
from tidegate.operators.join.operator import WindowedJoin

FORMAT = 3


def save(operator: WindowedJoin) -> dict[str, Any]:
    """Write what changed since the last flush, and return the document to restore from."""
    return {
        "format": FORMAT,
        "kind": "join",
        "spec": operator.declared.to_dict(),
        "op_columns": [side.op_column for side in operator.sides],
        "progress": operator.progress.to_json(),
        "watermark_tracker": operator.watermark_tracker.save(),
        "schemas": [_written(side.schema) for side in operator.sides],
        "sides": [side.save() for side in operator.sides],
        "held": operator.emitter.save(),
        "matching": operator.matching.save(),
    }


def release(operator: WindowedJoin) -> None:
    """Free the memory of what the store can read again."""
    for side in operator.sides:
        side.ingest.ids.release()
        side.buffer.release()


def restore(operator: WindowedJoin, document: dict[str, Any], *, counts: int = 0) -> None:
    """Continue from the last flush; `counts` of the time since then is silence of sources."""
    if document.get("kind") == "join" and document.get("format") != FORMAT:
        raise CorruptStateError(
            f"state of a join of format {document.get('format')!r} cannot be read; this version"
            f" reads format {FORMAT}"
        )
    check_same(document["spec"], operator.declared.to_dict())
    operator.progress.restore(document["progress"])
    operator.watermark_tracker.restore(document["watermark_tracker"], counts=counts)
    for side, schema, saved, op_column in zip(
        operator.sides, document["schemas"], document["sides"], document["op_columns"], strict=True
    ):
        side.op_column = op_column
        side.shared = operator.progress
        side.progress.counters = operator.progress.counters
        side.restore(saved, _read(schema))
    operator.emitter.counters = operator.progress.counters
    operator.emitter.restore(document["held"])
    operator.matching.restore(document["matching"])
    operator.name_columns()


def _written(schema: pa.Schema | None) -> str | None:
    return None if schema is None else base64.b64encode(schema.serialize().to_pybytes()).decode()


def _read(text: str | None) -> pa.Schema | None:
    return None if text is None else pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))

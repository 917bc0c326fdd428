"""Snapshots of operators: saved at a flush, restored by an operator of the same specification."""

from __future__ import annotations

import base64
import dataclasses
from typing import Any

import pyarrow as pa

from tidegate.errors import CorruptStateError
from tidegate.operators.aggregate import migration
from tidegate.operators.aggregate.operator import WindowedAggregate
from tidegate.operators.chain import Operator
from tidegate.operators.join import snapshot as join_stored
from tidegate.operators.join.operator import WindowedJoin

FORMAT = 4
_READABLE = (2, 3, 4)
"""Format 2 knew of no migrations, format 3 of no frames in the order of their keys; they are the
same otherwise.
"""
NAME = "operator"
"""The name of the snapshot's document in the store."""


def save(operator: Operator) -> None:
    """Write the changes since the last flush; the commit of the store makes them durable."""
    if isinstance(operator, WindowedJoin):
        operator.store.put_json(NAME, join_stored.save(operator))
        return
    document: dict[str, Any] = {
        "format": FORMAT,
        "spec": operator.declared.to_dict(),
        "followed_lateness": operator.spec.allowed_lateness if operator.takes_panes else None,
        "progress": operator.progress.to_json(),
        "panes_from": sorted(operator.panes_from),
        "merging": None if operator.merging is None else operator.merging.save(),
        "watermark_tracker": operator.watermark_tracker.save(),
        "keys": None if operator.keys is None else operator.keys.save(),
        "marks": operator.marks.marks,
        "ids": operator.ids.save(),
        "metadata": None if operator.metadata is None else operator.metadata.save(),
        "rebuild": None if operator.rebuild is None else operator.rebuild.save(),
        "schema": None,
        "migrated": None,
    }
    wiring = operator.wiring
    if wiring is not None:
        document["schema"] = base64.b64encode(
            wiring.context.schema.serialize().to_pybytes()
        ).decode()
        migrated = migration.Migrated.of(wiring.context)
        document["migrated"] = None if migrated is None else migrated.to_json()
        document["cells"] = wiring.context.cells.save()
        document["retention"] = wiring.retention.save()
        document["ordinals"] = wiring.ordinals.save()
        document["open"] = None if wiring.slice_buffer is None else wiring.slice_buffer.save()
        document["static"] = None if wiring.static is None else wiring.static.save()
        document["messages"] = (
            wiring.context.messages is not None and wiring.context.messages.count > 0
        )
        if wiring.context.messages is not None:
            wiring.context.messages.flush()
    operator.store.put_json(NAME, document)


def release(operator: Operator) -> None:
    """Release cells, slices and ids that the store can load again: state may exceed memory."""
    if isinstance(operator, WindowedJoin):
        if operator.store.spills:
            join_stored.release(operator)
        return
    if not operator.store.spills or operator.wiring is None:
        return
    operator.ids.release()
    operator.wiring.context.cells.release()
    if operator.wiring.slice_buffer is not None:
        operator.wiring.slice_buffer.slices.release()


def restore(operator: Operator, *, counts: int = 0) -> bool:
    """Restore the last snapshot; False if the store has none.

    The time since the snapshot counts as silence of the sources up to `counts` microseconds.
    """
    document = operator.store.get_json(NAME)
    if document is None:
        return False
    if isinstance(operator, WindowedJoin):
        join_stored.restore(operator, document, counts=counts)
        return True
    if document.get("format") not in _READABLE:
        raise CorruptStateError(
            f"state of format {document.get('format')!r} cannot be read; this version reads formats"
            f" {_READABLE[0]} to {FORMAT}"
        )
    changed = migration.changes(document["spec"], operator.declared.to_dict())
    if document["followed_lateness"] is not None:
        fed = document.get("panes_from", range(len(operator.spec.inputs)))
        operator.take_panes(
            max(document["followed_lateness"], operator.declared.allowed_lateness), fed
        )
    if operator.merging is not None and document["merging"] is not None:
        operator.merging.restore(document["merging"])
    operator.progress.restore(document["progress"])
    operator.watermark_tracker.restore(document["watermark_tracker"], counts=counts)
    if operator.keys is not None:
        operator.keys.restore(document["keys"])
    operator.marks.marks = dict(document["marks"])
    operator.ids.restore(document["ids"])
    if operator.metadata is not None and document["metadata"] is not None:
        operator.metadata.restore(document["metadata"])
    if operator.rebuild is not None and document["rebuild"] is not None:
        operator.rebuild.restore(document["rebuild"])
    if document["schema"] is not None:
        _restore_parts(operator, document, changed)
    return True


def _restore_parts(
    operator: WindowedAggregate, document: dict[str, Any], changed: migration.Changes
) -> None:
    schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(document["schema"])))
    migrated = _migrated(operator, document, changed, schema)
    operator.bind(migration.with_columns(changed, operator.spec, schema))
    wiring = operator.bound()
    if migrated is not None:
        wiring.migrate(migrated.recent, migrated.expired_at_migration)
    wiring.context.cells.restore(document["cells"], wiring.context.migrated)
    wiring.retention.restore(document["retention"])
    wiring.ordinals.restore(document["ordinals"])
    if wiring.slice_buffer is not None:
        wiring.slice_buffer.restore(document["open"], wiring.context.migrated)
    if wiring.static is not None:
        wiring.static.restore(document["static"])
    messages = wiring.context.messages
    if messages is not None and document["messages"] and messages.count == 0:
        operator.lose_messages()


def _migrated(
    operator: WindowedAggregate,
    document: dict[str, Any],
    changed: migration.Changes,
    schema: pa.Schema,
) -> migration.Migrated | None:
    """The former migrations of the stored state, with the current changes."""
    former = document.get("migrated")
    if document["followed_lateness"] is not None and changed.former_lateness is not None:
        # The lateness of an upstream may have been the longer one before, too.
        stayed = document["followed_lateness"] >= operator.spec.allowed_lateness
        changed = dataclasses.replace(
            changed, former_lateness=None if stayed else document["followed_lateness"]
        )
    return migration.followed(
        changed,
        None if former is None else migration.Migrated.from_json(former),
        operator.spec,
        schema,
        watermark=operator.progress.watermark,
        retracts=operator.takes_panes,
        has_messages=document["messages"],
    )

"""Snapshots of operators: saved at a flush, restored by an operator of the same specification."""

from __future__ import annotations

import base64
import dataclasses
from typing import Any

import pyarrow as pa

from tidegate.errors import CorruptStateError
from tidegate.operators.aggregate import migration
from tidegate.operators.aggregate.operator import WindowedAggregate
from tidegate.operators.aggregate.wiring import Wiring
from tidegate.operators.chain import Operator
from tidegate.operators.join import snapshot as join_stored
from tidegate.operators.join.operator import WindowedJoin
from tidegate.state.damage import damage_in

FORMAT = 2
NAME = "operator"
"""The name of the snapshot's document in the store."""


def save(operator: Operator) -> None:
    """Write the changes since the last flush; the commit of the store makes them durable."""
    if isinstance(operator, WindowedJoin):
        operator.store.put_json(NAME, join_stored.save(operator))
        return
    document: dict[str, Any] = {
        "format": FORMAT,
        "spec": operator.declared_document,
        "followed_lateness": operator.spec.lateness if operator.panes_from else None,
        "retracts": operator.takes_retractions,
        "progress": operator.progress.to_json(),
        "panes_from": sorted(operator.panes_from),
        "merging": None if operator.merging is None else operator.merging.save(),
        "watermark_tracker": operator.watermark_tracker.save(),
        "keys": None if operator.keys is None else operator.keys.save(),
        "marks": operator.marks.marks,
        "leaving": operator.marks.leaving,
        "ids": operator.ids.save(),
        "window_offsets": None
        if operator.window_offsets is None
        else operator.window_offsets.save(),
        "recovery": None if operator.recovery is None else operator.recovery.save(),
        "schema": None,
        "migrated": None,
    }
    if operator.wiring is not None:
        document.update(_saved_wiring(operator.wiring))
    operator.store.put_json(NAME, document)


def _saved_wiring(wiring: Wiring) -> dict[str, Any]:
    """The part of a snapshot that depends on the schema of the input."""
    context, slices, static = wiring.context, wiring.slice_buffer, wiring.static_windows
    migrated = migration.Migrated.of(context)
    if context.messages is not None:
        context.messages.flush()
    return {
        "schema": base64.b64encode(context.schema.serialize().to_pybytes()).decode(),
        "migrated": None if migrated is None else migrated.to_json(),
        "cells": context.cells.save(),
        "retention": wiring.retention.save(),
        "ordinals": wiring.ordinals.save(),
        "slices": None if slices is None else slices.save(),
        "withdrawn": None if context.withdrawn is None else context.withdrawn.save(),
        "static_windows": None if static is None else static.save(),
        "keeps_messages": context.messages is not None,
        "messages": context.messages is not None and context.messages.count > 0,
    }


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
    with damage_in("the stored state of the operator"):
        if isinstance(operator, WindowedJoin):
            join_stored.restore(operator, document, counts=counts)
        else:
            _restore_aggregate(operator, document, counts)
    return True


def _restore_aggregate(operator: WindowedAggregate, document: dict[str, Any], counts: int) -> None:
    if document.get("format") != FORMAT:
        raise CorruptStateError(
            f"state of format {document.get('format')!r} cannot be read; this version reads"
            f" format {FORMAT}"
        )
    changed = migration.changes(document["spec"], operator.declared.to_dict())
    if document["followed_lateness"] is not None:
        lateness = max(document["followed_lateness"], operator.declared.lateness)
        operator.take_panes(lateness, document["panes_from"], retracts=document["retracts"])
    if operator.merging is not None and document["merging"] is not None:
        operator.merging.restore(document["merging"])
    operator.progress.restore(document["progress"])
    operator.watermark_tracker.restore(document["watermark_tracker"], counts=counts)
    if operator.keys is not None:
        operator.keys.restore(document["keys"])
    operator.marks.marks = dict(document["marks"])
    operator.marks.leaving = dict(document.get("leaving", {}))
    operator.ids.restore(document["ids"])
    if operator.window_offsets is not None and document["window_offsets"] is not None:
        operator.window_offsets.restore(document["window_offsets"])
    if operator.recovery is not None and document["recovery"] is not None:
        operator.recovery.restore(document["recovery"])
    if document["schema"] is not None:
        _restore_wiring(operator, document, changed)


def _restore_wiring(
    operator: WindowedAggregate, document: dict[str, Any], changed: migration.Changes
) -> None:
    schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(document["schema"])))
    migrated = _migrated(operator, document, changed, schema)
    operator.bind(
        migration.with_columns(changed, operator.spec, schema),
        keeps_messages=document["keeps_messages"],
    )
    wiring = operator.bound()
    if migrated is not None:
        wiring.migrate(migrated.recent, migrated.expired_at_migration)
    wiring.context.cells.restore(document["cells"], wiring.context.migrated)
    wiring.retention.restore(document["retention"], changed.former_retention)
    wiring.ordinals.restore(document["ordinals"])
    if wiring.context.withdrawn is not None:
        wiring.context.withdrawn.restore(document["withdrawn"])
    if wiring.slice_buffer is not None:
        wiring.slice_buffer.restore(document["slices"], wiring.context.migrated)
    if wiring.static_windows is not None:
        wiring.static_windows.restore(document["static_windows"])
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
    former = document["migrated"]
    if document["followed_lateness"] is not None and changed.former_lateness is not None:
        # The lateness of an upstream may have been the longer one before, too.
        stayed = document["followed_lateness"] >= operator.spec.lateness
        changed = dataclasses.replace(
            changed, former_lateness=None if stayed else document["followed_lateness"]
        )
    return migration.followed(
        changed,
        None if former is None else migration.Migrated.from_json(former),
        operator.spec,
        schema,
        watermark=operator.progress.watermark,
        retracts=operator.takes_retractions,
        keeps_messages=document["keeps_messages"],
        has_messages=document["messages"],
    )

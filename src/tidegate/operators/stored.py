"""Stored state: what an operator writes at a flush, and how another one continues from it."""

from __future__ import annotations

import base64
from typing import Any

import pyarrow as pa

from tidegate.errors import CorruptStateError, SpecMismatchError
from tidegate.operators.aggregate import WindowedAggregate

FORMAT = 2
_NAME = "operator"


def save(operator: WindowedAggregate) -> None:
    """Write what changed since the last flush; it becomes durable with the store's commit."""
    document: dict[str, Any] = {
        "format": FORMAT,
        "spec": operator.declared.to_dict(),
        "followed_lateness": operator.spec.allowed_lateness if operator.takes_panes else None,
        "progress": operator.progress.to_json(),
        "intake": operator.intake.save(),
        "keys": None if operator.keys is None else operator.keys.save(),
        "marks": operator.marks.marks,
        "ids": operator.ids.save(),
        "metadata": None if operator.metadata is None else operator.metadata.save(),
        "rebuild": None if operator.rebuild is None else operator.rebuild.save(),
        "schema": None,
    }
    parts = operator.parts
    if parts is not None:
        document["schema"] = base64.b64encode(parts.core.schema.serialize().to_pybytes()).decode()
        document["cells"] = parts.core.cells.save()
        document["horizons"] = parts.horizons.save()
        document["ordinals"] = parts.ordinals.save()
        document["open"] = None if parts.open_windows is None else parts.open_windows.save()
        document["static"] = None if parts.static is None else parts.static.save()
        document["messages"] = parts.core.messages is not None and parts.core.messages.count > 0
        if parts.core.messages is not None:
            parts.core.messages.flush()
    operator.store.put_json(_NAME, document)


def release(operator: WindowedAggregate) -> None:
    """Let go of the frames of cells, slices and ids, which the store can give back, so that these may be larger than memory."""
    if not operator.store.spills or operator.parts is None:
        return
    operator.ids.release()
    operator.parts.core.cells.release()
    if operator.parts.open_windows is not None:
        operator.parts.open_windows.slices.release()


def restore(operator: WindowedAggregate) -> bool:
    """Continue from the last flush; False where the store holds no operator."""
    document = operator.store.get_json(_NAME)
    if document is None:
        return False
    if document.get("format") != FORMAT:
        raise CorruptStateError(f"state of format {document.get('format')!r} cannot be read; this version reads format {FORMAT}")
    check_same(document["spec"], operator.declared.to_dict())
    if document["followed_lateness"] is not None:
        operator.take_panes(document["followed_lateness"])
    operator.progress.restore(document["progress"])
    operator.intake.restore(document["intake"])
    if operator.keys is not None:
        operator.keys.restore(document["keys"])
    operator.marks.marks = dict(document["marks"])
    operator.ids.restore(document["ids"])
    if operator.metadata is not None and document["metadata"] is not None:
        operator.metadata.restore(document["metadata"])
    if operator.rebuild is not None and document["rebuild"] is not None:
        operator.rebuild.restore(document["rebuild"])
    if document["schema"] is not None:
        _restore_parts(operator, document)
    return True


def _restore_parts(operator: WindowedAggregate, document: dict[str, Any]) -> None:
    operator.bind(pa.ipc.read_schema(pa.py_buffer(base64.b64decode(document["schema"]))))
    parts = operator.bound()
    parts.core.cells.restore(document["cells"])
    parts.horizons.restore(document["horizons"])
    parts.ordinals.restore(document["ordinals"])
    if parts.open_windows is not None:
        parts.open_windows.restore(document["open"])
    if parts.static is not None:
        parts.static.restore(document["static"])
    messages = parts.core.messages
    if messages is not None and document["messages"] and messages.count == 0:
        operator.lose_messages()


def check_same(stored: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Refuse state that was written under another specification, and say what differs."""
    differences = _differences("", stored, wanted)
    if differences:
        told = "; ".join(differences)
        raise SpecMismatchError(f"the stored state belongs to another specification: {told}. Hint: use a new store, or the old specification")


def _differences(path: str, stored: Any, wanted: Any) -> list[str]:
    if isinstance(stored, dict) and isinstance(wanted, dict):
        names = sorted({*stored, *wanted})
        return [d for name in names for d in _differences(f"{path}.{name}" if path else name, stored.get(name), wanted.get(name))]
    return [] if stored == wanted else [f"`{path}` was {stored!r} and is now {wanted!r}"]

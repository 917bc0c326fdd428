"""The operators of a shard, restored from its stored state for reading."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from tidegate.errors import SpecError, StateError
from tidegate.operators import snapshot
from tidegate.operators.aggregate.operator import WindowedAggregate
from tidegate.operators.chain import Operator
from tidegate.operators.join.operator import WindowedJoin
from tidegate.spec.from_document import input_from_dict, spec_from_dict
from tidegate.spec.join import JoinSpec, Upstream
from tidegate.spec.operator import Input
from tidegate.state.store import PrefixedStore, Store


def restore_operators(store: Store, specs: Sequence[Upstream] | None) -> list[Operator]:
    """The operators of a chain.

    Without `specs`, those of the pipeline, the specifications are read from the state.
    """
    chain = store.get_json("chain")
    return [
        _operator(
            PrefixedStore(store, f"{number}/"),
            None if specs is None else specs[number],
            chain["now"],
            is_fed=number > 0 or bool(chain["upstream_shards"]),
        )
        for number in range(chain["operators"])
    ]


def _operator(store: Store, given: Upstream | None, now: int, *, is_fed: bool) -> Operator:
    document = store.get_json(snapshot.NAME)
    spec = _from_state(document["spec"]) if given is None else _fed(given, document["spec"])
    if given is None:
        # The text of a condition differs from the function that takes its place.
        store.put_json(snapshot.NAME, {**document, "spec": spec.to_dict()})
    operator: Operator = (
        WindowedJoin(spec, store, now=now)
        if isinstance(spec, JoinSpec)
        else WindowedAggregate(spec, store, now=now)
    )
    snapshot.restore(operator)
    operator.is_fed = is_fed
    return operator


def _from_state(document: dict[str, Any]) -> Upstream:
    try:
        return spec_from_dict(document)
    except SpecError as reason:
        raise StateError(
            f"the specification in the checkpoint is not enough to read the state: {reason}. Hint:"
            " tg.state(checkpoint, pipeline=panes), or query.state()"
        ) from reason


def _fed(given: Upstream, document: dict[str, Any]) -> Upstream:
    """The specification of the pipeline, with the watermarks that other chains provide."""
    if isinstance(given, JoinSpec):
        sides = document["join"]
        left, right = (_input(given.left, sides["left"]), _input(given.right, sides["right"]))
        return dataclasses.replace(given, left=left, right=right)
    first, *others = (
        _input(one, stored)
        for one, stored in zip(
            given.inputs, [document["input"], *document.get("also", ())], strict=True
        )
    )
    return dataclasses.replace(given, input=first, also=tuple(others))


def _input(given: Input, document: dict[str, Any]) -> Input:
    return given if given.to_dict() == document else input_from_dict(document)

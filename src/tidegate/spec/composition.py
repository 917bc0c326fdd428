"""Composition: what an operator passes to the next one, and which chains have an answer.

Operators exchange changes. For every key and window, an operator passes on the value of the window
so far, after a retraction of the value that it replaces; a window without rows is retracted only.
The mode of a specification decides what the readers of that operator see, not what it passes on.
"""

from __future__ import annotations

import dataclasses
from typing import TypeVar

from tidegate.spec.join import Upstream
from tidegate.spec.operator import AggregateSpec

Spec = TypeVar("Spec", bound=Upstream)


def exchanged(spec: Spec) -> Spec:
    """The specification of an operator that feeds another one: it retracts what it replaces."""
    if isinstance(spec, AggregateSpec) and spec.mode != "retracting":
        return dataclasses.replace(spec, mode="retracting")
    return spec

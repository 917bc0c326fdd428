"""Extension point of the scenario runner: further kinds and words for scenario files.

The package `conformance` uses it for the scenarios of other systems. An extension belongs to the
scenarios that were parsed with it, so files with and without one can run in the same process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidegate.scenarios.document import Scenario
    from tidegate.scenarios.runtimes import Runtime
    from tidegate.scenarios.trigger_words import ParsedTrigger, TriggerReader, TriggerWord


@dataclass(frozen=True)
class Kind:
    """The code that runs scenarios of one kind."""

    run: Callable[[Scenario], None]
    """Runs a scenario in this process; raises what it finds."""
    on: Callable[[Scenario, Runtime], None] | None = None
    """Runs it with operators of a runtime; None where no operator is involved."""


def _our_notation(text: str, reader: TriggerReader) -> ParsedTrigger | None:  # noqa: ARG001
    return None


def _as_written(scenario: Scenario) -> Scenario:
    return scenario


@dataclass(frozen=True)
class Extension:
    """Kinds and words beside ours; an entry replaces ours of the same name."""

    kinds: Mapping[str, Kind] = field(default_factory=dict)
    triggers: Mapping[str, TriggerWord] = field(default_factory=dict)
    """Trigger words by name, for any place in a trigger expression."""
    trigger_text: Callable[[str, TriggerReader], ParsedTrigger | None] = _our_notation
    """Reads a whole trigger text in another notation; None where it is in ours."""
    prepare: Callable[[Scenario], Scenario] = _as_written
    """Rewrites a scenario in words of ours before it runs."""


NO_EXTENSION = Extension()

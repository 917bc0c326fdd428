"""Joins of Flink's SQL, which clean up lazily and pad unmatched rows when they clean up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tidegate.instants import saturating_add
from tidegate.scenarios.document import Scenario, UnsupportedScenarioError
from tidegate.scenarios.join_adapter import Pair
from tidegate.scenarios.joins import JoinTimeline, run_join
from tidegate.scenarios.runtimes import EMBEDDED, Runtime
from tidegate.scenarios.ticks import Ticks, ticks_of
from tidegate.spec.join import LEFT, RIGHT

_INTERVAL = "min_cleanup_interval"
_SQL = "flink.sqljoin."


def run_join_of_any_system(scenario: Scenario, runtime: Runtime = EMBEDDED) -> None:
    """The kind `join` with the further config key `min_cleanup_interval`."""
    scenario = _however_late(scenario)
    if _INTERVAL not in scenario.config:
        run_join(scenario, runtime)
        return
    ticks = ticks_of(scenario)
    interval = ticks(scenario.config[_INTERVAL])
    ours = without_cleanup(scenario)
    LazyJoinTimeline(ours, ticks, runtime, interval).run(ours)


def without_cleanup(scenario: Scenario) -> Scenario:
    """The scenario in our words."""
    ours = _however_late(scenario)
    config = {name: value for name, value in ours.config.items() if name != _INTERVAL}
    return replace(ours, config=config)


def _however_late(scenario: Scenario) -> Scenario:
    """Flink's joins in SQL take rows however late they are."""
    if not scenario.id.startswith(_SQL) and _INTERVAL not in scenario.config:
        return scenario
    return replace(scenario, config={"allowed_lateness": "+inf", **scenario.config})


class LazyJoinTimeline(JoinTimeline):
    """A timeline in which padded pairs may come out up to `interval` later than ours do."""

    def __init__(self, scenario: Scenario, ticks: Ticks, runtime: Runtime, interval: int) -> None:
        super().__init__(scenario, ticks, runtime)
        if not isinstance(self._terms.window, tuple):
            raise UnsupportedScenarioError(
                "`min_cleanup_interval` is understood for joins with `match`"
            )
        self._interval, self._bound = interval, self._terms.window[0]

    def _add_pairs(self, pairs: list[Pair]) -> None:
        """Add pairs; a lazy system need not retract what it has not padded yet."""
        for pair in pairs:
            padded = next(
                (
                    p
                    for p in self._fresh
                    if (p.left, p.right) == (pair.left, pair.right) and self._may_wait(p)
                ),
                None,
            )
            if pair.retract and padded is not None:
                self._fresh.remove(padded)
            else:
                self._fresh.append(pair)

    def _unexpected(self, pairs: list[Pair]) -> list[Pair]:
        self._fresh = [pair for pair in pairs if self._may_wait(pair)]
        return [pair for pair in pairs if not self._may_wait(pair)]

    def _buffer(self, expected: Any) -> None:  # noqa: ARG002 - the signature of the base
        raise UnsupportedScenarioError("what a join that cleans lazily still keeps is not ours")

    def _may_wait(self, pair: Pair) -> bool:
        """Whether a system that pads when it cleans up need not have put out yet what is padded
        here at the watermark.
        """
        if (
            pair.retract
            or pair.timing != "on_time"
            or (pair.left is not None and pair.right is not None)
        ):
            return False
        bound = self._bound
        side = LEFT if pair.right is None else RIGHT
        reach = bound.high if side == RIGHT else None if bound.low is None else -bound.low
        message = pair.message(side)
        if reach is None or message is None:
            return False
        # Its timer is at the first instant after the interval, and a watermark passes it only
        # beyond.
        last = int(
            saturating_add(self._ticks(message["t"]), reach + self._interval + self._ticks(1))
        )
        return self._marks[1 - side] <= last

"""Firings tell which windows a watermark completes, where a scenario speaks of watermarks and only
asks for windows beside them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tidegate.instants import MAX, MIN
from tidegate.scenarios.aggregate_adapter import AggregateUnderTest
from tidegate.scenarios.document import UnsupportedScenarioError, mapping
from tidegate.scenarios.settings import OperatorSettings
from tidegate.scenarios.ticks import Ticks
from tidegate.spec.triggers import AfterWatermark
from tidegate.spec.windows import Tumbling

_MOST = 10_000


class Firings:
    """An operator with one event in each tumbling window that the watermarks of a scenario can
    reach.
    """

    def __init__(self, size: int, watermarks: Iterable[int]) -> None:
        ends = [value for value in watermarks if value not in (MIN, MAX)]
        starts = range((min(ends) - 1) // size * size, max(ends) + 1, size) if ends else range(0)
        if len(starts) > _MOST:
            raise UnsupportedScenarioError(
                f"the watermarks pass {len(starts)} windows, which is too many to look at"
            )
        settings = OperatorSettings(
            Tumbling(size),
            AfterWatermark(),
            "accumulating",
            0,
            "count",
            options={"future_tolerance": MAX},
        )
        events = [{"t": start, "v": 1} for start in starts]
        self._operated = AggregateUnderTest(settings, events, Ticks("tick", 1))
        self._operated.add(events)

    def upto(self, watermark: int) -> list[tuple[int, int]]:
        """The windows that are complete now and were not before."""
        self._operated.advance_watermark(watermark)
        return sorted(pane.window for pane in self._operated.take()[0])


def window_size(config: dict[str, Any], fires: list[Any], ticks: Ticks) -> int:
    """The window size of the config, or that of the first window that fires."""
    if "window" in config:
        window = mapping("`window`", config["window"])
        if window.get("type") != "fixed" or window.keys() != {"type", "size"}:
            raise UnsupportedScenarioError(
                f"`fires` is understood for plain fixed windows, got `{window}`"
            )
        return ticks(window["size"])
    if not all(isinstance(windows, list) for windows in fires):
        raise UnsupportedScenarioError(f"`fires` must be a list of windows, got `{fires}`")
    named = [window for windows in fires for window in windows]
    if not named:
        raise UnsupportedScenarioError(
            "`fires` needs a `window` in the config, or a window that fires"
        )
    start, end = named[0]
    return ticks(end) - ticks(start)

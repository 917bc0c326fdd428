"""How the cost grows with each factor: a table, and a picture of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.scaling.operators import growth_settings, measure, scaled
from bench.scaling.samples import OPERATOR, STATE, Sample
from bench.scaling.spark_runs import CORES, TASKS_AND_SHARDS
from bench.scaling.spark_runs import measure as measure_spark
from tidegate.errors import MissingExtraError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TITLES = {
    "keys": "keys (one million rows)",
    "hot": "share of one key",
    "late": "share of late rows",
    "firings": "early panes per window",
    "tasks and shards": "tasks + shards on Spark",
    "cores": "cores on Spark",
}
"""The factors in the order of the table."""
SHARES = ("hot", "late")
"""Factors whose values are percentages."""


def samples(share: float, memory: str, *, embedded: bool) -> Iterator[Sample]:
    """The samples of all factors, or of those without Spark."""
    for factor, value, setting in growth_settings():
        yield together(measure(scaled(setting, share), factor, value))
    if embedded:
        return
    equal = [one for one in TASKS_AND_SHARDS if one.tasks == one.shards]
    yield from measure_spark([replace(one, factor="tasks and shards") for one in equal], memory)
    for layout in CORES:
        yield from measure_spark([layout], memory)


def together(found: Sequence[Sample]) -> Sample:
    """The cost of an operator with that of saving its state."""
    (operator,) = (sample for sample in found if sample.part == OPERATOR)
    seconds = sum(sample.seconds for sample in found if sample.part in (OPERATOR, STATE))
    return Sample(OPERATOR, operator.factor, operator.value, seconds, operator.counts)


HEAD = f"{'factor':<18}{'value':>12}{'µs/event':>11}{'events/s of a core':>20}{'s/batch':>10}"


def line(sample: Sample) -> str:
    """A sample as a line of the table; wall seconds for Spark."""
    micro = sample.microseconds_per_row
    wall = "" if sample.wall is None else f"{sample.wall:.2f}"
    return f"{sample.factor:<18}{label(sample):>12}{micro:>11.3f}{1e6 / micro:>20,.0f}{wall:>10}"


def label(sample: Sample) -> str:
    """The value of the factor as text."""
    return f"{sample.value:.0%}" if sample.factor in SHARES else f"{sample.value:,.0f}"


def draw(found: Sequence[Sample], path: Path) -> None:
    """Draw a picture with a plot for each factor."""
    try:
        import matplotlib as mpl
    except ImportError:
        raise MissingExtraError("matplotlib", "plot", "a picture") from None
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    # Text as text, and the same file from the same numbers.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "tidegate"}):
        figure, axes = plt.subplots(2, 3, figsize=(11, 5.5))
        for (factor, title), plot in zip(TITLES.items(), axes.flat, strict=True):
            _draw_factor(plot, title, [one for one in found if one.factor == factor])
        figure.tight_layout()
        path.parent.mkdir(parents=True, exist_ok=True)
        metadata: dict[str, Any] = {"Date": None} if path.suffix == ".svg" else {}
        figure.savefig(path, metadata=metadata)
        plt.close(figure)


def _draw_factor(plot: Axes, title: str, found: Sequence[Sample]) -> None:
    plot.set_title(title, fontsize=10)
    is_spark = bool(found) and found[0].wall is not None
    costs = [one.wall if one.wall is not None else one.microseconds_per_row for one in found]
    # Values lie far apart: they have equal distances, and their labels.
    plot.plot(range(len(found)), costs, marker="o", color="#0b7285")
    labels = [label(one).replace(",000", "k").replace("kk", "M") for one in found]
    plot.set_xticks(range(len(found)), labels, fontsize=8)
    plot.set_ylim(0, 1.1 * max(costs, default=1.0))
    plot.set_ylabel("seconds per batch" if is_spark else "µs per event", fontsize=8)
    plot.tick_params(axis="y", labelsize=8)
    plot.spines[["top", "right"]].set_visible(False)

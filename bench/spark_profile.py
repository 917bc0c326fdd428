"""Profiles Tidegate in Spark's Python workers with cProfile: the edge, and the operator with sinks.

The classes that the planner uses are replaced by profiled subclasses before a query starts, so the
library needs no hook for it.
"""

from __future__ import annotations

import cProfile
import io
import os
import pstats
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from pyspark import TaskContext

from tidegate.spark.plan import dataflow as plan
from tidegate.spark.tasks.edge import Edge
from tidegate.spark.tasks.processor import ChainProcessor

FOLDER = "TIDEGATE_BENCH_PROFILE"
"""Environment variable with the folder for the profiles; workers inherit it."""
Item = TypeVar("Item")
_profiles: dict[str, cProfile.Profile] = {}


def profiled(part: str, items: Iterator[Item]) -> Iterator[Item]:
    """The same items; their cost is added to the profile of this part and process.

    The first batch is not profiled: most of it is imports.
    """
    context = TaskContext.get()
    if context is not None and context.getLocalProperty("streaming.sql.batchId") == "0":
        yield from items
        return
    profile = _profiles.setdefault(part, cProfile.Profile())
    nothing: Any = object()
    while (item := profile.runcall(next, items, nothing)) is not nothing:
        yield item
    profile.dump_stats(Path(os.environ[FOLDER]) / f"{part}-{os.getpid()}")


class ProfiledEdge(Edge):
    """A profiled edge."""

    def pack(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
        return profiled("edge", super().pack(*args, **kwargs))


class ProfiledOperate(ChainProcessor):
    """A profiled operator."""

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        return profiled("operator", super().handleInputRows(key, rows, timerValues))


def install(folder: Path) -> None:
    """Profile all queries of this process. To be called before the session starts."""
    os.environ[FOLDER] = str(folder)
    setattr(plan, "Edge", ProfiledEdge)  # noqa: B010 - mypy rejects assigning to a class
    setattr(plan, "ChainProcessor", ProfiledOperate)  # noqa: B010


def report(folder: Path, lines: int = 25) -> str:
    """The most expensive functions of each part."""
    found = io.StringIO()
    for part in ("edge", "operator"):
        dumps = sorted(str(path) for path in folder.glob(f"{part}-*"))
        if not dumps:
            continue
        for order in ("cumulative", "tottime"):
            found.write(f"\n== {part}, by {order}, {len(dumps)} processes ==\n")
            pstats.Stats(*dumps, stream=found).strip_dirs().sort_stats(order).print_stats(lines)
    return found.getvalue()

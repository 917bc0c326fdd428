"""Profiles of what Tidegate does in Spark's Python workers: the edge and the operator with its
sinks, each with cProfile, added up.

The classes of the plan are replaced by subclasses of them before a query starts, so nothing of the
library knows of it.
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

from tidegate.spark.plan import planner as plan
from tidegate.spark.tasks.edge import Edge
from tidegate.spark.tasks.processor import Operate

FOLDER = "TIDEGATE_BENCH_PROFILE"
"""The variable that names the folder for the profiles; workers inherit it."""
Item = TypeVar("Item")
_profiles: dict[str, cProfile.Profile] = {}


def profiled(part: str, items: Iterator[Item]) -> Iterator[Item]:
    """The same items; what their making costs is added to the profile of this part and process.

    The first batch is left out: most of it is imports.
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
    """An edge that is watched."""

    def pack(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
        return profiled("edge", super().pack(*args, **kwargs))


class ProfiledOperate(Operate):
    """An operator that is watched."""

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        return profiled("operator", super().handleInputRows(key, rows, timerValues))


def install(folder: Path) -> None:
    """From now on the queries of this process are watched; before the session starts, so that the
    workers know where to write.
    """
    os.environ[FOLDER] = str(folder)
    setattr(plan, "Edge", ProfiledEdge)  # noqa: B010 - a type checker would not have a class replaced
    setattr(plan, "Operate", ProfiledOperate)  # noqa: B010


def report(folder: Path, lines: int = 25) -> str:
    """The functions that took the most time, part by part."""
    found = io.StringIO()
    for part in ("edge", "operator"):
        dumps = sorted(str(path) for path in folder.glob(f"{part}-*"))
        if not dumps:
            continue
        for order in ("cumulative", "tottime"):
            found.write(f"\n== {part}, by {order}, {len(dumps)} processes ==\n")
            pstats.Stats(*dumps, stream=found).strip_dirs().sort_stats(order).print_stats(lines)
    return found.getvalue()

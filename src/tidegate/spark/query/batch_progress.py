"""The progress of a batch query: the finished tasks of its stages, as the driver counts them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.sql import SparkSession

from tidegate.progress_bar import Advance, is_shown, progress_bar

_POLL_SECONDS = 0.25


@contextmanager
def shown_progress(spark: SparkSession) -> Iterator[None]:
    """A progress bar on a terminal while the block runs; Spark Connect has none."""
    context = getattr(spark, "_sc", None)
    if context is None or not is_shown():
        yield
        return
    done = threading.Event()
    with progress_bar("batch query, tasks") as advance:
        thread = threading.Thread(
            target=_follow, args=(context.statusTracker(), advance, done), daemon=True
        )
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()


def _follow(tracker: Any, advance: Advance, done: threading.Event) -> None:
    stages: dict[int, tuple[int, int]] = {}
    while not done.wait(_POLL_SECONDS):
        for stage in tracker.getActiveStageIds():
            found = tracker.getStageInfo(stage)
            if found is not None:
                stages[stage] = (found.numCompletedTasks, found.numTasks)
        if stages:
            advance(
                sum(completed for completed, _ in stages.values()),
                sum(tasks for _, tasks in stages.values()),
            )

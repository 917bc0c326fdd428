"""Garbage collection in Spark's Python workers.

PySpark collects garbage after every task, before the worker accepts the next one. With Arrow,
pandas and Tidegate imported, a collection visits a hundred thousand objects of modules, which are
never garbage. That takes about 60 ms, for which the next stage of a small batch waits.
"""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterator

from pyspark import TaskContext

_frozen_modules = 0
"""The number of modules when objects were last excluded."""


def exclude_modules() -> None:
    """Exclude present objects from collections, in a task, if modules were imported since.

    Only garbage is collected before, so nothing but the objects of modules and of this task stays.
    """
    global _frozen_modules  # noqa: PLW0603 - one state per process
    if TaskContext.get() is None or len(sys.modules) == _frozen_modules:
        return
    gc.collect()
    gc.freeze()
    _frozen_modules = len(sys.modules)


@contextlib.contextmanager
def paused_collections() -> Iterator[None]:
    """No collection inside the block, which creates many objects and no cycles.

    Python looks for cycles after every few hundred new objects. For messages of Kafka, that takes
    more time than receiving them.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()

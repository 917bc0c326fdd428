"""The process that forks Spark's Python workers, with everything imported that they need.

Without it, each worker imports Spark, Arrow and Tidegate on its own, which takes a second of
processor time: four workers on two cores do so before the first batch ends. Spark puts its own
modules on the path as an archive without byte code; where they are installed as well, the byte code
is used. `session` chooses this module for local sessions, in which workers have the same packages
as this process.

Nothing here may start a thread, which a fork would not copy. Arrow starts its own when they are
first needed, except for one of an allocator, which the session turns off.
"""

from __future__ import annotations

import gc
import importlib.util
import sys
from pathlib import Path


def prefer_installed() -> None:
    """Move the archives of Spark's modules behind the installed ones, if they are the same."""
    archives = [path for path in sys.path if path.endswith(".zip") and Path(path).is_file()]
    others = [path for path in sys.path if path not in archives]
    before, sys.path[:] = sys.path[:], others
    found = importlib.util.find_spec("pyspark")
    package = None if found is None or found.origin is None else Path(found.origin).parent
    is_same = package is not None and str(package / "python/lib/pyspark.zip") in archives
    sys.path[:] = [*others, *archives] if is_same else before


def import_all() -> None:
    """Import what workers need, and exclude it from garbage collection."""
    prefer_installed()
    import pandas  # noqa: F401, ICN001 - Spark imports it in every worker
    import pyspark.sql.pandas.serializers
    import pyspark.sql.streaming.proto.StateMessage_pb2
    import pyspark.sql.streaming.stateful_processor_util
    import pyspark.worker  # noqa: F401

    import tidegate.spark.tasks.edge
    import tidegate.spark.tasks.processor  # noqa: F401

    # Workers share the memory of objects that no collection visits.
    gc.collect()
    gc.freeze()


def main() -> None:
    """Fork a worker for every request of Spark."""
    import_all()
    from pyspark.daemon import manager

    manager()


if __name__ == "__main__":
    main()

"""The process that forks Spark's Python workers, with everything imported that they need.

Without it, each worker imports Spark, Arrow and Tidegate on its own, which takes a second of
processor time: four workers on two cores do so before the first batch ends. `session` chooses this
module for local sessions, in which workers have the same packages as this process.

Nothing here may start a thread, which a fork would not copy. Arrow starts its own when they are
first needed, except for one of an allocator, which the session turns off.
"""

from __future__ import annotations

import gc


def import_all() -> None:
    """Import what workers need, and exclude it from garbage collection."""
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

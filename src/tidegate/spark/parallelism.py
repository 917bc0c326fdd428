"""Parallelism: how many tasks a session runs at once."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = "spark.sql.shuffle.partitions"


def parallelism(spark: SparkSession) -> int:
    """The number of tasks that run at once, according to the settings of the session.

    It reads settings only, so it also works through Spark Connect, which has no SparkContext.
    """
    master = spark.conf.get("spark.master", "") or ""
    local = re.fullmatch(r"local(?:\[(\d+|\*)(?:,\s*\d+)?\])?", master)
    if local:
        return local_cores() if local.group(1) == "*" else int(local.group(1) or 1)
    cluster = re.fullmatch(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*\d+\s*\]", master)
    if cluster:
        return int(cluster.group(1)) * int(cluster.group(2))
    total = spark.conf.get("spark.cores.max", "") or spark.conf.get("spark.default.parallelism", "")
    if total:
        return int(total)
    executors = int(spark.conf.get("spark.executor.instances", "") or 0) * int(
        spark.conf.get("spark.executor.cores", "") or 1
    )
    return executors or int(spark.conf.get(PARTITIONS, "200") or 200)


def local_cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

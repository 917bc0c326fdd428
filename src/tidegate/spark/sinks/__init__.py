"""Sinks: where the outputs of a query go; `tg.sinks.parquet("out")` and its like are what
`write(to=, late=, metrics=)` takes.
"""

from tidegate.spark.sinks.base import DriverSink, FrameSink, Sink, Target, TaskSink
from tidegate.spark.sinks.console import console
from tidegate.spark.sinks.delta import delta
from tidegate.spark.sinks.frames import foreach_batch
from tidegate.spark.sinks.kafka import kafka
from tidegate.spark.sinks.memory import memory
from tidegate.spark.sinks.noop import noop
from tidegate.spark.sinks.parquet import parquet
from tidegate.spark.sinks.postgres import postgres
from tidegate.spark.sinks.prometheus import prometheus

__all__ = [
    "DriverSink",
    "FrameSink",
    "Sink",
    "Target",
    "TaskSink",
    "console",
    "delta",
    "foreach_batch",
    "kafka",
    "memory",
    "noop",
    "parquet",
    "postgres",
    "prometheus",
]

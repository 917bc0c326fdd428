"""Sinks for the outputs of a query, the arguments of `write(to=, late=, metrics=)`."""

from tidegate.spark.sinks.base import DriverSink, FrameSink, Sink, SinkTarget, TaskSink
from tidegate.spark.sinks.console import console
from tidegate.spark.sinks.delta import delta
from tidegate.spark.sinks.foreach_batch import foreach_batch
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
    "SinkTarget",
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

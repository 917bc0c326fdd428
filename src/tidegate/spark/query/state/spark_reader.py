"""Reads state through Spark, where the files of the checkpoint cannot be read directly."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tidegate.errors import StateError
from tidegate.spark.query.state.reader import batch_clock

Values = dict[tuple[str, int], tuple[Any, ...]]


class SparkReader:
    """Reads the last committed batch with Spark's state data source; see `reader.StateReader`."""

    def __init__(self, spark: SparkSession, checkpoint: str) -> None:
        self._spark, self._checkpoint = spark, checkpoint
        # Spark 4.1 can read state only after the manager of streaming queries has been used.
        _ = spark.streams.active
        rows = self._collect(
            spark.read.format("state-metadata")
            .load(checkpoint)
            .select("operatorId", "numPartitions", "maxBatchId")
        )
        self._partitions = {int(row.operatorId): int(row.numPartitions) for row in rows}
        self.batch = max(int(row.maxBatchId) for row in rows)
        lines = self._collect(spark.read.text(f"{checkpoint}/offsets/{self.batch}"))
        planned = [row.value for row in lines if row.value.startswith("{")]
        self.clock = batch_clock(json.loads(planned[0]))
        self._metas: dict[int, dict[int, tuple[Any, ...]]] = {}
        self._blobs: dict[int, dict[int, Values]] = {}

    def operators(self) -> list[int]:
        return sorted(self._partitions)

    def partitions(self, operator: int) -> int:
        return self._partitions[operator]

    def meta(self, operator: int, shard: int) -> tuple[Any, ...] | None:
        if operator not in self._metas:
            rows = self._collect(self._variable(operator, "meta").select("key.shard", "value.*"))
            self._metas[operator] = {
                int(row.shard): (row.format, row.summary, bytes(row.document or b""))
                for row in rows
            }
        return self._metas[operator].get(shard)

    def blob(self, operator: int, shard: int, name: str, part: int) -> tuple[Any, ...] | None:
        if operator not in self._blobs:
            columns = ("key.shard", "user_map_key.*", "user_map_value.payload")
            found: dict[int, Values] = defaultdict(dict)
            for row in self._collect(self._variable(operator, "blobs").select(*columns)):
                found[int(row.shard)][row.name, int(row.part)] = (bytes(row.payload),)
            self._blobs[operator] = found
        return self._blobs[operator][shard].get((name, part))

    def _variable(self, operator: int, name: str) -> DataFrame:
        return (
            self._spark.read.format("statestore")
            .option("operatorId", operator)
            .option("batchId", self.batch)
            .option("stateVarName", name)
            .load(self._checkpoint)
        )

    def _collect(self, frame: DataFrame) -> list[Any]:
        try:
            return frame.collect()
        except PySparkException as error:
            reason = str(error).splitlines()[0]
            raise StateError(
                f"the checkpoint {self._checkpoint} cannot be read: {reason}. Hint: pass the folder"
                " of a query that has run a batch"
            ) from error

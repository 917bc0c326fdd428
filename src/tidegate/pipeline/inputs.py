"""Inputs of a pipeline file: folders of files, Kafka topics and the rate source of Spark.

Each is opened as a DataFrame, or read directly.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidegate.errors import InputError, SpecError
from tidegate.redaction import redacted_options
from tidegate.spec.watermarks import Noted, Watched

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FORMATS = ("json", "csv", "text", "binary")
_DIRECT_FORMATS = (*_FORMATS, "avro", "arrow")


_MESSAGE_COLUMNS = {
    "partition": "partition",
    "offset": "offset",
    "timestamp": "kafka_time",
    "key": "kafka_key",
}
"""The parts of Kafka messages, and their columns beside those of the value."""
_SPARK_OFFSETS: dict[int, int | str] = {-1: "latest", -2: "earliest"}
"""The special offsets of Spark's Kafka source."""


@dataclass(frozen=True)
class FileInput:
    """A folder whose new files are read as they arrive."""

    format: str
    # Not in `repr`: the address of an object store may contain a password.
    folder: str = field(repr=False)
    schema: str | None = None
    max_files_per_trigger: int | None = None
    latest_first: bool = False
    glob: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Further options of the Spark reader, under their Spark names; they may contain secrets."""

    def __post_init__(self) -> None:
        most = self.max_files_per_trigger
        if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most <= 0):
            raise SpecError(
                f"`max_files_per_trigger` must be a whole number greater than 0, got {most!r}"
            )
        _flag("latest_first", self.latest_first)
        _texts(folder=self.folder, schema=self.schema, glob=self.glob)
        _mapping(self.options)

    def frame(self, spark: SparkSession) -> DataFrame:
        """The files as a streaming DataFrame; the default schema is that of the existing files."""
        chosen = {
            "maxFilesPerTrigger": self.max_files_per_trigger,
            "latestFirst": self.latest_first or None,
            "pathGlobFilter": self.glob,
        }
        options = {
            name: value for name, value in {**chosen, **self.options}.items() if value is not None
        }
        schema = self.schema if self.schema is not None else self._found_schema(spark)
        return (
            spark.readStream.format(self.format).options(**options).schema(schema).load(self.folder)
        )

    def direct(self, spark: SparkSession) -> Any:
        """The files as a direct source, which bypasses the JVM."""
        chosen = {
            "max_files_per_trigger": self.max_files_per_trigger,
            "latest_first": self.latest_first or None,
        }
        options = {
            name: value for name, value in {**chosen, **self.options}.items() if value is not None
        }
        maker = getattr(import_module("tidegate.spark.sources"), self.format)
        return maker(self.folder, schema=self.schema, glob=self.glob, spark=spark, **options)

    def _found_schema(self, spark: SparkSession) -> Any:
        if "://" not in self.folder and not any(Path(self.folder).glob(self.glob or "*")):
            raise InputError(
                f"the schema of `{self.folder}` cannot be inferred, because it has no files. Hint:"
                " add `schema: user string, ts timestamp`"
            )
        glob = {} if self.glob is None else {"pathGlobFilter": self.glob}
        infer = {"inferSchema": "true"} if self.format == "csv" else {}
        return (
            spark.read.format(self.format)
            .options(**infer, **glob, **self.options)
            .load(self.folder)
            .schema
        )


@dataclass(frozen=True)
class KafkaInput:
    """Messages of Kafka topics.

    `offset` and `partition` (topic and number) are columns beside those of the value.
    """

    bootstrap_servers: str
    topic: str
    format: str = "json"
    schema: str | None = None
    starting: str = "latest"
    max_offsets_per_trigger: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        _texts(
            bootstrap_servers=self.bootstrap_servers,
            topic=self.topic,
            schema=self.schema,
            starting=self.starting,
        )
        if self.format not in _DIRECT_FORMATS:
            raise SpecError(
                f"`format` of kafka is one of {', '.join(_DIRECT_FORMATS)}; got `{self.format}`"
            )
        if self.format not in ("text", "binary") and self.schema is None:
            raise SpecError(
                f"kafka needs a `schema` to read {self.format}. Hint: `schema: user string, ts"
                " timestamp`, or `format: text`"
            )
        _mapping(self.options)

    def frame(self, spark: SparkSession) -> DataFrame:
        """The messages with decoded values.

        An undecodable value becomes nulls, and goes to `late`.
        """
        chosen = {
            "kafka.bootstrap.servers": self.bootstrap_servers,
            "subscribe": self.topic,
            "startingOffsets": self.starting,
            "maxOffsetsPerTrigger": self.max_offsets_per_trigger,
        }
        options = {
            name: value for name, value in {**chosen, **self.options}.items() if value is not None
        }
        rows = spark.readStream.format("kafka").options(**options).load()
        values = {
            "json": f"from_json(cast(value as string), '{self._ddl()}') as value",
            "csv": f"from_csv(cast(value as string), '{self._ddl()}') as value",
            "text": "cast(value as string) as value",
            "binary": "value",
        }
        places = [
            "concat_ws('-', topic, partition) as partition",
            "offset",
            "timestamp as kafka_time",
            "cast(key as string) as kafka_key",
        ]
        found = rows.selectExpr(values[self.format], *places)
        return (
            found.select("value.*", "partition", "offset", "kafka_time", "kafka_key")
            if self.format in ("json", "csv")
            else found
        )

    def direct(self, spark: SparkSession) -> Any:
        """The messages as a direct source, with the same columns; `options` are of librdkafka."""
        from tidegate.spark.sources import kafka

        raw = {"text": "value string", "binary": "value binary"}
        return kafka(
            self.bootstrap_servers,
            self.topic,
            format="raw" if self.format in raw else self.format,  # type: ignore[arg-type]
            schema=raw.get(self.format, self.schema),
            columns=dict(_MESSAGE_COLUMNS),
            starting=_direct_starting(self.starting),
            max_messages_per_trigger=self.max_offsets_per_trigger,
            options=self.options,
            spark=spark,
        )

    def partition_name(self, declared: str) -> str:
        """The name that rows carry for a declared partition: its number, or topic and number."""
        topics = [topic.strip() for topic in self.topic.split(",")]
        if declared.isdecimal() and len(topics) == 1:
            return f"{topics[0]}-{int(declared)}"
        topic, _, number = declared.rpartition("-")
        if topic in topics and number.isdecimal():
            return declared
        hint = f'partitions=["{topics[0]}-0"]' + (", or partitions=3" if len(topics) == 1 else "")
        raise SpecError(
            f"`{declared}` is no partition of {', '.join(f'`{topic}`' for topic in topics)}, which"
            f" are named by topic and number, such as `{topics[0]}-0`. Hint: {hint}"
        )

    def _ddl(self) -> str:
        return (self.schema or "").replace("\\", "\\\\").replace("'", "\\'")


def _direct_starting(text: str) -> str | dict[str, int | str]:
    """Where a direct source begins; offsets as JSON have the form of Spark's source."""
    if not text.lstrip().startswith("{"):
        return text
    try:
        return {
            f"{topic}-{number}": _SPARK_OFFSETS.get(offset, offset)
            for topic, offsets in json.loads(text).items()
            for number, offset in offsets.items()
        }
    except (ValueError, AttributeError, TypeError) as error:
        raise SpecError(
            f'`starting` is no JSON of offsets: {error}. Hint: \'{{"clicks": {{"0": 17}}}}\''
        ) from error


@dataclass(frozen=True)
class RateInput:
    """The rate source of Spark, for experiments: columns `timestamp` and `value`."""

    rows_per_second: int = 1
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if (
            isinstance(self.rows_per_second, bool)
            or not isinstance(self.rows_per_second, int)
            or self.rows_per_second <= 0
        ):
            raise SpecError(
                "`rows_per_second` must be a whole number greater than 0, got"
                f" {self.rows_per_second!r}"
            )
        _mapping(self.options)

    def frame(self, spark: SparkSession) -> DataFrame:
        return (
            spark.readStream.format("rate")
            .options(rowsPerSecond=self.rows_per_second, **self.options)
            .load()
        )


def with_partition_names(
    source: object, stream: Mapping[str, Any], select: Sequence[str]
) -> Mapping[str, Any]:
    """The arguments of `tg.stream` with declared partitions under the names that rows carry.

    A `select` that makes a column `partition` of its own names the partitions itself.
    """
    watermark = stream.get("watermark")
    if (
        not isinstance(source, KafkaInput)
        or not isinstance(watermark, Watched)
        or isinstance(watermark, Noted)
        or stream.get("partition") != "partition"
        or any(re.search(r"\sas\s+`?partition`?\s*$", one, re.IGNORECASE) for one in select)
    ):
        return stream
    declared = tuple(source.partition_name(name) for name in watermark.declared)
    return {**stream, "watermark": dataclasses.replace(watermark, declared=declared)}


InputSource = FileInput | KafkaInput | RateInput


def _files(format_name: str) -> Any:
    def files(
        folder: str,
        *,
        schema: str | None = None,
        max_files_per_trigger: int | None = None,
        latest_first: bool = False,
        glob: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> FileInput:
        return FileInput(
            format_name, folder, schema, max_files_per_trigger, latest_first, glob, options or {}
        )

    return files


MAKERS: dict[str, Any] = {
    **{name: _files(name) for name in ("parquet", "json", "csv", "arrow")},
    "kafka": KafkaInput,
    "rate": RateInput,
}


@dataclass(frozen=True)
class PipelineInput:
    """One input: its source, its transformation in Spark, and its time, key and other columns."""

    source: InputSource
    stream: Mapping[str, Any]
    """Arguments of `tg.stream`."""
    direct: bool = False
    where: str | None = None
    select: tuple[str, ...] = ()
    shown: Mapping[str, Any] = field(default_factory=dict)
    """The input as written, for display."""

    def __post_init__(self) -> None:
        if self.direct and not isinstance(self.source, FileInput | KafkaInput):
            raise SpecError("`direct` applies to folders of files and to kafka. Hint: omit it")
        if self.direct and (self.where or self.select):
            raise SpecError(
                "a direct input bypasses Spark, so `where` and `select` are not available. Hint:"
                " omit `direct`"
            )
        if isinstance(self.source, FileInput) and self.source.format == "arrow" and not self.direct:
            raise SpecError("Spark cannot read Arrow files itself. Hint: `direct: true`")
        if (
            isinstance(self.source, KafkaInput)
            and self.source.format not in _FORMATS
            and not self.direct
        ):
            raise SpecError(
                f"Spark's own Kafka source is not used for {self.source.format} values. Hint:"
                " `direct: true`"
            )

    def open(self, spark: SparkSession) -> Any:
        """The argument of `tg.stream`: a DataFrame, or a direct source."""
        if self.direct and isinstance(self.source, FileInput | KafkaInput):
            return self.source.direct(spark)
        frame = self.source.frame(spark)
        if self.where:
            frame = frame.where(self.where)
        return frame.selectExpr(*self.select) if self.select else frame


def conf_of(inputs: Sequence[PipelineInput]) -> dict[str, str]:
    """Session settings that the inputs require."""
    if not any(isinstance(given.source, KafkaInput) and not given.direct for given in inputs):
        return {}
    from tidegate.spark.environment.jars import kafka_jars

    return {"spark.jars": ",".join(str(jar) for jar in kafka_jars())}


def _texts(**values: object) -> None:
    for name, value in values.items():
        if value is not None and not isinstance(value, str):
            raise SpecError(f"`{name}` must be a string, got {value!r}")


def _flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise SpecError(f"`{name}` must be true or false, got {value!r}")


def _mapping(options: object) -> None:
    if not isinstance(options, Mapping) or not all(
        isinstance(value, str | int | float) for value in options.values()
    ):
        shown = (
            redacted_options(options) if isinstance(options, Mapping) else type(options).__name__
        )
        raise SpecError(f"`options` must map names to scalar values, got {shown}")

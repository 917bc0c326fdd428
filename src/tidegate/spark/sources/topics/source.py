"""Kafka topics as a direct source."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pyspark
from pyspark.sql import DataFrame, SparkSession

from tidegate.errors import SpecError
from tidegate.redaction import redacted
from tidegate.spark.parallelism import parallelism
from tidegate.spark.sources.direct import Declared, DirectSource, check_version, declared_schema
from tidegate.spark.sources.formats import checked_names
from tidegate.spark.sources.topics.messages import PARTS, MessageReader
from tidegate.spark.sources.topics.planner import EARLIEST, LATEST, Starting

if TYPE_CHECKING:
    from tidegate.spark.tasks.edge import Edge

FORMATS = ("json", "csv", "avro", "arrow", "raw")
_FORMAT_OPTIONS = {"csv": {"delimiter", "quote", "escape", "null"}, "avro": {"schema_id"}}
Format = Literal["json", "csv", "avro", "arrow", "raw"]


class Topics(DirectSource):
    """The messages of topics."""

    def __init__(
        self,
        servers: str,
        topics: tuple[str, ...],
        form: str,
        schema: Any,
        settings: Mapping[str, Any],
    ) -> None:
        check_version(pyspark.__version__)
        self.isStreaming = settings["streaming"]
        self._servers, self._topics, self._format, self._declared = servers, topics, form, schema
        self._settings = settings

    @property
    def sparkSession(self) -> SparkSession:  # noqa: N802 - as in a DataFrame
        """The session of the arguments, or the active one."""
        return self._settings["spark"] or super().sparkSession

    @property
    def schema(self) -> pa.Schema:
        """The columns of the values and of the messages."""
        return self._reader.schema

    @cached_property
    def _reader(self) -> MessageReader:
        from tidegate.spark.sources.topics.values import decoder_of

        options = dict(self._settings["format_options"])
        if self._format == "avro":
            from tidegate.spark.sources.topics.avro import arrow_schema_of, parse_avro_schema

            document = parse_avro_schema(self._declared)
            options["text"] = json.dumps(document)
            schema = arrow_schema_of(document)
        else:
            schema = declared_schema(self._declared, self)
        if self._format == "csv":
            from tidegate.spark.sources.text_formats import Csv

            Csv().checked(schema)
        if self._format == "raw" and (
            len(schema) != 1 or schema.types[0] not in (pa.string(), pa.binary())
        ):
            raise SpecError(
                "raw values are one column of type string or binary, got"
                f" {', '.join(f'{one.name} {one.type}' for one in schema)}. Hint: schema='value"
                " string'"
            )
        reader = MessageReader(
            decoder_of(self._format, schema, **options),
            self._settings["columns"],
            self._settings["key_type"],
        )
        twice = {*schema.names} & {name for _, name in reader.columns}
        if twice:
            part = next(part for part, name in reader.columns if name in twice)
            raise SpecError(
                f"the values have a column `{min(twice)}`, and so have the messages. Hint:"
                f" columns={{{part!r}: 'kafka_{part}'}}"
            )
        checked_names(reader.schema)
        return reader

    def load(self, edge: Edge) -> DataFrame:
        """The shuffle rows of the messages."""
        from tidegate.spark.sources.data_source import load_scan
        from tidegate.spark.sources.topics.consumer import TopicClients
        from tidegate.spark.sources.topics.readers import TopicScan

        spark, settings = self.sparkSession, self._settings
        check_version(spark.version)
        # Wrong options fail here, and not in the first batch.
        TopicClients(self._servers, settings["options"]).consumer().close()
        scan = TopicScan(
            self._reader,
            self._servers,
            self._topics,
            settings["starting"],
            settings["options"],
            parallelism(spark),
            settings["max_messages"],
            settings["skips_lost"],
        )
        return load_scan(spark, scan, edge, streaming=self.isStreaming)

    def __repr__(self) -> str:
        topics = ",".join(self._topics)
        return (
            f"tidegate.sources.kafka({redacted(self._servers)!r}, {topics!r},"
            f" format={self._format!r})"
        )


def kafka(
    brokers: str,
    topic: str | Sequence[str],
    *,
    format: Format = "json",
    schema: Declared | Mapping[str, Any] = None,
    columns: Sequence[str] | Mapping[str, str] = ("partition", "offset"),
    key: Literal["string", "binary"] = "string",
    starting: str | datetime | Mapping[Any, Any] | None = None,
    max_messages_per_trigger: int | None = None,
    lost: Literal["fail", "late"] = "fail",
    options: Mapping[str, Any] | None = None,
    streaming: bool = True,
    spark: SparkSession | None = None,
    **format_options: Any,
) -> Topics:
    """A source of the messages of one or several Kafka topics, decoded as columns.

    `format`: of the values. `json`, one object per message; `csv`, one line of cells in the order
    of the schema, with the options `delimiter`, `quote`, `escape` and `null`; `avro`, one record
    per message, whose `schema` is the Avro schema, with `schema_id` if messages have the header of
    a schema registry; `arrow`, an Arrow IPC stream of any number of rows; `raw`, the value itself,
    `schema="value binary"` (default) or `"value string"`. Malformed messages go to `late`.

    `columns`: further columns, of `partition` (topic and number, `clicks-0`), `offset`,
    `timestamp`, `key` and `headers`; a mapping renames them. `key`: the type of keys.

    `starting`: where a query without a checkpoint begins: `latest` (default of streams), `earliest`
    (default of `streaming=False`), an instant, or offsets by partition, where those that are not
    mentioned begin at the earliest message.

    `max_messages_per_trigger`: the maximum size of a batch, spread over the partitions.

    `lost`: whether messages that the brokers deleted before they were read are an error of the
    query (default), or one row in `late`.

    `options`: settings of librdkafka, such as `security.protocol` or `sasl.password`.
    """
    topics = _topics(topic)
    _check(format, schema, key, lost, max_messages_per_trigger, format_options)
    settings = {
        "columns": _columns(columns),
        "key_type": pa.string() if key == "string" else pa.binary(),
        "starting": Starting.parse(starting or (LATEST if streaming else EARLIEST), topics),
        "max_messages": max_messages_per_trigger,
        "skips_lost": lost == "late",
        "options": _option_texts(options or {}),
        "format_options": format_options,
        "streaming": streaming,
        "spark": spark,
    }
    return Topics(brokers, topics, format, "value binary" if schema is None else schema, settings)


def _topics(topic: str | Sequence[str]) -> tuple[str, ...]:
    names = topic.split(",") if isinstance(topic, str) else [*topic]
    found = tuple(dict.fromkeys(name.strip() for name in names))
    if not found or not all(found):
        raise SpecError(f"a Kafka source reads one or more topics, got {topic!r}. Hint: 'clicks'")
    return found


def _columns(columns: Sequence[str] | Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    given = dict(columns) if isinstance(columns, Mapping) else {name: name for name in columns}
    unknown = [part for part in given if part not in PARTS]
    if unknown:
        raise SpecError(
            f"messages have no part `{unknown[0]}`. Hint: `columns` takes {', '.join(PARTS)}"
        )
    return tuple(given.items())


def _option_texts(options: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple(
        sorted(
            (name, str(value).lower() if isinstance(value, bool) else str(value))
            for name, value in options.items()
        )
    )


def _check(
    form: str,
    schema: Any,
    key: str,
    lost: str,
    most: int | None,
    format_options: Mapping[str, Any],
) -> None:
    for name, value, allowed in (
        ("format", form, FORMATS),
        ("key", key, ("string", "binary")),
        ("lost", lost, ("fail", "late")),
    ):
        if value not in allowed:
            raise SpecError(f"`{name}` is one of {', '.join(allowed)}, got {value!r}")
    if schema is None and form != "raw":
        raise SpecError(
            f"a Kafka source needs a `schema` to read {form}. Hint: schema='user string, ts"
            " timestamp', or format='raw'"
        )
    unknown = sorted(format_options.keys() - _FORMAT_OPTIONS.get(form, set()))
    if unknown:
        raise SpecError(
            f"a Kafka source of {form} values has no option `{unknown[0]}`. Hint: settings of the"
            " client are `options`"
        )
    if most is not None and (not isinstance(most, int) or isinstance(most, bool) or most < 1):
        raise SpecError(f"`max_messages_per_trigger` is a number of at least 1, got {most!r}")

"""Connectors: the sources and sinks of tables on Spark, from their options."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlparse

import pyarrow as pa

from tidegate.sql.definitions import PARTITION, TableDefinition
from tidegate.sql.options import Options

if TYPE_CHECKING:
    from tidegate.spark.sinks.base import Sink
    from tidegate.spark.sources.tables import TableSource

SOURCES = ("kafka", "filesystem", "tidegate")
SINKS = ("kafka", "upsert-kafka", "filesystem", "jdbc", "delta", "print", "blackhole")
UPSERTS = ("upsert-kafka", "jdbc")
"""The connectors of tables whose rows are replaced by key."""
_KAFKA_METADATA = {
    "topic": "topic",
    "partition": "partition",
    "offset": "offset",
    "timestamp": "timestamp",
    "key": "CAST(key AS STRING)",
    PARTITION: "concat_ws('-', topic, partition)",
}
_STARTS = {"earliest-offset": "earliest", "latest-offset": "latest"}
_JDBC = re.compile(r"jdbc:(postgresql://.+)")


def is_bounded(definition: TableDefinition) -> bool:
    """Whether the rows of a table end: files without an interval of monitoring do."""
    return definition.connector == "filesystem" and (
        definition.options is None or definition.options.get("source.monitor-interval") is None
    )


def spark_source(definition: TableDefinition, folder: str | None = None) -> TableSource:
    """The source of a table on Spark; relative paths are in `folder`."""
    from tidegate.spark.sources.tables import TableSource

    options, schema = _options(definition), definition.written_schema()
    match definition.connector:
        case "kafka":
            return TableSource(
                "kafka",
                schema,
                _kafka_options(options),
                metadata=tuple((n, _KAFKA_METADATA[key]) for n, key in definition.metadata),
                value=_value_format(options, schema),
                value_options=_value_options(options),
                skips_unreadable=_skips(options),
            )
        case "filesystem":
            form = options.need("format")
            return TableSource(
                form,
                schema,
                _file_options(options, form),
                path_of(options, folder),
                tuple((name, "_metadata.file_path") for name, _ in definition.metadata),
                skips_unreadable=_skips(options),
            )
        case "tidegate":
            most = options.whole("max-events-per-trigger")
            return TableSource(
                "tidegate",
                schema,
                {
                    "store": options.need("store"),
                    "stream": options.need("stream"),
                    "startingPosition": options.get("start") or "earliest",
                    **({} if most is None else {"maxEventsPerTrigger": str(most)}),
                },
                metadata=tuple((name, key) for name, key in definition.metadata),
                value=_value_format(options, schema),
                value_options={"timeZone": "UTC"},
            )
    raise options.place("connector").error(
        f"a table with the connector `{definition.connector}` cannot be read",
        f"sources are {', '.join(SOURCES)}",
    )


def spark_sink(definition: TableDefinition, folder: str | None = None) -> Sink:
    """The sink of a table on Spark."""
    from tidegate.spark import sinks

    options = _options(definition)
    match definition.connector:
        case "kafka" | "upsert-kafka":
            properties = options.prefixed("properties.")
            servers = properties.pop("bootstrap.servers", "")
            if (options.get("format", "value.format") or "json") != "json":
                raise options.place("format").error(
                    "rows are written to Kafka as JSON", "'format' = 'json'"
                )
            return sinks.kafka(servers, options.need("topic"), options=properties)
        case "filesystem":
            if options.need("format") != "parquet":
                raise options.place("format").error(
                    "on Spark, files are written as Parquet", "'format' = 'parquet'"
                )
            compression = options.get("parquet.compression") or "zstd"
            return sinks.parquet(path_of(options, folder), compression)
        case "jdbc":
            return sinks.postgres(_dsn(options), *_postgres_table(options))
        case "delta":
            return sinks.delta(path_of(options, folder))
        case "print":
            return sinks.console(options.whole("rows") or 20)
        case "blackhole":
            return sinks.noop()
    raise options.place("connector").error(
        f"a table with the connector `{definition.connector}` cannot be written",
        f"sinks are {', '.join(SINKS)}",
    )


def path_of(options: Options, folder: str | None) -> str:
    """The path of a table; a relative one is in `folder`."""
    from pathlib import Path

    path = options.need("path").removeprefix("file://")
    if "://" in path or folder is None:
        return path
    return str(Path(folder) / path)


def _options(definition: TableDefinition) -> Options:
    if definition.options is None or definition.options.connector is None:
        place = definition.place
        why = f"the table `{definition.name}` has no connector"
        if place is None:
            raise ValueError(why)
        raise place.error(why, "WITH ('connector' = 'filesystem', ...)")
    return definition.options


def _kafka_options(options: Options) -> dict[str, str]:
    """The options of Spark's reader for a topic."""
    found = {
        f"kafka.{name}": value
        for name, value in options.prefixed("properties.").items()
        if name != "group.id"
    }
    found["subscribe"] = ",".join(
        topic.strip() for topic in re.split("[;,]", options.need("topic"))
    )
    mode = options.get("scan.startup.mode") or "earliest-offset"
    if mode in _STARTS:
        found["startingOffsets"] = _STARTS[mode]
    elif mode == "timestamp":
        millis = options.whole("scan.startup.timestamp-millis")
        if millis is None:
            raise options.place("scan.startup.mode").error(
                "the startup mode `timestamp` needs `scan.startup.timestamp-millis`"
            )
        found["startingTimestamp"] = str(millis)
    elif mode == "specific-offsets":
        found["startingOffsets"] = _specific(options, found["subscribe"])
    else:
        raise options.place("scan.startup.mode").error(
            "the offsets of a query are in its checkpoint, not in a consumer group",
            "'scan.startup.mode' = 'earliest-offset' or 'latest-offset'",
        )
    most = options.whole("scan.max-offsets-per-trigger")
    if most is not None:
        found["maxOffsetsPerTrigger"] = str(most)
    return found


def _specific(options: Options, topic: str) -> str:
    """The offsets of `partition:0,offset:42;partition:1,offset:300` as Spark reads them."""
    import json

    text = options.get("scan.startup.specific-offsets") or ""
    found = re.findall(r"partition:(\d+),offset:(\d+)", text)
    if not found or "," in topic:
        raise options.place("scan.startup.specific-offsets").error(
            "specific offsets name partitions of one topic",
            "'partition:0,offset:42;partition:1,offset:300'",
        )
    return json.dumps({topic: {number: int(offset) for number, offset in found}})


def _value_format(options: Options, schema: pa.Schema) -> str:
    form = options.get("format", "value.format") or "json"
    if form == "raw" and len(schema) != 1:
        raise options.place("format").error(
            f"a raw message has one column, the table has {len(schema)}",
            "a column of the type STRING or BYTES",
        )
    return form


def _value_options(options: Options) -> dict[str, str]:
    separator = options.get("csv.field-delimiter")
    return {"timeZone": "UTC", **({} if separator is None else {"sep": separator})}


def _skips(options: Options) -> bool:
    return options.flag("json.ignore-parse-errors") or options.flag("csv.ignore-parse-errors")


def _file_options(options: Options, form: str) -> dict[str, str]:
    glob, most = options.get("source.path.glob"), options.whole("source.max-files-per-trigger")
    found = {
        **({} if glob is None else {"pathGlobFilter": glob}),
        **({} if most is None else {"maxFilesPerTrigger": str(most)}),
    }
    if form == "csv":
        found |= {"header": str(options.flag("csv.header")).lower(), "timeZone": "UTC"}
        separator = options.get("csv.field-delimiter")
        found |= {} if separator is None else {"sep": separator}
    if form == "json":
        found["timeZone"] = "UTC"
    return found


def _dsn(options: Options) -> str:
    """The connection string of a JDBC URL."""
    found = _JDBC.fullmatch(options.need("url"))
    if found is None:
        raise options.place("url").error(
            "a JDBC table is one of PostgreSQL", "'url' = 'jdbc:postgresql://host:5432/database'"
        )
    user, password = options.get("username"), options.get("password")
    parsed = urlparse(found.group(1))
    login = ""
    if user is not None and parsed.username is None:
        login = quote(user, safe="") + ("" if password is None else f":{quote(password, safe='')}")
    address = parsed.netloc if not login else f"{login}@{parsed.netloc}"
    return parsed._replace(netloc=address).geturl()


def _postgres_table(options: Options) -> tuple[Any, ...]:
    table = options.need("table-name")
    return (table,)

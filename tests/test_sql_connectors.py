"""The connectors of SQL tables: what Spark's readers and the sinks get from the options of Flink."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

import tidegate as tg
from tidegate.errors import SqlError
from tidegate.spark.sinks.base import SinkTarget
from tidegate.spark.sinks.kafka import KafkaSink, _messages
from tidegate.spark.sinks.postgres import PostgresSink
from tidegate.sql.connectors import spark_sink, spark_source
from tidegate.sql.definitions import TableDefinition, defined_table
from tidegate.sql.parse import parse_script

KAFKA = {
    "connector": "kafka",
    "topic": "clicks",
    "format": "json",
    "properties.bootstrap.servers": "broker:9092",
}


def table(columns: str, **options: str) -> TableDefinition:
    (statement,) = parse_script(f"CREATE TABLE t ({columns}){clause(options)}")
    return defined_table(statement)  # type: ignore[arg-type]


def clause(options: dict[str, str]) -> str:
    return f" WITH ({', '.join(f'{name!r} = {value!r}' for name, value in options.items())})"


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, {"startingOffsets": "earliest"}),
        ({"scan.startup.mode": "latest-offset"}, {"startingOffsets": "latest"}),
        (
            {"scan.startup.mode": "timestamp", "scan.startup.timestamp-millis": "1741953600000"},
            {"startingTimestamp": "1741953600000"},
        ),
        (
            {
                "scan.startup.mode": "specific-offsets",
                "scan.startup.specific-offsets": "partition:0,offset:42;partition:1,offset:7",
            },
            {"startingOffsets": json.dumps({"clicks": {"0": 42, "1": 7}})},
        ),
        (
            {"properties.security.protocol": "SSL", "scan.max-offsets-per-trigger": "100"},
            {
                "startingOffsets": "earliest",
                "kafka.security.protocol": "SSL",
                "maxOffsetsPerTrigger": "100",
            },
        ),
    ],
)
def test_options_of_kafka(more: dict[str, str], expected: dict[str, str]) -> None:
    found = spark_source(table("a INT, nr BIGINT METADATA FROM 'offset'", **KAFKA, **more))
    assert found.options == {
        "kafka.bootstrap.servers": "broker:9092",
        "subscribe": "clicks",
        **expected,
    }
    assert found.schema.names == ["a"]
    assert dict(found.metadata)["nr"] == "offset"
    assert dict(found.metadata)["__partition"] == "concat_ws('-', topic, partition)"
    assert found.value == "json"


def test_options_of_files() -> None:
    options = {"connector": "filesystem", "path": "in", "format": "csv"}
    found = spark_source(
        table("a INT", **options, **{"csv.header": "true", "csv.field-delimiter": ";"}), "/data"
    )
    assert (found.format, found.path) == ("csv", "/data/in")
    assert found.options == {"header": "true", "sep": ";", "timeZone": "UTC"}


def test_sinks() -> None:
    kafka: Any = spark_sink(table("a INT", **KAFKA, **{"properties.linger.ms": "5"}))
    assert isinstance(kafka, KafkaSink)
    assert (kafka.bootstrap_servers, kafka.topic) == ("broker:9092", "clicks")
    assert dict(kafka.options) == {"linger.ms": "5"}
    options = {
        "connector": "jdbc",
        "url": "jdbc:postgresql://db:5432/shop",
        "table-name": "totals",
        "username": "me@home",
        "password": "p:w",
    }
    postgres: Any = spark_sink(table("a INT", **options))
    assert isinstance(postgres, PostgresSink)
    assert postgres.dsn == "postgresql://me%40home:p%3Aw@db:5432/shop"
    assert postgres.table == "totals"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({**KAFKA, "scan.startup.mode": "group-offsets"}, "checkpoint"),
        ({**KAFKA, "scan.startup.mode": "timestamp"}, "timestamp-millis"),
        ({**KAFKA, "scan.startup.mode": "specific-offsets"}, "specific offsets"),
        ({"connector": "print"}, "cannot be read"),
        (
            {"connector": "jdbc", "url": "jdbc:postgresql://h/d", "table-name": "t"},
            "cannot be read",
        ),
    ],
)
def test_what_cannot_be_read_is_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(SqlError, match=message):
        spark_source(table("a INT", **options))


SCRIPT = """
CREATE TABLE clicks (ts TIMESTAMP(3), user STRING, WATERMARK FOR ts AS ts);
CREATE TABLE sink (minute TIMESTAMP(3), n BIGINT{key}){options};
INSERT INTO sink SELECT window_start, COUNT(*)
FROM TABLE(TUMBLE(TABLE clicks, DESCRIPTOR(ts), INTERVAL '1' MINUTE))
GROUP BY window_start, window_end EMIT {emit}
"""
UPSERT = {name: value for name, value in KAFKA.items() if name != "format"} | {
    "connector": "upsert-kafka"
}


def insertion(key: str, options: dict[str, str], emit: str) -> Any:
    (found,) = tg.sql(SCRIPT.format(key=key, options=clause(options), emit=emit)).inserts
    return found


def test_upserts_have_the_sign_and_the_key_of_a_row() -> None:
    found = insertion(", PRIMARY KEY (minute) NOT ENFORCED", UPSERT, "CHANGES RETRACTING")
    assert found.query.identity == ("minute",)
    assert [name for name, _ in found.query.output[0].columns] == ["minute", "n", "op", "pane_id"]


def test_kafka_takes_rows_without_a_sign_and_without_a_key() -> None:
    rows = pa.table({"n": [1, 2], "pane_id": ["a", "b"]})
    schema = pa.schema([("n", pa.int64())])
    for mode, output in (("accumulating", "panes"), ("discarding", "panes")):
        target = SinkTarget("q", output, schema, ("user",), mode, ())
        found = [(key, value) for key, value, _ in _messages(target, rows, {})]
        assert found == [(None, b'{"n":1}'), (None, b'{"n":2}')]


@pytest.mark.parametrize(
    ("options", "emit", "message"),
    [
        (UPSERT, "AFTER WATERMARK", "PRIMARY KEY"),
        (KAFKA, "CHANGES RETRACTING", "retracts rows"),
    ],
)
def test_tables_that_cannot_take_the_rows_are_refused(
    options: dict[str, str], emit: str, message: str
) -> None:
    with pytest.raises(SqlError, match=message):
        insertion("", options, emit)


def test_a_union_of_aggregations_is_refused_on_spark() -> None:
    one = (
        "SELECT COUNT(*) AS n FROM TABLE(TUMBLE(TABLE clicks, DESCRIPTOR(ts), INTERVAL '1' MINUTE))"
        " GROUP BY window_start, window_end"
    )
    query = tg.sql(
        f"CREATE TABLE clicks (ts TIMESTAMP(3), WATERMARK FOR ts AS ts);{one} UNION ALL {one}"
    )
    assert len(query.plan.branches) == 2
    with pytest.raises(tg.SpecError, match="one by one"):
        _ = query.df

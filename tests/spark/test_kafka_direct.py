"""The direct Kafka source against a real broker: offsets, transactions, lost messages, new
partitions, and whole pipelines.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import tidegate as tg
import tidegate.pipeline
from support.services.kafka import KafkaBroker
from tidegate.errors import InputError, SpecError
from tidegate.operators.ingest.schema_cast import BROKEN
from tidegate.pipeline.inputs import conf_of
from tidegate.spark.sources.topics import consumer as consumer_module
from tidegate.spark.sources.topics.consumer import Lost, RangeReader, TopicClients, grouped
from tidegate.spark.sources.topics.messages import MessageReader
from tidegate.spark.sources.topics.offsets import OffsetRange, TopicOffset
from tidegate.spark.sources.topics.planner import Starting, TopicPlanner
from tidegate.spark.sources.topics.values import RawValues

pytestmark = [pytest.mark.kafka, pytest.mark.slow]
MINUTE = 60_000_000
BASE = 1_700_000_000_000_000 // MINUTE * MINUTE


@pytest.fixture
def clients(kafka: KafkaBroker) -> TopicClients:
    return TopicClients(kafka.bootstrap_servers, ())


@pytest.fixture
def reader(clients: TopicClients) -> Iterator[RangeReader]:
    found = RangeReader(clients)
    yield found
    found.close()


def planner(
    clients: TopicClients, topic: str, starting: Any = "earliest", **options: Any
) -> TopicPlanner:
    return TopicPlanner(clients, (topic,), Starting.parse(starting, (topic,)), **options)


def values(reader: RangeReader, ranges: list[OffsetRange], **options: Any) -> list[Any]:
    """The values in their order, with the chunks they came in, and what was lost."""
    found: list[Any] = []
    for one in reader.read(ranges, **options):
        found.append(
            one if isinstance(one, Lost) else [message.value().decode() for message in one[1]]
        )
    return found


def test_ranges_are_read_whatever_lies_between_and_behind_them(
    kafka: KafkaBroker, clients: TopicClients, reader: RangeReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = kafka.create_topic("direct-ranges", 3)
    for part in range(2):
        kafka.produce(topic, [{"value": f"{part}:{n}", "partition": part} for n in range(100)])
    ranges = [OffsetRange((topic, 0), 5, 95), OffsetRange((topic, 1), 0, 3)]
    expected = [f"0:{n}" for n in range(5, 95)], [f"1:{n}" for n in range(3)]
    assert values(reader, ranges) == [*expected]
    # The same reader again, in chunks whose bounds depend on the messages only.
    monkeypatch.setattr(consumer_module, "CHUNK_MESSAGES", 40)
    assert [len(chunk) for chunk in values(reader, ranges)] == [40, 40, 10, 3]
    monkeypatch.setattr(consumer_module, "CHUNK_BYTES", 30)
    assert [len(chunk) for chunk in values(reader, ranges)][:3] == [9, 8, 8]
    # Each range alone, and parts of one partition one after the other.
    monkeypatch.setattr(consumer_module, "WAVE_MESSAGES", 1)
    parts = [OffsetRange((topic, 1), 0, 2), OffsetRange((topic, 1), 2, 3), ranges[0]]
    assert sum(values(reader, parts), []) == [*expected[1], *expected[0]]  # noqa: RUF017


def test_only_committed_messages_are_read(
    kafka: KafkaBroker, clients: TopicClients, reader: RangeReader
) -> None:
    from confluent_kafka import Producer

    topic = kafka.create_topic("direct-transactions", 1)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": topic})
    producer.init_transactions()
    for name, ends in (("a", True), ("b", False), ("c", True)):
        producer.begin_transaction()
        for n in range(3):
            producer.produce(topic, f"{name}{n}")
        producer.flush()
        (producer.commit_transaction if ends else producer.abort_transaction)()
    producer.begin_transaction()
    producer.produce(topic, "open")
    producer.flush()
    plan = planner(clients, topic)
    start = plan.start()
    end = plan.next(start, 0)
    # The last offset of the range is that of a marker.
    assert values(reader, end.ranges_after(start)) == [["a0", "a1", "a2", "c0", "c1", "c2"]]
    assert plan.next(end, 0) is end
    producer.abort_transaction()
    last = plan.next(end, 0)
    assert values(reader, last.ranges_after(end)) == []
    every = TopicClients(kafka.bootstrap_servers, (("isolation.level", "read_uncommitted"),))
    whole = planner(every, topic).next(start, 0)
    second = RangeReader(every)
    assert len(values(second, whole.ranges_after(start))[0]) == 10
    second.close()


def test_batches_are_limited_and_new_partitions_join_at_their_first_message(
    kafka: KafkaBroker, clients: TopicClients
) -> None:
    topic = kafka.create_topic("direct-partitions", 2)
    kafka.produce(topic, [{"value": "x", "partition": 0} for _ in range(10)])
    kafka.produce(topic, [{"value": "x", "partition": 1} for _ in range(2)])
    plan = planner(clients, topic)
    start = plan.start()
    first = plan.next(start, 5, 6)
    ids = {topic: start.ids[topic]}
    assert first == TopicOffset({(topic, 0): 4, (topic, 1): 2}, {}, 5, ids)
    kafka.add_partitions(topic, 3)
    kafka.produce(topic, [{"value": "x", "partition": 2}])
    # A step back of the clock has no effect.
    second = plan.next(first, 3)
    positions = {(topic, 0): 10, (topic, 1): 2, (topic, 2): 1}
    assert second == TopicOffset(positions, {(topic, 2): 0}, 5, ids)
    assert second.ranges_after(first) == [
        OffsetRange((topic, 0), 4, 10),
        OffsetRange((topic, 2), 0, 1),
    ]
    plan.freeze()
    kafka.produce(topic, [{"value": "x", "partition": 2}])
    assert plan.next(second, 9) is second


def test_a_small_batch_has_a_message_of_every_partition(
    kafka: KafkaBroker, clients: TopicClients
) -> None:
    topic = kafka.create_topic("direct-wide", 4)
    for part, many in enumerate((9, 1, 0, 5)):
        kafka.produce(topic, [{"value": "x", "partition": part} for _ in range(many)])
    plan = planner(clients, topic)
    first = plan.next(plan.start(), 0, 2)
    assert [first.positions[topic, part] for part in range(4)] == [1, 1, 0, 1]
    second = plan.next(first, 0, 2)
    assert [second.positions[topic, part] for part in range(4)] == [2, 1, 0, 2]


def test_a_query_begins_at_words_times_and_offsets(
    kafka: KafkaBroker, clients: TopicClients
) -> None:
    topic = kafka.create_topic("direct-starting", 2)
    sent = [{"value": "x", "partition": 0, "timestamp": 1_000 * n} for n in range(1, 5)]
    kafka.produce(topic, sent)

    def positions(starting: Any) -> list[int]:
        found = planner(clients, topic, starting).start().positions
        return [found[topic, n] for n in range(2)]

    assert positions("earliest") == [0, 0]
    assert positions("latest") == [4, 0]
    assert positions("1970-01-01T00:00:02.500Z") == [2, 0]
    assert positions("2100-01-01T00:00Z") == [4, 0]
    assert positions({0: 3}) == [3, 0]
    assert positions({f"{topic}-0": "latest"}) == [4, 0]
    with pytest.raises(InputError, match=f"{topic}-7.*does not exist"):
        positions({7: 3})


def test_deleted_messages_are_an_error_or_one_late_row(
    kafka: KafkaBroker, clients: TopicClients, reader: RangeReader
) -> None:
    topic = kafka.create_topic("direct-lost", 1)
    kafka.produce(topic, [{"value": str(n)} for n in range(10)])
    kafka.delete_records(topic, 0, 6)
    ranges = [OffsetRange((topic, 0), 2, 9)]
    with pytest.raises(InputError, match=r'2 to 8 of `direct-lost-0`.*is 6.*lost="late"'):
        values(reader, ranges)
    found = values(reader, ranges, skips_lost=True)
    assert found == [Lost((topic, 0), 2, 6), ["6", "7", "8"]]
    assert values(reader, [OffsetRange((topic, 0), 2, 5)], skips_lost=True) == [
        Lost((topic, 0), 2, 5)
    ]
    messages = MessageReader(
        RawValues(pa.schema([("value", pa.binary())])),
        (("offset", "at"), ("key", "k")),
        pa.string(),
    )
    row = messages.lost((topic, 0), 2, 6).to_pylist()[0]
    assert row == {
        "value": None,
        "at": 2,
        "k": None,
        BROKEN: "messages 2 to 5 of `direct-lost-0` were deleted before they were read",
    }
    again = TopicOffset({(topic, 0): 11})
    with pytest.raises(InputError, match="created again"):
        planner(clients, topic, skips_lost=True).next(again, 0)
    gone = TopicOffset({(topic, 0): 10, (topic, 1): 3})
    with pytest.raises(InputError, match="does not exist any more"):
        planner(clients, topic).next(gone, 0)
    assert planner(clients, topic, skips_lost=True).next(gone, 0) is gone


def test_a_topic_that_was_created_again_is_refused_though_it_is_as_long(
    kafka: KafkaBroker, clients: TopicClients
) -> None:
    topic = kafka.create_topic("direct-again", 1)
    kafka.produce(topic, [{"value": "old"} for _ in range(3)])
    plan = planner(clients, topic, skips_lost=True)
    at = plan.next(plan.start(), 0)
    assert TopicOffset.from_dict(at.to_dict()) == at
    kafka.delete_topic(topic)
    kafka.create_topic(topic, 1)
    kafka.produce(topic, [{"value": "new"} for _ in range(5)])
    with pytest.raises(InputError, match=f"`{topic}` was created again.*new checkpoint"):
        plan.next(at, 0)


def test_topics_and_options_that_do_not_exist(kafka: KafkaBroker, clients: TopicClients) -> None:
    with pytest.raises(InputError, match=r"direct-nowhere.*Hint: create the topic"):
        planner(clients, "direct-nowhere").start()
    with pytest.raises(SpecError, match=r"librdkafka.*strange\.option"):
        TopicClients(kafka.bootstrap_servers, (("strange.option", "1"),)).consumer()
    with pytest.raises(SpecError, match=r"sets group\.id itself"):
        TopicClients(kafka.bootstrap_servers, (("group.id", "mine"),))


def test_brokers_that_do_not_answer_are_an_error_with_the_reason_of_the_connection(
    kafka: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_module, "ANSWER_SECONDS", 1.0)
    monkeypatch.setattr(consumer_module, "READ_SECONDS", 0.5)
    closed = TopicClients("127.0.0.1:1", ())
    with pytest.raises(InputError, match=r"list the partitions of t \(.*Connection refused"):
        planner(closed, "t").start()
    # The broker of the tests knows no TLS: the handshake fails, and a fetch only times out.
    secure = TopicClients(kafka.bootstrap_servers, (("security.protocol", "ssl"),))
    second = RangeReader(secure)
    with pytest.raises(InputError, match=r"return messages \(.*(SSL|[Dd]isconnected)"):
        values(second, [OffsetRange(("t", 0), 0, 1)])
    second.close()


def test_columns_of_messages(
    kafka: KafkaBroker, clients: TopicClients, reader: RangeReader
) -> None:
    topic = kafka.create_topic("direct-columns", 1)
    kafka.produce(
        topic,
        [
            {"value": "x", "key": "k", "timestamp": 5_000, "headers": {"h": b"\xff"}},
            {"value": "y", "key": b"\xff", "timestamp": 6_000},
        ],
    )
    source = tg.sources.kafka(
        kafka.bootstrap_servers,
        topic,
        format="raw",
        schema=pa.schema([("value", pa.string())]),
        columns={
            name: f"k_{name}" for name in ("headers", "timestamp", "key", "partition", "offset")
        },
    )
    ((place, messages),) = reader.read([OffsetRange((topic, 0), 0, 2)])  # type: ignore[misc]
    table = source._reader.table([(place, messages)])
    assert table.schema.names == [*source.schema.names, BROKEN]
    first, second = table.to_pylist()
    assert first["k_timestamp"].timestamp() == 5
    assert first["k_headers"] == [{"key": "h", "value": b"\xff"}]
    assert (first["k_partition"], first["k_offset"], first["k_key"]) == (f"{topic}-0", 0, "k")
    assert "message 1 of `direct-columns-0` cannot be read (its key is not UTF-8" in second[BROKEN]
    assert second["value"] == "y"


def test_messages_of_several_partitions_are_decoded_together(
    kafka: KafkaBroker, clients: TopicClients, reader: RangeReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = kafka.create_topic("direct-together", 3)
    sent = [{"value": f'{{"n": {n}}}' if n % 4 else "{", "partition": n % 3} for n in range(12)]
    kafka.produce(topic, sent)
    ranges = [OffsetRange((topic, part), 0, 4) for part in range(3)]
    source = tg.sources.kafka(kafka.bootstrap_servers, topic, schema=pa.schema([("n", pa.int64())]))
    monkeypatch.setattr(consumer_module, "CHUNK_MESSAGES", 6)
    first, second = (
        [] if isinstance(one, Lost) else source._reader.table(one).to_pylist()
        for one in grouped(reader.read(ranges))
    )
    assert [(row["partition"], row["offset"]) for row in [*first, *second]] == [
        (f"{topic}-{part}", offset) for part in range(3) for offset in range(4)
    ]
    assert [row["n"] for row in first] == [None, 3, 6, 9, 1, None, 7, 10]
    assert first[5][BROKEN].startswith(f"message 1 of `{topic}-1` cannot be read")
    lost = Lost((topic, 0), 0, 1)
    chunk = ((topic, 0), [object()])
    assert [*grouped([chunk, lost, chunk, chunk])] == [[chunk], lost, [chunk, chunk]]


# Specifications


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs a `schema` to read json"),
        ({"format": "xml"}, "`format` is one of"),
        ({"schema": "n long", "lost": "drop"}, "`lost` is one of"),
        ({"schema": "n long", "columns": ["offsets"]}, "no part `offsets`"),
        ({"schema": "n long", "delimiter": "|"}, "json values has no option `delimiter`"),
        ({"schema": "n long", "max_messages_per_trigger": 0}, "at least 1, got 0"),
        ({"schema": "n long", "starting": 7}, "got 7"),
    ],
)
def test_sources_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        tg.sources.kafka("localhost:1", "clicks", **options)


def test_secrets_are_not_shown() -> None:
    source = tg.sources.kafka(
        "localhost:1",
        ["clicks", "views"],
        schema=pa.schema([("n", pa.int64())]),
        options={"sasl.password": "hunter2"},
    )
    assert repr(source) == "tidegate.sources.kafka('localhost:1', 'clicks,views', format='json')"


@pytest.mark.parametrize(
    ("form", "schema", "message"),
    [
        ("json", pa.schema([("offset", pa.int64())]), "'kafka_offset'"),
        ("raw", pa.schema([("n", pa.int64())]), "one column of type string or binary"),
        ("csv", pa.schema([("n", pa.list_(pa.int64()))]), "CSV does not support"),
    ],
)
def test_schemas_that_cannot_be(form: Any, schema: pa.Schema, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        _ = tg.sources.kafka("localhost:1", "clicks", format=form, schema=schema).schema


# Pipelines


def send(kafka: KafkaBroker, topic: str, partition: int, *events: tuple[str, int]) -> None:
    rows = [{"user": user, "t": (BASE + at * 1_000_000) / 1_000_000} for user, at in events]
    kafka.produce(topic, [{"value": row, "partition": partition} for row in rows])


def run(source: Any, out: Path, watermark: Any) -> tuple[list[Any], list[dict[str, Any]]]:
    """The panes and the late rows of what is there."""
    to, late = tg.sinks.memory(), tg.sinks.memory()
    clicks = tg.stream(
        source, time="t", key="user", partition="partition", offset="offset", watermark=watermark
    )
    panes = clicks.window(tg.tumbling("1 minute")).aggregate(n=tg.count())
    query = panes.write(to=to, late=late, checkpoint=out, trigger="available_now")
    query.await_termination()
    found = [
        (row["user"], (int(row["window_start"].timestamp()) * 1_000_000 - BASE) // MINUTE, row["n"])
        for row in to.rows()
    ]
    return sorted(found), late.rows()


def test_a_pipeline_has_watermarks_by_partition_and_sends_malformed_messages_to_late(
    spark: SparkSession, kafka: KafkaBroker, tmp_path: Path
) -> None:
    topic = kafka.create_topic("direct-pipeline", 2)
    send(kafka, topic, 0, ("a", 10), ("a", 190))
    send(kafka, topic, 1, ("b", 20), ("b", 30))
    kafka.produce(topic, [{"value": '{"user": ', "partition": 0}, {"value": None, "partition": 1}])
    source = tg.sources.kafka(
        kafka.bootstrap_servers,
        topic,
        schema="user string, t timestamp",
        starting="earliest",
        max_messages_per_trigger=4,
        spark=spark,
    )
    mark = tg.bounded("0 seconds", partitions=[f"{topic}-0", f"{topic}-1"])
    panes, late = run(source, tmp_path / "ck", mark)
    assert panes == [], "partition 1 is at 30 seconds"
    assert sorted(row["offset"] for row in late) == [2, 2]
    texts = sorted(row["detail"] for row in late)
    assert texts[0].startswith(f"message 2 of `{topic}-0` cannot be read")
    assert texts[0].endswith('{"user": ')
    assert "it has no value" in texts[1]
    # A restart continues behind what it has read.
    send(kafka, topic, 1, ("b", 70))
    panes, late = run(source, tmp_path / "ck", mark)
    assert panes == [("a", 0, 1), ("b", 0, 2)]
    assert late == []


def test_a_pipeline_file_reads_directly(spark: SparkSession, kafka: KafkaBroker) -> None:
    text = f"""
    input:
      {{type: kafka, bootstrap_servers: "{kafka.bootstrap_servers}", topic: direct-file, direct: true,
       schema: "user string, ts timestamp", starting: '{{"direct-file": {{"0": 3, "1": -1}}}}',
       max_offsets_per_trigger: 5, options: {{client.id: me}}}}
    stream:
      {{time: ts, key: user, partition: partition, watermark: "bounded(0 seconds, partitions=2)"}}
    window: tumbling(1 minute)
    aggregate: {{n: count}}
    write: {{to: noop, checkpoint: ck}}
    """
    pipeline = tidegate.pipeline.parse(text)
    source = pipeline.inputs[0].open(spark)
    assert source.schema.names == ["user", "ts", "partition", "offset", "kafka_time", "kafka_key"]
    assert source._settings["starting"] == Starting.parse(
        {"direct-file-0": 3, "direct-file-1": "latest"}, ("direct-file",)
    )
    assert source._settings["max_messages"] == 5
    assert source._settings["options"] == (("client.id", "me"),)
    assert conf_of(pipeline.inputs) == {}


def test_many_events_over_several_tasks_and_batches_are_counted_once(
    spark: SparkSession, kafka: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate.spark.sources.topics.offsets.TASK_MESSAGES", 500)
    topic = kafka.create_topic("direct-many", 3)
    random = np.random.default_rng(1)
    rows = [
        {"value": f"u{user},{BASE // 1_000_000 + n // 100}", "partition": int(part)}
        for n, (user, part) in enumerate(
            zip(random.integers(0, 7, 6000), random.integers(0, 3, 6000), strict=True)
        )
    ]
    kafka.produce(topic, rows)
    kafka.produce(
        topic, [{"value": f"u0,{BASE // 1_000_000 + 300}", "partition": n} for n in range(3)]
    )
    source = tg.sources.kafka(
        kafka.bootstrap_servers,
        topic,
        format="csv",
        schema="user string, s long",
        starting="earliest",
        max_messages_per_trigger=2500,
        columns=["partition", "offset", "timestamp"],
        spark=spark,
    )

    def seconds(table: pa.Table) -> pa.ChunkedArray:
        return pa.compute.multiply(table["s"], 1_000_000).cast(pa.timestamp("us", "UTC"))

    to = tg.sinks.memory()
    clicks = tg.stream(source, time=seconds, key="user", watermark=tg.bounded("1 minute"))
    panes = clicks.window(tg.tumbling("1 minute")).aggregate(n=tg.count())
    panes.write(to=to, checkpoint=tmp_path, trigger="available_now").await_termination()
    counted: dict[str, int] = {}
    for row in to.rows():
        counted[row["user"]] = counted.get(row["user"], 0) + row["n"]
    expected: dict[str, int] = {}
    for sent in rows:
        user = str(sent["value"]).split(",")[0]
        expected[user] = expected.get(user, 0) + 1
    assert counted == expected
    offsets = sorted((tmp_path / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    assert len(offsets) == 3
    positions = json.loads(offsets[0].read_text().split("\n")[2])["positions"]
    assert sum(positions[topic].values()) == 2500

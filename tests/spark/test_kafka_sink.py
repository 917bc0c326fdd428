"""The Kafka sink against a real broker."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import chain, count
from pathlib import Path

import pyarrow as pa
import pytest

from support.services.kafka import KafkaBroker
from support.services.processes import free_ports
from support.sink_rows import (
    MERGED_SESSIONS,
    in_pieces,
    late_rows,
    late_target,
    merging_sessions,
    pane_target,
    panes,
)
from tidegate.errors import SinkError, SpecError
from tidegate.spark.sinks.base import SinkTarget
from tidegate.spark.sinks.kafka import KafkaSink
from tidegate.spark.sinks.kafka import kafka as kafka_sink

pytestmark = pytest.mark.kafka
NUMBERS = count()
START, END = "1970-01-01T00:00:00.000000Z", "1970-01-01T00:01:00.000000Z"


@pytest.fixture
def sink(kafka: KafkaBroker) -> KafkaSink:
    return kafka_sink(kafka.bootstrap_servers, f"panes-{next(NUMBERS)}")


def name() -> str:
    return f"query-{next(NUMBERS)}"


def rows_of(broker: KafkaBroker, sink: KafkaSink) -> list[tuple]:
    return sorted(
        (message.json["user"], message.json["op"], message.json["pane"], message.json["clicks"])
        for message in broker.consume(sink.topic)
    )


def test_a_row_is_a_message_with_its_key_and_headers(kafka, sink):
    target = pane_target(name())
    sink.check(target)
    sink.write(
        target,
        0,
        in_pieces(panes(target, [("ann", 0, "+", 0, 3, 1.5), (None, None, "+", 1, 1, None)])),
    )
    one, other = sorted(kafka.consume(sink.topic), key=lambda message: message.headers["pane_id"])
    assert json.loads(one.key) == {"user": "ann", "window_start": START, "window_end": END}
    assert one.headers == {"pane_id": b"0" * 32, "op": b"+", "timing": b"on_time"}
    assert list(one.json) == target.schema.names
    assert one.json == {
        "user": "ann",
        "window_start": START,
        "window_end": END,
        "op": "+",
        "timing": "on_time",
        "pane": 0,
        "is_first": True,
        "is_last": False,
        "clicks": 3,
        "spent": 1.5,
        "watermark": "1970-01-01T00:09:00.000000Z",
        "emitted_at": "1970-01-01T00:10:00.000000Z",
    }
    assert json.loads(other.key) == {"user": None, "window_start": None, "window_end": None}
    assert other.json["spent"] is None
    assert other.headers["timing"] == b"late"


@pytest.fixture(params=["one process", "a new process each time"])
def new_process(request: pytest.FixtureRequest) -> Callable[[], None]:
    """What tells a sink that it is in another process: it forgets its producers."""
    return forget if request.param == "a new process each time" else lambda: None


def forget() -> None:
    sys.modules[KafkaSink.__module__]._producers.clear()


def test_a_replay_adds_nothing(kafka, sink, new_process):
    target = pane_target(name())
    for batch in (4, 4, 5, 4, 5):
        new_process()
        rest = in_pieces(
            panes(target, [("ann", 0, "+", batch, batch, 1.0), ("bob", 0, "+", batch, batch, 1.0)])
        )
        sink.write(target, batch, rest)
        assert next(rest, None) is None, "a batch is read to its end"
    assert rows_of(kafka, sink) == [
        ("ann", "+", 4, 4),
        ("ann", "+", 5, 5),
        ("bob", "+", 4, 4),
        ("bob", "+", 5, 5),
    ]
    marks = kafka.consume(sink.topic + ".tidegate")
    assert {mark.key for mark in marks} == {
        json.dumps({"query": target.query, "output": "panes"}).encode()
    }
    assert [mark.json for mark in marks] == [{"batch": 4}, {"batch": 5}]


def test_batches_are_known_by_query_and_output(kafka, sink):
    one, other = pane_target(name()), pane_target(name())
    sink.write(one, 0, iter([panes(one, [("ann", 0, "+", 0, 3, 1.5)])]))
    sink.write(other, 0, iter([panes(other, [("bob", 0, "+", 0, 3, 1.5)])]))
    late = late_target(one.query)
    sink.write(late, 0, iter([late_rows(["cid"])]))
    assert len(kafka.consume(sink.topic)) == 3


def test_retractions_are_messages_of_their_own_before_what_replaces_them(kafka, sink):
    kafka.create_topic(sink.topic, 4)
    target = pane_target(name(), mode="retracting")
    users = [f"user-{number}" for number in range(20)]
    for batch in range(3):
        back = [(user, 0, "-", batch - 1, batch - 1, 1.0) for user in users] if batch else []
        sink.write(
            target,
            batch,
            in_pieces(
                panes(target, back + [(user, 0, "+", batch, batch, 1.0) for user in users]), 7
            ),
        )
    found = kafka.consume(sink.topic)
    assert {message.partition for message in found} == {0, 1, 2, 3}
    for user in users:
        mine = [message for message in found if message.json["user"] == user]
        assert len({message.partition for message in mine}) == 1
        assert [(message.headers["op"], message.json["pane"]) for message in mine] == [
            (b"+", 0),
            (b"-", 0),
            (b"+", 1),
            (b"-", 1),
            (b"+", 2),
        ]


@pytest.mark.parametrize(
    ("mode", "feed", "removed"),
    [
        ("accumulating", False, [None]),
        ("retracting", False, ["-", None]),
        ("accumulating", True, ["delete", None]),
    ],
)
def test_a_withdrawn_window_ends_in_a_tombstone(mode, feed, removed, kafka, sink):
    kafka.create_topic(sink.topic, 2)
    target, batches = merging_sessions(name(), mode, feed=feed)
    for batch, table in enumerate(batches):
        sink.write(target, batch, in_pieces(table))
    by_key: dict[str, list] = {}
    for message in kafka.consume(sink.topic):
        by_key.setdefault(message.key.decode(), []).append(message)
    op = "_change_type" if feed else "op"
    assert sorted(
        [message.json and message.json[op] for message in messages][1:]
        for messages in by_key.values()
    ) == [[], [], removed, removed]
    last = [messages[-1] for messages in by_key.values()]
    assert {
        (
            message.json["user"],
            *(int(message.json[f"window_{end}"][17:19]) for end in ("start", "end")),
        ): message.json["clicks"]
        for message in last
        if message.value is not None
    } == MERGED_SESSIONS
    if not feed:
        assert {message.headers["op"] for message in last if message.value is None} == {b"-"}


def test_a_window_that_is_removed_and_comes_back_in_a_batch_has_no_tombstone(kafka, sink):
    target = pane_target(name())
    rows = [("ann", 0, "+", 0, 1, 1.0), ("ann", 0, "-", 0, 1, 1.0), ("ann", 0, "+", 1, 2, 1.0)]
    sink.write(target, 0, in_pieces(panes(target, rows)))
    assert rows_of(kafka, sink) == [("ann", "+", 0, 1), ("ann", "+", 1, 2)]


def test_discarding_panes_are_all_there(kafka, sink):
    target = pane_target(name(), mode="discarding")
    sink.write(
        target, 0, iter([panes(target, [("ann", 0, "+", 0, 1, 1.0), ("ann", 0, "+", 1, 2, 1.0)])])
    )
    assert rows_of(kafka, sink) == [("ann", "+", 0, 1), ("ann", "+", 1, 2)]


def test_late_rows_and_metrics(kafka, sink):
    target = late_target(name())
    for _ in range(2):
        sink.write(target, 3, in_pieces(late_rows(["ann", None])))
    found = kafka.consume(sink.topic)
    assert sorted(message.key for message in found) == [b'{"user":"ann"}', b'{"user":null}']
    assert found[0].headers == {"class": b"very_late", "reason": b"late"}
    assert found[0].json["windows"] == [{"window_start": START, "window_end": END}]
    metrics = SinkTarget(
        target.query, "metrics", pa.schema([("shard", pa.int32())]), ("user",), "accumulating"
    )
    sink.write(metrics, 3, iter([pa.table({"shard": pa.array([1], pa.int32())})]))
    assert (None, {}, {"shard": 1}) in [
        (message.key, message.headers, message.json) for message in kafka.consume(sink.topic)
    ]


def test_an_empty_batch_touches_no_broker():
    nowhere = kafka_sink(f"127.0.0.1:{free_ports(1)[0]}", "panes")
    target = pane_target(name())
    nowhere.write(target, 0, iter([]))
    nowhere.write(target, 0, iter([panes(target, [])]))


def test_a_broker_that_is_down_is_told_with_a_hint(monkeypatch):
    monkeypatch.setattr(sys.modules[KafkaSink.__module__], "METADATA_TIMEOUT", 0.5)
    sink = kafka_sink(f"127.0.0.1:{free_ports(1)[0]}", "panes", options={"sasl.password": "secret"})
    target = pane_target(name())
    for attempt in (
        lambda: sink.check(target),
        lambda: sink.write(target, 0, iter([panes(target, [("a", 0, "+", 0, 1, 1.0)])])),
    ):
        with pytest.raises(SinkError, match=r"could not .* Hint: restart the query") as caught:
            attempt()
        assert "secret" not in str(caught.value)
    assert "secret" not in repr(sink)
    assert pickle.loads(pickle.dumps(sink)) == sink  # noqa: S301 - our own


@pytest.mark.parametrize(
    ("topic", "options", "said"),
    [
        ("a topic", {}, "a topic name"),
        ("", {}, "a topic name"),
        ("x" * 245, {}, "1 to 240"),
        ("t", {"transactional.id": "mine"}, "sets transactional.id itself"),
    ],
)
def test_what_cannot_work_is_refused(topic, options, said):
    with pytest.raises(SpecError, match=f"{said}.*Hint: "):
        kafka_sink("127.0.0.1:1", topic, options=options).check(pane_target(name()))


def test_a_batch_that_fails_in_the_middle_leaves_nothing_to_readers_of_committed_messages(
    kafka, sink
):
    target = pane_target(name())
    rows = panes(target, [("ann", 0, "+", 0, 1, 1.0), ("bob", 0, "+", 0, 1, 1.0)])

    def broken() -> Iterator[pa.Table]:
        yield rows
        raise RuntimeError("the source is gone")

    with pytest.raises(RuntimeError, match="the source is gone"):
        sink.write(target, 0, broken())
    assert kafka.consume(sink.topic) == []
    sink.write(target, 0, iter([rows]))
    assert len(kafka.consume(sink.topic)) == 2


def test_a_row_that_is_too_large_for_the_topic_is_told_with_a_hint(kafka, sink):
    kafka.create_topic(sink.topic, 1, {"max.message.bytes": "2000"})
    target = pane_target(name())
    noise = "".join(map(str, range(100_000)))
    large = kafka_sink(kafka.bootstrap_servers, sink.topic, options={"compression.type": "none"})
    with pytest.raises(SinkError, match=r"Hint: raise `max.message.bytes`"):
        large.write(
            target,
            0,
            iter([panes(target, [("ann", 0, "+", 0, 1, 1.0), (noise, 0, "+", 0, 1, 1.0)])]),
        )
    assert kafka.consume(sink.topic) == []


WRITER = """
import sys, time
sys.path[:0] = sys.argv[3:]
from support.sink_rows import pane_target, panes
from tidegate.spark.sinks.kafka import kafka
target = pane_target("killed")
def slow():
    yield panes(target, [("ann", 0, "+", 0, 1, 1.0), ("bob", 0, "+", 0, 1, 1.0)])
    time.sleep(600)
kafka(sys.argv[1], sys.argv[2]).write(target, 0, slow())
"""


def test_a_writer_killed_in_its_transaction_is_undone_by_the_next_attempt(
    kafka, sink, repository: Path
):
    target = pane_target("killed")
    sink.check(target)
    writer = subprocess.Popen(
        [
            sys.executable,
            "-c",
            WRITER,
            kafka.bootstrap_servers,
            sink.topic,
            str(repository / "tests"),
            str(repository / "src"),
        ]
    )
    deadline = time.monotonic() + 60
    while len(kafka.consume(sink.topic, committed=False)) < 2:
        assert writer.poll() is None
        assert time.monotonic() < deadline
    os.kill(writer.pid, signal.SIGKILL)
    writer.wait()
    assert kafka.consume(sink.topic) == []
    for _ in range(2):
        sink.write(
            target,
            0,
            iter([panes(target, [("ann", 0, "+", 0, 1, 1.0), ("bob", 0, "+", 0, 1, 1.0)])]),
        )
    assert rows_of(kafka, sink) == [("ann", "+", 0, 1), ("bob", "+", 0, 1)]
    assert len(kafka.consume(sink.topic, committed=False)) == 4, (
        "the messages of the killed one were there, and are hidden"
    )


@pytest.mark.parametrize("end", ["commit_transaction", "abort_transaction"])
def test_batches_behind_an_open_transaction_of_another_query_are_found(kafka, sink, end):
    from confluent_kafka import Producer

    target = pane_target(name())
    rows = panes(target, [("ann", 0, "+", 0, 1, 1.0)])
    other = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": name()})
    other.init_transactions(10)

    def with_another_between() -> Iterator[pa.Table]:
        other.begin_transaction()
        other.produce(
            sink.topic + ".tidegate", b'{"batch": 9}', b'{"query": "other", "output": "panes"}'
        )
        assert other.flush(10) == 0
        yield rows

    def replay() -> None:
        sink.write(target, 0, iter([rows]))

    sink.write(target, 0, chain([rows], with_another_between()))
    assert kafka.consume(sink.topic + ".tidegate") == [], (
        "the batch is committed, but stands behind the open transaction"
    )
    forget()
    replaying = threading.Thread(target=replay)
    replaying.start()
    replaying.join(1)
    assert replaying.is_alive(), "it must wait: what is behind the open transaction is unknown"
    getattr(other, end)(10)
    replaying.join(30)
    assert not replaying.is_alive()
    assert len(kafka.consume(sink.topic)) == 2


def test_an_older_process_of_the_same_query_is_fenced(kafka, sink):
    target = pane_target(name())
    rows = panes(target, [("ann", 0, "+", 0, 1, 1.0)])

    def overtaken() -> Iterator[pa.Table]:
        yield rows
        forget()
        sink.write(target, 1, iter([rows]))
        yield rows

    sink.write(target, 0, iter([rows]))
    with pytest.raises(SinkError, match="another process runs the same query"):
        sink.write(target, 1, overtaken())
    sink.write(target, 1, iter([rows]))
    assert len(kafka.consume(sink.topic)) == 2


def test_only_so_many_producers_are_kept(kafka, sink, monkeypatch):
    module = sys.modules[KafkaSink.__module__]
    monkeypatch.setattr(module, "MAX_PRODUCERS", 2)
    forget()
    targets = [pane_target(name()) for _ in range(3)]
    for target in targets:
        sink.write(target, 0, iter([panes(target, [("ann", 0, "+", 0, 1, 1.0)])]))
    assert [query for _, query, _ in module._producers] == [target.query for target in targets[1:]]


def test_many_rows_at_once(kafka, sink):
    target = pane_target(name())
    one = panes(target, [("x", 0, "+", 0, 1, 1.0)])
    many = one.take(pa.array([0] * 150_000)).set_column(
        0, "user", pa.array([f"user-{number}" for number in range(150_000)])
    )
    sink.write(target, 0, in_pieces(many, 50_000))
    assert len({message.key for message in kafka.consume(sink.topic)}) == 150_000

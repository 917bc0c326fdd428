"""Specifics of the Kafka store: readable records, end markers, fencing, and broker failures."""

from __future__ import annotations

import itertools
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from support.services.kafka import KafkaBroker
from support.services.processes import free_ports
from support.stream_stores import blocks, everything, open_store, rows, through
from tidegate.errors import InputError, MissingExtraError, SinkError, SpecError, StateError
from tidegate.streams import Streams, kafka_clients
from tidegate.streams.kafka import KafkaStore
from tidegate.streams.kafka_cells import SEALED
from tidegate.streams.store import Conflict, Swap

needs_broker = [pytest.mark.kafka, pytest.mark.slow]
END = {"tidegate": b"end"}


@pytest.fixture
def stores(kafka: KafkaBroker) -> Iterator[tuple[KafkaStore, KafkaStore]]:
    """Two stores at one address, as in two processes; stream `s` has two segments."""
    prefix = f"k{uuid.uuid4().hex[:10]}-"
    with (
        KafkaStore(kafka.bootstrap_servers, prefix=prefix) as one,
        KafkaStore(kafka.bootstrap_servers, prefix=prefix) as other,
    ):
        one.open_segments("s", ["0", "1"])
        yield one, other


@contextmanager
def transaction(kafka: KafkaBroker, name: str):
    """A foreign transaction, committed at the end of the block."""
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "transactional.id": name,
            "transaction.timeout.ms": 60000,
        }
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    yield producer
    producer.commit_transaction(30)


class TestRecords:
    pytestmark = needs_broker

    def test_any_consumer_reads_the_events(self, kafka, stores):
        store, _ = stores
        store.append("s", {"0": rows("a", "b", keys=["k", None]), "1": rows("c", keys=["é"])})
        store.append("s", {"0": rows("d")}, whole=True)
        found = kafka.consume(f"{store.prefix}s")
        assert [(one.partition, one.key, one.value, one.headers) for one in found] == [
            (0, b"k", b"a", {}),
            (0, None, b"b", {}),
            (0, None, b"d", {}),
            (1, "é".encode(), b"c", {}),
        ]
        assert [one.offset for one in found] == [0, 1, 2, 0]

    def test_a_topic_of_others_can_be_read_and_is_no_stream(self, kafka, stores):
        store, _ = stores
        topic = kafka.create_topic(f"{store.prefix}theirs", 2)
        kafka.create_topic(f"{store.prefix}theirs.tidegate")
        kafka.produce(
            topic,
            [
                {"value": "a", "key": b"\xff", "partition": 1},
                {"value": None, "key": "k", "partition": 1},
            ],
        )
        assert store.streams() == ["s"]
        block = store.read("theirs", "1", 0, 10)
        assert (block.rows["key"].to_pylist(), block.rows["value"].to_pylist()) == (
            ["\\xff", "k"],
            [b"a", b""],
        )
        assert not block.ended
        assert store.append("theirs", {"0": rows("b")}).position == {"0": 1}

    def test_what_stands_behind_an_open_transaction_comes_when_it_has_ended(self, kafka, stores):
        store, _ = stores
        topic = f"{store.prefix}s"
        with transaction(kafka, topic) as producer:
            producer.produce(topic, b"first", partition=0)
            producer.flush(30)
            assert store.append("s", {"0": rows("second")}).position == {"0": 2}
            assert store.bounds("s")["0"] == (0, 0)
            for offset in (0, 2):
                block = store.read("s", "0", offset, 10)
                assert (block.rows.num_rows, block.next) == (0, offset)
        deadline = time.monotonic() + 600
        while store.bounds("s")["0"][1] < 3:
            assert time.monotonic() < deadline
        assert everything(store, "s", "0") == [b"first", b"second"]

    def test_segments_that_another_store_opened(self, stores):
        one, other = stores
        for store in stores:
            store.append("s", {"0": rows("a")})
            store.append("s", {"0": rows("a")}, whole=True)
        one.open_segments("s", ["2"])
        assert set(other.append("s", {"2": rows("b")}).position) == {"2"}
        other.append("s", {"2": rows("c")}, whole=True)
        one.append("s", {"2": rows("d")}, swap=Swap("a", 1, 0))
        assert everything(one, "s", "2") == [b"b", b"c", b"d"]

    def test_what_is_too_large_is_told_with_what_to_do(self, kafka, stores):
        store, _ = stores
        large = b"x" * (17 << 20)
        with (
            Streams(store).create("large", 1).writer() as writer,
            pytest.raises(InputError, match="the store accepts at most 16,776,192"),
        ):
            writer.write(large)
        with pytest.raises(SinkError, match=r"max\.message\.bytes"):
            store.append("s", {"0": rows(large)})
        assert everything(store, "s", "0") == everything(store, "large", "0") == []
        kafka.create_topic(f"{store.prefix}narrow", 1, {"max.message.bytes": "2000"})
        for whole in (False, True):
            with pytest.raises(
                SinkError, match=r"could not accept 1 of 1 rows.*max\.message\.bytes"
            ):
                store.append("narrow", {"0": rows(b"x" * 5000)}, whole=whole)
        store.append("narrow", {"0": rows("small")}, whole=True)
        store.append("narrow", {"0": rows("enough")})
        assert everything(store, "narrow", "0") == [b"small", b"enough"]


class TestSealing:
    pytestmark = needs_broker

    def test_there_is_one_end_marker_whoever_seals(self, kafka, stores):
        stores[0].append("s", {"0": rows("a")})
        ends: list[int] = []
        threads = [
            threading.Thread(target=lambda store=store: ends.append(store.seal("s", "0")))
            for store in [*stores, *stores]
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        markers = [one for one in kafka.consume(f"{stores[0].prefix}s") if one.headers == END]
        assert ends == [markers[0].offset] * 4
        assert [(one.partition, one.key, one.value) for one in markers] == [(0, None, None)]
        assert stores[1].bounds("s")["0"] == (0, ends[0])

    def test_rows_behind_the_end_marker_were_not_taken(self, kafka, stores):
        one, other = stores
        one.append("s", {"0": rows("a")})
        end = other.seal("s", "0")
        done = one.append("s", {"0": rows("b", "c"), "1": rows("d")})
        assert (dict(done.refused), dict(done.position)) == ({"0": 2}, {"1": 1})
        # It had an old view, so its rows are after the end marker, where no reader reads.
        assert [
            message.value for message in kafka.consume(f"{one.prefix}s") if message.partition == 0
        ] == [b"a", None, b"b", b"c"]
        for store in stores:
            assert [block.rows["value"].to_pylist() for block in blocks(store, "s", "0")] == [
                [b"a"]
            ]
            last = store.read("s", "0", end, 10)
            assert (last.rows.num_rows, last.next, last.ended) == (0, end, True)
        # Now it has the current view.
        assert dict(one.append("s", {"0": rows("e")}).refused) == {"0": 1}
        assert kafka.consume(f"{one.prefix}s")[3].value == b"c"

    def test_a_large_append_is_cut_where_the_segment_ends(self, stores):
        one, other = stores
        values = [f"{n}".encode() for n in range(200_000)]
        for _ in range(2):
            one.open_segments("s", [str(len(one.bounds("s")))])
            segment = str(len(one.bounds("s")) - 1)
            done = []
            writer = threading.Thread(
                target=lambda at=segment, done=done: done.append(
                    one.append("s", {at: rows(*values)})
                )
            )
            writer.start()
            while other.bounds("s")[segment][1] == 0:
                pass
            end = other.seal("s", segment)
            writer.join()
            taken = len(values) - done[0].refused.get(segment, 0)
            found = [
                value
                for block in through(other, "s", segment, 0, end + 1, 7000)
                for value in block.rows["value"].to_pylist()
            ]
            assert found == values[:taken]
            assert done[0].position[segment] <= end

    def test_a_writer_who_has_handed_over_much_meets_many_ends(self, stores):
        made = Streams(stores[0]).create("scaled", 1)
        theirs, stop = Streams(stores[1]).stream("scaled"), threading.Event()
        writer = made.writer("w", linger=None)
        writer._piece = 50
        writer._buffer = writer._new_buffer()

        def scale() -> None:
            for segments in itertools.cycle([2, 1]):
                theirs.scale(segments)
                if stop.is_set():
                    return

        scaler = threading.Thread(target=scale)
        scaler.start()
        total = 0
        while total < 3000:
            writer.write(f"{total}", f"k{total % 7}")
            total += 1
            if total % 1000 == 0:
                writer.flush()
        stop.set()
        scaler.join()
        writer.close()
        found: dict[str | None, list[int]] = {}
        with made.group("g").reader("r") as reader:
            while sum(map(len, found.values())) < total:
                for event in reader.read(10_000, wait="30 s"):
                    found.setdefault(event.key, []).append(int(event.value))
        assert found == {f"k{n}": list(range(n, total, 7)) for n in range(7)}
        assert len(stores[0].bounds("scaled")) > 2

    def test_what_a_dead_sealer_began_is_ended_by_the_next_writer(self, kafka, stores):
        one, other = stores
        one.append("s", {"0": rows("a")})
        with transaction(kafka, "sealer-that-dies") as producer:
            producer.produce(
                f"{one.prefix}s.tidegate-cells",
                b'{"end":null}',
                f"{SEALED}0".encode(),
                headers=[("version", b"1")],
            )
        deadline = time.monotonic() + 600
        while "0" not in other._table("s").ends():
            assert time.monotonic() < deadline
        done = one.append("s", {"0": rows("b")})
        assert (set(done.position), dict(done.refused)) == ({"0"}, {})
        assert everything(other, "s", "0") == [b"a", b"b"]
        assert dict(other.append("s", {"0": rows("c")}, whole=True).refused) == {"0": 1}
        assert other.read("s", "0", 0, 10).ended
        assert one.cells("s") == {}


class TestChanges:
    pytestmark = needs_broker

    def test_a_change_of_one_who_was_overtaken_is_a_conflict(self, stores):
        one, other = stores
        first = one.swap("s", Swap("a", 1, 0))
        second = other.swap("s", Swap("a", 2, first))
        with pytest.raises(Conflict):
            one.swap("s", Swap("a", 3, first))
        assert other.cell("s", "a").document == 2
        # Its producer was fenced, which shows at the next write.
        third = one.swap("s", Swap("a", 4, second))
        fourth = other.swap("s", Swap("a", 5, third))
        assert fourth > third
        done = one.append("s", {"0": rows("x"), "1": rows("y")}, swap=Swap("a", 6, fourth))
        assert set(done.position) == {"0", "1"}
        assert [everything(other, "s", segment) for segment in "01"] == [[b"x"], [b"y"]]
        assert other.cell("s", "a").document == 6

    def test_one_who_is_overtaken_in_the_middle_leaves_nothing(self, kafka, stores):
        one, other = stores
        version = one.swap("s", Swap("a", 1, 0))

        def document(position):
            assert position == {"0": 2, "1": 1}
            other.swap("s", Swap("a", "faster", version))
            return "slower"

        with pytest.raises(Conflict):
            one.append(
                "s", {"0": rows("x", "y"), "1": rows("z")}, swap=Swap("a", document, version)
            )
        assert other.cell("s", "a").document == "faster"
        other.append("s", {"0": rows("after")})
        for store in stores:
            assert [everything(store, "s", segment) for segment in "01"] == [[b"after"], []]
        assert [one.value for one in kafka.consume(f"{one.prefix}s")] == [b"after"]
        assert len(kafka.consume(f"{one.prefix}s", committed=False)) == 4

    def test_a_document_is_made_of_the_position(self, stores):
        one, other = stores
        done = one.append(
            "s", {"0": rows("x", "y")}, swap=Swap("a", lambda position: {"at": position}, 0)
        )
        assert other.cell("s", "a").document == {"at": {"0": 2}} == {"at": done.position}

    def test_cells_are_the_same_after_compaction(self, kafka, stores):
        one, _ = stores
        version = other = 0
        for n in range(30):
            version, other = (
                one.swap("s", Swap("w#a", n, version)),
                one.swap("s", Swap("w#b", n, other)),
            )
        gone = one.swap("s", Swap("gone", 1, 0))
        one.swap("s", Swap("gone", None, gone))
        one.seal("s", "1")
        newest = {
            message.key: message for message in kafka.consume(f"{one.prefix}s.tidegate-cells")
        }
        with KafkaStore(kafka.bootstrap_servers, prefix=f"c{one.prefix}") as copy:
            topic = kafka.create_topic(f"{copy.prefix}s.tidegate-cells")
            records = [
                {"key": one.key, "value": one.value, "headers": dict(one.headers)}
                for one in newest.values()
            ]
            kafka.produce(topic, records)
            assert copy.cells("s") == one.cells("s") != {}
            assert copy._table("s").ends() == one._table("s").ends()
            assert copy.swap("s", Swap("w#a", "next", version)) > version
        with open_store(one.url) as again:
            assert again.cells("s") == one.cells("s")


def test_brokers_that_are_away_are_told_in_time_and_without_secrets(monkeypatch):
    monkeypatch.setattr(kafka_clients, "ANSWER_SECONDS", 1.0)
    servers = f"127.0.0.1:{free_ports(1)[0]}"
    with KafkaStore(
        servers, options=(("sasl.password", "hunter2"), ("security.protocol", "plaintext"))
    ) as store:
        calls = [
            store.streams,
            lambda: store.cells("s"),
            lambda: store.append("s", {"0": rows("a")}),
            lambda: store.swap("s", Swap("a", 1, 0)),
        ]
        for call in calls:
            with pytest.raises(StateError, match=f"{servers}.*Hint: ") as output:
                call()
            assert "hunter2" not in str(output.value)
        assert "hunter2" not in repr(store)


def test_an_address_opens_an_equal_store():
    with KafkaStore(
        "a:1,b:2", prefix="p-", options=(("sasl.password", "a&b=/?"), ("client.id", "x"))
    ) as store:
        assert store.url.startswith("kafka://a:1,b:2/p-?")
        with open_store(store.url) as other:
            assert other.url == store.url
            assert other._clients._options == {"sasl.password": "a&b=/?", "client.id": "x"}


def test_what_a_store_does_not_take():
    with pytest.raises(SpecError, match=r"sets transactional\.id itself"):
        KafkaStore("a:1", options=(("transactional.id", "x"),))
    for prefix in ("a b", "x" * 35, "ä"):
        with pytest.raises(SpecError, match="prefix"):
            KafkaStore("a:1", prefix=prefix)
    with KafkaStore("a:1") as store, pytest.raises(SpecError, match="tidegate-cells"):
        store.bounds("x.tidegate-cells")


def test_without_the_package_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(MissingExtraError, match=r"tidegate\[kafka\]"):
        KafkaStore("a:1")

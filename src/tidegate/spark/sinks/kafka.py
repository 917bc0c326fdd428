"""The Kafka sink: one message per row, and one transaction per batch, which includes the batch id.

The value of a message is the row as a JSON object (see `tidegate.spark.sinks.json_rendering`). The
key and the headers are:

    panes     key: JSON of the key columns, `window_start` and `window_end`
              headers: `pane_id`, `op`, `timing`
    late      key: JSON of the key columns of the input, or none
              headers: `class`, `reason`
    metrics   no key, no headers

In retracting mode and in a change feed, a removed row (`op` `-`, or `_change_type` `delete`) is a
message with its value; in accumulating mode it is no message. A key whose last row in a batch is
removed then gets a tombstone, a message without a value, with the headers of the removed row. So
the last message of a key is its current row or a tombstone: compaction keeps the current table.

Messages with the same key go to the same partition (as with Java's default partitioner), in the
order of the panes. A replay has the same `pane_id`, so consumers of uncommitted messages can drop
duplicates.

The compacted topic `<topic>.tidegate` has the last batch of each query and output. It is read
before the first batch of a process, after the transactional id has fenced off earlier producers and
aborted their transactions. A batch that is not newer is skipped.
"""

from __future__ import annotations

import atexit
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.errors import MissingExtraError, SinkError, SpecError
from tidegate.spark.sinks.base import PANE_ID, DriverSink, SinkTarget, without_pane_id
from tidegate.spark.sinks.json_rendering import json_objects, one_array

if TYPE_CHECKING:
    from confluent_kafka import Producer

TRANSACTION_TIMEOUT = 30.0
"""Timeout of each step of a transaction, in seconds."""
METADATA_TIMEOUT = 10.0
"""Timeout of metadata requests, in seconds."""
MAX_TOPIC_LENGTH = 249
BATCHES = ".tidegate"
"""The suffix of the topic with the batch ids."""
# Compaction skips the active segment: small segments keep the topic short.
BATCHES_CONFIG = {
    "cleanup.policy": "compact",
    "segment.bytes": "1048576",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "60000",
}
RESERVED = ("bootstrap.servers", "enable.idempotence", "transactional.id")
# To open a producer costs more than a small batch. If another process has fenced it off since, it
# fails at its next message.
_producers: dict[tuple[KafkaSink, str, str], tuple[Producer, int]] = {}
"""Open producers and their last batch, by sink, query and output."""
MAX_PRODUCERS = 16
atexit.register(_producers.clear)
T = TypeVar("T")
Headers = list[tuple[str, str | bytes | None]]
Message = tuple[bytes | None, bytes | None, Headers]
"""Key, value and headers."""
# Transient errors after a topic was created or has moved.
_TRANSIENT = {
    "LEADER_NOT_AVAILABLE",
    "NOT_LEADER_FOR_PARTITION",
    "UNKNOWN_TOPIC_OR_PART",
    "_UNKNOWN_PARTITION",
    "_UNKNOWN_TOPIC",
}
_CHANGE = "_change_type"
_HEADERS = {"panes": (PANE_ID, "pair_id", "op", "timing"), "late": ("class", "reason")}


@dataclass(frozen=True)
class KafkaSink(DriverSink):
    """Writes to a Kafka topic."""

    bootstrap_servers: str
    topic: str
    # Not shown: they may contain a password.
    options: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    def check(self, target: SinkTarget) -> None:  # noqa: ARG002 - any output can be written
        batches = self.topic + BATCHES
        if (
            len(batches) > MAX_TOPIC_LENGTH
            or not all(one.isascii() and (one.isalnum() or one in "._-") for one in self.topic)
            or not self.topic
        ):
            raise SpecError(
                f"a topic name has 1 to {MAX_TOPIC_LENGTH - len(BATCHES)} of the characters a-z,"
                f" A-Z, 0-9, `.`, `_`, `-`, got `{self.topic}`. Hint: use another name"
            )
        reserved = sorted({name for name, _ in self.options} & set(RESERVED))
        if reserved:
            raise SpecError(
                f"the Kafka sink sets {', '.join(reserved)} itself. Hint: leave it out of `options`"
            )
        with self._translate_errors("be reached"):
            self._make_topics()

    def write(self, target: SinkTarget, batch: int, tables: Iterator[pa.Table]) -> None:
        rows = (table for table in tables if len(table))
        first = next(rows, None)
        if first is None:
            return
        with self._translate_errors("accept the batch"):
            place = (self, target.query, target.output)
            # Removed while in use, so that it is never shared; put back only after success.
            producer, newest = (
                _producers.pop(place) if place in _producers else self._open_producer(target)
            )
            if newest < batch:
                self._send(producer, target, batch, chain([first], rows))
            _keep(place, producer, max(newest, batch))
        # After a replay: Spark expects the remaining rows to be consumed.
        for _ in rows:
            pass

    @contextmanager
    def _translate_errors(self, what: str) -> Iterator[None]:
        """Raise errors of Kafka as `SinkError`, with a hint."""
        try:
            from confluent_kafka import KafkaException
        except ImportError:
            raise MissingExtraError("confluent-kafka", "kafka", "the Kafka sink") from None
        try:
            yield
        except KafkaException as error:
            reason = error.args[0]
            hint = "restart the query when the broker is back; it continues with this batch"
            if reason.name() in {"MSG_SIZE_TOO_LARGE", "_MSG_SIZE_TOO_LARGE"}:
                hint = (
                    'raise `max.message.bytes` of the topic and set options={"message.max.bytes":'
                    " ...}"
                )
            elif "AUTHORIZATION" in reason.name():
                hint = (
                    "the user needs write access to the topic and to its `.tidegate` topic, read"
                    " access to the latter, and access to transactional ids"
                )
            elif reason.name() in {"_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH"}:
                hint = "another process runs the same query; stop one of them"
            where = (
                f"the brokers {self.bootstrap_servers} could not {what} for the topic"
                f" `{self.topic}`"
            )
            raise SinkError(f"{where} ({reason.str()}). Hint: {hint}") from error

    def _settings(self, more: Mapping[str, Any]) -> dict[str, Any]:
        return {"bootstrap.servers": self.bootstrap_servers, "log_level": 0, **more}

    def _make_topics(self) -> None:
        """Create the missing topics; the partitions are those of the broker's default."""
        from confluent_kafka import KafkaError, KafkaException
        from confluent_kafka.admin import AdminClient
        from confluent_kafka.cimpl import NewTopic

        admin = AdminClient(self._settings(dict(self._connection_options())))
        existing = admin.list_topics(timeout=METADATA_TIMEOUT).topics
        wanted = [NewTopic(self.topic), NewTopic(self.topic + BATCHES, 1, config=BATCHES_CONFIG)]
        missing = [topic for topic in wanted if topic.topic not in existing]
        if not missing:
            return
        for made in admin.create_topics(missing, operation_timeout=TRANSACTION_TIMEOUT).values():
            try:
                made.result(TRANSACTION_TIMEOUT)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise
        # A new topic may be visible only after a moment.
        deadline = time.monotonic() + TRANSACTION_TIMEOUT
        while (
            not {topic.topic for topic in wanted}
            <= set(admin.list_topics(timeout=METADATA_TIMEOUT).topics)
            and time.monotonic() < deadline
        ):
            time.sleep(0.02)

    def _connection_options(self) -> Iterator[tuple[str, str]]:
        """The options for the connection, which other clients than the producer need too."""
        prefixes = ("security.", "sasl.", "ssl.", "client.", "socket.", "broker.", "log")
        return ((name, value) for name, value in self.options if name.startswith(prefixes))

    def _open_producer(self, target: SinkTarget) -> tuple[Producer, int]:
        """A producer that has aborted all earlier attempts, and the last committed batch."""
        from confluent_kafka import Producer

        defaults = {"linger.ms": "20", "compression.type": "lz4", "partitioner": "murmur2_random"}
        own = {"transactional.id": f"tidegate.{target.query}.{target.output}"}
        producer = Producer(self._settings({**defaults, **dict(self.options), **own}))
        self._make_topics()
        _retried(producer.init_transactions)
        return producer, self._last_batch(target)

    def _last_batch(self, target: SinkTarget) -> int:
        """The last committed batch; -1 if there is none.

        Other queries may write to the topic as well. Messages after an open transaction cannot be
        read, so it waits until the transaction ends.
        """
        from confluent_kafka import Consumer, KafkaException, TopicPartition

        consumer = Consumer(
            self._settings(
                {
                    **dict(self._connection_options()),
                    "group.id": "tidegate",
                    "enable.auto.commit": "false",
                    "auto.offset.reset": "earliest",
                    "isolation.level": "read_committed",
                    "enable.partition.eof": "true",
                    "fetch.wait.max.ms": "20",
                }
            )
        )
        try:
            whole = TopicPartition(self.topic + BATCHES, 0, 0)
            end = self._end_of_batches()
            consumer.assign([whole])
            newest, reached = -1, 0
            wanted = _batch_key(target)
            deadline = time.monotonic() + TRANSACTION_TIMEOUT + self._transaction_seconds()
            while reached < end:
                if time.monotonic() > deadline:
                    raise SinkError(
                        f"the topic `{self.topic}{BATCHES}` cannot be read to its end: a"
                        " transaction on it stays open. Hint: look for a hanging transaction"
                        " (kafka-transactions.sh find-hanging), and restart the query"
                    )
                message = consumer.poll(0.1)
                if message is None:
                    continue
                failure = message.error()
                if failure is not None and failure.name() in _TRANSIENT:
                    continue
                if failure is not None and failure.name() != "_PARTITION_EOF":
                    raise KafkaException(failure)
                # Control records and aborted messages are not delivered, but have offsets.
                reached = (message.offset() or 0) + (failure is None)
                if failure is None and message.key() == wanted:
                    newest = max(newest, int(json.loads(message.value() or b"{}").get("batch", -1)))
            return newest
        finally:
            consumer.close()

    def _end_of_batches(self) -> int:
        """The end offset of the topic of batches, including open transactions."""
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer(
            self._settings(
                {
                    **dict(self._connection_options()),
                    "group.id": "tidegate",
                    "isolation.level": "read_uncommitted",
                }
            )
        )
        try:
            bounds = _retried(
                lambda seconds: consumer.get_watermark_offsets(
                    TopicPartition(self.topic + BATCHES, 0), timeout=seconds
                )
            )
            return int(bounds[1])
        finally:
            consumer.close()

    def _transaction_seconds(self) -> float:
        """The timeout of a transaction at the broker."""
        return int(dict(self.options).get("transaction.timeout.ms", "60000")) / 1000

    def _send(
        self, producer: Producer, target: SinkTarget, batch: int, tables: Iterator[pa.Table]
    ) -> None:
        """Write the rows and the batch id in one transaction."""
        from confluent_kafka import KafkaException

        failures: list[Any] = []

        def delivered(failure: Any, _message: Any) -> None:
            if failure is not None:
                failures.append(failure)

        producer.begin_transaction()
        try:
            for part in _parts(target, tables):
                for key, value, headers in part:
                    _produce(producer, self.topic, key, value, headers, delivered)
                producer.poll(0)
                if failures:
                    break
            if not failures:
                value = json.dumps({"batch": batch}).encode()
                _produce(producer, self.topic + BATCHES, _batch_key(target), value, [], delivered)
            # Also after a failure, because follow-up errors may be reported before it.
            producer.flush()
            _raise_first(failures)
            _retried(producer.commit_transaction)
        except BaseException:
            # If it cannot be aborted now, the next attempt does so.
            with suppress(KafkaException):
                producer.abort_transaction(5)
            raise


def kafka(
    bootstrap_servers: str, topic: str, *, options: Mapping[str, Any] | None = None
) -> KafkaSink:
    """A sink that writes one message per row to a Kafka topic, one transaction per batch.

    A window that is withdrawn ends in a tombstone, so that a compacted topic holds the current
    table; except in discarding mode, where a window has several panes.

    `options`: settings of librdkafka, such as `security.protocol` or `compression.type`. Missing
    topics are created: the topic, and `<topic>.tidegate` for the batch ids. Consumers with
    `isolation.level=read_committed` read each row exactly once. The brokers must be reachable from
    Spark's driver or Spark Connect server.
    """
    settings = {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in (options or {}).items()
    }
    return KafkaSink(bootstrap_servers, topic, tuple(sorted(settings.items())))


def _keep(place: tuple[KafkaSink, str, str], producer: Producer, newest: int) -> None:
    """Put back a producer; the oldest one is closed if there are too many."""
    _producers[place] = (producer, newest)
    while len(_producers) > MAX_PRODUCERS:
        with suppress(KeyError, StopIteration):
            _producers.pop(next(iter(_producers)))


def _parts(target: SinkTarget, tables: Iterator[pa.Table]) -> Iterator[Iterable[Message]]:
    """The messages of each table, then the tombstones of the batch."""
    removed: dict[bytes | None, Headers] = {}
    for table in tables:
        yield _messages(target, table, removed)
    yield ((key, None, headers) for key, headers in removed.items())


def _messages(
    target: SinkTarget, table: pa.Table, removed: dict[bytes | None, Headers]
) -> Iterator[Message]:
    """The messages of the rows; `removed` collects the keys whose last row is a removed one."""
    is_feed = _CHANGE in table.column_names
    is_shown = is_feed or target.mode != "accumulating"
    rows = without_pane_id(target, table)
    values = json_objects(rows, rows.column_names).cast(pa.large_binary()).to_pylist()
    identity = _key_columns(target)
    keys = (
        json_objects(table, identity).cast(pa.large_binary()).to_pylist()
        if identity
        else [None] * len(table)
    )
    names = [name for name in _HEADERS.get(target.output, ()) if name in table.column_names]
    heads = [one_array(table.column(name)).cast(pa.large_binary()).to_pylist() for name in names]
    is_removed = [False] * len(table)
    if target.output == "panes":
        column, word = (_CHANGE, "delete") if is_feed else ("op", "-")
        # A table of SQL without a column for it has no retractions.
        if column in table.column_names:
            is_removed = pc.equal(one_array(table.column(column)), word).to_pylist()
    for number, (key, value) in enumerate(zip(keys, values, strict=True)):
        headers: Headers = [(name, head[number]) for name, head in zip(names, heads, strict=True)]
        if is_removed[number]:
            removed[key] = headers
        else:
            removed.pop(key, None)
        if is_shown or not is_removed[number]:
            yield key, value, headers


def _key_columns(target: SinkTarget) -> list[str]:
    if target.output == "panes":
        return list(target.identity)
    return (
        [name for name in target.key if name in target.schema.names]
        if target.output == "late"
        else []
    )


def _batch_key(target: SinkTarget) -> bytes:
    return json.dumps({"query": target.query, "output": target.output}).encode()


def _raise_first(failures: list[Any]) -> None:
    """Raise the first failure, but not the purge of messages that another one caused."""
    from confluent_kafka import KafkaException

    if failures:
        raise KafkaException(
            next(
                (failure for failure in failures if not failure.name().startswith("_PURGE")),
                failures[0],
            )
        )


def _produce(
    producer: Producer,
    topic: str,
    key: bytes | None,
    value: bytes | None,
    headers: Headers,
    delivered: Any,
) -> None:
    while True:
        try:
            producer.produce(topic, value, key, headers=headers, on_delivery=delivered)
        except BufferError:
            # The queue is full: wait until messages are sent.
            producer.poll(0.1)
        else:
            return


def _retried(step: Callable[[float], T]) -> T:
    """The result of a step, which is retried after transient errors."""
    from confluent_kafka import KafkaException

    deadline = time.monotonic() + TRANSACTION_TIMEOUT
    while True:
        try:
            return step(TRANSACTION_TIMEOUT)
        except KafkaException as error:
            if (
                not (error.args[0].retriable() or error.args[0].name() in _TRANSIENT)
                or time.monotonic() > deadline
            ):
                raise
            time.sleep(0.05)

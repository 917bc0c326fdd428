"""Kafka clients of a store: configuration, timeouts and error translation."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from tidegate.errors import MissingExtraError, SinkError, SpecError, StateError, TidegateError

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Producer
    from confluent_kafka.admin import AdminClient

SECONDS = 30.0
"""Timeout of a delivery, and of beginning or ending a transaction."""
ANSWER_SECONDS = 10.0
"""Timeout of a metadata request."""
TRANSACTION_SECONDS = 10.0
"""The brokers abort the transaction of a crashed process after this time.

It blocks readers until then.
"""
LARGEST = 16 << 20
"""Maximum size of a record in the topics of streams, in bytes."""
PAUSE = 0.001
OURS = (
    "bootstrap.servers",
    "enable.idempotence",
    "transactional.id",
    "isolation.level",
    "group.id",
    "logger",
    "log_level",
)
# Transient errors after a topic was created or has moved.
NOT_YET = {
    "FENCED_LEADER_EPOCH",
    "LEADER_NOT_AVAILABLE",
    "NOT_LEADER_FOR_PARTITION",
    "UNKNOWN_LEADER_EPOCH",
    "UNKNOWN_TOPIC_OR_PART",
    "_UNKNOWN_PARTITION",
    "_UNKNOWN_TOPIC",
}
GONE = {"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_PARTITION", "_UNKNOWN_TOPIC", "UNKNOWN_TOPIC_ID"}
# Another producer has taken the transactional id, or the brokers have expired it. Unsent records
# are purged then.
FENCED = {
    "_FENCED",
    "PRODUCER_FENCED",
    "INVALID_PRODUCER_EPOCH",
    "INVALID_PRODUCER_ID_MAPPING",
    "_PURGE_QUEUE",
    "_PURGE_INFLIGHT",
}
# If another producer takes the id while a transaction ends, the outcome may be unknown.
UNSURE = {"UNKNOWN"}
TOO_LARGE = {
    "MSG_SIZE_TOO_LARGE",
    "_MSG_SIZE_TOO_LARGE",
    "INVALID_MSG_SIZE",
    "RECORD_LIST_TOO_LARGE",
}
# Errors of requests that do not say why the brokers do not answer.
_NO_ANSWER = {"_TIMED_OUT", "_TIMED_OUT_QUEUE", "_TRANSPORT", "_ALL_BROKERS_DOWN", "_DESTROY"}
T = TypeVar("T")
Place = tuple[str, int]
"""A topic and a partition number."""

# librdkafka logs to stderr by itself, even for routine events such as a fenced producer.
LOGGER = logging.getLogger(__name__)
LOGGER.addHandler(logging.NullHandler())
# Fencing is routine here: it shows that another process was faster.
LOGGER.addFilter(lambda record: "fenced" not in record.getMessage())


class Clients:
    """Kafka clients: one shared admin client, and new consumers and producers."""

    purpose = "a store of streams in Kafka"
    """What needs the clients, for errors."""
    reserved: tuple[str, ...] = OURS
    """The options that users cannot set."""

    def __init__(self, servers: str, options: tuple[tuple[str, str], ...]) -> None:
        try:
            import confluent_kafka  # noqa: F401 - checks that the package is installed
        except ImportError:
            raise MissingExtraError("confluent-kafka", "kafka", self.purpose) from None
        ours = sorted({name for name, _ in options} & set(self.reserved))
        if ours:
            raise SpecError(
                f"{self.purpose} sets {', '.join(ours)} itself. Hint: remove it from `options`"
            )
        self.servers = servers
        self._options = dict(options)
        self._lock = threading.Lock()
        self._admin: AdminClient | None = None
        self._connection_error: Any = None

    # Errors

    def _note_connection_error(self, error: Any) -> None:
        if self._connection_error is None or error.name() != "_ALL_BROKERS_DOWN":
            self._connection_error = error

    def cause(self, reason: Any) -> Any:
        """The error of the connection behind a request without an answer; else the error itself.

        A wrong password is an error of the connection, and requests only time out.
        """
        if reason is not None and reason.name() not in _NO_ANSWER:
            return reason
        if self._admin is not None:
            self._admin.poll(0)
        return self._connection_error or reason

    @contextmanager
    def translated_errors(self, what: str) -> Iterator[None]:
        """Translate Kafka errors into errors of this project."""
        from confluent_kafka import KafkaException

        try:
            yield
        except KafkaException as error:
            raise self.failure(self.cause(error.args[0]), what) from error

    def failure(
        self, reason: Any, what: str, kind: type[TidegateError] = StateError
    ) -> TidegateError:
        hint = "retry when the brokers are reachable"
        if reason.name() in TOO_LARGE:
            kind, hint = (
                SinkError,
                (
                    "raise `max.message.bytes` of the topic and give the store the option"
                    ' "message.max.bytes"'
                ),
            )
        elif "AUTHORIZATION" in reason.name() or "AUTHENTICATION" in reason.name():
            hint = (
                "the user must be allowed to create, read and write the topics of the stream, and"
                " to use transactional ids that start with `tidegate.`"
            )
        elif reason.name() in FENCED:
            hint = "other processes keep changing the same cell; retry"
        elif reason.name() in GONE:
            hint = "another process may have dropped the stream"
        return kind(f"the brokers {self.servers} could not {what} ({reason.str()}). Hint: {hint}")

    # Clients

    def admin(self) -> AdminClient:
        from confluent_kafka.admin import AdminClient

        with self._lock:
            if self._admin is None:
                self._admin = AdminClient(self.settings(self.connecting()))
            return self._admin

    def consumer(self) -> Consumer:
        """A consumer of committed records, to be assigned to a partition."""
        from confluent_kafka import Consumer

        # The wait is the cost of an end-of-partition event. Consumers at the end are unassigned,
        # and fetch nothing.
        own = {
            "group.id": "tidegate",
            "enable.auto.commit": "false",
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "enable.partition.eof": "true",
            "fetch.wait.max.ms": "1",
            "queued.max.messages.kbytes": "16384",
            "allow.auto.create.topics": "false",
        }
        return Consumer(self.settings({**self.connecting(), **own}))

    def producer(self, transactional_id: str | None = None) -> Producer:
        """A producer; transactional if it has an id."""
        from confluent_kafka import Producer

        # With the default backoff of 100 ms, consecutive transactions would spend more time waiting
        # than working.
        usual = {
            "message.timeout.ms": str(int(SECONDS * 1000)),
            "message.max.bytes": str(LARGEST),
            "linger.ms": "5",
            "retry.backoff.ms": "10",
        }
        own: dict[str, Any] = {"enable.idempotence": "true"}
        if transactional_id is not None:
            usual |= {
                "transaction.timeout.ms": str(int(TRANSACTION_SECONDS * 1000)),
                "linger.ms": "20",
            }
            usual["message.timeout.ms"] = self._options.get(
                "transaction.timeout.ms", usual["transaction.timeout.ms"]
            )
            own["transactional.id"] = transactional_id
        return Producer(self.settings({**usual, **self._options, **own}))

    @property
    def largest(self) -> int:
        """The maximum size of a record in bytes."""
        return int(self._options.get("message.max.bytes", LARGEST))

    @property
    def transaction_seconds(self) -> float:
        """The transaction timeout of the brokers."""
        return int(self._options.get("transaction.timeout.ms", TRANSACTION_SECONDS * 1000)) / 1000

    def connecting(self) -> dict[str, Any]:
        """The connection options shared by all clients."""
        kinds = (
            "security.",
            "sasl.",
            "ssl.",
            "client.",
            "socket.",
            "broker.",
            "log",
            "reconnect.",
            "retry.",
        )
        return {name: value for name, value in self._options.items() if name.startswith(kinds)}

    def settings(self, more: Mapping[str, Any]) -> dict[str, Any]:
        """The configuration of a client."""
        return {
            "bootstrap.servers": self.servers,
            "logger": LOGGER,
            "log_level": 0,
            "error_cb": self._note_connection_error,
            **more,
        }

    # Metadata

    def partitions(self) -> dict[str, int]:
        """The number of partitions with a leader, for all topics."""
        with self.translated_errors("list their topics"):
            found = self.admin().list_topics(timeout=ANSWER_SECONDS).topics
        return {
            name: sum(one.leader >= 0 for one in topic.partitions.values())
            for name, topic in found.items()
        }

    def end(self, topic: str, *, committed: bool = True) -> int:
        """The end of a single-partition topic, of committed records or with open transactions."""
        return self.ends([(topic, 0)], committed=committed)[topic, 0]

    def ends(self, places: Sequence[Place], *, committed: bool = True) -> dict[Place, int]:
        """The ends of partitions."""
        return self._offsets(places, ["latest"], committed=committed)[0]

    def bounds(self, places: Sequence[Place]) -> dict[Place, tuple[int, int]]:
        """The first offset and the committed end of partitions."""
        first, last = self._offsets(places, ["earliest", "latest"], committed=True)
        return {place: (first[place], last[place]) for place in places}

    def _offsets(
        self, places: Sequence[Place], kinds: Sequence[str], *, committed: bool
    ) -> list[dict[Place, int]]:
        from confluent_kafka import IsolationLevel, TopicPartition, admin

        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        specs: Any = admin
        wanted = [
            {TopicPartition(*place): getattr(specs.OffsetSpec, kind)() for place in places}
            for kind in kinds
        ]

        def ask() -> list[dict[Place, int]]:
            # Send all requests before awaiting the first response.
            listed = [
                self.admin().list_offsets(
                    one, isolation_level=level, request_timeout=ANSWER_SECONDS
                )
                for one in wanted
                if one
            ]
            found = [
                {
                    (at.topic, at.partition): answer.result(ANSWER_SECONDS + 1).offset
                    for at, answer in one.items()
                }
                for one in listed
            ]
            return found or [{} for _ in kinds]

        with self.translated_errors(
            f"return the ends of {', '.join(sorted({topic for topic, _ in places}))}"
        ):
            return retried(ask)

    def until_seen(self, places: Mapping[Place, int]) -> dict[Place, int]:
        """Wait until records at these offsets are visible, and return the visible ends.

        A commit is durable when it returns, but visible later: open transactions before it delay
        it.
        """
        waiting = dict(places)
        seen: dict[Place, int] = {}
        deadline = time.monotonic() + self.transaction_seconds + SECONDS
        while waiting:
            seen |= self.ends(list(waiting))
            waiting = {place: offset for place, offset in waiting.items() if seen[place] <= offset}
            if waiting and time.monotonic() > deadline:
                raise hanging(next(iter(waiting))[0])
            if waiting:
                time.sleep(PAUSE / 5)
        return seen


def hanging(topic: str) -> StateError:
    """The error for a topic whose end cannot be reached."""
    return StateError(
        f"the topic `{topic}` cannot be read to its end: a transaction on it stays open. "
        "Hint: look for a hanging transaction (kafka-transactions.sh find-hanging)"
    )


def retried(step: Callable[[], T]) -> T:
    """The result of a step, repeated while the error is retriable or transient."""
    from confluent_kafka import KafkaException

    deadline = time.monotonic() + ANSWER_SECONDS
    while True:
        try:
            return step()
        except KafkaException as error:
            reason = error.args[0]
            if (
                reason.fatal()
                or not (reason.retriable() or reason.name() in NOT_YET)
                or time.monotonic() > deadline
            ):
                raise
            time.sleep(20 * PAUSE)

"""The clients of a Kafka store: how brokers are asked, how long they may take, and what their
failures are called.
"""

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
"""How long a step may take: rows to be delivered, a transaction to begin or to end."""
ANSWER_SECONDS = 10.0
"""How long a broker may take to answer a question."""
TRANSACTION_SECONDS = 10.0
"""After so long the brokers undo the transaction of a process that died; until then nobody reads
what stands behind it.
"""
LARGEST = 16 << 20
"""The topics of streams take records of so many bytes."""
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
# What brokers answer for a moment after a topic was made or has moved.
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
# Another one has taken the transactional id, or the brokers have forgotten it. Records that were
# still to be sent are then purged.
FENCED = {
    "_FENCED",
    "PRODUCER_FENCED",
    "INVALID_PRODUCER_EPOCH",
    "INVALID_PRODUCER_ID_MAPPING",
    "_PURGE_QUEUE",
    "_PURGE_INFLIGHT",
}
# A broker that is asked to end a transaction while another producer takes its id may answer that it
# does not know.
UNSURE = {"UNKNOWN"}
TOO_LARGE = {
    "MSG_SIZE_TOO_LARGE",
    "_MSG_SIZE_TOO_LARGE",
    "INVALID_MSG_SIZE",
    "RECORD_LIST_TOO_LARGE",
}
T = TypeVar("T")
Place = tuple[str, int]
"""A topic and the number of a partition."""

# librdkafka writes to stderr by itself, also what is no trouble, such as that another process took
# over an id.
LOGGER = logging.getLogger(__name__)
LOGGER.addHandler(logging.NullHandler())
# Being fenced is how one learns that another was faster: no reason to alarm anybody.
LOGGER.addFilter(lambda record: "fenced" not in record.getMessage())


class Clients:
    """What reaches the brokers: one client that asks and makes topics, and new ones that read and
    write.
    """

    def __init__(self, servers: str, options: tuple[tuple[str, str], ...]) -> None:
        try:
            import confluent_kafka  # noqa: F401 - only whether it is there
        except ImportError:
            raise MissingExtraError(
                "confluent-kafka", "kafka", "a store of streams in Kafka"
            ) from None
        ours = sorted({name for name, _ in options} & set(OURS))
        if ours:
            raise SpecError(
                f"a store of streams sets {', '.join(ours)} itself. Hint: leave it out of `options`"
            )
        self.servers = servers
        self._options = dict(options)
        self._lock = threading.Lock()
        self._admin: AdminClient | None = None

    # Failures

    @contextmanager
    def told(self, what: str) -> Iterator[None]:
        """Failures of Kafka in the words of the project."""
        from confluent_kafka import KafkaException

        try:
            yield
        except KafkaException as error:
            raise self.failure(error.args[0], what) from error

    def failure(
        self, reason: Any, what: str, kind: type[TidegateError] = StateError
    ) -> TidegateError:
        hint = "try again when the brokers are back"
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
                "the user needs the rights to make, read and write the topics of the stream, and"
                " for transactional ids that begin with `tidegate.`"
            )
        elif reason.name() in FENCED:
            hint = "others change the same all the time; try again"
        elif reason.name() in GONE:
            hint = "somebody may have dropped the stream meanwhile"
        return kind(f"the brokers {self.servers} could not {what} ({reason.str()}). Hint: {hint}")

    # Clients

    def admin(self) -> AdminClient:
        from confluent_kafka.admin import AdminClient

        with self._lock:
            if self._admin is None:
                self._admin = AdminClient(self._settings(self._connecting()))
            return self._admin

    def consumer(self) -> Consumer:
        """A reader of what is committed, to be assigned to a partition."""
        from confluent_kafka import Consumer

        # A short wait is what the end of a partition costs that is told. Readers who are at the end
        # are not assigned, and ask for nothing.
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
        return Consumer(self._settings({**self._connecting(), **own}))

    def producer(self, transactional_id: str | None = None) -> Producer:
        """A writer; with an id it writes in transactions."""
        from confluent_kafka import Producer

        # With the usual pause of 100 ms a transaction that follows another one waits longer than it
        # takes.
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
        return Producer(self._settings({**usual, **self._options, **own}))

    @property
    def largest(self) -> int:
        """How many bytes a record of ours may have."""
        return int(self._options.get("message.max.bytes", LARGEST))

    @property
    def transaction_seconds(self) -> float:
        """How long the brokers let a transaction be open."""
        return int(self._options.get("transaction.timeout.ms", TRANSACTION_SECONDS * 1000)) / 1000

    def _connecting(self) -> dict[str, Any]:
        """The options that all clients take: how to reach the brokers."""
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

    def _settings(self, more: Mapping[str, Any]) -> dict[str, Any]:
        return {"bootstrap.servers": self.servers, "logger": LOGGER, "log_level": 0, **more}

    # Questions

    def partitions(self) -> dict[str, int]:
        """All topics, and how many partitions with a leader each has."""
        with self.told("tell their topics"):
            found = self.admin().list_topics(timeout=ANSWER_SECONDS).topics
        return {
            name: sum(one.leader >= 0 for one in topic.partitions.values())
            for name, topic in found.items()
        }

    def end(self, topic: str, *, committed: bool = True) -> int:
        """The end of a topic of one partition: what a reader of committed records sees, or with
        open transactions.
        """
        return self.ends([(topic, 0)], committed=committed)[topic, 0]

    def ends(self, places: Sequence[Place], *, committed: bool = True) -> dict[Place, int]:
        """The ends of partitions."""
        return self._offsets(places, ["latest"], committed=committed)[0]

    def bounds(self, places: Sequence[Place]) -> dict[Place, tuple[int, int]]:
        """The first offsets that partitions still have, and the ends of what is committed."""
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
            # All are asked before the first answer is awaited.
            told = [
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
                for one in told
            ]
            return found or [{} for _ in kinds]

        with self.told(f"tell the ends of {', '.join(sorted({topic for topic, _ in places}))}"):
            return retried(ask)

    def until_seen(self, places: Mapping[Place, int]) -> dict[Place, int]:
        """Wait until readers see what stands at these offsets, and return the ends that they see.

        A commit is sure when it returns, but readers see it a moment later, and later still while
        somebody else's transaction is open before it.
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
    """The error of a topic that cannot be read although there is more."""
    return StateError(
        f"the topic `{topic}` cannot be read to its end: a transaction on it stays open. "
        "Hint: look for a hanging transaction (kafka-transactions.sh find-hanging)"
    )


def retried(step: Callable[[], T]) -> T:
    """What the step gives; it is repeated while the broker says that it may be, or is not yet
    ready.
    """
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

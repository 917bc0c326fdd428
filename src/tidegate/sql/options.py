"""The options of connectors in the vocabulary of Flink, checked by name and by value."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tidegate.instants import duration
from tidegate.sql.positions import Place
from tidegate.sql.statements import CreateTable, TableOption

_TRUE = {"true": True, "false": False}


@dataclass(frozen=True)
class Connector:
    """The options of a connector; a name that ends with a dot is a prefix."""

    name: str
    options: frozenset[str]
    required: tuple[str, ...] = ()
    choices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The values of options that have only these."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Options of Flink without a counterpart, with a hint; a name may be a prefix."""


_COMMON = frozenset(
    {"connector", "scan.watermark.idle-timeout", "scan.watermark.partitions", "partition", "offset"}
    | {"id", "key", "watermark"}
)
_JSON = frozenset(
    {
        "json.ignore-parse-errors",
        "json.fail-on-missing-field",
        # Both forms of times are read.
        "json.timestamp-format.standard",
    }
)
_CSV = frozenset({"csv.field-delimiter", "csv.ignore-parse-errors", "csv.header"})
_FLAG = ("true", "false")
_FORMATS = {"json": _JSON, "csv": _CSV}
_ALIGNMENT = {
    "scan.watermark.alignment.": "Spark cannot pause a partition; bound the size of a batch",
    "scan.watermark.emit.": "a watermark is emitted with every batch",
    "scan.parallelism": "set the number of shards with `SET 'tidegate.shards' = '4'`",
    "sink.parallelism": "set the number of shards with `SET 'tidegate.shards' = '4'`",
}
_KAFKA_REFUSED = {
    **_ALIGNMENT,
    "sink.partitioner": "messages go to the partition of their key",
    "sink.transactional-id-prefix": "the id of the query names its transactions",
    "topic-pattern": "name the topics: 'topic' = 'a;b'",
    "scan.bounded.": "run the script with `SET 'execution.runtime-mode' = 'batch'`",
    "scan.topic-partition-discovery.interval": "Spark discovers partitions in every batch",
    "key.": "the key is the PRIMARY KEY of the table; read it with METADATA FROM 'key'",
    "value.fields-include": "the value has all columns",
}

CONNECTORS: dict[str, Connector] = {
    connector.name: connector
    for connector in (
        Connector(
            "kafka",
            _COMMON
            | _JSON
            | _CSV
            | {"topic", "properties.", "format", "value.format", "scan.startup.mode"}
            | {"scan.startup.timestamp-millis", "scan.startup.specific-offsets"}
            | {"scan.max-offsets-per-trigger", "sink.delivery-guarantee"},
            ("topic", "properties.bootstrap.servers"),
            {
                "format": ("json", "csv", "raw"),
                "value.format": ("json", "csv", "raw"),
                "scan.startup.mode": (
                    *("earliest-offset", "latest-offset", "timestamp", "specific-offsets"),
                    "group-offsets",
                ),
                "sink.delivery-guarantee": ("exactly-once",),
                "json.ignore-parse-errors": _FLAG,
                "json.timestamp-format.standard": ("SQL", "ISO-8601"),
                "json.fail-on-missing-field": ("false",),
                "csv.ignore-parse-errors": _FLAG,
            },
            _KAFKA_REFUSED,
        ),
        Connector(
            "upsert-kafka",
            _COMMON | _JSON | {"topic", "properties.", "key.format", "value.format"},
            ("topic", "properties.bootstrap.servers"),
            {"key.format": ("json",), "value.format": ("json",)},
            {name: hint for name, hint in _KAFKA_REFUSED.items() if name != "key."},
        ),
        Connector(
            "filesystem",
            _COMMON
            | _JSON
            | _CSV
            | {"path", "format", "source.monitor-interval", "source.path.glob"}
            | {"source.max-files-per-trigger", "parquet.compression"},
            ("path", "format"),
            {
                "format": ("json", "csv", "parquet"),
                "json.ignore-parse-errors": _FLAG,
                "json.timestamp-format.standard": ("SQL", "ISO-8601"),
                "json.fail-on-missing-field": ("false",),
                "csv.ignore-parse-errors": _FLAG,
                "csv.header": _FLAG,
            },
            {
                **_ALIGNMENT,
                "sink.rolling-policy.": "a batch writes one file per task",
                "sink.partition-commit.": "a batch is committed as a whole",
                "partition.": "the folders of partitions are found by their names",
                "source.path.regex-pattern": "'source.path.glob' = '*.json'",
                "auto-compaction": "compact the files outside the query",
                "compaction.": "compact the files outside the query",
            },
        ),
        Connector(
            "jdbc",
            _COMMON | {"url", "table-name", "username", "password", "driver"},
            ("url", "table-name"),
            {"driver": ("org.postgresql.Driver",)},
            {
                **_ALIGNMENT,
                "sink.buffer-flush.": "a batch is written in one transaction",
                "sink.max-retries": "a failed batch is replayed",
                "scan.": "a JDBC table is a sink",
                "lookup.": "a JDBC table is a sink; map the stream with an async function",
            },
        ),
        Connector("delta", _COMMON | {"path"}, ("path",), {}, _ALIGNMENT),
        Connector(
            "print",
            _COMMON | {"rows"},
            (),
            {},
            {**_ALIGNMENT, "print-identifier": "the heading has the batch", "standard-error": ""},
        ),
        Connector("blackhole", _COMMON, (), {}, _ALIGNMENT),
        Connector(
            "tidegate",
            _COMMON | _JSON | {"store", "stream", "start", "format", "max-events-per-trigger"},
            ("store", "stream"),
            {"format": ("json", "raw")},
            _ALIGNMENT,
        ),
    )
}


class Options:
    """The checked options of one table."""

    def __init__(self, statement: CreateTable) -> None:
        self._place = statement.place
        self._found = {option.name: option for option in statement.options}
        self.connector = self._connector(statement)
        self._check(statement.options)

    def get(self, *names: str) -> str | None:
        """The value of the first of these options that is set."""
        return next((self._found[name].value for name in names if name in self._found), None)

    def need(self, name: str) -> str:
        """The value of a required option."""
        return self._found[name].value

    def flag(self, name: str) -> bool:
        """Whether an option is true."""
        return _TRUE[(self.get(name) or "false").lower()]

    def place(self, name: str) -> Place:
        """Where an option stands; the table itself if it is not set."""
        return self._found[name].place if name in self._found else self._place

    def whole(self, name: str) -> int | None:
        """The value of an option that is a positive whole number."""
        text = self.get(name)
        if text is None:
            return None
        if not text.isdecimal() or not int(text):
            raise self.place(name).error(
                f"`{name}` must be a whole number greater than 0, got {text!r}"
            )
        return int(text)

    def duration(self, name: str) -> int | None:
        """The value of an option that is a duration, in microseconds."""
        text = self.get(name)
        if text is None:
            return None
        try:
            return duration(text)
        except ValueError as error:
            raise self.place(name).error(f"`{name}`: {error}") from None

    def prefixed(self, prefix: str) -> dict[str, str]:
        """The options whose names begin with a prefix, without it."""
        return {
            name.removeprefix(prefix): option.value
            for name, option in self._found.items()
            if name.startswith(prefix)
        }

    def _connector(self, statement: CreateTable) -> Connector | None:
        option = self._found.get("connector")
        if option is None:
            unknown = [one for one in statement.options if one.name not in _COMMON]
            if unknown:
                raise unknown[0].place.error(
                    f"the table `{statement.name}` has options but no connector",
                    f"'connector' = {' | '.join(map(repr, CONNECTORS))}",
                )
            return None
        found = CONNECTORS.get(option.value)
        if found is None:
            near = difflib.get_close_matches(option.value, CONNECTORS, 1)
            raise option.place.error(
                f"`{option.value}` is not a connector",
                f"did you mean '{near[0]}'?" if near else f"one of {', '.join(CONNECTORS)}",
            )
        return found

    def _check(self, options: Sequence[TableOption]) -> None:
        if self.connector is None:
            return
        for option in options:
            self._check_name(self.connector, option)
            allowed = self.connector.choices.get(option.name)
            if allowed is not None and option.value.lower() not in map(str.lower, allowed):
                raise option.place.error(
                    f"`{option.name}` of `{self.connector.name}` can't be {option.value!r}",
                    f"one of {', '.join(map(repr, allowed))}",
                )
        for name in self.connector.required:
            if name not in self._found:
                raise self._place.error(
                    f"a table with the connector `{self.connector.name}` needs the option `{name}`",
                    f"WITH (..., '{name}' = '...')",
                )

    def _check_name(self, connector: Connector, option: TableOption) -> None:
        name = option.name
        if name in connector.options or any(
            known.endswith(".") and name.startswith(known) for known in connector.options
        ):
            return
        for refused, hint in connector.refused.items():
            if name == refused or (refused.endswith(".") and name.startswith(refused)):
                raise option.place.error(f"`{name}` of Flink does not apply here", hint)
        near = difflib.get_close_matches(name, [o for o in connector.options if o[-1] != "."], 1)
        raise option.place.error(
            f"`{name}` is not an option of the connector `{connector.name}`",
            f"did you mean '{near[0]}'?"
            if near
            else f"the options are {', '.join(sorted(connector.options))}",
        )

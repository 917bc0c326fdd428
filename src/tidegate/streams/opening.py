"""Opening a store by its address."""

from __future__ import annotations

import os
from urllib.parse import parse_qsl, unquote, urlsplit

from tidegate.errors import SpecError
from tidegate.streams.store import Store


def open_store(url: str | os.PathLike[str], *, create: bool = True) -> Store:
    """The store at an address: a path or `sqlite:PATH`, or `kafka://HOST:PORT/PREFIX`; a file that
    is not there is made only with `create`.
    """
    text = os.fspath(url)
    if text.startswith("kafka:"):
        from tidegate.streams.kafka import KafkaStore

        parts = urlsplit(text)
        if not parts.netloc:
            # What stands behind the `?` may be secret.
            raise SpecError(
                f"the address of a Kafka store names its brokers, got `{text.partition('?')[0]}`."
                " Hint: kafka://localhost:9092/prefix"
            )
        return KafkaStore(
            parts.netloc,
            prefix=unquote(parts.path.lstrip("/")),
            options=tuple(parse_qsl(parts.query)),
        )
    from tidegate.streams.sqlite import SqliteStore

    if not text.startswith("sqlite:"):
        return SqliteStore(text, create=create)
    path, _, query = text.removeprefix("sqlite:").partition("?")
    options = dict(parse_qsl(query))
    if unknown := options.keys() - {"synchronous"}:
        raise SpecError(
            f"a SQLite store has no option `{min(unknown)}`. Hint: sqlite:PATH?synchronous=normal"
        )
    return SqliteStore(path, create=create, **options)

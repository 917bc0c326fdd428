"""The servers as fixtures: started when a test first asks for one, stopped after the last test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest

from support.services.cluster import SparkCluster, spark_cluster
from support.services.connect import ConnectServer, connect_server
from support.services.kafka import KafkaBroker, kafka_broker
from support.services.postgres import PostgresServer, postgres_server
from support.services.processes import ServiceUnavailable


def _run(server: Callable[[], AbstractContextManager[Any]]) -> Iterator[Any]:
    try:
        running = server()
        # Only the start may end in a skip.
        started = running.__enter__()
    except ServiceUnavailable as error:
        pytest.skip(str(error))
    try:
        yield started
    finally:
        running.__exit__(None, None, None)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A private PostgreSQL server."""
    yield from _run(postgres_server)


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaBroker]:
    """A private Kafka broker."""
    yield from _run(kafka_broker)


@pytest.fixture(scope="session")
def cluster() -> Iterator[SparkCluster]:
    """A Spark master with two workers."""
    yield from _run(spark_cluster)


@pytest.fixture(scope="session")
def connect() -> Iterator[ConnectServer]:
    """A Spark Connect server."""
    yield from _run(connect_server)

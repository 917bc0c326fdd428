"""Every kind of stream store as a fixture, with a location of its own for each test.

A test requests `store`, or `store_url` to open several.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidegate.streams.store import Store, open_store

STORES = ["sqlite", pytest.param("kafka", marks=[pytest.mark.kafka, pytest.mark.slow])]


@pytest.fixture(params=STORES)
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty store, of each kind."""
    if request.param == "sqlite":
        return f"sqlite:{tmp_path / 'streams.db'}"
    servers = request.getfixturevalue("kafka").bootstrap_servers
    return f"kafka://{servers}/t{uuid.uuid4().hex[:12]}-"


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    """An open store of each kind."""
    with open_store(store_url) as found:
        yield found

"""Every store of streams as a fixture, each test in a place of its own.

A test asks for `store`, or for `store_url` where it opens several.
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
    """A store of each kind, where nothing has been before."""
    if request.param == "sqlite":
        return f"sqlite:{tmp_path / 'streams.db'}"
    servers = request.getfixturevalue("kafka").bootstrap_servers
    return f"kafka://{servers}/t{uuid.uuid4().hex[:12]}-"


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    """An open store of each kind."""
    with open_store(store_url) as found:
        yield found

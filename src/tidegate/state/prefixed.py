"""A part of a store, for one of several operators that share it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from tidegate.state.protocol import Store


class Prefixed:
    """All names begin with a prefix; the owner of the whole store commits and closes it."""

    def __init__(self, store: Store, prefix: str) -> None:
        self._store, self._prefix = store, prefix
        self.spills = store.spills

    def put_table(self, name: str, table: pa.Table) -> None:
        self._store.put_table(self._prefix + name, table)

    def get_table(self, name: str) -> pa.Table:
        return self._store.get_table(self._prefix + name)

    def put_json(self, name: str, document: Any) -> None:
        self._store.put_json(self._prefix + name, document)

    def get_json(self, name: str, default: Any = None) -> Any:
        return self._store.get_json(self._prefix + name, default)

    def delete(self, name: str) -> None:
        self._store.delete(self._prefix + name)

    def delete_prefix(self, prefix: str) -> None:
        self._store.delete_prefix(self._prefix + prefix)

    def names(self, prefix: str = "") -> list[str]:
        return [
            name.removeprefix(self._prefix) for name in self._store.names(self._prefix + prefix)
        ]

    def contains(self, name: str) -> bool:
        return self._store.contains(self._prefix + name)

    def commit(self) -> None:
        """Nothing is durable before the whole is."""

    def close(self) -> None:
        """The whole is closed by its owner."""

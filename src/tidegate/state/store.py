"""The store protocol: a map from names to Arrow tables or JSON documents, with atomic commits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import pyarrow as pa

from tidegate.errors import StateError


class Store(Protocol):
    """Storage of operator state.

    Contract:
    - Tables and documents share one namespace; putting one kind over the other replaces it.
    - A write is visible to later reads at once. It is durable only after `commit`, which is atomic:
      after a crash, opening the store restores the last commit, never a part of one.
    - A table is not changed after it was put. A document is copied when it is put and when it is
      read.
    - `close` does not commit: uncommitted writes are lost.
    """

    spills: bool
    """Whether tables may leave memory after a commit and are read again on demand.

    Callers need not cache them then.
    """
    is_durable: bool
    """Whether a commit outlives the process."""

    def put_table(self, name: str, table: pa.Table) -> None: ...

    def get_table(self, name: str) -> pa.Table:
        """The table with this name; raises KeyError if there is none."""
        ...

    def put_json(self, name: str, document: Any) -> None: ...

    def get_json(self, name: str, default: Any = None) -> Any:
        """The document with this name, or the default."""
        ...

    def delete(self, name: str) -> None:
        """Delete a name; no error if it does not exist."""
        ...

    def delete_prefix(self, prefix: str) -> None: ...

    def names(self, prefix: str = "") -> list[str]:
        """The names that start with the prefix, sorted."""
        ...

    def contains(self, name: str) -> bool: ...

    def commit(self) -> None: ...

    def close(self) -> None: ...


def wrong_kind(name: str, wanted: str, found: str) -> StateError:
    """The error for a table read as a document, or the reverse."""
    return StateError(
        f"`{name}` was read as a {wanted}, but it holds a {found}. Hint: use another name; a name"
        " holds one kind"
    )


def closed(where: object) -> StateError:
    """The error for any use after `close`."""
    return StateError(f"the store {where} is closed. Hint: open it again")


@contextmanager
def closed_on_error(store: Store) -> Iterator[None]:
    """Close the store if the block fails, so that it can be opened again."""
    try:
        yield
    except BaseException:
        store.close()
        raise


class PrefixedStore:
    """A view of a store for one of several operators: all names get a prefix.

    The owner of the whole store commits and closes it.
    """

    def __init__(self, store: Store, prefix: str) -> None:
        self._store, self._prefix = store, prefix
        self.spills, self.is_durable = store.spills, store.is_durable

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
        """No effect: the owner commits the whole store."""

    def close(self) -> None:
        """No effect: the owner closes the whole store."""

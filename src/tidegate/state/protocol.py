"""A store is a map from names to Arrow tables or JSON documents whose writes become durable
together.
"""

from __future__ import annotations

from typing import Any, Protocol

import pyarrow as pa

from tidegate.errors import StateError


class Store(Protocol):
    """Where state lives.

    Contract:
    - Tables and documents share one set of names; putting one kind over the other replaces it.
    - A write is seen by later reads at once. It is durable only with `commit`, which takes all
      writes since the last one
      together: after a crash, opening the store gives exactly the state of a commit, never a part of one.
    - A table is not changed after it was put. A document is copied when it is put and again when it
      is got.
    - `close` does not commit: what was not committed is gone.
    """

    spills: bool
    """True when a table may leave memory after a commit and is read again on demand, so that nobody
    needs to keep a copy.
    """

    def put_table(self, name: str, table: pa.Table) -> None: ...

    def get_table(self, name: str) -> pa.Table:
        """The table under a name; KeyError when there is nothing."""
        ...

    def put_json(self, name: str, document: Any) -> None: ...

    def get_json(self, name: str, default: Any = None) -> Any:
        """The document under a name, or the default when there is nothing."""
        ...

    def delete(self, name: str) -> None:
        """Forget a name; one that is not there is no error."""
        ...

    def delete_prefix(self, prefix: str) -> None: ...

    def names(self, prefix: str = "") -> list[str]:
        """The names that begin with the prefix, sorted."""
        ...

    def contains(self, name: str) -> bool: ...

    def commit(self) -> None: ...

    def close(self) -> None: ...


def wrong_kind(name: str, wanted: str, found: str) -> StateError:
    """The error for a table read as a document, or the reverse."""
    return StateError(
        f"`{name}` was read as a {wanted}, but it holds a {found}. Hint: one name holds one kind;"
        " use another name"
    )


def closed(where: object) -> StateError:
    """The error for any use after `close`."""
    return StateError(f"the store {where} is closed. Hint: open it again")

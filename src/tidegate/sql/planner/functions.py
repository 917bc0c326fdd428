"""The scalar functions that queries may call."""

from __future__ import annotations

from functools import cache

import duckdb

from tidegate.sql.plan import Catalog
from tidegate.sql.rewrites import NAMES

OWN = frozenset(
    {
        "PROCTIME",
        "LATE",
        "WINDOW",
        "SESSION_WINDOW",
        "WINDOW_TIME",
        "TABLE",
        "MERGED",
        "TOP_K",
        "MEAN",
        "COUNT_DISTINCT",
    }
    | {"SOME", "EVERY", "COLLECT", "AGGREGATE_OF"}
    | {
        f"{name}_{end}"
        for name in ("TUMBLE", "HOP", "SESSION", "CUMULATE")
        for end in ("START", "END", "ROWTIME", "PROCTIME")
    }
)
"""Functions that the planner replaces."""


@cache
def _builtin() -> frozenset[str]:
    """The scalar functions of DuckDB."""
    with duckdb.connect() as connection:
        found = connection.execute(
            "SELECT DISTINCT function_name FROM duckdb_functions()"
            " WHERE function_type IN ('scalar', 'macro')"
        )
        return frozenset(name.upper() for (name,) in found.fetchall())


def known_functions(catalog: Catalog) -> frozenset[str]:
    """The names of all functions, in capitals, beside those that the parser knows."""
    named = {name.upper() for name in (*catalog.functions, *catalog.aggregates)}
    return OWN | NAMES | _builtin() | named

"""`tidegate.sql`: a script of SQL as a query, or as the inserts that it makes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tidegate.errors import MissingExtraError

if TYPE_CHECKING:
    from tidegate.spec.aggregates import Aggregate


def sql(
    text: str,
    /,
    *,
    tables: Mapping[str, Any] | None = None,
    aggregates: Mapping[str, Callable[..., Aggregate] | Aggregate] | None = None,
    folder: str | os.PathLike[str] | None = None,
    **named: Any,
) -> Any:
    """The query of a script, its inserts, or the text of its EXPLAIN; nothing of it runs yet.

    - `tables`, and further arguments by name: what queries read beside the tables that the script
      creates. A stream, a DataFrame, a direct source, panes, joined rows, another query, an Arrow
      table, a pandas frame or a list of dictionaries.
    - `aggregates`: user-defined aggregates by name, or functions of columns that make them.
    - `folder`: where relative paths of tables begin. Default: the working directory.

    A query has `df`, `late_df`, `write` and `explain` like a pipeline, `embedded` to run in this
    process, and `collect` for tables that end. Inserts have `start` and `explain`.
    """
    try:
        from tidegate.sql.session import run_script
    except ModuleNotFoundError as error:
        if error.name not in ("sqlglot", "duckdb"):
            raise
        raise MissingExtraError(error.name, "sql", "SQL") from None
    return run_script(
        text,
        {**(tables or {}), **named},
        aggregates=aggregates,
        folder=None if folder is None else os.fspath(folder),
    )

"""What `SHOW` and `DESCRIBE` print: names of tables, and the columns of one."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from tidegate.operators.text_table import text_lines
from tidegate.sql.definitions import TableDefinition
from tidegate.sql.explain import worded
from tidegate.sql.plan import Table


class Listing(str):
    """Text about the tables of a script; no result of the script."""

    __slots__ = ()


def listed(heading: str, names: Sequence[str]) -> Listing:
    """Names below a heading."""
    return _table({heading: sorted(names)})


def described(table: Table, definition: TableDefinition | None) -> Listing:
    """The columns of a table or a view: types, keys, and how they come about."""
    names = list(table.columns or ())
    schema = table.schema if table.schema is not None else pa.schema([])
    marks = {time.column: worded(time.watermark) for time in table.input.times}
    computed = {} if definition is None else dict(definition.computed.columns)
    metadata = {} if definition is None else dict(definition.metadata)
    key = () if definition is None else definition.primary_key

    def extra(name: str) -> str:
        if name in computed:
            return f"AS {computed[name].sql(dialect='spark')}"
        if name in metadata:
            return f"METADATA FROM '{metadata[name]}'"
        return "AS PROCTIME()" if name in table.proctimes else ""

    return _table(
        {
            "name": names,
            "type": [str(schema.field(one).type) if one in schema.names else "" for one in names],
            "key": ["PRIMARY KEY" if one in key else "" for one in names],
            "extras": [extra(one) for one in names],
            "watermark": [marks.get(one, "") for one in names],
        }
    )


def _table(columns: dict[str, list[str]]) -> Listing:
    rows = pa.table({name: pa.array(values, pa.string()) for name, values in columns.items()})
    return Listing("\n".join(text_lines([rows])))

"""The PostgreSQL sink: panes as a table of the newest results, other outputs appended, each batch
in one transaction.

Panes are inserted or updated by key and window; in discarding mode by key, window and pane, since
each pane is a part of its own. A retraction deletes its row. So the table always holds the truth of
now, and its column `op` is always `+`. Late rows and metrics are appended, with the id of their
batch in the column `tidegate_batch`.

The id of the newest batch of a query's output stands in the table `tidegate_batches`, in the schema
of the sink's table, and is written in the same transaction: a batch that is not newer is skipped.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tidegate.errors import MissingExtraError, SinkError, SpecError
from tidegate.spark.sinks.base import DriverSink, SinkTarget, without_pane_id
from tidegate.spark.sinks.postgres_columns import LONG, csv_lines, fits, type_of

if TYPE_CHECKING:
    from psycopg import Connection
    from psycopg.sql import SQL, Composable, Composed

OLDEST_SERVER = 15
BATCHES = "tidegate_batches"
BATCH = "tidegate_batch"
ROW = "tidegate_row"
STAGED = "tidegate_staged"
LONGEST_NAME = 63


@dataclass(frozen=True)
class PostgresSink(DriverSink):
    """A table of a PostgreSQL database."""

    # It may hold a password.
    dsn: str = field(repr=False)
    table: str
    schema: str | None = None
    create: bool = True

    def check(self, target: SinkTarget) -> None:
        self._check_names(target)
        with self._connected() as connection:
            columns = self._columns(connection)
            if columns is None and not self.create:
                raise SinkError(
                    f"{self._said} does not exist, and create=False. Hint:"
                    f" {self._create_text(connection, target)}"
                )
            if columns is not None:
                self._compare(target, columns)
                if not self.create and _is_panes(target):
                    self._need_index(connection, target)

    def write(self, target: SinkTarget, batch: int, tables: Iterator[pa.Table]) -> None:
        rows = (without_pane_id(target, table) for table in tables if len(table))
        first = next(rows, None)
        if first is None:
            return
        with self._connected() as connection:
            if not self._take(connection, target, batch):
                # Replayed: the rows are there. What remains is read, because Spark counts on it.
                for _ in rows:
                    pass
                return
            self._prepare(connection, target)
            takes_back = self._stage(connection, target, chain([first], rows))
            if _is_panes(target):
                self._apply(connection, target, takes_back)
            else:
                self._append(connection, target, batch)

    @property
    def _said(self) -> str:
        return f"the table `{self.schema + '.' if self.schema else ''}{self.table}`"

    def _check_names(self, target: SinkTarget) -> None:
        if "." in self.table:
            raise SpecError(
                f'the table `{self.table}` has a point in its name. Hint: postgres(dsn, "table",'
                ' schema="schema")'
            )
        names = [self.table, *target.schema.names]
        long = [
            name for name in names if len(name.encode()) > LONGEST_NAME or not name or "\0" in name
        ]
        if long:
            raise SinkError(
                f"names in PostgreSQL have 1 to {LONGEST_NAME} bytes, got {long}. Hint: rename the"
                " column or the table"
            )
        taken = sorted({BATCH, ROW} & set(target.schema.names))
        if taken:
            raise SinkError(
                f"the sink needs the column {', '.join(taken)} for itself. Hint: rename that column"
                " of the input"
            )
        for column in target.schema:
            type_of(column)

    @contextmanager
    def _connected(self) -> Iterator[Connection[Any]]:
        """A connection whose work is committed at the end of the block, and undone when it
        fails.
        """
        try:
            import psycopg
            from psycopg.conninfo import conninfo_to_dict
        except ImportError:
            raise MissingExtraError("psycopg", "postgres", "the PostgreSQL sink") from None
        try:
            said: dict[str, Any] = dict(conninfo_to_dict(self.dsn))
        except psycopg.Error as error:
            raise SinkError(
                f"the address of the PostgreSQL server cannot be read ({_line(error)}). Hint:"
                ' "host=... dbname=... user=..." or postgresql://...'
            ) from None
        try:
            usual: dict[str, Any] = {"application_name": "tidegate", "connect_timeout": "10"}
            with psycopg.connect(**{**usual, **said, "client_encoding": "UTF8"}) as connection:
                if connection.info.server_version < OLDEST_SERVER * 10_000:
                    raise SinkError(
                        f"keys may be null, which needs PostgreSQL {OLDEST_SERVER} or newer (unique"
                        f" nulls); the server is {connection.info.server_version // 10_000}. Hint:"
                        " use a newer server"
                    )
                yield connection
        except psycopg.OperationalError as error:
            raise SinkError(
                f"the PostgreSQL server of {self._said} cannot be reached, or was lost"
                f" ({_line(error)}); nothing of the batch was written. Hint: start the query again"
                " when the server is back; it goes on with this batch"
            ) from error
        except psycopg.Error as error:
            raise SinkError(
                f"PostgreSQL refused the rows for {self._said} ({_line(error)}); nothing of the"
                " batch was written. Hint: compare the table with the columns of the output, and"
                " the rights of the user"
            ) from error

    def _take(self, connection: Connection[Any], target: SinkTarget, batch: int) -> bool:
        """Note the batch; false where it, or a newer one, is noted already. Another attempt at the
        same batch waits here for the end of the first.
        """
        sql = _sql()
        batches = self._name(BATCHES)
        if connection.execute(
            sql("SELECT to_regclass({})").format(self._text(BATCHES))
        ).fetchone() == (None,):
            # Two that make the same table at once fail otherwise.
            connection.execute(sql("SELECT pg_advisory_xact_lock(hashtext('tidegate'))"))
            made = (
                "CREATE TABLE IF NOT EXISTS {} (query text, output text, batch bigint NOT NULL,"
                " PRIMARY KEY (query, output))"
            )
            connection.execute(sql(made).format(batches))
        statement = sql(
            "INSERT INTO {0} AS known (query, output, batch) VALUES (%s, %s, %s) ON CONFLICT"
            " (query, output) DO UPDATE SET batch = excluded.batch WHERE known.batch <"
            " excluded.batch RETURNING batch"
        ).format(batches)
        return (
            connection.execute(statement, (target.query, target.output, batch)).fetchone()
            is not None
        )

    def _prepare(self, connection: Connection[Any], target: SinkTarget) -> None:
        """See that the table is there and is ours to write."""
        columns = self._columns(connection)
        if columns is not None:
            self._compare(target, columns)
        elif self.create:
            connection.execute(self._create(target))
        else:
            raise SinkError(
                f"{self._said} does not exist, and create=False. Hint:"
                f" {self._create_text(connection, target)}"
            )
        if not _is_panes(target):
            return
        if not self.create:
            self._need_index(connection, target)
        elif not self._has_index(connection, target):
            connection.execute(self._create_index(target))

    def _stage(
        self, connection: Connection[Any], target: SinkTarget, tables: Iterator[pa.Table]
    ) -> set[tuple[bool, ...]]:
        """Copy the rows into a temporary table, in their order; which identity columns are null,
        for each kind of retraction that is among them.
        """
        sql, names = _sql(), _identifiers(target.schema.names)
        columns = sql(", ").join(
            sql("{} {}").format(name, sql(type_of(column)))
            for name, column in zip(names, target.schema, strict=True)
        )
        connection.execute(
            sql("CREATE TEMPORARY TABLE {} ({} bigint, {}) ON COMMIT DROP").format(
                *_identifiers([STAGED, ROW]), columns
            )
        )
        kinds: set[tuple[bool, ...]] = set()
        done = 0
        copy = sql("COPY {} ({}, {}) FROM STDIN (FORMAT csv)").format(
            *_identifiers([STAGED, ROW]), sql(", ").join(names)
        )
        with connection.cursor() as cursor, cursor.copy(copy) as copying:
            for table in tables:
                wanted = table.select(target.schema.names)
                kinds |= _kinds_of_retractions(target, wanted)
                numbered = wanted.add_column(0, ROW, pa.array(np.arange(done, done + len(table))))
                copying.write(memoryview(csv_lines(numbered)))
                done += len(table)
        return kinds

    def _apply(
        self, connection: Connection[Any], target: SinkTarget, takes_back: set[tuple[bool, ...]]
    ) -> None:
        """Delete what is taken back, then insert or update the last word of each row."""
        sql, identity = _sql(), _identity(target)
        for nulls in sorted(takes_back):
            match = sql(" AND ").join(
                _match(target, name, is_null) for name, is_null in zip(identity, nulls, strict=True)
            )
            delete = sql("DELETE FROM {} AS old USING {} AS new WHERE new.op = '-' AND {}")
            connection.execute(
                delete.format(self._name(self.table), *_identifiers([STAGED]), match)
            )
        names = _identifiers(target.schema.names)
        listed = sql(", ").join(names)
        by = sql(", ").join(_identifiers(identity))
        update = sql(", ").join(sql("{0} = excluded.{0}").format(name) for name in names)
        statement = sql(
            "INSERT INTO {table} ({columns}) SELECT {columns} FROM "
            "(SELECT DISTINCT ON ({by}) * FROM {staged} ORDER BY {by}, {row} DESC) AS last WHERE last.op = '+' "
            "ON CONFLICT ({identity}) DO UPDATE SET {update}"
        ).format(
            table=self._name(self.table),
            columns=listed,
            by=by,
            staged=_identifiers([STAGED])[0],
            row=_identifiers([ROW])[0],
            identity=_indexed(target),
            update=update,
        )
        connection.execute(statement)

    def _append(self, connection: Connection[Any], target: SinkTarget, batch: int) -> None:
        sql, listed = _sql(), _sql()(", ").join(_identifiers(target.schema.names))
        statement = sql(
            "INSERT INTO {} ({}, {columns}) SELECT %s, {columns} FROM {} ORDER BY {}"
        ).format(self._name(self.table), *_identifiers([BATCH, STAGED, ROW]), columns=listed)
        connection.execute(statement, (batch,))

    def _columns(self, connection: Connection[Any]) -> dict[str, tuple[str, bool]] | None:
        """Name, type and whether a value is needed, of the columns that the table has; None where
        there is no table.
        """
        table = connection.execute(
            _sql()("SELECT to_regclass({})::oid").format(self._text(self.table))
        ).fetchone()
        if table is None or table[0] is None:
            return None
        listed = connection.execute(
            "SELECT attname, format_type(atttypid, atttypmod), attnotnull AND NOT atthasdef AND"
            " attidentity = '' FROM pg_attribute WHERE attrelid = %s AND attnum > 0 AND NOT"
            " attisdropped ORDER BY attnum",
            (table[0],),
        )
        return {name: (type, needed) for name, type, needed in listed.fetchall()}

    def _compare(self, target: SinkTarget, there: dict[str, tuple[str, bool]]) -> None:
        """Refuse a table that cannot take the rows."""
        wanted = _wanted(target)
        lacking = [f"{name} {type}" for name, type in wanted.items() if name not in there]
        if lacking:
            add = ", ".join(
                f'ADD COLUMN "{name}" {type}' for name, type in wanted.items() if name not in there
            )
            raise SinkError(
                f"{self._said} lacks the columns: {', '.join(lacking)}. Hint: ALTER TABLE ..."
                f" {add}; or write to another table"
            )
        other = [
            f"{name} is {there[name][0]}, not {type}"
            for name, type in wanted.items()
            if not fits(type, there[name][0])
        ]
        if other:
            raise SinkError(
                f"{self._said} has columns of other types: {'; '.join(other)}. Hint: write to"
                " another table, or alter this one"
            )
        needed = [
            name for name, (_, value_needed) in there.items() if value_needed and name not in wanted
        ]
        if needed:
            raise SinkError(
                f"{self._said} wants values for columns that the output does not have:"
                f" {', '.join(needed)}. Hint: give them a default"
            )

    def _create(self, target: SinkTarget) -> Composed:
        sql = _sql()
        columns = (
            sql("{} {}").format(*_identifiers([name]), sql(type))
            for name, type in _wanted(target).items()
        )
        return sql("CREATE TABLE {} ({})").format(self._name(self.table), sql(", ").join(columns))

    def _create_index(self, target: SinkTarget) -> Composed:
        name = _identifiers([self._index(target)])[0]
        return _sql()("CREATE UNIQUE INDEX {} ON {} ({}) NULLS NOT DISTINCT").format(
            name, self._name(self.table), _indexed(target)
        )

    def _create_text(self, connection: Connection[Any], target: SinkTarget) -> str:
        text = self._create(target).as_string(connection)
        return (
            f"{text}; {self._create_index(target).as_string(connection)}"
            if _is_panes(target)
            else text
        )

    def _index(self, target: SinkTarget) -> str:
        """The name of the unique index, another one for other columns."""
        digest = hashlib.sha256("\0".join(_identity(target)).encode()).hexdigest()[:8]
        # Cut so that no character is cut in two.
        return f"{self.table.encode()[:40].decode(errors='ignore')}_tidegate_{digest}"

    def _has_index(self, connection: Connection[Any], target: SinkTarget) -> bool:
        return connection.execute(
            _sql()("SELECT to_regclass({})").format(self._text(self._index(target)))
        ).fetchone() != (None,)

    def _need_index(self, connection: Connection[Any], target: SinkTarget) -> None:
        if not self._has_index(connection, target):
            raise SinkError(
                f"{self._said} has no unique index for the panes, and create=False. Hint:"
                f" {self._create_index(target).as_string(connection)}"
            )

    def _name(self, name: str) -> Composable:
        from psycopg.sql import Identifier

        return Identifier(self.schema, name) if self.schema else Identifier(name)

    def _text(self, name: str) -> Composable:
        """The quoted name as a text, for functions that look a name up."""
        from psycopg.sql import Literal

        parts = [self.schema, name] if self.schema else [name]
        return Literal(".".join('"' + part.replace('"', '""') + '"' for part in parts))


def postgres(
    dsn: str, table: str, *, schema: str | None = None, create: bool = True
) -> PostgresSink:
    """Write to a table of PostgreSQL (15 or newer): panes inserted, updated and deleted by key and
    window, late rows and metrics appended.

    `dsn` is what libpq takes: `"host=db dbname=web user=me"` or `"postgresql://me@db/web"`. The
    table and its unique index are made when they are not there, unless `create=False`. Lists and
    structs become `jsonb`. The server must be reachable from where Spark's driver (the Spark
    Connect server) runs.
    """
    return PostgresSink(dsn, table, schema, create)


def _is_panes(target: SinkTarget) -> bool:
    return target.output == "panes"


def _identity(target: SinkTarget) -> list[str]:
    """The columns by which a row of panes is known."""
    return [*target.identity, *(["pane"] if target.mode == "discarding" else [])]


def _wanted(target: SinkTarget) -> dict[str, str]:
    """The columns of the table and their types."""
    columns = {} if _is_panes(target) else {BATCH: "bigint"}
    return columns | {column.name: type_of(column) for column in target.schema}


def _brief(target: SinkTarget, name: str, of: str = "") -> Composed:
    """An identity column as it stands in the index: a long value by its digest, since an entry of
    an index holds 2.7 kB at most.
    """
    sql = _sql()
    column = sql("{}{}").format(sql(of), *_identifiers([name]))
    kind = type_of(target.schema.field(name))
    return (
        sql("md5({}{})").format(column, sql("::text" if kind == "jsonb" else ""))
        if kind in LONG
        else column
    )


def _indexed(target: SinkTarget) -> Composed:
    return _sql()(", ").join(_brief(target, name) for name in _identity(target))


def _match(target: SinkTarget, name: str, is_null: bool) -> Composed:  # noqa: FBT001 - one of a row of facts
    """A condition that the index serves: `IS NOT DISTINCT FROM` would read the whole table."""
    sql = _sql()
    if is_null:
        return sql("old.{0} IS NULL AND new.{0} IS NULL").format(*_identifiers([name]))
    return sql("{} = {}").format(_brief(target, name, "old."), _brief(target, name, "new."))


def _kinds_of_retractions(target: SinkTarget, table: pa.Table) -> set[tuple[bool, ...]]:
    """Which identity columns are null in the retractions of a table: one entry for each
    combination.
    """
    if not _is_panes(target):
        return set()
    back = table.filter(pa.compute.equal(table.column("op"), "-"))
    if not len(back):
        return set()
    nulls = np.stack([back.column(name).is_null().to_numpy() for name in _identity(target)], axis=1)
    return {tuple(bool(one) for one in row) for row in np.unique(nulls, axis=0)}


def _identifiers(names: list[str]) -> list[Composable]:
    from psycopg.sql import Identifier

    return [Identifier(name) for name in names]


def _sql() -> type[SQL]:
    from psycopg.sql import SQL

    return SQL


def _line(error: Exception) -> str:
    """The first line of an error: servers add where in which statement."""
    return str(error).strip().partition("\n")[0]

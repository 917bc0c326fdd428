"""The PostgreSQL sink: panes are upserted, other outputs appended, one transaction per batch.

Panes are upserted by key and window; in discarding mode by key, window and pane. A retraction
deletes its row. So the table holds the current results, and its column `op` is always `+`. Change
feeds, late rows and metrics are appended, with the id of their batch in the column
`tidegate_batch`.

The table `tidegate_batches`, in the same schema, has the last batch id of each output. It is
updated in the same transaction, and a batch that is not newer is skipped.
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
MAX_NAME_BYTES = 63


@dataclass(frozen=True)
class PostgresSink(DriverSink):
    """Writes to a table of a PostgreSQL database."""

    # Not shown: it may contain a password.
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
                    f"{self._label} does not exist, and create=False. Hint:"
                    f" {self._create_text(connection, target)}"
                )
            if columns is not None:
                self._compare(target, columns)
                if not self.create and _is_upserted(target):
                    self._check_index(connection, target)

    def write(self, target: SinkTarget, batch: int, tables: Iterator[pa.Table]) -> None:
        rows = (without_pane_id(target, table) for table in tables if len(table))
        first = next(rows, None)
        if first is None:
            return
        with self._connected() as connection:
            if not self._take(connection, target, batch):
                # The batch is a replay. Spark expects the remaining rows to be consumed.
                for _ in rows:
                    pass
                return
            self._prepare(connection, target)
            retractions = self._stage(connection, target, chain([first], rows))
            if _is_upserted(target):
                self._apply(connection, target, retractions)
            else:
                self._append(connection, target, batch)

    @property
    def _label(self) -> str:
        return f"the table `{self.schema + '.' if self.schema else ''}{self.table}`"

    def _check_names(self, target: SinkTarget) -> None:
        if "." in self.table:
            raise SpecError(
                f'the table name `{self.table}` has a dot. Hint: postgres(dsn, "table",'
                ' schema="schema")'
            )
        names = [self.table, *target.schema.names]
        long = [
            name
            for name in names
            if len(name.encode()) > MAX_NAME_BYTES or not name or "\0" in name
        ]
        if long:
            raise SinkError(
                f"names in PostgreSQL have 1 to {MAX_NAME_BYTES} bytes, got {long}. Hint: rename"
                " the column or the table"
            )
        taken = sorted({BATCH, ROW} & set(target.schema.names))
        if taken:
            raise SinkError(
                f"the sink reserves the column {', '.join(taken)}. Hint: rename that column of the"
                " input"
            )
        for column in target.schema:
            type_of(column)

    @contextmanager
    def _connected(self) -> Iterator[Connection[Any]]:
        """A connection that commits at the end of the block, and rolls back on an error."""
        try:
            import psycopg
        except ImportError:
            raise MissingExtraError("psycopg", "postgres", "the PostgreSQL sink") from None
        declared = _connection_settings(self.dsn)
        try:
            defaults: dict[str, Any] = {"application_name": "tidegate", "connect_timeout": "10"}
            with psycopg.connect(
                **{**defaults, **declared, "client_encoding": "UTF8"}
            ) as connection:
                if connection.info.server_version < OLDEST_SERVER * 10_000:
                    raise SinkError(
                        f"the PostgreSQL sink needs version {OLDEST_SERVER} or newer, for unique"
                        " null keys; the server is"
                        f" {connection.info.server_version // 10_000}. Hint: use a newer server"
                    )
                yield connection
        except psycopg.OperationalError as error:
            raise SinkError(
                f"the PostgreSQL server of {self._label} cannot be reached, or was lost"
                f" ({_line(error)}); no row of the batch was written. Hint: restart the query when"
                " the server is back; it continues with this batch"
            ) from error
        except psycopg.Error as error:
            raise SinkError(
                f"PostgreSQL refused the rows for {self._label} ({_line(error)}); no row of the"
                " batch was written. Hint: compare the table with the columns of the output, and"
                " check the privileges of the user"
            ) from error

    def _take(self, connection: Connection[Any], target: SinkTarget, batch: int) -> bool:
        """Record the batch id; return False if it, or a newer one, is recorded already.

        Another attempt at the same batch blocks here until the first one ends.
        """
        sql = _sql()
        batches = self._name(BATCHES)
        if connection.execute(
            sql("SELECT to_regclass({})").format(self._text(BATCHES))
        ).fetchone() == (None,):
            # Otherwise, concurrent creation of the table fails.
            connection.execute(sql("SELECT pg_advisory_xact_lock(hashtext('tidegate'))"))
            create = (
                "CREATE TABLE IF NOT EXISTS {} (query text, output text, batch bigint NOT NULL,"
                " PRIMARY KEY (query, output))"
            )
            connection.execute(sql(create).format(batches))
        statement = sql(
            "INSERT INTO {} AS known (query, output, batch) VALUES ({}, {}, {}) ON CONFLICT"
            " (query, output) DO UPDATE SET batch = excluded.batch WHERE known.batch <"
            " excluded.batch RETURNING batch"
        ).format(batches, *_literals([target.query, target.output, batch]))
        return connection.execute(statement).fetchone() is not None

    def _prepare(self, connection: Connection[Any], target: SinkTarget) -> None:
        """Create the table if needed, and check its columns and its index."""
        columns = self._columns(connection)
        if columns is not None:
            self._compare(target, columns)
        elif self.create:
            connection.execute(self._create(target))
        else:
            raise SinkError(
                f"{self._label} does not exist, and create=False. Hint:"
                f" {self._create_text(connection, target)}"
            )
        if not _is_upserted(target):
            return
        if not self.create:
            self._check_index(connection, target)
        elif not self._has_index(connection, target):
            connection.execute(self._create_index(target))

    def _stage(
        self, connection: Connection[Any], target: SinkTarget, tables: Iterator[pa.Table]
    ) -> set[tuple[bool, ...]]:
        """Copy the rows into a temporary table, in their order.

        Returns the combinations of null identity columns among the retractions.
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
        retractions: set[tuple[bool, ...]] = set()
        done = 0
        copy = sql("COPY {} ({}, {}) FROM STDIN (FORMAT csv)").format(
            *_identifiers([STAGED, ROW]), sql(", ").join(names)
        )
        with connection.cursor() as cursor, cursor.copy(copy) as copying:
            for table in tables:
                wanted = table.select(target.schema.names)
                retractions |= _retraction_nulls(target, wanted)
                numbered = wanted.add_column(0, ROW, pa.array(np.arange(done, done + len(table))))
                copying.write(memoryview(csv_lines(numbered)))
                done += len(table)
        return retractions

    def _apply(
        self, connection: Connection[Any], target: SinkTarget, retractions: set[tuple[bool, ...]]
    ) -> None:
        """Delete retracted rows, then upsert the last version of each row."""
        sql, identity = _sql(), _identity(target)
        for nulls in sorted(retractions):
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
            "(SELECT DISTINCT ON ({by}) * FROM {staged} ORDER BY {by}, {row} DESC) AS last "
            "WHERE last.op = '+' "
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
            "INSERT INTO {} ({}, {columns}) SELECT {batch}, {columns} FROM {} ORDER BY {}"
        ).format(
            self._name(self.table),
            *_identifiers([BATCH, STAGED, ROW]),
            columns=listed,
            batch=_literals([batch])[0],
        )
        connection.execute(statement)

    def _columns(self, connection: Connection[Any]) -> dict[str, tuple[str, bool]] | None:
        """The columns of the table: type, and whether a value is required; None without a table."""
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

    def _compare(self, target: SinkTarget, existing: dict[str, tuple[str, bool]]) -> None:
        """Refuse a table that cannot hold the rows."""
        wanted = _wanted(target)
        missing = [f"{name} {type}" for name, type in wanted.items() if name not in existing]
        if missing:
            add = ", ".join(
                f'ADD COLUMN "{name}" {type}'
                for name, type in wanted.items()
                if name not in existing
            )
            raise SinkError(
                f"{self._label} lacks the columns: {', '.join(missing)}. Hint: ALTER TABLE ..."
                f" {add}; or write to another table"
            )
        other = [
            f"{name} is {existing[name][0]}, not {type}"
            for name, type in wanted.items()
            if not fits(type, existing[name][0])
        ]
        if other:
            raise SinkError(
                f"{self._label} has columns of other types: {'; '.join(other)}. Hint: write to"
                " another table, or alter this one"
            )
        needed = [
            name
            for name, (_, value_needed) in existing.items()
            if value_needed and name not in wanted
        ]
        if needed:
            raise SinkError(
                f"{self._label} requires values for columns that the output does not have:"
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
            if _is_upserted(target)
            else text
        )

    def _index(self, target: SinkTarget) -> str:
        """The name of the unique index, which depends on its columns."""
        digest = hashlib.sha256("\0".join(_identity(target)).encode()).hexdigest()[:8]
        # Truncated at a character boundary.
        return f"{self.table.encode()[:40].decode(errors='ignore')}_tidegate_{digest}"

    def _has_index(self, connection: Connection[Any], target: SinkTarget) -> bool:
        return connection.execute(
            _sql()("SELECT to_regclass({})").format(self._text(self._index(target)))
        ).fetchone() != (None,)

    def _check_index(self, connection: Connection[Any], target: SinkTarget) -> None:
        if not self._has_index(connection, target):
            raise SinkError(
                f"{self._label} has no unique index for the panes, and create=False. Hint:"
                f" {self._create_index(target).as_string(connection)}"
            )

    def _name(self, name: str) -> Composable:
        from psycopg.sql import Identifier

        return Identifier(self.schema, name) if self.schema else Identifier(name)

    def _text(self, name: str) -> Composable:
        """The quoted name as a text, for catalog functions."""
        from psycopg.sql import Literal

        parts = [self.schema, name] if self.schema else [name]
        return Literal(".".join('"' + part.replace('"', '""') + '"' for part in parts))


def postgres(
    dsn: str, table: str, *, schema: str | None = None, create: bool = True
) -> PostgresSink:
    """A sink that upserts panes into a PostgreSQL table, and appends late rows and metrics.

    Retracted panes are deleted, so the table holds the current rows. The rows of a change feed
    (`changelog()`) are appended.

    `dsn`: a libpq connection string, such as `"host=db dbname=web user=me"` or
    `"postgresql://me@db/web"`. `create`: whether to create a missing table and its unique index.
    Lists and structs become `jsonb`. Needs PostgreSQL 15 or newer, reachable from Spark's driver or
    Spark Connect server.
    """
    return PostgresSink(dsn, table, schema, create)


def _is_upserted(target: SinkTarget) -> bool:
    """Whether the rows are panes; the rows of a change feed are appended."""
    return target.output == "panes" and "op" in target.schema.names


def _identity(target: SinkTarget) -> list[str]:
    """The columns that identify a row of panes."""
    return [*target.identity, *(["pane"] if target.mode == "discarding" else [])]


def _wanted(target: SinkTarget) -> dict[str, str]:
    """The columns of the table and their types."""
    columns = {} if _is_upserted(target) else {BATCH: "bigint"}
    return columns | {column.name: type_of(column) for column in target.schema}


def _index_term(target: SinkTarget, name: str, of: str = "") -> Composed:
    """An identity column in the index; long values by digest, as entries are limited to 2.7 kB."""
    sql = _sql()
    column = sql("{}{}").format(sql(of), *_identifiers([name]))
    kind = type_of(target.schema.field(name))
    return (
        sql("md5({}{})").format(column, sql("::text" if kind == "jsonb" else ""))
        if kind in LONG
        else column
    )


def _indexed(target: SinkTarget) -> Composed:
    return _sql()(", ").join(_index_term(target, name) for name in _identity(target))


def _match(target: SinkTarget, name: str, is_null: bool) -> Composed:  # noqa: FBT001
    """A condition that uses the index: `IS NOT DISTINCT FROM` would scan the table."""
    sql = _sql()
    if is_null:
        return sql("old.{0} IS NULL AND new.{0} IS NULL").format(*_identifiers([name]))
    return sql("{} = {}").format(
        _index_term(target, name, "old."), _index_term(target, name, "new.")
    )


def _retraction_nulls(target: SinkTarget, table: pa.Table) -> set[tuple[bool, ...]]:
    """The combinations of null identity columns among the retractions of a table."""
    if not _is_upserted(target):
        return set()
    retractions = table.filter(pa.compute.equal(table.column("op"), "-"))
    if not len(retractions):
        return set()
    nulls = np.stack(
        [retractions.column(name).is_null().to_numpy() for name in _identity(target)], axis=1
    )
    return {tuple(bool(one) for one in row) for row in np.unique(nulls, axis=0)}


def _identifiers(names: list[str]) -> list[Composable]:
    from psycopg.sql import Identifier

    return [Identifier(name) for name in names]


def _literals(values: list[str | int]) -> list[Composable]:
    """The values within a statement: with parameters, `%` in a name would be a placeholder."""
    from psycopg.sql import Literal

    return [Literal(value) for value in values]


def _connection_settings(dsn: str) -> dict[str, Any]:
    """The settings of a connection string.

    The error has no details: they may contain a part of the password.
    """
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    try:
        settings: dict[str, Any] = dict(conninfo_to_dict(dsn))
    except psycopg.Error:
        settings = {}
    # A password with an unquoted `@` or `/` continues in the host.
    if (not settings and dsn.strip()) or "@" in str(settings.get("host", "")):
        raise SinkError(
            'the address of the PostgreSQL server is invalid. Hint: "host=... dbname=... user=...'
            " password='...'\" with quotes around a password with spaces, or postgresql://... with"
            " `@`, `/` and `:` in the password as %40, %2F and %3A"
        )
    return settings


def _sql() -> type[SQL]:
    from psycopg.sql import SQL

    return SQL


def _line(error: Exception) -> str:
    """The first line of an error; the others locate it in the statement."""
    return str(error).strip().partition("\n")[0]

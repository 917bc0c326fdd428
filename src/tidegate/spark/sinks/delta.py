"""The sink that appends to a Delta table, exactly once by application transactions."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from tidegate.errors import MissingExtraError, SinkError, SpecError
from tidegate.redaction import redacted
from tidegate.spark.sinks.base import DriverSink, SinkTarget, without_pane_id
from tidegate.spark.sinks.parquet import local_path
from tidegate.state.durability import make_folder, sync_all
from tidegate.state.serialization import decode_table, encode_table

_IN_MEMORY = 64 << 20
_ATTEMPTS = 5
_SEARCHED = 20
"""The number of last log entries among which the one of a batch is searched."""


@dataclass(frozen=True, repr=False)
class Delta(DriverSink):
    """Appends rows unchanged, including the column `op`."""

    table: str
    storage_options: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Not shown: they may contain a password."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({redacted(self.table)!r})"

    def place(self) -> dict[str, str]:
        return {**super().place(), "path": redacted(self.table)}

    def check(self, target: SinkTarget) -> None:
        _package()
        for column in target.schema:
            if _mapped(column.type, _storable) is None:
                raise SpecError(
                    f"Delta has no type for the column `{column.name}` of type {column.type}. Hint:"
                    " cast or drop it"
                )

    def write(self, target: SinkTarget, batch: int, tables: Iterator[pa.Table]) -> None:
        application = f"tidegate/{target.query}/{target.output}"
        if self._is_written(application, batch):
            # A power failure may have come between the commit and its sync.
            self._sync(application, batch)
            return
        with _Spool() as spool:
            for table in tables:
                spool.add(_to_delta_types(without_pane_id(target, table)))
            if spool.rows:
                self._append(application, batch, spool, target.schema)
                self._sync(application, batch)

    def _append(self, application: str, batch: int, spool: _Spool, declared: pa.Schema) -> None:
        deltalake = _package()
        if (local := local_path(self.table)) is not None:
            with self._translated("create"):
                make_folder(local)
        properties = deltalake.CommitProperties(
            app_transactions=[deltalake.Transaction(application, batch)]
        )
        for attempt in range(1, _ATTEMPTS + 1):
            known = self._open()
            if known is not None and _reached(known, application, batch):
                return
            try:
                place, rows = known or self.table, spool.reader(declared)
                deltalake.write_deltalake(
                    place,
                    rows,
                    mode="append",
                    schema_mode="merge",
                    storage_options=self._options,
                    commit_properties=properties,
                )
            except deltalake.exceptions.CommitFailedError as error:
                # Another writer has committed: possibly this batch, by a driver that seemed dead.
                if attempt == _ATTEMPTS:
                    raise self._failed(error) from error
            except Exception as error:  # the package raises plain `Exception` for most errors
                raise self._failed(error) from error
            else:
                return

    def _is_written(self, application: str, batch: int) -> bool:
        known = self._open()
        return known is not None and _reached(known, application, batch)

    def _sync(self, application: str, batch: int) -> None:
        """Sync the files of a batch in a local table; `SinkError` if one is not as written."""
        known = self._open()
        if known is None or (local := local_path(self.table)) is None:
            return
        root = Path(local)
        with self._translated("sync"):
            log, files = _logged(root / "_delta_log", known.version(), application, batch)
            for path, size in files.items():
                if not path.is_file() or path.stat().st_size != size:
                    raise OSError(f"{path} is not as batch {batch} has written it")
            sync_all([*files, log])
            sync_all(sorted({path.parent for path in (*files, log)} | {root, root.parent}))

    @contextmanager
    def _translated(self, act: str) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError, KeyError) as error:
            raise SinkError(
                f"the delta sink cannot write to `{redacted(self.table)}`: it failed to {act} its"
                f" files ({error}). Hint: check the disk; restore a damaged table from a copy, or"
                " to the version before, and restart the query"
            ) from error

    def _open(self) -> Any:
        deltalake = _package()
        try:
            found = deltalake.DeltaTable.is_deltatable(self.table, self._options)
            return (
                deltalake.DeltaTable(self.table, storage_options=self._options) if found else None
            )
        except Exception as error:
            raise self._failed(error) from error

    @property
    def _options(self) -> dict[str, str] | None:
        return dict(self.storage_options) or None

    def _failed(self, error: Exception) -> SinkError:
        # The first line: some messages include a backtrace.
        what = redacted(str(error).partition("\n")[0]) or type(error).__name__
        return SinkError(
            f"the delta sink cannot write to `{redacted(self.table)}`: {what}. Hint: check its"
            " path, storage options and columns; no row of the batch was written, and it is"
            " replayed when the query restarts"
        )


def delta(table: str | Path, storage_options: Mapping[str, str] | None = None) -> Delta:
    """A sink that appends the rows of each batch to a Delta table, in one transaction.

    A missing table is created, and new columns are added. The transaction records query, output and
    batch id in Delta's log (`txn`), so a replay adds nothing, and other writers may append to the
    same table. Types that Delta lacks are widened: unsigned integers to larger signed ones (64 bits
    to decimal(20, 0)), durations to microseconds, times of day to text. A column of unknown type
    (null in every row) is left out until its type is known. Needs `pip install 'tidegate[delta]'`
    in the process of `foreachBatch`.
    """
    local = local_path(str(table))
    location = str(table) if local is None else str(Path(local).absolute())
    return Delta(location, tuple(sorted((storage_options or {}).items())))


def _package() -> Any:
    try:
        import deltalake
        import deltalake.exceptions
    except ImportError as error:
        raise MissingExtraError("deltalake", "delta", "the delta sink") from error
    return deltalake


def _reached(table: Any, application: str, batch: int) -> bool:
    version = table.transaction_version(application)
    return version is not None and version >= batch


def _logged(log: Path, version: int, application: str, batch: int) -> tuple[Path, dict[Path, int]]:
    """The log entry that a batch committed, and the files that it added, with their sizes."""
    for number in range(version, max(-1, version - _SEARCHED), -1):
        entry = log / f"{number:020}.json"
        if not entry.exists():
            break
        actions = [json.loads(line) for line in entry.read_text("utf-8").splitlines()]
        wrote = {"appId": application, "version": batch}
        if any(wrote.items() <= one["txn"].items() for one in actions if "txn" in one):
            added = [one["add"] for one in actions if "add" in one]
            return entry, {log.parent / unquote(one["path"]): one["size"] for one in added}
    # Committed long ago, before other commits.
    return log, {}


class _Spool(AbstractContextManager["_Spool"]):
    """Buffers the rows of a batch, on disk if they are many, until their common types are known."""

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115
        self._sizes: list[int] = []
        self._schema = pa.schema([])
        self.rows = 0

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, table: pa.Table) -> None:
        if not table.num_rows:
            return
        try:
            self._schema = pa.unify_schemas(
                [self._schema, table.schema], promote_options="permissive"
            )
        except pa.ArrowException as error:
            raise SinkError(
                f"a column has incompatible types within a batch ({error}). Hint: cast it to one"
                " type"
            ) from error
        self._sizes.append(self._file.write(memoryview(encode_table(table, "lz4"))))
        self.rows += table.num_rows

    def reader(self, declared: pa.Schema) -> pa.RecordBatchReader:
        """All rows in one schema, in the order of the declared columns."""
        order = {name: number for number, name in enumerate(declared.names)}
        schema = pa.schema(
            sorted(self._schema, key=lambda column: order.get(column.name, len(order)))
        )
        return pa.RecordBatchReader.from_batches(schema, self._batches(schema))

    def _batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        self._file.seek(0)
        for size in self._sizes:
            table = decode_table(self._file.read(size), "rows of a batch")
            columns = [
                (
                    table.column(f.name).cast(f.type)
                    if f.name in table.column_names
                    else pa.nulls(table.num_rows, f.type)
                )
                for f in schema
            ]
            yield from pa.table(columns, schema=schema).to_batches()


def _to_delta_types(table: pa.Table) -> pa.Table:
    """The table in types of Delta; columns of unknown type are left out."""
    columns = {}
    for column in table.schema:
        units, kind = _mapped(column.type, _in_microseconds), _mapped(column.type, _storable)
        if units is None or kind is None:
            raise SinkError(
                f"Delta has no type for the column `{column.name}` of type {column.type}. Hint:"
                " cast or drop it"
            )
        if not pa.types.is_null(column.type):
            columns[column.name] = table.column(column.name).cast(units, safe=False).cast(kind)
    return pa.table(columns)


def _in_microseconds(kind: pa.DataType) -> pa.DataType:
    """The type in microseconds, Delta's only unit of time."""
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", None if kind.tz is None else "UTC")
    return pa.duration("us") if pa.types.is_duration(kind) else kind


def _storable(kind: pa.DataType) -> pa.DataType | None:
    """The Delta type of a type that is not nested; None if there is none."""
    replaced: dict[pa.DataType, pa.DataType] = {
        pa.uint8(): pa.int16(),
        pa.uint16(): pa.int32(),
        pa.uint32(): pa.int64(),
        pa.uint64(): pa.decimal128(20, 0),
        pa.float16(): pa.float32(),
        pa.date64(): pa.date32(),
        pa.large_string(): pa.string(),
        pa.string_view(): pa.string(),
        pa.large_binary(): pa.binary(),
        pa.binary_view(): pa.binary(),
    }
    if kind in replaced:
        return replaced[kind]
    if pa.types.is_duration(kind):
        return pa.int64()
    if pa.types.is_time(kind):
        return pa.string()
    if pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    if pa.types.is_decimal(kind):
        return pa.decimal128(kind.precision, kind.scale) if kind.precision <= 38 else None
    plain = (
        pa.types.is_boolean(kind)
        or pa.types.is_signed_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_date32(kind)
    )
    plain = plain or pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_null(kind)
    return kind if plain else _in_microseconds(kind) if pa.types.is_timestamp(kind) else None


def _mapped(
    kind: pa.DataType, leaf: Callable[[pa.DataType], pa.DataType | None]
) -> pa.DataType | None:
    """The type with `leaf` applied to its leaves; None if one of them has no type in Delta."""
    if pa.types.is_dictionary(kind):
        return _mapped(kind.value_type, leaf)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        inner = _mapped(kind.value_type, leaf)
        return None if inner is None else pa.list_(inner)
    if pa.types.is_map(kind):
        key, item = _mapped(kind.key_type, leaf), _mapped(kind.item_type, leaf)
        return None if key is None or item is None else pa.map_(key, item)
    if pa.types.is_struct(kind):
        mapped = [(child.name, _mapped(child.type, leaf)) for child in kind.fields]
        known = [(name, inner) for name, inner in mapped if inner is not None]
        return pa.struct(known) if mapped and len(known) == len(mapped) else None
    return leaf(kind)

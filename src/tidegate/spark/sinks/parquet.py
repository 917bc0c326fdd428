"""The sink that writes Parquet files: one folder per batch, published atomically."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

import pyarrow as pa
from pyarrow import fs

from tidegate.errors import InputError, SinkError, SpecError
from tidegate.redaction import redacted
from tidegate.spark.sinks.base import NEW_QUERY, SinkTarget, TaskSink, without_pane_id
from tidegate.state.durability import make_folder, sync_file
from tidegate.units import many

ROW_GROUP_ROWS = 1 << 20
ROW_GROUP_BYTES = 64 << 20
_COMPRESSIONS = ("none", "snappy", "gzip", "brotli", "lz4", "zstd")
# Readers skip names that begin with an underscore.
_STAGING, _OWNER, _PARTITION = "_staging", "_tidegate.json", "batch"
_RECORDED = 100
"""The number of batches whose files are on record; Spark keeps as many to replay."""
# File systems that rename a folder atomically. In object stores, files are moved one by one.
_RENAMES_FOLDERS = frozenset({"local", "hdfs"})


@dataclass(frozen=True)
class _Staged:
    """A file that a task has written, and that is not yet published."""

    path: str
    name: str
    bytes: int
    rows: int


@dataclass(frozen=True)
class _Published:
    """The number and the size of the files of a published batch."""

    files: int
    bytes: int

    def __str__(self) -> str:
        return f"{many(self.files, 'file')} of {self.bytes:,} bytes"


@dataclass(frozen=True, repr=False)
class Parquet(TaskSink):
    """Writes files `<folder>/batch=<id>/part-<task>.parquet`."""

    folder: str
    compression: str
    allow_deleted: bool = False
    """Whether published batches may be deleted while the query owns the folder."""
    overwrite: bool = False
    """Whether the output of another query is replaced."""

    def __repr__(self) -> str:
        more = ", overwrite=True" if self.overwrite else ""
        return f"{type(self).__name__}({redacted(self.folder)!r}, {self.compression!r}{more})"

    def place(self) -> dict[str, str]:
        return {**super().place(), "path": redacted(self.folder)}

    def check(self, target: SinkTarget) -> None:
        _refuse_partition_column(target.schema)
        for column in target.schema:
            try:
                _writer(pa.BufferOutputStream(), pa.schema([column]), self.compression).close()
            except pa.ArrowException as error:
                raise SpecError(
                    f"Parquet has no type for the column `{column.name}` of type {column.type}"
                    f" ({error}). Hint: cast or drop it"
                ) from error
        if local_path(self.folder) is not None:
            with self.translate_errors("read"):
                folder = BatchFolder.open(self.folder)
                record = {} if self.replaces(folder, target) else folder.record(target)
                # Spark may replay the last batch, which a crash may have removed.
                self._check_published(folder, record, sorted(record)[:-1])

    def stage(
        self, target: SinkTarget, batch: int, task: str, tables: Iterator[pa.Table]
    ) -> list[str]:
        files = _TaskFiles(self, target, batch, task)
        try:
            for table in tables:
                if table.num_rows:
                    files.add(without_pane_id(target, table))
            return [json.dumps(asdict(staged)) for staged in files.close()]
        except BaseException:
            files.discard()
            raise

    def publish(self, target: SinkTarget, batch: int, staged: list[str]) -> None:
        with self.translate_errors("publish a batch in"):
            folder = BatchFolder.open(self.folder)
            if self.replaces(folder, target):
                folder.empty()
            files = [_Staged(**json.loads(text)) for text in staged]
            is_there = folder.has(f"{_PARTITION}={batch}")
            is_first = not files and (is_there or not folder.has(_OWNER))
            if is_first and not folder.batches() - {batch}:
                # Readers find the columns before the first row.
                files = self._without_rows(target, batch)
            if files or is_there:
                record = folder.claim(target)
                self._check_published(folder, record, [b for b in sorted(record) if b < batch][-1:])
                if files:
                    folder.put(batch, files)
                    record[batch] = _Published(len(files), sum(file.bytes for file in files))
                else:
                    folder.remove(batch)
                    record.pop(batch, None)
                folder.write_record(target, record)
            folder.clean()

    def replaces(self, folder: BatchFolder, target: SinkTarget) -> bool:
        """Whether the content of the folder is of another query, and is to be replaced."""
        return self.overwrite and not folder.is_owned(target)

    def _without_rows(self, target: SinkTarget, batch: int) -> list[_Staged]:
        """A staged file that has the columns of the output, and no rows."""
        files = _TaskFiles(self, target, batch, "empty")
        files.add_columns(target.schema.remove_metadata())
        return files.close()

    def _check_published(
        self, folder: BatchFolder, record: Mapping[int, _Published], batches: Iterable[int]
    ) -> None:
        """Refuse to go on if files of batches that were published are gone or were changed."""
        if self.allow_deleted:
            return
        for batch in batches:
            found = folder.published(batch)
            if found != record[batch]:
                raise SinkError(
                    f"batch {batch} was published with {record[batch]}, and"
                    f" `{folder.path(f'{_PARTITION}={batch}')}` has {found}: output is lost. Hint:"
                    " restore the folder; if batches are deleted on purpose, use"
                    " tg.sinks.parquet(..., allow_deleted=True)"
                )

    @contextlib.contextmanager
    def translate_errors(self, act: str) -> Iterator[None]:
        """Raise errors of the file system as `SinkError`, with the folder and a hint."""
        try:
            yield
        except (OSError, pa.ArrowException) as error:
            raise SinkError(
                f"the parquet sink cannot {act} `{redacted(self.folder)}`: {error}. Hint: the"
                " driver and all workers need write access and free space; the batch is replayed"
                " when the query restarts"
            ) from error


def parquet(
    folder: str | Path,
    compression: str = "zstd",
    *,
    allow_deleted: bool = False,
    overwrite: bool = False,
) -> Parquet:
    """A sink that writes Parquet files `<folder>/batch=<id>/part-<task>.parquet`.

    Tasks write into a hidden folder, and the driver publishes a batch with a rename, so readers see
    all of a batch or nothing. A replay overwrites its batch. This holds on local and Hadoop file
    systems, also if processes are killed. On a local file system, files and folders are synced to
    disk before Spark commits the batch. Object stores (`s3://`, `gs://`, `abfs://`) cannot rename a
    folder: files are moved one by one, and a reader may see a part of a batch for a moment.

    The file `_tidegate.json` records the files of the last 100 batches. If some of them are gone or
    have another size, the query stops with `SinkError`. `allow_deleted=True` turns this check off,
    for folders whose old batches are deleted or rewritten by another program.

    A folder belongs to one output of one query; others are refused before they start. With
    `overwrite`, the first batch of another query replaces the content, as a daily batch job needs
    it. The first batch makes the folder readable even if it has no rows.

    A column of unknown type (null in every row) is left out. If types change within a batch, a task
    starts another file (`part-<task>.1.parquet`).
    """
    if compression not in _COMPRESSIONS:
        raise SpecError(
            f"the compression of Parquet is one of {', '.join(_COMPRESSIONS)}, got"
            f" {compression!r}. Hint: compression='zstd'"
        )
    if not isinstance(folder, str | os.PathLike):
        raise SpecError(
            f"a parquet sink needs the path of a folder, got {folder!r}. Hint:"
            " tg.sinks.parquet('out/panes')"
        )
    return Parquet(_absolute(os.fspath(folder)), compression, allow_deleted, overwrite)


def _absolute(folder: str) -> str:
    """The absolute path of a folder: workers have other working directories."""
    if not folder:
        raise SpecError(
            "a parquet sink needs a folder, got an empty name. Hint: tg.sinks.parquet('out/panes')"
        )
    local = local_path(folder)
    return re.sub(r"^s3[an]:", "s3:", folder) if local is None else str(Path(local).absolute())


def local_path(location: str) -> str | None:
    """The path of a local file or folder, or of a `file:` URI; None for other URIs."""
    if location.startswith("file:"):
        return url2pathname(urlsplit(location).path)
    return None if re.match(r"^[A-Za-z][A-Za-z0-9+.-]+:", location) else location


def _refuse_partition_column(schema: pa.Schema) -> None:
    """Refuse a column with the name of the partition column; Spark ignores case."""
    taken = [name for name in schema.names if name.lower() == _PARTITION]
    if taken:
        raise SpecError(
            f"the parquet sink writes folders `{_PARTITION}=<id>`, which readers see as a column"
            f" `{_PARTITION}`, and the rows have `{taken[0]}`. Hint: rename the column, or use"
            " another sink"
        )


def _writer(stream: Any, schema: pa.Schema, compression: Any) -> Any:
    import pyarrow.parquet as pq

    return pq.ParquetWriter(stream, schema, compression=compression)


class _TaskFiles:
    """The files of one task, written in row groups of limited size."""

    def __init__(self, sink: Parquet, target: SinkTarget, batch: int, task: str) -> None:
        self._sink = sink
        self._batch = batch
        self._task = re.sub(r"[^\w-]", "_", task)
        self._schema = target.schema.remove_metadata()
        self._folder: BatchFolder | None = None
        self._open: tuple[str, Any, Any] | None = None
        self._buffered: list[pa.Table] = []
        self._rows = 0
        self._done: list[_Staged] = []

    def add(self, table: pa.Table) -> None:
        aligned = self._align(table)
        step = max(
            1, min(ROW_GROUP_ROWS, aligned.num_rows * ROW_GROUP_BYTES // max(1, aligned.nbytes))
        )
        for start in range(0, aligned.num_rows, step):
            self._buffered.append(aligned.slice(start, step))
            if (
                sum(t.num_rows for t in self._buffered) >= ROW_GROUP_ROWS
                or sum(t.nbytes for t in self._buffered) >= ROW_GROUP_BYTES
            ):
                self._flush()

    def add_columns(self, schema: pa.Schema) -> None:
        """Begin a file with these columns, if they have known types."""
        known = [field for field in schema if not pa.types.is_null(field.type)]
        self._buffered.append(pa.schema(known).empty_table())

    def close(self) -> list[_Staged]:
        self._finish()
        return self._done

    def discard(self) -> None:
        """Delete the files, as far as possible; the rest is deleted with the next batch."""
        self._buffered = []
        with contextlib.suppress(Exception):
            self._finish()
        if self._folder is not None:
            for staged in self._done:
                with contextlib.suppress(Exception):
                    self._folder.files.delete_file(self._folder.path(staged.path))

    def _align(self, table: pa.Table) -> pa.Table:
        """The table in the schema of the file; starts another file if the schema must change."""
        _refuse_partition_column(table.schema)
        mine = table.schema.remove_metadata()
        if mine == self._schema and self._open is not None:
            return table.select(self._written_columns())
        for wanted in self._candidates(mine):
            aligned = _cast(table, wanted)
            if aligned is not None:
                if wanted != self._schema:
                    self._finish()
                    self._schema = wanted
                return aligned.select(self._written_columns())
        return table

    def _candidates(self, mine: pa.Schema) -> Iterator[pa.Schema]:
        with contextlib.suppress(pa.ArrowException):
            yield pa.unify_schemas([self._schema, mine], promote_options="permissive")
        yield mine

    def _written_columns(self) -> list[str]:
        return [field.name for field in self._schema if not pa.types.is_null(field.type)]

    def _flush(self) -> None:
        if not self._buffered:
            return
        table = pa.concat_tables(self._buffered)
        self._buffered = []
        with self._sink.translate_errors("write into"):
            if self._open is None:
                self._folder = self._folder or BatchFolder.open(self._sink.folder)
                self._folder.make(_STAGING)
                path = f"{_STAGING}/{self._batch}-{self._task}-{uuid.uuid4().hex}.parquet"
                stream = self._folder.files.open_output_stream(self._folder.path(path))
                self._open = path, stream, _writer(stream, table.schema, self._sink.compression)
            self._open[2].write_table(table, row_group_size=max(1, table.num_rows))
        self._rows += table.num_rows

    def _finish(self) -> None:
        self._flush()
        if self._open is None:
            return
        (path, stream, writer), self._open = self._open, None
        name = (
            f"part-{self._task}.parquet"
            if not self._done
            else f"part-{self._task}.{len(self._done)}.parquet"
        )
        # Recorded first: if `close` fails, `discard` must delete the file.
        self._done.append(_Staged(path, name, 0, self._rows))
        with self._sink.translate_errors("write into"):
            writer.close()
            size = stream.tell()
            stream.close()
            if self._folder is not None:
                self._folder.sync(path)
        self._done[-1] = _Staged(path, name, size, self._rows)
        self._rows = 0


def _cast(table: pa.Table, schema: pa.Schema) -> pa.Table | None:
    """The table in the schema; None if a value would change."""
    try:
        columns = [
            (
                table.column(f.name).cast(f.type)
                if f.name in table.column_names
                else pa.nulls(table.num_rows, f.type)
            )
            for f in schema
        ]
    except pa.ArrowException:
        return None
    return pa.table(columns, schema=schema)


@dataclass(frozen=True)
class BatchFolder:
    """The folder of a sink on its file system."""

    files: fs.FileSystem
    root: str

    @classmethod
    def open(cls, folder: str) -> BatchFolder:
        local = local_path(folder)
        if local is not None:
            return cls(fs.LocalFileSystem(), local)
        try:
            files, root = fs.FileSystem.from_uri(folder)
        except (ValueError, pa.ArrowException, OSError) as error:
            raise SinkError(
                f"the folder `{redacted(folder)}` is on a file system that cannot be reached:"
                f" {redacted(str(error))}. Hint: use a local path, or file:, hdfs://, s3://, gs://"
                " or abfs:// if Arrow was built with it"
            ) from error
        return cls(files, root.rstrip("/"))

    def path(self, name: str) -> str:
        return f"{self.root}/{name}"

    def has(self, name: str) -> bool:
        return self.files.get_file_info(self.path(name)).type != fs.FileType.NotFound

    def make(self, name: str) -> None:
        if self.is_local:
            make_folder(self.path(name))
        else:
            self.files.create_dir(self.path(name), recursive=True)

    @property
    def is_local(self) -> bool:
        return isinstance(self.files, fs.LocalFileSystem)

    def sync(self, name: str) -> None:
        """Make a local file or folder survive a power failure; other storage does it itself."""
        if self.is_local:
            sync_file(self.path(name))

    def record(self, target: SinkTarget) -> dict[int, _Published]:
        """The published batches on record; refuses a folder of another output or query."""
        if not self.has(_OWNER):
            foreign = sorted(self.batches())
            if foreign:
                raise SinkError(
                    f"the folder `{self.root}` has `{_PARTITION}={foreign[0]}` but no `{_OWNER}`,"
                    " so its owner is unknown. Hint: write to an empty folder"
                )
            return {}
        owner = self.owner()
        if not self.is_owned(target):
            former = f" ({owner['checkpoint']})" if owner.get("checkpoint") else ""
            raise SinkError(
                f"a folder holds one output of one query, and `{self.root}` belongs to the"
                f" output `{owner.get('output')}` of the query {owner.get('query')}, got the"
                f" output `{target.output}` of {_query(target.query)}. Hint: write to another"
                f" folder, restart the query with its former checkpoint{former}, or replace the"
                " content: overwrite=True"
            )
        return {batch: _Published(files, size) for batch, files, size in owner["published"]}

    def claim(self, target: SinkTarget) -> dict[int, _Published]:
        """Make the folder one of this output; the published batches on record."""
        found = self.record(target)
        if not self.has(_OWNER):
            self.write_record(target, {})
        return found

    def is_owned(self, target: SinkTarget) -> bool:
        """Whether the folder is new, or belongs to this output of this query."""
        if not self.has(_OWNER):
            return not self.batches()
        owner = self.owner()
        return (owner.get("query"), owner.get("output")) == (target.query, target.output)

    def batches(self) -> set[int]:
        """The numbers of the published batches."""
        names = (info.base_name.partition("=") for info in self._listed(""))
        return {int(n) for word, _, n in names if word == _PARTITION and n.isdecimal()}

    def batch_files(self) -> Iterator[tuple[int, str, int]]:
        """The files of all batches in their order: the batch, the path, and the number of rows."""
        import pyarrow.parquet as pq

        for batch in sorted(self.batches()):
            names = sorted(info.base_name for info in self._listed(f"{_PARTITION}={batch}"))
            for name in names:
                path = self.path(f"{_PARTITION}={batch}/{name}")
                yield batch, path, pq.read_metadata(path, filesystem=self.files).num_rows

    def empty(self) -> None:
        """Delete what another query has written."""
        for batch in self.batches():
            self.files.delete_dir(self.path(f"{_PARTITION}={batch}"))
        if self.has(_OWNER):
            self.files.delete_file(self.path(_OWNER))

    def write_record(self, target: SinkTarget, record: Mapping[int, _Published]) -> None:
        """Write the owner of the folder and its published batches atomically."""
        self.make(_STAGING)
        draft = f"{_STAGING}/{uuid.uuid4().hex}.json"
        published = [[batch, one.files, one.bytes] for batch, one in sorted(record.items())]
        known = {} if target.checkpoint is None else {"checkpoint": redacted(target.checkpoint)}
        document = {
            "query": target.query,
            "output": target.output,
            "published": published[-_RECORDED:],
            "identity": list(target.identity),
            "mode": target.mode,
            **known,
        }
        with self.files.open_output_stream(self.path(draft)) as stream:
            stream.write(json.dumps(document).encode())
        self.sync(draft)
        self.files.move(self.path(draft), self.path(_OWNER))
        self.sync("")

    def published(self, batch: int) -> _Published:
        """The files of a batch that are in the folder now."""
        found = [
            info.size
            for info in self._listed(f"{_PARTITION}={batch}")
            if info.base_name.startswith("part-")
        ]
        return _Published(len(found), sum(found))

    def put(self, batch: int, staged: list[_Staged]) -> None:
        """Publish the files of a batch; they replace those of an earlier attempt."""
        final = f"{_PARTITION}={batch}"
        ready = f"{_STAGING}/ready-{batch}-{_digest(staged)}"
        self.make(ready)
        here, gathered = (
            self._sizes(file.path for file in staged),
            self._sizes(f"{ready}/{file.name}" for file in staged),
        )
        for file, staged_size, ready_size in zip(staged, here, gathered, strict=True):
            if ready_size == file.bytes:
                continue
            if staged_size != file.bytes:
                # Either published by an interrupted call, or lost.
                if self._sizes(f"{final}/{f.name}" for f in staged) == [f.bytes for f in staged]:
                    return
                found = "is missing" if staged_size is None else f"has {staged_size:,} bytes"
                raise SinkError(
                    f"a file that a task wrote for batch {batch} {found}, and {file.bytes:,} bytes"
                    f" were written: `{self.path(file.path)}`. Hint: no other program may change"
                    f" `{_STAGING}`; workers and driver must share the folder; restart the query"
                )
            self.files.move(self.path(file.path), self.path(f"{ready}/{file.name}"))
        self.sync(ready)
        self.remove(batch)
        if self.files.type_name in _RENAMES_FOLDERS:
            self.files.move(self.path(ready), self.path(final))
            self.sync("")
            return
        self.make(final)
        for file in staged:
            self.files.move(self.path(f"{ready}/{file.name}"), self.path(f"{final}/{file.name}"))

    def remove(self, batch: int) -> None:
        """Hide the batch atomically; its files are deleted later."""
        final = f"{_PARTITION}={batch}"
        if not self.has(final):
            return
        if self.files.type_name in _RENAMES_FOLDERS:
            self.make(_STAGING)
            self.files.move(
                self.path(final), self.path(f"{_STAGING}/old-{batch}-{uuid.uuid4().hex}")
            )
            self.sync("")
        else:
            self.files.delete_dir(self.path(final))

    def clean(self) -> None:
        """Delete the files of failed attempts, and of replaced batches."""
        info = self.files.get_file_info(self.path(_STAGING))
        if info.type == fs.FileType.Directory:
            self.files.delete_dir(info.path)
        elif info.type != fs.FileType.NotFound:
            self.files.delete_file(info.path)

    def owner(self) -> dict[str, Any]:
        """The output that the folder belongs to, and its published batches."""
        if not self.has(_OWNER):
            raise InputError(
                f"`{self.root}` is not a folder that a query has written: it has no `{_OWNER}`."
                " Hint: pass the folder of tg.sinks.parquet"
            )
        with self.files.open_input_stream(self.path(_OWNER)) as stream:
            text = stream.read()
        try:
            owner = dict(json.loads(text))
            owner["published"] = [
                (int(batch), int(files), int(size))
                for batch, files, size in owner.get("published", [])
            ]
        except (ValueError, TypeError, RecursionError) as error:
            raise SinkError(
                f"`{self.path(_OWNER)}` cannot be read ({error}). Hint: write to an empty folder"
            ) from error
        return owner

    def _listed(self, name: str) -> list[fs.FileInfo]:
        return self.files.get_file_info(
            fs.FileSelector(self.path(name).rstrip("/"), allow_not_found=True)
        )

    def _sizes(self, names: Iterable[str]) -> list[int | None]:
        return [
            info.size if info.type == fs.FileType.File else None
            for info in self.files.get_file_info([self.path(name) for name in names])
        ]


def _digest(staged: list[_Staged]) -> str:
    """A digest that identifies an attempt to write a batch."""
    return hashlib.sha256("\n".join(file.path for file in staged).encode()).hexdigest()[:16]


def _query(name: str) -> str:
    """A query in a message; one that was never started has no id yet."""
    return "a new query" if name == NEW_QUERY else f"the query {name}"

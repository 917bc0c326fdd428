"""Rows that sinks have written, read back for the history of a window."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import dataset, fs

from tidegate.errors import InputError, MissingExtraError, SinkError
from tidegate.redaction import redacted
from tidegate.spark.sinks.memory import Memory
from tidegate.spark.sinks.parquet import local_path

BATCH = "batch"
"""The column with the number of the micro-batch; only Parquet folders have it."""
_OWNER = "_tidegate.json"
_ATTEMPTS = 5
"""How often a scan starts again, if the query replaces files meanwhile."""

Selected = Callable[[list[str]], pc.Expression]
"""The rows to read, given the columns."""


def read_rows(place: Mapping[str, str], output: str, selected: Selected) -> pa.Table:
    """The selected rows of an output; an empty table without columns if nothing was written.

    `place` is what `Sink.place` returned.
    """
    kind, path = place.get("kind", ""), place.get("path", "")
    if kind == "parquet":
        return _retried(lambda: _parquet(path, selected), path)
    if kind == "delta":
        return _retried(lambda: _delta(path, selected), path)
    if kind == "memory":
        return _memory(path, output, selected)
    raise InputError(
        f"the rows of a sink `{kind}` cannot be read back. Hint: write the panes to"
        " tg.sinks.parquet or tg.sinks.delta, which keep all of them"
    )


def place_of(location: str) -> dict[str, str]:
    """The place of a folder of Parquet files or a Delta table."""
    system, path = _opened(location)
    if system.get_file_info(f"{path}/_delta_log").type == fs.FileType.Directory:
        return {"kind": "delta", "path": location}
    return {"kind": "parquet", "path": location}


def owner_of(location: str) -> dict[str, str]:
    """The query, the output and the checkpoint that a folder belongs to; empty if unknown."""
    system, path = _opened(location)
    try:
        with system.open_input_stream(f"{path}/{_OWNER}") as stream:
            return dict(json.loads(stream.readall()))
    except (FileNotFoundError, NotADirectoryError, ValueError, TypeError):
        return {}


def _retried(read: Callable[[], pa.Table], path: str) -> pa.Table:
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return read()
        except FileNotFoundError as error:
            if attempt == _ATTEMPTS:
                raise SinkError(
                    f"the files of {redacted(path)} change too fast to be read: {error}. Hint: try"
                    " again"
                ) from error
        except (OSError, pa.ArrowException) as error:
            raise SinkError(
                f"{redacted(path)} cannot be read: {error}. Hint: the folder must be readable here"
            ) from error
    raise AssertionError("unreachable")


def _opened(location: str) -> tuple[fs.FileSystem, str]:
    local = local_path(location)
    if local is not None:
        return fs.LocalFileSystem(), local
    try:
        return fs.FileSystem.from_uri(location)
    except (ValueError, pa.ArrowException, OSError) as error:
        raise SinkError(
            f"`{redacted(location)}` cannot be reached: {redacted(str(error))}. Hint: use a path,"
            " or a URI that Arrow supports"
        ) from error


def _parquet(path: str, selected: Selected) -> pa.Table:
    system, root = _opened(path)
    if system.get_file_info(root).type != fs.FileType.Directory:
        return pa.table({})
    # The type stubs have other names for the parameters.
    factory: Any = dataset.FileSystemDatasetFactory
    options: Any = dataset.FileSystemFactoryOptions
    found = factory(
        system,
        fs.FileSelector(root, recursive=True),
        dataset.ParquetFileFormat(),
        options(
            partition_base_dir=root,
            partitioning=dataset.partitioning(pa.schema([(BATCH, pa.int64())]), flavor="hive"),
            exclude_invalid_files=False,
        ),
    )
    # A column of nulls is left out of its file, and types may have been widened.
    schema = found.inspect(promote_options="permissive")
    return _scanned(found.finish(schema), selected)


def _delta(path: str, selected: Selected) -> pa.Table:
    if find_spec("deltalake") is None:
        raise MissingExtraError("deltalake", "delta", "reading a Delta table")
    return _scanned(import_module("deltalake").DeltaTable(path).to_pyarrow_dataset(), selected)


def _memory(name: str, output: str, selected: Selected) -> pa.Table:
    rows = Memory(name).batches(output)
    return rows if not rows.num_rows else _scanned(dataset.dataset(rows), selected)


def _scanned(found: dataset.Dataset, selected: Selected) -> pa.Table:
    names = found.schema.names
    if not names or names == [BATCH]:
        return pa.table({})
    rows = found.to_table(filter=selected(names))
    if BATCH not in names:
        return rows
    # Files of a batch are read in any order; the rows of a key are in one file, in order.
    return rows.take(pc.sort_indices(rows, sort_keys=[(BATCH, "ascending")]))


def new_batches(
    place: Mapping[str, str], output: str, after: int, columns: Sequence[str], limit: int
) -> list[tuple[int, pa.Table]]:
    """The batches that were written after one, the last `limit` of them, with some columns."""
    kind, path = place.get("kind", ""), place.get("path", "")
    if kind == "memory":
        rows = Memory(path).batches(output)
        batches = pc.unique(rows.column(BATCH)).to_pylist() if rows.num_rows else []
        return [
            (batch, _some(rows.filter(pc.equal(rows.column(BATCH), batch)), columns))
            for batch in sorted(batches)[-limit:]
            if batch > after
        ]
    if kind != "parquet":
        return []
    system, root = _opened(path)
    names = [
        info.base_name for info in system.get_file_info(fs.FileSelector(root, allow_not_found=True))
    ]
    numbers = [name.partition("=")[2] for name in names if name.startswith(f"{BATCH}=")]
    new = sorted(int(number) for number in numbers if number.isdecimal() and int(number) > after)
    return [(batch, _batch(system, f"{root}/{BATCH}={batch}", columns)) for batch in new[-limit:]]


def _batch(system: fs.FileSystem, folder: str, columns: Sequence[str]) -> pa.Table:
    found = dataset.dataset(folder, filesystem=system, format="parquet")
    return found.to_table(columns=[name for name in columns if name in found.schema.names])


def _some(rows: pa.Table, columns: Sequence[str]) -> pa.Table:
    return rows.select([name for name in columns if name in rows.column_names])

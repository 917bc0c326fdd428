"""The metadata of a query in its checkpoint: its id, its shards and its specification."""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyarrow import fs

from tidegate.errors import CorruptStateError, SetupError, StateError
from tidegate.kernel.keys import KeyHasher
from tidegate.spark.checkpoint import tidegate_folder
from tidegate.spark.tasks.shards import ShardLayout
from tidegate.state.durability import make_folder, sync_file, sync_folder

FORMAT = 2
_NAME = "query.json"


@dataclass(frozen=True)
class QueryMetadata:
    """The content of `query.json`, written at the first start."""

    query: str
    """The id of the query."""
    layout: ShardLayout
    specs: list[list[dict[str, Any]]]
    """The specification of each operator, by stage."""
    name: str | None = None
    """The name that the query had at its last start."""
    outputs: dict[str, dict[str, str]] = field(default_factory=dict)
    """Where the sinks of the last start put the rows of each output; see `Sink.place`."""

    @classmethod
    def new(
        cls, layout: ShardLayout, specs: list[list[dict[str, Any]]], name: str | None = None
    ) -> QueryMetadata:
        return cls(str(uuid.uuid4()), layout, specs, name)


def read_metadata(checkpoint: str) -> QueryMetadata | None:
    """The metadata in a checkpoint; None before the first start."""
    system, folder = tidegate_folder(checkpoint)
    path = f"{folder}/{_NAME}"
    if system.get_file_info(path).type == fs.FileType.NotFound:
        return None
    with system.open_input_stream(path) as file:
        data = file.readall()
    try:
        document = json.loads(data)
        version = document["format"]
        if version != FORMAT:
            raise CorruptStateError(
                f"the query at {checkpoint} has format {version}; this version reads {FORMAT}."
                " Hint: start it with the version that wrote it, or from a new checkpoint"
            )
        hasher = KeyHasher(bytes.fromhex(document["key_secret"]))
        layout = ShardLayout(
            document["layout"]["partitions"], tuple(document["layout"]["ids"]), hasher
        )
        return QueryMetadata(
            document["query"],
            layout,
            document["specs"],
            document.get("name"),
            document.get("outputs", {}),
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorruptStateError(
            f"{path} is damaged ({error}). Hint: restore it from a copy, or start from a new"
            " checkpoint"
        ) from error


def create_metadata(checkpoint: str, metadata: QueryMetadata) -> None:
    """Write the metadata of a first start, unless the checkpoint has some.

    Of several first starts at once, one writes its metadata on a local file system, and the others
    raise `StateError` and change nothing. Arrow has no exclusive creation on other file systems:
    there, a start that finds the metadata of another one after its own write raises `StateError`.
    """
    system, folder = tidegate_folder(checkpoint)
    with _staged(checkpoint, system, folder, metadata) as staged:
        target = f"{folder}/{_NAME}"
        if isinstance(system, fs.LocalFileSystem):
            try:
                _link(Path(staged), Path(target))
            except FileExistsError as error:
                raise _is_taken(checkpoint) from error
            sync_folder(folder)
            return
        if system.get_file_info(target).type != fs.FileType.NotFound:
            raise _is_taken(checkpoint)
        system.move(staged, target)
    found = read_metadata(checkpoint)
    if found is None or found.query != metadata.query:
        raise _is_taken(checkpoint)


def replace_metadata(checkpoint: str, metadata: QueryMetadata) -> None:
    """Write the metadata atomically: a crash leaves either the former document or the new one."""
    system, folder = tidegate_folder(checkpoint)
    with _staged(checkpoint, system, folder, metadata) as staged:
        system.move(staged, f"{folder}/{_NAME}")
        if isinstance(system, fs.LocalFileSystem):
            sync_folder(folder)


@contextlib.contextmanager
def _staged(
    checkpoint: str, system: fs.FileSystem, folder: str, metadata: QueryMetadata
) -> Iterator[str]:
    """The path of a file of this start with the metadata; deleted if it is not moved."""
    document = {
        "format": FORMAT,
        "query": metadata.query,
        "layout": metadata.layout.to_dict(),
        "key_secret": metadata.layout.hasher.secret.hex(),
        "specs": metadata.specs,
        "name": metadata.name,
        "outputs": metadata.outputs,
    }
    staged = f"{folder}/.{_NAME}.{uuid.uuid4().hex}"
    try:
        if isinstance(system, fs.LocalFileSystem):
            make_folder(folder)
        else:
            system.create_dir(folder, recursive=True)
        with system.open_output_stream(staged) as file:
            file.write(json.dumps(document, indent=1).encode())
        if isinstance(system, fs.LocalFileSystem):
            sync_file(staged)
        yield staged
    except OSError as error:
        raise SetupError(
            f"the checkpoint `{checkpoint}` cannot be written: {error}. Hint: use a folder that"
            " this process can write to"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            system.delete_file(staged)


def _link(staged: Path, target: Path) -> None:
    """Give a local file a second name, if no file has it."""
    try:
        # Unlike a rename, a hard link does not replace a file.
        os.link(staged, target)
    except FileExistsError:
        raise
    except OSError:
        # Not every file system has hard links.
        with target.open("xb") as file:
            file.write(staged.read_bytes())
            file.flush()
            os.fsync(file.fileno())


def _is_taken(checkpoint: str) -> StateError:
    return StateError(
        f"another query has started with the checkpoint `{checkpoint}` at the same time, and this"
        " one was not started. Hint: use one checkpoint per query; to continue the other query,"
        " start again after it has stopped"
    )

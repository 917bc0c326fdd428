"""What a query keeps beside Spark's own checkpoint from its first start on: its id, its shards and
its specification.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from typing import Any

from pyarrow import fs

from tidegate.errors import CorruptStateError, SetupError
from tidegate.spark.plan.shards import Layout

FORMAT = 1
FOLDER = "tidegate"
_NAME = "query.json"


@dataclass(frozen=True)
class QueryMetadata:
    """The document of one query."""

    query: str
    layout: Layout
    specs: list[list[dict[str, Any]]]

    @classmethod
    def new(cls, layout: Layout, specs: list[list[dict[str, Any]]]) -> QueryMetadata:
        return cls(str(uuid.uuid4()), layout, specs)


def place_of(checkpoint: str) -> tuple[fs.FileSystem, str]:
    """A checkpoint as Arrow reaches it."""
    try:
        if "://" in checkpoint or checkpoint.startswith("file:"):
            system, path = fs.FileSystem.from_uri(checkpoint)
        else:
            system, path = fs.LocalFileSystem(), checkpoint
    except (OSError, ValueError) as error:
        raise SetupError(
            f"the checkpoint `{checkpoint}` cannot be reached: {error}. Hint: a path, or an address"
            " that Arrow knows"
        ) from error
    return system, path.rstrip("/")


def folder_of(checkpoint: str) -> tuple[fs.FileSystem, str]:
    """Where a query keeps its own files: below its checkpoint."""
    system, path = place_of(checkpoint)
    return system, f"{path}/{FOLDER}"


def read(checkpoint: str) -> QueryMetadata | None:
    """What was kept; None at the first start."""
    system, folder = folder_of(checkpoint)
    path = f"{folder}/{_NAME}"
    if system.get_file_info(path).type == fs.FileType.NotFound:
        return None
    with system.open_input_stream(path) as file:
        data = file.readall()
    try:
        document = json.loads(data)
        version = document["format"]
        if version != FORMAT:
            hint = "start it with the version that wrote it, or from a new checkpoint"
            raise CorruptStateError(
                f"the query at {checkpoint} has format {version}; this version reads {FORMAT}."
                f" Hint: {hint}"
            )
        layout = Layout(document["layout"]["partitions"], tuple(document["layout"]["ids"]))
        return QueryMetadata(document["query"], layout, document["specs"])
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptStateError(
            f"{path} is damaged ({error}). Hint: restore it from a copy, or start from a new"
            " checkpoint"
        ) from error


def write(checkpoint: str, kept: QueryMetadata) -> None:
    """Keep it; a crash leaves the former document or the new one."""
    system, folder = folder_of(checkpoint)
    document = {
        "format": FORMAT,
        "query": kept.query,
        "layout": kept.layout.to_dict(),
        "specs": kept.specs,
    }
    try:
        system.create_dir(folder, recursive=True)
        with system.open_output_stream(f"{folder}/.{_NAME}") as file:
            file.write(json.dumps(document, indent=1).encode())
        system.move(f"{folder}/.{_NAME}", f"{folder}/{_NAME}")
    except OSError as error:
        raise SetupError(
            f"the checkpoint `{checkpoint}` cannot be written: {error}. Hint: a folder that this"
            " process may write to"
        ) from error

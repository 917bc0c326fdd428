"""The metadata of a query in its checkpoint: its id, its shards and its specification."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from typing import Any

from pyarrow import fs

from tidegate.errors import CorruptStateError, SetupError
from tidegate.kernel.keys import KeyHasher
from tidegate.spark.checkpoint import tidegate_folder
from tidegate.spark.tasks.shards import ShardLayout

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

    @classmethod
    def new(cls, layout: ShardLayout, specs: list[list[dict[str, Any]]]) -> QueryMetadata:
        return cls(str(uuid.uuid4()), layout, specs)


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
        return QueryMetadata(document["query"], layout, document["specs"])
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptStateError(
            f"{path} is damaged ({error}). Hint: restore it from a copy, or start from a new"
            " checkpoint"
        ) from error


def write_metadata(checkpoint: str, metadata: QueryMetadata) -> None:
    """Write the metadata atomically: a crash leaves either the former document or the new one."""
    system, folder = tidegate_folder(checkpoint)
    document = {
        "format": FORMAT,
        "query": metadata.query,
        "layout": metadata.layout.to_dict(),
        "key_secret": metadata.layout.hasher.secret.hex(),
        "specs": metadata.specs,
    }
    try:
        system.create_dir(folder, recursive=True)
        with system.open_output_stream(f"{folder}/.{_NAME}") as file:
            file.write(json.dumps(document, indent=1).encode())
        system.move(f"{folder}/.{_NAME}", f"{folder}/{_NAME}")
    except OSError as error:
        raise SetupError(
            f"the checkpoint `{checkpoint}` cannot be written: {error}. Hint: use a folder that"
            " this process can write to"
        ) from error

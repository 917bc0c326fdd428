"""The checkpoint of a query: how Arrow reaches it, and the folder for Tidegate's own files."""

from __future__ import annotations

from pyarrow import fs

from tidegate.errors import SetupError

FOLDER = "tidegate"
"""The folder for Tidegate's files, beside Spark's own folders."""


def open_checkpoint(checkpoint: str) -> tuple[fs.FileSystem, str]:
    """The file system of a checkpoint, and its path there."""
    try:
        if "://" in checkpoint or checkpoint.startswith("file:"):
            system, path = fs.FileSystem.from_uri(checkpoint)
        else:
            system, path = fs.LocalFileSystem(), checkpoint
    except (OSError, ValueError) as error:
        raise SetupError(
            f"the checkpoint `{checkpoint}` cannot be opened: {error}. Hint: use a path, or a URI"
            " that Arrow supports"
        ) from error
    return system, path.rstrip("/")


def tidegate_folder(checkpoint: str) -> tuple[fs.FileSystem, str]:
    """The file system of a checkpoint, and the path of Tidegate's folder there."""
    system, path = open_checkpoint(checkpoint)
    return system, f"{path}/{FOLDER}"


def is_local(checkpoint: str) -> bool:
    """Whether a checkpoint is a path of this machine."""
    return "://" not in checkpoint.removeprefix("file://")

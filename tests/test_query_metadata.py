"""The metadata of a query: created once, replaced atomically, never mixed."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
from pyarrow import fs

from tidegate.errors import CorruptStateError, SetupError, StateError
from tidegate.operators.key_secret import new_hasher
from tidegate.spark.query import metadata as module
from tidegate.spark.query.metadata import (
    QueryMetadata,
    create_metadata,
    read_metadata,
    replace_metadata,
)
from tidegate.spark.tasks.shards import ShardLayout


def fresh(partitions: int = 2) -> QueryMetadata:
    layout = ShardLayout.balanced(partitions, hasher=new_hasher())
    return QueryMetadata.new(layout, [[{"a": 1}]])


def files(checkpoint: Path) -> list[str]:
    return sorted(path.name for path in (checkpoint / "tidegate").iterdir())


def test_metadata_are_created_read_and_replaced(tmp_path: Path) -> None:
    assert read_metadata(str(tmp_path)) is None
    first = fresh()
    create_metadata(str(tmp_path), first)
    assert read_metadata(str(tmp_path)) == first
    changed = QueryMetadata(first.query, first.layout, [[{"a": 2}]])
    replace_metadata(f"file://{tmp_path}", changed)
    assert read_metadata(str(tmp_path)) == changed
    assert files(tmp_path) == ["query.json"]


@pytest.mark.parametrize("has_links", [True, False])
def test_of_many_first_starts_at_once_one_wins_and_the_others_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_links: bool
) -> None:
    if not has_links:

        def refuse(*_: object) -> None:
            raise PermissionError(1, "no hard links")

        monkeypatch.setattr(os, "link", refuse)
    starts = [fresh(n + 1) for n in range(8)]
    ready = Barrier(len(starts))

    def start(wanted: QueryMetadata) -> str:
        ready.wait()
        try:
            create_metadata(str(tmp_path), wanted)
        except StateError as error:
            return str(error)
        return "runs"

    with ThreadPoolExecutor(len(starts)) as pool:
        answers = list(pool.map(start, starts))
    assert answers.count("runs") == 1
    assert sum("another query has started" in text for text in answers) == len(starts) - 1
    assert read_metadata(str(tmp_path)) == starts[answers.index("runs")]
    assert files(tmp_path) == ["query.json"]


def test_elsewhere_the_metadata_of_another_start_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Any file system that is not local to Arrow takes the same path as an object store.
    system = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
    monkeypatch.setattr(module, "tidegate_folder", lambda _: (system, "tidegate"))
    first = fresh()
    create_metadata("s3://bucket/ck", first)
    with pytest.raises(StateError, match="another query has started"):
        create_metadata("s3://bucket/ck", fresh())
    assert read_metadata("s3://bucket/ck") == first
    assert files(tmp_path) == ["query.json"]
    # The other start writes between the check and the end of this one.
    monkeypatch.setattr(module, "read_metadata", lambda _: first)
    (tmp_path / "tidegate" / "query.json").unlink()
    with pytest.raises(StateError, match="another query has started"):
        create_metadata("s3://bucket/ck", fresh())


def test_a_folder_that_cannot_be_written_and_a_damaged_document(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for write in (create_metadata, replace_metadata):
        with pytest.raises(SetupError, match="cannot be written"):
            write(str(tmp_path / "file"), fresh())
    create_metadata(str(tmp_path), fresh())
    whole = (tmp_path / "tidegate" / "query.json").read_bytes()
    for damaged in (b"", whole[:40], b"\xff" + whole, b"[1]", b"[" * 100_000):
        (tmp_path / "tidegate" / "query.json").write_bytes(damaged)
        with pytest.raises(CorruptStateError, match="is damaged"):
            read_metadata(str(tmp_path))

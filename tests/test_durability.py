"""What is confirmed survives a power failure: a disk that keeps only synced data has all of it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from support import SUPPORT
from support.durability_worker import CASES
from support.syscalls import STRACE, Disk, calls, trace
from tidegate.state.durability import make_folder, replace_file, sync_all

UNIMPORTANT = {
    "sink": ("_staging/",),
    "memory": ("state.lock", "state.tmp"),
    # RocksDB's own log for people, and files that it can do without.
    "rocksdb": ("/LOG", "/LOCK", "/IDENTITY", "/OPTIONS", ".dbtmp"),
    # SQLite rebuilds the index of its log.
    "streams": ("-shm", "-journal"),
    "checkpoint": ("tidegate/lock",),
}


@pytest.mark.rocksdb
@pytest.mark.skipif(
    STRACE is None or sys.platform != "linux", reason="needs strace, a package of Debian"
)
def test_everything_confirmed_is_synced(tmp_path: Path) -> None:
    """Follows the system calls of a process, and looks at each of its confirmations."""
    log, folder = tmp_path / "calls", tmp_path / "files"
    folder.mkdir()
    trace(SUPPORT / "durability_worker.py", [str(folder)], log)
    disks = {name: Disk(str(folder / name)) for name in CASES}
    confirmed = dict.fromkeys(CASES, 0)
    lost: dict[str, list[str]] = {}
    for name, paths, arguments in calls(log):
        for case, disk in disks.items():
            disk.apply(name, paths, arguments)
            if name == "write" and f'"confirmed {case}\\n"' in arguments:
                confirmed[case] += 1
                found = [
                    path
                    for path in disk.lost()
                    if not any(part in path for part in UNIMPORTANT.get(case, ()))
                ]
                if found:
                    lost[f"{case} {confirmed[case]}"] = found
    assert lost.pop("careless 1") == ["file"], "the model notices what is not synced"
    assert lost == {}
    assert all(disk.files for disk in disks.values())
    assert min(confirmed.values()) > 0


def test_files_are_replaced_as_a_whole(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    make_folder(folder)
    make_folder(folder)
    for text in (b"one", b"two"):
        replace_file(folder / "file", [text, b"!"])
        assert (folder / "file").read_bytes() == text + b"!"
    assert [path.name for path in folder.iterdir()] == ["file"]


def test_a_file_that_is_deleted_meanwhile_needs_no_sync(tmp_path: Path) -> None:
    (tmp_path / "kept").write_bytes(b"x")
    sync_all([tmp_path / "kept", tmp_path / "deleted", tmp_path])

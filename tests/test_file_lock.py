"""A path is locked by one object at a time, and the lock ends with its holder."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import tidegate as tg
from tidegate.state.file_lock import FileLock
from tidegate.state.memory import MemoryStore

HOLDER = """
import sys
from tidegate.state.memory import MemoryStore
store = MemoryStore(sys.argv[1])
print("open", flush=True)
sys.stdin.read()
"""


def test_a_second_lock_is_refused_until_the_first_is_released(tmp_path: Path) -> None:
    first = FileLock(tmp_path / "s")
    with pytest.raises(BlockingIOError):
        FileLock(tmp_path / "s")
    first.release()
    first.release()
    FileLock(tmp_path / "s").release()


def test_two_stores_on_one_file_are_refused_and_change_nothing(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "state"
    store = MemoryStore(path)
    store.put_json("a", 1)
    store.commit()
    for _ in range(2):
        with pytest.raises(tg.StateError, match="already open, in this or another process"):
            MemoryStore(path)
    store.put_json("a", 2)
    store.commit()
    store.close()
    assert MemoryStore(path).get_json("a") == 2


def test_a_store_that_is_collected_releases_its_file(tmp_path: Path) -> None:
    MemoryStore(tmp_path / "state").put_json("a", 1)
    gc.collect()
    MemoryStore(tmp_path / "state").close()


def test_a_store_that_could_not_be_opened_releases_its_file(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.write_bytes(b"something else")
    with pytest.raises(tg.CorruptStateError) as refused:
        MemoryStore(path)
    path.unlink()
    MemoryStore(path).close()
    assert "Hint" in str(refused.value)


def test_an_operator_that_refuses_a_store_closes_it(tmp_path: Path) -> None:
    windows = tg.stream(time="ts", key="k").window(tg.tumbling("1 minute"))
    windows.aggregate(n=tg.count()).embedded(store=MemoryStore(tmp_path / "s")).flush()
    gc.collect()
    with pytest.raises(tg.SpecMismatchError) as refused:
        windows.aggregate(n=tg.sum("v")).embedded(store=MemoryStore(tmp_path / "s"))
    windows.aggregate(n=tg.count()).embedded(store=MemoryStore(tmp_path / "s")).close()
    assert "Hint" in str(refused.value)


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_a_file_is_open_in_one_process_and_free_after_its_sigkill(tmp_path: Path) -> None:
    path = tmp_path / "state"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"open\n"
        with pytest.raises(tg.StateError, match="already open"):
            MemoryStore(path)
        holder.kill()
        holder.wait()
    MemoryStore(path).close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_process_does_not_keep_a_file_locked(tmp_path: Path) -> None:
    lock = FileLock(tmp_path / "s")
    started, child_started = os.pipe()
    end, child_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(child_end)
        os.write(child_started, b".")
        os.read(end, 1)
        os._exit(0)
    os.close(child_started)
    try:
        assert os.read(started, 1) == b"."
        lock.release()
        FileLock(tmp_path / "s").release()
    finally:
        os.close(child_end)
        assert os.waitpid(child, 0)[1] == 0
        os.close(started)
        os.close(end)

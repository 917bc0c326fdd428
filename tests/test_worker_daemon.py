"""The process that forks Spark's Python workers, and what Spark's driver loads before a query."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from pyspark import cloudpickle
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

import tidegate
from tidegate.spark.environment.session import DAEMON, can_workers_import
from tidegate.spark.tasks.deferred import deferred
from tidegate.spark.tasks.processor import BLOB, BLOB_KEY, META

ARCHIVE_FIRST = """
import os, sys
from importlib.util import find_spec
from pathlib import Path
package = Path(find_spec("pyspark").origin).parent
archive = str(package / "python/lib/pyspark.zip")
sys.path.insert(0, archive)
"""
FORKED = """
from tidegate.spark.tasks.daemon import import_all
import_all()
import pyspark
print(Path(pyspark.__file__).parent == package, archive in sys.path)
tasks = Path("/proc/self/task")
print(len(list(tasks.iterdir())) if tasks.is_dir() else 1)
print("tidegate.spark.tasks.processor" in sys.modules, "pandas" in sys.modules)
"""
OTHER = """
from tidegate.spark.tasks.daemon import prefer_installed

sys.path[0] = other = sys.argv[1]
prefer_installed()
print(sys.path[0] == other)
"""
DRIVER = """
import pickle, sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "tidegate":
            raise ImportError(name)
sys.meta_path.insert(0, Blocked())
class Handle:
    def getValueState(self, name, schema): print(name, schema.names)
    def getMapState(self, name, key, value): print(name, key.names, value.names)
processor = pickle.loads(sys.stdin.buffer.read())
processor.init(Handle())
processor.close()
"""


def run(code: str, *args: str, given: bytes = b"") -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", code, *args], input=given, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().splitlines()


def test_workers_are_forked_from_one_thread_with_the_installed_spark_and_all_imports(monkeypatch):
    # Spark sets it to the number of cores of a task.
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    for name, value in DAEMON.items():
        if name.startswith("spark.executorEnv."):
            monkeypatch.setenv(name.rpartition(".")[2], value)
    assert run(ARCHIVE_FIRST + FORKED) == ["True True", "1", "True True"]


def test_an_archive_of_another_spark_stays_first(tmp_path):
    archive = tmp_path / "pyspark.zip"
    archive.write_bytes(b"PK\5\6" + bytes(18))
    assert run(ARCHIVE_FIRST + OTHER, str(archive)) == ["True"]


def test_the_driver_declares_state_without_loading_tidegate():
    class Never(StatefulProcessor):
        def init(self, handle):
            raise AssertionError

        def handleInputRows(self, key, rows, timerValues):  # noqa: N803
            raise AssertionError

        def close(self):
            raise AssertionError

    pickled = cloudpickle.dumps(deferred(Never(), META, BLOB_KEY, BLOB))
    assert run(DRIVER, given=pickled) == [
        "meta ['format', 'summary', 'document']",
        "blobs ['name', 'part'] ['payload']",
    ]


def test_workers_do_not_have_the_folder_of_the_script(monkeypatch):
    place = str(Path(tidegate.__file__).parent.parent)
    monkeypatch.setattr(sys, "path", [place, "/elsewhere"])
    monkeypatch.delenv("PYTHONPATH", raising=False)
    assert not can_workers_import()
    monkeypatch.setenv("PYTHONPATH", place)
    assert can_workers_import()
    monkeypatch.delenv("PYTHONPATH")
    monkeypatch.setattr(sys, "path", ["/elsewhere", place])
    assert can_workers_import()

"""The process that forks Spark's Python workers, and what Spark's driver loads before a query."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

import pyspark
from pyspark import cloudpickle
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

import tidegate as tg
from tidegate.errors import SetupError
from tidegate.spark.environment import session
from tidegate.spark.environment.session import DAEMON, can_workers_import, worker_path
from tidegate.spark.plan.dataflow import edge_of
from tidegate.spark.sources.data_source import EdgeSource
from tidegate.spark.sources.files import Folder
from tidegate.spark.sources.formats import PartReader
from tidegate.spark.sources.readers import FolderScan
from tidegate.spark.sources.text_formats import Csv
from tidegate.spark.tasks.deferred import deferred
from tidegate.spark.tasks.packed import Packed
from tidegate.spark.tasks.processor import BLOB, BLOB_KEY, META
from tidegate.spark.tasks.shards import ShardLayout

PYSPARK = Path(pyspark.__file__).parent
WORKER_START = Path(session.__file__).with_name("worker_start")

FORKED = """
from pathlib import Path
from tidegate.spark.tasks.daemon import import_all
import_all()
import sys
tasks = Path("/proc/self/task")
print(len(list(tasks.iterdir())) if tasks.is_dir() else 1)
print("tidegate.spark.tasks.processor" in sys.modules, "pandas" in sys.modules)
"""
PLACES = """
import sys
from importlib.util import find_spec
print(find_spec("pyspark").origin)
print([path for path in sys.path if path.endswith(("pyspark.zip", "worker_start"))])
print(getattr(sys.modules["sitecustomize"], "NAME", None))
"""
LOADED = """
import pickle, sys
from pyspark import cloudpickle
source = pickle.loads(sys.stdin.buffer.read())
cloudpickle.dumps(source)
print(*sorted(name for name in sys.modules if name.startswith("tidegate.")))
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


def untouched(content: bytes = b"") -> StatefulProcessor:
    """A processor that nothing may call; its class is pickled with it."""

    class Untouched(StatefulProcessor):
        data = content

        def init(self, handle):
            raise AssertionError

        def handleInputRows(self, key, rows, timerValues):  # noqa: N803
            raise AssertionError

        def close(self):
            raise AssertionError

    return Untouched()


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
    assert run(FORKED) == ["1", "True True"]


def started(archive: Path, *more: Path) -> list[str]:
    """What a process finds that Spark starts with this archive first on its path."""
    path = os.pathsep.join(map(str, [archive, WORKER_START, *more]))
    done = subprocess.run(
        [sys.executable, "-c", PLACES],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_processes_of_a_session_find_the_installed_spark_before_its_archive():
    archive = PYSPARK / "python" / "lib" / "pyspark.zip"
    found, on_path, _ = started(archive)
    assert found == str(PYSPARK / "__init__.py")
    assert on_path == str([str(archive)])


def test_an_archive_of_another_spark_stays_first(tmp_path):
    archive = tmp_path / "pyspark.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("pyspark/__init__.py", "")
    found, on_path, _ = started(archive)
    assert found == str(archive / "pyspark" / "__init__.py")
    assert on_path == str([str(archive)])


def test_the_sitecustomize_of_the_user_runs_too(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("NAME = 'of the user'\n")
    assert started(PYSPARK / "python" / "lib" / "pyspark.zip", tmp_path)[2] == "of the user"


def test_a_session_leaves_the_path_of_this_process_as_it_was(monkeypatch):
    for before in (None, "/mine"):
        monkeypatch.delenv("PYTHONPATH", raising=False)
        if before is not None:
            monkeypatch.setenv("PYTHONPATH", before)
        with worker_path():
            found = os.environ["PYTHONPATH"].split(os.pathsep)
            assert found == [str(WORKER_START), *filter(None, [before])]
        assert os.environ.get("PYTHONPATH") == before


def test_processes_that_plan_what_a_source_reads_do_not_load_operators(tmp_path):
    scan = FolderScan(PartReader(Folder(str(tmp_path)), Csv(), pa.schema([("k", pa.int64())])), 2)
    spec = tg.stream(time="t", key="k").window(tg.tumbling("5 s")).aggregate(n=tg.count())
    edge = edge_of(spec.spec, 0, ShardLayout.balanced(2))
    parts = {"alias": "one", "scan": scan, "edge": Packed(edge)}
    kind = type("DirectSource", (EdgeSource,), parts)
    loaded = run(LOADED, given=cloudpickle.dumps(kind))[0].split()
    assert "tidegate.spark.sources.readers" in loaded
    assert not [
        name
        for name in loaded
        if name.startswith(("tidegate.operators.aggregate", "tidegate.api.", "tidegate.embedded"))
        and name != "tidegate.api.state"
    ]
    assert kind.edge.content == edge


def test_the_driver_declares_state_without_loading_tidegate():
    pickled = cloudpickle.dumps(deferred(untouched(), META, BLOB_KEY, BLOB))
    assert run(DRIVER, given=pickled) == [
        "meta ['format', 'summary', 'document']",
        "blobs ['name', 'part'] ['payload']",
    ]


def test_a_function_that_spark_would_broadcast_is_refused_with_a_way_out():
    heavy, state = untouched(os.urandom(2 << 20)), (META, BLOB_KEY, BLOB)
    assert deferred(heavy, *state) is not None
    with pytest.raises(
        SetupError, match=r"bring 2,09\d,\d+ bytes.*tg.spark_session\(\), or.*a.b=1g"
    ):
        deferred(heavy, *state, limited_by="a.b")


def test_workers_do_not_have_the_folder_of_the_script(monkeypatch):
    place = str(Path(tg.__file__).parent.parent)
    monkeypatch.setattr(sys, "path", [place, "/elsewhere"])
    monkeypatch.delenv("PYTHONPATH", raising=False)
    assert not can_workers_import()
    monkeypatch.setenv("PYTHONPATH", place)
    assert can_workers_import()
    monkeypatch.delenv("PYTHONPATH")
    monkeypatch.setattr(sys, "path", ["/elsewhere", place])
    assert can_workers_import()

"""Spark sessions for Tidegate's queries: start one, configure it, or check an existing one."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from tidegate.errors import MissingExtraError, SetupError
from tidegate.spark.environment.java import HOW_TO_GET_JAVA, OLDEST_JAVA, find_java
from tidegate.spark.environment.stderr_filter import filtered_stderr
from tidegate.spark.parallelism import PARTITIONS, local_cores, parallelism

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)
OLDEST_SPARK = (4, 1)
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
BROADCAST_ABOVE = "spark.broadcast.UDFCompressionThreshold"
"""The size above which Spark broadcasts a function, which stateful operators cannot read."""
PACKAGES = "spark.jars.packages"
JARS = "spark.jars"
_FILE_MANAGER = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
_JVM_OPTIONS = ("spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions")

DAEMON = {
    "spark.python.daemon.module": "tidegate.spark.tasks.daemon",
    # A fork would not copy the thread of this allocator.
    "spark.executorEnv.JE_ARROW_MALLOC_CONF": "background_thread:false",
}
"""Settings by which Tidegate forks the Python workers of a local session."""
UNIX_SOCKETS = {"spark.python.unix.domain.socket.enabled": "true"}
"""Makes a session use Unix sockets to its Python workers.

Over TCP, a small message waits 40 ms for the acknowledgement of the previous one. It is not the
default: PySpark prints an error when Spark stops a worker that was idle for a minute, and a socket
path is limited to about 100 characters, which the temporary folder of an executor may exceed.
"""
RUNTIME_CONF: dict[str, str] = {
    PROVIDER: ROCKSDB,
    # Otherwise every batch uploads full snapshots of the state.
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # One limit for the memory of all state stores of an executor; otherwise each has its own.
    "spark.sql.streaming.stateStore.rocksdb.boundedMemoryUsage": "true",
    "spark.sql.streaming.stateStore.rocksdb.maxMemoryUsageMB": "500",
    # The default one forks two processes for every file of a local checkpoint.
    "spark.sql.streaming.checkpointFileManagerClass": _FILE_MANAGER,
    "spark.sql.execution.arrow.maxRecordsPerBatch": "131072",
    "spark.sql.session.timeZone": "UTC",
}
"""Settings that can be changed in a running session."""


def session(
    name: str = "tidegate",
    *,
    master: str | None = None,
    cores: int | None = None,
    memory: str | None = None,
    packages: Sequence[str] = (),
    conf: Mapping[str, Any] | None = None,
    remote: str | None = None,
    kafka: bool = False,
) -> SparkSession:
    """A session with the settings that Tidegate needs: the active one, reconfigured, or a new one.

    `master`: default is this process, with `cores` cores (default: all). `memory`: of the driver if
    local, else of each executor. `packages`: Maven coordinates. `conf`: settings that override all
    others. `remote`: the address of a Spark Connect server, such as `sc://localhost:15002`.
    `kafka`: whether to load Spark's own Kafka source, whose jars are downloaded once.
    """
    settings = {key: _text(value) for key, value in (conf or {}).items()}
    if kafka:
        settings[JARS] = _with_kafka_jars(settings.get(JARS, ""))
    spark = running_session(remote)
    if spark is None:
        starting = {} if remote else _start_conf(master, cores, memory, packages)
        # JVM options are appended to ours; if two contradict each other, the later one wins.
        options = {
            key: f"{starting[key]} {settings[key]}"
            for key in _JVM_OPTIONS
            if key in starting and key in settings
        }
        # The Java process keeps the filtered stream, and the path of its Python processes.
        forks = starting.keys() >= DAEMON.keys()
        with (
            nullcontext() if remote else filtered_stderr(),
            worker_path() if forks else nullcontext(),
        ):
            spark = _start(name, remote, {**starting, **settings, **options})
    partitions = str(cores or parallelism(spark))
    _configure(spark, {**RUNTIME_CONF, PARTITIONS: partitions, **settings})
    _check_packages(spark, packages)
    if kafka:
        _check_jars(spark, settings[JARS])
    _register(spark)
    return spark


_registered: WeakSet[SparkSession] = WeakSet()
"""Sessions with our sources registered: Spark warns if a source is registered twice."""


def _register(spark: SparkSession) -> None:
    from tidegate.spark.sources import register

    if spark not in _registered:
        register(spark)
        _registered.add(spark)


def check_session(spark: SparkSession) -> None:
    """Refuse a session that cannot run Tidegate's queries; the error tells you how to fix it."""
    version = tuple(int(number) for number in re.findall(r"\d+", spark.version)[:2])
    if version < OLDEST_SPARK:
        raise SetupError(
            f"Tidegate needs Spark 4.1 or newer, this session is {spark.version}. Hint: pip install"
            " 'pyspark>=4.1'"
        )
    provider = spark.conf.get(PROVIDER, "")
    if provider != ROCKSDB:
        raise SetupError(
            f"the state of a query is kept in RocksDB, but `{PROVIDER}` is `{provider}`. "
            f'Hint: use tg.spark_session(), or spark.conf.set("{PROVIDER}", "{ROCKSDB}")'
        )
    _require("google.protobuf", "protobuf")
    _require("pandas", "pandas")


def running_session(remote: str | None = None) -> SparkSession | None:
    """The active session of this process, if any; None with `remote`, which Spark resolves."""
    found = None
    if not remote:
        # `active` raises if there is none.
        with suppress(RuntimeError):
            found = _pyspark().active()
    return found


def is_remote(spark: SparkSession) -> bool:
    """Whether a session is one of Spark Connect."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def _pyspark() -> type[SparkSession]:
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise MissingExtraError("pyspark", "spark", "a Spark session") from None
    return SparkSession


def _start_conf(
    master: str | None, cores: int | None, memory: str | None, packages: Sequence[str]
) -> dict[str, str]:
    """The settings that take effect only when a session starts."""
    # Under spark-submit the JVM already runs, with the settings of the command.
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    here = master is None and not submitted and not os.environ.get("MASTER")
    where = master or os.environ.get("MASTER") or f"local[{cores or local_cores()}]"
    local = here or where.startswith("local")
    found = {
        **RUNTIME_CONF,
        **({} if submitted and master is None else {"spark.master": where}),
        "spark.pyspark.python": sys.executable,
        # Otherwise the main thread overflows its stack when a query stops: harmless, but noisy.
        "spark.driver.extraJavaOptions": f"-Xss16m{_logging()}",
        "spark.executor.extraJavaOptions": "-Xss16m",
        BROADCAST_ABOVE: "1g",
        "spark.ui.showConsoleProgress": "false",
    }
    if not configured("spark.ui.enabled"):
        _log.info("Spark's UI is off. Hint: conf={'spark.ui.enabled': True}")
        found["spark.ui.enabled"] = "false"
    if local:
        # Works without a network, and if the host name does not resolve.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        found |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        if not submitted and can_workers_import():
            found |= DAEMON
    elif cores:
        found["spark.cores.max"] = str(cores)
    if memory:
        found["spark.driver.memory" if local else "spark.executor.memory"] = memory
    if packages:
        found[PACKAGES] = ",".join(packages)
    return found


def can_workers_import() -> bool:
    """Whether Python workers on this machine find Tidegate where this process has found it.

    They do not have the folder of the script, which is the first one on the path of this process.
    """
    place = str(Path(__file__).parents[3])
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return place in {*sys.path[1:], *given}


@contextmanager
def worker_path() -> Iterator[None]:
    """Begin the path of Python processes that Spark starts with `worker_start`."""
    before = os.environ.get("PYTHONPATH")
    first = str(Path(__file__).with_name("worker_start"))
    os.environ["PYTHONPATH"] = os.pathsep.join([first, *filter(None, [before])])
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def configured(setting: str) -> bool:
    """Whether the user has this setting in `spark-defaults.conf`, which ours would override."""
    home = os.environ.get("SPARK_HOME")
    folder = os.environ.get("SPARK_CONF_DIR") or (f"{home}/conf" if home else None)
    file = None if folder is None else Path(folder, "spark-defaults.conf")
    if file is None or not file.is_file():
        return False
    lines = file.read_text(encoding="utf-8").splitlines()
    return any(re.match(rf"\s*{re.escape(setting)}[\s=:]", line) for line in lines)


def _logging() -> str:
    """The JVM option for our log settings, unless SPARK_CONF_DIR has its own."""
    custom = Path(os.environ.get("SPARK_CONF_DIR", "conf-unknown")) / "log4j2.properties"
    ours = Path(__file__).with_name("log4j2.properties").as_uri()
    return "" if custom.exists() else f' "-Dlog4j2.configurationFile={ours}"'


def _start(name: str, remote: str | None, settings: Mapping[str, str]) -> SparkSession:
    builder = _pyspark().builder.appName(name)
    if remote or os.environ.get("SPARK_REMOTE"):
        return builder.remote(remote or os.environ["SPARK_REMOTE"]).getOrCreate()
    _require_java()
    # By default, workers use the first `python3` on the PATH.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _require_java() -> None:
    java = find_java()
    if java is None:
        home = os.environ.get("JAVA_HOME")
        found = (
            f"JAVA_HOME is `{home}`, which has no bin/java"
            if home
            else "none is on the PATH, and JAVA_HOME is not set"
        )
        raise SetupError(
            f"Spark needs Java {OLDEST_JAVA} or newer: {found}. Hint: {HOW_TO_GET_JAVA}"
        )
    if not java.new_enough:
        found = f"{java.program} (from {java.named_by}) is Java {java.version}"
        raise SetupError(
            f"Spark needs Java {OLDEST_JAVA} or newer: {found}. Hint: {HOW_TO_GET_JAVA}"
        )


def _configure(spark: SparkSession, settings: Mapping[str, str]) -> None:
    """Apply the settings that differ, as far as a running session allows it."""
    from pyspark.errors import AnalysisException

    for key, value in settings.items():
        if spark.conf.get(key, None) != value:
            # `isModifiable` is false for settings of state stores, although they can be set.
            with suppress(AnalysisException):
                spark.conf.set(key, value)


def _check_packages(spark: SparkSession, packages: Sequence[str]) -> None:
    loaded = (spark.conf.get(PACKAGES, "") or "").split(",")
    missing = [package for package in packages if package not in loaded]
    if missing:
        raise SetupError(
            "packages are loaded when a session starts, and the running session lacks"
            f" {', '.join(missing)}. Hint: stop it first"
        )


def _with_kafka_jars(jars: str) -> str:
    from tidegate.spark.environment.jars import kafka_jars

    return ",".join([*filter(None, jars.split(",")), *map(str, kafka_jars())])


def _check_jars(spark: SparkSession, jars: str) -> None:
    loaded = {Path(jar).name for jar in (spark.conf.get(JARS, "") or "").split(",")}
    missing = [jar for jar in jars.split(",") if Path(jar).name not in loaded]
    if missing:
        raise SetupError(
            "jars are loaded when a session starts, and the running session lacks"
            f" {Path(missing[0]).name}. Hint: stop it first, or start it with kafka=True"
        )


def _require(module: str, package: str) -> None:
    from importlib.util import find_spec

    try:
        found = find_spec(module)
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise MissingExtraError(package, "spark", "a stateful Spark query")


def _text(value: Any) -> str:
    """The value of a setting as Spark spells it."""
    return str(value).lower() if isinstance(value, bool) else str(value)

"""Spark sessions that are ready for Tidegate's queries, and the check of sessions that others
made.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from tidegate.errors import MissingExtraError, SetupError
from tidegate.spark.environment.java import HOW_TO_GET_JAVA, OLDEST_JAVA, find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OLDEST_SPARK = (4, 1)
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
PARTITIONS = "spark.sql.shuffle.partitions"
PACKAGES = "spark.jars.packages"
_FILE_MANAGER = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
_JVM_OPTIONS = ("spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions")

UNIX_SOCKETS = {"spark.python.unix.domain.socket.enabled": "true"}
"""What lets a session talk to its Python workers without TCP, on which a small message waits 40 ms
for the acknowledgement of the one before.

Not for everybody: PySpark prints an error when Spark lets a worker go that had nothing to do for a
minute, and the path of a socket has room for a hundred characters, of which the temporary folder of
an executor may need more.
"""
RUNTIME_CONF: dict[str, str] = {
    PROVIDER: ROCKSDB,
    # Without it every batch uploads whole snapshots of the state.
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # The default one forks two programs for every file of a checkpoint on a local path.
    "spark.sql.streaming.checkpointFileManagerClass": _FILE_MANAGER,
    "spark.sql.execution.arrow.maxRecordsPerBatch": "131072",
    "spark.sql.session.timeZone": "UTC",
}
"""What a running session can be told too."""


def session(
    name: str = "tidegate",
    *,
    master: str | None = None,
    cores: int | None = None,
    memory: str | None = None,
    packages: Sequence[str] = (),
    conf: Mapping[str, Any] | None = None,
    remote: str | None = None,
) -> SparkSession:
    """A session with the settings that Tidegate's queries need: the running one, told what it can
    still be told, or a new one.

    Without `master` it runs in this process on `cores` cores (all, unless said); `memory` is that
    of the driver there and of an executor on a cluster. `packages` are Maven coordinates. `conf`
    has the last word. `remote` is the address of a Spark Connect server, as in
    `sc://localhost:15002`.
    """
    said = {key: _text(value) for key, value in (conf or {}).items()}
    spark = running_session(remote)
    if spark is None:
        starting = {} if remote else _start_conf(master, cores, memory, packages)
        # Options of the JVM are added to ours; of two that contradict each other the later one
        # holds.
        options = {
            key: f"{starting[key]} {said[key]}"
            for key in _JVM_OPTIONS
            if key in starting and key in said
        }
        spark = _started(name, remote, {**starting, **said, **options})
    _tell(spark, {**RUNTIME_CONF, PARTITIONS: str(cores or cores_of(spark)), **said})
    _has_packages(spark, packages)
    _register(spark)
    return spark


_registered: WeakSet[SparkSession] = WeakSet()
"""The sessions that know our sources: Spark warns where one is registered again."""


def _register(spark: SparkSession) -> None:
    from tidegate.spark.sources import register

    if spark not in _registered:
        register(spark)
        _registered.add(spark)


def check(spark: SparkSession) -> None:
    """Refuse a session that cannot run Tidegate's queries, and say how to mend it."""
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
            "Hint: build the session with tidegate.spark.environment.session, or"
            f' spark.conf.set("{PROVIDER}", "{ROCKSDB}")'
        )
    _need("google.protobuf", "protobuf")
    _need("pandas", "pandas")


def cores_of(spark: SparkSession) -> int:
    """How many tasks run at once, as far as the settings tell; this also holds through Spark
    Connect, where there is no context to ask.
    """
    local = re.fullmatch(
        r"local(?:\[(\d+|\*)(?:,\s*\d+)?\])?", spark.conf.get("spark.master", "") or ""
    )
    if local:
        return _cores_here() if local.group(1) == "*" else int(local.group(1) or 1)
    cluster = re.fullmatch(
        r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*\d+\s*\]",
        spark.conf.get("spark.master", "") or "",
    )
    if cluster:
        return int(cluster.group(1)) * int(cluster.group(2))
    total = spark.conf.get("spark.cores.max", "") or spark.conf.get("spark.default.parallelism", "")
    if total:
        return int(total)
    executors = int(spark.conf.get("spark.executor.instances", "") or 0) * int(
        spark.conf.get("spark.executor.cores", "") or 1
    )
    return executors or int(spark.conf.get(PARTITIONS, "200") or 200)


def running_session(remote: str | None = None) -> SparkSession | None:
    """The session of this process, if there is one; an address is left to Spark, which knows
    whether a session is connected to it.
    """
    found = None
    if not remote:
        # `active` is an error where there is none.
        with suppress(RuntimeError):
            found = _pyspark().active()
    return found


def _pyspark() -> type[SparkSession]:
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise MissingExtraError("pyspark", "spark", "a Spark session") from None
    return SparkSession


def _start_conf(
    master: str | None, cores: int | None, memory: str | None, packages: Sequence[str]
) -> dict[str, str]:
    """What a session has to be told when it starts."""
    # Under spark-submit the JVM is there already, and what it was started with stands.
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    here = master is None and not submitted and not os.environ.get("MASTER")
    where = master or os.environ.get("MASTER") or f"local[{cores or _cores_here()}]"
    local = here or where.startswith("local")
    found = {
        **RUNTIME_CONF,
        **({} if submitted and master is None else {"spark.master": where}),
        "spark.pyspark.python": sys.executable,
        # The stack of the main thread overflows when a query stops otherwise: harmless, but pages
        # of noise.
        "spark.driver.extraJavaOptions": f"-Xss16m{_logging()}",
        "spark.executor.extraJavaOptions": "-Xss16m",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if local:
        # Works without a network, and where the name of the machine has no address.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        found |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    elif cores:
        found["spark.cores.max"] = str(cores)
    if memory:
        found["spark.driver.memory" if local else "spark.executor.memory"] = memory
    if packages:
        found[PACKAGES] = ",".join(packages)
    return found


def _logging() -> str:
    """The option that names our logging, unless the user's folder of settings has its own."""
    theirs = Path(os.environ.get("SPARK_CONF_DIR", "conf-unknown")) / "log4j2.properties"
    return (
        ""
        if theirs.exists()
        else (
            f' "-Dlog4j2.configurationFile={Path(__file__).with_name("log4j2.properties").as_uri()}"'
        )
    )


def _started(name: str, remote: str | None, settings: Mapping[str, str]) -> SparkSession:
    builder = _pyspark().builder.appName(name)
    if remote or os.environ.get("SPARK_REMOTE"):
        return builder.remote(remote or os.environ["SPARK_REMOTE"]).getOrCreate()
    _require_java()
    # Workers take the first `python3` on the PATH unless they are told.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _require_java() -> None:
    java = find_java()
    if java is None:
        wrong = os.environ.get("JAVA_HOME")
        came = (
            f"JAVA_HOME is `{wrong}`, where there is no bin/java"
            if wrong
            else "none is on the PATH, and JAVA_HOME is not set"
        )
        raise SetupError(
            f"Spark needs Java {OLDEST_JAVA} or newer: {came}. Hint: {HOW_TO_GET_JAVA}"
        )
    if not java.new_enough:
        came = f"{java.program} (by {java.named_by}) is Java {java.version}"
        raise SetupError(
            f"Spark needs Java {OLDEST_JAVA} or newer; {came}. Hint: {HOW_TO_GET_JAVA}"
        )


def _tell(spark: SparkSession, settings: Mapping[str, str]) -> None:
    """Set what differs and can be set while a session runs; the rest was said when it started, or
    comes too late.
    """
    from pyspark.errors import AnalysisException

    for key, value in settings.items():
        if spark.conf.get(key, None) != value:
            # `isModifiable` does not know the settings of state stores, which can be set.
            with suppress(AnalysisException):
                spark.conf.set(key, value)


def _has_packages(spark: SparkSession, packages: Sequence[str]) -> None:
    have = (spark.conf.get(PACKAGES, "") or "").split(",")
    lacking = [package for package in packages if package not in have]
    if lacking:
        raise SetupError(
            "packages are added when a session starts, and this one runs without"
            f" {', '.join(lacking)}. Hint: stop it first"
        )


def _need(module: str, package: str) -> None:
    from importlib.util import find_spec

    try:
        found = find_spec(module)
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise MissingExtraError(package, "spark", "a stateful Spark query")


def _cores_here() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _text(value: Any) -> str:
    """A setting as Spark writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)

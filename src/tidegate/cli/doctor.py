"""`tidegate doctor`: checks what Tidegate needs on this machine, and shows how to fix problems."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from tidegate.errors import TidegateError
from tidegate.spark.environment.java import HOW_TO_GET_JAVA, OLDEST_JAVA, find_java
from tidegate.spark.environment.stderr_filter import filtered_stderr

OK, PROBLEM, NOTE = "ok", "problem", "note"
_NEEDED = {
    "pyspark": ("4.1", "spark"),
    "pyarrow": ("18.0", ""),
    "numpy": ("2.0", ""),
    "pandas": ("2.2", "spark"),
    "protobuf": ("6.0", "spark"),
}
"""Required packages with their oldest supported version and the extra that installs them."""
_PANDAS_TOO_NEW = (3,)
_OPTIONAL = {
    "deltalake": ("delta", "the sink delta"),
    "confluent-kafka": ("kafka", "the sink kafka"),
    "psycopg": ("postgres", "the sink postgres"),
    "grpcio": ("connect", "Spark Connect"),
    "datasketches": ("sketches", "approximate aggregates"),
    "rocksdict": ("rocksdb", "embedded state on disk"),
    "matplotlib": ("plot", "pictures"),
}
_JARS = ("spark-sql_", "spark-streaming_", "rocksdbjni-")
_ROOM = 200 * 1024 * 1024


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    check: str
    status: str
    message: str
    fix: str = ""


def doctor(*, checkpoint: str | None = None, spark: bool = False, as_json: bool = False) -> int:
    """Run all checks and print their results; returns 1 if there is a problem."""
    problems = 0
    for finding in findings(checkpoint, spark=spark):
        problems += finding.status == PROBLEM
        print(json.dumps(asdict(finding)) if as_json else _text(finding), flush=True)
    if not as_json:
        print("no problems" if not problems else f"{problems} problem{'s' if problems > 1 else ''}")
    return 1 if problems else 0


def findings(checkpoint: str | None = None, *, spark: bool = False) -> Iterator[Finding]:
    """The results of all checks; a check that raises is a problem too."""
    checks: list[tuple[str, Callable[[], Iterator[Finding]]]] = [
        ("java", _java),
        ("python", _python),
        ("packages", _packages),
        ("spark", _spark_package),
        (
            "temporary folder",
            lambda: _writable(
                "temporary folder",
                Path(tempfile.gettempdir()),
                "set TMPDIR to a writable folder",
            ),
        ),
        ("network", _loopback),
    ]
    if checkpoint is not None:
        checks.append(
            (
                "checkpoint",
                lambda: _writable("checkpoint", Path(checkpoint), "choose a writable folder"),
            )
        )
    if spark:
        checks.append(("query", _query))
    for name, check in checks:
        try:
            yield from check()
        except Exception as error:  # noqa: BLE001 - a broken check must not stop the others
            yield Finding(
                name,
                PROBLEM,
                f"the check failed: {type(error).__name__}: {error}",
                "see the error",
            )


def _java() -> Iterator[Finding]:
    java, home = find_java(), os.environ.get("JAVA_HOME")
    if java is None:
        message = (
            f"JAVA_HOME is {home}, which has no bin/java"
            if home
            else "there is no java on the PATH, and JAVA_HOME is not set"
        )
        yield Finding("java", PROBLEM, message, HOW_TO_GET_JAVA)
    elif not java.new_enough:
        message = (
            f"{java.program} is Java {java.version}"
            if java.version
            else f"{java.program} does not report its version"
        )
        yield Finding(
            "java", PROBLEM, f"{message}; Spark needs {OLDEST_JAVA} or newer", HOW_TO_GET_JAVA
        )
    else:
        yield Finding("java", OK, f"Java {java.version}, {java.program} (from {java.named_by})")


def _python() -> Iterator[Finding]:
    """The Python of Spark workers, and whether it can import Tidegate."""
    yield Finding(
        "python", OK, f"Python {'.'.join(map(str, sys.version_info[:3]))}, {sys.executable}"
    )
    workers = os.environ.get("PYSPARK_PYTHON")
    if workers is None:
        yield Finding(
            "python of workers",
            OK,
            "PYSPARK_PYTHON is not set; sessions that Tidegate builds use this Python",
        )
        return
    fix = f"export PYSPARK_PYTHON={sys.executable}"
    program = "import sys, tidegate; print(*sys.version_info[:2], tidegate.__version__)"
    try:
        done = subprocess.run(  # noqa: S603 - the interpreter that Spark would start
            [workers, "-c", program], capture_output=True, text=True, check=False, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        yield Finding(
            "python of workers",
            PROBLEM,
            f"PYSPARK_PYTHON is {workers}, which does not run: {error}",
            fix,
        )
        return
    here = " ".join(map(str, sys.version_info[:2]))
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        yield Finding(
            "python of workers",
            PROBLEM,
            f"{workers} cannot import tidegate: {last}",
            f"install tidegate there, or {fix}",
        )
    elif not done.stdout.startswith(f"{here} "):
        message = (
            f"{workers} is Python {'.'.join(done.stdout.split()[:2])}, but the driver is"
            f" {here.replace(' ', '.')}; Spark needs the same version"
        )
        yield Finding("python of workers", PROBLEM, message, fix)
    else:
        yield Finding(
            "python of workers", OK, f"PYSPARK_PYTHON is {workers}, which can import tidegate"
        )


def _packages() -> Iterator[Finding]:
    for package, (oldest, extra) in _NEEDED.items():
        version, install = (
            _version(package),
            f"pip install '{f'tidegate[{extra}]' if extra else f'{package}>={oldest}'}'",
        )
        if version is None:
            yield Finding(package, PROBLEM, "is not installed", install)
        elif _numbers(version) < _numbers(oldest):
            yield Finding(
                package,
                PROBLEM,
                f"{version} is too old; {oldest} or newer is needed",
                f"pip install '{package}>={oldest}'",
            )
        elif package == "pandas" and _numbers(version) >= _PANDAS_TOO_NEW:
            yield Finding(
                package,
                NOTE,
                f"{version} is newer than PySpark supports; PySpark warns, but everything used"
                " here works",
                install,
            )
        else:
            yield Finding(package, OK, version)
    for package, (extra, purpose) in _OPTIONAL.items():
        version = _version(package)
        if version is None:
            yield Finding(
                package,
                NOTE,
                f"is not installed; only needed for {purpose}",
                f"pip install 'tidegate[{extra}]'",
            )
        else:
            yield Finding(package, OK, f"{version} (for {purpose})")


def _spark_package() -> Iterator[Finding]:
    """The Spark that would be started: the one in SPARK_HOME if set, else the one of PySpark."""
    found = importlib.util.find_spec("pyspark")
    home = os.environ.get("SPARK_HOME")
    if home is None and (found is None or found.origin is None):
        return
    folder = Path(home) if home else Path(str(found.origin if found else "")).parent
    jars = [jar.name for jar in (folder / "jars").glob("*.jar")]
    lacking = [prefix for prefix in _JARS if not any(jar.startswith(prefix) for jar in jars)]
    fix = "unset SPARK_HOME" if home else "pip install --force-reinstall pyspark"
    if lacking:
        yield Finding(
            "spark",
            PROBLEM,
            f"{folder / 'jars'} has no {', '.join(f'{prefix}*.jar' for prefix in lacking)}",
            fix,
        )
        return
    version = next(
        (
            m.group(1)
            for jar in jars
            if (m := re.fullmatch(r"spark-sql_[\d.]+-([\d.]+)[\w.-]*\.jar", jar))
        ),
        "",
    )
    package = _version("pyspark") or version
    if _numbers(version)[:2] != _numbers(package)[:2]:
        yield Finding(
            "spark",
            PROBLEM,
            f"the jars in {folder} are Spark {version}, but the package pyspark is {package}",
            fix,
        )
    else:
        yield Finding("spark", OK, f"Spark {version}, with the state store RocksDB, in {folder}")


def _writable(name: str, folder: Path, fix: str) -> Iterator[Finding]:
    """Whether files can be created, renamed and deleted in a folder.

    A folder that did not exist is removed again.
    """
    made = [part for part in (folder, *folder.parents) if not part.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".tidegate-") as inside:
            (Path(inside) / "before").write_bytes(b"tidegate")
            (Path(inside) / "before").rename(Path(inside) / "after")
        free = (
            os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize
            if hasattr(os, "statvfs")
            else _ROOM
        )
        if free < _ROOM:
            yield Finding(
                name,
                PROBLEM,
                f"{folder} has only {free // 1024**2} MB left",
                "free some space, or choose another folder",
            )
        else:
            yield Finding(name, OK, f"{folder} is writable, {free / 1024**3:.1f} GB free")
    except OSError as error:
        yield Finding(name, PROBLEM, f"{folder} is not writable: {error.strerror or error}", fix)
    finally:
        for part in made:
            with contextlib.suppress(OSError):
                part.rmdir()


def _loopback() -> Iterator[Finding]:
    """Whether local sockets work: Spark and its Python workers communicate through them."""
    try:
        with (
            socket.create_server(("127.0.0.1", 0)) as server,
            socket.create_connection(server.getsockname(), timeout=5),
        ):
            pass
    except OSError as error:
        yield Finding(
            "network",
            PROBLEM,
            f"no connection to 127.0.0.1: {error}",
            "allow local connections (is there a firewall or a sandbox?)",
        )
        return
    yield Finding("network", OK, "connections to 127.0.0.1 work")


def _query() -> Iterator[Finding]:
    """Start a session and run a stateful query over a few rows."""
    from tidegate.cli.doctor_query import small_query

    with filtered_stderr():
        try:
            message = small_query()
        except TidegateError as error:
            problem, _, fix = str(error).partition(". Hint: ")
            yield Finding("query", PROBLEM, problem, fix)
            return
    yield Finding("query", OK, message)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


def _text(finding: Finding) -> str:
    line = f"{finding.status:<8} {finding.check:<18} {finding.message}"
    how = "to fix it" if finding.status == PROBLEM else "if needed"
    return f"{line}\n{'':27} {how}: {finding.fix}" if finding.fix else line

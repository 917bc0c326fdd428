"""`tidegate doctor`: what Tidegate needs on this machine, whether it is there, and how to mend what
is not.
"""

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

from tidegate.cli.stderr_filter import without_noise
from tidegate.errors import TidegateError
from tidegate.spark.environment.java import HOW_TO_GET_JAVA, OLDEST_JAVA, find_java

OK, PROBLEM, NOTE = "ok", "problem", "note"
_NEEDED = {
    "pyspark": ("4.1", "spark"),
    "pyarrow": ("18.0", ""),
    "numpy": ("2.0", ""),
    "pandas": ("2.2", "spark"),
    "protobuf": ("6.0", "spark"),
}
"""Packages, the oldest version that will do, and the extra that brings them."""
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
    """One thing that was looked at."""

    check: str
    status: str
    said: str
    mend: str = ""


def doctor(*, checkpoint: str | None = None, spark: bool = False, as_json: bool = False) -> int:
    """Look at everything and tell it, line by line; 1 where there is a problem."""
    problems = 0
    for finding in findings(checkpoint, spark=spark):
        problems += finding.status == PROBLEM
        print(json.dumps(asdict(finding)) if as_json else _text(finding), flush=True)
    if not as_json:
        print("all is well" if not problems else f"{problems} problem{'s' if problems > 1 else ''}")
    return 1 if problems else 0


def findings(checkpoint: str | None = None, *, spark: bool = False) -> Iterator[Finding]:
    """Everything that can be looked at; a check that fails itself is a problem like others."""
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
                "set TMPDIR to a folder that can be written",
            ),
        ),
        ("network", _loopback),
    ]
    if checkpoint is not None:
        checks.append(
            (
                "checkpoint",
                lambda: _writable(
                    "checkpoint", Path(checkpoint), "choose a folder that can be written"
                ),
            )
        )
    if spark:
        checks.append(("query", _query))
    for name, check in checks:
        try:
            yield from check()
        except Exception as error:  # noqa: BLE001 - whatever is wrong with a machine, the other checks still tell something
            yield Finding(
                name,
                PROBLEM,
                f"the check itself failed: {type(error).__name__}: {error}",
                "see the error",
            )


def _java() -> Iterator[Finding]:
    java, home = find_java(), os.environ.get("JAVA_HOME")
    if java is None:
        said = (
            f"JAVA_HOME is {home}, where there is no bin/java"
            if home
            else "there is none on the PATH, and JAVA_HOME is not set"
        )
        yield Finding("java", PROBLEM, said, HOW_TO_GET_JAVA)
    elif not java.new_enough:
        said = (
            f"{java.program} is Java {java.version}"
            if java.version
            else f"{java.program} does not say its version"
        )
        yield Finding(
            "java", PROBLEM, f"{said}; Spark needs {OLDEST_JAVA} or newer", HOW_TO_GET_JAVA
        )
    else:
        yield Finding("java", OK, f"Java {java.version}, {java.program} (by {java.named_by})")


def _python() -> Iterator[Finding]:
    """The Python that Spark's workers would run, and whether it finds Tidegate."""
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
    mend = f"export PYSPARK_PYTHON={sys.executable}"
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
            mend,
        )
        return
    here = " ".join(map(str, sys.version_info[:2]))
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        yield Finding(
            "python of workers",
            PROBLEM,
            f"{workers} does not find tidegate: {last}",
            f"install tidegate there, or {mend}",
        )
    elif not done.stdout.startswith(f"{here} "):
        said = (
            f"{workers} is Python {'.'.join(done.stdout.split()[:2])}, the driver is"
            f" {here.replace(' ', '.')}; Spark needs the same"
        )
        yield Finding("python of workers", PROBLEM, said, mend)
    else:
        yield Finding("python of workers", OK, f"PYSPARK_PYTHON is {workers}, which finds tidegate")


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
                f"{version} is newer than what PySpark supports; it warns, and works for what is"
                " used here",
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
    """The Spark that would be started: that of SPARK_HOME where it is set, else the one inside
    PySpark.
    """
    found = importlib.util.find_spec("pyspark")
    home = os.environ.get("SPARK_HOME")
    if home is None and (found is None or found.origin is None):
        return
    folder = Path(home) if home else Path(str(found.origin if found else "")).parent
    jars = [jar.name for jar in (folder / "jars").glob("*.jar")]
    lacking = [prefix for prefix in _JARS if not any(jar.startswith(prefix) for jar in jars)]
    mend = "unset SPARK_HOME" if home else "pip install --force-reinstall pyspark"
    if lacking:
        yield Finding(
            "spark",
            PROBLEM,
            f"{folder / 'jars'} has no {', '.join(f'{prefix}*.jar' for prefix in lacking)}",
            mend,
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
            mend,
        )
    else:
        yield Finding("spark", OK, f"Spark {version}, with the state store RocksDB, in {folder}")


def _writable(name: str, folder: Path, mend: str) -> Iterator[Finding]:
    """Whether files can be made, renamed and removed there; a folder that was not there is removed
    again.
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
                "make room, or choose another folder",
            )
        else:
            yield Finding(name, OK, f"{folder} can be written, {free / 1024**3:.1f} GB free")
    except OSError as error:
        yield Finding(name, PROBLEM, f"{folder} cannot be written: {error.strerror or error}", mend)
    finally:
        for part in made:
            with contextlib.suppress(OSError):
                part.rmdir()


def _loopback() -> Iterator[Finding]:
    """Spark and its Python workers talk through sockets of this machine."""
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
    """A session, and a query with state over a few rows."""
    from tidegate.cli.doctor_query import small_query

    with without_noise():
        try:
            said = small_query()
        except TidegateError as error:
            problem, _, mend = str(error).partition(". Hint: ")
            yield Finding("query", PROBLEM, problem, mend)
            return
    yield Finding("query", OK, said)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


def _text(finding: Finding) -> str:
    line = f"{finding.status:<8} {finding.check:<18} {finding.said}"
    how = "to mend it" if finding.status == PROBLEM else "if it is wanted"
    return f"{line}\n{'':27} {how}: {finding.mend}" if finding.mend else line

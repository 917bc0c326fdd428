"""Jars of Spark's Kafka connector, and how to download Maven artifacts without Maven.

Spark downloads the artifacts of `spark.jars.packages` with Ivy, which is among the jars of PySpark.
`kafka_jars` downloads pinned versions, and verifies every jar by its digest.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from xml.sax.saxutils import quoteattr

from tidegate.errors import MissingExtraError, SetupError
from tidegate.spark.environment.jar_digests import (
    CONNECTORS,
    TOKENS,
    connector_for,
    verify,
)
from tidegate.spark.environment.java import HOW_TO_GET_JAVA, find_java

KAFKA_CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13"
KAFKA_TOKENS = "org.apache.spark:spark-token-provider-kafka-0-10_2.13"
DOWNLOAD_SECONDS = 600.0
"""Timeout of a download."""
# Large libraries that every Spark distribution includes.
_PART_OF_SPARK = (
    "org.scala-lang",
    "org.scala-lang.modules",
    "org.apache.hadoop",
    "org.slf4j",
    "com.google.code.findbugs",
)


def kafka_packages(version: str | None = None) -> tuple[str, ...]:
    """The packages for `spark.jars.packages` that let Spark read and write Kafka.

    `version`: of the connector. Default: the version of PySpark.
    """
    return (f"{KAFKA_CONNECTOR}:{version or _pyspark_version()}",)


def kafka_jars(folder: Path | None = None) -> list[Path]:
    """The jars of Spark's Kafka connector, for `spark.jars`, downloaded once.

    `folder`: the cache. Default: `cache_folder()`. The versions and the digests of all jars are
    pinned, and every jar is verified before each use. The connector has the version of PySpark, or
    is the newest pinned one that is older, with a warning.
    """
    version = _pyspark_version()
    connector = connector_for(version)
    if connector is None:
        raise SetupError(
            f"Spark's Kafka connector is pinned from version {CONNECTORS[0]}, and PySpark is"
            f" {version}. Hint: install a newer PySpark, or set `spark.jars` to jars of your own"
        )
    found = fetch(
        kafka_packages(connector),
        folder or cache_folder(),
        without=_PART_OF_SPARK,
        instead={KAFKA_TOKENS: TOKENS},
    )
    # Also those of an earlier download, which another program may have changed.
    verify(found)
    _warn_older(found, version)
    # Another version of a library must not shadow Spark's own.
    present = {_library(jar) for jar in _spark_jars().glob("*.jar")}
    return [jar for jar in found if _library(jar) not in present]


def _warn_older(found: Sequence[Path], version: str) -> None:
    """Warn if the connector is older than PySpark."""
    start = f"{KAFKA_CONNECTOR.partition(':')[2]}-"
    taken = next(
        (jar.stem.removeprefix(start) for jar in found if jar.stem.startswith(start)), version
    )
    if taken != version:
        hint = (
            "it may work; otherwise set `spark.jars` to jars of your own, or install PySpark "
            + taken
        )
        text = (
            f"Spark's Kafka connector is {taken}, but PySpark is {version}, whose connector is not"
            f" pinned. Hint: {hint}"
        )
        warnings.warn(text, RuntimeWarning, stacklevel=3)


def cache_folder() -> Path:
    """The folder for downloaded jars, in the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tidegate" / "jars"


def fetch(
    coordinates: Sequence[str],
    folder: Path,
    *,
    without: Sequence[str] = (),
    instead: Mapping[str, str] | None = None,
) -> list[Path]:
    """The jars of `group:name:version` and their dependencies, downloaded once into `folder`.

    `without`: groups to leave out. `instead`: versions that replace those of dependencies. A
    version may be a range, such as `[4.1.0,4.3.0]`, which selects the newest.
    """
    home = _home(coordinates, folder)
    if not home.exists():
        folder.mkdir(parents=True, exist_ok=True)
        # A download is renamed when it is complete, so a failed one is never used.
        with tempfile.TemporaryDirectory(dir=folder, prefix=".fetch-") as attempt:
            _run_ivy(coordinates, Path(attempt), folder / ".ivy", without, instead or {})
            # If another process was faster, its files are used.
            with suppress(OSError):
                (Path(attempt) / "jars").rename(home)
    return sorted(home.glob("*.jar"))


def _home(coordinates: Sequence[str], folder: Path) -> Path:
    return folder / re.sub(r"[^\w.-]+", "_", "+".join(coordinates))


def _run_ivy(
    coordinates: Sequence[str],
    attempt: Path,
    cache: Path,
    without: Sequence[str],
    instead: Mapping[str, str],
) -> None:
    java = find_java()
    if java is None:
        raise SetupError(f"the download of Java libraries needs Java. Hint: {HOW_TO_GET_JAVA}")
    module = attempt / "ivy.xml"
    module.write_text(_module(coordinates, without, instead), "utf-8")
    ivy = next(_spark_jars().glob("ivy-*.jar"))
    # One jar per library, without `sources` and `tests`.
    pattern = f"{attempt.as_posix()}/jars/[artifact]-[revision].[ext]"
    command = [
        java.program,
        "-cp",
        ivy,
        "org.apache.ivy.Main",
        "-warn",
        "-cache",
        cache,
        "-ivy",
        module,
        "-types",
        "jar",
        "bundle",
    ]
    try:
        run = subprocess.run(  # noqa: S603 - our own arguments, and the Java of the user
            [str(part) for part in [*command, "-confs", "default", "-retrieve", pattern]],
            capture_output=True,
            text=True,
            check=False,
            timeout=DOWNLOAD_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise SetupError(
            f"the download of {', '.join(coordinates)} took longer than {DOWNLOAD_SECONDS:g}"
            " seconds. Hint: check the network, or set `spark.jars` to jars of your own"
        ) from None
    if run.returncode != 0 or not list(attempt.glob("jars/*.jar")):
        missing = sorted(set(re.findall(r":: (\S+): not found", run.stdout + run.stderr)))
        why = (
            f"the registry lacks {', '.join(missing)}"
            if missing
            else (run.stdout + run.stderr).strip().rpartition("\n")[2]
        )
        raise SetupError(
            f"{', '.join(coordinates)} cannot be downloaded: {why}. Hint: check the network, or"
            " set `spark.jars` to jars of your own"
        )


def _module(coordinates: Sequence[str], without: Sequence[str], instead: Mapping[str, str]) -> str:
    """The Ivy module that declares the dependencies."""
    lines = ['<ivy-module version="2.0">', '<info organisation="tidegate" module="jars"/>']
    lines += ['<configurations><conf name="default"/></configurations>', "<dependencies>"]
    for coordinate in coordinates:
        group, name, version = coordinate.split(":", 2)
        lines.append(
            f"<dependency org={quoteattr(group)} name={quoteattr(name)} rev={quoteattr(version)}"
            ' conf="default->default"/>'
        )
    lines += [f"<exclude org={quoteattr(group)}/>" for group in without]
    for library, version in instead.items():
        group, name = library.split(":")
        lines.append(
            f"<override org={quoteattr(group)} module={quoteattr(name)} rev={quoteattr(version)}/>"
        )
    return "\n".join([*lines, "</dependencies>", "</ivy-module>"])


def _library(jar: Path) -> str:
    """The name of a library without its version."""
    return re.sub(r"-\d[^-]*(-[^-]*)?$", "", jar.stem)


def _spark_jars() -> Path:
    import pyspark

    home = os.environ.get("SPARK_HOME")
    return (Path(home) if home else Path(pyspark.__file__).parent) / "jars"


def _pyspark_version() -> str:
    try:
        import pyspark
    except ImportError:
        raise MissingExtraError("pyspark", "spark", "Spark's Kafka connector") from None
    return pyspark.__version__

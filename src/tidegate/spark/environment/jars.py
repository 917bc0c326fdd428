"""Java libraries by their Maven coordinates: which ones Spark's Kafka connector is, and how to
fetch them without Maven.

Spark itself fetches what stands in `spark.jars.packages`, with the Ivy that is among the jars of
PySpark. It gives up where one version of one library is missing in the registry, which happens for
the newest Spark. `kafka_jars` then takes the nearest older connector.
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
from tidegate.spark.environment.java import HOW_TO_GET_JAVA, find_java

KAFKA_CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13"
KAFKA_TOKENS = "org.apache.spark:spark-token-provider-kafka-0-10_2.13"
_OLDEST_CONNECTOR = "4.1.0"
_OLDEST_TOKENS = "4.0.0"
# They are part of every Spark, and large.
_PART_OF_SPARK = (
    "org.scala-lang",
    "org.scala-lang.modules",
    "org.apache.hadoop",
    "org.slf4j",
    "com.google.code.findbugs",
)


def kafka_packages(version: str | None = None) -> tuple[str, ...]:
    """What `spark.jars.packages` must hold so that Spark reads and writes Kafka: the connector of
    the installed PySpark, or of `version`.
    """
    return (f"{KAFKA_CONNECTOR}:{version or _pyspark_version()}",)


def kafka_jars(folder: Path | None = None) -> list[Path]:
    """The jars of Spark's Kafka connector, for `spark.jars`: fetched once, then taken from `folder`
    (`cache_folder()` unless said).

    It is the connector of the installed PySpark, or the newest older one where the registry does
    not have all parts of that: a warning says so.
    """
    version = _pyspark_version()
    home = folder or cache_folder()
    older = [f"{KAFKA_CONNECTOR}:[{_OLDEST_CONNECTOR},{version}]"]
    tokens = {KAFKA_TOKENS: f"[{_OLDEST_TOKENS},{version}]"}
    try:
        # What was once not there is not asked for again.
        wanted = older if _home(older, home).exists() else kafka_packages(version)
        found = fetch(wanted, home, without=_PART_OF_SPARK)
    except SetupError:
        found = fetch(older, home, without=_PART_OF_SPARK, instead=tokens)
    _tell_older(found, version)
    # Another version of a library that Spark has must not come before Spark's own.
    present = {_library(jar) for jar in _spark_jars().glob("*.jar")}
    return [jar for jar in found if _library(jar) not in present]


def _tell_older(found: Sequence[Path], version: str) -> None:
    """Warn where the connector is not that of the installed PySpark."""
    start = f"{KAFKA_CONNECTOR.partition(':')[2]}-"
    taken = next(
        (jar.stem.removeprefix(start) for jar in found if jar.stem.startswith(start)), version
    )
    if taken != version:
        hint = (
            "it may fit all the same; else get the jars, and set `spark.jars`, or install PySpark "
            + taken
        )
        text = (
            f"Spark's Kafka connector is {taken}, but PySpark is {version}: the registry does not"
            f" have all parts of {version}. Hint: {hint}"
        )
        warnings.warn(text, RuntimeWarning, stacklevel=3)


def cache_folder() -> Path:
    """Where fetched jars are kept: a folder of the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tidegate" / "jars"


def fetch(
    coordinates: Sequence[str],
    folder: Path,
    *,
    without: Sequence[str] = (),
    instead: Mapping[str, str] | None = None,
) -> list[Path]:
    """The jars of `group:name:version` and of all that they need; a set that was fetched once is
    taken from `folder`.

    `without` are groups to leave out; `instead` gives other versions for libraries that the named
    ones need. A version may be a range, as in `[4.1.0,4.3.0]`: the newest of it.
    """
    home = _home(coordinates, folder)
    if not home.exists():
        folder.mkdir(parents=True, exist_ok=True)
        # Moved into its place when it is complete, so that a broken attempt is never taken for one.
        with tempfile.TemporaryDirectory(dir=folder, prefix=".fetch-") as attempt:
            _run_ivy(coordinates, Path(attempt), folder / ".ivy", without, instead or {})
            # Where another process was faster, its set stands.
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
        raise SetupError(f"fetching Java libraries needs Java. Hint: {HOW_TO_GET_JAVA}")
    module = attempt / "ivy.xml"
    module.write_text(_module(coordinates, without, instead), "utf-8")
    ivy = next(_spark_jars().glob("ivy-*.jar"))
    # Without `sources` and `tests`: one jar a library.
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
    run = subprocess.run(  # noqa: S603 - our own words, and the Java of the user
        [str(part) for part in [*command, "-confs", "default", "-retrieve", pattern]],
        capture_output=True,
        text=True,
        check=False,
    )
    if run.returncode != 0 or not list(attempt.glob("jars/*.jar")):
        missing = sorted(set(re.findall(r":: (\S+): not found", run.stdout + run.stderr)))
        why = (
            f"the registry does not have {', '.join(missing)}"
            if missing
            else (run.stdout + run.stderr).strip().rpartition("\n")[2]
        )
        raise SetupError(
            f"{', '.join(coordinates)} cannot be fetched: {why}. Hint: is there a network? Or get"
            " the jars, and set `spark.jars`"
        )


def _module(coordinates: Sequence[str], without: Sequence[str], instead: Mapping[str, str]) -> str:
    """What Ivy is asked for, in its own words."""
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

"""The jars of Spark's Kafka connector: which are taken, and what is said where they are not those
of the installed Spark.
"""

from __future__ import annotations

import hashlib
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("pyspark")

from tidegate.errors import SetupError
from tidegate.spark.environment import jar_digests, jars

NAME = "spark-sql-kafka-0-10_2.13"


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A registry that serves empty jars, which are pinned, and a Spark that has no jars."""

    def fetch(coordinates, folder, *, instead, without):
        version = coordinates[0].rpartition(":")[2]
        assert instead == {jars.KAFKA_TOKENS: jar_digests.TOKENS}
        found = [folder / f"{NAME}-{version}.jar", folder / "kafka-clients-3.9.0.jar"]
        for jar in found:
            if not jar.exists():
                jar.write_bytes(b"")
            monkeypatch.setitem(jar_digests.DIGESTS, jar.name, hashlib.sha256().hexdigest())
        return found

    monkeypatch.setattr(jars, "fetch", fetch)
    monkeypatch.setattr(jars, "_spark_jars", lambda: tmp_path / "spark")
    return tmp_path


@pytest.mark.parametrize(
    ("spark", "connector"),
    [("4.1.0", "4.1.0"), ("4.1.1", "4.1.1"), ("4.1.9", "4.1.2"), ("4.3.0.dev1", "4.2.0")],
)
def test_the_newest_pinned_connector_that_fits_is_taken(spark, connector):
    assert jar_digests.connector_for(spark) == connector
    assert f"{NAME}-{connector}.jar" in jar_digests.DIGESTS


def test_a_spark_older_than_all_pinned_connectors_is_refused(registry, monkeypatch):
    monkeypatch.setattr(jars, "_pyspark_version", lambda: "4.0.1")
    with pytest.raises(SetupError, match=r"pinned from version 4\.1\.0.*Hint"):
        jars.kafka_jars(registry)


def test_an_older_connector_is_taken_and_said(registry, monkeypatch):
    monkeypatch.setattr(jars, "_pyspark_version", lambda: "4.3.0")
    for _ in range(2):
        with pytest.warns(
            RuntimeWarning, match=r"connector is 4\.2\.0, but PySpark is 4\.3\.0.*Hint"
        ):
            assert [jar.name for jar in jars.kafka_jars(registry)] == [
                f"{NAME}-4.2.0.jar",
                "kafka-clients-3.9.0.jar",
            ]


def test_the_connector_of_the_installed_spark_needs_no_word(registry, monkeypatch):
    monkeypatch.setattr(jars, "_pyspark_version", lambda: "4.2.0")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(jars.kafka_jars(registry)) == 2


def test_a_jar_with_another_digest_is_refused_also_from_the_cache(registry, monkeypatch):
    monkeypatch.setattr(jars, "_pyspark_version", lambda: "4.2.0")
    jars.kafka_jars(registry)
    (registry / "kafka-clients-3.9.0.jar").write_bytes(b"changed")
    with pytest.raises(SetupError, match=r"kafka-clients-3\.9\.0\.jar.* is pinned for it. Hint"):
        jars.kafka_jars(registry)


def test_a_jar_that_is_not_pinned_is_refused(tmp_path):
    (tmp_path / "other-1.jar").write_bytes(b"")
    with pytest.raises(SetupError, match="none is pinned"):
        jar_digests.verify(tmp_path.glob("*.jar"))


def test_a_download_that_hangs_ends_with_an_error(tmp_path, monkeypatch):
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\nexec tail -f /dev/null\n")
    java.chmod(0o755)
    (tmp_path / "ivy-1.jar").touch()
    monkeypatch.setattr(jars, "find_java", lambda: SimpleNamespace(program=java))
    monkeypatch.setattr(jars, "_spark_jars", lambda: tmp_path)
    monkeypatch.setattr(jars, "DOWNLOAD_SECONDS", 0.1)
    with pytest.raises(SetupError, match=r"took longer than 0\.1 seconds. Hint"):
        jars.fetch(["a:b:1"], tmp_path / "cache")
    assert not jars._home(["a:b:1"], tmp_path / "cache").exists()

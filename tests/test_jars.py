"""The jars of Spark's Kafka connector: which are taken, and what is said where they are not those
of the installed Spark.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("pyspark")

from tidegate.errors import SetupError
from tidegate.spark.environment import jars

NAME = "spark-sql-kafka-0-10_2.13"


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A registry whose newest connector is 4.2.0, and a Spark that has no jars."""

    def fetch(coordinates, folder, **_):
        if coordinates[0].endswith(":4.3.0"):
            raise SetupError("the registry does not have it")
        return [tmp_path / f"{NAME}-4.2.0.jar", tmp_path / "kafka-clients-3.9.0.jar"]

    monkeypatch.setattr(jars, "fetch", fetch)
    monkeypatch.setattr(jars, "_spark_jars", lambda: tmp_path)
    return tmp_path


def test_an_older_connector_is_taken_and_said(registry, monkeypatch):
    monkeypatch.setattr(jars, "_pyspark_version", lambda: "4.3.0")
    with pytest.warns(
        RuntimeWarning, match=r"connector is 4\.2\.0, but PySpark is 4\.3\.0: .*Hint"
    ):
        assert [jar.name for jar in jars.kafka_jars(registry)] == [
            f"{NAME}-4.2.0.jar",
            "kafka-clients-3.9.0.jar",
        ]


def test_it_is_said_again_where_the_older_one_was_fetched_before(registry, monkeypatch):
    monkeypatch.setattr(jars, "_pyspark_version", lambda: "4.3.0")
    jars._home([f"{jars.KAFKA_CONNECTOR}:[4.1.0,4.3.0]"], registry).mkdir()
    with pytest.warns(RuntimeWarning, match="connector is 4"):
        jars.kafka_jars(registry)


def test_the_connector_of_the_installed_spark_needs_no_word(registry, monkeypatch):
    monkeypatch.setattr(jars, "_pyspark_version", lambda: "4.2.0")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(jars.kafka_jars(registry)) == 2


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

"""Every example for Spark in README and docs runs and prints what it says; so do the example programs that use Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from documents import blocks, documents, name_of
from test_documents import run_document

MARKED = [path for path in documents() if any(block.mark == "spark" for block in blocks(path.read_text("utf-8")))]


def test_there_are_such_examples() -> None:
    assert {"README.md", "docs/spark.md"} <= {name_of(path) for path in MARKED}


@pytest.mark.parametrize("path", MARKED, ids=name_of)
def test_examples_on_spark_run(path: Path, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_document(path.read_text("utf-8"), name_of(path), "spark")

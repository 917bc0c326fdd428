"""Every example for Spark in README and docs runs as a new user would type it, in a process of its
own, and prints what it says.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.documents import blocks, documents, name_of

MARKED = [
    path
    for path in documents()
    if any(block.mark == "spark" for block in blocks(path.read_text("utf-8")))
]
RUN = (
    "import pathlib, sys; from test_documents import run_document;"
    " run_document(pathlib.Path(sys.argv[1]).read_text('utf-8'), sys.argv[1], 'spark')"
)


def test_there_are_such_examples() -> None:
    assert {"README.md", "docs/spark.md"} <= {name_of(path) for path in MARKED}


@pytest.mark.slow
@pytest.mark.parametrize("path", MARKED, ids=name_of)
def test_examples_on_spark_run(path: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parent.parent)}
    ended = subprocess.run(
        [sys.executable, "-c", RUN, path],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]

"""`tg.read_latest`: of each window, the last pane that holds."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

import tidegate as tg
from support.sink_tables import LATE_TARGET, PANES, TARGET, late_rows
from tidegate.errors import InputError
from tidegate.spark.sinks.base import SinkTarget

KEYED = dataclasses.replace(TARGET, known_by=("user", "window_start"))


def rows(*given: tuple[str, int, str, int]) -> pa.Table:
    """Rows of user, start of the window, operation and count."""
    return pa.Table.from_pylist(
        [
            {"user": user, "window_start": start, "op": op, "n": n, "mean": 0.0}
            for user, start, op, n in given
        ],
        PANES,
    )


def publish(folder: Path, batch: int, *tasks: pa.Table, target: SinkTarget = KEYED) -> None:
    sink = tg.sinks.parquet(folder)
    staged = [
        text
        for number, table in enumerate(tasks)
        for text in sink.stage(target, batch, f"{number:05d}", iter([table]))
    ]
    sink.publish(target, batch, staged)


def read(folder: Path) -> list[tuple[Any, ...]]:
    found = tg.read_latest(folder).to_pylist()
    return [(row["user"], row["window_start"].microsecond, row["n"], row["batch"]) for row in found]


def test_the_last_pane_of_each_window_holds(tmp_path):
    for batch in range(12):
        publish(tmp_path, batch, rows(("a", 0, "+", batch)), rows(("b", batch, "+", batch)))
    found = read(tmp_path)
    assert found[-2:] == [("a", 0, 11, 11), ("b", 11, 11, 11)], "batches are numbers, not texts"
    assert len(found) == 13


def test_windows_that_were_withdrawn_are_gone(tmp_path):
    publish(tmp_path, 0, rows(("a", 0, "+", 1), ("a", 10, "+", 2)))
    publish(tmp_path, 1, rows(("a", 0, "-", 1), ("a", 0, "+", 3), ("a", 10, "-", 2)))
    assert read(tmp_path) == [("a", 0, 3, 1)]


def test_a_folder_without_rows_is_an_empty_table(tmp_path):
    publish(tmp_path, 0)
    found = tg.read_latest(tmp_path)
    assert (found.num_rows, found.column_names[:3]) == (0, ["user", "window_start", "op"])


def test_what_has_no_current_rows_is_refused(tmp_path):
    with pytest.raises(InputError, match="is not a folder that a query has written"):
        tg.read_latest(tmp_path)
    publish(tmp_path / "late", 0, late_rows(), target=LATE_TARGET)
    with pytest.raises(InputError, match="has no panes of a query, got the output `late`"):
        tg.read_latest(tmp_path / "late")
    discarding = dataclasses.replace(KEYED, mode="discarding")
    publish(tmp_path / "parts", 0, rows(("a", 0, "+", 1)), target=discarding)
    with pytest.raises(InputError, match=r"are discarding.*\.accumulating"):
        tg.read_latest(tmp_path / "parts")


def test_the_order_that_the_docs_give_for_pandas(tmp_path, repository, monkeypatch):
    for batch in range(12):
        table = rows(("a", 0, "-", batch), ("a", 0, "+", batch))
        table = table.append_column("pane", pa.array([batch, batch + 1], pa.int32()))
        target = dataclasses.replace(KEYED, schema=table.schema)
        publish(tmp_path / "out" / "panes", batch, table, target=target)
    text = (repository / "docs" / "operations.md").read_text()
    code = text[text.index("panes = pd.read_parquet") :].partition("```")[0]
    monkeypatch.chdir(tmp_path)
    names = {"pd": pd}
    exec(code, names)  # noqa: S102 - the example of the docs
    shown: Any = names["panes"]
    assert list(shown["batch"]) == [batch for batch in range(12) for _ in range(2)]
    assert list(shown["pane"]) == sorted(shown["pane"])

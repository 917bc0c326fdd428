"""The sinks memory, console, noop and foreach_batch, called with Arrow tables and without Spark."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from support.sink_tables import LATE_TARGET, PANES, STAMP, TARGET, WINDOWS, late_rows, panes
from tidegate.errors import InputError, SinkError, SpecError
from tidegate.spark.sinks import SinkTarget, console, foreach_batch, memory, noop


def test_memory_replaces_a_replayed_batch():
    sink = memory()
    sink.write(TARGET, 1, iter([panes(3)]))
    sink.write(TARGET, 0, iter([panes(0), panes(9, 0)]))
    sink.write(TARGET, 1, iter([panes(6, 1)]))
    sink.write(TARGET, 2, iter([]))
    assert sink.table().equals(pa.concat_tables([panes(0), panes(6, 1)]).drop_columns(["pane_id"]))
    assert [row["n"] for row in memory(sink.name).rows()] == [0, 1, 2, 6]
    sink.write(TARGET, 1, iter([]))
    assert sink.table().num_rows == 3


def test_memory_of_an_output_without_rows_is_an_empty_table():
    sink = memory()
    sink.write(TARGET, 0, iter([]))
    assert sink.table().equals(PANES.empty_table())


def test_memory_that_nobody_wrote_says_where_the_rows_may_be():
    with pytest.raises(InputError, match=r"`nobody`.*Spark Connect"):
        memory("nobody").table()


def test_memory_keeps_outputs_apart():
    sink = memory()
    sink.write(TARGET, 0, iter([panes(0)]))
    sink.write(LATE_TARGET, 0, iter([late_rows()]))
    assert sink.table("late").equals(late_rows())
    with pytest.raises(InputError, match="several outputs: late, panes"):
        sink.table()
    with pytest.raises(InputError, match="the output `metrics`"):
        sink.rows("metrics")


def test_memory_belongs_to_the_newest_query():
    sink, other = memory(), SinkTarget("q2", "panes", PANES, ("user",), "retracting")
    sink.write(TARGET, 0, iter([panes(0)]))
    sink.write(other, 0, iter([panes(3)]))
    assert [row["n"] for row in sink.rows()] == [3, 4, 5]
    with pytest.raises(SinkError, match="two queries"):
        sink.write(TARGET, 1, iter([panes(6)]))
    sink.clear()
    sink.write(TARGET, 1, iter([panes(6)]))
    assert [row["n"] for row in sink.rows()] == [6, 7, 8]


def test_memory_takes_columns_that_change():
    sink = memory()
    sink.write(TARGET, 0, iter([panes(0, 1, top=pa.nulls(1))]))
    sink.write(TARGET, 1, iter([panes(1, 1, top=pa.array([5]))]))
    assert sink.table().column("top").to_pylist() == [None, 5]
    sink.write(TARGET, 2, iter([panes(2, 1, top=pa.array([[5]]))]))
    with pytest.raises(InputError, match=r"\.rows\(\)"):
        sink.table()
    assert [row["top"] for row in sink.rows()] == [None, 5, [5]]


def test_console_prints_a_table(capsys: pytest.CaptureFixture[str]):
    target = SinkTarget("console", "panes", PANES, ("user",), "retracting")
    console(2).write(target, 3, iter([panes(0), panes(3)]))
    assert capsys.readouterr().out.splitlines() == [
        "-- batch 3, panes: the first 2 of 6 rows --",
        "user  window_start                op  n  mean",
        "u0    1970-01-01 00:00:00         +   0   0.0",
        "u1    1970-01-01 00:00:00.000001  +   1   0.5",
        "",
    ]
    console().write(target, 3, iter([panes(0, 1)]))
    assert capsys.readouterr().out.startswith("-- batch 3, panes: 1 row, replayed --\n")
    console().write(target, 4, iter([panes(0, 0)]))
    assert capsys.readouterr().out == ""


def test_console_shows_anything(capsys: pytest.CaptureFixture[str]):
    columns = {
        "far": pa.array([2**62, None], STAMP),
        "windows": pa.array([[{"window_start": 2**62, "window_end": 10}], None], WINDOWS),
        "pairs": pa.array([[("a", 1)], []], pa.map_(pa.string(), pa.int64())),
        "text": ["two\nlines\t", "x" * 100],
        "raw": [b"\x00", None],
        "zone": pa.array([0, 1], pa.timestamp("s", "Europe/Berlin")),
    }
    console().write(
        SinkTarget("anything", "late", pa.schema([]), (), "discarding"),
        0,
        iter([pa.table(columns), late_rows(1)]),
    )
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 6
    assert "1970-01-01 00:00:00" in lines[2]
    assert "{a: 1}" in lines[2]
    assert "two\\nlines\\t" in lines[2]
    assert "x" * 37 + "... " in lines[3]
    assert "broken" in lines[4]


@pytest.mark.parametrize("rows", [0, -1, True, "all"])
def test_console_prints_at_least_one_row(rows: Any):
    with pytest.raises(SpecError, match="Hint: "):
        console(rows)


def test_noop_reads_everything():
    tables = iter([panes(0), panes(3)])
    assert noop().stage(TARGET, 0, "0", tables) == []
    assert list(tables) == []
    noop().publish(TARGET, 0, [])


def test_foreach_batch_calls_the_function_with_the_batch_id():
    calls: list[Any] = []
    frame: Any = object()
    sink = foreach_batch(lambda *args: calls.append(args))
    sink.write_frame(TARGET, 7, frame)
    sink.write_frame(TARGET, 7, frame)
    sink.write_frame(LATE_TARGET, 8, frame)
    assert calls == [(frame, 7), (frame, 7), (frame, 8)]
    with pytest.raises(SpecError, match="function of a DataFrame"):
        foreach_batch("append")  # type: ignore[arg-type]

"""Sinks called with Arrow tables, without Spark: whole batches or nothing, and a replay adds
nothing.
"""

from __future__ import annotations

import dataclasses
import json
import pickle
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from support.sink_tables import LATE_TARGET, PANES, TARGET, late_rows, panes, write
from tidegate.errors import SinkError, SpecError
from tidegate.spark.sinks import (
    SinkTarget,
    base,
    console,
    delta,
    foreach_batch,
    memory,
    noop,
    parquet,
)

# The module: in the package, its name is that of the function.
PARQUET = sys.modules["tidegate.spark.sinks.parquet"]


def numbers(folder: Path, column: str = "n") -> list[int]:
    """What a reader finds."""
    return (
        sorted(ds.dataset(folder, partitioning="hive").to_table().column(column).to_pylist())
        if folder.exists()
        else []
    )


def visible_files(folder: Path) -> list[str]:
    return [str(file) for file in ds.dataset(folder, format="parquet").files]


def tree(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


# All sinks


def test_importing_the_sinks_imports_no_heavy_package():
    heavy = "{'pyspark', 'deltalake', 'psycopg', 'confluent_kafka', 'pandas'}"
    program = f"import sys, tidegate.spark.sinks; print(sorted({heavy} & set(sys.modules)))"
    assert (
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        ).stdout
        == "[]\n"
    )


@pytest.mark.parametrize(
    "sink",
    [
        parquet("out"),
        delta("out", {"a": "b"}),
        memory("m"),
        console(),
        noop(),
        foreach_batch(print),
    ],
    ids=repr,
)
def test_sinks_can_be_sent(sink: base.Sink):
    assert pickle.loads(pickle.dumps(sink)) == sink  # noqa: S301 - what was just written
    assert (
        isinstance(sink, base.TaskSink)
        + isinstance(sink, base.DriverSink)
        + isinstance(sink, base.FrameSink)
        == 1
    )
    assert hash(sink) == hash(pickle.loads(pickle.dumps(sink)))  # noqa: S301
    sink.check(TARGET)
    sink.check(LATE_TARGET)


# Parquet


def test_parquet_writes_one_folder_a_batch(tmp_path: Path):
    sink = parquet(tmp_path / "out")
    write(sink, 0, [panes(0), panes(3)], [panes(6)])
    write(sink, 1, [], [panes(9)])
    assert tree(tmp_path / "out") == [
        "_tidegate.json",
        "batch=0/part-0.parquet",
        "batch=0/part-1.parquet",
        "batch=1/part-1.parquet",
    ]
    found = ds.dataset(tmp_path / "out", partitioning="hive").to_table().sort_by("n")
    assert found.drop_columns(["batch"]).equals(
        pa.concat_tables([panes(n) for n in (0, 3, 6, 9)]).drop_columns(["pane_id"])
    )
    assert found.column("batch").to_pylist() == [0] * 9 + [1] * 3
    assert (
        pq.ParquetFile(tmp_path / "out/batch=0/part-0.parquet")
        .metadata.row_group(0)
        .column(0)
        .compression
        == "ZSTD"
    )


def test_parquet_shows_nothing_before_it_is_published(tmp_path: Path):
    staged = parquet(tmp_path).stage(TARGET, 0, "0", iter([panes(0)]))
    assert len(staged) == 1
    assert json.loads(staged[0])["rows"] == 3
    assert visible_files(tmp_path) == []
    assert all(path.name.startswith("_") for path in tmp_path.iterdir())


def test_parquet_replay_overwrites(tmp_path: Path):
    sink = parquet(tmp_path)
    write(sink, 0, [panes(0)], [panes(3)])
    write(sink, 0, [panes(10)])
    assert numbers(tmp_path) == [10, 11, 12]
    assert tree(tmp_path) == ["_tidegate.json", "batch=0/part-0.parquet"]


@pytest.mark.parametrize("damage", ["folder", "file", "size"])
def test_parquet_notices_that_a_published_batch_is_gone(tmp_path: Path, damage: str):
    sink = parquet(tmp_path)
    for batch in range(3):
        write(sink, batch, [panes(batch)], [panes(batch)])
    sink.check(TARGET)
    if damage == "folder":
        shutil.rmtree(tmp_path / "batch=1")
    elif damage == "file":
        (tmp_path / "batch=1/part-0.parquet").unlink()
    else:
        (tmp_path / "batch=1/part-0.parquet").write_bytes(b"")
    with pytest.raises(SinkError, match=r"batch 1 was published with 2 files .*allow_deleted"):
        sink.check(TARGET)
    parquet(tmp_path, allow_deleted=True).check(TARGET)


def test_parquet_notices_before_the_next_batch_that_the_last_one_is_gone(tmp_path: Path):
    sink = parquet(tmp_path)
    write(sink, 0, [panes(0)])
    shutil.rmtree(tmp_path / "batch=0")
    # After a crash, the last batch is written again.
    sink.check(TARGET)
    with pytest.raises(SinkError, match="batch 0 was published with 1 file of"):
        write(sink, 1, [panes(3)])
    write(sink, 0, [panes(0)])
    write(sink, 1, [panes(3)])
    assert numbers(tmp_path) == [0, 1, 2, 3, 4, 5]


def test_parquet_keeps_a_record_of_a_limited_number_of_batches(tmp_path: Path):
    sink = parquet(tmp_path)
    for batch in range(110):
        write(sink, batch, [panes(batch)])
    shutil.rmtree(tmp_path / "batch=3")
    sink.check(TARGET)
    assert len(json.loads((tmp_path / "_tidegate.json").read_text())["published"]) == 100


def test_parquet_replay_without_rows_removes_the_batch(tmp_path: Path):
    sink = parquet(tmp_path)
    write(sink, 0, [panes(0)])
    write(sink, 1, [panes(3)])
    write(sink, 0, [panes(0, 0)], [])
    assert numbers(tmp_path) == [3, 4, 5]
    assert tree(tmp_path) == ["_tidegate.json", "batch=1/part-0.parquet"]


def test_a_first_batch_without_rows_makes_the_folder_readable(tmp_path: Path):
    sink = parquet(tmp_path / "out")
    write(sink, 0, [], [panes(0, 0)])
    whole = pq.read_table(tmp_path / "out")
    assert whole.num_rows == 0
    assert whole.drop_columns(["batch"]).schema.names == PANES.names
    write(sink, 1, [], [panes(0, 0)])
    assert [folder.name for folder in (tmp_path / "out").glob("batch=*")] == ["batch=0"]
    write(sink, 0, [panes(0)])
    assert numbers(tmp_path / "out") == [0, 1, 2], "a replay with rows replaces it"


def test_a_folder_of_another_query_is_refused_before_the_start(tmp_path: Path):
    write(parquet(tmp_path), 0, [panes(0)])
    parquet(tmp_path).check(TARGET)
    other = dataclasses.replace(TARGET, query="q2")
    with pytest.raises(
        SinkError, match=r"belongs to the output `panes` of the query q1.*overwrite"
    ):
        parquet(tmp_path).check(other)
    parquet(tmp_path, overwrite=True).check(other)


def test_overwrite_replaces_the_output_of_another_run(tmp_path: Path):
    sink = parquet(tmp_path, overwrite=True)
    write(sink, 0, [panes(0)])
    write(sink, 1, [panes(3)])
    assert numbers(tmp_path) == [0, 1, 2, 3, 4, 5], "its own batches stay"
    other = dataclasses.replace(TARGET, query="q2")
    sink.publish(other, 0, sink.stage(other, 0, "0", iter([panes(7)])))
    assert numbers(tmp_path) == [7, 8, 9]
    third = dataclasses.replace(TARGET, query="q3")
    sink.publish(third, 0, [])
    assert numbers(tmp_path) == [], "a run without rows replaces it, too"


def test_parquet_publish_may_be_repeated(tmp_path: Path):
    sink = parquet(tmp_path)
    staged = sink.stage(TARGET, 0, "0", iter([panes(0)])) + sink.stage(
        TARGET, 0, "1", iter([panes(3)])
    )
    for _ in range(3):
        sink.publish(TARGET, 0, staged)
        assert numbers(tmp_path) == [0, 1, 2, 3, 4, 5]


def test_parquet_cleans_up_after_attempts_that_were_killed(tmp_path: Path):
    sink = parquet(tmp_path)
    sink.stage(TARGET, 0, "0", iter([panes(0)]))
    (tmp_path / "_staging/ready-0-1234").mkdir()
    (tmp_path / "_staging/ready-0-1234/part-0.parquet").write_bytes(b"half a file")
    write(sink, 0, [panes(5)])
    assert numbers(tmp_path) == [5, 6, 7]
    assert tree(tmp_path) == ["_tidegate.json", "batch=0/part-0.parquet"]
    sink.stage(TARGET, 1, "0", iter([panes(0)]))
    sink.publish(TARGET, 1, [])
    assert tree(tmp_path) == ["_tidegate.json", "batch=0/part-0.parquet"]


@pytest.mark.parametrize(
    "harm",
    [Path.unlink, lambda file: file.write_bytes(file.read_bytes()[:-1])],
    ids=["gone", "cut"],
)
def test_parquet_refuses_damaged_staging(tmp_path: Path, harm: Any):
    sink = parquet(tmp_path)
    write(sink, 0, [panes(0)])
    staged = sink.stage(TARGET, 0, "0", iter([panes(3)])) + sink.stage(
        TARGET, 0, "1", iter([panes(6)])
    )
    harm(tmp_path / json.loads(staged[1])["path"])
    with pytest.raises(SinkError, match=r"batch 0 .*Hint: "):
        sink.publish(TARGET, 0, staged)
    assert numbers(tmp_path) == [0, 1, 2]
    write(sink, 0, [panes(3)], [panes(6)])
    assert numbers(tmp_path) == [3, 4, 5, 6, 7, 8]


def test_parquet_stays_with_one_output_of_one_query(tmp_path: Path):
    write(parquet(tmp_path), 0, [panes(0)])
    other = SinkTarget("q2", "panes", PANES, (), "retracting")
    with pytest.raises(SinkError, match="belongs to the output `panes` of the query q1"):
        write(parquet(tmp_path), 0, [panes(3)], target=other)
    with pytest.raises(SinkError, match="the output `late` of the query q1"):
        write(parquet(tmp_path), 0, [late_rows()], target=LATE_TARGET)
    with pytest.raises(SinkError, match="belongs to"):
        parquet(tmp_path).publish(other, 0, [])
    parquet(tmp_path).publish(other, 1, [])
    assert numbers(tmp_path) == [0, 1, 2]


def test_parquet_takes_no_folder_of_unknown_batches(tmp_path: Path):
    (tmp_path / "batch=0").mkdir()
    with pytest.raises(SinkError, match="has `batch=0`"):
        write(parquet(tmp_path), 0, [panes(0)])


def test_parquet_in_a_folder_that_cannot_be_written(tmp_path: Path):
    (tmp_path / "file").write_text("not a folder")
    sink = parquet(tmp_path / "file" / "out")
    with pytest.raises(SinkError, match=r"cannot write into `.*/file/out`: .*Hint: "):
        sink.stage(TARGET, 0, "0", iter([panes(0)]))


def test_parquet_on_a_full_disk():
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    files = PARQUET._TaskFiles(parquet("/unused"), TARGET, 0, "0")
    disk = SimpleNamespace(open_output_stream=lambda path: pa.OSFile("/dev/full", "wb"))
    files._folder = SimpleNamespace(make=lambda name: None, path=str, files=disk)
    files.add(panes(0, 200_000))
    with pytest.raises(SinkError, match="No space left on device"):
        files.close()
    files.discard()


def test_parquet_removes_what_it_staged_when_the_rows_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(PARQUET, "ROW_GROUP_ROWS", 3)

    def broken() -> Iterator[pa.Table]:
        yield panes(0, 9)
        raise RuntimeError("the operator failed")

    with pytest.raises(RuntimeError, match="the operator failed"):
        parquet(tmp_path).stage(TARGET, 0, "0", broken())
    assert tree(tmp_path) == []


def test_parquet_streams_in_bounded_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(PARQUET, "ROW_GROUP_BYTES", 4 << 20)
    before, highest = pa.total_allocated_bytes(), 0

    def many() -> Iterator[pa.Table]:
        nonlocal highest
        for seed in range(60):
            highest = max(highest, pa.total_allocated_bytes() - before)
            yield pa.table({"n": np.random.default_rng(seed).integers(0, 1 << 62, 256 << 10)})

    target = SinkTarget("q1", "panes", pa.schema([("n", pa.int64())]), (), "discarding")
    write(parquet(tmp_path, "none"), 0, many(), target=target)  # type: ignore[arg-type]
    metadata = pq.ParquetFile(tmp_path / "batch=0/part-0.parquet").metadata
    assert metadata.num_rows == 60 * (256 << 10)
    assert max(metadata.row_group(g).num_rows for g in range(metadata.num_row_groups)) <= (
        4 << 20
    ) // 8 + (256 << 10)
    assert highest < 40 << 20, "120 MB were written"


def test_parquet_cuts_a_large_table_and_gathers_small_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(PARQUET, "ROW_GROUP_ROWS", 100)
    write(parquet(tmp_path), 0, [panes(0, 250)], [panes(n, 10) for n in range(250, 400, 10)])
    groups = [pq.ParquetFile(tmp_path / f"batch=0/part-{task}.parquet").metadata for task in (0, 1)]
    assert [
        [group.row_group(g).num_rows for g in range(group.num_row_groups)] for group in groups
    ] == [[100, 100, 50], [100, 50]]
    assert numbers(tmp_path) == list(range(400))


def test_parquet_takes_wide_rows(tmp_path: Path):
    rows = panes(0, 20).set_column(0, "user", pa.array(["x" * (8 << 20)] * 20))
    write(parquet(tmp_path), 0, [rows])
    assert pq.ParquetFile(tmp_path / "batch=0/part-0.parquet").metadata.num_row_groups > 1
    assert numbers(tmp_path) == list(range(20))


def test_parquet_columns_may_come_and_change(tmp_path: Path):
    sink = parquet(tmp_path)
    untyped = panes(3).set_column(4, "mean", pa.nulls(3))
    write(sink, 0, [panes(0), untyped, panes(6).drop_columns(["mean"])])
    assert [
        field.type for field in pq.read_schema(tmp_path / "batch=0/part-0.parquet")
    ] == PANES.types
    write(sink, 1, [panes(9, top=pa.array(["a", "b", "c"]))])
    write(
        sink,
        2,
        [
            panes(12, top=pa.nulls(3)),
            panes(15, top=pa.array([1, 2, 3])),
            panes(18),
            panes(21, top=pa.array([[1], [2], []])),
        ],
    )
    assert tree(tmp_path / "batch=2") == ["part-0.1.parquet", "part-0.2.parquet", "part-0.parquet"]
    assert "top" not in pq.read_schema(tmp_path / "batch=2/part-0.parquet").names
    assert pq.read_table(tmp_path / "batch=2/part-0.1.parquet", partitioning=None).column(
        "top"
    ).to_pylist() == [1, 2, 3, None, None, None]
    assert pq.read_table(tmp_path / "batch=2/part-0.2.parquet", partitioning=None).column(
        "top"
    ).to_pylist() == [[1], [2], []]
    assert sum(pq.read_metadata(file).num_rows for file in tmp_path.rglob("*.parquet")) == 24


def test_parquet_keeps_values_that_the_declared_type_cannot_hold(tmp_path: Path):
    large = (1 << 53) + 1
    write(parquet(tmp_path), 0, [panes(0, 1), panes(1, 1).set_column(4, "mean", pa.array([large]))])
    assert pq.read_table(tmp_path / "batch=0/part-0.1.parquet", partitioning=None).column(
        "mean"
    ).to_pylist() == [large]


def test_parquet_writes_late_rows(tmp_path: Path):
    write(parquet(tmp_path), 4, [late_rows()], target=LATE_TARGET)
    found = pq.read_table(tmp_path / "batch=4/part-0.parquet", partitioning=None)
    assert found.equals(late_rows())


def test_parquet_takes_file_uris(tmp_path: Path):
    write(parquet((tmp_path / "a b").as_uri()), 0, [panes(0)])
    assert numbers(tmp_path / "a b") == [0, 1, 2]


def test_parquet_on_a_file_system_that_cannot_rename_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    place = PARQUET.BatchFolder(fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem()), "out")
    monkeypatch.setattr(PARQUET.BatchFolder, "open", classmethod(lambda cls, folder: place))
    sink = parquet("s3a://bucket/out")
    assert sink.folder == "s3://bucket/out"
    write(sink, 0, [panes(0)], [panes(3)])
    write(sink, 1, [panes(6)])
    write(sink, 0, [panes(9)])
    write(sink, 1, [])
    assert numbers(tmp_path / "out") == [9, 10, 11]
    assert tree(tmp_path / "out") == ["_tidegate.json", "batch=0/part-0.parquet"]


def test_parquet_of_an_unknown_file_system():
    with pytest.raises(SinkError, match=r"cannot be reached.*Hint: "):
        parquet("dbfs:/out").publish(TARGET, 0, [])


@pytest.mark.parametrize("name", ["batch", "Batch"])
def test_parquet_refuses_a_column_that_is_its_folder(name: str, tmp_path: Path):
    with pytest.raises(SpecError, match=f"`{name}`.*Hint: rename"):
        parquet(tmp_path).check(
            SinkTarget("q", "late", pa.schema([(name, pa.int64())]), (), "discarding")
        )
    with pytest.raises(SpecError, match="Hint: rename"):
        write(parquet(tmp_path), 0, [panes(0, **{name: pa.array([1, 2, 3])})])


def test_parquet_refuses_what_cannot_work(tmp_path: Path):
    with pytest.raises(SpecError, match="compression"):
        parquet(tmp_path, compression="zip")
    with pytest.raises(SpecError, match="empty name"):
        parquet("")
    with pytest.raises(SpecError, match="`x` of type month_day_nano_interval"):
        parquet(tmp_path).check(
            SinkTarget(
                "q", "late", pa.schema([("x", pa.month_day_nano_interval())]), (), "discarding"
            )
        )


KILLED = """
import sys, os, pyarrow as pa
from tidegate.spark.sinks import parquet, delta, SinkTarget
kind, folder, first, pause = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4] == "pause"
target = SinkTarget("q1", "panes", pa.schema([("n", pa.int64())]), (), "discarding")
for batch in range(first, 1_000_000):
    tables = [pa.table({"n": pa.array(range(batch * 2000, batch * 2000 + 1000), pa.int64())}),
              pa.table({"n": pa.array(range(batch * 2000 + 1000, batch * 2000 + 2000), pa.int64())})]
    if kind == "delta":
        delta(folder).write(target, batch, iter(tables))
    else:
        staged = [text for n, table in enumerate(tables) for text in parquet(folder).stage(target, batch, str(n), iter([table]))]
        if pause:
            os.write(1, b"staged\\n")
            sys.stdin.read()
        parquet(folder).publish(target, batch, staged)
    os.write(1, b"%d\\n" % batch)
"""


def killed_writer(kind: str, folder: Path, first: int, pause: str = "") -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", KILLED, kind, str(folder), str(first), pause]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def kill(writer: subprocess.Popen[bytes]) -> bytes:
    writer.send_signal(signal.SIGKILL)
    said = writer.communicate()[0]
    assert writer.returncode == -signal.SIGKILL
    return said


def test_parquet_killed_between_stage_and_publish(tmp_path: Path):
    writer = killed_writer("parquet", tmp_path, 0, "pause")
    assert writer.stdout is not None
    assert writer.stdout.readline() == b"staged\n"
    kill(writer)
    assert len(tree(tmp_path)) == 2
    assert visible_files(tmp_path) == []
    target = SinkTarget("q1", "panes", pa.schema([("n", pa.int64())]), (), "discarding")
    write(parquet(tmp_path), 0, [pa.table({"n": [1]})], target=target)
    assert numbers(tmp_path) == [1]
    assert tree(tmp_path) == ["_tidegate.json", "batch=0/part-0.parquet"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_a_writer_killed_at_any_moment_loses_nothing_and_repeats_nothing(kind: str, tmp_path: Path):
    """Each round starts one batch back, as Spark does when it replays, and dies somewhere in its
    work.
    """
    last = -1
    for round_ in range(6):
        writer = killed_writer(kind, tmp_path / "out", max(0, last))
        assert writer.stdout is not None
        for _ in range(3):
            last = int(writer.stdout.readline())
        threading.Event().wait(round_ * 0.0017)
        last = max([last, *map(int, kill(writer).split())])
        if kind == "parquet":
            found = numbers(tmp_path / "out")
        else:
            found = sorted(delta_table(tmp_path / "out").column("n").to_pylist())
        # What was reported is there; the batch in which the writer died is there as a whole, or not
        # at all.
        assert found in (list(range((last + 1) * 2000)), list(range((last + 2) * 2000)))


def test_a_reader_sees_whole_batches_of_parquet(tmp_path: Path):
    writer = killed_writer("parquet", tmp_path, 0)
    seen: set[str] = set()
    try:
        while len(seen) < 40:
            for folder in tmp_path.glob("batch=*"):
                files = sorted(folder.iterdir())
                assert [file.name for file in files] == ["part-0.parquet", "part-1.parquet"]
                if folder.name not in seen:
                    assert sum(pq.read_metadata(file).num_rows for file in files) == 2000
                seen.add(folder.name)
            assert writer.poll() is None
    finally:
        kill(writer)


# Delta


def delta_table(folder: Path) -> pa.Table:
    import deltalake

    return deltalake.DeltaTable(str(folder)).to_pyarrow_table()


def test_delta_appends_and_a_replay_adds_nothing(tmp_path: Path):
    sink = delta(tmp_path / "t")
    sink.write(TARGET, 0, iter([panes(0), panes(3)]))
    sink.write(TARGET, 2, iter([panes(6)]))
    for batch in (0, 1, 2):
        sink.write(TARGET, batch, iter([panes(90)]))
    found = delta_table(tmp_path / "t").sort_by("n")
    assert found.cast(PANES).equals(
        pa.concat_tables([panes(n) for n in (0, 3, 6)]).drop_columns(["pane_id"])
    )
    assert delta_table(tmp_path / "t").schema.names == PANES.names


def test_delta_does_not_even_read_the_rows_of_a_replay(tmp_path: Path):
    delta(tmp_path / "t").write(TARGET, 0, iter([panes(0)]))
    unread = iter([panes(0)])
    delta(tmp_path / "t").write(TARGET, 0, unread)
    assert len(list(unread)) == 1


def test_delta_notices_files_that_a_power_failure_cut(tmp_path: Path):
    sink = delta(tmp_path / "t")
    for batch in (0, 1):
        sink.write(TARGET, batch, iter([panes(batch)]))
    newest = max((tmp_path / "t").glob("*.parquet"), key=lambda path: path.stat().st_mtime_ns)
    newest.write_bytes(newest.read_bytes()[:100])
    with pytest.raises(SinkError, match=r"not as batch 1 has written it.*Hint"):
        sink.write(TARGET, 1, iter([panes(1)]))


def test_delta_writes_nothing_for_nothing(tmp_path: Path):
    delta(tmp_path / "t").write(TARGET, 0, iter([panes(0, 0)]))
    assert not (tmp_path / "t").exists()


def test_delta_keeps_queries_and_outputs_apart(tmp_path: Path):
    sink = delta((tmp_path / "t").as_uri())
    for query, output in [("q1", "panes"), ("q2", "panes"), ("q1", "metrics"), ("q1", "panes")]:
        sink.write(
            SinkTarget(query, output, PANES, (), "discarding"),
            0,
            iter([panes(0).drop_columns(["pane_id"])]),
        )
    assert delta_table(tmp_path / "t").num_rows == 9


def test_delta_writes_late_rows(tmp_path: Path):
    delta(tmp_path / "t").write(LATE_TARGET, 0, iter([late_rows()]))
    assert delta_table(tmp_path / "t").to_pylist() == late_rows().to_pylist()


def test_delta_columns_may_come_and_change(tmp_path: Path):
    sink = delta(tmp_path / "t")
    sink.write(TARGET, 0, iter([panes(0).set_column(4, "mean", pa.nulls(3))]))
    assert delta_table(tmp_path / "t").schema.names == PANES.names[:4]
    sink.write(
        TARGET,
        1,
        iter([panes(3).drop_columns(["mean"]), panes(6), panes(9, top=pa.array([1, 2, 3]))]),
    )
    found = delta_table(tmp_path / "t").sort_by("n")
    assert found.column("mean").to_pylist() == [None] * 6 + [number / 2 for number in range(6, 12)]
    assert found.column("top").to_pylist() == [None] * 9 + [1, 2, 3]
    with pytest.raises(SinkError, match=r"`.*/t`: .*Hint: "):
        sink.write(TARGET, 2, iter([panes(9, top=pa.array(["x", "y", "z"]))]))
    with pytest.raises(SinkError, match="incompatible types within a batch"):
        sink.write(
            TARGET,
            2,
            iter([panes(9, more=pa.array([[1], [], []])), panes(9, more=pa.array([1, 2, 3]))]),
        )
    sink.write(TARGET, 2, iter([panes(12)]))
    assert delta_table(tmp_path / "t").num_rows == 15


def test_delta_holds_what_it_has_no_type_for(tmp_path: Path):
    columns = {
        "u64": pa.array([2**64 - 1], pa.uint64()),
        "u32": pa.array([2**32 - 1], pa.uint32()),
        "half": pa.array([1.5], pa.float32()).cast(pa.float16()),
        "took": pa.array([3_000_000_000], pa.duration("ns")),
        "at": pa.array([1_000_000], pa.time64("us")),
        "word": pa.array(["x"]).dictionary_encode(),
        "nested": pa.array(
            [[{"u": 2**32 - 1, "t": 7}]],
            pa.list_(pa.struct([("u", pa.uint32()), ("t", pa.timestamp("ms", "Europe/Berlin"))])),
        ),
        "local": pa.array([5], pa.timestamp("us")),
        "fixed": pa.array([b"ab"], pa.binary(2)),
        "pairs": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.uint8())),
    }
    table = pa.table(columns)
    target = SinkTarget("q", "late", table.schema, (), "discarding")
    delta(tmp_path / "t").check(target)
    delta(tmp_path / "t").write(target, 0, iter([table]))
    (found,) = delta_table(tmp_path / "t").to_pylist()
    assert found["u64"] == 2**64 - 1
    assert found["u32"] == 2**32 - 1
    assert (found["half"], found["took"], found["at"], found["word"], found["fixed"]) == (
        1.5,
        3_000_000,
        "00:00:01.000000",
        "x",
        b"ab",
    )
    assert found["nested"][0]["u"] == 2**32 - 1
    assert found["nested"][0]["t"].microsecond == 7000
    assert found["pairs"] == [("a", 1)]
    for kind in (pa.month_day_nano_interval(), pa.list_(pa.struct([])), pa.decimal256(50, 0)):
        with pytest.raises(SpecError, match=r"`x`.*Hint: "):
            delta(tmp_path / "t").check(
                SinkTarget("q", "late", pa.schema([("x", kind)]), (), "discarding")
            )


def test_delta_spools_a_large_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys.modules["tidegate.spark.sinks.delta"], "_IN_MEMORY", 1000)
    delta(tmp_path / "t").write(TARGET, 0, iter([panes(n, 500) for n in range(0, 5000, 500)]))
    assert sorted(delta_table(tmp_path / "t").column("n").to_pylist()) == list(range(5000))


def test_delta_does_not_write_a_batch_that_another_process_writes_meanwhile(tmp_path: Path):
    """A driver that was thought dead commits the same batch after this one has looked."""
    sink = delta(tmp_path / "t")
    sink.write(TARGET, 0, iter([panes(0)]))

    def overtaken() -> Iterator[pa.Table]:
        yield panes(3)
        sink.write(TARGET, 1, iter([panes(3)]))

    sink.write(TARGET, 1, overtaken())
    assert delta_table(tmp_path / "t").num_rows == 6


def test_delta_notices_a_commit_between_its_look_and_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    import deltalake

    sink, plain, calls = delta(tmp_path / "t"), deltalake.write_deltalake, []
    sink.write(TARGET, 0, iter([panes(0)]))

    def overtaken(*args: Any, **options: Any) -> None:
        calls.append(args)
        if len(calls) == 1:
            sink.write(TARGET, 1, iter([panes(3)]))
        plain(*args, **options)

    monkeypatch.setattr(deltalake, "write_deltalake", overtaken)
    sink.write(TARGET, 1, iter([panes(3)]))
    assert len(calls) == 2
    assert delta_table(tmp_path / "t").num_rows == 6


def test_delta_says_what_it_cannot_write(tmp_path: Path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(SinkError, match=r"cannot write to `.*/file/t`: .*Hint: ") as caught:
        delta(tmp_path / "file" / "t").write(TARGET, 0, iter([panes(0)]))
    assert "\n" not in str(caught.value)


def test_delta_does_not_show_its_options():
    assert "secret" not in repr(delta("s3://bucket/t", {"AWS_SECRET_ACCESS_KEY": "secret"}))

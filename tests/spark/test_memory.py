"""Memory: a million keys in a session of 2 GB, and state that is larger than what a worker keeps in
memory.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from test_faults import children

import tidegate as tg
from support.spark_streams import BASE, SECOND, UTC
from support.torture_worker import Orders, Sender, Truth, compare, started, written
from tidegate.spark.tasks import processor

pytestmark = pytest.mark.slow

KEYS, MINUTES = 1_000_000, 3


def peak(pid: int) -> int:
    """The most memory that a process has had, in MB."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(line.split()[1]) >> 10 for line in lines if line.startswith("VmHWM")), 0)


def descendants(pid: int) -> list[int]:
    return [found for child in children(pid) for found in (child, *descendants(child))]


def spread(folder: Path) -> pa.Table:
    """One event for every key and minute, in an order of their own, and one behind them that closes
    all windows.
    """
    folder.mkdir()
    dice = np.random.default_rng(1)
    for minute in range(MINUTES):
        ts = BASE + minute * 60 * SECOND + dice.integers(0, 60 * SECOND, KEYS)
        table = pa.table(
            {
                "k": dice.permutation(KEYS),
                "ts": pa.array(ts).cast(UTC),
                "v": dice.integers(0, 1 << 30, KEYS),
            }
        )
        pq.write_table(table, folder / f"{minute}.parquet")
    pq.write_table(
        pa.table({"k": [-1], "ts": pa.array([BASE + 10**6 * SECOND]).cast(UTC), "v": [0]}),
        folder / f"{MINUTES}.parquet",
    )
    return pq.read_table(folder).filter(pc.field("k") >= 0)


def test_a_million_keys_fit_into_two_gigabytes(spark, tmp_path):
    assert spark.conf.get("spark.driver.memory") == "2g"
    sent = spread(tmp_path / "in")
    panes = (
        tg.stream(
            tg.sources.parquet(tmp_path / "in", max_files_per_trigger=1),
            time="ts",
            key="k",
            watermark=tg.bounded("10 minutes"),
        )
        .window(tg.tumbling("1 minute"))
        .aggregate(n=tg.count(), total=tg.sum("v"))
    )
    panes.write(
        tg.sinks.parquet(tmp_path / "panes"),
        checkpoint=str(tmp_path / "checkpoint"),
        trigger="available_now",
    ).await_termination()
    # The first batch of a query writes a file without rows, so that the folder can be read.
    written = {
        path.parent.name
        for path in (tmp_path / "panes").glob("batch=*/*.parquet")
        if pq.read_metadata(path).num_rows
    }
    assert len(written) == 1, "all windows were open until the last file came"
    found = pq.read_table(tmp_path / "panes", columns=["k", "window_start", "n", "total"]).filter(
        pc.field("k") >= 0
    )
    start = pc.floor_temporal(sent["ts"], unit="minute").cast(pa.int64())
    wanted = pa.table(
        {"k": sent["k"], "start": start, "n": pa.repeat(1, sent.num_rows), "total": sent["v"]}
    )
    found = found.set_column(1, "start", found["window_start"].cast(UTC).cast(pa.int64()))
    order = [("k", "ascending"), ("start", "ascending")]
    assert found.sort_by(order).cast(wanted.schema).equals(wanted.sort_by(order))
    used = {pid: peak(pid) for pid in descendants(os.getpid())}
    assert 0 < max(used.values()) < 3072, used


@pytest.mark.parametrize("kind", ["tumbling", "sessions"])
def test_state_that_is_larger_than_what_workers_keep_is_read_back(
    spark, tmp_path, monkeypatch, kind
):
    monkeypatch.setattr(processor, "CACHE_LIMIT", 1 << 10)
    sender = Sender(tmp_path / "in", 5)
    sender.put(8)
    sender.close()
    started(spark, Orders(str(tmp_path)), kind, trigger="available_now").await_termination()
    assert (
        max(row["state_bytes"] for row in written(tmp_path / kind / "metrics"))
        > processor.CACHE_LIMIT
    )
    compare(tmp_path, kind, Truth(sender.rows))

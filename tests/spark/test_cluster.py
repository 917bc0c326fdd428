"""A pipeline on a standalone cluster of a master and two workers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict

import pyarrow.parquet as pq
import pytest
from test_pipelines import traffic

from support import SUPPORT
from support.spark_streams import BASE, SECOND, Feed, clicks, netted

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


def test_a_pipeline_runs_on_all_executors_and_comes_to_the_answer_of_the_batch(cluster, tmp_path):
    feed, rows = Feed(tmp_path / "in"), traffic(3, 90)
    for start in range(0, len(rows), 30):
        feed.put(clicks(*rows[start : start + 30]))
    feed.put(clicks(("end", 9000, 0.0)))
    program = SUPPORT / "cluster_client.py"
    command = [sys.executable, str(program), cluster.url, str(feed.folder), str(tmp_path / "out")]
    (tmp_path / "out").mkdir()
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=500)
    assert ended.returncode == 0, ended.stderr[-4000:]
    found = json.loads(ended.stdout.splitlines()[-1])
    assert found["master"] == cluster.url
    assert found["events"] == 91
    panes = [
        row
        for name in sorted((tmp_path / "out" / "panes").rglob("*.parquet"))
        for row in pq.read_table(name, partitioning=None).to_pylist()
    ]
    # A retraction and what replaces it are in one file, in their order; files of one batch are of
    # different keys.
    panes.sort(key=lambda row: row["emitted_at"])
    wanted = {
        (user, start - BASE / SECOND): (n, spent)
        for user, start, n, spent in found["answer"]
        if user != "end"
    }
    assert netted(panes, ["user"], "n", "spent") == wanted
    truth: dict[tuple[str, float], list[float]] = defaultdict(list)
    for user, at, price in rows:
        truth[user, at // 60 * 60].append(price)
    assert wanted == {place: (len(prices), sum(prices)) for place, prices in truth.items()}
    places = defaultdict(set)
    for line in (tmp_path / "out" / "places").read_text().splitlines():
        told = json.loads(line)
        places[told["executor"]].add(told["shard"])
    assert len(places) == 2, "both executors have worked"
    assert len(set.union(*places.values())) == 4
    assert min(len(shards) for shards in places.values()) >= 1

"""Restarts of a query on Spark: it goes on where it stopped, keeps its shards, and follows or
refuses a changed specification.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from test_pipelines import AGGREGATES, complete, own_answer, traffic, windowed

import tidegate as tg
from support.spark_streams import Feed, Run, clicks, finished, netted
from tidegate.errors import SpecError, SpecMismatchError
from tidegate.spark.parallelism import PARTITIONS


def test_a_query_that_is_stopped_in_the_middle_goes_on_where_it_stopped(spark, tmp_path):
    feed, rows = Feed(tmp_path / "in"), traffic(7)
    for start in range(0, len(rows), 10):
        feed.put(clicks(*rows[start : start + 10]))
    feed.put(clicks(("end", 4000, 0.0)))
    panes = windowed(feed.stream(spark)).aggregate(**AGGREGATES)
    first = Run(panes, tmp_path / "ck", trigger="0 seconds")
    first.wait_for(lambda: len(first.query.recent_progress) >= 2)
    first.query.stop()
    batches = len(first.query.recent_progress)
    assert batches < 7, "it was stopped in the middle"
    # The same sink: a batch that was published and runs again replaces its rows.
    second = finished(panes, tmp_path / "ck", name=first.name)
    assert second.query.id == first.query.id
    found = second.panes
    wanted = own_answer(feed.batch(spark), F.count("*"), F.sum("price"), F.max("price"))
    assert complete(netted(found, ["user"], "n", "spent", "best")) == complete(wanted)


def test_workers_leave_copies_of_large_tables_that_go_with_their_run(spark, tmp_path):
    feed = Feed(tmp_path / "in")
    for second in (1, 2):
        feed.put(clicks(*((f"user {number}", second, float(number)) for number in range(20_000))))
    panes = (
        tg.stream(feed.stream(spark), time="ts", key="user", watermark=tg.ascending())
        .window(tg.tumbling("1 minute"))
        .aggregate(spent=tg.sum("price"))
    )
    first = finished(panes, tmp_path / "ck", shards=2)
    (local,) = (
        spark.sparkContext.parallelize([None], 1)
        .map(lambda _: os.environ["SPARK_LOCAL_DIRS"])
        .collect()
    )
    query = first.query.spark_query.id

    def copies() -> dict[str, int]:
        """How many each run has left."""
        return Counter(
            path.parent.name
            for path in Path(local.split(",")[0], "tidegate", query).glob("0-*/*/*")
        )

    (before,) = copies().items()
    assert before[1] >= 2, "of both shards"
    feed.put(clicks(("user 7", 100, 1.0)))
    second = finished(panes, tmp_path / "ck", name=first.name)
    spent = {user: spent for (user, _), (spent,) in netted(second.panes, ["user"], "spent").items()}
    assert spent == {f"user {number}": 2.0 * number for number in range(20_000)}
    assert before[0] not in copies()


def test_a_changed_specification_is_followed_where_that_is_safe_and_refused_elsewhere(
    spark, tmp_path
):
    feed = Feed(tmp_path / "in")
    feed.put(clicks(("a", 1, 1.0), ("b", 2, 1.0)))
    plain = windowed(feed.stream(spark))
    before = spark.conf.get(PARTITIONS)
    first = finished(plain.aggregate(n=tg.count()), tmp_path / "ck", shards=2)
    kept = json.loads((tmp_path / "ck" / "tidegate" / "query.json").read_text())
    assert len(kept["layout"]["ids"]) == 2
    for changed, told in (
        (plain.accumulating().aggregate(n=tg.count()), "mode"),
        (plain.aggregate(n=tg.sum("price")), "aggregates.n"),
        (plain.allow_lateness("1 second").aggregate(n=tg.count()), "allowed_lateness"),
        (
            windowed(feed.stream(spark), watermark=tg.bounded("1 second")).aggregate(n=tg.count()),
            "watermark",
        ),
    ):
        with pytest.raises(SpecMismatchError, match=told) as caught:
            finished(changed, tmp_path / "ck")
        assert "Hint" in str(caught.value)
    with pytest.raises(SpecError, match="shards"):
        finished(plain.aggregate(n=tg.count()), tmp_path / "ck", shards=5)
    assert json.loads((tmp_path / "ck" / "tidegate" / "query.json").read_text()) == kept, (
        "what is refused changes nothing"
    )
    feed.put(clicks(("a", 3, 5.0), ("c", 4, 2.0)))
    feed.put(clicks(("end", 4000, 0.0)))
    longer = plain.allow_lateness("2 hours").aggregate(n=tg.count(), spent=tg.sum("price"))
    spark.conf.set(PARTITIONS, "7")
    try:
        second = finished(longer, tmp_path / "ck")
        assert spark.conf.get(PARTITIONS) == "7"
    finally:
        spark.conf.set(PARTITIONS, before)
    assert second.query.id == first.query.id == kept["query"]
    found = netted([*first.panes, *({"spent": None, **row} for row in second.panes)], ["user"], "n")
    assert complete(found) == {("a", 0): (2,), ("b", 0): (1,), ("c", 0): (1,)}
    spent = {row["user"]: row["spent"] for row in second.panes if row["op"] == "+"}
    assert (spent["a"], spent["b"], spent["c"]) == (
        None,
        None,
        2.0,
    ), "nobody knows what windows held that were open"
    after = json.loads((tmp_path / "ck" / "tidegate" / "query.json").read_text())
    assert after["layout"] == kept["layout"]

"""The live page of a query on Spark: batches, phases, explanation and history in a real browser."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import tidegate as tg
from support.browsers import browser, missing, screenshot
from support.known_history import at, panes, rows
from support.spark_streams import Feed
from tidegate.spark.query.feed import QueryFeed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]
SCHEMA = pa.schema({"user": pa.string(), "ts": pa.timestamp("us", "UTC"), "v": pa.int64()})


@pytest.mark.skipif(bool(missing()), reason=missing() or "there is a browser")
def test_the_page_shows_a_running_query(spark: SparkSession, tmp_path: Path):
    feed = Feed(tmp_path / "in", SCHEMA)
    for number in range(3):
        feed.put(rows(number))
    df = feed.stream(spark, "user string, ts timestamp, v bigint")
    pipeline = panes(tg.stream(df, time="ts", key="user", watermark=tg.bounded("5 seconds")))
    query = pipeline.write(
        tg.sinks.parquet(tmp_path / "panes"),
        checkpoint=tmp_path / "checkpoint",
        trigger="200 ms",
        shards=1,
        name="clicks",
    )
    try:
        with browser() as chromium, query.ui() as page:
            tab = chromium.new_page(viewport={"width": 1440, "height": 1100})
            tab.goto(page.url)
            tab.set_default_timeout(90_000)
            tab.get_by_text("running", exact=True).wait_for()
            tab.get_by_text("5 rows", exact=True).wait_for()
            feed.put(rows(3))
            tab.get_by_text("6 rows", exact=True).wait_for()
            tab.get_by_text("The newest event is at", exact=False).or_(
                tab.get_by_text("It stays 5 seconds behind the newest event", exact=False)
            ).first.wait_for()
            tab.get_by_label("Key").fill("a")
            tab.get_by_label("Window").fill("2023-11-14T22:14:00Z/2023-11-14T22:15:00Z")
            tab.get_by_role("button", name="Show history").click()
            tab.get_by_text("merge, and are now parts of", exact=False).wait_for()
            screenshot(tab, "spark")
    finally:
        query.stop()
    # Another process shows the same from the checkpoint, after the query has ended.
    stored = QueryFeed(str(tmp_path / "checkpoint"))
    reading = stored.read()
    assert stored.name == "clicks"
    assert reading.status is not None
    assert [moment.panes for moment in reading.moments if moment.panes][:2] == [1, 2]
    assert {moment.watermark for moment in reading.moments} >= {at(16), at(35)}
    the_command_serves_it(tmp_path / "checkpoint")


def the_command_serves_it(checkpoint: Path) -> None:
    """`tidegate ui` in a process of its own, until SIGINT."""
    code = "import sys; from tidegate.cli import main; sys.exit(main())"
    with subprocess.Popen(
        [sys.executable, "-c", code, "ui", str(checkpoint), "--json"], stdout=subprocess.PIPE
    ) as served:
        assert served.stdout is not None
        url = json.loads(served.stdout.readline())["url"]
        address, _, token = url.partition("?token=")
        request = urllib.request.Request(address, headers={"Authorization": f"Bearer {token}"})  # noqa: S310
        with urllib.request.urlopen(request) as answer:  # noqa: S310
            assert b"clicks" in answer.read()
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(address)  # noqa: S310
        served.send_signal(signal.SIGINT)
        assert served.wait(60) == 0

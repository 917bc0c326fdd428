"""One of two partitions falls silent: status, metrics, progress, state and explanation agree, while
the query is busy, idle and started again.
"""

from __future__ import annotations

from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pyarrow as pa

import tidegate as tg
from support.prometheus_text import by_label, parse, single
from support.spark_streams import BASE, SECOND, Feed, Run
from tidegate.operators.prometheus import families, text_of
from tidegate.operators.status import QueryStatus
from tidegate.page.feed import Reading
from tidegate.page.panels import waits
from tidegate.page.timeline import Timeline
from tidegate.spark.metrics import GAUGES

SCHEMA = pa.schema({"user": pa.string(), "part": pa.string(), "ts": pa.timestamp("us", "UTC")})
DDL = "user string, part string, ts timestamp"


def rows(*given: tuple[str, str, float]) -> list[dict[str, Any]]:
    return [{"user": user, "part": part, "ts": BASE + int(at * SECOND)} for user, part, at in given]


class Watched(Run):
    """A query over two partitions, whose checkpoint is read beside it."""

    def __init__(self, spark: Any, feed: Feed, folder: Path, events: int = 0) -> None:
        self.folder, self.events = folder, events
        watermark = tg.bounded("0 seconds", idle_after="1 hour")
        panes = (
            tg.stream(
                feed.stream(spark, DDL),
                time="ts",
                key="user",
                partition="part",
                watermark=watermark,
            )
            .window(tg.tumbling("1 minute"))
            .aggregate(n=tg.count())
        )
        super().__init__(panes, folder, trigger="200 ms", shards=2)

    @property
    def stored(self) -> QueryStatus:
        return tg.state(self.folder).status()


def idle_batches(run: Watched, count: int) -> None:
    last = run.query.progress
    first = -1 if last is None else last.batch_id
    run.wait_for(
        lambda: run.query.progress is not None and run.query.progress.batch_id >= first + count
    )


def check(run: Watched, *, newest: float) -> None:
    """All surfaces after the last rows; p has gone on to `newest`, q is at 20 seconds."""
    progress, status = run.query.progress, run.query.status()
    assert progress is not None
    assert progress.counts["events"] == 0, "an idle batch"
    for name in GAUGES:
        assert progress.counts[name] == getattr(status, name) == getattr(run.stored, name), name
    assert progress.watermark == status.watermark == BASE + 20 * SECOND
    assert progress.newest_event == status.newest_event == BASE + int(newest * SECOND)
    marks = {one.name: one for one in status.sources}
    assert {name: one.holds for name, one in marks.items()} == {"p": False, "q": True}
    assert marks["q"].watermark == BASE + 20 * SECOND
    assert status.counters["events"] == run.events
    samples = parse(text_of(families(status)))
    assert single(samples, "tidegate_events_total") == run.events
    assert single(samples, "tidegate_windows_open") == progress.counts["windows_open"] > 0
    assert by_label(samples, "tidegate_source_holds_watermark", "partition") == {"p": 0, "q": 1}
    assert by_label(samples, "tidegate_source_watermark_seconds", "partition") == {
        name: BASE / 1e6 + at for name, at in (("p", newest), ("q", 20))
    }
    told = run.query.explain_watermark()
    assert "Partition `q` holds the watermark back" in str(told)
    timeline = Timeline()
    timeline.add(Reading(status))
    assert "Partition `q` holds the watermark back" in waits(timeline), "the page shows it"
    assert (
        str(told).splitlines()[1].split(":")[0]
        == (str(status.explanation).splitlines()[1].split(":")[0])
    )
    assert (
        [window.end for window in told.windows]
        == [window.end for window in status.waiting]
        == sorted({BASE + 60 * SECOND, BASE + (int(newest) // 60 + 1) * 60 * SECOND})
    )


def served(query: Any) -> str:
    """What the endpoint of a query answers."""
    with tg.serve_metrics(query, port=0) as server:
        connection = HTTPConnection(server.host, server.port)
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode()


def test_one_of_two_partitions_stops(spark, tmp_path):
    feed = Feed(tmp_path / "in", SCHEMA)
    feed.put(rows(("a", "p", 10), ("b", "q", 20), ("c", "p", 15)))
    run = Watched(spark, feed, tmp_path / "ck")
    try:
        run.query.process_all_available()
        # q is silent from now on.
        feed.put(rows(("a", "p", 70), ("c", "p", 75)))
        feed.put(rows(("b", "p", 100)))
        run.events = 6
        run.query.process_all_available()
        idle_batches(run, 3)
        check(run, newest=100)
        first, second = run.query.status(), run.query.status()
        assert second.lag >= first.lag, "it grows while nothing arrives"
    finally:
        run.query.stop()
    ended = run.query.status()
    assert ended.state == "ended"
    run = Watched(spark, feed, tmp_path / "ck", events=6)
    try:
        # No rows since the start: everything comes from the state.
        idle_batches(run, 2)
        check(run, newest=100)
        text = served(run.query)
        assert f'tidegate_events_total{{query="{run.query.id}"}} 6.0' in text
        assert f'tidegate_query_running{{query="{run.query.id}"}} 1.0' in text
    finally:
        run.query.stop()

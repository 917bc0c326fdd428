"""What operators of a query are told: log lines, the metrics endpoint, and the text of both."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import logging
import re
import threading
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

import tidegate as tg
from support.prometheus_text import by_label, parse, single
from tidegate.errors import SetupError
from tidegate.operators.prometheus import families, text_of
from tidegate.operators.status import QueryStatus
from tidegate.operators.status_log import Limits, StatusLog
from tidegate.spark.query.watch import Watch

SECOND = 1_000_000
NOON = 1_741_953_600 * SECOND


def operator(**watermark: Any) -> tg.EmbeddedOperator:
    given = tg.bounded("0 seconds", **watermark)
    return (
        tg.stream(time="ts", key="k", partition="p", watermark=given)
        .window(tg.tumbling("1 minute"))
        .aggregate(n=tg.count())
        .embedded(now=NOON)
    )


def stamp(us: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(us // SECOND, dt.UTC)


def add(op: tg.EmbeddedOperator, now: int, *rows: tuple[str, int]) -> None:
    """Rows of partition and second, at a second of the clock."""
    op.add_messages(
        [{"k": "a", "p": part, "ts": stamp(NOON + at * SECOND)} for part, at in rows],
        now=NOON + now * SECOND,
    )


def named(status: QueryStatus, **more: Any) -> QueryStatus:
    return dataclasses.replace(status, name="clicks", **more)


def test_a_source_that_falls_silent_and_comes_back():
    op, log = operator(idle_after="10 seconds"), StatusLog()
    add(op, 0, ("p", 0), ("q", 0))
    assert log.lines(op.status()) == []
    add(op, 15, ("p", 15))
    assert log.lines(op.status()) == [
        (
            logging.INFO,
            "partition `q` became idle, silent since 2025-03-14T12:00:00Z, and no longer holds the"
            " watermark back",
        )
    ]
    assert log.lines(op.status()) == [], "once"
    add(op, 16, ("q", 20))
    assert log.lines(op.status()) == [
        (logging.INFO, "partition `q` is active again, at 2025-03-14T12:00:20Z")
    ]
    op.end_input(partition="q")
    assert log.lines(op.status()) == [(logging.INFO, "partition `q` has ended")]


def test_a_large_share_of_late_rows_is_a_warning_once():
    op, log = operator(), StatusLog()
    add(op, 600, *[("p", 0)] * 200)
    add(op, 600, ("p", 600))
    log.lines(op.status())
    add(op, 601, *[("p", 1)] * 20, *[("p", 601)] * 180)
    expected = "10% of 200 events went to the late output: 20 very_late"
    assert log.lines(op.status()) == [(logging.WARNING, expected)]
    add(op, 602, *[("p", 1)] * 20, *[("p", 602)] * 180)
    assert log.lines(op.status()) == [], "it is known"
    add(op, 603, *[("p", 603)] * 200)
    log.lines(op.status())
    add(op, 604, *[("p", 1)] * 200)
    assert log.lines(op.status()) == [
        (logging.WARNING, "100% of 200 events went to the late output: 200 very_late")
    ]


def test_late_rows_of_a_slow_query_add_up():
    op, log = operator(), StatusLog()
    add(op, 600, ("p", 600))
    log.lines(op.status())
    for second in range(601, 610):
        add(op, second, *[("p", 1)] * 10)
        assert log.lines(op.status()) == [], "too few to speak of a share"
    add(op, 610, *[("p", 1)] * 10)
    assert log.lines(op.status()) == [
        (logging.WARNING, "100% of 100 events went to the late output: 100 very_late")
    ]


def test_a_watermark_that_stands_still_names_who_holds_it():
    op, log = operator(), StatusLog()
    add(op, 0, ("p", 0), ("q", 0))
    log.lines(op.status())
    add(op, 299, ("p", 200))
    assert log.lines(op.status()) == []
    add(op, 400, ("p", 300))
    ((level, text),) = log.lines(op.status())
    assert level == logging.WARNING
    assert text.startswith(
        "the watermark stands for 6 minutes 40 seconds while windows wait. Partition `q` holds the"
    )
    add(op, 401, ("p", 301))
    assert log.lines(op.status()) == []


def test_state_that_grows_and_a_query_that_fails():
    op, log = operator(), StatusLog(Limits(least_state=100, growth=2))
    add(op, 0, ("p", 0))
    log.lines(op.status())
    op.add_messages(
        [{"k": str(n), "p": "p", "ts": stamp(NOON)} for n in range(1000)], now=NOON + SECOND
    )
    ((level, text),) = log.lines(op.status())
    assert level == logging.WARNING
    assert re.fullmatch(r"the state has grown from .* bytes to .* KiB, with 1 open window", text), (
        text
    )
    failed = named(op.status(), state="failed", error="a\n  long story")
    assert log.lines(failed) == [(logging.ERROR, "failed: a long story")]
    assert log.lines(failed) == []


def test_the_repr_of_a_failed_query_is_one_line():
    failed = named(operator().status(), state="failed", error="a\n  long story\n" + "x" * 999)
    assert "\n" not in repr(failed)
    assert "problem a long story x" in repr(failed)
    assert len(repr(failed)) < 500


def test_lines_have_the_name_of_the_query(caplog):
    op, log = operator(idle_after="10 seconds"), StatusLog()
    add(op, 0, ("p", 0), ("q", 0))
    log.log(named(op.status()))
    add(op, 15, ("p", 15))
    with caplog.at_level(logging.INFO, logger="tidegate.query"):
        log.log(named(op.status()))
    assert [record.name for record in caplog.records] == ["tidegate.query"]
    assert caplog.messages[0].startswith("query clicks: partition `q` became idle")


# Metrics


def test_metrics_of_partitions_and_reasons():
    op = operator(idle_after="10 seconds")
    add(op, 0, ("p", 0), ("q", 5))
    add(op, 20, ("p", 70))
    add(op, 21, ("p", 1))
    samples = parse(text_of(families(named(op.status(), phases={"addBatch": 1500}))))
    assert by_label(samples, "tidegate_events_total", "query") == {"clicks": 4}
    assert by_label(samples, "tidegate_source_idle", "partition") == {"p": 0, "q": 1}
    assert by_label(samples, "tidegate_source_lag_seconds", "partition") == {"p": -49, "q": 16}
    assert by_label(samples, "tidegate_source_silent_seconds", "partition") == {"p": 0, "q": 21}
    assert by_label(samples, "tidegate_late_rows_by_reason_total", "reason") == {"very_late": 1}
    assert by_label(samples, "tidegate_batch_phase_seconds", "phase") == {"addBatch": 1.5}
    assert single(samples, "tidegate_windows_waiting") == 1


def test_a_name_is_escaped_and_what_is_unknown_is_left_out():
    odd = 'a "query"\\ of\ntwo lines'
    samples = parse(text_of(families(QueryStatus("id", 0, NOON, name=odd))))
    assert by_label(samples, "tidegate_batch_id", "query") == {odd: 0}
    assert [name for name, _ in samples] == ["tidegate_clock_seconds", "tidegate_batch_id"]
    ticks = tg.stream(time="t", key="k").window(tg.tumbling("10 us")).aggregate(n=tg.count())
    op = ticks.embedded(now=0)
    op.add_messages([{"k": "a", "t": 5}], now=1)
    names = {name for name, _ in parse(text_of(families(op.status())))}
    assert "tidegate_watermark_seconds" not in names, "numbers are no instants"


def test_the_endpoint_serves_what_the_operator_holds_now():
    op = operator()
    add(op, 0, ("p", 0))
    with tg.serve_metrics(op, port=0) as server:
        assert server.url.startswith("http://127.0.0.1:"), "not open to the network"
        first = scraped(server)
        add(op, 1, ("p", 1))
        second = scraped(server)
        with pytest.raises(SetupError, match=r"cannot listen on 127\.0\.0\.1"):
            tg.serve_metrics(op, port=server.port)
    assert 'tidegate_events_total{query="embedded"} 1.0' in first
    assert 'tidegate_events_total{query="embedded"} 2.0' in second
    assert "# TYPE tidegate_events_total counter" in second
    with pytest.raises(OSError, match="refused"):
        scraped(server)


def test_queries_of_one_name_have_labels_of_their_own():
    first, second = operator(), operator()
    add(first, 0, ("p", 0))
    add(second, 0, ("p", 0), ("p", 1))
    with tg.serve_metrics(first, second, port=0) as server:
        events = by_label(parse(scraped(server)), "tidegate_events_total", "query")
    assert events == {"embedded": 1, "embedded #2": 2}


class Gone:
    """A query whose session has been stopped."""

    def __init__(self, op: tg.EmbeddedOperator) -> None:
        self.looks, self._op = 0, op

    @property
    def is_active(self) -> bool:
        return True

    def status(self) -> QueryStatus:
        self.looks += 1
        if self.looks > 1:
            raise ConnectionError("Spark is gone")
        return named(self._op.status(), state="running")


def test_a_query_that_cannot_be_read_does_not_hide_the_others():
    op = operator()
    add(op, 0, ("p", 0))
    with tg.serve_metrics(Gone(op), op, port=0) as server:
        before, after = (parse(scraped(server)) for _ in range(2))
    assert by_label(before, "tidegate_query_running", "query") == {"clicks": 1, "embedded": 1}
    assert by_label(after, "tidegate_query_running", "query") == {"clicks": 0, "embedded": 1}
    assert by_label(after, "tidegate_events_total", "query") == {"embedded": 1}


def test_a_look_that_fails_does_not_end_the_watch(monkeypatch):
    monkeypatch.setattr("tidegate.spark.query.watch.has_session", lambda: True)
    op, seen = operator(), threading.Event()

    class Flaky(Gone):
        def status(self) -> QueryStatus:
            self.looks += 1
            if self.looks < 3:
                raise FileNotFoundError("the batch was deleted meanwhile")
            seen.set()
            return op.status()

    watch = Watch(Flaky(op), interval=0.001)
    assert seen.wait(20), "it looks again"
    watch.stop()


def scraped(server: Any) -> str:
    connection = HTTPConnection(server.host, server.port)
    connection.request("GET", "/metrics")
    return connection.getresponse().read().decode()


def test_the_dashboard_shows_metrics_that_exist(repository: Path):
    dashboard = json.loads((repository / "docs/grafana-dashboard.json").read_text())
    used = {
        name
        for panel in dashboard["panels"]
        for target in panel.get("targets", ())
        for name in re.findall(r"tidegate_\w+", target["expr"])
    }
    op = operator(idle_after="10 seconds")
    add(op, 0, ("p", 0), ("q", 5))
    add(op, 20, ("p", 70), ("p", 1), ("p", -100))
    status = named(
        op.status(), state="running", batch=1, rows_per_second=1.0, phases={"triggerExecution": 1}
    )
    known = {
        family.name: {name for labels, _ in family.samples for name in labels}
        for family in families(status)
    }
    assert len(used) > 10
    assert used <= set(known)
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            (metric,) = re.findall(r"tidegate_\w+", target["expr"])
            shown = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            # A line for each series: a legend with fewer labels would name several the same.
            grouped = re.search(r"by \((\w+)\)", target["expr"])
            assert shown == (known[metric] if grouped is None else {grouped[1]}), target["expr"]

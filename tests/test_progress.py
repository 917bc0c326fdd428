"""The progress of a query: batches without rows, and batches that call some shards, keep values."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tidegate.operators.status import OperatorStatus, QueryStatus, ShardStatus
from tidegate.spark.metrics import CHANGES, COUNTERS, GAUGES, SHARDS
from tidegate.spark.query.progress import ProgressLog

SHARDS_OF_QUERY = 4


class Report:
    """Spark's report of a batch."""

    def __init__(self, batch: int, shards: int = 0, *, ran: bool = True, **observed: int) -> None:
        """`ran`: whether the batch has run; else it is the next one, and none was due."""
        self.batchId = batch
        self.processedRowsPerSecond = 0.0
        self.durationMs = {"triggerExecution": 5, **({"addBatch": 3} if ran else {})}
        self.timestamp = f"2025-01-01T00:00:{batch:02d}Z"
        self.stateOperators: list[Any] = []
        whole: dict[str, int | None] = dict.fromkeys(
            (*COUNTERS, *GAUGES, *CHANGES, SHARDS, "watermark", "newest_event", "clock")
        )
        if shards:
            whole.update(dict.fromkeys((*COUNTERS, *GAUGES, *CHANGES), 0))
            whole.update({SHARDS: shards, **observed})
        row = SimpleNamespace(asDict=lambda: whole)
        self.observedMetrics = {"tidegate": row}


BUSY = Report(0, SHARDS_OF_QUERY, events=7, windows_open=5, watermark=10, newest_event=20)


def stored() -> QueryStatus:
    shard = ShardStatus(0, 3, 5, 10, 20, windows_open=5, state_bytes=100)
    return QueryStatus("id", 3, 5, (OperatorStatus(0, 1, (shard,), ()),))


def log(status: QueryStatus | None = None) -> ProgressLog:
    return ProgressLog(SHARDS_OF_QUERY, lambda: status)


def test_an_idle_batch_keeps_sizes_and_instants_and_has_no_events():
    _, idle = log().read([BUSY, Report(1)])
    assert (idle.counts["events"], idle.counts["windows_open"]) == (0, 5)
    assert (idle.watermark, idle.newest_event) == (10, 20)
    assert idle.watermark_lag_seconds == pytest.approx((idle.clock - 10) / 1e6), "it grows"


def test_a_batch_that_calls_some_shards_changes_what_they_change():
    part = Report(1, 1, windows_open=1, windows_open_change=-2, watermark=12, panes_on_time=3)
    _, found, idle = log().read([BUSY, part, Report(2)])
    assert (found.counts["windows_open"], found.watermark) == (3, 12)
    assert found.counts["panes_on_time"] == 3
    assert (idle.counts["windows_open"], idle.counts["panes_on_time"]) == (3, 0)


def test_all_shards_together_say_what_is_there():
    whole = Report(1, SHARDS_OF_QUERY, windows_open=9, windows_open_change=-2)
    assert log().read([BUSY, whole])[-1].counts["windows_open"] == 9


def test_after_a_restart_the_first_idle_batch_knows_the_state():
    (found,) = log(stored()).read([Report(4)])
    assert (found.counts["windows_open"], found.counts["state_bytes"]) == (5, 100)
    assert found.watermark == 10
    (blind,) = log().read([Report(4)])
    assert (blind.counts["windows_open"], blind.watermark) == (0, None)


def test_one_report_is_enough_where_the_one_before_is_known():
    found = log()
    assert found.last(BUSY, lambda: [BUSY]) is not None
    for batch in range(1, 60):
        last = found.last(Report(batch), list)
        assert last is not None
        assert last.counts["windows_open"] == 5
    assert found.last(Report(70), list) is None, "Spark has dropped the ones between"


def test_a_report_without_a_batch_does_not_hide_the_batch_of_that_number():
    found, idle = log(), Report(0, ran=False)
    assert found.last(idle, lambda: [idle]) is None
    assert found.read([idle]) == []
    first = found.last(BUSY, lambda: [idle, BUSY])
    assert first is not None
    assert (first.batch_id, first.counts["events"], first.watermark) == (0, 7, 10)
    waits = Report(1, ran=False)
    waits.timestamp = "2025-01-01T00:00:30Z"
    last = found.last(waits, lambda: [idle, BUSY, waits])
    assert last is not None
    assert (last.batch_id, last.counts["windows_open"]) == (0, 5)
    assert last.watermark_lag_seconds == pytest.approx(1735689630, abs=1), "the lag grows"
    assert [one.batch_id for one in found.read([idle, BUSY, waits])] == [0]


def test_a_checkpoint_that_has_the_first_batch_already_counts_it_once():
    part = Report(3, 1, windows_open=1, windows_open_change=-2, watermark=12)
    (found,) = log(stored()).read([part])
    assert found.counts["windows_open"] == 5


def test_after_a_restart_the_progress_before_the_first_batch_is_that_of_the_checkpoint():
    waits = Report(4, ran=False)
    for report in (None, waits):
        found = log(stored()).last(report, lambda: [waits])
        assert found is not None
        assert (found.batch_id, found.counts["windows_open"], found.watermark) == (3, 5, 10)
    assert log().last(None, list) is None

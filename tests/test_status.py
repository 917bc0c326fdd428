"""The status of a query: embedded and from a checkpoint, busy and idle, it tells the same story."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tidegate as tg
from support.spark_checkpoints import Checkpoint
from support.spark_fakes import Columns, Fleet
from tidegate.cli import main
from tidegate.operators.status import QueryStatus, aged
from tidegate.page.feed import Reading
from tidegate.page.panels import waits
from tidegate.page.timeline import Timeline
from tidegate.spark.query.state import query_state
from tidegate.spark.tasks.shards import ShardLayout

pytestmark = pytest.mark.rocksdb
SECOND = 1_000_000
START = 1_000 * SECOND
SCHEMA = pa.schema({"k": pa.string(), "ts": pa.timestamp("us", "UTC"), "part": pa.string()})


@pytest.fixture(autouse=True)
def _no_workers() -> Iterator[None]:
    Fleet.forget_workers()
    yield
    Fleet.forget_workers()


def table(*rows: tuple[str, float | None, str]) -> pa.Table:
    return pa.Table.from_pylist(
        [
            {"k": k, "ts": None if at is None else START + int(at * SECOND), "part": part}
            for k, at, part in rows
        ],
        SCHEMA,
    )


def pipeline() -> Any:
    watermark = tg.bounded("0 seconds", idle_after="1 minute", partitions=["p", "q", "r"])
    return (
        tg.stream(Columns(SCHEMA), time="ts", key="k", partition="part", watermark=watermark)
        .window(tg.tumbling("10 seconds"))
        .trigger(tg.after_watermark(early=tg.every("30 seconds")))
        .allow_lateness("5 seconds")
        .aggregate(n=tg.count())
    )


class Both:
    """A query on Spark's state store, and an embedded operator with the same deliveries."""

    def __init__(self, folder: Path) -> None:
        panes = pipeline()
        self.fleet = Fleet.of(panes, ShardLayout.balanced(2, 4))
        self.checkpoint = Checkpoint(folder, self.fleet)
        self.whole = panes.embedded(now=START + SECOND)
        self.folder = folder

    def deliver(self, at: int, *rows: tuple[str, float | None, str]) -> None:
        now, delivery = START + at * SECOND, table(*rows)
        self.fleet.deliver([(0, 0, [delivery])], now)
        self.whole.add_messages(delivery, now=now)
        self.whole.get_result()
        self.whole.flush()
        self.checkpoint.clock = now // 1000
        self.checkpoint.commit()

    @property
    def stored(self) -> QueryStatus:
        return tg.state(self.folder).status()


@pytest.fixture
def both(tmp_path: Path) -> Both:
    found = Both(tmp_path / "ck")
    found.deliver(1, ("a", 1, "p"), ("b", 2, "q"), ("c", 3, "r"))
    found.deliver(2, ("a", 25, "p"), ("b", 12, "q"), ("c", 22, "r"), ("d", None, "p"))
    found.deliver(3, ("a", 1, "p"), ("a", 31, "p"), ("c", 24, "r"))
    return found


def told(status: QueryStatus) -> dict[str, Any]:
    """What a status says, apart from where it comes from."""
    counters = {name: count for name, count in status.counters.items() if count}
    (explanation,) = status.explanations
    assert explanation is not None
    return {
        "watermark": status.watermark,
        "newest": status.newest_event,
        "lag": status.lag,
        "late": status.late,
        "counters": {name: counters[name] for name in ("events", "late_rows", "panes_on_time")},
        "windows_open": status.windows_open,
        "sources": status.sources,
        "waiting": status.waiting,
        "happenings": status.happenings,
        "sentences": explanation.sentences,
    }


def test_a_checkpoint_and_an_operator_tell_the_same(both: Both):
    stored, whole = both.stored, both.whole.status()
    assert told(stored) == told(whole)
    assert stored.watermark == START + 12 * SECOND
    assert stored.lag == -9 * SECOND, "the events are ahead of the clock"
    assert stored.late == {"null_time": 1, "very_late": 1}
    assert [(one.name, one.holds) for one in stored.sources] == [
        ("p", False),
        ("q", True),
        ("r", False),
    ]
    assert json.loads(json.dumps(stored.to_dict()))["watermark"] == "1970-01-01T00:16:52Z"


def test_batches_without_rows_change_only_the_clock(both: Both):
    before = both.stored
    both.checkpoint.clock += 20_000
    both.checkpoint.commit()
    after = both.stored
    assert after.batch == before.batch + 1
    assert after.now == before.now + 20 * SECOND
    assert after.lag == before.lag + 20 * SECOND, "it grows while nothing arrives"
    assert [one.lag for one in after.sources] == [one.lag + 20 * SECOND for one in before.sources]
    kept = ("watermark", "newest_event", "counters", "late", "windows_open", "waiting")
    for name in kept:
        assert getattr(after, name) == getattr(before, name), name
    assert aged(before, after.now).lag == after.lag
    assert "21 seconds ago" in str(after.explanation)


def test_what_comes_next(both: Both):
    found = [(one.clock, one.watermark, one.text) for one in both.stored.happenings]
    clocks = [clock for clock, _, _ in found if clock is not None]
    assert clocks == sorted(clocks)
    assert (START + 62 * SECOND, None, "partition `q` becomes idle if it stays silent") in found
    assert found[-1][1] == START + 40 * SECOND, "the last window completes last"


def test_a_declared_partition_that_never_spoke_is_not_called_active_since_the_start(tmp_path):
    both = Both(tmp_path / "ck")
    both.deliver(1, ("a", 1, "p"))
    assert {one.name: one.spoke_at for one in both.stored.sources} == {
        "p": START + SECOND,
        "q": None,
        "r": None,
    }


def test_complete_windows_are_not_among_those_that_complete_next(both: Both, capsys):
    (operator,) = both.stored.operators
    assert both.stored.watermark == START + 12 * SECOND
    assert [window["end"] for window in operator.windows] == [
        START + end * SECOND for end in (20, 30, 40)
    ]
    assert main(["state", str(both.folder)]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"^ +0 +q +active .* yes$", shown, re.MULTILINE)
    assert "when the watermark reaches 1970-01-01T00:17:00Z: window" in shown


def test_a_large_state_is_explained_from_its_summary(both: Both, monkeypatch):
    whole = both.stored
    monkeypatch.setattr(query_state, "_SCANNED", 0)
    brief = both.stored
    waits = [window for window in whole.waiting if not window.is_complete]
    assert [(one.start, one.end, one.keys, one.watermark) for one in brief.waiting] == [
        (one.start, one.end, one.keys, one.watermark) for one in waits
    ]
    assert brief.sources == whole.sources
    assert brief.explanation.sentences[:3] == whole.explanation.sentences[:3]


def merged() -> tg.EmbeddedOperator:
    mark = tg.bounded("5 seconds", idle_after="1 minute", partitions=["p", "q"])
    stream = tg.stream(time="ts", key="user", partition="p", watermark=mark)
    return stream.window(tg.tumbling("1 minute")).aggregate(n=tg.count()).embedded(now=AT)


AT = dt.datetime(2026, 3, 1, 10, tzinfo=dt.UTC)


def test_a_status_is_printed_as_lines():
    op = merged()
    assert "embedded, running" in str(op.status()), "without a message"
    op.add_messages([{"user": "a", "ts": AT, "p": "p"}], now=AT)
    text = str(op.status())
    for line in (
        "  none       2026-03-01T10:00:00Z  2026-03-01T10:00:00Z  1             1       40 bytes",
        "  0      p       active  2026-03-01T09:59:55Z  5 seconds  2026-03-01T10:00:00Z",
        "  0      q       active  none                             never                 yes",
        "  in 1 minute: partition `q` becomes idle if it stays silent",
    ):
        assert line in text.splitlines(), text


def test_the_text_of_a_checkpoint_does_not_claim_to_know_whether_the_query_runs():
    text = str(QueryStatus("q", 7, 0, name="clicks"))
    assert text == "clicks, from its checkpoint, after batch 7"


def test_the_end_of_the_input_leaves_nothing_to_happen():
    op = merged()
    op.add_messages([{"user": "a", "ts": AT, "p": "p"}], now=AT)
    op.finish()
    status = op.status()
    assert [(one.status, one.holds, one.idle_at) for one in status.sources] == [
        ("ended", False, None)
    ] * 2
    assert (status.state, status.happenings) == ("ended", ())


def test_positions_off_event_time_are_numbers_in_the_text():
    stream = tg.stream(time="ts", key="user", offset="o")
    op = stream.window(tg.tumbling(3, axis="offset")).aggregate(n=tg.count()).embedded(now=AT)
    op.add_messages([{"ts": AT, "user": "a", "o": n} for n in range(5)], now=AT)
    assert "  3       6      1" in str(op.status()).splitlines()


def test_of_many_sources_those_are_shown_that_hold_the_watermark_back():
    names = [f"p-{number:02}" for number in range(40)]
    mark = tg.bounded("5 seconds")
    stream = tg.stream(time="ts", key="user", partition="p", watermark=mark)
    op = stream.window(tg.tumbling("1 minute")).aggregate(n=tg.count()).embedded(now=AT)
    times = {name: AT - dt.timedelta(seconds=30 if name == "p-33" else 0) for name in names}
    op.add_messages([{"user": "a", "ts": time, "p": name} for name, time in times.items()], now=AT)
    status, timeline = op.status(), Timeline()
    timeline.add(Reading(status))
    assert any("p-33" in line and line.endswith("yes") for line in str(status).splitlines())
    assert "and 20 more" in str(status)
    assert re.search("p-33</td>.*?<b>holds back</b>", waits(timeline))
    assert "and 28 more" in waits(timeline)

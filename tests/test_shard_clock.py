"""The clock of a shard: jumps of the machine's clock neither silence triggers nor make sources
idle.
"""

from __future__ import annotations

import pyarrow as pa
import pytest

import tidegate as tg
from support.spark_fakes import Fleet
from test_edge import fleet_of
from tidegate.spark.tasks.shard_clock import ShardClock
from tidegate.spark.tasks.shards import ShardLayout
from tidegate.state.memory import MemoryStore

SECOND = 1_000_000
HOUR = 3600 * SECOND
START = 1_700_000_000 * SECOND
SCHEMA = pa.schema({"ts": pa.int64(), "k": pa.string()})


@pytest.fixture(autouse=True)
def _no_workers():
    Fleet.forget_workers()
    yield
    Fleet.forget_workers()


def test_the_clock_follows_the_machine_and_never_steps_back():
    clock = ShardClock(100, 100)
    for machine, now in ((150, 150), (1000, 1000), (200, 1000), (300, 1050), (1200, 1500)):
        clock = clock.at(machine)
        assert clock == ShardClock(machine, now)
    assert clock.at(1900) == ShardClock(1900, 1900)


def test_a_due_instant_is_reached_at_the_time_of_its_timer():
    for clock in (ShardClock(100, 100), ShardClock(100, 1000)):
        for due in (clock.now + 1, clock.now + 500, clock.now + 10_000):
            at = clock.machine_at(due)
            assert clock.at(at - 1).now < due <= clock.at(at).now


def test_the_clocks_survive_and_a_level_one_is_not_stored():
    store = MemoryStore()
    ShardClock(100, 500).write(store)
    assert ShardClock.read(store, 500) == ShardClock(100, 500)
    ShardClock(500, 500).write(store)
    assert store.names() == []
    assert ShardClock.read(store, 500) == ShardClock(500, 500)


def panes_by_clock(readings: list[int]) -> list[int]:
    """The number of panes of each batch, one message a batch, with a pane every ten seconds."""
    spec = (
        tg.stream(time="ts", key="k", watermark=tg.explicit())
        .window(tg.tumbling("1 day"))
        .trigger(tg.after_watermark(early=tg.after_delay("10 seconds")))
        .aggregate(n=tg.count())
        .spec
    )
    fleet = fleet_of(spec, SCHEMA, ShardLayout.balanced(1))
    found = []
    for machine in readings:
        rows = pa.table({"ts": [START], "k": ["a"]}, schema=SCHEMA)
        found.append(len(fleet.deliver([(0, 0, [rows])], machine).panes))
    return found


def test_one_wrong_reading_an_hour_ahead_does_not_silence_triggers():
    steady = [START + n * 20 * SECOND for n in range(20)]
    wrong = list(steady)
    wrong[5] += HOUR
    usual, disturbed = panes_by_clock(steady), panes_by_clock(wrong)
    assert sum(usual[8:]) >= 6
    assert sum(disturbed[8:]) >= sum(usual[8:]) // 2


def test_a_clock_that_is_set_back_does_not_silence_triggers():
    readings = [START + n * 20 * SECOND - (HOUR if n >= 5 else 0) for n in range(20)]
    assert sum(panes_by_clock(readings)[8:]) >= 3

"""Names of partitions that are gone do not stay in the state."""

from __future__ import annotations

import json

import pytest

import tidegate as tg
from tidegate.operators.aggregate import window_offsets
from tidegate.state.memory import MemoryStore

SECOND = 1_000_000


@pytest.fixture(autouse=True)
def _few_names(monkeypatch):
    monkeypatch.setattr(window_offsets, "FEW_NAMES", 20)


def counting(store=None):
    return (
        tg.stream(time="ts", key="k", offset="o", partition="p", watermark=tg.explicit())
        .window(tg.tumbling("1 second"))
        .allow_lateness("5 seconds")
        .aggregate(n=tg.count())
        .embedded(store=store, now=0)
    )


def rows(second: int, *partitions: str):
    return [{"ts": second * SECOND, "k": "a", "o": 0, "p": name} for name in partitions]


def test_the_state_of_partitions_that_come_and_go_stays_level():
    store = MemoryStore()
    op = counting(store)
    sizes = []
    for second in range(40):
        names = [f"{second}-{number}" for number in range(5)]
        op.add_messages(rows(second, *names))
        for name in names:
            op.remove_partition(name)
        op.advance_watermark(second * SECOND)
        op.get_result()
        op.flush()
        sizes.append(len(json.dumps(store.get_json("operator"))))
    assert len(op.resume_offsets()) <= 35
    assert max(sizes[20:]) < 1.2 * max(sizes[:20])
    assert op.stats()["events"] == 200


def test_a_removed_partition_is_known_until_its_messages_would_be_very_late(tmp_path):
    op = counting(MemoryStore(tmp_path / "s"))
    op.add_messages(rows(10, "x", "y"))
    op.remove_partition("x")
    op.advance_watermark(14 * SECOND)
    op.flush()
    op.close()
    op = counting(MemoryStore(tmp_path / "s"))
    op.add_messages(rows(10, "x"))
    assert op.stats()["duplicates"] == 1
    op.remove_partition("x")
    op.advance_watermark(17 * SECOND)
    assert dict(op.resume_offsets()) == {"y": 1}
    op.add_messages(rows(10, "x"))
    op.finish()
    assert op.stats()["duplicates"] == 1
    assert op.get_result().late["reason"].to_pylist() == ["very_late"]


def test_a_removed_partition_that_returns_is_kept():
    op = counting()
    op.add_messages(rows(1, "x", "y"))
    op.remove_partition("x")
    op.add_messages([{"ts": 2 * SECOND, "k": "a", "o": 5, "p": "x"}])
    op.advance_watermark(60 * SECOND)
    assert op.resume_offsets()["x"] == 6


def test_first_and_last_offsets_are_right_when_numbers_of_partitions_are_used_again():
    op = counting()
    for second in range(20):
        op.add_messages(rows(second, *(f"{second}-{number}" for number in range(10))))
        op.advance_watermark(second * SECOND)
        op.get_result()
        last = op.get_windows()[-1]
        assert last["window_start"] == second * SECOND
        offsets = next(value for value in last.values() if isinstance(value, dict))
        assert set(offsets) == {f"{second}-{number}" for number in range(10)}

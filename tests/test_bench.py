"""The benchmark prints what it promises; nothing here looks at a time."""

from __future__ import annotations

import cProfile
import json
import math
import zlib
from pathlib import Path

import numpy as np
import pytest

from bench import main, safety
from bench.cases import aggregated, windowed
from bench.kernel import CASES
from bench.racing import OperatorRunner
from bench.traffic import MINUTE, PER_MINUTE, START, Traffic, deliver, distinct_keys
from bench.watermarks import LoopRunner, TrackerRunner
from tidegate.spec.windows import hopping, tumbling

pytestmark = pytest.mark.slow

NAMES = [
    "tumbling_100k",
    "tumbling_1m",
    "sliding",
    "session",
    "retracting",
    "small_deliveries",
    "early_every_100",
    "early_every_10k",
    "early_every_hot",
    "composite_100",
    "composite_hot",
    "session_early_100",
    "session_early_hot",
    "bursty_sessions",
    "history",
]
FIELDS = {
    "name",
    "ratio",
    "aim",
    "peer",
    "keys",
    "events",
    "seconds",
    "peer_seconds",
    "events_per_second",
    "wall_ratio",
    "bytes_per_key_and_window",
}
SMALL = ["kernel", "--events", "200"]


def test_what_safety_costs_is_printed_as_shares(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(safety, "TURNS", 1)
    assert main(["safety", "--embedded", "--events", "200", "--json"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {one["keys"] for one in found} == set(safety.KINDS)
    assert {one["measure"] for one in found} > set(safety.PROFILED)
    synced = [one for one in found if "sync" in one["measure"] and "RocksDB" in one["runtime"]]
    assert all(0 < one["share"] < 1 for one in synced)


def test_the_safety_of_profiled_workers_is_printed_as_shares(tmp_path: Path) -> None:
    profile = cProfile.Profile()
    profile.runcall(lambda: zlib.crc32(bytes(10_000_000)))
    profile.dump_stats(tmp_path / "edge-1")
    found = safety.profiled([str(tmp_path / "edge-1")])
    assert found["checksums of stored values"] > 0
    assert found["keyed identities of keys"] == 0
    assert safety.profiled([]) == {}


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    assert main([*SMALL, *words]) == 0
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("name", NAMES)
def test_a_case_is_one_line_of_json(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = printed(capsys, "--case", name, "--json")
    found = json.loads(line)
    others = found.pop("also")
    assert found["name"] == name
    for measured in [found, *others]:
        assert set(measured) == FIELDS
        numbers = [
            measured[field]
            for field in ("ratio", "events_per_second", "wall_ratio", "bytes_per_key_and_window")
        ]
        assert all(math.isfinite(number) and number > 0 for number in numbers)


@pytest.mark.slow
def test_all_cases_run_unless_one_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert [json.loads(line)["name"] for line in printed(capsys, "--json")] == NAMES == list(CASES)


def test_people_get_a_table_with_the_aim_beside_the_ratio(
    capsys: pytest.CaptureFixture[str],
) -> None:
    head, _, *lines = printed(capsys, "--case", "retracting")
    assert head.split()[:3] == ["case", "ratio", "aim"]
    assert lines[0].split()[0] == "retracting"
    assert lines[0].split()[2] == "2.0"


def test_watermarks_are_one_line_of_json_a_size(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watermarks", "--partitions", "50", "--partitions", "10000", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    told = [(found["partitions"], found["aim"], found["shuffled"]) for found in rows]
    assert told == [(50, None, False), (10_000, 5.0, False), (10_000, 5.0, True)]
    for found in rows:
        assert all(
            found[field] > 0
            for field in (
                "best",
                "median",
                "microseconds_per_partition",
                "peer_best",
                "peer_median",
                "ratio",
            )
        )


def test_people_get_the_aim_beside_the_milliseconds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watermarks", "--partitions", "10000"]) == 0
    head, _, line, shuffled = capsys.readouterr().out.splitlines()
    assert head.split()[:4] == ["partitions", "best", "median", "aim"]
    assert line.split()[3:5] == shuffled.split()[3:5] == ["<", "5"]
    # On a busy machine a line ends with the word that it took longer than was aimed at.
    assert shuffled.removesuffix("over").rstrip().endswith("names shuffled")


def test_watermarks_of_all_sizes_are_followed_by_those_of_keys(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.watermarks.SIZES", (10,))
    monkeypatch.setattr("bench.per_key._DELIVERIES", 2)
    assert main(["watermarks", "--events", "200", "--json"]) == 0
    _, *found = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert [(row["name"], row["rows"], row["keys"]) for row in found] == [("per_key", 200, 20)] * 2
    assert all(
        row[field] > 0
        for row in found
        for field in ("seconds", "peer_seconds", "events_per_second", "ratio")
    )
    assert main(["watermarks", "--events", "200"]) == 0
    assert capsys.readouterr().out.splitlines()[4].split() == [
        "rows",
        "keys",
        "per",
        "key",
        "events/s",
        "peer",
        "ratio",
        "against",
    ]


def test_the_loop_that_the_tracker_is_compared_with_finds_the_same_watermark() -> None:
    names, random = [f"p{number}" for number in range(20)], np.random.default_rng(1)
    ours, peer = TrackerRunner(), LoopRunner()
    for turn in range(10):
        values = random.integers(0, 50, 20) + 5 * turn
        assert ours.update(names, values, turn) == peer.update(names, values, turn)


@pytest.mark.parametrize(
    "words",
    [
        ["kernel", "--case", "nothing"],
        ["engine"],
        ["kernel", "--events", "0"],
        ["watermarks", "--partitions", "0"],
        ["kernel", "--partitions", "5"],
        ["watermarks", "--case", "session"],
        [],
    ],
)
def test_a_wrong_word_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(words)
    assert stopped.value.code == 2
    assert "usage: python -m bench" in capsys.readouterr().err


def test_traffic_is_the_same_in_every_run_and_stays_in_its_minute() -> None:
    traffic = Traffic(keys=10, rows=500)
    first, again = (deliver(traffic.minute(), 2) for _ in range(2))
    assert [d.rows for d in first] == [d.rows for d in again]
    assert len(first) == PER_MINUTE
    assert [d.now for d in first] == [
        START + 2 * MINUTE + n * MINUTE // PER_MINUTE for n in range(1, PER_MINUTE + 1)
    ]
    starts = {start for d in first for start in d.starts.to_pylist()}
    assert starts <= {START + MINUTE, START + 2 * MINUTE}


def test_late_panes_and_retractions_are_part_of_what_is_measured() -> None:
    runner = OperatorRunner(aggregated(windowed(tumbling("1 minute")).retracting()))
    minute = Traffic(keys=20, rows=2_000, stragglers=30).minute()
    for number in range(4):
        runner.take(deliver(minute, number))
    runner.operator.timeout(START + 10 * MINUTE)
    stats = runner.operator.stats()
    assert stats["panes_late"] > 0
    assert stats["retractions"] > 0


@pytest.mark.parametrize(
    ("window", "windows"), [(tumbling("1 minute"), 1), (hopping("2 minutes", "1 minute"), 2)]
)
def test_bytes_are_counted_for_every_key_in_every_window(window, windows: int) -> None:
    runner = OperatorRunner(aggregated(windowed(window)))
    runner.take([distinct_keys(0, 5), distinct_keys(0, 5)])
    wiring = runner.operator.operator.wiring
    assert wiring is not None
    assert wiring.slice_buffer is not None
    assert runner.bytes_per_cell == wiring.slice_buffer.slices.nbytes / (5 * windows)


@pytest.mark.kafka
def test_streams_are_one_line_of_json_a_size_of_transactions(
    kafka, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["streams", "--events", "100", "--json", "--brokers", kafka.bootstrap_servers]) == 0
    *rows, last = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert [(found["name"], found["synchronous"], found["segments"]) for found in rows[:5]] == [
        ("sqlite_1", "normal", 1),
        ("sqlite_100", "normal", 1),
        ("sqlite_1000", "normal", 1),
        ("sqlite_1000", "normal", 4),
        ("sqlite_10000", "normal", 1),
    ]
    assert {found["synchronous"] for found in rows[5:]} == {"full"}
    assert (last["name"], last["aim"], {found["aim"] for found in rows}) == ("kafka", 0.8, {0.5})
    for found in [*rows, last]:
        assert all(
            found[field] > 0 for field in ("ratio", "events_per_second", "peer_events_per_second")
        )

"""The race on Spark prints what it promises and finds out when it is not fair; nothing here looks
at a time.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from bench import kafka, main, spark_check, spark_data, spark_job, spark_sides, spark_usage
from bench import spark as race
from bench.spark_data import Events
from bench.spark_job import Job
from bench.spark_sides import Batch, Shape
from bench.traffic import SECOND, SPAN, START, TIME
from tidegate.errors import SetupError, SpecError
from tidegate.spec.windows import tumbling

ORDINARY = {
    "text_200k": 3,
    "text_200k_direct": 6,
    "text_10k": 1.0,
    "text_10k_direct": 1.6,
    "text_1k": 0.8,
    "text_1k_direct": 1.3,
    "text_state": 0.4,
    "few_keys_1k": 1.2,
    "few_keys_10k": 1.2,
    "small_batch": 1.0,
    "small_batch_direct": 1.0,
    "cold_start": 1.4,
    "first_batch": 2.1,
    "csv_all": 1.5,
    "csv_direct": 2.5,
    "json_all": 1.5,
    "json_direct": 2.5,
}
NAMES = [
    *ORDINARY,
    "tumbling_100k",
    "tumbling_1m",
    "direct_100k",
    "direct_1m",
    "sliding",
    "session",
    "sliding_plain",
    "session_plain",
    "keys_10k",
    "keys_100k",
    "keys_1m",
    "keys_10m",
    "few_keys_floor",
    "text_floor",
    "small_batch_floor",
]
JOINS = ["interval", "interval_hot", "interval_plain", "interval_dense"]
SMALL = Events(files=6, rows=200, keys=100, is_late=False)


def fast(side: str, events: int = 400, panes: int = 7, speed: float = 2.0) -> dict[str, Any]:
    rate = 1000.0 * (speed if side == "tidegate" else 1.0)
    return spark_sides.Run(
        events, panes, 0, rate, 10.0, 20.0, 15.0, 1.0, {"jvm": 1, "workers": 2, "driver": 3}, 50, 0
    ).to_dict()


class Pretended:
    """Does jobs without Spark, and keeps them."""

    def __init__(
        self,
        events: Callable[[str], int] = lambda side: 400,
        panes: Callable[[str], int] = lambda side: 7,
    ) -> None:
        self.jobs: list[Job] = []
        self._events, self._panes = events, panes

    def __call__(self, job: Job, say: Callable[[str], None]) -> dict[str, Any]:
        self.jobs.append(job)
        return (
            {"panes": 9}
            if job.side is None
            else fast(job.side, self._events(job.side), self._panes(job.side))
        )


# The whole race


@pytest.mark.slow
def test_a_case_is_one_line_of_json_after_both_sides_were_found_equal(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    racing = race.Racing(
        lambda job, say: spark_job.do(job, spark, say), total=1_200, files=4, keys=40, warm=1
    )
    raced = ["tumbling_1m", "direct_1m"]
    race.bench(race.named(",".join(raced)), racing, as_json=True)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [found["name"] for found in lines] == raced
    for found in lines:
        assert found["ratio"] > 0
        assert math.isfinite(found["ratio"])
        assert (found["events"], found["files"], found["keys"]) == (1_200, 4, 40)
        assert found["checked_panes"] > 0
        assert found["state_ratio"] > 0
        for side in ("tidegate", "spark"):
            assert found["events_per_second"][side] > 0
            assert 0 < found["batch_ms"][side]["p50"] <= found["batch_ms"][side]["p99"]
            assert found["event_to_pane_ms"][side] > 0
            assert found["state_bytes"][side] > 0
            assert found["memory_bytes"][side]["jvm"] > 0
        assert found["memory_bytes"]["tidegate"]["workers"] > 0
        assert found["panes"]["tidegate"] > 0
    by_name = {found["name"]: found for found in lines}
    assert by_name["direct_1m"]["source"] == "direct"
    assert (
        by_name["direct_1m"]["batch_ms"]["spark"] == by_name["tumbling_1m"]["batch_ms"]["spark"]
    ), "the peer of both is one run"


@pytest.mark.slow
def test_the_floor_passes_all_rows_to_python_and_keeps_nothing(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    racing = race.Racing(
        lambda job, say: spark_job.do(job, spark, say), total=1_200, files=4, keys=40, warm=0
    )
    race.bench(race.named("few_keys_floor"), racing, as_json=True)
    (found,) = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert found["aim"] is None
    assert found["ratio"] > 0
    assert found["events_per_second"].keys() == {"floor", "spark"}
    assert found["state_bytes"]["floor"] == 0 < found["state_bytes"]["spark"]


@pytest.mark.slow
def test_joins_are_raced_over_the_same_pairs(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    racing = race.Racing(
        lambda job, say: spark_job.do(job, spark, say), total=2_400, files=4, keys=60, warm=0
    )
    raced = ["interval_hot"]
    race.bench(race.named(",".join(raced), race.JOINS), racing, as_json=True)
    said = capsys.readouterr()
    lines = [json.loads(line) for line in said.out.splitlines()]
    assert [found["name"] for found in lines] == raced
    assert [found["aim"] for found in lines] == [1.5]
    for found in lines:
        assert found["ratio"] > 0
        assert math.isfinite(found["ratio"])
        assert (found["events"], found["files"], found["keys"]) == (4_800, 4, 60)
        assert found["pairs"]["tidegate"] == found["pairs"]["spark"] > 0
        assert found["late_events"] == {"tidegate": 0, "spark": 0}
        assert found["checked_pairs"] > 0
        assert found["state_ratio"] > 0
        assert found["event_to_pane_ms"] == {"tidegate": None, "spark": None}
    assert [found["source"] for found in lines] == ["direct"]
    assert [found["hot"] for found in lines] == [0.2]
    assert "interval_hot: spark batch 1: 2,400 events" in said.err


@pytest.mark.slow
def test_a_run_in_a_process_of_its_own_tells_what_its_workers_did(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = [
        "spark",
        "--cases",
        "tumbling_100k",
        "--events",
        "800",
        "--files",
        "4",
        "--memory",
        "1g",
        "--cores",
        "2",
        "--json",
        "--profile",
    ]
    assert main(words) == 0
    said = capsys.readouterr()
    (found,) = (json.loads(line) for line in said.out.splitlines())
    assert found["ratio"] is None
    assert found["events_per_second"]["tidegate"] > 0
    assert "tidegate batch 1: 400 events" in said.err
    for part, function in {"edge": "pack", "operator": "handleInputRows"}.items():
        report = said.err.partition(f"== {part}, by cumulative")[2].partition("\n==")[0]
        assert re.search(rf"\({function}\)", report), part


def test_a_run_that_cannot_start_says_why() -> None:
    with pytest.raises(SetupError, match=r"(?s)exited with status \d.*tidegate doctor"):
        spark_job.apart(Job(Shape("tumbling"), SMALL, memory="nonsense"), lambda line: None)


def test_a_job_survives_being_told_to_another_process() -> None:
    job = Job(
        Shape("interval", direct=True),
        race.JOINS["interval_hot"].data,
        "tidegate",
        "folder",
        cores=2,
    )
    assert Job.from_text(json.dumps(asdict(job))) == job


# Equality


@pytest.mark.slow
def test_sides_that_differ_are_found(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(spark_sides.WINDOWS, "tumbling", lambda: tumbling("30 seconds"))
    with pytest.raises(
        spark_check.UnequalError, match=r"emit different tumbling panes: .* panes of Tidegate"
    ):
        spark_check.check(spark, Shape("tumbling"), SMALL)


def panes(n: int = 2, total: float = 0.3, top: float = 0.2) -> pa.Table:
    times = {
        name: pa.array([at] * 2, TIME)
        for name, at in (("window_start", START), ("window_end", START + 60 * SECOND))
    }
    return pa.table({"key": [1, 2], **times, "n": [1, n], "total": [0.1, total], "top": [0.1, top]})


def test_the_order_of_panes_and_of_additions_does_not_matter() -> None:
    assert spark_check.difference(panes(total=0.1 + 0.2), panes(total=0.3).take([1, 0])) is None


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (panes(n=3), "`n` differs in 1 panes"),
        (panes(total=0.301), "`total` differs in 1 panes"),
        (panes(top=0.21), "`top` differs in 1 panes"),
        (panes().slice(1), "2 panes of Tidegate, 1 of Spark"),
        (panes().set_column(0, "key", [[1, 3]]), "`key` differs in 1 panes"),
    ],
)
def test_what_differs_is_told(other: pa.Table, words: str) -> None:
    assert words in (spark_check.difference(panes(), other) or "")


def test_pairs_are_compared_by_both_of_their_rows() -> None:
    times = {f"{side}_ts": pa.array([START, START], TIME) for side in ("left", "right")}
    pairs = pa.table({"key": [1, 1], **times, "left_value": [0.1, 0.2], "right_value": [0.3, 0.4]})
    compared = spark_check.Compared.of(Shape("interval"))
    assert list(compared.columns) == ["key", "left_ts", "left_value", "right_ts", "right_value"]
    assert spark_check.difference(pairs, pairs.take([1, 0]), compared, "pairs") is None
    other = pairs.set_column(4, "right_value", [[0.4, 0.3]])
    assert "`right_value` differs in 2 pairs" in (
        spark_check.difference(pairs, other, compared, "pairs") or ""
    )
    assert "2 pairs of Tidegate, 1 of Spark" in (
        spark_check.difference(pairs, pairs.slice(1), compared, "pairs") or ""
    )


def test_equality_of_nothing_is_not_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_check, "our_panes", lambda *_: panes().slice(2))
    monkeypatch.setattr(spark_check, "their_panes", lambda *_: panes().slice(2))
    with pytest.raises(spark_check.UnequalError, match="neither side emitted any"):
        spark_check.check(None, Shape("tumbling"), SMALL)


def test_a_side_that_lost_events_has_no_time() -> None:
    racing = race.Racing(
        Pretended(lambda side: 400 if side == "tidegate" else 399), total=400, files=4
    )
    with pytest.raises(SpecError, match="spark read 399 of 400 events"):
        list(racing.race(race.named("session")))


def test_a_side_of_a_join_that_lost_pairs_has_no_time() -> None:
    racing = race.Racing(
        Pretended(lambda side: 800, lambda side: 7 if side == "tidegate" else 8), total=400, files=4
    )
    with pytest.raises(SpecError, match="interval_hot: 7 pairs of tidegate and 8 pairs of spark"):
        list(racing.race(race.named("interval_hot", race.JOINS)))


# What is raced


def test_cases_that_share_something_do_it_once() -> None:
    pretended = Pretended()
    found = list(
        race.Racing(pretended, total=400, files=4).race(
            race.named("tumbling_100k,keys_100k,direct_100k")
        )
    )
    done = [(job.side, job.shape.direct) for job in pretended.jobs]
    assert done == [
        (None, False),
        ("tidegate", False),
        ("spark", False),
        (None, True),
        ("tidegate", True),
    ]
    assert [raced.ratio for raced in found] == [2.0] * 3
    assert not Path(pretended.jobs[1].folder).exists(), "the events are removed"


@pytest.mark.parametrize(
    ("given", "wanted"), [({}, 60), ({"total": 3_000}, 60), ({"warm": 0}, 0), ({"warm": 9}, 9)]
)
def test_both_sides_warm_up_alike(
    given: dict[str, int], wanted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def do(job: Job, say: Callable[[str], None]) -> dict[str, Any]:
        warmed[job.side] = job.warm
        return {"panes": 9} if job.side is None else fast(job.side, job.events.total)

    warmed: dict[str | None, int] = {}
    monkeypatch.setattr(spark_data, "write", lambda folder, events: folder.mkdir(parents=True))
    list(race.Racing(do, **given).race(race.named("tumbling_100k")))
    assert warmed == {None: 0, "tidegate": wanted, "spark": wanted}


def test_people_get_a_table_with_the_aim_beside_the_ratio(
    capsys: pytest.CaptureFixture[str],
) -> None:
    race.bench(
        race.named("direct_100k,keys_10k"),
        race.Racing(Pretended(), total=400, files=4),
        as_json=False,
    )
    said = capsys.readouterr()
    head, _, first, second = said.out.splitlines()
    assert head.split()[:3] == ["case", "ratio", "aim"]
    assert first.split()[:3] == ["direct_100k", "2.00", "3"]
    assert first.endswith("under")
    assert second.split()[:2] == ["keys_10k", "2.00"]
    assert "generating 4 files of 100 events" in said.err


@pytest.mark.parametrize(
    ("name", "given", "wanted"),
    [
        ("tumbling_1m", {}, Events(20, 1_000_000, 1_000_000)),
        ("sliding", {}, Events(8, 1_000_000, 10_000)),
        ("tumbling_1m", {"total": 8_500_000}, Events(8, 1_000_000, 1_000_000)),
        ("sliding", {"total": 20_000_000}, Events(8, 1_000_000, 10_000)),
        ("tumbling_1m", {"total": 600_000}, Events(6, 100_000, 100_000)),
        ("keys_10m", {"total": 600_000, "keys": 5}, Events(6, 100_000, 5)),
        ("keys_10k", {"total": 60}, Events(6, 10, 1)),
        ("keys_10k", {"total": 30_000_000, "files": 10}, Events(10, 3_000_000, 10_000)),
        ("keys_10k", {"files": 40}, Events(40, 1_000_000, 10_000)),
    ],
)
def test_fewer_events_are_fewer_files_then_smaller_ones(
    name: str, given: dict[str, int], wanted: Events
) -> None:
    assert (
        race.CASES[name].events(given.get("total"), given.get("files"), given.get("keys")) == wanted
    )


def test_a_side_of_a_join_has_all_of_the_events_and_a_minute_an_event_of_each_key() -> None:
    full = race.JOINS["interval"].events(None, None, None)
    assert (full.files * full.rows, full.keys, full.total) == (10_000_000, 100_000, 20_000_000)
    for given in (full, race.JOINS["interval_hot"].events(1_200_000, None, None)):
        assert given.rows / given.keys == given.span / (60 * SECOND)
        assert given.total == 2 * given.files * given.rows


def test_all_events_of_the_hot_key_are_on_one_side(tmp_path: Path) -> None:
    spark_data.write(
        tmp_path, Events(4, 5_000, 1_000, is_late=False, inputs=("left", "right"), hot=0.2)
    )
    hot = [
        int((pq.read_table(tmp_path / side)["key"].to_numpy() == spark_data.HOT).sum())
        for side in ("left", "right")
    ]
    assert sum(hot) / 40_000 == pytest.approx(0.2, abs=0.01)
    assert hot[1] < 60


@pytest.mark.parametrize(
    ("name", "mine", "other", "ratio", "met"),
    [
        ("text_1k", {"events_per_second": 8.0}, {"events_per_second": 10.0}, 0.8, True),
        ("text_state", {"state": 50}, {"state": 100}, 0.5, False),
        ("small_batch", {"p50": 100.0}, {"p50": 110.0}, 0.909, True),
        ("first_batch", {"first": 30.0}, {"first": 10.0}, 3.0, False),
        ("cold_start", {"process_seconds": 13.0}, {"process_seconds": 10.0}, 1.3, True),
        ("csv_all", {"seconds": 10.0}, {"seconds": 14.0}, 1.4, False),
        ("csv_direct", {"events_per_second": 5.0}, {"events_per_second": 2.0}, 2.5, True),
    ],
)
def test_a_case_compares_what_it_is_about(
    name: str, mine: dict[str, Any], other: dict[str, Any], ratio: float, met: bool
) -> None:
    case = race.CASES[name]
    assert case.aim == ORDINARY[name]
    plain = spark_job.run_of(fast("tidegate"))
    runs = {"tidegate": replace(plain, **mine), case.peer: replace(plain, **other)}
    raced = race.Raced(case, case.data, runs, 1)
    assert raced.ratio == pytest.approx(ratio, abs=0.001)
    assert raced.is_met == met
    assert raced.to_dict()["peer"] == ("plain" if name == "csv_direct" else "spark")


def test_new_sessions_do_not_warm_up_and_text_files_race_against_ourselves() -> None:
    pretended = Pretended()
    list(race.Racing(pretended, total=400, files=4).race(race.named("csv_direct,cold_start")))
    runs = [
        (job.side, job.shape.format, job.shape.direct, job.warm)
        for job in pretended.jobs
        if job.side is not None
    ]
    assert runs == [
        ("tidegate", "csv", True, 0),
        ("tidegate", "csv", False, 0),
        ("tidegate", "parquet", False, 0),
        ("spark", "parquet", False, 0),
    ]


@pytest.mark.parametrize("form", ["csv", "json"])
def test_text_files_have_the_events_of_parquet_files(tmp_path: Path, form: str) -> None:
    events = Events(2, 300, 40, text=True, late=0.1)
    spark_data.write(tmp_path / "parquet", events)
    spark_data.write(tmp_path / form, replace(events, format=form))
    expected = pq.read_table(tmp_path / "parquet" / "0001.parquet")
    path = tmp_path / form / f"0001.{form}"
    found = (
        arrow_csv.read_csv(path)
        if form == "csv"
        else pa.Table.from_pylist([json.loads(line) for line in path.read_text().splitlines()])
    )
    assert found.select(["key", "value", "note"]).equals(expected.select(["key", "value", "note"]))
    times = found["ts"].cast(pa.timestamp("us", "UTC"))
    assert times.cast(pa.int64()).equals(expected["ts"].cast(pa.int64()))
    assert {len(key) for key in found["key"].to_pylist()} == {22}


def test_messages_of_kafka_are_produced_once_for_both_sides() -> None:
    produced: list[Events] = []

    def topics(events: Events) -> str:
        produced.append(events)
        return "localhost:9092/events"

    pretended = Pretended()
    racing = race.Racing(pretended, total=400, files=4, warm=3, topics=topics)
    assert [raced.case.name for raced in racing.race(list(kafka.CASES.values()))] == [
        "kafka_json",
        "kafka_early",
    ]
    assert {job.folder for job in pretended.jobs} == {"localhost:9092/events"}
    runs = [(job.side, job.shape.early) for job in pretended.jobs if job.side is not None]
    assert runs == [("tidegate", False), ("spark", False), ("tidegate", True)]
    assert [(case.name, case.aim) for case in kafka.CASES.values()] == [
        ("kafka_json", 4),
        ("kafka_early", 0.5),
    ]


def test_unknown_cases_and_options_of_other_parts_are_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert list(race.CASES) == NAMES
    assert [case.name for case in race.named(None)] == NAMES[: NAMES.index("sliding_plain")]
    assert list(race.JOINS) == JOINS
    with pytest.raises(SpecError, match="unknown benchmark case `rolling`"):
        main(["spark", "--cases", "session,rolling"])
    with pytest.raises(SpecError, match=r"case `session`\. Hint: use one of interval, "):
        main(["joins", "--cases", "session"])
    for words in (
        ["kernel", "--files", "3"],
        ["spark", "--case", "session"],
        ["watermarks", "--profile"],
    ):
        with pytest.raises(SystemExit):
            main(words)
        assert "means nothing to" in capsys.readouterr().err


def test_events_are_in_disorder_and_only_some_are_too_late(tmp_path: Path) -> None:
    for is_late in (True, False):
        spark_data.write(tmp_path / str(is_late), Events(3, 2_000, 10, is_late=is_late))
        paths = sorted((tmp_path / str(is_late)).iterdir(), key=lambda path: path.stat().st_mtime)
        newest, late = START, 0
        for number, path in enumerate(paths):
            times = pq.read_table(path)["ts"].cast(pa.int64()).to_numpy()
            assert (np.diff(times) < 0).any()
            assert times.max() < START + (number + 1) * SPAN
            late += int((times < newest - spark_data.DELAY).sum())
            newest = max(newest, int(times.max()))
        assert (late > 0) == is_late


# What a run measures


def batch(number: int, events: int, newest: int | None, watermark: int | None) -> Batch:
    return Batch(
        number,
        events,
        begin=10.0 * number,
        milliseconds=1000 + 100 * number,
        panes=1,
        newest=newest,
        watermark=watermark,
    )


def test_the_first_batch_and_those_without_events_are_not_counted() -> None:
    batches = [
        batch(0, 100, 20 * SECOND, None),
        batch(1, 100, 40 * SECOND, None),
        batch(2, 200, 60 * SECOND, None),
        batch(3, 0, None, None),
    ]
    found = spark_sides.measured(batches, spark_usage.Usage(), 5, 0, 0)
    assert (found.events, found.panes, found.state) == (400, 4, 5)
    assert found.events_per_second == pytest.approx(300 / (1.1 + 1.2))
    assert (found.p50, found.cpu, found.event_to_pane) == (1150, None, None)


def test_a_pane_is_out_when_the_batch_ends_that_knows_of_its_last_event() -> None:
    ends = [20, 40, 60]
    same = [batch(n, 10, at * SECOND, (at - 10) * SECOND) for n, at in enumerate(ends)]
    assert spark_sides.event_to_pane(same, same[1:]) == pytest.approx((1100 + 1200) / 2)
    marks = [None, 10, 30]
    later = [
        batch(n, 10, at * SECOND, None if mark is None else mark * SECOND)
        for n, (at, mark) in enumerate(zip(ends, marks, strict=True))
    ]
    assert spark_sides.event_to_pane(
        [*later, batch(3, 0, None, 50 * SECOND)], later[1:]
    ) == pytest.approx((11_200 + 11_300) / 2)


def test_memory_is_that_of_all_who_descend() -> None:
    known = [
        spark_usage.Process(pid, parent, "x", 1, 0.0)
        for pid, parent in [(4, 3), (3, 2), (2, 1), (9, 1)]
    ]
    assert sorted(process.pid for process in spark_usage.descendants(2, known)) == [2, 3, 4]


def test_memory_is_told_apart_by_role_and_a_program_that_is_just_started_has_none() -> None:
    named = [
        (1, "python3", 5),
        (2, "java", 100),
        (3, "python3.11", 7),
        (4, "python", 8),
        (5, "Executor task l", 100),
    ]
    family = [spark_usage.Process(pid, 0, name, rss, 0.0) for pid, name, rss in named]
    assert spark_usage.memory(family, 1) == {"driver": 5, "jvm": 100, "workers": 15}

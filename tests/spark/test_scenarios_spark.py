"""Scenarios on Spark: they end as they do embedded, a changed number is noticed, and what has no
operators is not supported.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import yaml

import tidegate as tg
from conformance import (
    EXTENSION,
    FAIL,
    FOLDER,
    KINDS,
    PASS,
    UNSUPPORTED,
    Scenario,
    load,
    parse,
    run,
)
from support.mutations import changed, expectations
from tidegate.cli import main
from tidegate.scenarios.spark_runtime import Performance, perform
from tidegate.scenarios.spark_script import Command, Script, Step
from tidegate.spark import sinks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# All look at one long play, which one process is enough for.
pytestmark = pytest.mark.xdist_group("scenarios on Spark")
FILES = sorted(FOLDER.glob("*.yaml"))
OPERATED = {name for name, kind in KINDS.items() if kind.on is not None}
SCENARIOS = {s.id: s for path in FILES for s in load(path) if s.kind in OPERATED}
RAW = {
    item["id"]: item
    for path in FILES
    for item in yaml.safe_load(path.read_text("utf-8"))
    if item["id"] in SCENARIOS
}
AGAIN = ("flink.window.", "flink.sqljoin.", "beam.reducefn.", "tidegate.join.")
"""Those that are played again with one shard each, and by workers that keep operators from batch to
batch.
"""
CHAINS = (
    "spark.multi.window_then_window",
    "spark.multi.three_levels",
    "spark.multi.dedup_then_window",
    "spark.multi.windows_then_join",
)
"""Chains of Spark's own operators: they are replayed embedded only."""


@pytest.fixture(scope="module")
def performances(spark: SparkSession) -> dict[str, Performance]:
    return {one.scenario.id: one for one in perform(SCENARIOS.values(), spark)}


def ends(scenario: Scenario) -> tuple[str, str]:
    return scenario.id, run(scenario).status


def test_all_kinds_with_operators_are_played() -> None:
    assert {scenario.kind for scenario in SCENARIOS.values()} == OPERATED


def test_scenarios_end_as_they_do_embedded(performances: dict[str, Performance]) -> None:
    found = [one.outcome() for one in performances.values()]
    wanted = dict(map(ends, SCENARIOS.values()))
    assert len(found) == len(wanted)
    wanted |= dict.fromkeys(CHAINS, UNSUPPORTED)
    assert [ended for ended in found if ended.status != wanted[ended.id]] == []


def test_scenarios_end_so_with_one_shard_and_kept_operators(spark: SparkSession) -> None:
    chosen = [scenario for scenario in SCENARIOS.values() if scenario.id.startswith(AGAIN)]
    found = {
        one.scenario.id: one.outcome().status
        for one in perform(chosen, spark, shards=1, keeps=True)
    }
    assert len(found) > 30
    assert found == dict(map(ends, chosen))


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_changed_number_is_noticed(name: str, performances: dict[str, Performance]) -> None:
    """What is expected is no part of what is played, so one performance can be judged by changed
    scenarios, too.
    """
    if performances[name].outcome().status != PASS or SCENARIOS[name].must_fail:
        return
    paths = expectations(RAW[name])
    for path in paths[:: max(1, len(paths) // 3)]:
        (twin,) = parse(yaml.safe_dump([changed(RAW[name], path)], sort_keys=False))
        assert performances[name].outcome(twin).status == FAIL, path


@pytest.mark.parametrize("kind", sorted(set(KINDS) - OPERATED))
def test_what_has_no_operators_is_not_supported(kind: str, spark: SparkSession) -> None:
    (performance,) = perform([Scenario("mine.one", kind, extension=EXTENSION)], spark)
    assert performance.outcome().status == UNSUPPORTED
    assert performance.outcome().detail == f"kind `{kind}` does not involve a runtime"


@pytest.mark.parametrize(
    ("change", "status", "said"),
    [
        (lambda s: s.update(kind="riddle"), UNSUPPORTED, "kind `riddle` is not one of"),
        (lambda s: s["config"].update(colour="red"), UNSUPPORTED, "unknown key `colour`"),
        (lambda s: s["config"].update(plan=[{"watermark": -1}]), FAIL, "refused: "),
        (
            lambda s: s.update(
                kind="join",
                config={"window": {"type": "session", "gap": 5}},
                steps=[{"left": {"t": 1}}],
            ),
            FAIL,
            "refused: ",
        ),
    ],
)
def test_what_cannot_be_played(
    change: Callable[[dict[str, Any]], Any], status: str, said: str, spark: SparkSession
) -> None:
    item = json.loads(json.dumps(RAW["spark.agg.append"]))
    change(item)
    (performance,) = perform(parse(yaml.safe_dump([item], sort_keys=False)), spark)
    assert performance.outcome().status == status
    assert said in performance.outcome().detail


MINE = """
- id: mine.two_keys
  kind: panes
  config: {window: {type: fixed, size: 10}, agg: sum, trigger: AfterWatermark()}
  steps:
    - events: [{t: 1, k: a, v: 1}, {t: 2, k: b, v: 2}, {t: 3, k: a, v: 3}]
    - watermark: 10
    - expect: [{window: [0, 10], k: a, v: 4}, {window: [0, 10], k: b, v: 2}]
- {id: mine.wrong, kind: panes_by_window, config: {window: {type: session, gap: 5}, trigger: AfterWatermark()}, data: [[1, 1], [2, 2]], expect: [{window: [1, 6], panes: [[1, 2]]}]}
- {id: mine.assigned, kind: assign, config: {window: {type: fixed, size: 5}}, cases: [{t: 7, windows: [[5, 10]]}]}
"""


@pytest.mark.usefixtures("spark")
def test_the_command_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(MINE, "utf-8")
    assert main(["replay", "--runtime", "spark", str(path)]) == 1
    shown = capfd.readouterr().out.splitlines()
    assert shown[0] == "pass        mine.two_keys"
    assert shown[1].startswith("fail        mine.wrong: bundles of 1: expected")
    assert shown[2:] == [
        "unsupported mine.assigned: kind `assign` is not one of cogroup, join, panes, panes_by_window",
        "3 scenarios: 1 passed, 1 failed, 1 unsupported",
    ]


def test_a_script_is_a_source_of_a_pipeline(spark: SparkSession, tmp_path: Path) -> None:
    start = int(dt.datetime(2024, 5, 1, 12, tzinfo=dt.UTC).timestamp()) * 1_000_000
    schema = pa.schema([("user", pa.string()), ("ts", pa.timestamp("us", "UTC"))])

    def rows(*pairs: tuple[str, int]) -> dict[int, pa.Table]:
        columns = {
            "user": [user for user, _ in pairs],
            "ts": [start + second * 1_000_000 for _, second in pairs],
        }
        return {
            0: (
                pa.table(columns, pa.schema([("user", pa.string()), ("ts", pa.int64())])).cast(
                    schema
                )
            )
        }

    script = Script(
        schema,
        [
            Step(rows(("ann", 5), ("bob", 50)), (Command(clock=start),)),
            Step({}, (Command(clock=start + 90_000_000, watermark=start + 60_000_000),)),
            Step(rows(("ann", 61)), (Command(clock=start + 95_000_000, end=True),)),
        ],
    )
    out = sinks.memory()
    panes = (
        tg.stream(script, time="ts", key="user", watermark=tg.explicit())
        .window(tg.tumbling("1 minute"))
        .aggregate(n=tg.count())
    )
    query = panes.write(out, checkpoint=str(tmp_path / "checkpoint"), trigger="available_now")
    query.await_termination()
    found = sorted(
        (row["user"], row["window_start"].minute, row["n"], row["timing"], row["emitted_at"].second)
        for row in out.rows()
    )
    assert found == [
        ("ann", 0, 1, "on_time", 30),
        ("ann", 1, 1, "on_time", 35),
        ("bob", 0, 1, "on_time", 30),
    ]
    assert [progress.batch_id for progress in query.recent_progress] == [0, 1, 2]

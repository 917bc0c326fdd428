"""Merges on Spark: streams with columns of their own come together as they do embedded, and what
does not fit is refused before the start.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import tidegate as tg
from conformance import FOLDER, PASS, load
from support.spark_streams import BASE, SECOND, UTC, Feed, clicks, finished, netted
from tidegate.errors import SpecError
from tidegate.scenarios.spark_runtime import perform

VIEWS = pa.schema({"user": pa.string(), "seen_at": UTC, "url": pa.string()})
VIEWS_DDL = "user string, seen_at timestamp, url string"


def views(*rows: tuple[str, float, str]) -> list[dict[str, Any]]:
    return [
        {"user": user, "seen_at": BASE + int(at * SECOND), "url": url} for user, at, url in rows
    ]


def net() -> Any:
    """What was spent less the number of views, each input with a function of its own."""
    return tg.python(
        zero=0,
        add={
            "orders": lambda state, row: state + row["price"],
            "views": lambda state, row: state - 1,
        },
        merge=lambda left, right: left + right,
        result=lambda state: state,
        result_type=pa.float64(),
    )


def test_streams_with_different_columns_are_merged(spark, tmp_path):
    orders, seen = Feed(tmp_path / "orders"), Feed(tmp_path / "views", VIEWS)
    orders.put(clicks(("a", 1, 2.0), ("b", 2, 4.0)))
    orders.put(clicks(("a", 30, 1.0), ("b", 500, 1.0)))
    seen.put(views(("a", 5, "x"), ("c", 6, "z")))
    seen.put(views(("a", 3, "y"), ("c", 70, "z")))
    merged = tg.merge(
        orders=tg.stream(
            orders.stream(spark), time="ts", key="user", watermark=tg.bounded("10 seconds")
        ),
        views=tg.stream(
            seen.stream(spark, VIEWS_DDL),
            time="seen_at",
            key="user",
            watermark=tg.bounded("10 seconds"),
        ),
    )
    panes = merged.window(tg.tumbling("1 minute")).aggregate(
        spent=tg.sum("price", of="orders"),
        urls=tg.list_("url", of="views"),
        n=tg.count(),
        net=net(),
    )
    run = finished(panes, tmp_path / "ck", shards=2)
    assert netted(run.panes, ["user"], "spent", "urls", "n", "net") == {
        ("a", 0): (3.0, ["y", "x"], 4, 1.0),
        ("b", 0): (4.0, [], 1, 4.0),
        ("c", 0): (None, ["z"], 1, -1.0),
    }, "the second input is at 70 seconds"
    assert run.late == []


def test_what_does_not_fit_together_is_refused(spark):
    orders = tg.stream(
        spark.createDataFrame([], "user string, ts timestamp, v double"), time="ts", key="user"
    )
    texts = tg.stream(
        spark.createDataFrame([], "user string, ts timestamp, v string"), time="ts", key="user"
    )
    with pytest.raises(SpecError, match="Hint: cast or rename one of them"):
        _ = (
            tg.merge(orders=orders, texts=texts)
            .window(tg.tumbling("1 minute"))
            .aggregate(n=tg.count())
            .df
        )
    named = tg.stream(
        spark.createDataFrame([], "user string, ts timestamp, input string"), time="ts", key="user"
    )
    with pytest.raises(
        SpecError, match="has a column `input`, which in a merge is the name of the input"
    ):
        _ = (
            tg.merge(orders=orders, named=named)
            .window(tg.tumbling("1 minute"))
            .aggregate(n=tg.count())
            .df
        )
    plain = tg.stream(spark.createDataFrame([], "user string, ts timestamp"), time="ts", key="user")
    with pytest.raises(
        SpecError, match="`total` reads column `v`, but the input `plain` has `user`, `ts`"
    ):
        _ = (
            tg.merge(orders=orders, plain=plain)
            .window(tg.tumbling("1 minute"))
            .aggregate(total=tg.sum("v", of="plain"))
            .df
        )


def test_scenarios_of_merges_pass(spark):
    found = [
        scenario
        for name in ("malhar", "merges_more")
        for scenario in load(FOLDER / f"{name}.yaml")
        if scenario.kind == "cogroup"
    ]
    assert len(found) == 5
    assert [
        ended for ended in (one.outcome() for one in perform(found, spark)) if ended.status != PASS
    ] == []

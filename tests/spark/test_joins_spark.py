"""Joins on real Spark: each kind against Spark's own batch join, restarts, sinks that a batch is
written to again, and trees of operators.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it
from test_sinks_in_queries import Restarted
from test_state_command import shown

import tidegate as tg
from support.spark_streams import BASE, SECOND, UTC, Feed, Row, finished
from tidegate.errors import SpecMismatchError

NUMBERS = count()
ORDERS = pa.schema({"id": pa.int64(), "ts": UTC, "price": pa.float64()})
SHIPMENTS = pa.schema({"id": pa.int64(), "ts": UTC, "carrier": pa.string()})
ORDERS_DDL, SHIPMENTS_DDL = (
    "id long, ts timestamp, price double",
    "id long, ts timestamp, carrier string",
)
HOWS = {
    "inner": "inner",
    "left": "left",
    "right": "right",
    "full": "full",
    "semi": "left_semi",
    "anti": "left_anti",
}
END = 10**6
"""The second of the rows behind which nothing waits; their id is below 0."""


def orders(*rows: tuple[int | None, float, float]) -> list[Row]:
    return [{"id": id, "ts": BASE + int(at * SECOND), "price": price} for id, at, price in rows]


def shipments(*rows: tuple[int | None, float, str]) -> list[Row]:
    return [
        {"id": id, "ts": BASE + int(at * SECOND), "carrier": carrier} for id, at, carrier in rows
    ]


class Shop:
    """Two folders of files, and the streams over them."""

    def __init__(self, folder: Path) -> None:
        self.orders, self.shipments = (
            Feed(folder / "orders", ORDERS),
            Feed(folder / "shipments", SHIPMENTS),
        )

    def put(self, ordered: Sequence[Row], shipped: Sequence[Row]) -> None:
        self.orders.put(ordered)
        self.shipments.put(shipped)

    def streams(self, spark, **more: Any) -> tuple[tg.Stream, tg.Stream]:
        frames = self.orders.stream(spark, ORDERS_DDL), self.shipments.stream(spark, SHIPMENTS_DDL)
        left, right = (
            tg.stream(frame, time="ts", watermark=tg.bounded("5 seconds"), **more)
            for frame in frames
        )
        return left, right

    def frames(self, spark) -> tuple[Any, Any]:
        return self.orders.batch(spark, ORDERS_DDL).where(
            "id >= 0 OR id IS NULL"
        ), self.shipments.batch(spark, SHIPMENTS_DDL).where("id >= 0 OR id IS NULL")


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    """Two files a side, out of order by up to 40 seconds, a null key now and then, and one that
    ends all waiting.
    """
    found, dice = Shop(tmp_path_factory.mktemp("shop")), random.Random(3)

    def key() -> int | None:
        return None if dice.random() < 0.05 else dice.randrange(12)

    for file in range(2):
        times = [100 * file + dice.randrange(140) for _ in range(80)]
        found.put(
            orders(*((key(), at, float(n)) for n, at in enumerate(times[:40], 100 * file))),
            shipments(
                *(
                    (key(), at, f"{dice.choice('xy')}{n}")
                    for n, at in enumerate(times[40:], 100 * file)
                )
            ),
        )
    found.put(orders((-1, END, 0.0)), shipments((-2, END, "end")))
    return found


def standing(rows: Sequence[Row], *columns: str) -> Counter[tuple[Any, ...]]:
    """What stands in the end, of rows that have an id of an order."""
    ids: dict[str, tuple[Any, ...]] = {}
    for row in rows:
        values = tuple(row[name] for name in columns)
        if row["op"] == "-":
            assert ids.pop(row["pair_id"]) == values
        else:
            assert row["pair_id"] not in ids
            ids[row["pair_id"]] = values
    return Counter(values for values in ids.values() if values[0] is None or values[0] >= 0)


BOUNDS = "unix_micros(o.ts) - unix_micros(s.ts) BETWEEN -60000000 AND 20000000"
KINDS = {
    "within": (tg.within("1 minute", "20 seconds"), None, BOUNDS),
    "several": (
        (tg.within("1 minute", None), tg.within(None, "20 seconds", closed="neither")),
        pc.starts_with(pc.field("carrier"), "x"),
        BOUNDS.replace("AND 20000000", "AND 19999999") + " AND s.carrier LIKE 'x%'",
    ),
    "tumbling": (
        tg.tumbling("1 minute"),
        None,
        "window(o.ts, '1 minute') = window(s.ts, '1 minute')",
    ),
}


def own_answer(shop: Shop, spark, condition: str, how: str) -> Counter[tuple[Any, ...]]:
    ordered, shipped = (
        frame.alias(name) for frame, name in zip(shop.frames(spark), "os", strict=True)
    )
    if "window" in condition:
        ordered, shipped = (
            frame.withColumn("w", F.window("ts", "1 minute").start) for frame in (ordered, shipped)
        )
        ordered, shipped, condition = ordered.alias("o"), shipped.alias("s"), "o.w = s.w"
    found = ordered.join(shipped, F.expr(f"o.id = s.id AND {condition}"), HOWS[how])
    shown = (
        ["o.id", "o.price"]
        if how in ("semi", "anti")
        else ["coalesce(o.id, s.id)", "o.price", "s.carrier"]
    )
    return Counter(tuple(row) for row in found.selectExpr(*shown).collect())


def columns_of(how: str) -> list[str]:
    return ["id", "price", *(["carrier"] if how not in ("semi", "anti") else [])]


@pytest.mark.parametrize(
    ("kind", "how"), [("within", "full"), ("several", "semi"), ("tumbling", "left")]
)
def test_a_stream_comes_to_the_answer_of_spark(spark, shop, tmp_path, kind, how):
    window, where, condition = KINDS[kind]
    left, right = shop.streams(spark)
    joined = left.join(right, window, on="id", how=how, where=where).allow_lateness("1 hour")
    run = finished(joined, tmp_path / "ck", shards=2)
    bounds = ["window_start", "window_end"] if kind == "tumbling" else []
    sides = (
        ["id", "ts", "price"]
        if how in ("semi", "anti")
        else ["id", "left_ts", "price", "right_ts", "carrier"]
    )
    assert run.panes_sink.table().column_names == [
        *sides,
        *bounds,
        "op",
        "timing",
        "pair_id",
        "watermark",
        "emitted_at",
    ]
    assert standing(run.panes, *columns_of(how)) == own_answer(shop, spark, condition, how)
    assert run.late == []
    assert sum(batch.counts["events"] for batch in run.query.recent_progress) == 162


def test_batch_frames_give_the_answer_of_spark(spark, shop):
    left, right = (tg.stream(frame, time="ts") for frame in shop.frames(spark))
    for kind, how in (("within", "inner"), ("tumbling", "right"), ("several", "anti")):
        window, where, condition = KINDS[kind]
        found = (
            left.join(right, window, on="id", how=how, where=where)
            .df.where("op = '+'")
            .select(*columns_of(how))
            .collect()
        )
        assert Counter(tuple(row) for row in found) == own_answer(shop, spark, condition, how), how
    latest = (
        left.join(right, tg.as_of("1 hour"), on="id", how="left")
        .df.where("op = '+'")
        .select("price", "right_ts")
        .collect()
    )
    ordered, shipped = (
        frame.alias(name) for frame, name in zip(shop.frames(spark), "os", strict=True)
    )
    before = (
        ordered.join(shipped, F.expr("o.id = s.id AND s.ts <= o.ts"), "left")
        .groupBy("price")
        .agg(F.max("s.ts"))
    )
    assert Counter(tuple(row) for row in latest) == Counter(tuple(row) for row in before.collect())


# Late rows, change feeds, restarts

AMONG = orders((1, 1, 1.0), (2, 2, 2.0), (3, 300, 4.0)), shipments((1, 3, "x"), (9, 310, "y"))
"""The second order has no partner, and the watermark says that none can come."""
AGAIN = orders((8, -2000, 1.0)), shipments((2, 20, "z"))
"""Too late; and the partner that was not expected any more. The batch that is run again."""
PAIRS = Counter([(1, 1.0, "x"), (2, 2.0, "z")])


def left_join(spark, shop: Shop, **more: Any) -> Any:
    left, right = shop.streams(spark)
    return left.join(
        right, tg.within("1 minute", "1 minute"), on="id", **{"how": "left", **more}
    ).allow_lateness("10 minutes")


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    found = Shop(tmp_path_factory.mktemp("two"))
    found.put(*AMONG)
    found.put(*AGAIN)
    return found


def test_a_change_feed_of_a_join_and_its_late_rows(spark, two, tmp_path):
    run = finished(left_join(spark, two).changelog(), tmp_path / "ck")
    assert [
        (row["id"], row["_change_type"], row["carrier"]) for row in run.panes if row["id"] == 2
    ] == [
        (2, "insert", None),
        (2, "delete", None),
        (2, "insert", "z"),
    ]
    assert [(row["id"], row["input"], row["reason"], row["price"]) for row in run.late] == [
        (8, "left", "very_late", 1.0)
    ]
    broken = tg.stream(
        two.orders.batch(spark, ORDERS_DDL).selectExpr("id", "nullif(ts, ts) AS ts"), time="ts"
    )
    shipped = tg.stream(two.shipments.batch(spark, SHIPMENTS_DDL), time="ts")
    late = broken.join(shipped, tg.within(0, 0), on="id").late_df.collect()
    assert Counter((row.input, row.reason) for row in late) == Counter({("left", "null_time"): 4})


def test_a_join_goes_on_where_it_stopped_and_a_changed_one_is_refused(spark, tmp_path, capsys):
    shop = Shop(tmp_path / "in")
    shop.put(*AMONG)
    first = finished(left_join(spark, shop), tmp_path / "ck", shards=2)
    assert standing(first.panes, "id", "price", "carrier") == Counter(
        [(1, 1.0, "x"), (2, 2.0, None)]
    )
    kept = (tmp_path / "ck" / "tidegate" / "query.json").read_text()
    for changed, told in (
        (left_join(spark, shop, how="full"), "how"),
        (left_join(spark, shop).allow_lateness("1 second"), "allowed_lateness"),
        (left_join(spark, shop).early_padding(), "padding"),
        (left_join(spark, shop, where=pc.field("price") > 1), "where"),
    ):
        with pytest.raises(SpecMismatchError, match=told) as caught:
            finished(changed, tmp_path / "ck")
        assert "Hint" in str(caught.value)
    assert (tmp_path / "ck" / "tidegate" / "query.json").read_text() == kept, (
        "what is refused changes nothing"
    )
    shop.put(*AGAIN)
    second = finished(left_join(spark, shop), tmp_path / "ck")
    assert second.query.id == first.query.id
    assert standing([*first.panes, *second.panes], "id", "price", "carrier") == PAIRS
    # From outside the rows are seen that a late partner may still find.
    (operator,) = json.loads(shown(["state", "--json", str(tmp_path / "ck")], capsys))["operators"]
    assert [
        sum(shard["rows"][side] for shard in operator["shards"]) for side in ("left", "right")
    ] == [3, 3]
    assert sorted((source["input"], source["status"]) for source in operator["sources"]) == [
        (0, "active"),
        (1, "active"),
    ]
    told = shown(["state", str(tmp_path / "ck")], capsys)
    assert "operator 0: left join on id, within before 1 minute after 1 minute" in told
    assert re.search(r"^ +shard .* left rows +right rows +events", told, re.MULTILINE)
    assert "windows" not in told


# Sinks


def test_parquet_and_memory_hold_each_row_once(spark, two, tmp_path):
    late = tg.sinks.memory(f"late_{next(NUMBERS)}")
    query = Restarted(left_join(spark, two), tmp_path, tg.sinks.parquet(tmp_path / "pairs"), late)

    def held() -> list[Row]:
        files = sorted((tmp_path / "pairs").rglob("*.parquet"))
        return [row for file in files for row in pq.read_table(file, partitioning=None).to_pylist()]

    before = held()
    assert standing(before, "id", "price", "carrier") == PAIRS
    query.again()
    without = [
        {name: value for name, value in row.items() if name != "emitted_at"} for row in held()
    ]
    assert without == [
        {name: value for name, value in row.items() if name != "emitted_at"} for row in before
    ]
    assert [row["id"] for row in late.rows()] == [8]


def test_delta_appends_once(spark, two, tmp_path):
    from deltalake import DeltaTable

    query = Restarted(left_join(spark, two), tmp_path, tg.sinks.delta(tmp_path / "pairs"))
    query.again()
    rows = sorted(
        DeltaTable(tmp_path / "pairs").to_pyarrow_table().to_pylist(),
        key=lambda row: (row["emitted_at"], row["op"] == "+"),
    )
    assert Counter((row["id"], row["op"]) for row in rows) == Counter(
        [(1, "+"), (2, "+"), (2, "-"), (2, "+")]
    )
    assert standing(rows, "id", "price", "carrier") == PAIRS


@pytest.mark.postgres
def test_postgres_knows_rows_by_equal_fields_and_pair_and_removes_what_is_taken_back(
    spark, two, postgres, tmp_path
):
    table = f"pairs_{next(NUMBERS)}"
    query = Restarted(left_join(spark, two), tmp_path, tg.sinks.postgres(postgres.dsn, table))

    def held() -> list[tuple]:
        return sorted(postgres.query(f"SELECT id, price, carrier FROM {table}"))

    assert Counter(held()) == PAIRS
    query.again()
    assert Counter(held()) == PAIRS


@pytest.mark.kafka
def test_kafka_has_each_row_once_with_its_pair(spark, two, kafka, tmp_path):
    topic = kafka.create_topic(f"pairs-{next(NUMBERS)}", 2)
    query = Restarted(
        left_join(spark, two), tmp_path, tg.sinks.kafka(kafka.bootstrap_servers, topic)
    )
    wanted = [(1, "+", "x"), (2, "+", None), (2, "+", "z"), (2, "-", None)]
    for again in (False, True):
        if again:
            query.again()
        consumed = kafka.consume(topic)
        messages = [message for message in consumed if message.value is not None]
        assert sorted(
            ((m.json["id"], m.json["op"], m.json["carrier"]) for m in messages), key=repr
        ) == sorted(wanted, key=repr)
        tombstones = [message for message in consumed if message.value is None]
        assert [json.loads(message.key)["id"] for message in tombstones] == [2], (
            "the row without a partner is gone"
        )
        assert all(json.loads(message.key)["id"] == message.json["id"] for message in messages)
        assert len({message.headers["pair_id"] for message in messages}) == 3, (
            "a row and what takes it back have the same"
        )


# Trees


def spent_by_id(stream: tg.Stream) -> tg.Panes:
    """Panes that are corrected all the time."""
    eager = tg.after_watermark(early=tg.after_count(2), late=tg.after_count(1))
    return (
        stream.window(tg.tumbling("1 minute"))
        .trigger(eager)
        .allow_lateness("1 hour")
        .retracting()
        .aggregate(n=tg.count(), spent=tg.sum("price"))
    )


def minutes(frame: Any) -> Any:
    return frame.withColumn("minute", F.window("ts", "1 minute").start)


def test_panes_that_are_taken_back_are_joined_and_the_pairs_counted(spark, shop, tmp_path):
    """Three stateful operators: panes by id, which meet shipments of their minute, and a count by
    carrier.
    """
    left, right = shop.streams(spark, key="id")
    joined = (
        tg.stream(spent_by_id(left), key="id")
        .join(right, tg.tumbling("1 minute"), on="id", how="right")
        .allow_lateness("1 hour")
    )
    counted = (
        joined.stream(time="ts", key="carrier")
        .window(tg.tumbling("1 minute"))
        .allow_lateness("1 hour")
        .retracting()
    )
    run = finished(
        counted.aggregate(rows=tg.count(), spent=tg.sum("spent")), tmp_path / "ck", shards=2
    )
    ordered, shipped = map(minutes, shop.frames(spark))
    spent = ordered.groupBy("id", "minute").agg(F.sum("price").alias("spent"))
    answer = (
        shipped.join(spent, ["id", "minute"], "left")
        .groupBy("carrier", "minute")
        .agg(F.count("*"), F.sum("spent"))
        .collect()
    )
    found: dict[Any, Any] = {}
    for row in run.panes:
        place = row["carrier"], row["window_start"].timestamp()
        _ = (
            found.pop(place)
            if row["op"] == "-"
            else found.update({place: (row["rows"], row["spent"])})
        )
    assert {place: value for place, value in found.items() if place[0] != "end"} == {
        (row[0], row[1].timestamp()): tuple(row[2:]) for row in answer
    }
    assert run.late == []


def test_panes_that_are_taken_back_are_merged(spark, shop, tmp_path):
    (left, _), (_, right) = shop.streams(spark, key="id"), shop.streams(spark)
    eager = tg.after_watermark(early=tg.after_count(3), late=tg.after_count(1))
    merged = tg.merge(spent=tg.stream(spent_by_id(left)), shipped=right).window(
        tg.tumbling("1 minute")
    )
    panes = (
        merged.trigger(eager)
        .allow_lateness("1 hour")
        .retracting()
        .aggregate(ids=tg.count(of="spent"), spent=tg.sum("spent"), sent=tg.count(of="shipped"))
    )
    run = finished(panes, tmp_path / "ck", shards=2)
    ordered, shipped = map(minutes, shop.frames(spark))
    spent = {
        row[0].timestamp(): (row[1], row[2])
        for row in (
            ordered.groupBy("minute")
            .agg(F.expr("count(DISTINCT coalesce(id, -9))"), F.sum("price"))
            .collect()
        )
    }
    sent = {row[0].timestamp(): row[1] for row in shipped.groupBy("minute").count().collect()}
    found: dict[Any, Any] = {}
    for row in run.panes:
        place = row["window_start"].timestamp()
        _ = (
            found.pop(place)
            if row["op"] == "-"
            else found.update({place: ((row["ids"], row["spent"]), row["sent"])})
        )
    wanted = {
        minute: (spent.get(minute, (0, None)), sent.get(minute, 0)) for minute in {*spent, *sent}
    }
    assert {
        minute: value for minute, value in found.items() if minute < BASE / SECOND + END - 100
    } == wanted
    assert run.late == []


def embedded_answer(joined: Any, tables: Sequence[pa.Table], *columns: str) -> Counter[Any]:
    """What the embedded join gives for all rows of each input."""
    op = tg.Joined(joined.spec).embedded(now=0)
    for number, table in enumerate(tables):
        op.add_messages(table, input=number)
    op.finish()
    return standing(op.get_result().panes.to_pylist(), *columns)


def test_further_windows_and_sides_give_the_embedded_answer(spark, shop, tmp_path):
    """Streams whose left side is a union with a second time column; batches of the other kinds."""
    more = Feed(tmp_path / "more", pa.schema({"id": pa.int64(), "at": UTC, "price": pa.float64()}))
    more.put([{"id": n % 12, "at": BASE + 7 * n * SECOND, "price": -1.0 - n} for n in range(20)])
    more.put([{"id": -3, "at": BASE + END * SECOND, "price": 0.0}])
    left, right = shop.streams(spark, key="id")
    ddl = "id long, at timestamp, price double"
    third = tg.stream(
        more.stream(spark, ddl), time="at", key="id", watermark=tg.bounded("5 seconds")
    )
    tables = [pq.read_table(feed.folder) for feed in (shop.orders, more, shop.shipments)]
    names = ("id", "price", "carrier", "window_start", "window_end")
    joined = tg.union(left, third).join(right, tg.cumulative("2 minutes", "1 minute"), how="left")
    joined = joined.allow_lateness("1 hour")
    run = finished(joined, tmp_path / "union", shards=2)
    wanted = embedded_answer(joined, tables, *names)
    assert standing(run.panes, *names) == wanted
    assert sum(wanted.values()) > 50
    again = joined.stream(time="left_ts", key="carrier").join(
        tg.stream(shop.streams(spark)[1].sources[0].source, time="ts", key="carrier"),
        tg.session("10 minutes"),
        on="carrier",
        names=("first_", "second_"),
    )
    run = finished(again.allow_lateness("1 hour"), tmp_path / "again", shards=2)
    assert {row["second_id"] for row in run.panes} == {
        row[0] for row in wanted if row[2] is not None
    }
    numbers = ("cast(price AS long)", "cast(substring(carrier, 2) AS long)")
    frames = [
        frame.withColumn("o", F.expr(number)).withColumn("half", F.expr("o % 2"))
        for frame, number in zip(shop.frames(spark), numbers, strict=True)
    ]
    one, two = (tg.stream(frame, time="ts", offset="o", key="id") for frame in frames)
    for window, on in (
        (tg.calendar("day", zone="Asia/Tokyo"), ["id"]),
        (tg.session("5 seconds"), ["id", "half"]),
        (tg.tumbling(20, axis="offset"), ["id"]),
    ):
        batch = one.join(two, window, on=on, how="full").allow_lateness("1 hour")
        rows = [row.asDict() for row in batch.df.collect()]
        assert standing(rows, "id", "price", "carrier") == embedded_answer(
            batch, [frame.toArrow() for frame in frames], "id", "price", "carrier"
        )

"""The PostgreSQL sink against a real server."""

from __future__ import annotations

import datetime as dt
import os
import pickle
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from itertools import count
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest

from support.services.postgres import PostgresServer
from support.services.processes import free_ports
from support.sink_rows import (
    MERGED_SESSIONS,
    MINUTE,
    in_pieces,
    late_rows,
    late_target,
    merging_sessions,
    pane_target,
    panes,
)
from tidegate.errors import SinkError, SpecError
from tidegate.spark.sinks.postgres import PostgresSink
from tidegate.spark.sinks.postgres import postgres as postgres_sink

pytestmark = pytest.mark.postgres
NUMBERS = count()


@pytest.fixture
def sink(postgres: PostgresServer) -> PostgresSink:
    return postgres_sink(postgres.dsn, f"panes_{next(NUMBERS)}")


def name() -> str:
    return f"query-{next(NUMBERS)}"


def current(
    server: PostgresServer,
    sink: PostgresSink,
    columns: str = '"user", extract(minute FROM window_start)::int, pane, clicks, spent',
) -> list:
    return sorted(server.query(f'SELECT {columns} FROM "{sink.table}"'), key=str)


def test_a_batch_is_inserted_and_the_next_one_updates_by_key_and_window(postgres, sink):
    target = pane_target(name())
    sink.check(target)
    sink.write(
        target,
        0,
        in_pieces(panes(target, [("ann", 0, "+", 0, 3, 1.5), ("bob", 0, "+", 0, 1, 2.5)])),
    )
    sink.write(
        target,
        1,
        in_pieces(panes(target, [("ann", 0, "+", 1, 4, 2.0), ("ann", 1, "+", 0, 1, 0.5)])),
    )
    sink.check(target)
    assert current(postgres, sink) == [
        ("ann", 0, 1, 4, 2.0),
        ("ann", 1, 0, 1, 0.5),
        ("bob", 0, 0, 1, 2.5),
    ]
    assert [
        column
        for (column,) in postgres.query(
            "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0",
            sink.table,
        )
    ] == (target.schema.names)


def test_times_are_instants_whatever_the_zone_of_the_session(postgres, sink):
    target = pane_target(name())
    postgres.query("ALTER ROLE tidegate SET timezone = 'Asia/Kathmandu'")
    try:
        sink.write(target, 0, iter([panes(target, [("ann", -1, "+", 0, 3, 1.5)])]))
    finally:
        postgres.query("ALTER ROLE tidegate RESET timezone")
    start, end = (
        dt.datetime(1969, 12, 31, 23, 59, tzinfo=dt.UTC),
        dt.datetime(1970, 1, 1, tzinfo=dt.UTC),
    )
    assert current(postgres, sink, "window_start, window_end") == [(start, end)]


def test_a_replay_adds_nothing_and_changes_nothing(postgres, sink):
    target = pane_target(name())
    sink.write(target, 7, iter([panes(target, [("ann", 0, "+", 0, 3, 1.5)])]))
    sink.write(target, 8, iter([panes(target, [("ann", 0, "+", 1, 5, 1.5)])]))
    rest = in_pieces(panes(target, [("ann", 0, "+", 0, 3, 1.5), ("bob", 0, "+", 0, 3, 1.5)]))
    for batch in (7, 8):
        sink.write(target, batch, rest)
    assert current(postgres, sink) == [("ann", 0, 1, 5, 1.5)]
    assert next(rest, None) is None, "a replayed batch is read to its end"
    assert postgres.query(
        "SELECT output, batch FROM tidegate_batches WHERE query = %s", target.query
    ) == [("panes", 8)]


def test_batches_are_known_by_query_and_output(postgres, sink):
    one, other = pane_target(name()), pane_target(name())
    sink.write(one, 0, iter([panes(one, [("ann", 0, "+", 0, 3, 1.5)])]))
    sink.write(other, 0, iter([panes(other, [("bob", 0, "+", 0, 3, 1.5)])]))
    assert len(current(postgres, sink)) == 2


def test_retractions_delete_and_the_last_word_of_a_batch_counts(postgres, sink):
    target = pane_target(name(), mode="retracting")
    sink.write(
        target,
        0,
        iter(
            [
                panes(
                    target,
                    [
                        ("ann", 0, "+", 0, 1, 1.0),
                        ("bob", 0, "+", 0, 1, 1.0),
                        ("cid", 0, "+", 0, 1, 1.0),
                    ],
                )
            ]
        ),
    )
    rows = [
        ("ann", 0, "-", 0, 1, 1.0),
        ("ann", 0, "+", 1, 2, 2.0),
        ("ann", 0, "-", 1, 2, 2.0),
        ("ann", 0, "+", 2, 3, 3.0),
        ("bob", 0, "-", 0, 1, 1.0),
        ("bob", 1, "+", 0, 2, 2.0),
        ("dan", 0, "+", 0, 1, 1.0),
        ("dan", 0, "-", 0, 1, 1.0),
    ]
    sink.write(target, 1, in_pieces(panes(target, rows), 3))
    assert current(postgres, sink) == [
        ("ann", 0, 2, 3, 3.0),
        ("bob", 1, 0, 2, 2.0),
        ("cid", 0, 0, 1, 1.0),
    ]


def test_discarding_panes_stand_side_by_side(postgres, sink):
    target = pane_target(name(), mode="discarding")
    sink.write(
        target, 0, iter([panes(target, [("ann", 0, "+", 0, 1, 1.0), ("ann", 0, "+", 1, 2, 1.0)])])
    )
    sink.write(target, 1, iter([panes(target, [("ann", 0, "+", 2, 3, 1.0)])]))
    assert current(postgres, sink) == [
        ("ann", 0, 0, 1, 1.0),
        ("ann", 0, 1, 2, 1.0),
        ("ann", 0, 2, 3, 1.0),
    ]


@pytest.mark.parametrize("mode", ["accumulating", "retracting"])
def test_sessions_that_merge_leave_no_stale_row(mode, postgres, sink):
    target, batches = merging_sessions(name(), mode)
    for batch, table in enumerate(batches):
        sink.write(target, batch, in_pieces(table))
    bounds = ", ".join(f"extract(epoch FROM window_{end})::int" for end in ("start", "end"))
    found = current(postgres, sink, f'"user", {bounds}, clicks')
    assert {tuple(place): n for *place, n in found} == MERGED_SESSIONS


def test_a_change_feed_is_appended(postgres, sink):
    target, batches = merging_sessions(name(), "accumulating", feed=True)
    for batch, table in enumerate([*batches, batches[-1]]):
        sink.check(target)
        sink.write(target, min(batch, 2), in_pieces(table))
    assert current(postgres, sink, "tidegate_batch, _change_type, clicks") == [
        (0, "insert", 1),
        (0, "insert", 1),
        (1, "insert", 1),
        (2, "delete", 1),
        (2, "delete", 1),
        (2, "insert", 3),
    ]


def test_null_keys_and_windows_without_bounds_are_values_like_others(postgres, sink):
    key = pa.schema([("user", pa.string()), ("country", pa.int32())])
    target = pane_target(name(), mode="retracting", key=key)
    first = [
        ((user, country), minute, "+", 0, 1, 1.0)
        for user in ("a", None, "")
        for country in (1, None)
        for minute in (0, None)
    ]
    sink.write(target, 0, iter([panes(target, first)]))
    assert len(current(postgres, sink)) == 12
    second = [
        row
        for user in ("a", None, "")
        for country in (1, None)
        for row in [
            ((user, country), 0, "-", 0, 1, 1.0),
            ((user, country), 0, "+", 1, 5, 1.0),
            ((user, country), None, "-", 0, 1, 1.0),
        ]
    ]
    sink.write(target, 1, in_pieces(panes(target, second), 4))
    assert [row[2:4] for row in current(postgres, sink)] == [(1, 5)] * 6
    assert len({row[0] for row in current(postgres, sink)}) == 3


def test_panes_without_a_key(postgres, sink):
    target = pane_target(name(), key=pa.schema([]))
    for batch in range(2):
        sink.write(target, batch, iter([panes(target, [((), 0, "+", batch, batch, 1.0)])]))
    assert current(postgres, sink, "pane, clicks") == [(1, 1)]


def test_a_percent_sign_in_a_name_is_no_placeholder(postgres):
    server, names = postgres, {"user": "share in %", "reason": "%s"}
    columns = [names.get(column, column) for column in late_target("q").schema.names]
    rows = late_rows(["ann", "bob"]).rename_columns(columns)
    target = replace(late_target(name()), schema=rows.schema, key=("share in %",))
    server.query('CREATE SCHEMA IF NOT EXISTS "100%"')
    sink = postgres_sink(postgres.dsn, f"late %s {next(NUMBERS)}", schema="100%")
    sink.check(target)
    for batch in (0, 0, 1):
        sink.write(target, batch, in_pieces(rows))
    found = server.query(f'SELECT "share in %", "%s", tidegate_batch FROM "100%"."{sink.table}"')
    assert sorted(found) == [(user, "late", batch) for user in ("ann", "bob") for batch in (0, 1)]


def test_late_rows_are_appended_with_their_batch_and_once(postgres, sink):
    target = late_target(name())
    sink.check(target)
    for batch in (3, 3, 4):
        sink.write(target, batch, in_pieces(late_rows(["ann", "ann", None])))
    assert postgres.query(
        f'SELECT tidegate_batch, count(*) FROM "{sink.table}" GROUP BY 1 ORDER BY 1'
    ) == [
        (3, 3),
        (4, 3),
    ]
    window = {
        "window_start": "1970-01-01T00:00:00.000000Z",
        "window_end": "1970-01-01T00:01:00.000000Z",
    }
    assert current(postgres, sink, "windows")[0] == ([window],)


def test_an_empty_batch_touches_no_server():
    nowhere = postgres_sink(f"host=127.0.0.1 port={free_ports(1)[0]}", "panes")
    target = pane_target(name())
    nowhere.write(target, 0, iter([]))
    nowhere.write(target, 0, iter([panes(target, [])]))


def test_types_come_back_as_they_were(postgres, sink):
    values = pa.schema(
        [
            ("small", pa.int8()),
            ("huge", pa.uint64()),
            ("real", pa.float32()),
            ("money", pa.decimal128(12, 2)),
            ("flag", pa.bool_()),
            ("text", pa.string()),
            ("bytes", pa.binary()),
            ("moment", pa.timestamp("us", "UTC")),
            ("local", pa.timestamp("ms")),
            ("day", pa.date32()),
            ("numbers", pa.list_(pa.float64())),
            ("thing", pa.struct([("a", pa.int64()), ("b", pa.string())])),
            ("word", pa.dictionary(pa.int32(), pa.string())),
        ]
    )
    target = pane_target(name(), values=values)
    moment = dt.datetime(2024, 5, 1, 9, 30, 0, 123456, tzinfo=dt.UTC)
    local = dt.datetime(1955, 5, 1, 9, 30)
    full = (
        -7,
        2**64 - 1,
        0.1,
        Decimal("-12.30"),
        True,
        'tab\t"quoted"\n\\x\r,;é\\N',
        b"\x00\xff",
        moment,
        local,
        dt.date(1815, 6, 18),
        [1.5, None, float("inf")],
        {"a": 1, "b": "\0\\u0000"},
        "w",
    )
    empty = (
        0,
        0,
        float("nan"),
        Decimal(0),
        False,
        "",
        b"",
        moment,
        local,
        dt.date(1, 1, 1),
        [],
        {"a": None, "b": ""},
        "",
    )
    sink.write(
        target,
        0,
        in_pieces(
            panes(
                target,
                [
                    ("full", 0, "+", 0, *full),
                    ("empty", 0, "+", 0, *empty),
                    ("null", 0, "+", 0, *[None] * 13),
                ],
            )
        ),
    )
    found = {
        row[0]: row[1:] for row in current(postgres, sink, '"user", ' + ", ".join(values.names))
    }
    assert found["full"] == (
        *full[:2],
        pytest.approx(0.1),
        *full[3:10],
        [1.5, None, "Infinity"],
        {"a": 1, "b": "\ufffd\\u0000"},
        "w",
    )
    assert found["empty"] == (*empty[:2], pytest.approx(float("nan"), nan_ok=True), *empty[3:])
    assert found["null"] == (None,) * 13


def test_what_postgres_has_no_form_for_is_written_nearest_to_it(postgres, sink):
    values = pa.schema([("text", pa.string()), ("moment", pa.timestamp("us", "UTC"))])
    target = pane_target(name(), values=values)
    moments = {
        "bc": -100_000_000_000_000_000,
        "far": 400_000_000_000_000_000,
        "before": -(2**62),
        "one": -62_135_596_800_000_000,
    }
    sink.write(
        target,
        0,
        iter(
            [
                panes(
                    target,
                    [(f"{key}\0", 0, "+", 0, "a\0b", value) for key, value in moments.items()],
                )
            ]
        ),
    )
    found = dict(
        postgres.query(f'SELECT "user", (moment AT TIME ZONE \'UTC\')::text FROM "{sink.table}"')
    )
    assert found == {
        "bc\ufffd": "1200-02-15 14:13:20 BC",
        "far\ufffd": "14645-06-30 15:06:40",
        "before\ufffd": "-infinity",
        "one\ufffd": "0001-01-01 00:00:00",
    }
    assert current(postgres, sink, "text") == [("a\ufffdb",)] * 4


def test_keys_of_a_megabyte(postgres, sink):
    target = pane_target(name(), mode="retracting")
    text = "".join(random.Random(1).choices("abcdefghijklmnop0123456789", k=1_000_000))
    sink.write(
        target,
        0,
        iter([panes(target, [(text, 0, "+", 0, 1, 1.0), (text + "x", 0, "+", 0, 1, 1.0)])]),
    )
    sink.write(
        target,
        1,
        iter(
            [
                panes(
                    target,
                    [
                        (text, 0, "-", 0, 1, 1.0),
                        (text, 0, "+", 1, 2, 1.0),
                        (text + "x", 0, "-", 0, 1, 1.0),
                    ],
                )
            ]
        ),
    )
    assert current(postgres, sink, 'length("user"), pane') == [(1_000_000, 1)]


def test_another_schema_and_odd_names(postgres):
    postgres.query('CREATE SCHEMA IF NOT EXISTS "odd ""schema"')
    target = pane_target(name(), mode="retracting", key=pa.schema([('us"er %s', pa.string())]))
    sink = postgres_sink(postgres.url, 'Ünï "x" %', schema='odd "schema')
    for batch in range(2):
        sink.check(target)
        sink.write(
            target,
            batch,
            iter([panes(target, [("a", 0, "-", batch, 1, 1.0), ("a", 0, "+", batch, 1, 1.0)])]),
        )
    assert postgres.query('SELECT "us""er %s", pane FROM "odd ""schema"."Ünï ""x"" %"') == [
        ("a", 1)
    ]
    assert postgres.query('SELECT batch FROM "odd ""schema".tidegate_batches') == [(1,)]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (
            '"user" text, window_start timestamptz',
            "lacks the columns: window_end timestamp with time zone",
        ),
        (None, "clicks is text, not bigint"),
    ],
)
def test_a_table_with_other_columns_is_refused(postgres, sink, columns, said):
    target = pane_target(name())
    # Another query has written, so there is a place for what was written.
    postgres_sink(postgres.url, name()).write(
        pane_target(name()), 0, iter([panes(target, [("a", 0, "+", 0, 1, 1.0)])])
    )
    if columns is None:
        sink.write(target, 0, iter([panes(target, [("a", 0, "+", 0, 1, 1.0)])]))
        postgres.query(f'ALTER TABLE "{sink.table}" ALTER clicks TYPE text')
    else:
        postgres.query(f'CREATE TABLE "{sink.table}" ({columns})')
    with pytest.raises(SinkError, match=said):
        sink.check(target)
    with pytest.raises(SinkError, match=f"{said}.*Hint: "):
        sink.write(target, 1, iter([panes(target, [("a", 0, "+", 0, 1, 1.0)])]))
    assert (
        postgres.query(
            "SELECT batch FROM tidegate_batches WHERE query = %s AND batch = 1", target.query
        )
        == []
    )


def test_columns_of_the_users_own_are_left_alone_unless_they_want_values(postgres, sink):
    target = pane_target(name())
    sink.write(target, 0, iter([panes(target, [("a", 0, "+", 0, 1, 1.0)])]))
    postgres.query(
        f"ALTER TABLE \"{sink.table}\" ADD note text DEFAULT 'mine' NOT NULL, ALTER clicks TYPE"
        ' numeric, ALTER "user" TYPE varchar(10)'
    )
    sink.check(target)
    sink.write(target, 1, iter([panes(target, [("b", 0, "+", 0, 1, 1.0)])]))
    assert current(postgres, sink, "note, clicks") == [("mine", 1)] * 2
    postgres.query(f'ALTER TABLE "{sink.table}" ALTER note DROP DEFAULT')
    with pytest.raises(
        SinkError, match="requires values for columns that the output does not have: note"
    ):
        sink.check(target)


def test_without_create_the_hint_says_what_to_run(postgres, sink):
    target = pane_target(name())
    kept = postgres_sink(postgres.dsn, sink.table, create=False)
    with pytest.raises(SinkError, match="does not exist, and create=False") as caught:
        kept.check(target)
    statements = str(caught.value).split("Hint: ")[1]
    with pytest.raises(SinkError, match="does not exist"):
        kept.write(target, 0, iter([panes(target, [("a", 0, "+", 0, 1, 1.0)])]))
    table, index = statements.split("; ")
    postgres.query(table)
    with pytest.raises(SinkError, match=r"no unique index for the panes.*CREATE UNIQUE INDEX"):
        kept.check(target)
    postgres.query(index)
    kept.check(target)
    kept.write(target, 0, iter([panes(target, [("a", 0, "+", 0, 1, 1.0)])]))
    assert len(current(postgres, sink)) == 1


@pytest.mark.parametrize(
    ("table", "columns", "said"),
    [
        ("a.b", [], "has a dot"),
        ("t", ["x" * 64], "1 to 63 bytes"),
        ("t", ["tidegate_row"], "reserves the column tidegate_row"),
    ],
)
def test_names_that_cannot_work_are_refused(table, columns, said):
    target = pane_target(name(), values=pa.schema([(column, pa.int64()) for column in columns]))
    with pytest.raises((SinkError, SpecError), match=f"{said}.*Hint: "):
        postgres_sink("host=nowhere.invalid", table).check(target)


def test_a_server_that_is_down_is_told_with_a_hint_and_without_the_password():
    sink = postgres_sink(f"host=127.0.0.1 port={free_ports(1)[0]} user=me password=secret", "panes")
    target = pane_target(name())
    for attempt in (
        lambda: sink.check(target),
        lambda: sink.write(target, 0, iter([panes(target, [("a", 0, "+", 0, 1, 1.0)])])),
    ):
        with pytest.raises(SinkError, match=r"cannot be reached.*Hint: ") as caught:
            attempt()
        assert "secret" not in str(caught.value)
    assert "secret" not in repr(sink)
    assert pickle.loads(pickle.dumps(sink)) == sink  # noqa: S301 - our own


def test_a_lost_connection_writes_nothing_and_the_next_attempt_writes_all(postgres, sink):
    target = pane_target(name())
    rows = panes(target, [("ann", 0, "+", 0, 1, 1.0), ("bob", 0, "+", 0, 1, 1.0)])

    def lost_on_the_way() -> Iterator[pa.Table]:
        yield rows.slice(0, 1)
        postgres.query(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name ="
            " 'tidegate'"
        )
        yield rows.slice(1, 1)

    with pytest.raises(SinkError, match=r"was lost.*no row of the batch was written"):
        sink.write(target, 0, lost_on_the_way())
    assert postgres.query("SELECT to_regclass(%s)", sink.table) == [(None,)]
    sink.write(target, 0, in_pieces(rows))
    assert len(current(postgres, sink)) == 2


WRITER = """
import sys
sys.path[:0] = sys.argv[3:]
from support.sink_rows import pane_target, panes
from tidegate.spark.sinks.postgres import postgres
target = pane_target("killed", mode="retracting")
rows = panes(target, [("ann", 0, "-", 0, 1, 1.0), ("ann", 0, "+", 1, 2, 2.0), ("bob", 0, "+", 0, 1, 1.0)])
postgres(sys.argv[1], sys.argv[2]).write(target, 1, iter([rows]))
"""


def test_a_writer_killed_in_its_transaction_leaves_nothing_behind(postgres, sink, repository: Path):
    target = pane_target("killed", mode="retracting")
    sink.write(target, 0, iter([panes(target, [("ann", 0, "+", 0, 1, 1.0)])]))
    with psycopg.connect(postgres.dsn) as holder:
        # The writer has copied its rows and noted its batch, and now waits for the table.
        holder.execute(f'LOCK TABLE "{sink.table}" IN SHARE MODE')
        writer = subprocess.Popen(
            [
                sys.executable,
                "-c",
                WRITER,
                postgres.dsn,
                sink.table,
                str(repository / "tests"),
                str(repository / "src"),
            ]
        )
        waiting = (
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE"
            " 'DELETE%%'"
        )
        deadline = time.monotonic() + 60
        while postgres.query(waiting) != [(1,)]:
            assert writer.poll() is None
            assert time.monotonic() < deadline
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
    assert current(postgres, sink) == [("ann", 0, 0, 1, 1.0)]
    rows = panes(
        target, [("ann", 0, "-", 0, 1, 1.0), ("ann", 0, "+", 1, 2, 2.0), ("bob", 0, "+", 0, 1, 1.0)]
    )
    for _ in range(2):
        # Waits until the server has noticed the end of the other, if it has not.
        sink.write(target, 1, iter([rows]))
    assert current(postgres, sink) == [("ann", 0, 1, 2, 2.0), ("bob", 0, 0, 1, 1.0)]


def scanned(postgres, table: str, deleted: int) -> int:
    """Rows of a table that sequential scans have read, once its deletions are in the statistics."""
    statement = "SELECT n_tup_del, seq_tup_read FROM pg_stat_all_tables WHERE relname = %s"
    while True:
        ((gone, read),) = postgres.query(statement, table)
        if gone >= deleted:
            return int(read)


def test_many_rows_at_once(postgres, sink):
    target = pane_target(name(), mode="retracting")
    rows = 50_000
    keys = pa.array([f"user-{number}" for number in range(rows)])
    one = panes(target, [("x", 0, "+", 0, 1, 1.0)])
    many = one.take(pa.array([0] * rows)).set_column(0, "user", keys)
    sink.write(target, 0, in_pieces(many, 20_000))
    back = many.set_column(many.schema.get_field_index("op"), "op", pa.array(["-"] * rows))
    half = keys.slice(0, rows // 2)
    sink.write(target, 1, iter([back, many.slice(0, len(half))]))
    assert scanned(postgres, sink.table, deleted=rows) < 10 * rows, "retractions use the index"
    assert postgres.query(f'SELECT count(*), max(window_end) FROM "{sink.table}"') == [
        (rows // 2, dt.datetime.fromtimestamp(MINUTE / 1e6, dt.UTC))
    ]

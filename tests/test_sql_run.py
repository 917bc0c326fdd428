"""SQL in this process: queries, scripts, late rows, files and the command line."""

from __future__ import annotations

import io
import json
import sys
from argparse import Namespace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

import tidegate as tg
from tidegate.cli import _parser, main
from tidegate.cli.sql_prompt import prompt, statements, words_of
from tidegate.errors import SqlError
from tidegate.sql.session import SqlSession

NOON = datetime(2025, 3, 14, 12, tzinfo=UTC)
MINUTE = "TABLE(TUMBLE(TABLE clicks, DESCRIPTOR(ts), INTERVAL '1' MINUTE))"
CLICKS = """
    CREATE TABLE clicks (ts TIMESTAMP(3), user STRING, price STRING,
                         WATERMARK FOR ts AS ts - INTERVAL '5' SECOND)"""


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def picked(table: pa.Table, *names: str) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in names) for row in table.to_pylist()]


def click(second: float, user: str, price: str) -> dict[str, Any]:
    return {"ts": at(second), "user": user, "price": price}


def test_expressions_are_before_inside_and_around_aggregates() -> None:
    rows = pa.table(
        {
            "ts": [at(n) for n in (5, 20, 65, 70)],
            "user": ["Ann", "bob", "ANN", "ann"],
            "price": [1, 2, 3, 4],
        }
    )
    query = tg.sql(
        f"""SELECT window_start, lower(user) AS who, SUM(price * 2) + COUNT(*) AS total
            FROM {MINUTE} WHERE price > 1
            GROUP BY window_start, window_end, lower(user) HAVING MAX(price) > 2""",
        clicks=rows,
    )
    assert query.columns == ("window_start", "who", "total")
    assert picked(query.collect().panes, *query.columns) == [(at(60), "ann", 16)]


def test_rows_that_fail_are_late_and_the_watermark_follows_all_rows() -> None:
    query = tg.sql(
        f"""{CLICKS};
        SELECT window_start, SUM(CAST(price AS INT)) AS total FROM {MINUTE}
        WHERE user <> 'spy' GROUP BY window_start, window_end"""
    )
    with query.embedded(now=at(600)) as op:
        op.add_messages([click(1, "ann", "1"), click(2, "ann", "x"), click(70, "spy", "9")])
        found = op.get_result()
        assert picked(found.panes, "window_start", "total") == [(NOON, 1)]
        assert picked(found.late, "reason", "price") == [("bad_value", "x")]
        op.flush()
        op.add_message(click(3, "ann", "1"))
        assert picked(op.get_result().late, "reason") == [("very_late",)]


def test_queries_without_windows_pass_rows_on() -> None:
    query = tg.sql(
        f"{CLICKS}; SELECT upper(user) AS who, CAST(price AS INT) AS p FROM clicks WHERE user <> 'b'"
    )
    with query.embedded() as op:
        op.add_messages([click(1, "a", "1"), click(1, "b", "2"), click(1, "c", "x")])
        found = op.get_result()
        assert found.panes.to_pylist() == [{"who": "A", "p": 1}]
        assert picked(found.late, "reason") == [("bad_value",)]
        op.flush()
        assert not op.get_result()


def test_expressions_over_times() -> None:
    query = tg.sql(
        f"""{CLICKS}; SELECT CAST(ts AS STRING) || '!' AS a, CAST(CAST(price AS STRING) AS CHAR(3)) b,
            CAST(ts + INTERVAL '0.5' SECOND AS VARCHAR) AS c, LOCALTIMESTAMP > ts AS d,
            PROCTIME() > ts AS e, CAST(CAST(ts AS DATE) AS STRING) AS f FROM clicks"""
    )
    with query.embedded() as op:
        op.add_messages([click(1, "a", "1")])
        # As Spark shows instants, whose session is in UTC.
        assert picked(op.get_result().panes, *query.columns) == [
            ("2025-03-14 12:00:01!", "1", "2025-03-14 12:00:01.5", True, True, "2025-03-14")
        ]


def test_views_chains_and_late_rows() -> None:
    script = f"""{CLICKS};
        CREATE VIEW minutes AS SELECT window_start, window_end, user, COUNT(*) AS n
            FROM {MINUTE} GROUP BY window_start, window_end, user;
        """
    most = tg.sql(
        script
        + "SELECT window_start, MAX(n) AS most FROM minutes GROUP BY window_start, window_end"
    )
    rows = [click(n, user, "1") for n, user in enumerate("aabbb")]
    with most.embedded(now=at(600)) as op:
        op.add_messages(rows)
        op.finish()
        assert picked(op.get_result().panes, "window_start", "most") == [(NOON, 3)]
    late = tg.sql(script + "SELECT user, price, reason FROM LATE(minutes)")
    with late.embedded(now=at(600)) as op:
        op.add_messages([*rows, click(100, "a", "1")])
        op.add_messages([click(7, "z", "8")])
        assert picked(op.get_result().panes, "user", "price", "reason") == [("z", "8", "very_late")]


def test_tables_of_a_program_are_described_by_create_table() -> None:
    rows = [{"ms": 1741953605000, "user": "ann"}, {"ms": 1741953665000, "user": "bob"}]
    query = tg.sql(
        """CREATE TABLE events (ms BIGINT, user STRING, ts AS TO_TIMESTAMP_LTZ(ms, 3),
                                WATERMARK FOR ts AS ts);
        SELECT window_start, user FROM TABLE(TUMBLE(TABLE events, DESCRIPTOR(ts), INTERVAL '1' MINUTE))
        GROUP BY window_start, window_end, user""",
        events=rows,
    )
    assert picked(query.collect().panes, "window_start", "user") == [(NOON, "ann"), (at(60), "bob")]


def test_streams_panes_and_queries_are_tables() -> None:
    stream = tg.stream(time="ts", watermark=tg.bounded("5 s"))
    text = f"SELECT window_start, COUNT(*) AS n FROM {MINUTE} GROUP BY window_start, window_end"
    query = tg.sql(text, clicks=stream)
    with query.embedded(now=at(600)) as op:
        op.add_messages([click(1, "a", "1"), click(66, "a", "1")])
        assert picked(op.get_result().panes, "n") == [(1,)]


def test_panes_of_a_pipeline_are_a_table() -> None:
    panes = (
        tg.stream(time="ts", key="user", watermark=tg.bounded("1 s"))
        .window(tg.tumbling("1 minute"))
        .trigger(tg.after_watermark())
        .allow_lateness("0 s")
        .aggregate(n=tg.count())
    )
    query = tg.sql(
        "SELECT window_start, MAX(n) AS most FROM users GROUP BY window_start, window_end",
        users=panes,
    )
    assert repr(query) == "SqlQuery(window_start, most from users)"
    with query.embedded(now=at(600)) as op:
        op.add_messages([click(1, user, "1") for user in "aab"], input="users")
        op.finish()
        assert picked(op.get_result().panes, "window_start", "most") == [(NOON, 2)]


def test_explain_shows_the_plan() -> None:
    text = tg.sql(
        f"""{CLICKS}; EXPLAIN SELECT window_start, user, SUM(CAST(price AS INT)) AS total
        FROM {MINUTE} WHERE user <> 'spy' GROUP BY window_start, window_end, user
        EMIT AFTER WATERMARK EARLY EVERY INTERVAL '10' SECOND"""
    )
    for part in (
        "Aggregate by user",
        "Window: tumbling(1 minute)",
        "early=Every",
        "State: ",
        "CAST(price AS INT)",
        "Filter: user <> 'spy'",
        "Watermark: ts, bounded(5 seconds)",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("SELECT 1 FROM missing", "missing"),
        (f"{CLICKS}; {CLICKS}", "already"),
        ("SET 'execution.runtime-mod' = 'batch'; SELECT 1", "did you mean"),
        ("SET 'table.local-time-zone' = 'Europe/Berlin'; SELECT 1", "UTC"),
        (f"{CLICKS}; INSERT INTO nowhere SELECT * FROM clicks", "no table `nowhere`"),
        (f"{CLICKS}; CREATE TABLE t (a INT); INSERT INTO t SELECT * FROM clicks", "3 columns"),
        ("DROP TABLE t", "no table `t`"),
    ],
)
def test_statements_that_are_wrong_point_at_their_place(text: str, message: str) -> None:
    with pytest.raises(SqlError, match=message) as refused:
        tg.sql(text)
    assert "at line" in str(refused.value)


# Files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    lines = [
        '{"ts": "2025-03-14T12:00:05Z", "user": "ann", "price": "1.5"}',
        '{"ts": "2025-03-14T12:00:25Z", "user": "bob", "price": "2"}',
        "nonsense",
        '{"ts": "2025-03-14T12:01:05Z", "user": "ann", "price": "3"}',
    ]
    (tmp_path / "clicks.json").write_text("\n".join(lines) + "\n")
    return tmp_path


FILES = """
    CREATE TABLE clicks (ts TIMESTAMP(3), user STRING, price DOUBLE,
                         WATERMARK FOR ts AS ts - INTERVAL '5' SECOND)
    WITH ('connector' = 'filesystem', 'path' = 'clicks.json', 'format' = 'json');
    CREATE VIEW minutes AS SELECT window_start, user, SUM(price) AS total FROM TABLE(
        TUMBLE(TABLE clicks, DESCRIPTOR(ts), INTERVAL '1' MINUTE))
        GROUP BY window_start, window_end, user;
"""


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    status = main(["sql", *words])
    output = capsys.readouterr()
    return status, output.out, output.err


def test_a_script_writes_results_and_late_rows_into_files(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = folder / "script.sql"
    script.write_text(
        FILES
        + """
        CREATE TABLE totals (who STRING, total DECIMAL(10, 2), minute TIMESTAMP(3))
        WITH ('connector' = 'filesystem', 'path' = 'out/totals.parquet', 'format' = 'parquet');
        CREATE TABLE lost (reason STRING, detail STRING)
        WITH ('connector' = 'filesystem', 'path' = 'lost', 'format' = 'json');
        INSERT INTO totals (minute, who, total) SELECT * FROM minutes;
        INSERT INTO lost SELECT reason, detail FROM LATE(minutes);
        """
    )
    assert run(capsys, str(script)) == (0, "", "")
    found = pa.parquet.read_table(folder / "out" / "totals.parquet")
    assert found.schema.field("total").type == pa.decimal128(10, 2)
    assert sorted(picked(found, "who", "minute")) == [("ann", NOON), ("ann", at(60)), ("bob", NOON)]
    lost = [*map(json.loads, (folder / "lost" / "part-0.json").read_text().splitlines())]
    assert lost == [{"reason": "bad_value", "detail": "unreadable: nonsense"}]
    status, output, _ = run(capsys, str(script), "--explain")
    assert status == 0
    assert "Insert into totals" in output
    assert "Late rows: reason, detail" in output


def test_late_rows_that_nothing_takes_are_reported(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = folder / "script.sql"
    script.write_text(FILES + "SELECT user, total FROM minutes WHERE user = 'bob'")
    status, output, errors = run(capsys, str(script), "--format", "csv")
    assert (status, output) == (1, "user,total\nbob,2.0\n")
    assert "unreadable: nonsense" in errors


def _given(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))


def parsed(words: list[str]) -> Namespace:
    found = _parser().parse_args(words)
    assert isinstance(found, Namespace)
    return found


COUNT = (
    "SELECT window_start, user, COUNT(*) AS n FROM TABLE(TUMBLE(TABLE stdin, DESCRIPTOR(ts),"
    " INTERVAL '1' MINUTE)) GROUP BY window_start, window_end, user"
)


@pytest.mark.parametrize("form", ["json", "csv"])
def test_standard_input_is_a_table(
    form: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Out of order: without a watermark, windows are complete at the end of the input.
    rows = [("2025-03-14T12:03:00Z", "bob"), ("2025-03-14T12:00:05Z", "ann")]
    text = (
        "".join(json.dumps({"ts": ts, "user": user}) + "\n" for ts, user in rows)
        if form == "json"
        else "ts,user\n" + "".join(f"{ts},{user}\n" for ts, user in rows)
    )
    _given(monkeypatch, text)
    status, output, _ = run(capsys, "-c", COUNT)
    assert status == 0
    assert sorted(map(json.loads, output.splitlines()), key=lambda row: row["user"]) == [
        {"window_start": "2025-03-14T12:00:00Z", "user": "ann", "n": 1},
        {"window_start": "2025-03-14T12:03:00Z", "user": "bob", "n": 1},
    ]


@pytest.mark.parametrize(
    ("text", "query", "rows", "status"),
    [
        ("", COUNT, [], 0),
        (
            "",
            f"CREATE TABLE stdin (ts TIMESTAMP(3), user STRING, WATERMARK FOR ts AS ts); {COUNT}",
            [],
            0,
        ),
        ("{nonsense", "SELECT user FROM stdin", [], 2),
        ("{nonsense", "CREATE TABLE stdin (user STRING); SELECT user FROM stdin", [], 1),
        (
            '{"n": 1}\n{"n": 2.5}\n{"n": "x"}',
            "SELECT n * 2 AS n FROM stdin",
            [{"n": 2.0}, {"n": 5.0}],
            1,
        ),
    ],
)
def test_the_columns_of_standard_input_are_those_of_its_rows(
    text: str,
    query: str,
    rows: list[Any],
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    _given(monkeypatch, text)
    found, output, _ = run(capsys, "-c", query)
    assert ([*map(json.loads, output.splitlines())], found) == (rows, status)


def test_a_table_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _given(monkeypatch, '{"ts": "2025-03-14T12:00:05Z", "user": "ann"}\n')
    _, output, _ = run(capsys, "-c", COUNT, "--format", "table")
    assert output.splitlines() == [
        "window_start          user  n",
        "--------------------  ----  -",
        "2025-03-14T12:00:00Z  ann   1",
        "(1 row)",
    ]


def test_errors_of_the_command_have_status_two(capsys: pytest.CaptureFixture[str]) -> None:
    status, _, errors = run(capsys, "-c", "SELECT * FROM nothing")
    assert status == 2
    assert "line 1, column" in errors
    assert run(capsys, "missing.sql")[0] == 2


@pytest.mark.parametrize("form", ["json", "csv"])
def test_texts_of_times_without_a_zone_are_in_utc(
    form: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    times = ["2025-03-14 12:00:01", "2025-03-14T12:00:02.5", "2025-03-14 13:00:03+01:00", "14:00"]
    _given(
        monkeypatch,
        "".join(json.dumps({"a": one, "b": one}) + "\n" for one in times)
        if form == "json"
        else "a,b\n" + "".join(f"{one},{one}\n" for one in times),
    )
    table = "CREATE TABLE stdin (a TIMESTAMP(3), b TIMESTAMP_LTZ(3), WATERMARK FOR a AS a)"
    assert run(capsys, "-c", f"{table}; SELECT b FROM stdin")[:2] == (
        1,
        '{"b": "2025-03-14T12:00:01Z"}\n{"b": "2025-03-14T12:00:02.500000Z"}\n'
        '{"b": "2025-03-14T12:00:03Z"}\n',
    )


GOOD = b'{"ts": "2025-03-14T12:00:05Z", "user": "ann", "n": 1, "more": [1]}\n'


@pytest.mark.parametrize(
    ("lines", "decoded", "late"),
    [
        ([GOOD, b'{"n": 2}\n', b'{"user": null, "ts": "2025-03-14 00:00:00"}'], 0, 0),
        ([GOOD, b"\n", GOOD], 2, 0),
        ([GOOD, b"{\n", GOOD], 3, 1),
        ([GOOD, GOOD.strip() + GOOD], 2, 1),
        ([GOOD, b'{"n": 99999999999999999999}\n'], 2, 1),
        ([GOOD, b'{"n": "3", "user": 4, "ts": 1741953605}\n'], 2, 0),
        ([GOOD, b'{"user": "\xff"}\n', b"[1]\n"], 3, 2),
    ],
)
def test_json_lines_are_read_as_a_whole_unless_one_is_odd(
    lines: list[bytes], decoded: int, late: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "lines.json"
    path.write_bytes(b"".join(lines))
    query = tg.sql(
        f"""CREATE TABLE t (ts TIMESTAMP(3), user STRING, n BIGINT)
        WITH ('connector' = 'filesystem', 'path' = '{path}', 'format' = 'json');
        SELECT ts, user, n FROM t"""
    )
    calls = []
    decode = json.loads
    monkeypatch.setattr(json, "loads", lambda line: (calls.append(line), decode(line))[1])
    found = query.collect()
    assert len(calls) == decoded
    assert found.late.num_rows == late
    rows = picked(found.panes, "ts", "user", "n")
    good = (at(5), "ann", 1)
    assert rows[0] == good
    assert len(rows) + late == len([line for line in lines if line.strip()])
    if decoded == 0:
        assert rows[1:] == [(None, None, 2), (NOON.replace(hour=0), None, None)]


def test_maps_are_objects_of_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "lines.json").write_text(
        '{"n": {"a": 1, "b": null}, "more": [{"x": {"c": "d"}}]}\n{"n": {}}\n{"n": {"a": "?"}}\n'
    )
    script = f"""CREATE TABLE t (n MAP<STRING, INT>, more ARRAY<ROW<x MAP<STRING, STRING>>>)
        WITH ('connector' = 'filesystem', 'path' = '{tmp_path}/lines.json', 'format' = 'json');
        SELECT n['a'] AS a, CARDINALITY(n) AS size, n, more FROM t"""
    status, output, errors = run(capsys, "-c", script)
    assert output == (
        '{"a": 1, "size": 2, "n": {"a": 1, "b": null}, "more": [{"x": {"c": "d"}}]}\n'
        '{"a": null, "size": 0, "n": {}, "more": null}\n'
    )
    assert status == 1
    assert "`n` should be map<string, int32>" in errors


# The prompt


def test_statements_of_the_prompt_end_with_a_semicolon() -> None:
    lines = ["", "SELECT 1", "FROM t;", "help", "SET 'a' = 'b';  -- c;", "SELECT ';", "';", "quit"]
    # Ctrl-C discards what waits for its end.
    typed = iter([*lines, "SELECT -- ;", None, "SELECT 2;", "left"])
    assert list(statements(typed)) == [
        "SELECT 1\nFROM t;",
        "help",
        "SET 'a' = 'b';  -- c;",
        "SELECT ';\n';",
        "quit",
        "SELECT 2;",
    ]


def test_the_prompt_runs_statements_and_goes_on_after_errors(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "stdin", sys.__stdin__)
    lines = [*FILES.strip().splitlines(), "SELECT nothing FROM minutes;", "help"]
    lines += ["SELECT user FROM minutes WHERE user = 'bob';", "quit"]
    with create_pipe_input() as typed, create_app_session(input=typed, output=DummyOutput()):
        typed.send_text("".join(f"{line}\r" for line in lines))
        assert prompt(parsed(["sql", "--format", "json"])) == 0
    output = capsys.readouterr()
    assert '{"user": "bob"}' in output.out
    assert "nothing" in output.err
    assert "SELECT user" in (folder / "state" / "tidegate" / "sql_history").read_text()


def test_the_prompt_completes_keywords_tables_and_columns() -> None:
    session = SqlSession()
    list(session.execute(CLICKS))
    words = words_of(session)
    assert {"SELECT", "clicks", "price", "ts"} <= set(words)

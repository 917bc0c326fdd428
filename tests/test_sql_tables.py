"""Definitions of tables in SQL: types, computed columns, watermarks, and options of connectors."""

from __future__ import annotations

import pyarrow as pa
import pytest

import tidegate as tg
from tidegate.errors import SqlError
from tidegate.operators.ingest.projection import project
from tidegate.sql.definitions import TableDefinition, defined_table
from tidegate.sql.parse import parse_script
from tidegate.sql.session import SqlSession
from tidegate.sql.statements import CreateTable

STAMP = pa.timestamp("us", "UTC")


def defined(text: str) -> TableDefinition:
    (statement,) = parse_script(text)
    assert isinstance(statement, CreateTable)
    return defined_table(statement)


def test_columns_of_every_kind() -> None:
    table = defined("""
        CREATE TABLE bids (
            auction BIGINT, price DECIMAL(10, 2), tags ARRAY<STRING>, place ROW<city STRING, zip INT>,
            millis BIGINT, ok BOOLEAN,
            nr BIGINT METADATA FROM 'offset' VIRTUAL,
            ts AS TO_TIMESTAMP_LTZ(MILLIS, 3),
            later AS ts + INTERVAL '1' HOUR,
            seen AS PROCTIME(),
            WATERMARK FOR ts AS ts - INTERVAL '10' SECOND,
            WATERMARK FOR later AS later
        ) WITH ('connector' = 'kafka', 'topic' = 'bids', 'format' = 'json',
                'properties.bootstrap.servers' = 'localhost:9092')""")
    assert table.columns is not None
    assert [(one.name, one.type) for one in table.columns] == [
        ("auction", pa.int64()),
        ("price", pa.decimal128(10, 2)),
        ("tags", pa.list_(pa.string())),
        ("place", pa.struct([("city", pa.string()), ("zip", pa.int32())])),
        ("millis", pa.int64()),
        ("ok", pa.bool_()),
        ("nr", pa.int64()),
        ("ts", STAMP),
        ("later", STAMP),
    ]
    assert table.table.columns is not None
    assert table.table.columns[-1] == "seen"
    assert table.input.time == "ts"
    assert table.input.watermark == tg.bounded("10 s")
    assert [(one.column, one.watermark) for one in table.input.others] == [
        ("later", tg.bounded("0 s"))
    ]
    # Kafka has partitions and offsets whether or not the table names them.
    assert table.input.partition == "__partition"
    assert table.input.offset == "__offset"
    assert table.written_schema().names == ["auction", "price", "tags", "place", "millis", "ok"]


def test_idleness_partitions_and_roles_are_options() -> None:
    table = defined("""
        CREATE TABLE t (ts TIMESTAMP(3), part STRING, nr BIGINT, WATERMARK FOR ts AS ts)
        WITH ('connector' = 'filesystem', 'path' = 'in', 'format' = 'json', 'partition' = 'PART',
              'offset' = 'nr', 'scan.watermark.idle-timeout' = '1 min',
              'scan.watermark.partitions' = 'a, b')""")
    assert table.input.watermark == tg.bounded("0 s", partitions=["a", "b"], idle_after="1 min")
    assert (table.input.partition, table.input.offset) == ("part", "nr")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ts - INTERVAL '5' SECOND", tg.bounded("5 s")),
        ("(ts - INTERVAL '1' MINUTE)", tg.bounded("1 min")),
        ("ascending()", tg.ascending()),
        ("LAGGING(INTERVAL '3' SECOND)", tg.lagging("3 s")),
        ("PUNCTUATED(mark)", tg.punctuated("mark")),
        (
            "BOUNDED(INTERVAL '5' SECOND, idle_after => INTERVAL '1' MINUTE)",
            tg.bounded("5 s", idle_after="1 min"),
        ),
        (
            "PER_KEY(INTERVAL '5' SECOND, floor => INTERVAL '1' HOUR, max_keys => 9)",
            tg.per_key("5 s", floor="1 h", max_keys=9),
        ),
    ],
)
def test_watermarks(text: str, expected: object) -> None:
    table = defined(
        f"CREATE TABLE t (ts TIMESTAMP(3), mark TIMESTAMP(3), WATERMARK FOR ts AS {text})"
    )
    assert table.input.watermark == expected


KAFKA = "'connector' = 'kafka', 'topic' = 't', 'properties.bootstrap.servers' = 'h:1'"


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ("a INT", "'connector' = 'kafak'", "did you mean 'kafka'"),
        ("a INT", "'conector' = 'kafka'", "no connector"),
        ("a INT", "'connector' = 'kafka', 'topic' = 't'", "properties.bootstrap.servers"),
        ("a INT", f"{KAFKA}, 'scan.startup.mod' = 'x'", "did you mean 'scan.startup.mode'"),
        ("a INT", f"{KAFKA}, 'scan.startup.mode' = 'now'", "can't be 'now'"),
        ("a INT", f"{KAFKA}, 'sink.partitioner' = 'fixed'", "does not apply"),
        ("a INT", "'connector' = 'filesystem', 'path' = 'p', 'format' = 'orc'", "'orc'"),
        ("a INT, WATERMARK FOR b AS b", "", "no column `b`"),
        ("a DOUBLE, WATERMARK FOR a AS a", "", "`a` is double"),
        ("a BIGINT, WATERMARK FOR a AS a - INTERVAL '5' SECOND", "", "`a` is int64"),
        ("a STRING, WATERMARK FOR a AS a", "", "`a` is string"),
        ("a TIMESTAMP, WATERMARK FOR a AS b + 1", "", "none that Tidegate knows"),
        ("a TIMESTAMP, WATERMARK FOR a AS BOUNDED(now => 1)", "", "is wrong"),
        ("a INT, b AS missing + 1", "", "no column `missing`"),
        ("a INT, b AS no_such_function(a)", "", "no_such_function"),
        ("a INT, A INT, a INT", "", "several columns"),
        ("a UNKNOWN_TYPE_", "", "not known"),
        ("a INTERVAL", "", "type"),
        ("a INT, PRIMARY KEY (b) NOT ENFORCED", "", "`b`"),
        ("a INT METADATA FROM 'offset'", "'connector' = 'print'", "no metadata"),
    ],
)
def test_what_is_wrong_is_refused_with_its_place(columns: str, options: str, message: str) -> None:
    text = f"CREATE TABLE t ({columns})" + (f" WITH ({options})" if options else "")
    with pytest.raises(SqlError, match=message) as refused:
        defined(text)
    assert "line 1, column" in str(refused.value)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("ARRAY<INT NOT NULL> NOT NULL", pa.list_(pa.int32())),
        (
            "MAP<STRING NOT NULL, ROW(a INT NOT NULL)>",
            pa.map_(pa.string(), pa.struct([("a", "i4")])),
        ),
        ("DECIMAL(103)", None),
        ("DECIMAL(10, x)", None),
        ("ARRAY<DECIMAL(3, 4)>", None),
    ],
)
def test_types_are_those_of_arrow_or_refused(kind: str, expected: pa.DataType | None) -> None:
    text = f"CREATE TABLE t (a {kind}, b INT)"
    if expected is None:
        with pytest.raises(SqlError, match="columns cannot have at line 1, column 17"):
            defined(text)
    else:
        table = defined(text)
        assert table.schema is not None
        assert table.schema.field("a").type == expected


CLICKS = """CREATE TABLE clicks (k INT, ms BIGINT, ts AS TO_TIMESTAMP_LTZ(ms, 3),
    WATERMARK FOR ts AS ts, PRIMARY KEY (k) NOT ENFORCED) WITH ('connector' = 'filesystem',
    'path' = 'in', 'format' = 'json')"""


@pytest.mark.parametrize(
    ("like", "columns", "time", "key", "path"),
    [
        ("", ["k", "ms", "x", "ts"], "ts", ("k",), "in"),
        ("(EXCLUDING ALL)", ["k", "ms", "x"], None, (), None),
        ("(INCLUDING ALL EXCLUDING OPTIONS)", ["k", "ms", "x", "ts"], "ts", ("k",), None),
        ("(EXCLUDING CONSTRAINTS INCLUDING WATERMARKS)", ["k", "ms", "x", "ts"], "ts", (), "in"),
        ("(OVERWRITING OPTIONS)", ["k", "ms", "x", "ts"], "ts", ("k",), "in"),
    ],
)
def test_a_table_like_another_one(
    like: str, columns: list[str], time: str | None, key: tuple[str, ...], path: str | None
) -> None:
    session = SqlSession()
    list(session.execute(f"{CLICKS}; CREATE TABLE c (x INT) LIKE clicks {like}"))
    table = session.definitions["c"]
    assert table.columns is not None
    assert table.columns.names == columns
    assert (table.input.time, table.primary_key) == (time, key)
    assert (None if table.options is None else table.options.get("path")) == path


def test_settings_of_flink_have_their_effect_or_none() -> None:
    session = SqlSession()
    list(
        session.execute(
            f"""USE CATALOG default_catalog; SET table.exec.mini-batch.enabled = true;
            SET 'table.exec.source.idle-timeout' = '5 s'; SET 'parallelism.default' = '3';
            SET execution.runtime-mode = 'batch'; RESET 'parallelism.default'; {CLICKS};
            CREATE TABLE quick (ts TIMESTAMP(3), WATERMARK FOR ts AS BOUNDED(INTERVAL '1' SECOND,
                IDLE_AFTER => INTERVAL '1' MINUTE))"""
        )
    )
    assert (session.settings.mode, session.settings.shards) == ("batch", None)
    marks = {name: table.input.watermark for name, table in session.tables().items()}
    assert marks["clicks"] == tg.bounded("0 s", idle_after="5 s")
    assert marks["quick"] == tg.bounded("1 s", idle_after="1 minute")
    with pytest.raises(SqlError, match="EMIT EARLY"):
        list(session.execute("SET 'table.exec.emit.early-fire.enabled' = 'true'"))


def test_tables_are_shown_and_described() -> None:
    session = SqlSession()
    script = f"""{CLICKS}; CREATE VIEW v AS SELECT k AS n FROM default_database.clicks;
        SHOW TABLES; SHOW VIEWS; DESCRIBE default_catalog.default_database.clicks; DESC v;
        SHOW CREATE TABLE clicks; SET 'pipeline.name' = 'x'; SET"""
    shown = [str(result) for result in session.execute(script) if result is not None]
    assert shown[0].split() == ["table", "name", "clicks", "v"]
    assert shown[1].split() == ["view", "name", "v"]
    rows = [line.split() for line in shown[2].splitlines()]
    assert rows[0] == ["name", "type", "key", "extras", "watermark"]
    assert rows[1] == ["k", "int32", "PRIMARY", "KEY"]
    assert rows[3][:3] == ["ts", "timestamp[us,", "tz=UTC]"]
    assert "bounded(0 seconds)" in shown[2]
    assert shown[3].split()[-1] == "n"
    assert shown[4] == f"{CLICKS};"
    assert "pipeline.name = x" in shown[5]
    # They are no results of a script.
    assert tg.sql(f"{CLICKS}; SHOW TABLES; SELECT k FROM clicks").columns == ("k",)
    with pytest.raises(SqlError, match="no table or view `w`"):
        list(session.execute("DESCRIBE w"))


def test_rows_are_inserted_into_a_partition_of_a_table() -> None:
    script = f"""{CLICKS}; CREATE TABLE out (k INT, day STRING, n BIGINT) PARTITIONED BY (day)
        WITH ('connector' = 'blackhole');
        EXECUTE STATEMENT SET BEGIN
        INSERT INTO out PARTITION (day = 'monday') SELECT k, ms FROM clicks; END;"""
    (insert,) = tg.sql(script).inserts
    rows = pa.table({"k": [1], "ms": [2]})
    assert project(rows, insert.query.output).rows.to_pylist() == [
        {"k": 1, "day": "monday", "n": 2}
    ]
    assert repr(tg.sql(script)) == "Insertions(INSERT INTO out: SqlQuery(k, ms from clicks))"
    plan = tg.sql(script.replace("EXECUTE", "EXPLAIN"))
    assert plan.startswith("Insert into out")
    with pytest.raises(SqlError, match="no column `hour`"):
        tg.sql(script.replace("(day =", "(hour ="))

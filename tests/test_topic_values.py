"""Values of Kafka messages as columns, aligned with their messages, and offsets of batches; without
Spark and without a broker.
"""

from __future__ import annotations

import io
import itertools
import json
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.examples import examples
from tidegate.errors import CorruptStateError, SpecError
from tidegate.operators.ingest.json_depth import MAX_DEPTH
from tidegate.operators.ingest.schema_cast import BROKEN
from tidegate.spark.sources.admission import limit_events
from tidegate.spark.sources.topics.avro import arrow_schema_of, parse_avro_schema
from tidegate.spark.sources.topics.offsets import OffsetRange, TopicOffset, share_ranges
from tidegate.spark.sources.topics.planner import Starting
from tidegate.spark.sources.topics.values import Decoded, decoder_of

UTC = pa.timestamp("us", "UTC")
SCHEMA = pa.schema([("user", pa.string()), ("n", pa.int64()), ("ts", UTC)])


def described(row: int, why: str, value: bytes) -> str:
    return f"{row}|{why}|{value.decode(errors='replace')}"


def decode(form: str, values: list[bytes | None], schema: Any = SCHEMA, **options: Any) -> Decoded:
    return decoder_of(form, schema, **options).decode(values, described)


def rows(decoded: Decoded) -> list[tuple[Any, ...]]:
    return [
        tuple(row[name] for name in ("user", "n") if name in row)
        for row in decoded.table.to_pylist()
    ]


def problems(decoded: Decoded) -> dict[int, str]:
    if BROKEN not in decoded.table.column_names:
        return {}
    texts = decoded.table.column(BROKEN).to_pylist()
    return {row: text for row, text in enumerate(texts) if text is not None}


GOOD = b'{"user": "ann", "n": 1, "ts": "2025-03-14T12:00:00Z"}'


def test_objects_become_columns_in_the_types_of_the_schema() -> None:
    found = decode("json", [GOOD, b'{"n": 2, "more": [1]}', b'  {"user": "bob"} ']).table
    assert found.schema == SCHEMA
    assert found.column("user").to_pylist() == ["ann", None, "bob"]
    assert found.column("ts").cast(pa.int64())[0].as_py() == 1_741_953_600_000_000


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (b"", "Expecting value"),
        (b"   ", "Expecting value"),
        (b"[1]", "not an object"),
        (b'{"user": "x"', "delimiter"),
        (b'{"user": "x"}{"user": "y"}', "Extra data"),
        (b'{"user": "x"}\n{"user": "y"}', "Extra data"),
        (b'{"user": "x\ny"}', "control character"),
        (b'{"user": "\xff"}', "utf-8"),
        (b'{"n": ' + b"[" * 10_000 + b"]" * 10_000 + b"}", f"deeper than {MAX_DEPTH}"),
        (b'{"n": "much"}', "`n` should be int64, got 'much'"),
        (b'{"ts": "soon"}', "`ts` should be timestamp"),
        (None, "it has no value"),
    ],
)
def test_a_malformed_message_is_one_row_with_the_reason(bad: bytes | None, why: str) -> None:
    many = [b'{"user": "u%d", "n": %d}' % (n, n) for n in range(100)]
    for at in (0, 37, 99):
        values: list[bytes | None] = [*many[:at], bad, *many[at:]]
        found = decode("json", values)
        assert problems(found).keys() == {at}
        assert why in problems(found)[at]
        assert rows(found)[:at] + rows(found)[at + 1 :] == [(f"u{n}", n) for n in range(100)]


@pytest.mark.parametrize("form", ["json", "csv"])
def test_messages_that_complete_each_other_stay_apart(form: str) -> None:
    joined: dict[str, list[bytes]] = {
        # As one text, these are three objects.
        "json": [b'{"user": "a", "n":', b'{"user": "b"}}', b'{"n": 1}{"n": 2}'],
        "csv": [b'a,"1', b'2",', b"b,1,\nc,2,"],
    }
    found = decode(form, [*joined[form]])
    assert problems(found).keys() == {0, 1, 2}


texts = st.text(alphabet='ab"\\{}[],\n é', max_size=8)
objects = st.fixed_dictionaries({}, optional={"user": texts | st.none(), "n": st.integers(-9, 9)})
messages = st.one_of(
    st.tuples(objects, st.sampled_from([None, 1])).map(
        lambda drawn: json.dumps(drawn[0], indent=drawn[1], ensure_ascii=False).encode()
    ),
    st.text(alphabet='{}":,ab1 \n', max_size=12).map(str.encode),
)


@examples(100)
@given(st.lists(messages, max_size=60))
def test_every_message_is_decoded_as_if_it_were_alone(values: list[bytes]) -> None:
    together = decode("json", [*values])
    alone = [decode("json", [value]) for value in values]
    assert together.table.num_rows == len(values)
    assert [*problems(together)] == [row for row, one in enumerate(alone) if problems(one)]
    assert rows(together) == [row for one in alone for row in rows(one)]


def test_csv_values_are_lines_in_the_order_of_the_schema() -> None:
    values = [b"ann,1,2025-03-14T12:00:00Z", b'"b,b",2,\r\n', b"c,3", b"", b"d,x,", b"e,5,\xff"]
    found = decode("csv", [*values])
    assert rows(found) == [
        ("ann", 1),
        ("b,b", 2),
        (None, None),
        (None, None),
        ("d", None),
        (None, None),
    ]
    assert problems(found).keys() == {2, 3, 4, 5}
    assert "2 cells instead of 3" in problems(found)[2]
    assert "`n` should be int64, got 'x'" in problems(found)[4]
    other = problems(decode("csv", [b"a,1,\nb,2,", b"\n"]))
    assert "several lines instead of one" in other[0]
    assert "empty" in other[1]
    piped = decode("csv", [b"ann|1|"], delimiter="|")
    assert rows(piped) == [("ann", 1)]


AVRO: dict[str, Any] = {
    "type": "record",
    "name": "Click",
    "fields": [
        {"name": "user", "type": ["null", "string"]},
        {"name": "n", "type": "long"},
        {"name": "ts", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
    ],
}


def avro(user: str | None, n: int, header: bytes = b"") -> bytes:
    stream = io.BytesIO()
    row = {"user": user, "n": n, "ts": 1_741_953_600_000_000, "tags": ["x", "y"]}
    fastavro.schemaless_writer(stream, fastavro.parse_schema(AVRO), row)
    return header + stream.getvalue()


@pytest.mark.parametrize("schema_id", [None, 7])
def test_avro_records_have_the_types_of_their_schema(schema_id: int | None) -> None:
    document = parse_avro_schema(json.dumps(AVRO))
    schema = arrow_schema_of(document)
    assert schema.types == [pa.string(), pa.int64(), UTC, pa.list_(pa.string())]
    header = b"" if schema_id is None else b"\0" + schema_id.to_bytes(4, "big")
    good = [avro("ann", 1, header), avro(None, 2, header)]
    options = {"text": json.dumps(document), "schema_id": schema_id}
    found = decode("avro", [*good], schema, **options)
    assert rows(found) == [("ann", 1), (None, 2)]
    assert found.table.column("ts").cast(pa.int64()).to_pylist() == [1_741_953_600_000_000] * 2
    bad = [good[0] + b"x", good[0][:-3], b"", b"\xff" * 30, None]
    found = decode("avro", [good[0], *bad, good[1]], schema, **options)
    assert problems(found).keys() == {1, 2, 3, 4, 5}
    assert rows(found)[-1] == (None, 2)
    short = json.dumps({**AVRO, "fields": [{"name": "x", "type": "double"}]})
    only = arrow_schema_of(parse_avro_schema(short))
    assert "0x" not in problems(decode("avro", [b"\1"], only, text=short))[0], "not in a replay"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ([{"name": "x", "type": ["int", "string"]}], "unions of several types"),
        ([{"name": "x", "type": {"type": "array", "items": "null"}}], "at least one byte"),
        (
            [
                {
                    "name": "x",
                    "type": {
                        "type": "array",
                        "items": {"type": "record", "name": "Empty", "fields": []},
                    },
                }
            ],
            "at least one byte",
        ),
        ([{"name": "x", "type": ["null", "Click"]}], "contains itself"),
        ([{"name": "x", "type": "strange"}], "strange"),
    ],
)
def test_avro_types_without_a_column_are_refused(fields: list[Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        parse_avro_schema({"type": "record", "name": "Click", "fields": fields})


@pytest.mark.parametrize("text", ["", "[]", "{}", '"string"', '{"type": "record"}'])
def test_what_is_no_avro_record_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match="Hint"):
        parse_avro_schema(text)


def ipc(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def test_arrow_messages_have_any_number_of_rows() -> None:
    tables = [pa.table({"n": [*range(size)], "user": ["u"] * size}) for size in (2, 0, 3)]
    tables[1] = tables[1].cast(tables[0].schema)
    whole = ipc(tables[0])
    found = decode("arrow", [*map(ipc, tables), None, whole[:60], b"", ipc(pa.table({"z": [1]}))])
    assert found.counts is not None
    assert found.counts.tolist() == [2, 0, 3, 1, 1, 1, 1]
    assert [row[1] for row in rows(found)][:5] == [0, 1, 0, 1, 2]
    assert problems(found).keys() == {5, 6, 7, 8}


@pytest.mark.parametrize("kind", [pa.binary(), pa.string()])
def test_raw_values_are_bytes_or_text(kind: pa.DataType) -> None:
    found = decode("raw", [b"x", b"\xff", None], pa.schema([("value", kind)]))
    is_text = kind == pa.string()
    assert found.table.column("value").to_pylist() == (
        ["x", None, None] if is_text else [b"x", b"\xff", None]
    )
    assert problems(found).keys() == ({1} if is_text else set())


# Offsets


def test_an_offset_comes_back_from_its_document() -> None:
    offset = TopicOffset({("a-b", 0): 5, ("a", 11): 7}, {("a", 11): 3}, 99, {"a": "3naxXN1t"})
    assert TopicOffset.from_dict(json.loads(json.dumps(offset.to_dict()))) == offset
    before = TopicOffset({("a-b", 0): 2})
    assert offset.ranges_after(before) == [
        OffsetRange(("a", 11), 3, 7),
        OffsetRange(("a-b", 0), 2, 5),
    ]
    with pytest.raises(CorruptStateError, match="version 2"):
        TopicOffset.from_dict({**offset.to_dict(), "version": 2})


@examples(100)
@given(st.lists(st.integers(0, 400_000), max_size=8), st.integers(1, 8))
def test_tasks_share_all_messages_once_and_in_order(sizes: list[int], tasks: int) -> None:
    ranges = [OffsetRange(("t", n), 10, 10 + size) for n, size in enumerate(sizes) if size]
    shares = share_ranges(ranges, tasks)
    flat = [one for share in shares for one in share]
    assert flat == sorted(flat)
    assert all(len(one) for one in flat)
    for whole in ranges:
        parts = [one for one in flat if one.place == whole.place]
        assert [parts[0].low, parts[-1].high] == [whole.low, whole.high]
        assert all(one.high == after.low for one, after in itertools.pairwise(parts))
    assert len(shares) <= tasks
    total = sum(sizes)
    if total > 50_000 * tasks:
        assert max(sum(map(len, share)) for share in shares) < 1.5 * total / tasks + 1


@examples(100)
@given(st.lists(st.integers(0, 50), max_size=6), st.integers(1, 100))
def test_a_batch_takes_the_same_of_every_partition_that_has_it(sizes: list[int], most: int) -> None:
    available = {("t", n): size for n, size in enumerate(sizes)}
    taken = limit_events(available, most)
    assert sum(taken.values()) == min(most, sum(sizes))
    left_out = [place for place, size in available.items() if taken.get(place, 0) < size]
    if left_out and len(sizes) <= most:
        least = min(taken[place] for place in left_out)
        assert max(taken.values()) <= least + 1


@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        ("earliest", Starting("earliest")),
        ("2025-03-14T12:00Z", Starting(time=1_741_953_600_000_000)),
        (
            {0: 5, "clicks-1": "latest"},
            Starting("earliest", None, ((("clicks", 0), 5), (("clicks", 1), "latest"))),
        ),
    ],
)
def test_where_a_query_begins(given_: Any, expected: Starting) -> None:
    assert Starting.parse(given_, ("clicks",)) == expected


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        (5, "got 5"),
        ({"views-0": 5}, "no partition of `clicks`"),
        ({0: -3}, "at least 0"),
        ({0: True}, "at least 0"),
        ("tomorrow", "tomorrow"),
    ],
)
def test_beginnings_that_cannot_be(given_: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        Starting.parse(given_, ("clicks",))

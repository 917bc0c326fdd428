"""Fuzz targets for rows: Python rows, files of direct sources, lines and values of messages."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import tidegate as tg
from fuzz.target import Target, gzipped, json_of
from tidegate.cli.stream_lines import Form, events_of
from tidegate.operators.ingest.typed_rows import UNREADABLE, fit_schema
from tidegate.spark.sources.binary_formats import Arrow, Parquet
from tidegate.spark.sources.files import FileEntry, FilePart
from tidegate.spark.sources.formats import Format
from tidegate.spark.sources.text_formats import Csv, Json
from tidegate.spark.sources.topics.values import decoder_of
from tidegate.state.serialization import encode_table

SCHEMA = pa.schema(
    {
        "user": pa.string(),
        "ts": pa.timestamp("us", "UTC"),
        "price": pa.float64(),
        "n": pa.int32(),
        "tags": pa.list_(pa.string()),
        "at": pa.struct({"x": pa.decimal128(10, 2), "day": pa.date32()}),
    }
)
FLAT = pa.schema([SCHEMA.field(name) for name in ("user", "ts", "price", "n")])
ROWS = [
    {"user": "ann", "ts": "2025-03-14T12:00:00Z", "price": 1.5, "n": 1, "tags": ["a", None]},
    {"user": None, "ts": 17, "price": None, "n": 2, "tags": [], "at": {"x": "1.25", "day": None}},
]
LINES = b"""{"user": "ann", "ts": "2025-03-14T12:00:00Z", "price": 1.5, "n": 1, "tags": ["a", null]}
{"user": "b\\u00fc", "ts": 5, "at": {"x": 1.25, "day": "2025-03-14"}, "more": [[{}]]}
not json
{"user": 5, "price": 1e400, "n": 123456789012345678901}
"""
CSV = b"""user,ts,price,n
ann,2025-03-14T12:00:00Z,1.5,1
"b,""c",,NaN,2
x,y
"""
AVRO = (
    '{"type": "record", "name": "r", "fields": [{"name": "user", "type": ["null", "string"]},'
    ' {"name": "n", "type": "int"}]}'
)
STREAM = tg.stream(time="ts", key="user", watermark=tg.bounded("10 seconds"))


def process(table: Any) -> None:
    """Send rows through an operator with most kinds of aggregates."""
    op = (
        STREAM.window(tg.tumbling("1 minute"))
        .allow_lateness("1 hour")
        .retracting()
        .aggregate(
            n=tg.count(),
            spent=tg.sum("price"),
            most=tg.max("n"),
            users=tg.count_distinct("user"),
            all=tg.list_("tags"),
        )
        .embedded(now=0)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        op.add_messages(table)
        op.timeout(60_000_000)
        op.finish()
        results = op.get_result()
    results.panes.validate(full=True)
    results.late.validate(full=True)


def rows(data: bytes) -> None:
    try:
        found = json_of(data)
    except (ValueError, RecursionError):
        return
    process(found)


def file_of(form: Format, schema: pa.Schema) -> Callable[[bytes], None]:
    """A target that reads a file in a format."""

    def read(data: bytes) -> None:
        entry = FileEntry("in.json.gz" if data[:2] == b"\x1f\x8b" else "in.json", len(data), 0)
        part = FilePart(0, entry, 0, len(data))
        tables = []
        try:
            for table in form.tables(pa.BufferReader(data), part, schema):
                fitted = fit_schema(table, schema)
                fitted.validate(full=True)
                tables.append(fitted)
        except UNREADABLE:
            return
        except OSError as error:
            if error.errno is not None:
                raise
            return
        for table in tables[:3]:
            process(table.slice(0, 1000))

    return read


def messages(data: bytes) -> None:
    """Values of messages of a topic, divided at line ends."""
    values: list[bytes | None] = [*data.split(b"\n")[:100], None]
    record = pa.schema({"user": pa.string(), "n": pa.int32()})
    for decoder in (
        decoder_of("json", SCHEMA),
        decoder_of("csv", FLAT),
        decoder_of("avro", record, text=AVRO),
        decoder_of("arrow", SCHEMA),
        decoder_of("raw", pa.schema({"value": pa.string()})),
    ):
        found = decoder.decode(values, lambda row, why, value: f"{row} {why} {value[:10]!r}")
        found.table.validate(full=True)


def lines(data: bytes) -> None:
    for form in (Form(), Form(key="user", time="ts"), Form(text=True)):
        events_of(1, data.split(b"\n"), form)


def _table() -> pa.Table:
    rows = [{"user": "ann", "ts": 5, "price": 1.5, "n": 1, "tags": ["a"], "at": {"x": 1}}, {}]
    return pa.Table.from_pylist(rows * 20, SCHEMA)


def _parquet() -> Iterable[bytes]:
    for compression in ("none", "snappy", "zstd"):
        sink = io.BytesIO()
        pq.write_table(_table(), sink, compression=compression)
        yield sink.getvalue()


def _arrow() -> Iterable[bytes]:
    yield encode_table(_table()).to_pybytes()
    yield encode_table(_table(), "lz4").to_pybytes()
    sink = io.BytesIO()
    encoded = pa.table({"user": pa.array(["a", "b", "a"]).dictionary_encode(), "n": [1, 2, 3]})
    with pa.ipc.new_file(sink, encoded.schema) as writer:
        writer.write_table(encoded)
    yield sink.getvalue()


TARGETS = (
    Target(
        "rows",
        rows,
        lambda: [b'[{"user": "a", "ts": 1, "price": 2}]', b'[{}, {"ts": "x", "tags": [[]]}]'],
    ),
    Target("json_files", file_of(Json(), SCHEMA), lambda: [LINES, gzipped(LINES)]),
    Target("csv_files", file_of(Csv(), FLAT), lambda: [CSV, gzipped(CSV)]),
    Target("arrow_files", file_of(Arrow(), SCHEMA), _arrow),
    Target("parquet_files", file_of(Parquet(), SCHEMA), _parquet),
    Target("messages", messages, lambda: [LINES, CSV, b"\x02\x06ann\x02"]),
    Target("lines", lines, lambda: [LINES]),
)

"""Direct sources without Spark: which files a batch has, and what is read from them."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import feather

from support.examples import examples
from tidegate.errors import CorruptStateError, InputError, SpecError
from tidegate.operators.ingest.json_text import parse
from tidegate.operators.ingest.schema_cast import BROKEN
from tidegate.spark.sources import files as files_module
from tidegate.spark.sources import text_formats
from tidegate.spark.sources.binary_formats import Arrow, Parquet
from tidegate.spark.sources.files import (
    DAY,
    FileEntry,
    FilePart,
    Folder,
    FolderMonitor,
    FolderOffset,
    group_parts,
    parts_of,
)
from tidegate.spark.sources.formats import Format, PartReader, read_schema
from tidegate.spark.sources.text_formats import Csv, Json

UTC = pa.timestamp("us", "UTC")
SCHEMA = pa.schema([("key", pa.int64()), ("ts", UTC), ("value", pa.float64())])
EVENTS = pa.table(
    {"key": [1, 2, 3], "ts": pa.array([10, 20, 30], UTC), "value": [0.5, None, 2.5]}, schema=SCHEMA
)


def put(folder: Path, name: str, content: bytes = b"x", at: int = 1_700_000_000) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    os.utime(path, (at, at))
    return path


def names(offset: FolderOffset | None) -> list[str]:
    return [] if offset is None else [file.path for file in offset.files]


def replayed(offset: FolderOffset) -> FolderOffset:
    """The offset as Spark gives it back."""
    return FolderOffset.from_dict(json.loads(json.dumps(offset.to_dict())))


# Which files


def test_hidden_and_empty_files_are_left_out_and_names_are_chosen_by_a_pattern(
    tmp_path: Path,
) -> None:
    for name in (
        "a.json",
        "b.json",
        "c.csv",
        "_d.json",
        ".e.json",
        "_temporary/f.json",
        "deep/g.json",
    ):
        put(tmp_path, name)
    put(tmp_path, "empty.json", b"")

    def listed(**options: Any) -> list[str]:
        return sorted(file.path for file in Folder(str(tmp_path), **options).files())

    assert listed() == ["a.json", "b.json", "c.csv"]
    assert listed(glob="*.json") == ["a.json", "b.json"]
    assert listed(glob="{a,c}.*") == ["a.json", "c.csv"]
    assert listed(glob="[bc].*") == ["b.json", "c.csv"]
    assert listed(recursive=True) == ["a.json", "b.json", "c.csv", "deep/g.json"]


def test_folders_that_name_a_column_are_looked_into(tmp_path: Path) -> None:
    put(tmp_path, "day=2024-01-01/hour=7/a.json")
    put(tmp_path, "other/b.json")
    folder = Folder(str(tmp_path))
    assert [file.path for file in folder.files()] == ["day=2024-01-01/hour=7/a.json"]
    assert folder.partition_values("day=2024-01-01/hour=7/a.json") == {
        "day": "2024-01-01",
        "hour": "7",
    }
    assert Folder(str(tmp_path), recursive=True).partition_values("day=2024-01-01/a.json") == {}


def test_a_folder_that_is_not_there_is_an_error_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nowhere"):
        Folder(str(tmp_path / "nowhere")).files()


def test_batches_go_by_age_and_within_their_limits(tmp_path: Path) -> None:
    for n, name in enumerate("dcba"):
        put(tmp_path, name, b"x" * 10, at=1_700_000_000 + n)
    put(tmp_path, "e", b"x" * 10, at=1_700_000_000)
    monitor = FolderMonitor(Folder(str(tmp_path)))
    first = monitor.next(FolderOffset(), 5, max_files=2)
    assert names(first) == ["d", "e"]
    assert first is not None
    assert (first.batch, first.clock) == (1, 5)
    assert names(monitor.next(replayed(first), 6, max_files=2)) == ["c", "b"]
    assert names(monitor.next(FolderOffset(), 5, max_bytes=35)) == ["d", "e", "c"]
    assert names(monitor.next(FolderOffset(), 5, max_bytes=1)) == ["d"], (
        "a batch has one file at least"
    )
    assert names(monitor.next(FolderOffset(), 5)) == ["d", "e", "c", "b", "a"]
    assert names(
        FolderMonitor(Folder(str(tmp_path)), latest_first=True).next(FolderOffset(), 5, max_files=2)
    ) == ["a", "b"]


def test_a_file_that_comes_later_with_an_older_date_is_read(tmp_path: Path) -> None:
    put(tmp_path, "new", at=1_700_000_000)
    monitor = FolderMonitor(Folder(str(tmp_path)), max_age=7 * DAY)
    first = monitor.next(FolderOffset(), 0)
    assert first is not None
    put(tmp_path, "older", at=1_700_000_000 - 6 * 86_400)
    put(tmp_path, "too_old", at=1_700_000_000 - 8 * 86_400)
    second = monitor.next(replayed(first), 0)
    assert names(second) == ["older"]
    assert second is not None
    assert monitor.next(replayed(second), 0) is None


def test_a_file_that_is_written_again_is_not_read_again(tmp_path: Path) -> None:
    put(tmp_path, "a")
    monitor = FolderMonitor(Folder(str(tmp_path)))
    first = monitor.next(FolderOffset(), 0)
    assert first is not None
    put(tmp_path, "a", b"other", at=1_700_000_500)
    assert monitor.next(first, 0) is None


def test_what_is_too_old_is_forgotten_so_that_offsets_stay_small() -> None:
    offset = FolderOffset()
    for day in range(30):
        offset = offset.after(
            [FileEntry(f"{day}-{n}", 1, day * DAY + n) for n in range(10)], 0, max_age=7 * DAY
        )
    assert len(offset.hashes) == 80
    assert offset.horizon == 22 * DAY + 9
    assert len(replayed(offset).hashes) == 80


def test_after_freezing_nothing_new_comes(tmp_path: Path) -> None:
    put(tmp_path, "a")
    monitor = FolderMonitor(Folder(str(tmp_path)))
    monitor.freeze()
    put(tmp_path, "b")
    first = monitor.next(FolderOffset(), 0)
    assert names(first) == ["a"]
    assert first is not None
    assert monitor.next(first, 0) is None


def test_a_clock_that_went_back_does_not_go_back_in_offsets() -> None:
    first = FolderOffset().after([FileEntry("a", 1, 1)], 50, None)
    assert first.after([FileEntry("b", 1, 2)], 20, None).clock == 50


@examples(50)
@given(
    st.lists(
        st.lists(
            st.tuples(st.text(min_size=1, max_size=8), st.integers(0, 5 * DAY)),
            min_size=1,
            max_size=5,
        ),
        max_size=8,
    )
)
def test_every_file_that_was_read_is_known_after_a_replay(
    batches: list[list[tuple[str, int]]],
) -> None:
    offset, paths = FolderOffset(), set()
    for batch in batches:
        offset = replayed(
            offset.after([FileEntry(path, 1, changed) for path, changed in batch], 0, None)
        )
        paths |= {path for path, _ in batch}
    assert {*offset.hashes.tolist()} == {*files_module._hashes(paths).tolist()}


def test_offsets_of_others_are_refused() -> None:
    with pytest.raises(CorruptStateError, match="version"):
        FolderOffset.from_dict({"index": 3})
    with pytest.raises(CorruptStateError, match="is damaged"):
        _ = FolderOffset(seen={"1": "nonsense"}).hashes


def test_a_hundred_thousand_files_make_an_offset_of_less_than_a_megabyte() -> None:
    offset = FolderOffset().after(
        [FileEntry(f"part-{n:06}.parquet", 1, n) for n in range(100_000)], 0, None
    )
    assert len(json.dumps({**offset.to_dict(), "files": []})) < 1_000_000


def test_shares_keep_the_order_and_are_about_equal() -> None:
    def sizes(*given_sizes: int, tasks: int = 2) -> list[list[int]]:
        parts = parts_of(
            [FileEntry(str(n), size, 0) for n, size in enumerate(given_sizes)], splits=False
        )
        return [[part.number for part in share] for share in group_parts(parts, tasks)]

    big = 20 << 20
    assert sizes() == []
    assert sizes(big) == [[0]]
    assert sizes(big, big) == [[0], [1]]
    assert sizes(big + 7, big - 3, big, big + 9) == [[0, 1], [2, 3]]
    assert sizes(10, 20, 30) == [[0, 1, 2]], "small files are read by one task"
    many = sizes(*[100 << 20] * 10)
    assert [n for share in many for n in share] == list(range(10))
    assert len(many) >= 8, "a task does not read more than it should"


@examples(50)
@given(st.lists(st.integers(1, 300 << 20), max_size=40), st.integers(1, 16))
def test_every_part_is_in_one_share(sizes: list[int], tasks: int) -> None:
    parts = parts_of([FileEntry(str(n), size, 0) for n, size in enumerate(sizes)], splits=True)
    assert [part for share in group_parts(parts, tasks) for part in share] == parts
    assert [part.number for part in parts] == list(range(len(parts)))
    by_file: dict[str, list[FilePart]] = {}
    for part in parts:
        by_file.setdefault(part.file.path, []).append(part)
    for path, own in by_file.items():
        assert [own[0].start, own[-1].end] == [0, sizes[int(path)]]
        assert all(a.end == b.start for a, b in itertools.pairwise(own))


# What is read


def read(folder: Path, form: Format, schema: pa.Schema = SCHEMA, **options: Any) -> pa.Table:
    """All rows of the folder, in the order of names."""
    where = Folder(str(folder))
    found = sorted(where.files(), key=lambda file: file.path)
    reading = PartReader(where, form, schema, **options)
    tables = [
        table for part in parts_of(found, splits=form.splits) for table in reading.tables(part)
    ]
    return pa.concat_tables(tables, promote_options="default") if tables else schema.empty_table()


def marks(table: pa.Table) -> list[str | None]:
    return (
        table.column(BROKEN).to_pylist()
        if BROKEN in table.column_names
        else [None] * table.num_rows
    )


def write(table: pa.Table, path: Path, form: str) -> None:
    if form == "parquet":
        pq.write_table(table, path)
    elif form == "arrow":
        feather.write_feather(table, path)
    elif form == "csv":
        arrow_csv.write_csv(table, path)
    else:
        path.write_text("".join(json.dumps(row, default=str) + "\n" for row in table.to_pylist()))


FORMS: dict[str, Format] = {"parquet": Parquet(), "arrow": Arrow(), "json": Json(), "csv": Csv()}


@pytest.mark.parametrize("form", FORMS)
def test_every_format_gives_the_same_rows(tmp_path: Path, form: str) -> None:
    write(EVENTS, tmp_path / "a", form)
    assert read(tmp_path, FORMS[form]).equals(EVENTS)


@pytest.mark.parametrize("form", FORMS)
def test_a_schema_that_changes_between_files(tmp_path: Path, form: str) -> None:
    instants = pa.array([1], UTC)
    write(pa.table({"key": [1], "ts": instants, "value": [1.5]}), tmp_path / "a", form)
    write(
        pa.table(
            {"extra": ["new"], "key": [2], "ts": instants, "value": pa.array([2], pa.int32())}
        ),
        tmp_path / "b",
        form,
    )
    write(pa.table({"key": [3], "ts": instants}), tmp_path / "c", form)
    write(
        pa.table({"key": ["4", "five"], "ts": pa.array([1, 1], UTC), "value": ["4.5", "6"]}),
        tmp_path / "d",
        form,
    )
    table = read(tmp_path, FORMS[form])
    assert table.select(SCHEMA.names).schema.equals(SCHEMA)
    # Text in the place of a number is a number in CSV and where it can be read as one.
    assert table.column("key").to_pylist() == [1, 2, 3, 4, None]
    assert table.column("value").to_pylist() == [1.5, 2.0, None, 4.5, 6.0]
    assert marks(table) == [None] * 4 + ["`key` should be int64, got 'five'"]


@pytest.mark.parametrize("form", ["json", "csv"])
def test_instants_are_read_in_any_form(tmp_path: Path, form: str) -> None:
    texts = [
        "1970-01-01T00:00:01Z",
        "1970-01-01 00:00:02",
        "1970-01-01T01:00:03+01:00",
        "1970-01-01T00:00:04.000005",
        "1969-12-31T23:59:59Z",
    ]
    write(pa.table({"key": range(6), "ts": [*texts, "soon"]}), tmp_path / "a", form)
    table = read(tmp_path, FORMS[form])
    assert table.column("ts").cast(pa.int64()).to_pylist() == [
        1_000_000,
        2_000_000,
        3_000_000,
        4_000_005,
        -1_000_000,
        None,
    ]
    assert marks(table) == [None] * 5 + ["`ts` should be timestamp[us, tz=UTC], got 'soon'"]


def test_finer_instants_are_rounded_down(tmp_path: Path) -> None:
    pq.write_table(
        pa.table({"ts": pa.array([1_999, -1], pa.timestamp("ns", "UTC"))}), tmp_path / "a"
    )
    with pytest.warns(RuntimeWarning, match="nanoseconds"):
        found = read(tmp_path, Parquet())
    assert found.column("ts").cast(pa.int64()).to_pylist() == [1, -1]
    assert BROKEN not in found.column_names


def test_broken_lines_of_json_keep_their_text(tmp_path: Path) -> None:
    lines = [
        b'{"key": 1, "ts": "1970-01-01T00:00:00Z", "value": 1}',
        b'{"key": 2, "ts": "1970',
        b"",
        b"[1, 2]",
        b'{"key": "x", "value": 2}',
        b'{"key": 3, "value": {"deep": 1}}',
        b"\xff\xfe",
        b'{"key": 99999999999999999999, "value": NaN}',
        b'{"key": 4, "ts": 7, "value": 1e3}',
        b'{"key": 5',
    ]
    put(tmp_path, "a.json", b"\n".join(lines))
    table = read(tmp_path, Json())
    assert table.column("key").to_pylist() == [1, None, None, None, 3, None, None, 4, None]
    assert table.column("value").to_pylist()[-2] == 1000
    assert table.column("ts").cast(pa.int64()).to_pylist()[-2] == 7_000_000, (
        "numbers are seconds, as Spark reads them"
    )
    found = marks(table)
    assert [text is None for text in found] == [
        True,
        False,
        False,
        False,
        False,
        False,
        False,
        True,
        False,
    ]
    assert str(found[1]).startswith("line 2 of `a.json` cannot be read")
    assert str(found[1]).endswith('{"key": 2, "ts": "1970')
    assert "line 4" in str(found[2])
    assert "not an object" in str(found[2])
    assert found[3] == "`key` should be int64, got 'x'"
    assert found[4] == "`value` should be double, got {'deep': 1}"
    assert "line 7" in str(found[5])
    assert "line 10" in str(found[8])


@given(
    st.lists(
        st.sampled_from(
            [b"null", b"{}", b'{"a": null}', b'{"a":null}', b"[null]", b"\n", b" ", b", null"]
        ),
        max_size=8,
    )
)
def test_oracle_a_null_where_an_object_stands(parts):
    data = b"".join(parts)
    stands = re.search(rb"(?:\A|[}l\n])\s*null", data) is not None
    if stands:
        with pytest.raises(pa.ArrowInvalid, match="a line may be null"):
            parse(data)
    else:
        with suppress(pa.ArrowInvalid):
            parse(data)


@pytest.mark.parametrize("line", [b"null", b" null ", b"\xef\xbb\xbfnull", b'{"key": 7}null'])
@pytest.mark.parametrize("place", [0, 1, 3])
def test_a_line_of_json_that_is_null_costs_one_line(
    tmp_path: Path, line: bytes, place: int
) -> None:
    """The reader of Arrow crashes on it."""
    lines = [b'{"key": %d, "ts": 7}' % number for number in range(3)]
    lines.insert(place, line)
    put(tmp_path, "a.json", b"\n".join(lines))
    table = read(tmp_path, Json())
    assert [key for key in table.column("key").to_pylist() if key is not None] == [0, 1, 2]
    [mark] = [text for text in marks(table) if text is not None]
    assert mark.startswith(f"line {place + 1} of `a.json` cannot be read")


@pytest.mark.parametrize("levels", [1_000, 100_000])
@pytest.mark.parametrize("column", ["value", "other"])
def test_a_deep_line_of_json_costs_one_line(tmp_path: Path, levels: int, column: str) -> None:
    deep = json.dumps({"key": 7})[:-1].encode() + b', "%b": ' % column.encode()
    good = [b'{"key": %d, "ts": 7}' % n for n in range(1_000)]
    lines = [*good[:500], deep + b"[" * levels + b"]" * levels + b"}", *good[500:]]
    put(tmp_path, "a.json", b"\n".join(lines))
    table = read(tmp_path, Json())
    assert table.column("key").to_pylist() == [*range(500), None, *range(500, 1_000)]
    found = [text for text in marks(table) if text is not None]
    assert len(found) == 1
    assert found[0].startswith(
        "line 501 of `a.json` cannot be read (a value is nested deeper than 100 levels): {"
    )
    with pytest.raises(SpecError, match="nested deeper than 100 levels"):
        read_schema(Folder(str(tmp_path)), Json())


def test_broken_rows_of_csv_keep_their_text(tmp_path: Path) -> None:
    put(
        tmp_path,
        "a.csv",
        b'key,ts,value\r\n1,1970-01-01T00:00:00Z,1\r\n2,1970-01-01T00:00:00Z\r\n\r\nx,,\r\n3,,"4"\r\n5,\xff,6\r\n',
    )
    table = read(tmp_path, Csv())
    assert table.column("key").to_pylist() == [1, None, None, 3, None]
    assert table.column("value").to_pylist() == [1, None, None, 4, None]
    found = marks(table)
    assert (
        found[1]
        == "line 3 of `a.csv` cannot be read (2 cells instead of 3): 2,1970-01-01T00:00:00Z"
    )
    assert found[2] == "`key` should be int64, got 'x'"
    assert found[3] is None
    assert "line 7" in str(found[4])
    assert "UTF-8" in str(found[4])


@pytest.mark.parametrize(
    ("text", "header", "expected"),
    [
        ("key,value\n1,2\n", None, [(1, 2.0)]),
        ("value,key,more\n2,1,x\n", None, [(1, 2.0)]),
        ("value\n2\n", None, [(None, 2.0)]),
        ("1,2\n3,4\n", None, [(1, 2.0), (3, 4.0)]),
        ("1,2\n3,4\n", False, [(1, 2.0), (3, 4.0)]),
        ("\ufeffkey,value\n1,2", True, [(1, 2.0)]),
        ("key,value\n", None, []),
    ],
)
def test_the_first_line_of_csv(
    tmp_path: Path, text: str, header: bool | None, expected: list[tuple[Any, Any]]
) -> None:
    put(tmp_path, "a.csv", text.encode())
    table = read(tmp_path, Csv(header), pa.schema([("key", pa.int64()), ("value", pa.float64())]))
    assert [tuple(row.values()) for row in table.to_pylist()] == expected


def test_a_first_line_that_fits_nothing_loses_no_file_without_a_trace(tmp_path: Path) -> None:
    put(tmp_path, "a.csv", b"one,two\n1,2\n")
    (text,) = marks(read(tmp_path, Csv(header=True)))
    assert "the header has none of the columns key, ts, value: one, two" in str(text)


def test_other_delimiters_quotes_and_nulls_of_csv(tmp_path: Path) -> None:
    put(tmp_path, "a.csv", b"key;name\n1;'a;b'\n-;''\n")
    table = read(
        tmp_path,
        Csv(delimiter=";", quote="'", null="-"),
        pa.schema([("key", pa.int64()), ("name", pa.string())]),
    )
    assert table.to_pylist() == [{"key": 1, "name": "a;b"}, {"key": None, "name": ""}]


def test_many_blocks_read_as_one_and_only_the_broken_line_is_marked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_formats, "BLOCK", 3_000)
    monkeypatch.setattr(text_formats, "_SMALL_BLOCK", 200)
    lines = [json.dumps({"key": n, "value": n / 2}) for n in range(1_000)]
    lines[500] = "broken"
    lines[501] = json.dumps({"key": 501, "name": "long" * 3_000})
    put(tmp_path, "a.json", "\n".join(lines).encode())
    table = read(tmp_path, Json())
    assert [n for n, text in enumerate(marks(table)) if text is not None] == [500]
    assert (
        marks(table)[500]
        == "line 501 of `a.json` cannot be read (Expecting value: line 1 column 1 (char 0)): broken"
    )
    assert table.column("key").to_pylist() == [n if n != 500 else None for n in range(1_000)]


def test_compressed_text(tmp_path: Path) -> None:
    put(tmp_path, "a.json.gz", gzip.compress(b'{"key": 1}\n{"key": 2}'))
    assert read(tmp_path, Json()).column("key").to_pylist() == [1, 2]
    put(tmp_path, "b.json.gz", gzip.compress(b'{"key": 1}\n' * 1_000)[:-20])
    assert "b.json.gz" in str(marks(read(tmp_path, Json()))[-1])


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, form: str) -> None:
    write(EVENTS, tmp_path / "a", form)
    put(tmp_path, "b", b"this is none of ours, whatever its name says")
    table = read(tmp_path, FORMS[form])
    assert table.num_rows == 4
    assert marks(table)[:3] == [None] * 3
    assert f"the file `{tmp_path}/b` cannot be read after 0 rows" in str(marks(table)[3])
    with pytest.raises(InputError, match="corrupt='late'"):
        read(tmp_path, FORMS[form], corrupt="fail")


def test_a_file_that_breaks_off_gives_what_could_be_read_and_a_mark(tmp_path: Path) -> None:
    with (
        pa.OSFile(str(tmp_path / "whole"), "wb") as sink,
        pa.ipc.new_stream(sink, SCHEMA) as writer,
    ):
        for _ in range(10):
            writer.write_table(EVENTS)
    content = (tmp_path / "whole").read_bytes()
    (tmp_path / "whole").write_bytes(content[: len(content) // 2])
    table = read(tmp_path, Arrow())
    assert 1 < table.num_rows < 30
    assert table.num_rows % 3 == 1
    assert f"after {table.num_rows - 1} rows" in str(marks(table)[-1])


@pytest.mark.parametrize("name", ["key", "", "other"])
def test_columns_of_one_name_in_an_arrow_file(tmp_path: Path, name: str) -> None:
    twice = pa.Table.from_arrays([pa.array([1, 2]), pa.array([3, 4])], [name, name])
    feather.write_feather(twice, tmp_path / "a", compression="uncompressed")
    found = [text for text in marks(read(tmp_path, Arrow())) if text is not None]
    assert bool(found) == (name == "key")
    assert all("two columns have the same name" in text for text in found)


def test_damage_inside_a_parquet_file_does_not_stop_anybody(tmp_path: Path) -> None:
    random = np.random.default_rng(5)
    table = pa.table(
        {
            "key": random.integers(0, 1 << 60, 10_000),
            "ts": pa.array(range(10_000), UTC),
            "value": random.random(10_000),
        },
        schema=SCHEMA,
    )
    pq.write_table(table, tmp_path / "a", compression="zstd")
    content = bytearray((tmp_path / "a").read_bytes())
    content[4:60] = bytes(56)
    (tmp_path / "a").write_bytes(content)
    assert "cannot be read" in str(marks(read(tmp_path, Parquet()))[-1])


TEXTS = pa.schema([("key", pa.string()), ("value", pa.int64())])


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_a_text_that_is_not_utf8_costs_its_row(
    tmp_path: Path, form: str, kind: pa.DataType
) -> None:
    raw = pa.binary() if kind == pa.string() else pa.large_binary()
    texts = pa.array([b"a", b"\xff\xfe", None, "é".encode(), b"\xed\xa0\x80"], raw).view(kind)
    write(pa.table({"key": texts, "value": range(5)}), tmp_path / "a", form)
    table = read(tmp_path, FORMS[form], TEXTS)
    table.validate(full=True)
    assert table.column("key").to_pylist() == ["a", None, None, "é", None]
    assert table.column("value").to_pylist() == [*range(5)]
    assert [text is None for text in marks(table)] == [True, False, True, True, False]
    assert str(marks(table)[1]).endswith("string, got b'\\xff\\xfe', not UTF-8")


def wild_text() -> pa.Array:
    """Texts whose offsets lie far outside of their buffer."""
    offsets = np.array([0, 1 << 30, 3], np.int32)
    return pa.Array.from_buffers(
        pa.string(), 2, [None, pa.py_buffer(offsets), pa.py_buffer(b"abc")]
    )


def wild_dictionary() -> pa.Array:
    """A dictionary with an index far outside of it."""
    return pa.DictionaryArray.from_arrays(
        pa.array([0, 1 << 20], pa.int32()), pa.array(["a"]), safe=False
    )


def wild_struct() -> pa.Array:
    """A struct with such texts."""
    return pa.StructArray.from_arrays([wild_text()], ["inner"])


def test_a_text_inside_of_a_struct_that_is_not_utf8_costs_its_row(tmp_path: Path) -> None:
    texts = pa.array([b"a", b"\xff"]).view(pa.string())
    column = pa.StructArray.from_arrays([texts], ["inner"])
    write(pa.table({"key": column, "value": range(2)}), tmp_path / "a", "arrow")
    table = read(tmp_path, Arrow(), pa.schema([("key", column.type), ("value", pa.int64())]))
    assert table.column("key").to_pylist() == [{"inner": "a"}, None]
    assert table.column("value").to_pylist() == [0, 1]
    assert [text is None for text in marks(table)] == [True, False]


@pytest.mark.parametrize("made", [wild_text, wild_dictionary, wild_struct])
def test_arrays_that_would_crash_a_worker_are_not_used(tmp_path: Path, made: Any) -> None:
    wild = made()
    kind = wild.type.value_type if pa.types.is_dictionary(wild.type) else wild.type
    batch = pa.record_batch([wild, pa.array([1, 2])], ["key", "value"])
    good = pa.record_batch([pa.nulls(2, wild.type), pa.array([1, 2])], ["key", "value"])
    with (
        pa.OSFile(str(tmp_path / "a"), "wb") as sink,
        pa.ipc.new_stream(sink, batch.schema) as writer,
    ):
        writer.write_batch(good)
        writer.write_batch(batch)
    table = read(tmp_path, Arrow(), pa.schema([("key", kind), ("value", pa.int64())]))
    assert table.column("value").to_pylist() == [1, 2, None]
    assert f"the file `{tmp_path}/a` cannot be read after 2 rows" in str(marks(table)[-1])


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_mutated_files_give_valid_rows_or_a_mark(tmp_path: Path, form: str) -> None:
    keys = pa.array([f"key {n}" for n in range(100)])
    lists = pa.array([[n, n + 1] for n in range(100)])
    events = pa.table({"key": keys, "value": lists, "word": keys.dictionary_encode()})
    schema = pa.schema([("key", pa.string()), ("value", lists.type), ("word", pa.string())])
    write(events, tmp_path / "a", form)
    content = (tmp_path / "a").read_bytes()
    random = np.random.default_rng(17)
    for _ in range(80):
        mutated = bytearray(content)
        for at in random.integers(0, len(content), 3).tolist():
            mutated[at] = int(random.integers(0, 256))
        (tmp_path / "a").write_bytes(mutated)
        table = read(tmp_path, FORMS[form], schema)
        table.validate(full=True)
        table.to_pylist()


def test_a_file_that_vanished(tmp_path: Path) -> None:
    part = FilePart(0, FileEntry("gone.json", 10, 0), 0, 10)
    with pytest.raises(InputError, match=r"gone\.json.*ignore_missing"):
        list(PartReader(Folder(str(tmp_path)), Json(), SCHEMA).tables(part))
    assert (
        list(PartReader(Folder(str(tmp_path)), Json(), SCHEMA, ignore_missing=True).tables(part))
        == []
    )


def test_large_parquet_files_are_read_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files_module, "SPLIT_BYTES", 20_000)
    table = pa.table(
        {
            "key": np.arange(50_000),
            "ts": pa.array(np.arange(50_000), UTC),
            "value": np.arange(50_000) / 7,
        },
        schema=SCHEMA,
    )
    pq.write_table(table, tmp_path / "a", row_group_size=1_000)
    folder = Folder(str(tmp_path))
    parts = parts_of(folder.files(), splits=True)
    assert len(parts) > 10
    read_parts = [[*PartReader(folder, Parquet(), SCHEMA).tables(part)] for part in parts]
    assert sum(bool(tables) for tables in read_parts) > 10
    assert pa.concat_tables(table for tables in read_parts for table in tables).equals(table)


def test_rows_without_any_column_that_is_wanted_are_still_rows(tmp_path: Path) -> None:
    for form in FORMS:
        (tmp_path / form).mkdir()
        write(pa.table({"other": [1, 2]}), tmp_path / form / "a", form)
    assert [
        read(tmp_path / form, FORMS[form]).num_rows for form in ("parquet", "arrow", "json")
    ] == [2, 2, 2]


def test_columns_that_folders_name(tmp_path: Path) -> None:
    for day in (1, 2):
        (tmp_path / f"day={day}").mkdir()
        pq.write_table(pa.table({"key": [day * 10]}), tmp_path / f"day={day}" / "a.parquet")
    schema = read_schema(Folder(str(tmp_path)), Parquet())
    assert schema == pa.schema([("key", pa.int64()), ("day", pa.int64())])
    assert read(tmp_path, Parquet(), schema).to_pylist() == [
        {"key": 10, "day": 1},
        {"key": 20, "day": 2},
    ]


# Schemas


@pytest.fixture
def mixed(tmp_path: Path) -> Iterator[Path]:
    put(tmp_path, "a", b"", at=1)
    put(tmp_path, "b", b"no such format", at=2)
    return tmp_path


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_the_schema_is_that_of_the_first_file_that_can_be_read(mixed: Path, form: str) -> None:
    write(
        pa.table({"name": pa.array(["x"]).dictionary_encode(), "ts": pa.array([1], UTC)}),
        mixed / "c",
        form,
    )
    assert read_schema(Folder(str(mixed)), FORMS[form]) == pa.schema(
        [("name", pa.string()), ("ts", UTC)]
    )


def test_the_schema_of_text_is_inferred(tmp_path: Path) -> None:
    put(tmp_path, "a.json", b'{"key": 1, "ts": "2024-01-01T00:00:00Z", "value": 2.5}')
    put(tmp_path, "b.csv", b"key,value\n1,2.5\n")
    assert read_schema(Folder(str(tmp_path), "*.json"), Json()).names == ["key", "ts", "value"]
    assert read_schema(Folder(str(tmp_path), "*.csv"), Csv()) == pa.schema(
        [("key", pa.int64()), ("value", pa.float64())]
    )
    assert read_schema(Folder(str(tmp_path), "*.csv"), Csv(header=False)).names == ["_c0", "_c1"]


def test_old_timestamps_of_parquet_are_instants(tmp_path: Path) -> None:
    pq.write_table(EVENTS, tmp_path / "a", use_deprecated_int96_timestamps=True)
    assert read_schema(Folder(str(tmp_path)), Parquet()) == SCHEMA
    assert read(tmp_path, Parquet()).equals(EVENTS)


def test_a_schema_that_cannot_be_known_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="no files"):
        read_schema(Folder(str(tmp_path)), Parquet())
    put(tmp_path, "a", b"nothing of the kind")
    with pytest.raises(SpecError, match="a: "):
        read_schema(Folder(str(tmp_path)), Parquet())
    with pytest.raises(SpecError, match="does not support the type of `list`"):
        Csv().checked(pa.schema([("list", pa.list_(pa.int64()))]))
    with pytest.raises(SpecError, match="has none"):
        Parquet().checked(pa.schema([]))
    with pytest.raises(SpecError, match="a, a"):
        Json().checked(pa.schema([("a", pa.int64()), ("a", pa.int64())]))


def test_a_row_of_ten_megabytes(tmp_path: Path) -> None:
    schema = pa.schema([("key", pa.string())])
    put(
        tmp_path,
        "a.json",
        json.dumps({"key": "x" * 10_000_000}).encode() + b'\n{"key": "y"}\n{"key"',
    )
    table = read(tmp_path, Json(), schema)
    assert [len(text or "") for text in table.column("key").to_pylist()] == [10_000_000, 1, 0]
    put(tmp_path, "a.json", b"k,key\n1," + b"x" * 10_000_000 + b"\n1,y\n1")
    table = read(tmp_path, Csv(), schema)
    assert [len(text or "") for text in table.column("key").to_pylist()] == [10_000_000, 1, 0]


@pytest.mark.parametrize("form", ["json", "csv"])
def test_a_line_that_is_too_long_is_skipped_and_not_held(
    tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_formats, "MAX_LINE_BYTES", 1_000)
    monkeypatch.setattr(text_formats, "BLOCK", 300)
    monkeypatch.setattr(text_formats, "_SHOWN_BYTES", 20)
    schema = pa.schema([("key", pa.int64())])
    good = b'{"key": %d}' if form == "json" else b"%d"
    # A prefix that is valid by itself must not pass for the whole line.
    bad = [(good % 9) + b" " * length for length in (900, 1_100, 50_000)]
    lines = [good % 1, bad[0], good % 2, bad[1], bad[2], b"", good % 3, bad[2]]
    for end in (b"", b"\n"):
        put(tmp_path, "a.gz", gzip.compress(b"\n".join(lines) + end))
        table = read(tmp_path, FORMS[form] if form == "json" else Csv(header=False), schema)
        assert table.column("key").to_pylist() == [1, 9, 2, None, None, 3, None]
        found = [str(text) for text in marks(table) if text is not None]
        assert [text.split(" of ")[0] for text in found] == ["line 4", "line 5", "line 8"]
        assert all("longer than 1000 bytes" in text and len(text) < 100 for text in found)

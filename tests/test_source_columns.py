"""Direct file sources that read some columns of their files only."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq
import pytest
from pyarrow import feather

from tidegate.errors import SpecError
from tidegate.spark.sources import csv, folders
from tidegate.spark.sources.files import parts_of

SCHEMA = pa.schema([("key", pa.int64()), ("value", pa.float64())])


@pytest.mark.parametrize("form", ["csv", "csv without header", "json", "parquet", "arrow"])
def test_only_some_columns_are_read(tmp_path: Path, form: str) -> None:
    table = pa.table({"a": [1, 2], "b": ["x", "y"], "c": [0.5, 1.5]})
    if form.startswith("csv"):
        has_header = form == "csv"
        options = arrow_csv.WriteOptions(include_header=has_header)
        arrow_csv.write_csv(table, tmp_path / "one.csv", options)
        source = csv(tmp_path, schema=table.schema, columns=["c", "a"], header=has_header or None)
    elif form == "json":
        lines = "".join(f"{json.dumps(row)}\n" for row in table.to_pylist())
        (tmp_path / "one.json").write_text(lines)
        source = folders.json(tmp_path, schema=table.schema, columns=["c", "a"])
    else:
        write = pq.write_table if form == "parquet" else feather.write_feather
        write(table, tmp_path / f"one.{form}")
        source = getattr(folders, form)(tmp_path, columns=["c", "a"])
    assert source.schema.names == ["c", "a"]
    (part,) = parts_of([*source.parts.folder.files()], splits=False)
    (found,) = source.parts.tables(part)
    assert found.to_pylist() == table.select(["c", "a"]).to_pylist()


def test_columns_that_no_file_has_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"`columns` has 'x', which.*they have key, value"):
        _ = csv(tmp_path, schema=SCHEMA, columns=["key", "x"]).schema
    with pytest.raises(SpecError, match="`columns` is a list of names, got 'key'"):
        csv(tmp_path, schema=SCHEMA, columns="key")
    with pytest.raises(SpecError, match="needs columns"):
        _ = csv(tmp_path, schema=SCHEMA, columns=[]).schema
    with pytest.raises(SpecError, match="column names must be unique"):
        _ = csv(tmp_path, schema=SCHEMA, columns=["key", "key"]).schema

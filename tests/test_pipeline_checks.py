"""Checks of a pipeline file before it starts: all problems at once, each with its place."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tidegate as tg
from tidegate.cli import main
from tidegate.pipeline import PipelineFileError, load
from tidegate.spark.query.metadata import QueryMetadata, create_metadata
from tidegate.spark.query.start import check_arguments
from tidegate.spark.sinks.base import SinkTarget
from tidegate.spark.tasks.shards import ShardLayout

COLUMNS = "user string, ts timestamp, price double"
FILE = """\
name: clicks
input: {{type: {kind}, folder: clicks, {more}}}
stream: {{time: {time}, key: {key}, watermark: bounded(5 seconds)}}
window: {window}
aggregate: {{n: count, spent: {spent}, late: count}}
write: {{to: {to}, late: {late}, checkpoint: {checkpoint}}}
"""
RIGHT = {
    "kind": "parquet",
    "more": f'schema: "{COLUMNS}"',
    "time": "ts",
    "key": "user",
    "window": "tumbling(1 minute)",
    "spent": "sum(price)",
    "to": "parquet(out/panes)",
    "late": "parquet(out/late)",
    "checkpoint": "out/ck",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "clicks").mkdir()
    return tmp_path


def problems(folder: Path, **changed: str) -> list[str]:
    """The problems of a file with these parts."""
    file = folder / "p.yaml"
    file.write_text(FILE.format(**{**RIGHT, **changed}))
    try:
        load(file).check()
    except PipelineFileError as error:
        return [str(problem) for problem in error.problems]
    return []


def test_a_wrong_time_hides_no_wrong_aggregate(folder: Path):
    found = problems(folder, time="price", spent="sum(user)", late="parquet(out/panes)")
    assert [problem.partition(":")[0] for problem in found] == [
        "line 3, column 16",
        "line 5, column 30",
        "line 6, column 39",
    ]


def test_a_right_file_has_no_problems_and_nothing_is_written(folder: Path):
    assert problems(folder) == []
    assert sorted(path.name for path in folder.iterdir()) == ["clicks", "p.yaml"]


def test_all_missing_columns_are_reported_at_once(folder: Path):
    found = problems(folder, time="t", key="usr", spent="sum(prize)")
    assert [problem.split(". Hint")[0] for problem in found] == [
        "line 3, column 16: `t` is not a column for `time`",
        "line 3, column 24: `usr` is not a column for `key`",
        "line 5, column 30: `prize` is not a column for `spent`",
    ]
    assert "did you mean `user`?" in found[1]


@pytest.mark.parametrize(
    ("changed", "where", "what"),
    [
        ({"spent": "sum(user)"}, "line 5, column 30", "`sum` needs numbers"),
        ({"time": "price"}, "line 3, column 16", "price"),
        ({"more": 'schema: "user strng, ts timestamp"'}, "line 2, column 48", "'strng'"),
        ({"to": "parquet(out/late)"}, "line 6, column 38", "write to the same folder"),
        ({"to": "parquet(out/../out/ck)"}, "line 6, column 13", "the folder of the checkpoint"),
        ({"late": "parquet(clicks)"}, "line 6, column 39", "writes to the folder of an input"),
        ({"checkpoint": "clicks"}, "line 6, column 70", "is the folder of an input"),
        ({"spent": "sum(price), user: count"}, "line 5, column 42", "both key columns and"),
        ({"spent": "sum(price), time: count"}, "line 5, column 42", "are reserved for columns"),
        (
            {"spent": "{sum: price}"},
            "line 5, column 30",
            "Hint: an aggregate is a call, `sum(price)`",
        ),
        ({"checkpoint": "p.yaml/ck"}, "line 6, column", "p.yaml"),
    ],
)
def test_types_schemas_and_folders(folder: Path, changed: dict[str, str], where: str, what: str):
    found = problems(folder, **changed)
    assert found, "a problem"
    assert any(problem.startswith(where) and what in problem for problem in found), found


def test_a_folder_that_does_not_exist_or_has_no_files(folder: Path):
    (folder / "clicks").rmdir()
    assert problems(folder) == [
        f"line 2, column 32: the folder `{folder}/clicks` does not exist. Hint: create it, or"
        " correct its name"
    ]
    (folder / "clicks").mkdir()
    (found,) = problems(folder, more="latest_first: false")
    assert "cannot be inferred, because it has no files. Hint: add `schema:" in found


def test_the_columns_of_parquet_files_are_known_without_a_schema(folder: Path):
    rows = {"user": ["a"], "ts": pa.array([0], pa.timestamp("us", "UTC")), "price": ["x"]}
    pq.write_table(pa.table(rows), folder / "clicks" / "1.parquet")
    (found,) = problems(folder, more="latest_first: false")
    assert "line 5, column 30" in found
    assert "`sum` needs numbers" in found


def test_selected_columns_are_checked_by_name(folder: Path):
    more = f'schema: "{COLUMNS}", select: [upper(user) as user, ts, prize]'
    found = problems(folder, more=more)
    assert len(found) == 2, "`prize` is selected, and `price` is missing then"
    assert "`prize` is not a column" in found[0]
    more = f'schema: "{COLUMNS}", select: ["*", "cast(price as string) as shown"]'
    assert problems(folder, more=more) == [], "the types of expressions are left to Spark"


def test_a_mistake_in_one_part_hides_none_in_another(folder: Path):
    (folder / "file").touch()
    written = FILE.format(
        **{
            **RIGHT,
            "more": f'schema: "{COLUMNS}"',
            "key": "usr",
            "window": "session(gap_column=gap)",
            "spent": "sum(user)",
            "late": "parquet(file/late), shards: 0, trigger: 1 secnd",
        }
    )
    written += """trigger: AfterCount(0)\nsession: {cores: two}\n"""
    (folder / "p.yaml").write_text(written)
    with pytest.raises(PipelineFileError) as raised:
        load(folder / "p.yaml", checked=True)
    found = [str(problem) for problem in raised.value.problems]
    expected = [
        "`usr` is not a column for `key`. Hint: did you mean `user`?",
        "`gap` is not a column for `gap_column`",
        "`sum` needs numbers, but column `user` is of type string",
        "is not a folder",
        "`shards` must be a whole number greater than 0, got 0",
        "`secnd` is not a unit of time",
        "`AfterCount` needs",
        "`cores` must be a whole number greater than 0, got 'two'",
    ]
    assert [one for one in expected if not any(one in text for text in found)] == [], found
    assert len(found) == len(expected)


def test_an_output_folder_of_another_query_is_refused(folder: Path):
    target = SinkTarget("other", "panes", pa.schema([("n", pa.int64())]), (), "accumulating")
    tg.sinks.parquet(folder / "out" / "panes").publish(target, 0, [])
    (found,) = problems(folder)
    assert found.startswith("line 6, column 13: a folder holds one output of one query")
    assert "overwrite=True" in found
    assert problems(folder, to='"parquet(out/panes, overwrite=true)"') == []


def test_a_checkpoint_of_another_specification_is_refused(folder: Path):
    (folder / "p.yaml").write_text(FILE.format(**RIGHT))
    read = load(folder / "p.yaml")
    layout = ShardLayout.balanced(2, 4)
    metadata = QueryMetadata.new(layout, [[read.spec.to_dict()]])
    create_metadata(read.output.checkpoint, metadata)
    assert problems(folder) == [], "it continues"
    (found,) = problems(folder, window="tumbling(2 minutes)")
    assert "`window.size` was 1 minute and is now 2 minutes" in found
    assert found.startswith("line 6, column")


def test_dry_run_ends_with_status_2(folder: Path, capsys: pytest.CaptureFixture[str]):
    (folder / "p.yaml").write_text(FILE.format(**{**RIGHT, "key": "usr"}))
    assert main(["run", "--dry-run", str(folder / "p.yaml")]) == 2
    assert "did you mean `user`?" in capsys.readouterr().err


def test_kafka_and_rate_have_columns_of_their_own(folder: Path):
    rate = FILE.format(**RIGHT).replace("folder: clicks, ", "").replace(RIGHT["more"], "")
    text = rate.replace("type: parquet", "type: rate").replace(", }", "}").replace("{, ", "{")
    text = text.replace("time: ts, key: user", "time: timestamp, key: value")
    (folder / "p.yaml").write_text(text.replace("sum(price)", "sum(value)"))
    load(folder / "p.yaml").check()
    (folder / "p.yaml").write_text(text.replace("sum(price)", "sum(valu)"))
    with pytest.raises(PipelineFileError, match="did you mean `value`"):
        load(folder / "p.yaml").check()


def test_a_missing_input_hides_no_mistake_in_the_stream(folder: Path):
    file = folder / "p.yaml"
    lines = FILE.format(**RIGHT).replace("bounded(5 seconds)", "{bounded: 5 potatoes}").splitlines()
    file.write_text("\n".join(line for line in lines if not line.startswith("input")))
    with pytest.raises(PipelineFileError) as refused:
        load(file)
    assert [problem.hint for problem in refused.value.problems] == [
        "for instance `input: {type: parquet, folder: data}`",
        "a watermark is a call, `bounded(5 potatoes)`",
    ]


def test_outputs_of_write_have_folders_of_their_own(folder: Path):
    one = tg.sinks.parquet(str(folder / "out"))
    with pytest.raises(tg.SpecError, match="`write` has 2 wrong arguments") as refused:
        check_arguments(
            sinks={"to": one, "late": tg.sinks.parquet(f"file://{folder}/out/"), "metrics": None},
            checkpoint=folder / "out",
            trigger=None,
            shards=None,
            name=None,
        )
    assert f"`to` writes to the folder of the checkpoint, `{folder}/out`" in str(refused.value)

"""The state of a query, read from the files of its checkpoint; no Spark is started.

The queries run on the fakes of Spark, next to embedded operators with the same deliveries.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tidegate as tg
from support.examples import examples
from support.spark_checkpoints import CODECS, Checkpoint
from support.spark_fakes import Columns, Fleet
from tidegate.cli import main
from tidegate.errors import CorruptStateError, InputError, SpecMismatchError, StateError
from tidegate.spark.query.state.changelog import read_changelog
from tidegate.spark.query.state.unsafe_row import decode_row, encode_row
from tidegate.spark.tasks.shards import ShardLayout

pytestmark = pytest.mark.rocksdb
SECOND = 1_000_000
LAYOUT = ShardLayout.balanced(2, 4)
SCHEMA = pa.schema(
    {"k": pa.string(), "ts": pa.timestamp("us", "UTC"), "v": pa.int64(), "o": pa.int64()}
)
KEYS = ("a", "b", "c", "d", "e", None)


@pytest.fixture(autouse=True)
def _no_workers() -> Iterator[None]:
    Fleet.forget_workers()
    yield
    Fleet.forget_workers()


def table(*rows: tuple[Any, float, int]) -> pa.Table:
    """Rows of key, second and value; the offset is the value."""
    return pa.Table.from_pylist(
        [{"k": k, "ts": int(at * SECOND), "v": v, "o": v} for k, at, v in rows], SCHEMA
    )


def keyed(source: Any = None, **more: Any) -> tg.Stream:
    given = {"time": "ts", "key": "k", "watermark": tg.bounded("5 seconds"), **more}
    return tg.stream(Columns(SCHEMA) if source is None else source, **given)


def rows_of(found: Any, *, ordered: bool = False) -> list[Any]:
    """The rows of a table, as far as possible in a comparable order."""
    rows = found.to_pylist() if isinstance(found, pa.Table) else found
    return rows if ordered else sorted(rows, key=lambda row: repr(sorted(row.items())))


def as_rows(windows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Embedded windows in the form of a table: offsets by partition as a list."""
    return [
        {
            **row,
            "offsets": [
                {"partition": name, "first": first, "last": last}
                for name, (first, last) in sorted(row["offsets"].items())
            ],
        }
        for row in windows
    ]


def of_a_query(sentences: Sequence[str]) -> tuple[str, ...]:
    """The sentences of an operator without the call that a program alone can make."""
    return tuple(each.replace(", or call `mark_idle`", "") for each in sentences)


class Both:
    """A query with a checkpoint, and an embedded operator with the same deliveries."""

    def __init__(self, folder: Path, panes: Any, **checkpoint: Any) -> None:
        self.fleet = Fleet.of(panes, LAYOUT)
        self.checkpoint = Checkpoint(folder, self.fleet, **checkpoint)
        # A shard starts with its first batch.
        self.whole = panes.embedded(now=SECOND)
        self.now = 0

    def deliver(self, *tables: pa.Table) -> None:
        self.now += SECOND
        self.fleet.deliver([(n, 0, [rows]) for n, rows in enumerate(tables)], self.now)
        for number, rows in enumerate(tables):
            self.whole.add_messages(rows, now=self.now, input=number)
        self.whole.timeout(self.now)
        self.whole.get_result()
        self.whole.flush()
        self.checkpoint.commit()

    @property
    def state(self) -> Any:
        return tg.state(self.checkpoint.folder)


WINDOWS = {
    "tumbling": tg.tumbling("10 seconds"),
    "sliding": tg.sliding("20 seconds", "5 seconds"),
    "session": tg.session("4 seconds"),
    "global": tg.global_window(),
}
DELIVERIES = st.lists(
    st.lists(
        st.tuples(st.sampled_from(KEYS), st.integers(0, 90), st.integers(0, 9)),
        min_size=1,
        max_size=8,
    ),
    min_size=1,
    max_size=5,
)


@pytest.mark.parametrize("window", WINDOWS)
@examples(4)
@given(DELIVERIES)
def test_aggregates_show_what_one_operator_shows(tmp_path_factory, window, deliveries):
    panes = (
        keyed()
        .window(WINDOWS[window])
        .trigger(tg.after_watermark(early=tg.after_count(3), late=tg.after_count(1)))
        .allow_lateness("1 minute")
        .options(keep_messages=True)
        .aggregate(n=tg.count(), total=tg.sum("v"))
    )
    both = Both(tmp_path_factory.mktemp("state") / "ck", panes, snapshot_every=2)
    for rows in deliveries:
        both.deliver(table(*rows))
    state, whole = both.state, both.whole
    assert state.batch == len(deliveries) - 1
    assert rows_of(state.windows()) == rows_of(as_rows(whole.get_windows()))
    assert rows_of(state.peek()) == rows_of(whole.peek())
    assert rows_of(state.messages()) == rows_of(whole.get_messages())
    bounds = (20 * SECOND, 40 * SECOND)
    assert rows_of(state.windows(*bounds)) == rows_of(as_rows(whole.get_windows(*bounds)))
    assert state.watermark == whole.watermark
    for key in KEYS[:3]:
        mine = {"key": {"k": key}}
        assert rows_of(state.windows(**mine)) == rows_of(as_rows(whole.get_windows(**mine)))
        assert (
            rows_of(state.peek(*bounds, **mine), ordered=True)
            == whole.peek(*bounds, **mine).to_pylist()
        )
        assert rows_of(state.messages(*bounds, **mine)) == rows_of(
            whole.get_messages(*bounds, **mine)
        )


def test_the_explanation_is_that_of_one_operator(tmp_path):
    panes = (
        keyed(watermark=tg.bounded("5 seconds", partitions=["0", "1"]), partition="o")
        .window(tg.tumbling("10 seconds"))
        .aggregate(n=tg.count())
    )
    both = Both(tmp_path / "ck", panes)
    both.deliver(table(("a", 1, 0), ("b", 2, 0), ("c", 12, 0)))
    found, whole = both.state.explain_watermark(), both.whole.explain_watermark()
    assert found.sentences == of_a_query(whole.sentences)
    assert "has not" in str(found), "partition 1 has not spoken yet"
    assert found.windows == whole.windows
    both.deliver(table(("d", 30, 1), ("e", 31, 0)))
    found, whole = both.state.explain_watermark(), both.whole.explain_watermark()
    assert found.sentences == of_a_query(whole.sentences)
    assert {name: found.counters[name] for name in ("events", "panes_on_time")} == {
        "events": 5,
        "panes_on_time": 3,
    }
    assert found.to_dict()["sources"] == whole.to_dict()["sources"]


def test_offsets_of_windows_over_all_shards(tmp_path):
    panes = keyed(offset="o").window(tg.tumbling("10 seconds")).aggregate(n=tg.count())
    both = Both(tmp_path / "ck", panes)
    both.deliver(table(("a", 1, 10), ("b", 2, 11), ("c", 3, 12), ("d", 4, 13)))
    (window,) = both.state.windows().to_pylist()
    assert window["offsets"] == [{"partition": "", "first": 10, "last": 13}]
    assert as_rows(both.whole.get_windows()) == [window]


def test_both_sides_of_joins(tmp_path):
    left, right = keyed(key=()), keyed(key=())
    joined = left.join(right, on="k", window=tg.tumbling("10 seconds"), how="left")
    both = Both(tmp_path / "ck", joined)
    both.deliver(
        table(*((key, 3 * n, n) for n, key in enumerate(KEYS))),
        table(("a", 1, 1), ("b", 14, 2), ("c", 7, 3)),
    )
    state, whole = both.state, both.whole
    for side in ("left", "right"):
        assert rows_of(state.messages(side=side)) == rows_of(whole.get_messages(side))
        assert rows_of(state.messages(0, 7 * SECOND, side=side, key="c")) == rows_of(
            whole.get_messages(side, 0, 7 * SECOND, key="c")
        )
        assert rows_of(state.windows(side=side), ordered=True) == whole.get_windows(side)
    expected = of_a_query(whole.explain_watermark().sentences)
    assert state.explain_watermark().sentences == expected
    with pytest.raises(InputError, match="has two sides"):
        state.messages()
    with pytest.raises(InputError, match="a join has no values"):
        state.peek()


def test_operators_of_a_chain_are_numbered_in_the_order_of_the_data(tmp_path):
    users = keyed().window(tg.tumbling("10 seconds")).aggregate(n=tg.count())
    longer = tg.stream(users, key="k").window(tg.tumbling("1 minute")).aggregate(m=tg.sum("n"))
    total = tg.stream(longer, key=()).inherit().aggregate(users=tg.count())
    fleet = Fleet.of(total, LAYOUT)
    checkpoint = Checkpoint(tmp_path / "ck", fleet)
    fleet.deliver([(0, 0, [table(("a", 1, 1), ("b", 2, 1), ("c", 31, 1))])], SECOND)
    checkpoint.commit()
    state = tg.state(tmp_path / "ck")
    assert [type(spec.window).__name__ for spec in state.specs] == [
        "Tumbling",
        "Tumbling",
        "Inherited",
    ]
    assert state.windows(operator=0, key="c")["count"].to_pylist() == [1]
    assert sorted(state.peek(operator=1)["m"].to_pylist()) == [1, 1]
    assert state.windows().num_rows == 0
    marks = [state.explain_watermark(number).watermark for number in range(3)]
    assert marks == [26 * SECOND] * 3
    status = state.status()
    assert [(one.number, one.size) for one in status.operators] == [(0, 2), (2, 1)]
    with pytest.raises(InputError, match="has 3 operators, got operator=3"):
        state.windows(operator=3)


# Files


@pytest.mark.parametrize("unique_ids", [False, True], ids=["numbered", "unique_ids"])
@pytest.mark.parametrize("codec", CODECS)
def test_every_form_of_files(tmp_path, codec, unique_ids):
    panes = keyed().window(tg.tumbling("10 seconds")).aggregate(n=tg.count(), all=tg.list_("v"))
    both = Both(
        tmp_path / "ck", panes, codec=CODECS[codec], unique_ids=unique_ids, snapshot_every=4
    )
    for batch in range(6):
        both.deliver(table(*((key, 4 * batch + n, n) for n, key in enumerate(KEYS))))
        state = both.state
        assert state.batch == batch
        assert rows_of(state.peek()) == rows_of(both.whole.peek()), f"batch {batch}"


def test_large_values_in_several_blocks(tmp_path):
    panes = keyed().window(tg.tumbling("10 days")).aggregate(all=tg.list_("v"))
    both = Both(tmp_path / "ck", panes, snapshot_every=9)
    rows = [("a", n / 7, (n * 7919) % 100_003) for n in range(60_000)]
    for _ in range(2):
        both.deliver(table(*rows))
    assert rows_of(both.state.peek(key="a")) == rows_of(both.whole.peek())


def query(folder: Path, **checkpoint: Any) -> Both:
    panes = keyed().window(tg.tumbling("10 seconds")).aggregate(n=tg.count())
    both = Both(folder, panes, **checkpoint)
    both.deliver(table(("a", 1, 1), ("b", 2, 1)))
    return both


def test_only_committed_batches_count(tmp_path):
    both = query(tmp_path / "ck")
    before = rows_of(both.state.peek())
    both.fleet.deliver([(0, 0, [table(("a", 3, 1), ("c", 4, 1))])], 9 * SECOND)
    # The query is killed before it commits.
    both.checkpoint.begin()
    assert both.state.batch == 0
    assert rows_of(both.state.peek()) == before


def test_a_query_that_deletes_files_meanwhile(tmp_path):
    both = query(tmp_path / "ck", snapshot_every=1)
    unread, read = both.state, both.state
    assert read.windows(key="a").num_rows == 1
    both.deliver(table(("a", 3, 1)))
    both.checkpoint.expire(before=1)
    # Nothing was read of batch 0 yet, so the next one takes its place.
    assert unread.peek(key="a")["n"].to_pylist() == [2]
    assert unread.batch == 1
    # A state is of one batch: it does not mix two.
    assert read.windows(key="a").num_rows == 1
    with pytest.raises(StateError, match="after batch 0 is no longer in the checkpoint"):
        read.peek()


def test_nothing_is_written_into_the_checkpoint(tmp_path):
    both = query(tmp_path / "ck", snapshot_every=1)

    def files() -> dict[str, tuple[int, int]]:
        return {
            str(file): (file.stat().st_mtime_ns, file.stat().st_size)
            for file in sorted((tmp_path / "ck").rglob("*"))
        }

    before = files()
    state = both.state
    assert state.peek().num_rows == 2
    state.explain_watermark()
    assert files() == before
    for folder, _, names in os.walk(tmp_path / "ck"):
        for name in names:
            Path(folder, name).chmod(0o444)
    assert both.state.windows().num_rows == 1, "read-only files are enough"


def test_folders_without_a_committed_batch(tmp_path):
    with pytest.raises(StateError, match="is not the checkpoint of a query that has run a batch"):
        tg.state(tmp_path)
    panes = keyed().window(tg.tumbling("10 seconds")).aggregate(n=tg.count())
    Checkpoint(tmp_path / "ck", Fleet.of(panes, LAYOUT)).begin()
    with pytest.raises(StateError, match="has not committed a batch yet"):
        tg.state(tmp_path / "ck")


def test_a_damaged_changelog_is_an_error_of_ours(tmp_path):
    both = query(tmp_path / "ck", snapshot_every=5)
    both.deliver(table(("a", 3, 1)))
    for file in (tmp_path / "ck").glob("state/0/*/2.changelog"):
        file.write_bytes(file.read_bytes()[:40])
    with pytest.raises(CorruptStateError, match="a changelog of the state store cannot be read"):
        both.state.windows()


# Functions


def test_functions_come_from_the_pipeline(tmp_path):
    largest = tg.python(
        zero=0, add=lambda s, row: max(s, row["v"]), merge=max, result=int, result_type=pa.int64()
    )
    windows = keyed().window(tg.tumbling("10 seconds"))
    panes = windows.aggregate(largest=largest)
    both = Both(tmp_path / "ck", panes)
    both.deliver(table(("a", 1, 7), ("a", 2, 9)))
    state = both.state
    assert state.status().operators[0].shards, "a status needs no functions"
    with pytest.raises(StateError, match=r"not enough to read the state.*pipeline=panes"):
        state.peek()
    bare = tg.stream(time="ts", key="k", watermark=tg.bounded("5 seconds"))
    same = bare.window(tg.tumbling("10 seconds")).aggregate(largest=largest)
    found = tg.state(tmp_path / "ck", pipeline=same)
    assert found.peek(key="a")["largest"].to_pylist() == [9]
    other = windows.retracting().aggregate(largest=largest)
    with pytest.raises(SpecMismatchError, match="`mode` was 'accumulating'"):
        tg.state(tmp_path / "ck", pipeline=other).peek()


# The command


def command(*given: str, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert main(["state", *given]) == 0
    return capsys.readouterr().out


def test_the_command_shows_a_key_and_a_range(tmp_path, capsys):
    panes = (
        tg.stream(Columns(SCHEMA), time="ts", key=("k", "v"), watermark=tg.bounded("5 seconds"))
        .window(tg.tumbling("10 seconds"))
        .options(keep_messages=True)
        .aggregate(n=tg.count())
    )
    both = Both(tmp_path / "ck", panes)
    both.deliver(table(("a", 1, 7), ("a", 2, 7), ("a", 14, 7), ("a", 3, 8), ("b", 4, 7)))
    folder = str(tmp_path / "ck")
    text = command(folder, "--key", "a", "--key", "7", capsys=capsys)
    assert text.splitlines()[0].endswith(f"at {folder}, after batch 0")
    assert "windows: 2" in text
    assert "messages" not in text
    by_name = command(folder, "--key", "v=7", "--key", "k=a", capsys=capsys)
    assert by_name == text
    shown = json.loads(
        command(
            folder,
            "--key",
            "a",
            "--key",
            "7",
            "--window",
            "1970-01-01T00:00:14Z",
            "--messages",
            "--json",
            capsys=capsys,
        )
    )
    assert shown["batch"] == 0
    assert [(row["k"], row["v"], row["n"]) for row in shown["values"]] == [("a", 7, 1)]
    assert shown["windows"][0]["window_start"] == "1970-01-01T00:00:10.000000Z"
    assert [row["ts"] for row in shown["messages"]] == ["1970-01-01T00:00:14.000000Z"]
    range_ = command(folder, "--window", "1970-01-01T00:00:00Z/1970-01-01T00:00:05Z", capsys=capsys)
    assert "windows: 1\n" in range_
    assert "values: 3\n" in range_
    assert main(["state", folder, "--key", "a"]) == 2
    assert "the key columns are k, v, got a. Hint: " in capsys.readouterr().err
    assert main(["state", folder, "--key", "a", "--key", "x"]) == 2
    assert "`x` is not a value of the key column `v` of type int64" in capsys.readouterr().err


def test_the_command_explains_every_operator(tmp_path, capsys):
    both = query(tmp_path / "ck")
    text = command(str(tmp_path / "ck"), capsys=capsys)
    assert str(both.whole.explain_watermark()) in text
    assert re.search(", after batch 0 at [^ ]*Z, .* ago$", text.splitlines()[0])
    shown = json.loads(command(str(tmp_path / "ck"), "--json", capsys=capsys))
    (operator,) = shown["operators"]
    assert operator["explanations"][0]["sentences"] == [*both.whole.explain_watermark().sentences]
    assert shown["batch"] == 0


def test_reading_state_imports_no_spark(tmp_path):
    query(tmp_path / "ck")
    code = (
        "import sys, tidegate as tg\n"
        f"print(tg.state({str(tmp_path / 'ck')!r}).peek().num_rows, 'pyspark' in sys.modules)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert ended.stdout.split() == ["2", "False"]


# Formats that Spark has written

MAP_KEY = (
    "0021000000000000000000000000100000001000000000000000000000000200000000000000"
    "0000000000000000002800000010000000000000000000000010000000180000000000000000000000"
    "302f63656c6c732f3030303030303030"
)


def test_rows_have_the_bytes_of_spark():
    grouping = b"\x00" + encode_row(encode_row(2))
    key = len(grouping).to_bytes(4, "little") + grouping
    key += b"\x00" + encode_row(encode_row("0/cells/00000000", 0))
    assert key.hex() == MAP_KEY.removeprefix("00")
    value = b"\x00" + encode_row(1, "text", b"\x01\x02\x03")
    assert decode_row(value, ("int", "text", "bytes")) == (1, "text", b"\x01\x02\x03")
    assert decode_row(b"\x00" + bytes([2]) + bytes(23), ("int", "text")) == (0, None)
    with pytest.raises(CorruptStateError, match="unknown version"):
        decode_row(b"\x01" + bytes(16), ("int",))


def test_a_changelog_of_spark():
    # Written by Spark 4.3 with lz4: no changes.
    data = bytes.fromhex("4c5a34426c6f636b150500000005000000000000000002763200")
    assert read_changelog(data).changes == {}

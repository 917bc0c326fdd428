"""What leaves an operator: sinks that are written in tasks get the tables where they are made, and
nobody else sees them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pytest

from tidegate.spark.sinks import SinkTarget, memory, noop
from tidegate.spark.sinks.base import Sink, TaskSink
from tidegate.spark.tasks import transport
from tidegate.spark.tasks.chain import ChainOutput
from tidegate.spark.tasks.reshuffle import Reshuffle
from tidegate.spark.tasks.shards import ShardLayout
from tidegate.spark.tasks.task_output import BoundSink, OutputPayload, TaskOutput
from tidegate.spark.tasks.transport import (
    LATE,
    MARKS,
    METRICS,
    PANES,
    ROWS,
    ShuffleRow,
    decode_payload,
    encode_payloads,
    unpack_forwarded,
)
from tidegate.spec.operator import Input

SCHEMA = pa.schema([("n", pa.int64()), ("word", pa.string())])


@dataclass(frozen=True)
class Noting(TaskSink):
    """Tells what it was given."""

    def stage(
        self, target: SinkTarget, batch: int, task: str, tables: Iterator[pa.Table]
    ) -> list[str]:
        found = pa.concat_tables(tables)
        assert found.schema == SCHEMA
        return [f"{target.output} {batch} {task} {found.column('n').to_pylist()}"]

    def publish(self, target: SinkTarget, batch: int, staged: list[str]) -> None:
        raise AssertionError


def bound(output: str, sink: Sink) -> BoundSink:
    return BoundSink(SinkTarget("q", output, SCHEMA, (), "accumulating"), sink, SCHEMA)


def rows(*numbers: int) -> pa.Table:
    return pa.table({"n": pa.array(numbers, pa.int64()), "word": [f"w{n}" for n in numbers]})


def packed(table: pa.Table) -> bytes:
    return next(encode_payloads(table)).to_pybytes()


def shown(emitted: list[OutputPayload]) -> list[tuple[str, list[int]]]:
    assert {one.shard for one in emitted} <= {None}
    return [(one.output, decode_payload(one.payload).column("n").to_pylist()) for one in emitted]


def test_without_outlets_everything_leaves():
    task_output = TaskOutput(None)
    task_output.add_all(ChainOutput([rows(1), rows(2, 3)], [rows(4)]))
    task_output.add_payload(METRICS, packed(rows(5)))
    assert shown(task_output.take_payloads()) == [
        (PANES, [1]),
        (PANES, [2, 3]),
        (LATE, [4]),
        (METRICS, [5]),
    ]
    assert task_output.take_payloads() == []
    assert list(task_output.stage(0, "0")) == []


def test_each_output_goes_where_its_sink_is_written():
    task_output = TaskOutput([bound(PANES, Noting()), bound(LATE, memory("late_rows"))])
    # Columns that a table lacks are null, whoever wrote it.
    task_output.add_all(ChainOutput([rows(1), rows(2).select(["n"])], [rows(4)]))
    # What waited while another sink was there, or comes from another operator.
    task_output.add_payload(PANES, packed(rows(3)))
    task_output.add_payload(METRICS, packed(rows(5)))
    task_output.add(METRICS, rows(6))
    assert shown(task_output.take_payloads()) == [(LATE, [4])], "and nobody wants metrics"
    assert list(task_output.stage(7, "00001")) == [(PANES, b"panes 7 00001 [1, 2, 3]", None)]


def test_what_nobody_keeps_is_made_all_the_same(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(transport, "PAYLOAD_BYTES", 1)
    task_output = TaskOutput([bound(PANES, noop())])
    task_output.add(PANES, rows(1, 2))
    assert (task_output.take_payloads(), list(task_output.stage(0, "0"))) == ([], [])


def test_on_the_way_to_another_operator_panes_go_by_their_key_and_all_else_is_forwarded():
    layout = ShardLayout.balanced(2)
    route = Reshuffle(Input(time=None, key=("word",)), layout, input=3)
    task_output = TaskOutput(None, shard=5, reshuffle=route)
    task_output.add(PANES, rows(*range(20)))
    task_output.add(LATE, rows(20))
    sent = task_output.take_payloads()
    by_shard = {
        one.shard: decode_payload(one.payload).column("n").to_pylist()
        for one in sent
        if one.output == ROWS
    }
    assert {*by_shard} == {*layout.ids}
    assert sorted(n for numbers in by_shard.values() for n in numbers) == [*range(20)]
    late = ShuffleRow(5, 3, 5, 0, *sent[-1][:2])
    assert sent[-1].shard == 5
    assert unpack_forwarded(late)[0] == LATE
    marks = task_output.marks({"watermark": 7})
    assert [(one.output, one.shard) for one in marks] == [(MARKS, shard) for shard in layout.ids]
    assert task_output.row(9, marks[0]) == {
        "shard": layout.ids[0],
        "input": 3,
        "task": 5,
        "seq": 9,
        "kind": MARKS,
        "payload": b'{"shard":5,"watermark":7}',
        "metrics": None,
    }


def test_panes_that_waited_without_an_address_get_one():
    route = Reshuffle(Input(time=None, key=("word",)), ShardLayout.balanced(2))
    task_output = TaskOutput(None, shard=5, reshuffle=route)
    task_output.add_pending(OutputPayload(PANES, packed(rows(1))))
    (first,) = task_output.take_payloads()
    assert first.output == ROWS
    task_output.add_pending(first)
    assert task_output.take_payloads() == [first]

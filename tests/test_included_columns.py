"""The optional columns of panes in rows on Spark."""

from __future__ import annotations

import pyarrow as pa
import pytest

import tidegate as tg
from support.spark_fakes import Columns, Fleet
from tidegate.api.running import plan_of
from tidegate.errors import SpecError
from tidegate.spark.query.metadata import QueryMetadata
from tidegate.spark.query.start import _bind_sinks
from tidegate.spark.tasks.shards import ShardLayout
from tidegate.spark.tasks.transport import PANES

TWO = ShardLayout.balanced(2)
SCHEMA = pa.schema({"k": pa.string(), "t": pa.int64()})
DEFAULT = [
    *("k", "window_start", "window_end", "op", "timing", "pane", "is_first", "is_last", "n"),
    *("watermark", "emitted_at"),
]
OPTIONAL = {"pane_nonspeculative", "time", "pane_id"}


def counts(**options: str) -> tg.Panes:
    stream = tg.stream(Columns(SCHEMA), time="t", key="k")
    return stream.window(tg.tumbling("10 us")).options(**options).aggregate(n=tg.count())


def columns(panes: tg.Panes) -> list[str]:
    """The columns that a sink receives."""
    plan = plan_of(panes)
    (bound,) = _bind_sinks(plan, QueryMetadata.new(TWO, []), {PANES: tg.sinks.noop()})
    return bound.target.schema.names


def test_rows_have_them_on_request_only():
    assert columns(counts()) == DEFAULT
    assert columns(counts().include("time")) == [*DEFAULT[:-2], "time", *DEFAULT[-2:]]
    assert set(columns(counts().include())) == {*DEFAULT, *OPTIONAL}
    assert columns(counts().include())[-1] == "pane_id"
    assert set(columns(counts().include().changelog())) >= OPTIONAL


def test_a_chain_keeps_them_between_operators():
    totals = tg.stream(counts(), key="k").inherit().aggregate(n=tg.sum("n"))
    assert columns(totals) == DEFAULT
    assert set(columns(totals.include())) == {*DEFAULT, *OPTIONAL}


def test_the_option_timestamp_is_visible():
    Fleet.forget_workers()
    rows = pa.table({"k": ["a", "a", "a"], "t": [13, 11, 25]}, SCHEMA)
    for timestamp, time in (("earliest", 11), ("latest", 13), ("end_of_window", 19)):
        fleet = Fleet.of(counts(timestamp=timestamp).include("time"), TWO)
        (pane,) = fleet.deliver([(0, 0, [rows])], 100).panes
        assert (pane["window_start"], pane["time"]) == (10, time)
        Fleet.forget_workers()


def test_other_names_are_refused():
    with pytest.raises(SpecError, match=r"got 'pane'.*Hint"):
        counts().include("time", "pane")

"""The source `tidegate` on Spark: every event once and in the order of its key, and the writers'
own watermark in band.
"""

from __future__ import annotations

import json
import random
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import LongType, StructField, StructType

import tidegate as tg
from support.examples import examples
from support.spark_streams import Run, finished
from support.stream_worlds import HandClock
from tidegate.errors import SetupError, SpecError, StreamError
from tidegate.spark.sources import streams as stream_source
from tidegate.spark.sources.streams import (
    BatchReader,
    StreamOffset,
    StreamOptions,
    StreamPartition,
    StreamReader,
    StreamSource,
    limit_events,
    to_partitions,
)
from tidegate.streams import Frontier, Stream, Streams
from tidegate.streams import open as open_streams

SECOND = 1_000_000
BASE = 1_700_000_040 * SECOND
"""The beginning of a minute."""
Row = dict[str, Any]


class Written:
    """A stream that a test writes to, with a writer and a controller that do what they are told and
    nothing else.
    """

    def __init__(self, url: str, segments: int = 2) -> None:
        self.url = url
        # The clock stands still, so that no lease and no timeout depends on the machine.
        self.store: Streams = open_streams(url, clock=HandClock())
        self.name = f"s-{uuid.uuid4().hex[:8]}"
        self.stream: Stream = self.store.create(
            self.name,
            segments=segments,
            initial_delay="0 s",
            timestamp_aggregation_timeout="1 hour",
        )
        self.writer = self.stream.writer("w", linger=None)
        self.controller = self.store.controller()
        self.count = 0

    def write(self, *keys: str, at: int = 0) -> None:
        """An event for each key, numbered, and so many seconds old."""
        for key in keys:
            self.writer.write({"key": key, "n": self.count, "ts": BASE + at * SECOND}, key)
            self.count += 1
        self.writer.flush()

    def note(self, at: int) -> None:
        """The writer is so far, and so is the stream."""
        self.writer.note_time(BASE + at * SECOND)
        self.writer.flush()
        assert self.name in self.controller.round()

    def options(self, **more: Any) -> dict[str, str]:
        return {
            "store": self.url,
            "stream": self.name,
            **{name: str(value) for name, value in more.items()},
        }

    def reader(self, **more: Any) -> StreamReader:
        return StreamReader(StreamOptions.parse(self.options(**more)))

    def close(self) -> None:
        self.writer.close()
        self.store.close()


@pytest.fixture
def written(tmp_path: Path) -> Iterator[Written]:
    found = Written(f"sqlite:{tmp_path / 'streams.db'}?synchronous=normal")
    yield found
    found.close()


def rows_of(reader: StreamReader | BatchReader, shares: list[Any]) -> list[Row]:
    return [row for share in shares for batch in reader.read(share) for row in batch.to_pylist()]


def events(rows: list[Row]) -> list[tuple[str, int]]:
    return [(row["key"], json.loads(row["value"])["n"]) for row in rows if row["value"] is not None]


def notes(rows: list[Row]) -> list[int]:
    """The seconds that were noted."""
    return [
        int(row["noted"].timestamp()) - BASE // SECOND for row in rows if row["noted"] is not None
    ]


class Followed:
    """A query as Spark would drive it, batch by batch."""

    def __init__(self, reader: StreamReader) -> None:
        self.reader, self.at = reader, reader.initialOffset()
        self.rows: list[list[Row]] = []
        self.offsets: list[Row] = [self.at]

    def step(self, most: int | None = None) -> list[Row] | None:
        """One batch; None where there is nothing new. Offsets go through their stored form, and
        every batch is read twice.
        """
        end = json.loads(
            json.dumps(
                self.reader.latestOffset(
                    self.at, ReadAllAvailable() if most is None else ReadMaxRows(most)
                )
            )
        )
        if end == self.at:
            return None
        found, again = (
            rows_of(self.reader, self.reader.partitions(self.at, end)) for _ in range(2)
        )
        assert found == again
        self.at = end
        self.rows.append(found)
        self.offsets.append(end)
        return found

    def all(self, most: int | None = None) -> list[Row]:
        while self.step(most) is not None:
            pass
        return [row for batch in self.rows for row in batch]


# Batches and offsets


def test_a_batch_has_what_is_new_and_the_watermark_that_it_has_passed(written: Written) -> None:
    query = Followed(written.reader())
    assert query.step() is None
    written.write("a", "b", "c", at=5)
    assert sorted(events(query.step() or [])) == [("a", 0), ("b", 1), ("c", 2)]
    written.write("a", at=8)
    written.note(10)
    found = query.step() or []
    assert (events(found), notes(found)) == ([("a", 3)], [10])
    assert [
        (row["writer"], row["key"], row["segment"], row["appended"], row["offset"])
        for row in found
        if row["noted"]
    ] == [(written.name, None, None, None, 1)]
    assert all(
        row["writer"] is None and row["segment"] in ("0", "1") and row["appended"]
        for row in found
        if row["value"]
    )
    assert query.step() is None


def test_a_watermark_alone_is_a_batch_and_one_that_is_not_passed_waits(written: Written) -> None:
    query = Followed(written.reader())
    written.write(*"abcd", at=5)
    written.note(10)
    first = query.step(most=2) or []
    assert (len(events(first)), notes(first)) == (2, [])
    second = query.step(most=2) or []
    assert (len(events(second)), notes(second)) == (2, [10])
    written.note(20)
    written.note(30)
    assert [(events(rows), notes(rows)) for rows in [query.step() or []]] == [([], [30])], (
        "the last one says what those before it do"
    )
    assert query.step() is None


def test_successors_begin_in_a_batch_after_that_of_their_predecessors_ends(
    written: Written,
) -> None:
    query = Followed(written.reader())
    keys = [f"k{n}" for n in range(20)]
    for scale in (3, 1, 4):
        written.write(*keys)
        written.stream.scale(scale)
    written.write(*keys)
    written.note(10)
    found = query.all()
    assert sorted(events(found)) == sorted((keys[n % 20], n) for n in range(80))
    for key in keys:
        assert [n for one, n in events(found) if one == key] == sorted(
            n for one, n in events(found) if one == key
        )
    names = [{row["segment"] for row in batch if row["segment"]} for batch in query.rows]
    assert names[:3] == [{"0", "1"}, {"2", "3", "4"}, {"5"}]
    assert notes(found) == [10]
    assert notes(query.rows[-1]) == [10]
    assert query.at["position"].keys() == {"6", "7", "8", "9"}


def test_a_segment_that_ended_without_anything_new_does_not_make_its_successors_wait(
    written: Written,
) -> None:
    query = Followed(written.reader())
    written.write(*"abc")
    query.step()
    written.stream.scale(3)
    written.write(*"abc")
    assert len(events(query.step() or [])) == 3


turns = st.tuples(
    st.integers(0, 9), st.sampled_from([None, 1, 3, 10]), st.sampled_from([None, None, 1, 2, 3, 5])
)


@examples(30)
@given(st.lists(turns, max_size=8), st.integers(0, 99))
def test_whatever_happens_events_come_once_in_order_and_never_behind_a_note(history, seed):
    dice = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        made = Written(
            f"sqlite:{folder}/streams.db?synchronous=normal", segments=dice.choice([1, 2, 3])
        )
        query, at = Followed(made.reader()), 0
        for many, most, scale in history:
            made.write(*(dice.choice("abcdefg") for _ in range(many)), at=at + dice.randrange(5))
            if dice.random() < 0.6:
                at += 5
                made.note(at)
            if scale is not None:
                made.stream.scale(scale)
            if dice.random() < 0.7:
                query.step(most)
            if dice.random() < 0.3:
                # The driver starts anew.
                query.reader.stop()
                query.reader = made.reader()
        found = query.all(dice.choice([None, 1, 2, 7]))
        assert sorted(n for _, n in events(found)) == list(range(made.count))
        for key in {key for key, _ in events(found)}:
            mine = [n for one, n in events(found) if one == key]
            assert mine == sorted(mine)
        passed = -1
        for batch in query.rows:
            times = [
                json.loads(row["value"])["ts"] // SECOND - BASE // SECOND
                for row in batch
                if row["value"]
            ]
            assert not times or min(times) >= passed, (
                "an event came after the note that says that none is to come"
            )
            said = notes(batch)
            assert len(said) <= 1
            passed = max([passed, *said])
        # Where nothing was written since, all that was noted has come.
        assert passed == (at or -1)
        query.reader.stop()
        made.close()


def test_a_batch_holds_no_more_than_was_said_and_takes_of_all_segments(written: Written) -> None:
    assert limit_events({"0": 5, "1": 2, "2": 9}, None) == {"0": 5, "1": 2, "2": 9}
    assert limit_events({"0": 5, "1": 2, "2": 9}, 16) == {"0": 5, "1": 2, "2": 9}
    assert limit_events({"0": 5, "1": 2, "2": 9}, 9) == {"0": 3, "1": 2, "2": 4}
    assert limit_events({"0": 5, "1": 2, "2": 9}, 2) == {"0": 1, "2": 1}
    assert limit_events({}, 5) == {}
    assert isinstance(written.reader().getDefaultReadLimit(), ReadAllAvailable)
    assert written.reader(maxEventsPerTrigger=7).getDefaultReadLimit() == ReadMaxRows(7)


def test_only_a_large_range_is_cut_and_tasks_are_not_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stream_source, "SPLIT_EVENTS", 10)
    monkeypatch.setattr(stream_source, "MAX_TASKS", 3)

    def told(chains: Any, note: Any = None) -> list[tuple[Any, Any]]:
        return [
            (share.ranges, share.note)
            for share in to_partitions(chains, note)
            if isinstance(share, StreamPartition)
        ]

    assert told([[("0", 3, 28)]]) == [
        ([("0", 3, 11)], None),
        ([("0", 11, 19)], None),
        ([("0", 19, 28)], None),
    ]
    assert told([[("0", 0, 30), ("1", 0, 5)]], (4, 5)) == [([("0", 0, 30), ("1", 0, 5)], (4, 5))], (
        "the order of keys is that of the task"
    )
    assert told([], (4, 5)) == [([], (4, 5))]
    assert told([]) == []
    many = told([[(str(n), 0, 1)] for n in range(7)], (4, 5))
    assert [len(ranges) for ranges, _ in many] == [2, 2, 3]
    assert [note for _, note in many] == [None, None, (4, 5)]


def test_reading_may_start_at_the_end_or_at_a_cut(written: Written) -> None:
    written.write(*"abcdef")
    written.note(10)
    cut = written.stream.tail()
    late = Followed(written.reader(startingPosition="latest"))
    written.write(*"ab")
    for query in (late, Followed(written.reader(startingPosition=json.dumps(cut)))):
        found = query.all()
        assert sorted(n for _, n in events(found)) == [6, 7]
        assert notes(found) == [10], "all writers are beyond this time where reading starts"


def test_with_available_now_a_query_ends_where_the_stream_was_when_it_started(
    written: Written,
) -> None:
    written.write(*"abc")
    written.note(5)
    query = Followed(written.reader())
    query.reader.prepareForTriggerAvailableNow()
    query.step(most=1)
    written.write(*"abc", at=7)
    written.note(10)
    written.stream.scale(3)
    written.note(20)
    found = query.all(most=1)
    assert (len(events(found)), notes(found)) == (3, [5])
    again = Followed(written.reader())
    again.at = query.at
    again.reader.prepareForTriggerAvailableNow()
    assert (len(events(again.all())), notes(again.all())) == (3, [20])


def test_where_spark_says_nothing_of_the_start_a_batch_has_all_up_to_the_end_of_the_stream_in_order(
    written: Written,
) -> None:
    """As Spark 4.1 asks."""
    reader = written.reader()
    written.write(*"abcdefgh")
    start = reader.initialOffset()
    first = reader.latestOffset()
    written.stream.scale(1)
    written.write(*"abcdefgh")
    written.stream.scale(4)
    written.write(*"abcdefgh")
    written.note(10)
    second = reader.latestOffset()
    assert reader.latestOffset() == second
    found = (
        rows_of(reader, reader.partitions(start, first)),
        rows_of(reader, reader.partitions(first, second)),
    )
    assert [len(events(rows)) for rows in found] == [8, 16]
    assert notes(found[1]) == [10]
    shares = reader.partitions(first, second)
    assert len(shares) == 1, "what succeeds each other is read by one task"
    for key in "abcdefgh":
        assert [n // 8 for one, n in events(found[1]) if one == key] == [1, 2]


def test_the_offset_says_all_that_a_replay_needs(written: Written) -> None:
    query = Followed(written.reader())
    written.write(*"abc")
    written.note(10)
    query.step()
    written.write(*"abc")
    written.note(20)
    query.step()
    written.stream.truncate(written.stream.tail())
    written.write(*"d", at=21)
    written.note(30)
    reader = written.reader()
    assert notes(
        rows_of(
            reader,
            reader.partitions(
                query.offsets[2], query.reader.latestOffset(query.at, ReadAllAvailable())
            ),
        )
    ) == [30]
    with pytest.raises(
        StreamError, match=r"truncated up to \d+, and the query is at \d.*failOnDataLoss"
    ):
        reader.partitions(query.offsets[1], query.offsets[2])
    lossy = written.reader(failOnDataLoss="false")
    with pytest.warns(RuntimeWarning, match="skipped"):
        found = rows_of(lossy, lossy.partitions(query.offsets[1], query.offsets[2]))
    assert (events(found), notes(found)) == (
        [],
        [20],
    ), "the offset knows what was noted, though nobody else does any more"
    assert StreamOffset.from_dict(query.at).to_dict() == query.at


# What is lost, and what is wrong


def test_what_was_truncated_before_it_was_read_is_an_error_or_skipped(written: Written) -> None:
    query = Followed(written.reader())
    written.write(*"abcdef")
    query.step(most=2)
    written.stream.scale(3)
    written.write(*"abcdef")
    cut = written.stream.tail()
    written.write(*"abcdef")
    written.stream.truncate(cut)
    with pytest.raises(StreamError, match=r"was truncated up to .*failOnDataLoss"):
        query.step()
    lossy = Followed(written.reader(failOnDataLoss="false"))
    lossy.at = query.at
    with pytest.warns(RuntimeWarning, match="the events between are skipped"):
        found = lossy.all()
    assert sorted(n for _, n in events(found)) == list(range(12, 18))


def test_what_is_truncated_while_a_task_reads_is_skipped_too(written: Written) -> None:
    written.write(*"abcdef")
    reader, lossy = written.reader(), written.reader(failOnDataLoss="false")
    start = reader.initialOffset()
    shares = reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))
    written.stream.truncate(written.stream.tail())
    with pytest.raises(StreamError, match="failOnDataLoss"):
        rows_of(reader, shares)
    with pytest.warns(RuntimeWarning, match="skipped"):
        assert rows_of(lossy, shares) == []


def test_another_stream_of_the_same_name_is_not_read_on(written: Written) -> None:
    written.write(*"abcdef")
    query = Followed(written.reader())
    query.step()
    written.store.delete(written.name)
    written.stream = written.store.create(written.name, segments=2)
    with pytest.raises(StreamError, match="the checkpoint is of another stream"):
        query.step()
    written.writer = written.stream.writer("w")


GOOD = {"store": "x.db", "stream": "s"}
NAMED = StructType(
    [
        StructField(name, LongType())
        for name in ("key", "value", "segment", "offset", "appended", "writer", "noted")
    ]
)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs the option `store`"),
        ({"store": "x.db"}, "needs the option `stream`"),
        ({**GOOD, "path": "y"}, "has no option `path`.*use one of store, stream, startingPosition"),
        ({**GOOD, "startingPosition": "now"}, "`startingPosition` is earliest, latest or a cut"),
        ({**GOOD, "startingPosition": "[1]"}, "`startingPosition` is earliest, latest or a cut"),
        ({**GOOD, "maxEventsPerTrigger": "0"}, "`maxEventsPerTrigger` is a number of at least 1"),
        (
            {**GOOD, "maxEventsPerTrigger": "many"},
            "`maxEventsPerTrigger` is a number of at least 1",
        ),
        ({**GOOD, "failOnDataLoss": "no"}, "`failOnDataLoss` is true or false"),
    ],
    ids=str,
)
def test_options_that_cannot_be_are_refused(options: Row, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        StreamSource(options)


def test_options_are_told_apart_by_their_letters_and_not_by_their_case(written: Written) -> None:
    found = StreamOptions.parse(
        {
            "STORE": "x.db",
            "Stream": "s",
            "startingposition": "LATEST",
            "maxeventspertrigger": "5",
            "failondataloss": "FALSE",
        }
    )
    assert found == StreamOptions("x.db", "s", "latest", 5, fail_on_data_loss=False)
    source = StreamSource(written.options(maxEventsPerTrigger=5))
    with pytest.raises(SpecError, match=r"leave \.schema\(\) out"):
        source.streamReader(StructType([StructField("n", LongType())]))
    with pytest.raises(SpecError, match="is for streaming queries"):
        source.reader(NAMED)


def test_spark_4_1_cannot_be_asked_for_so_much(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_source, "HAS_READ_LIMIT", False)
    assert StreamSource(written.options()).streamReader(NAMED)
    with pytest.raises(SetupError, match=r"needs Spark 4\.2"):
        StreamSource(written.options(maxEventsPerTrigger=5)).streamReader(NAMED)


def test_a_frontier_that_stands_between_is_read_on_from_where_it_stands(written: Written) -> None:
    """Segment 2 has begun, and 3 waits for the end of 1."""
    written.write(*(f"k{n}" for n in range(40)))
    described = written.stream.scale(seal=["0", "1"], ranges=[(0, 0.3), (0.3, 1)])
    written.write(*(f"k{n}" for n in range(40)))
    ends = {name: last for name, (_, last) in written.stream.store.bounds(written.name).items()}
    query = Followed(written.reader())
    middle = Frontier({"0": 0, "1": 0}).advanced(
        described.segments, {"0": ends["0"], "1": 3}, ["0"]
    )
    assert middle.position == {"0": ends["0"], "1": 3, "2": 0}
    query.at = StreamOffset(middle).to_dict()
    found = query.all()
    assert len(events(found)) == 80 - ends["0"] - 3
    assert [{row["segment"] for row in batch} for batch in query.rows] == [{"1", "2"}, {"3"}]


# On Spark


def loaded(spark: SparkSession, written: Written, **more: Any) -> DataFrame:
    return spark.readStream.format("tidegate").options(**written.options(**more)).load()


class Batches:
    """What came, by batch."""

    def __init__(self, fails: int | None = None) -> None:
        self.rows: dict[int, list[Row]] = {}
        self.fails = fails

    def __call__(self, frame: DataFrame, batch: int) -> None:
        self.rows[batch] = [row.asDict() for row in frame.collect()]
        if batch == self.fails:
            self.fails = None
            raise RuntimeError("the sink is ill")

    @property
    def all(self) -> list[Row]:
        return [row for batch in sorted(self.rows) for row in self.rows[batch]]


def follow(frame: DataFrame, checkpoint: Path, sink: Batches) -> None:
    query = (
        frame.writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def test_restarts_scaling_transactions_and_a_failure_change_nothing(
    spark: SparkSession, written: Written, tmp_path: Path
) -> None:
    frame, found = loaded(spark, written, maxEventsPerTrigger=15), Batches(fails=1)
    keys = [f"k{n}" for n in range(20)]
    written.write(*keys, at=1)
    with written.stream.transactional_writer("t") as writer:
        committed, given_up = writer.begin(), writer.begin()
        for n in range(20, 40):
            committed.write(json.dumps({"n": n}), keys[n % 20])
            given_up.write(json.dumps({"n": 1000 + n}), keys[n % 20])
        with pytest.raises(StreamingQueryException, match="the sink is ill"):
            follow(frame, tmp_path / "checkpoint", found)
        assert sorted(n for _, n in events(found.rows[0])) == sorted(
            {n for _, n in events(found.rows[0])}
        )
        failed = found.rows.pop(1)
        committed.commit(timestamp=BASE + 2 * SECOND)
        given_up.abort()
    written.count = 40
    written.stream.scale(3)
    written.write(*keys, at=2)
    follow(frame, tmp_path / "checkpoint", found)
    assert sorted(map(str, found.rows[1])) == sorted(map(str, failed)), (
        "a batch that failed is replayed as it was"
    )
    assert all(len(events(rows)) <= 15 for rows in found.rows.values())
    written.stream.scale(2)
    written.write(*keys, at=3)
    for at in (5, 6):
        # The other writer is at 2 and has ended, so the second time is that of this one alone.
        written.note(at)
    follow(frame, tmp_path / "checkpoint", found)
    follow(frame, tmp_path / "checkpoint", found)
    assert sorted(n for _, n in events(found.all)) == list(range(80))
    for key in keys:
        mine = [n for one, n in events(found.all) if one == key]
        assert mine == sorted(mine)
    assert notes(found.all) == [6]


def test_a_batch_reads_all_that_is_there(spark: SparkSession, written: Written) -> None:
    written.write(*"abcdef")
    written.note(5)
    written.stream.scale(3)
    written.write(*"abcdef")
    frame = spark.read.format("tidegate").options(**written.options()).load()
    assert frame.dtypes == [
        ("key", "string"),
        ("value", "binary"),
        ("segment", "string"),
        ("offset", "bigint"),
        ("appended", "timestamp"),
        ("writer", "string"),
        ("noted", "timestamp"),
    ]
    rows = [row.asDict() for row in frame.collect()]
    assert sorted(n for _, n in events(rows)) == list(range(12))
    assert notes(rows) == []
    nothing = (
        spark.read.format("tidegate").options(**written.options(startingPosition="latest")).load()
    )
    assert nothing.count() == 0


def clicks(frame: DataFrame) -> DataFrame:
    """The events of a stream with the columns that are in their values."""
    value = F.from_json(F.col("value").cast("string"), "key string, n long, ts long")
    return frame.select(
        value["key"].alias("key"),
        value["n"].alias("n"),
        F.timestamp_micros(value["ts"]).alias("ts"),
        "writer",
        "noted",
    )


def counted(frame: DataFrame, **options: Any) -> tg.Panes:
    made = tg.stream(clicks(frame), time="ts", key="key", watermark=tg.noted())
    return (
        made.window(tg.tumbling("10 seconds"))
        .allow_lateness("0 s")
        .options(**options)
        .aggregate(n=tg.count())
    )


def shown(run: Run) -> list[tuple[str, int, int]]:
    return sorted(
        (row["key"], int(row["window_start"].timestamp()) - BASE // SECOND, row["n"])
        for row in run.panes
    )


@pytest.mark.parametrize("granularity", [pytest.param("batch", marks=pytest.mark.slow), "element"])
def test_windows_have_the_watermark_of_the_writers(
    spark: SparkSession, written: Written, tmp_path: Path, granularity: str
) -> None:
    name = uuid.uuid4().hex

    def run() -> Run:
        return finished(
            counted(loaded(spark, written, maxEventsPerTrigger=4), granularity=granularity),
            tmp_path / "checkpoint",
            name=name,
        )

    written.write("a", "b", at=3)
    written.write("a", at=12)
    written.write("b", at=1)
    # All of these came before the writer said that it is beyond 10, and so did what is read in the
    # same batch.
    written.note(10)
    assert shown(run()) == [("a", 0, 1), ("b", 0, 2)]
    written.stream.scale(3)
    written.write("a", "b", at=15)
    written.write("b", at=2)
    written.note(20)
    found = run()
    assert shown(found) == [("a", 0, 1), ("a", 10, 2), ("b", 0, 2), ("b", 10, 1)]
    assert [(row["key"], row["reason"]) for row in found.late] == [("b", "very_late")], (
        "its writer had said that none is to come"
    )


def test_a_query_that_runs_hears_of_a_watermark_without_events(
    spark: SparkSession, written: Written, tmp_path: Path
) -> None:
    written.write("a", "b", at=3)
    run = Run(counted(loaded(spark, written)), tmp_path / "checkpoint", trigger="100 ms")
    try:
        run.wait_for(lambda: run.query.progress is not None)
        written.note(10)
        run.wait_for(lambda: len(run.panes) == 2)
        assert shown(run) == [("a", 0, 1), ("b", 0, 1)]
    finally:
        run.query.stop()


WRONG = [
    ({"stream": "nobody"}, "there is no stream `nobody`"),
    ({"speed": "5"}, "has no option `speed`"),
]


@pytest.mark.parametrize(("options", "message"), WRONG, ids=["stream", "option"])
def test_what_is_wrong_is_said_when_the_stream_is_loaded(
    spark: SparkSession, written: Written, options: Row, message: str
) -> None:
    for read in (spark.read, spark.readStream):
        with pytest.raises(AnalysisException, match=message):
            read.format("tidegate").options(**{**written.options(), **options}).load()


def test_a_session_learns_the_source_as_often_as_it_is_told(
    spark: SparkSession, written: Written
) -> None:
    written.write("a")
    for _ in range(2):
        tg.sources.register(spark)
        assert spark.read.format("tidegate").options(**written.options()).load().count() == 1


@pytest.mark.kafka
@pytest.mark.slow
def test_streams_in_kafka_are_read_alike(spark: SparkSession, kafka: Any, tmp_path: Path) -> None:
    written = Written(f"kafka://{kafka.bootstrap_servers}/t{uuid.uuid4().hex[:8]}-")
    frame, found = loaded(spark, written, maxEventsPerTrigger=15), Batches()
    keys = [f"k{n}" for n in range(20)]
    written.write(*keys, at=1)
    follow(frame, tmp_path / "checkpoint", found)
    written.stream.scale(3)
    written.write(*keys, at=2)
    with written.stream.transactional_writer("t") as writer, writer.begin() as transaction:
        for n in range(40, 60):
            transaction.write(json.dumps({"n": n}), keys[n % 20])
        transaction.commit(timestamp=BASE + 4 * SECOND)
    for at in (5, 7):
        written.note(at)
    follow(frame, tmp_path / "checkpoint", found)
    follow(frame, tmp_path / "checkpoint", found)
    assert sorted(n for _, n in events(found.all)) == list(range(60))
    for key in keys:
        mine = [n for one, n in events(found.all) if one == key]
        assert mine == sorted(mine)
    assert notes(found.all) == [7]
    written.close()

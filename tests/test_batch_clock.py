"""The clock of a micro-batch is read from Spark's offset log, where that can be reached."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegate.errors import CorruptStateError
from tidegate.spark.checkpoint import is_local
from tidegate.spark.tasks.batch_clock import BatchClock

LOG = 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1794793921138,"conf":{"a":"b"}}\n{"logOffset":3}\n'


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "7").write_text(LOG)
    return tmp_path


@pytest.mark.parametrize("form", ["{}", "{}/", "file:{}", "file://{}"])
def test_it_is_what_spark_wrote_before_the_batch(checkpoint: Path, form: str) -> None:
    clock = BatchClock.for_checkpoint(form.format(checkpoint))
    assert clock is not None
    assert clock.of(7) == 1794793921138 * 1000


@pytest.mark.parametrize(
    "place", ["s3a://bucket/checkpoint", "hdfs://name:8020/checkpoint", "abfss://a@b.example/c"]
)
def test_where_only_spark_reaches_the_log_nobody_else_tries(place: str) -> None:
    assert not is_local(place)
    assert BatchClock.for_checkpoint(place) is None


@pytest.mark.parametrize(
    "content", [None, "", "v1\n", "v1\n{}\n", "v1\nnothing\n", 'v1\n{"batchTimestampMs":null}\n']
)
def test_a_log_that_cannot_be_read_is_told(checkpoint: Path, content: str | None) -> None:
    log = checkpoint / "offsets" / "7"
    log.unlink() if content is None else log.write_text(content)
    clock = BatchClock(str(checkpoint))
    with pytest.raises(
        CorruptStateError,
        match=(
            r"the clock of batch 7 cannot be read from Spark's log .*offsets/7 .*Hint: the checkpoint must"
        ),
    ):
        clock.of(7)

"""A query that fails with an error of Tidegate raises it, with the exception of Spark as its
cause.
"""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException

import tidegate as tg
from support.spark_streams import Feed, clicks
from tidegate.cli import main
from tidegate.errors import SinkError, WatermarkError

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def backwards(source):
    """Panes of a strict stream whose watermark column goes back."""
    strict = tg.stream(source, time="ts", key="user", watermark=tg.punctuated("mark"))
    return strict.window(tg.tumbling("1 minute")).options(strict=True).aggregate(n=tg.count())


@pytest.fixture
def feed(tmp_path):
    found = Feed(tmp_path / "in")
    found.put(clicks(("a", 60, 1.0)))
    found.put(clicks(("a", 30, 1.0)))
    return found


def test_a_task_raises_its_error_through_every_verb_of_the_query(spark, feed, tmp_path):
    panes = backwards(feed.stream(spark).selectExpr("*", "ts as mark"))
    query = panes.write(tg.sinks.noop(), checkpoint=tmp_path / "ck", trigger="available_now")
    for verb in (query.await_termination, query.process_all_available):
        with pytest.raises(WatermarkError, match=r"went back from .* to .*Hint") as caught:
            verb()
        assert isinstance(caught.value.__cause__, PySparkException)
        assert "\n" not in str(caught.value)
    failure = query.exception()
    assert isinstance(failure, WatermarkError)
    assert isinstance(failure.__cause__, PySparkException)
    query.stop()


def test_a_sink_raises_its_error_in_a_stream_and_in_a_batch(spark, feed, tmp_path):
    def full(frame, batch):
        raise SinkError(f"no room for batch {batch}. Hint: make some")

    for source in (feed.stream(spark), feed.batch(spark)):
        panes = tg.stream(source, time="ts").window(tg.tumbling("1 s")).aggregate(n=tg.count())
        with pytest.raises(SinkError, match=r"^no room for batch 0\. Hint: make some$"):
            panes.write(
                tg.sinks.foreach_batch(full), checkpoint=tmp_path / "ck", trigger="available_now"
            ).await_termination()


def test_actions_on_the_data_frame_raise_it_inside_a_block(spark, feed):
    panes = backwards(feed.batch(spark).selectExpr("*", "ts as mark").coalesce(1))
    with pytest.raises(WatermarkError, match="went back") as caught, tg.spark_errors():
        panes.df.collect()
    assert isinstance(caught.value.__cause__, PySparkException)


def test_run_prints_it_in_one_line(spark, feed, tmp_path, capsys):
    path = tmp_path / "strict.yaml"
    path.write_text(
        """
input: {type: parquet, folder: in, max_files_per_trigger: 1, select: ["*", ts as mark]}
stream: {time: ts, key: user, watermark: punctuated(mark)}
window: tumbling(1 minute)
options: {strict: true}
aggregate: {n: count}
write: {to: noop, checkpoint: ck}
"""
    )
    assert main(["run", "--until-idle", str(path)]) == 1
    captured = capsys.readouterr()
    assert "failed after" in captured.out
    (line,) = (line for line in captured.err.splitlines() if "WatermarkError" in line)
    assert line.startswith("tidegate run: the query failed: WatermarkError: ")

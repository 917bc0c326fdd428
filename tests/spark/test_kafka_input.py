"""Plain topics of Kafka as input: a watermark for each partition, and partitions that fall silent
do not hold the others.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Self

import pyarrow.parquet as pq
import pytest

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.slow]
SECOND = 1_000_000
BASE = 1_700_000_000 * SECOND // (60 * SECOND) * (60 * SECOND)
READER = """
import json, sys
from pathlib import Path
from pyspark.sql import functions as f
import tidegate as tg

servers, topic, folder = sys.argv[1:]
spark = tg.spark_session(cores=2, memory="1g", kafka=True)
rows = spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers).option("subscribe", topic)
rows = rows.option("startingOffsets", "earliest").load()
events = rows.select(f.from_json(f.col("value").cast("string"), "user string, t long").alias("e"), "partition", "offset")
events = events.select(f.timestamp_micros("e.t").alias("ts"), "e.user", "partition", "offset")
for line in sys.stdin:
    # A query until it has so many panes and no input that it has not read.
    name, idle, *wanted = json.loads(line)
    mark = tg.bounded("0 seconds", partitions=["0", "1"], idle_after=idle)
    clicks = tg.stream(events, time="ts", key="user", partition="partition", offset="offset", watermark=mark)
    panes = clicks.window(tg.tumbling("1 minute")).aggregate(n=tg.count())
    to, late = tg.sinks.memory(), tg.sinks.memory()
    query = panes.write(to=to, late=late, checkpoint=Path(folder) / name, trigger="250 ms")
    for count in wanted:
        query.process_all_available()
        while len(to.rows()) < count and query.is_active:
            query.await_termination(1)
        panes = [[row["user"], row["window_start"].timestamp(), row["n"], row["timing"]] for row in to.rows()]
        print(json.dumps([panes, len(late.rows())]), flush=True)
        sys.stdin.readline()
    query.stop()
"""


class Queries:
    """Queries over a topic in a process of its own, because the connector of Kafka has to be there
    when a session begins.
    """

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", READER, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def begin(self, name: str, idle_after: str | None, *wanted: int) -> None:
        """Begin a query under a name, for partitions that are idle after so long; it is asked for
        its panes as often as there are counts of them.
        """
        self._say(json.dumps([name, idle_after, *wanted]))

    def panes(self) -> list[tuple[str, int, int, str]]:
        """The panes as soon as there are as many as wanted, by key and minute; nothing was late."""
        assert self.process.stdout is not None
        found, late = json.loads(self.process.stdout.readline())
        assert late == 0
        return sorted(
            (user, round(start - BASE / SECOND) // 60, n, timing)
            for user, start, n, timing in found
        )

    def go_on(self) -> None:
        """Let the query look at what has come since."""
        self._say("")

    def _say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


def send(kafka, topic: str, partition: int, *events: tuple[str, int]) -> None:
    kafka.produce(
        topic,
        [
            {"value": {"user": user, "t": BASE + at * SECOND}, "partition": partition}
            for user, at in events
        ],
    )


def test_partitions_have_watermarks_of_their_own_and_silent_ones_do_not_hold_the_others(
    kafka, tmp_path
):
    topic = kafka.create_topic("clicks-by-partition", 2)
    send(kafka, topic, 0, ("a", 10), ("a", 190))
    send(kafka, topic, 1, ("b", 20))
    first = [("a", 0, 1, "on_time"), ("b", 0, 2, "on_time")]
    with Queries(kafka.bootstrap_servers, topic, str(tmp_path)) as queries:
        # Partition 1 is at 20 seconds, so nothing is over, and what it brings next is not late,
        # though partition 0 is far ahead.
        queries.begin("patient", None, 0, 2)
        assert queries.panes() == []
        send(kafka, topic, 1, ("b", 30), ("b", 70))
        queries.go_on()
        assert queries.panes() == first
        queries.go_on()
        # Nothing comes any more from partition 1: after a while it does not count, and the second
        # minute is over as well.
        queries.begin("impatient", "2 seconds", 3)
        assert queries.panes() == [*first, ("b", 1, 1, "on_time")]


PIPELINE = """
input:
  {{type: kafka, bootstrap_servers: "{servers}", topic: {topic}, schema: "user string, t long",
    starting: earliest, max_offsets_per_trigger: 3,
    select: [user, timestamp_micros(t) as ts, partition, offset]}}
stream:
  {{time: ts, key: user, partition: partition, offset: offset,
    watermark: "bounded(0 seconds, partitions=2)"}}
window: tumbling(1 minute)
aggregate: {{n: count}}
write: {{to: parquet(panes), checkpoint: ck}}
"""


def test_a_pipeline_file_declares_the_partitions_of_its_topic_by_number(kafka, tmp_path):
    topic = kafka.create_topic("clicks-of-a-file", 2)
    send(kafka, topic, 0, ("a", 10), ("a", 190))
    send(kafka, topic, 1, ("b", 20), ("b", 70))
    path = tmp_path / "clicks.yaml"
    path.write_text(PIPELINE.format(servers=kafka.bootstrap_servers, topic=topic))
    program = "import sys; from tidegate.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", program, "run", "--until-idle", str(path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert ended.returncode == 0, ended.stderr[-3000:]
    panes = pq.read_table(tmp_path / "panes").to_pylist()
    found = sorted((row["user"], row["n"]) for row in panes)
    assert found == [("a", 1), ("b", 1)], "the first minute, and no more: partition 1 is at 70 s"

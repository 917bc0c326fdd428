"""A driver that starts and stops one query as its standard input says, and prints what happens."""

from __future__ import annotations

import sys
from pathlib import Path

import tidegate as tg
from support.services.processes import SHORT_LIVED
from support.spark_streams import Feed


def main(folder: Path) -> None:
    spark = tg.spark_session(
        cores=1,
        memory="1g",
        conf={
            "spark.ui.enabled": "false",
            "spark.driver.extraJavaOptions": " ".join(SHORT_LIVED),
        },
    )
    panes = (
        tg.stream(
            Feed(folder / "in").stream(spark), time="ts", key="user", watermark=tg.ascending()
        )
        .window(tg.tumbling("1 minute"))
        .aggregate(n=tg.count())
    )
    print("ready", flush=True)
    query = None
    for order in sys.stdin:
        if order == "stop\n" and query is not None:
            query.process_all_available()
            query.stop()
            print("stopped", flush=True)
            continue
        try:
            query = panes.write(
                tg.sinks.parquet(folder / "out"),
                checkpoint=str(folder / "ck"),
                trigger="0 seconds",
                shards=1,
            )
        except tg.StateError as error:
            print(f"refused: {error}", flush=True)
        else:
            print("started", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

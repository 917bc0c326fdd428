"""Runs one query as a pipeline of Tidegate over the generated files, in a session of its own."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from bench.nexmark.generator import SCHEMAS
from bench.nexmark.queries import QUERIES

FILES_A_BATCH = 8


def main(text: str) -> None:
    """Run the query and print the seconds it took as the last line."""
    from tidegate.spark import sinks, sources
    from tidegate.spark.environment.session import UNIX_SOCKETS, session

    job = json.loads(text)
    query, folder, output = QUERIES[job["query"]], Path(job["folder"]), Path(job["output"])
    spark = session(
        "tidegate bench nexmark", cores=job["cores"], memory=job["memory"], conf=UNIX_SOCKETS
    )
    try:
        given = {
            kind: sources.csv(
                folder / kind,
                schema=SCHEMAS[kind],
                header=False,
                columns=columns,
                max_files_per_trigger=job["files_per_batch"],
            )
            for kind, columns in query.reads.items()
        }
        begin = time.perf_counter()
        running = query.ours(given).write(
            sinks.parquet(str(output / "answers")),
            late=sinks.parquet(str(output / "late")),
            checkpoint=str(output / "checkpoint"),
            trigger="available_now",
        )
        running.await_termination()
        print(json.dumps({"seconds": time.perf_counter() - begin}), flush=True)
    finally:
        spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])

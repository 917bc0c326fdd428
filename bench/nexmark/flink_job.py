"""Runs one statement of Flink SQL over the generated files; needs only the package apache-flink.

This file runs in an environment of its own: `python flink_job.py JOB`, where JOB is a JSON object
with `tables`, `select`, `columns`, `output`, `parallelism` and `settings`.
"""

from __future__ import annotations

import json
import sys
import time

_TYPES = {"long": "BIGINT", "string": "STRING", "timestamp": "TIMESTAMP(3)"}


def main(text: str) -> None:
    """Run the statement and print the seconds it took as the last line."""
    from pyflink.table import (  # type: ignore[import-not-found]
        EnvironmentSettings,
        TableEnvironment,
    )

    job = json.loads(text)
    environment = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    config = environment.get_config()
    config.set("parallelism.default", str(job["parallelism"]))
    config.set("table.exec.source.idle-timeout", "0")
    for name, value in job["settings"].items():
        config.set(name, value)
    for name, table in job["tables"].items():
        columns = ", ".join(
            f"{column} {_TYPES[kind]}"
            for column, kind in (part.split() for part in table["schema"].split(","))
        )
        environment.execute_sql(
            f"CREATE TABLE {name} ({columns}, arrival AS PROCTIME(),"
            f" WATERMARK FOR ts AS ts - INTERVAL '{job['delay']}' SECOND)"
            f" WITH ('connector' = 'filesystem', 'path' = '{table['path']}', 'format' = 'csv')"
        )
    columns = ", ".join(f"{name} {kind}" for name, kind in job["columns"].items())
    environment.execute_sql(
        f"CREATE TABLE answers ({columns}) WITH ('connector' = 'filesystem',"
        f" 'path' = '{job['output']}', 'format' = 'csv')"
    )
    begin = time.perf_counter()
    environment.execute_sql(f"INSERT INTO answers {job['select']}").wait()
    print(json.dumps({"seconds": time.perf_counter() - begin}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])

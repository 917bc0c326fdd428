"""Crash and resume: a killed process continues from RocksDB; no pane is lost or counted twice."""

# ruff: noqa: INP001, T201, S603

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import tidegate as tg

PANES = (
    tg.stream(time="ts", key="user", offset="offset", watermark=tg.bounded("2 seconds"))
    .window(tg.tumbling("10 seconds"))
    .trigger(tg.after_watermark(late=tg.after_count(1)))
    .aggregate(clicks=tg.count(), spent=tg.sum("price"))
)
NOON = datetime(2025, 3, 14, 12, tzinfo=UTC)
# The input can be read again from any offset, like a partition of Kafka.
LOG = [
    {"offset": n, "ts": NOON + timedelta(seconds=n), "user": ["ann", "bob"][n % 2], "price": n}
    for n in range(40)
]
DELIVERY = 5


def consume(folder: Path, *, dies: bool) -> None:
    """Read the log from the last flush on. Every second delivery: emit waiting panes, then
    flush.
    """
    op = PANES.embedded(store=tg.RocksDBStore(folder))
    start = op.resume_offsets()[""]
    print(f"  from offset {start}", flush=True)
    for number, at in enumerate(range(start, len(LOG), DELIVERY), 1):
        op.add_messages(LOG[at : at + DELIVERY])
        if number % 2 == 0:
            put_out(op)
            if dies and number == 6:
                os.kill(os.getpid(), signal.SIGKILL)
            op.flush()
    op.finish()
    put_out(op)
    op.flush()
    op.close()


def put_out(op: tg.EmbeddedOperator) -> None:
    """Print one line per waiting pane, under its id."""
    for pane in op.get_result().panes.to_pylist():
        window = f"{pane['window_start']:%H:%M:%S} to {pane['window_end']:%H:%M:%S}"
        print(f"  {pane['pane_id'][:8]} {pane['user']} {window} spent {pane['spent']}", flush=True)


def main() -> None:
    """One process that is killed, one that ends, and a sink that stores panes by id."""
    sink: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        for mode in ("dies", "lives"):
            child = subprocess.run(
                [sys.executable, __file__, mode, str(Path(folder) / "state")],
                capture_output=True,
                text=True,
                check=False,
            )
            print(f"a process that {mode}, exit status {child.returncode}:")
            for line in child.stdout.splitlines():
                name, _, pane = line.strip().partition(" ")
                print(line + (" (again)" if name in sink and sink[name] == pane else ""))
                if name != "from":
                    sink[name] = pane
    spent = sum(int(pane.split()[-1]) for pane in sink.values())
    print(f"{len(sink)} panes; spent {spent}, and the log says {sum(row['price'] for row in LOG)}")


if __name__ == "__main__":
    if len(sys.argv) == 1:
        main()
    else:
        consume(Path(sys.argv[2]), dies=sys.argv[1] == "dies")

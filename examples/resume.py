"""Crash and resume: a process is killed between two flushes, the next one continues from RocksDB, and no pane is lost or counted twice."""

# ruff: noqa: INP001, T201, S603

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import tidegate as tg

PANES = (
    tg.stream(time="ts", key="user", offset="offset", watermark=tg.bounded("2 seconds"))
    .window(tg.tumbling("10 seconds"))
    .trigger(tg.after_watermark(late=tg.after_count(1)))
    .aggregate(clicks=tg.count(), spent=tg.sum("price"))
)
# The input can be read again from any offset, as a Kafka partition can.
LOG = [{"offset": n, "ts": n * 1_000_000, "user": ["ann", "bob"][n % 2], "price": n} for n in range(40)]
DELIVERY = 5
CRASH_AT = 30


def consume(folder: Path, *, crash: bool) -> None:
    """Read the log from where the last flush left it; print every pane with its id, and flush after every second delivery."""
    op = PANES.embedded(store=tg.RocksDBStore(folder), now=0)
    start = op.resume_offsets().get("", 0)
    print(f"start at offset {start}", flush=True)
    for number, at in enumerate(range(start, len(LOG), DELIVERY), 1):
        op.add_messages(LOG[at : at + DELIVERY])
        show(op)
        if crash and at + DELIVERY > CRASH_AT:
            os.kill(os.getpid(), signal.SIGKILL)
        if number % 2 == 0:
            op.flush()
    op.finish()
    show(op)
    op.flush()
    op.close()


def show(op: tg.EmbeddedOperator) -> None:
    """Put out what waits, as a sink would that writes under the id of a pane."""
    for pane in op.get_result().panes.to_pylist():
        print(f"  {pane['pane_id'][:8]} {pane['user']} [{pane['window_start'] // 1_000_000}, {pane['window_end'] // 1_000_000})  spent {pane['spent']}", flush=True)


def main() -> None:
    """Run a process that is killed, then one that ends; a sink that keeps panes by id has each once."""
    with tempfile.TemporaryDirectory() as folder:
        sink: dict[str, str] = {}
        for mode in ("crash", "finish"):
            child = subprocess.run([sys.executable, __file__, mode, str(Path(folder) / "state")], capture_output=True, text=True, check=False)
            print(f"{mode}: exit status {child.returncode}")
            print(child.stdout, end="")
            for line in child.stdout.splitlines()[1:]:
                name, pane = line.split(maxsplit=1)
                if name in sink:
                    print(f"  came again: {name}, the same: {sink[name] == pane}")
                sink[name] = pane
        spent = sum(int(pane.split()[-1]) for pane in sink.values())
        print(f"{len(sink)} panes, spent {spent} of {sum(row['price'] for row in LOG)}")


if __name__ == "__main__":
    if len(sys.argv) == 1:
        main()
    else:
        consume(Path(sys.argv[2]), crash=sys.argv[1] == "crash")

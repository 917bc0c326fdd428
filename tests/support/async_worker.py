"""The worker of the kill test: an async map on a store, in a process that is killed."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from tidegate.embedded.async_map import EmbeddedAsyncMap
from tidegate.spec.async_map import AsyncMap
from tidegate.spec.operator import Input
from tidegate.spec.watermarks import Bounded
from tidegate.state.memory import MemoryStore
from tidegate.state.rocksdb import RocksDBStore

ROWS = [{"ts": n, "offset": n, "v": n} for n in range(20)]
HANGS = {"v": frozenset({3, 7, 8, 15})}


async def looked_up(row: dict[str, Any]) -> dict[str, Any]:
    if row["v"] in HANGS["v"]:
        await asyncio.get_running_loop().create_future()
    return {**row, "seen": row["v"] * 2}


def say(*words: Any) -> None:
    os.write(1, json.dumps(words).encode() + b"\n")


def live(kind: str, path: str, order: str, life: str) -> None:
    """In the first life some calls hang until the process is killed; in the second all answer."""
    if life == "second":
        HANGS["v"] = frozenset()
    store = MemoryStore(path) if kind == "memory" else RocksDBStore(path)
    inputs = [Input("ts", offset="offset", watermark=Bounded(0))]
    mapped = EmbeddedAsyncMap(
        AsyncMap(looked_up, ordered=order == "ordered", timeout=600_000_000),
        inputs,
        store=store,
        now=0,
    )
    say("resume", mapped.resume_offsets(), mapped.pending)
    mapped.add_messages(ROWS)
    if life == "second":
        mapped.finish()
    while mapped.pending > len(HANGS["v"]):
        mapped.timeout()
    for item, value in mapped.get_result().items:
        for row in value.to_pylist() if item in {"rows", "late"} else []:
            say(item, row)
        if item == "mark":
            say(item, repr(value))
    mapped.flush()
    say("flushed", mapped.pending)
    if life == "first":
        sys.stdin.read()
    mapped.close()


if __name__ == "__main__":
    live(sys.argv[1], str(Path(sys.argv[2])), sys.argv[3], sys.argv[4])

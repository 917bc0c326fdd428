"""The worker of the soak: random traffic, the same for the same seed, sent to an operator on
RocksDB in processes that are made to be killed.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tidegate as tg
from support.key_secrets import fix_secrets
from support.reference import Config
from tidegate.api.streams import Panes
from tidegate.instants import MAX
from tidegate.spec import triggers as t
from tidegate.spec.operator import AggregateSpec, Input, Options
from tidegate.spec.watermarks import Explicit
from tidegate.spec.windows import Hopping, Session, Tumbling
from tidegate.state.memory import MemoryStore
from tidegate.state.store import Store

Row = dict[str, Any]
Step = tuple[str, Any]
Say = Callable[[str, list[Row]], None]

SCHEMA = pa.schema(
    {
        "ts": pa.int64(),
        "k": pa.string(),
        "v": pa.int64(),
        "partition": pa.string(),
        "offset": pa.int64(),
        "id": pa.string(),
    }
)
AGGREGATES = {
    "n": tg.count(),
    "total": tg.sum("v"),
    "values": tg.list_("v"),
    "middle": tg.median("v"),
}
EAGER = t.AfterWatermark(early=t.AfterCount(3), late=t.AfterCount(1))
CHEAP, WHOLE = ("n", "total"), ("n", "total", "values", "middle")
OFFSETS = {"key": ("k",), "offset": "offset"}
FAR = {"future_tolerance": MAX // 2}
CONFIGS = {
    "tumbling": Config(Tumbling(10), EAGER, "retracting", 20, aggregates=CHEAP, **OFFSETS, **FAR),
    "sessions": Config(Session(4), EAGER, "retracting", 20, aggregates=CHEAP, **OFFSETS, **FAR),
    "messages": Config(
        Hopping(12, 4),
        t.AfterWatermark(late=t.AfterDelay(7)),
        "retracting",
        15,
        aggregates=WHOLE,
        **OFFSETS,
        **FAR,
    ),
    "session messages": Config(
        Session(5),
        t.AfterWatermark(late=t.AfterCount(2)),
        "retracting",
        15,
        aggregates=WHOLE,
        **OFFSETS,
        **FAR,
    ),
    "partitions": Config(
        Tumbling(8, 3),
        None,
        "accumulating",
        20,
        partition="partition",
        aggregates=CHEAP,
        **OFFSETS,
        **FAR,
    ),
    "ids": Config(
        Tumbling(10), EAGER, "retracting", MAX, key=("k",), id="id", aggregates=CHEAP, **FAR
    ),
    "automatic": Config(
        Hopping(10, 5), EAGER, "discarding", 20, aggregates=CHEAP, **OFFSETS, **FAR
    ),
}
AUTOMATIC = {"automatic"}


def specification(config: Config) -> Panes:
    """The panes that a configuration of the reference means."""
    return Panes(
        AggregateSpec(
            Input(config.time, config.key, config.id, config.offset, config.partition, Explicit()),
            config.window,
            tuple((name, AGGREGATES[name]) for name in config.aggregates),
            config.trigger,
            config.mode,
            config.allowed_lateness,
            Options(drop_by=config.drop_by, future_tolerance=config.future_tolerance),
        )
    )


def script(config: Config, seed: int, size: int) -> list[Step]:
    """Deliveries, watermarks and the clock: times wander on with disorder, some are hopelessly late
    or missing, and some messages are sent twice.
    """
    dice = random.Random(seed)
    steps: list[Step] = []
    sent: list[Row] = []
    offsets = dict.fromkeys(("p0", "p1") if config.partition else ("",), 0)
    front, now = 0, 0
    while len(sent) < size:
        rows = []
        for _ in range(dice.randrange(1, 12)):
            front += dice.randrange(3)
            partition = dice.choice(list(offsets))
            again = config.id is not None and sent and dice.random() < 0.15
            row = dict(dice.choice(sent[-20:])) if again else message(dice, front, len(sent))
            row.update(partition=partition, offset=offsets[partition])
            offsets[partition] += dice.randrange(1, 4)
            rows.append(row)
            sent.append(row)
        steps.append(("add", rows))
        if dice.random() < 0.6:
            steps.append(("watermark", front - dice.randrange(9)))
        if dice.random() < 0.4:
            now += dice.randrange(1, 6)
            steps.append(("timeout", now))
    return steps


def message(dice: random.Random, front: int, number: int) -> Row:
    ts = None if dice.random() < 0.02 else front - dice.choice([0, 0, 0, 0, 1, 2, 4, 9, 14, 60])
    return {
        "ts": ts,
        "k": dice.choice(["a", "b", "c", "grüße", None]),
        "v": dice.randrange(-9, 30),
        "id": f"m{number}",
    }


class Life:
    """One operator from its opening to its end, or until somebody kills the process."""

    def __init__(self, name: str, store: Store, say: Say, dice: random.Random | None) -> None:
        """Without dice nothing is left to chance: one flush at the end, nothing sent twice, nothing
        refused.
        """
        self.config, self.say, self.dice = CONFIGS[name], say, dice
        self.automatic = name in AUTOMATIC
        self.now = 0
        self.operator = specification(self.config).embedded(
            store=store, downstream=self.accept if self.automatic else None, now=0
        )

    def run(self, steps: list[Step]) -> None:
        while self.operator.is_refusing:
            self.operator.timeout(self.now)
        if self.operator.finished:
            self.hand_over(flush=True)
            return
        for verb, value in steps[self.resume(steps) :]:
            self.step(verb, value)
            self.hand_over(flush=self.chance(0.3))
        self.step("finish", None)
        self.hand_over(flush=True)

    def resume(self, steps: list[Step]) -> int:
        """Behind the last delivery that is known whole; with dice, some deliveries before it come
        again. Ids alone know no place: all comes again.
        """
        known = self.operator.resume_offsets()
        at = 0
        for number, (verb, value) in enumerate(steps):
            if (
                verb == "add"
                and known
                and all(
                    row["offset"] < known.get(row["partition"] if self.config.partition else "", 0)
                    for row in value
                )
            ):
                at = number + 1
        return (
            max(0, at - self.dice.randrange(6))
            if self.dice is not None and self.chance(0.5)
            else at
        )

    def step(self, verb: str, value: Any) -> None:
        if verb == "add":
            self.operator.add_messages(pa.Table.from_pylist(value, SCHEMA))
        elif verb == "watermark":
            self.operator.advance_watermark(value)
        elif verb == "timeout":
            self.now = value
            self.operator.timeout(value)
        else:
            self.operator.finish()
        while self.operator.is_refusing:
            self.operator.timeout(self.now)

    def hand_over(self, *, flush: bool) -> None:
        """Say what came out, then make it durable: what was said but not flushed comes again after
        a kill.
        """
        if not self.automatic:
            self.accept(self.operator.get_result())
        if flush:
            self.operator.flush()

    def accept(self, results: tg.Results) -> bool:
        if self.automatic and self.chance(0.2):
            return False
        self.say("pane", results.panes.to_pylist())
        self.say("late", results.late.to_pylist())
        return True

    def chance(self, probability: float) -> bool:
        return self.dice is not None and self.dice.random() < probability


def live(name: str, seed: int, size: int, path: Path, life: int) -> None:
    """A life whose words go to a file of its own."""
    with (path / f"{life}.jsonl").open("ab", buffering=0) as words:

        def say(kind: str, rows: list[Row]) -> None:
            os.write(
                words.fileno(), b"".join(json.dumps([kind, row]).encode() + b"\n" for row in rows)
            )

        Life(name, tg.RocksDBStore(path / "state"), say, random.Random(seed * 1_000 + life)).run(
            script(CONFIGS[name], seed, size)
        )


def supervise() -> None:
    """For each line of input, live in a process of its own, and say how it ended: imports and first
    uses are paid for once, before the forks.
    """
    name = next(iter(CONFIGS))
    Life(name, MemoryStore(), lambda kind, rows: None, None).run(script(CONFIGS[name], 0, 50))
    for line in sys.stdin:
        name, seed, size, path, life = json.loads(line)
        pid = os.fork()
        if pid == 0:
            live(name, seed, size, Path(path), life)
            return
        os.write(1, f"{pid}\n".encode())
        os.write(1, f"{os.waitpid(pid, 0)[1]}\n".encode())


if __name__ == "__main__":
    fix_secrets(pytest.MonkeyPatch())
    supervise()

"""The clicks of the demo: out of order, with late, duplicate, future and unreadable ones."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

SEED = 7
FILES = 12
SPAN = 20
"""Event time covered by a file, in seconds."""
CLICKS = 30
"""Clicks in a file."""
USERS = ("ann", "bob", "cid", "dora")
SCHEMA = "event_id string, user string, page string, ts string, price double"


@dataclass(frozen=True)
class Click:
    """A click as written to a file; its time is text, as it often is."""

    event_id: str
    user: str
    page: str
    ts: str | None
    price: float


def files(now: datetime, seed: int = SEED) -> Iterator[list[Click]]:
    """The clicks of each file.

    Their event times end shortly before `now`, so that a click of tomorrow is in the future.
    """
    dice = random.Random(seed)  # noqa: S311 - generated traffic, reproducible
    start = (now - timedelta(seconds=FILES * SPAN + 60)).replace(second=0, microsecond=0)
    sent: list[Click] = []
    for number in range(FILES):
        came = [
            _click(dice, f"{number}-{n}", start + timedelta(seconds=number * SPAN), _disorder(dice))
            for n in range(CLICKS)
        ]
        came += _odd(dice, number, start, now, sent)
        sent += came
        yield came


def _disorder(dice: random.Random) -> float:
    """Most clicks arrive at once, some a few seconds later."""
    return min(9.0, dice.expovariate(1 / 2))


def _click(dice: random.Random, name: str, start: datetime, behind: float) -> Click:
    ts = start + timedelta(seconds=dice.random() * SPAN - behind)
    return Click(
        name,
        dice.choice(USERS),
        dice.choice(("/", "/shop", "/cart")),
        _text(ts),
        float(dice.randrange(1, 20)),
    )


def _odd(
    dice: random.Random, number: int, start: datetime, now: datetime, sent: list[Click]
) -> list[Click]:
    """Irregular clicks, as every real stream has them."""
    here = start + timedelta(seconds=number * SPAN)
    match number:
        case 4:
            # A phone that was offline: these correct a minute that was already emitted.
            return [
                _click(dice, f"{number}-late{n}", here - timedelta(seconds=70), 0) for n in range(3)
            ]
        case 6:
            # A queue with at-least-once delivery.
            return [dice.choice(sent[-CLICKS:]) for _ in range(4)]
        case 7:
            # A clock that is a day ahead: trusting it would close every window.
            return [Click(f"{number}-future", "bob", "/", _text(now + timedelta(days=1)), 1.0)]
        case 8:
            return [
                Click(f"{number}-broken", "cid", "/shop", "yesterday, about noon", 2.0),
                Click(f"{number}-null", "dora", "/", None, 3.0),
            ]
        case 10:
            # Beyond the allowed lateness of two minutes.
            return [
                _click(dice, f"{number}-lost{n}", here - timedelta(seconds=195), 0)
                for n in range(2)
            ]
    return []


def _text(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def write(folder: Path, now: datetime) -> list[list[Click]]:
    """Write the files as JSON lines; their modification times give the order of arrival."""
    folder.mkdir(parents=True)
    made = list(files(now))
    for number, clicks in enumerate(made):
        path = folder / f"clicks-{number:02}.json"
        path.write_text("".join(json.dumps(asdict(click)) + "\n" for click in clicks))
        when = now.timestamp() - FILES + number
        os.utime(path, (when, when))
    return made

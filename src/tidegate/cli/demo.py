"""`tidegate demo`: clicks that arrive out of order, counted per user and minute, with every pane as it comes out."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

import tidegate as tg

SEED = 7
START = datetime(2025, 3, 14, 12, 0, tzinfo=UTC)
DISORDER = timedelta(seconds=15)
EVERY = timedelta(seconds=30)
USERS = ("ann", "bob")
CLICKS = 18
_WIDTHS = {"": 2, "user": 6, "window": 21, "timing": 9, "pane": 6, "clicks": 8, "spent": 7}


@dataclass(frozen=True)
class Click:
    """One click: when it happened, and when it arrives here."""

    ts: datetime
    user: str
    price: int
    arrives: datetime


@dataclass(frozen=True)
class Step:
    """One delivery and what it made come out."""

    clock: datetime
    clicks: list[Click]
    watermark: datetime
    panes: list[dict[str, Any]]
    late: list[dict[str, Any]]


def clicks(seed: int = SEED) -> list[Click]:
    """Two minutes of clicks in the order in which they arrive; one comes 50 seconds late and one three minutes."""
    dice = random.Random(seed)  # noqa: S311 - generated traffic, and the same every time
    made = []
    for _ in range(CLICKS):
        ts = START + timedelta(seconds=dice.randrange(120))
        made.append(Click(ts, dice.choice(USERS), dice.randrange(1, 10), ts + timedelta(seconds=dice.randrange(1, int(DISORDER.total_seconds())))))
    slow, lost = START + timedelta(seconds=41), START + timedelta(seconds=12)
    made.append(Click(slow, "ann", 5, slow + timedelta(seconds=50)))
    made.append(Click(lost, "bob", 8, lost + timedelta(seconds=190)))
    return sorted(made, key=lambda click: click.arrives)


def pipeline() -> tg.Panes:
    """Clicks and money per user and minute, with a pane for every third click, one when the minute is complete, and one per late click."""
    return (
        tg.stream(time="ts", key="user", watermark=tg.explicit())
        .window(tg.tumbling("1 minute"))
        .trigger(tg.after_watermark(early=tg.after_count(3), late=tg.after_count(1)))
        .allow_lateness("1 minute")
        .retracting()
        .aggregate(clicks=tg.count(), spent=tg.sum("price"))
    )


def steps(seed: int = SEED) -> Iterator[Step]:
    """Deliver what has arrived every 30 seconds; the watermark stays 15 seconds behind the newest click."""
    waiting, clock, newest = clicks(seed), START, START
    operator = pipeline().embedded(now=_ticks(START))
    while waiting:
        clock += EVERY
        arrived = [click for click in waiting if click.arrives <= clock]
        waiting = waiting[len(arrived) :]
        if not arrived:
            continue
        newest = max([newest, *(click.ts for click in arrived)])
        operator.timeout(_ticks(clock))
        operator.add_messages(_table(arrived))
        operator.advance_watermark(_ticks(newest - DISORDER))
        result = operator.get_result()
        operator.flush()
        yield Step(clock, arrived, newest - DISORDER, result.panes.to_pylist(), result.late.to_pylist())
    operator.finish()
    result = operator.get_result()
    operator.flush()
    yield Step(clock, [], clock, result.panes.to_pylist(), result.late.to_pylist())


def demo(*, as_json: bool) -> int:
    """Print the demonstration."""
    for line in _json_lines() if as_json else _text_lines():
        print(line)
    return 0


def _ticks(moment: datetime) -> int:
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def _table(arrived: Sequence[Click]) -> pa.Table:
    return pa.table(
        {
            "ts": pa.array([click.ts for click in arrived], pa.timestamp("us", "UTC")),
            "user": [click.user for click in arrived],
            "price": pa.array([click.price for click in arrived], pa.int64()),
        }
    )


def _json_lines() -> Iterator[str]:
    for number, step in enumerate(steps(), 1):
        for output, rows in (("panes", step.panes), ("late", step.late)):
            for row in rows:
                yield json.dumps({"step": number, "clock": step.clock.isoformat(), "output": output, **row}, default=_plain)


def _plain(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)


def _text_lines() -> Iterator[str]:
    yield "Clicks per user and minute. A pane comes out early for every third click, on time when the"
    yield "watermark passes the minute, and late for every click after that. A row with - takes a former"
    yield "pane back, and the row with + that follows replaces it."
    late = []
    for step in steps():
        yield ""
        yield from _story(step)
        if step.panes:
            yield "  " + "".join(f"{name:<{width}}" for name, width in _WIDTHS.items()).rstrip()
        yield from (_row(pane) for pane in step.panes)
        late += step.late
    yield ""
    yield "Nothing is dropped silently. The late output has:"
    yield from (_late(row) for row in late)


def _story(step: Step) -> Iterator[str]:
    if not step.clicks:
        yield "End of input: the watermark goes to the end of time, and every window that is open is complete."
        return
    first, last = (moment(click.ts for click in step.clicks) for moment in (min, max))
    many = f"{len(step.clicks)} clicks of {first:%H:%M:%S} to {last:%H:%M:%S} arrive"
    many = many if len(step.clicks) > 1 else f"one click of {first:%H:%M:%S} arrives"
    yield _bright(f"{step.clock:%H:%M:%S}  {many}; the watermark is now {step.watermark:%H:%M:%S}.")
    timings = [pane["timing"] for pane in step.panes if pane["op"] == "+"]
    if "on_time" in timings:
        yield "          A minute is complete: its users get their on-time panes."
    if "late" in timings:
        yield "          A click came after its minute was complete: the pane is taken back and corrected."
    if step.late:
        yield "          A click is more than the allowed minute late: it goes to the late output."
    if not step.panes and not step.late:
        yield "          No window has three new clicks and none is complete: nothing comes out."


def _row(pane: dict[str, Any]) -> str:
    window = f"{pane['window_start']:%H:%M:%S} - {pane['window_end']:%H:%M:%S}"
    cells = (pane["op"], pane["user"], window, pane["timing"], pane["pane"], pane["clicks"], pane["spent"])
    text = "  " + "".join(f"{cell!s:<{width}}" for cell, width in zip(cells, _WIDTHS.values(), strict=True)).rstrip()
    return _coloured(text, "31" if pane["op"] == "-" else {"early": "36", "on_time": "32", "late": "33"}[pane["timing"]])


def _late(row: dict[str, Any]) -> str:
    why = f"class {row['class']}, reason {row['reason']}, watermark {row['watermark']:%H:%M:%S}"
    return f"  {row['user']}, {row['ts']:%H:%M:%S}, price {row['price']}: {why}"


def _bright(text: str) -> str:
    return _coloured(text, "1")


def _coloured(text: str, code: str) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if sys.stdout.isatty() else text

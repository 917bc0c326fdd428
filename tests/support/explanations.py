"""Operators to explain, and the checks that hold for every explanation."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import tidegate as tg
from tidegate.embedded.operator import EmbeddedOperator
from tidegate.operators.explain.facts import Explanation

NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)
MINUTE = tg.tumbling("1 minute")
SECOND = 1_000_000


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def text(seconds: float) -> str:
    return at(seconds).isoformat().replace("+00:00", "Z")


def row(seconds: float, key: str = "a", **more: Any) -> dict[str, Any]:
    return {"ts": at(seconds), "k": key, **more}


def started(
    watermark: Any = None,
    window: Any = MINUTE,
    *,
    trigger: Any = None,
    downstream: Any = None,
    **stream: Any,
) -> EmbeddedOperator:
    """An operator whose clock starts at noon and advances with each call that has one."""
    return panes(watermark, window, trigger=trigger, **stream).embedded(
        now=NOON, downstream=downstream
    )


def panes(
    watermark: Any = None, window: Any = MINUTE, *, trigger: Any = None, **stream: Any
) -> Any:
    windowed = tg.stream(**{"time": "ts", "key": "k", "watermark": watermark, **stream}).window(
        window
    )
    return (windowed if trigger is None else windowed.trigger(trigger)).aggregate(n=tg.count())


def partitioned(watermark: Any, **more: Any) -> EmbeddedOperator:
    return started(watermark, partition="p", **more)


def explained(op: EmbeddedOperator) -> Explanation:
    """The explanation, checked to be valid JSON and to consist of sentences."""
    found = op.explain_watermark()
    json.dumps(found.to_dict(), allow_nan=False)
    assert str(found) == "\n".join(found.sentences)
    assert found.sentences
    for sentence in found.sentences:
        assert sentence.endswith(".")
        assert sentence[0].isupper() or sentence[0].isdigit()
        assert "  " not in sentence
        assert "None" not in re.sub("`.*?`", "", sentence)
    return found


def sources(found: Explanation) -> dict[str, Any]:
    return {source.name: source for source in found.sources}

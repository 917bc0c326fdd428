"""Events from the future are logged, at most once per minute of the clock."""

from __future__ import annotations

import logging

import tidegate as tg

MINUTE = 60_000_000


def test_rows_from_the_future_are_logged_once_per_minute_with_their_number(caplog):
    op = (
        tg.stream(time="ts", watermark=tg.bounded("0 seconds"))
        .window(tg.tumbling("1 minute"))
        .aggregate(n=tg.count())
        .embedded(now=MINUTE)
    )
    with caplog.at_level(logging.WARNING, "tidegate"):
        op.add_messages([{"ts": MINUTE}, {"ts": 2 * MINUTE}])
        assert caplog.messages == [], "within the tolerance"
        op.add_messages([{"ts": 5 * MINUTE}, {"ts": 9 * MINUTE}])
        op.add_messages([{"ts": 6 * MINUTE}] * 3, now=2 * MINUTE - 1)
        assert len(caplog.messages) == 1
        op.add_messages([{"ts": 7 * MINUTE}], now=2 * MINUTE)
    first, second = caplog.messages
    assert first.startswith(
        "2 rows more than 1 minute ahead of the clock, up to 1970-01-01T00:09:00Z,"
    )
    assert second.startswith("4 rows more than")

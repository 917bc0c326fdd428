"""Embedded watermarks against the reference, call by call."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

import tidegate as tg
from support.counted_windows import FAR, Row, counted
from support.reference.watermark_tracker import SlowIntake
from support.source_histories import SCHEMA, histories, specs
from tidegate.instants import MIN
from tidegate.spec.watermarks import Bounded, Punctuated, Watermarks

# Against the reference


def act(op: tg.EmbeddedOperator, slow: SlowIntake, step: tuple[Any, ...], count: int) -> None:
    match step:
        case ("deliver", ordinal, messages, wait):
            now = slow.now + wait
            slow.deliver(ordinal % count, messages, now)
            op.add_messages(pa.Table.from_pylist(messages, SCHEMA), now=now, input=ordinal % count)
        case ("timeout", wait):
            slow.timeout(slow.now + wait)
            op.timeout(slow.now)
        case ("promise", ordinal, value, partition):
            slow.promise(ordinal % count, value, partition)
            op.advance_watermark(value, input=ordinal % count, partition=partition)
        case ("idle", ordinal, partition):
            slow.idle(ordinal % count, partition)
            op.mark_idle(input=ordinal % count, partition=partition)
        case ("end", ordinal, partition):
            slow.end(ordinal % count, partition)
            op.end_input(input=ordinal % count, partition=partition)
        case ("join", ordinal, partition):
            slow.join(ordinal % count, partition)
            op.add_partition(partition, input=ordinal % count)
        case ("leave", ordinal, partition):
            slow.leave(ordinal % count, partition)
            op.remove_partition(partition, input=ordinal % count)


def is_marker(spec: Watermarks, row: Row) -> bool:
    return isinstance(spec, Punctuated) and spec.marker is not None and bool(row["m"])


@given(
    st.lists(specs, min_size=1, max_size=3),
    histories(),
    st.sampled_from([FAR, 10]),
    st.sampled_from(["clock", "clock", "watermark"]),
)
def test_the_watermark_is_that_of_the_reference_after_every_call(
    chosen, history, tolerance, reference
):
    made = tg.union(*(tg.stream(time="ts", partition="p", watermark=spec) for spec in chosen))
    op = counted(made, future_tolerance=f"{tolerance} us", future_reference=reference).embedded(
        now=0
    )
    slow = SlowIntake(chosen, 0, tolerance, reference)
    for step in history:
        before, counts = slow.watermark, op.stats()
        promises = safe_promises(slow)
        act(op, slow, step, len(chosen))
        assert op.watermark == (None if slow.watermark == MIN else slow.watermark), step
        if step[0] != "deliver":
            continue
        ordinal = step[1] % len(chosen)
        events = [
            row for row in step[2] if row["ts"] is not None and not is_marker(chosen[ordinal], row)
        ]
        late = sum(row["ts"] < before for row in events)
        after = op.stats()
        assert (
            after["mildly_late"] + after["very_late"] - counts["mildly_late"] - counts["very_late"]
            == late
        )
        assert not any(
            row["ts"] < before
            for row in events
            if row["ts"] >= promises.get((ordinal, row["p"]), row["ts"] + 1)
        )


def safe_promises(slow: SlowIntake) -> dict[tuple[int, str], int]:
    """The promises of sources that were there from the start and never idle."""
    return {
        (ordinal, name): source.promise
        for ordinal, given in enumerate(slow.inputs)
        for name, source in given.sources.items()
        if source.always_active
        and source.state == "active"
        and isinstance(given.spec, Bounded | Punctuated)
    }

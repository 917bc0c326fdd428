"""`explain_watermark` and the runtime: results that wait, clocks, and the facts as data."""

from __future__ import annotations

import dataclasses

import pyarrow as pa
import pytest

import tidegate as tg
from support.explanations import NOON, SECOND, at, explained, panes, partitioned, row, started, text
from tidegate.embedded.operator import EmbeddedOperator
from tidegate.instants import instant
from tidegate.operators.explain.explanation import explain
from tidegate.operators.explain.wording import listed
from tidegate.units import rounded

# The runtime


def inherited() -> EmbeddedOperator:
    return tg.stream(key="k").inherit().aggregate(total=tg.sum("n")).embedded(now=NOON)


def test_an_upstream_tells_the_watermark():
    below = inherited()
    op = started(tg.explicit(), downstream=below)
    found = explained(below)
    assert found.has_upstream
    assert "The upstream provides the watermark, and has sent none yet." in found.sentences
    op.add_messages([row(5)])
    op.advance_watermark(at(65))
    found = explained(below)
    assert found.watermark is not None
    assert "The upstream provides it." in found.sentences


def test_results_wait_because_the_downstream_refuses_them():
    op = started(tg.explicit(), downstream=lambda _: False)
    op.add_messages([row(5), row(6, "b")])
    op.advance_watermark(at(65))
    found = explained(op)
    assert found.is_refused
    assert (found.refused_rows, found.waiting_panes) == (2, 0)
    assert found.sentences[0].startswith(
        "2 results wait because the downstream refuses; no input is accepted until it takes"
        " results."
    )


def test_results_wait_to_be_taken():
    op = started(tg.explicit())
    op.add_messages([row(5)])
    op.advance_watermark(at(600))
    op.add_messages([row(5)])
    assert (
        explained(op).sentences[0]
        == "1 pane and 1 late row wait to be fetched. Hint: call `get_result`."
    )
    op.get_result()
    assert explained(op).waiting_panes == 0


def test_messages_that_are_buffered_are_seen():
    op = panes(tg.explicit()).embedded()
    for _ in range(3):
        op.add_message(row(5))
    assert explained(op).counters["events"] == 3


def test_nobody_has_told_the_clock_for_long(monkeypatch: pytest.MonkeyPatch):
    clock = [instant(NOON)]
    for name in ("wall_clock", "steady_clock"):
        monkeypatch.setattr(f"tidegate.embedded.clock.{name}", lambda: clock[0])
    op = panes(tg.bounded("10 seconds", idle_after="1 minute"), partition="p").embedded()
    op.add_messages([row(5, p="a"), row(50, p="b")])
    clock[0] += 30 * SECOND
    assert "last read the clock" not in str(explained(op))
    clock[0] += 60 * SECOND
    assert (
        "The operator last read the clock 1 minute 30 seconds ago, and something has become due"
        " since." in str(explained(op))
    )
    op.timeout()
    assert "last read the clock" not in str(explained(op))


# Data


def test_instants_are_iso_texts_and_clocks_too():
    op = partitioned(tg.bounded("10 seconds", idle_after="1 minute"))
    op.add_messages([row(50, p="a")], now=at(60))
    data = explained(op).to_dict()
    assert (data["watermark"], data["since"], data["now"], data["newest"]) == (
        text(40),
        text(60),
        text(60),
        text(50),
    )
    assert data["sources"] == [
        {
            "input": 0,
            "name": "a",
            "status": "active",
            "promise": text(40),
            "spoke_at": text(60),
            "moved_at": text(60),
            "holds": True,
            "paused": False,
            "idle_at": text(120),
            "declared": False,
        }
    ]
    assert (
        data["windows"][0]["start"],
        data["windows"][0]["end"],
        data["windows"][0]["to_go"],
    ) == (text(0), text(60), 20 * SECOND)


def test_plain_ticks_stay_numbers():
    op = (
        tg.stream(time="ts", watermark=tg.bounded(3, unit="us"))
        .window(tg.tumbling(10, unit="us"))
        .aggregate(n=tg.count())
        .embedded(now=NOON)
    )
    op.add_messages([{"ts": 7}])
    found = explained(op)
    data = found.to_dict()
    assert (data["watermark"], data["newest"], data["windows"][0]["end"], data["now"]) == (
        4,
        7,
        10,
        text(0),
    )
    assert "The watermark is at 4 since" in str(found)
    assert "It stays 3 ticks behind the newest event, which is at 7" in str(found)
    assert "Window [0, 10) waits until the watermark reaches 10, 6 ticks to go." in found.sentences


def test_keys_of_any_type_are_fit_for_json():
    op = started(tg.per_key("10 seconds", floor="5 minutes"))
    op.add_messages(pa.table({"ts": [at(0)], "k": [at(1)]}))
    assert explained(op).to_dict()["keys"][0]["key"]["k"].startswith("2024-01-01 12:00:01")


def test_an_operator_without_a_runtime_is_explained():
    op = started(tg.explicit())
    op.add_messages([row(5)])
    found = explain(op.operator)
    assert found.machine_clock is None
    assert found.sentences == op.explain_watermark().sentences


def test_an_explanation_cannot_be_changed():
    found = explained(started())
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.watermark = 1  # type: ignore[misc]


def test_since_when_survives_a_restart():
    store = tg.MemoryStore()
    watched = panes(tg.bounded("10 seconds"))
    op = watched.embedded(now=NOON, store=store)
    op.add_messages([row(50)], now=at(60))
    op.flush()
    again = watched.embedded(now=at(500), store=store)
    assert explained(again).since == instant(at(60))


def test_names_are_listed_with_how_many_more():
    assert listed([]) == ""
    assert listed(["a"]) == "a"
    assert listed(["a", "b", "c", "d"]) == "a, b, c and d"
    assert listed([str(n) for n in range(10_000)]) == "0, 1, 2 and 9,997 more"


@pytest.mark.parametrize(
    ("span", "said"),
    [
        (0, "0 seconds"),
        (14_400_123, "14 seconds"),
        (1_234_567, "1 second 235 milliseconds"),
        (17, "17 microseconds"),
    ],
)
def test_spans_are_rounded_to_what_people_read(span: int, said: str):
    assert rounded(span) == said

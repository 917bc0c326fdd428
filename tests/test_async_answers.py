"""What the function of an async map may return, and how failed calls are retried."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import pytest

from support.async_service import (
    BOTH,
    MS,
    PATIENCE,
    Row,
    Service,
    brief,
    echo,
    hear,
    made,
    never,
    rows,
)
from tidegate.kernel.watermarks.marks import Idle, Watermark
from tidegate.spec.async_map import AsyncMap

# What a function may answer


def test_an_answer_is_a_row_some_rows_or_nothing():
    answers = {0: {"v": 0}, 1: [{"v": 10}, {"v": 11}], 2: None, 3: [], 4: ({"v": 40},)}

    async def answer(row: Row) -> Any:
        return answers[row["v"]]

    with made(answer) as mapped:
        mapped.add_messages(rows(*range(5)))
        mapped.finish()
        found = mapped.get_result()
        assert found.rows.to_pylist() == [{"v": 0}, {"v": 10}, {"v": 11}, {"v": 40}]
        assert found.late.num_rows == 0
        stats = mapped.stats()
        assert (stats["events"], stats["results"], stats["filtered"], stats["failed"]) == (
            5,
            4,
            2,
            0,
        )


class Unspeakable(Exception):  # noqa: N818
    def __str__(self) -> str:
        raise RuntimeError


def raising(error: BaseException) -> Callable[[Row], Any]:
    def fail(row: Row) -> Any:
        raise error

    return fail


@pytest.mark.parametrize(
    ("answer", "detail"),
    [
        (raising(ValueError("no such user")), "ValueError: no such user"),
        (raising(asyncio.CancelledError("mine")), "CancelledError: mine"),
        (raising(SystemExit(3)), "SystemExit: 3"),
        (raising(KeyboardInterrupt()), "KeyboardInterrupt: "),
        (raising(Unspeakable()), "Unspeakable: (unreadable message)"),
        (raising(ValueError("\ud800")), "ValueError: ?"),
        (lambda row: 5, "TypeError: a mapping, a list of mappings or None was expected, got int"),
        (
            lambda row: "text",
            "TypeError: a mapping, a list of mappings or None was expected, got str",
        ),
        (
            lambda row: [row, 5],
            "TypeError: a mapping, a list of mappings or None was expected, got int",
        ),
        (
            lambda row: {},
            ("TypeError: a row has no columns. Hint: return None to drop a message"),
        ),
        (lambda row: {1: 2}, "TypeError: column names are strings, got 1"),
        (lambda row: {"v": object()}, "TypeError: `v` should be null"),
        (lambda row: {"v": 2**80}, "TypeError: `v` should be"),
        (lambda row: {"v": "\ud800"}, "TypeError: "),
        (lambda row: {"\ud800": 1}, "TypeError: "),
    ],
)
@BOTH
def test_what_is_no_answer_goes_to_late_with_the_error(answer, detail, ordered):
    async def function(row: Row) -> Any:
        return answer(row) if row["v"] == 1 else {"v": row["v"]}

    with made(function, ordered=ordered) as mapped:
        mapped.add_messages(rows(0, 1, 2))
        mapped.advance_watermark(5)
        mapped.finish()
        found = mapped.get_result()
        assert sorted(found.rows["v"].to_pylist()) == [0, 2]
        assert [(row["ts"], row["v"], row["reason"]) for row in found.late.to_pylist()] == [
            (1, 1, "async_failed")
        ]
        assert found.late["detail"][0].as_py().startswith(detail)
        assert brief(found)[-2:] == [Watermark(5), Idle()]
        assert mapped.stats()["late_by_reason"] == {"async_failed": 1}


def test_results_of_one_type_are_wanted_and_the_first_one_says_which():
    answers: list[Any] = [
        {"x": None},
        {"x": 1},
        {"x": 2.5, "y": "new"},
        {"x": "text"},
        [{"x": 4}, {"x": b"bytes"}],
        {"x": 5, "y": None},
    ]

    async def function(row: Row) -> Any:
        return answers[row["v"]]

    with made(function) as mapped:
        for row in rows(*range(6)):
            mapped.add_message(row)
            hear(mapped)
        found = mapped.get_result()
        assert found.rows.to_pylist() == [
            {"x": None, "y": None},
            {"x": 1.0, "y": None},
            {"x": 2.5, "y": "new"},
            {"x": 5.0, "y": None},
        ]
        assert [(row["v"], row["detail"]) for row in found.late.to_pylist()] == [
            (3, "TypeError: `x` should be double, got 'text'"),
            (4, "TypeError: `x` should be int64, got b'bytes'"),
        ]


def test_whole_numbers_next_to_fractions_become_fractions():
    async def function(row: Row) -> Row:
        return {"x": 2**60 + 1 if row["v"] == 0 else 0.5 if row["v"] == 1 else 2**60 + 1}

    with made(function) as mapped:
        for row in rows(0, 1, 2):
            mapped.add_message(row)
            hear(mapped)
        found = mapped.get_result()
        assert found.items[0][1]["x"].to_pylist() == [2**60 + 1]
        assert found.rows["x"].to_pylist() == [float(2**60), 0.5]
        assert found.late["v"].to_pylist() == [2]


def test_results_that_do_not_fit_together_are_told_apart_in_their_order():
    service = Service()
    with made(service) as mapped:
        mapped.add_messages(rows(0, 1, 2, 3))
        for v, x in ((3, 9), (2, 7), (1, "text"), (0, 5)):
            service.answer(v, {"v": v, "x": x})
        hear(mapped)
        assert brief(mapped.get_result()) == [0, ("late", 1), 2, 3]


def test_a_function_may_change_its_row():
    async def spoil(row: Row) -> None:
        row["tags"].append("spoilt")
        row["v"] = "spoilt"
        raise ValueError(row["tags"])

    with made(spoil, retries=1) as mapped:
        mapped.add_messages([{"ts": 1, "v": "a", "tags": ["x"]}])
        mapped.finish()
        [late] = mapped.get_result().late.to_pylist()
        assert (late["v"], late["tags"], late["detail"]) == (
            "a",
            ["x"],
            "ValueError: ['x', 'spoilt']",
        )


def test_late_rows_tell_their_columns_from_ours():
    async def fail(row: Row) -> None:
        raise ValueError("x")

    with made(fail) as mapped:
        mapped.add_messages([{"ts": 1, "v": 1, "reason": "mine"}])
        mapped.finish()
        [late] = mapped.get_result().late.to_pylist()
        assert late == {
            "ts": 1,
            "v": 1,
            "input_reason": "mine",
            "reason": "async_failed",
            "detail": "ValueError: x",
        }


# Attempts


def test_a_failed_call_is_tried_again():
    attempts: list[Any] = []

    async def flaky(row: Row) -> Row:
        attempts.append(row["v"])
        if attempts.count(row["v"]) <= row["v"]:
            raise ConnectionError("busy")
        return row

    with made(flaky, retries=2, backoff=1) as mapped:
        mapped.add_messages(rows(0, 1, 2, 3))
        mapped.finish()
        assert brief(mapped.get_result()) == [0, 1, 2, ("late", 3), Idle()]
        assert sorted(attempts) == [0, 1, 1, 2, 2, 2, 3, 3, 3]
        assert mapped.stats()["retried"] == 0 + 1 + 2 + 2


def test_a_wrong_answer_is_not_asked_for_again():
    attempts = []

    async def wrong(row: Row) -> int:
        attempts.append(row)
        return 5

    with made(wrong, retries=5) as mapped:
        mapped.add_messages(rows(0))
        mapped.finish()
        assert len(attempts) == 1


@BOTH
def test_an_attempt_ends_with_its_timeout(ordered):
    cancelled: SimpleQueue[Any] = SimpleQueue()

    async def slow(row: Row) -> Row:
        try:
            if row["v"]:
                await never(row)
        except asyncio.CancelledError:
            cancelled.put(row["v"])
            raise
        return row

    with made(slow, ordered=ordered, timeout=MS, retries=1) as mapped:
        mapped.add_messages(rows(1, 0))
        mapped.advance_watermark(9)
        mapped.finish()
        found = mapped.get_result()
        assert found.rows["v"].to_pylist() == [0]
        assert found.late["detail"].to_pylist() == ["TimeoutError: no answer within 1 millisecond"]
        assert brief(found)[-2:] == [Watermark(9), Idle()]
        assert mapped.stats()["retried"] >= 1
        assert [cancelled.get(timeout=PATIENCE), cancelled.get(timeout=PATIENCE)] == [1, 1]


def test_pauses_double_up_to_a_bound():
    spec = AsyncMap(echo, retries=3, backoff=100 * MS, timeout=1_000 * MS)
    assert [spec.pause(n) for n in (0, 1, 2, 10, 2000)] == [
        100 * MS,
        200 * MS,
        400 * MS,
        60_000 * MS,
        60_000 * MS,
    ]
    assert spec.limit == (4_000 + 700) * MS
    assert AsyncMap(echo, retries=1, backoff=90_000 * MS).pause(5) == 90_000 * MS
    assert AsyncMap(echo, retries=100, backoff=MS, timeout=1).limit == 101 + sum(
        min(MS << n, 60_000 * MS) for n in range(100)
    )

"""The kind `async`: calls and marks go in, calls end in some order, and what comes out must not let
a watermark overtake a pending event.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from conformance.mark_words import Signal, of_mark, read, show
from tidegate.kernel.watermarks.marks import Active, Idle, Watermark
from tidegate.operators.async_map.queue import AnswerBatch, AsyncQueue, FailedCall, async_queue
from tidegate.scenarios.document import (
    MismatchError,
    Scenario,
    UnsupportedScenarioError,
    is_set,
    known,
    steps_of,
)
from tidegate.scenarios.settings import CONFIG as OF_OPERATORS
from tidegate.scenarios.ticks import Ticks, ticks_of

PLACES = ("max_concurrent", "max_concurrent_ops", "capacity")
CONFIG = OF_OPERATORS | {"order", "completion_orders", *PLACES}
ACTIONS = frozenset(
    {
        "submit",
        "results",
        "wm",
        "idle",
        "active",
        "key",
        "complete",
        "complete_all",
        "fail",
        "snapshot_restore",
    }
)
STEP = ACTIONS | {"accepted", "out", "or_if_unordered", "out_set", "before"}
ORDERS = ("ordered", "unordered")


def run_async(scenario: Scenario) -> None:
    """The steps, once for each order of output and each order in which the calls end."""
    known("`config`", scenario.config, CONFIG)
    ticks, most = (
        ticks_of(scenario),
        next((scenario.config[name] for name in PLACES if name in scenario.config), None),
    )
    if most is not None and not isinstance(most, int):
        raise UnsupportedScenarioError(f"`max_concurrent` must be a number, got `{most}`")
    steps = [one for step in steps_of(scenario, STEP) for one in _one_by_one(step)]
    for order in _orders(scenario):
        for endings in _endings(scenario, steps):
            run = _Calls(ticks, order, endings, most)
            for number, step in enumerate(steps, 1):
                run.step(step, f"{order}, step {number}")


def _one_by_one(step: dict[str, Any]) -> list[dict[str, Any]]:
    """A step that lists several calls, as one step for each; what is compared comes with the
    last.
    """
    word = next(
        (word for word in ("submit", "complete", "fail") if isinstance(step.get(word), list)), None
    )
    if word is None:
        return [step]
    if not step[word] or step.keys() & (ACTIONS - {word}):
        raise UnsupportedScenarioError(
            f"a list of calls stands alone in its step and names some: {step}"
        )
    return [*({word: call} for call in step[word][:-1]), step | {word: step[word][-1]}]


def _orders(scenario: Scenario) -> list[str]:
    given = scenario.config.get("order")
    if given is None:
        given = "ordered" if scenario.config.get("ordered", True) else "unordered"
    orders = given if isinstance(given, list) else [given]
    if not orders or not all(order in ORDERS for order in orders):
        raise UnsupportedScenarioError(
            f"`order` must name some of {', '.join(ORDERS)}, got `{given}`"
        )
    return orders


def _endings(scenario: Scenario, steps: list[dict[str, Any]]) -> list[list[Any]]:
    """The orders in which all calls end: as the config says, or as they were submitted, and
    backwards where a scenario allows for that.
    """
    given = scenario.config.get("completion_orders")
    if given is not None:
        if (
            not isinstance(given, list)
            or not given
            or not all(isinstance(order, list) for order in given)
        ):
            raise UnsupportedScenarioError(
                f"`completion_orders` must be a list of lists, got `{given}`"
            )
        return given
    submitted = [step["submit"] for step in steps if "submit" in step]
    return (
        [submitted, submitted[::-1]]
        if any("or_if_unordered" in step for step in steps)
        else [submitted]
    )


class _Calls:
    """The calls of one run and what came out so far."""

    def __init__(self, ticks: Ticks, order: str, endings: list[Any], most: int | None) -> None:
        self._ticks, self._order, self._endings, self._most = ticks, order, endings, most
        self._pending: AsyncQueue = async_queue(ordered=order == "ordered")
        self._tickets: list[tuple[Any, int, list[Any]]] = []
        self._found: list[Signal] = []

    def step(self, step: dict[str, Any], where: str) -> None:
        if "accepted" not in step or self._accepted(step, where):
            self._act(step)
        self._take()
        if "out" in step:
            self._same(step, where)
        elif "or_if_unordered" in step:
            raise UnsupportedScenarioError("`or_if_unordered` stands beside `out`")
        if "out_set" in step:
            self._same_set(step, where)
        elif "before" in step:
            raise UnsupportedScenarioError("`before` stands beside `out_set`")

    def _accepted(self, step: dict[str, Any], where: str) -> bool:
        """Whether a call has a place at once, which must be as the step says; marks need none. With
        us it waits for one, so it is left out.
        """
        if self._most is None or not step.keys() & {"submit", "wm"}:
            raise UnsupportedScenarioError(
                "`accepted` stands beside `submit` or `wm` and needs `max_concurrent`"
            )
        accepted = "submit" not in step or len(self._pending.unanswered()) < self._most
        if accepted != is_set(step, "accepted"):
            raise MismatchError(f"{where}: expected accepted {step['accepted']}, got {accepted}")
        return accepted

    # What happens

    def _act(self, step: dict[str, Any]) -> None:
        if is_set(step, "snapshot_restore"):
            self._restart()
        if "submit" in step:
            self._submit(step["submit"], step.get("results", [step["submit"]]))
        elif "results" in step and "complete" not in step:
            raise UnsupportedScenarioError("`results` stands beside `submit` or `complete`")
        if "wm" in step:
            self._pending.mark(Watermark(self._ticks.watermark(step["wm"]), step.get("key", 0)))
        if is_set(step, "idle"):
            self._pending.mark(Idle(step.get("key")))
        if is_set(step, "active"):
            self._pending.mark(Active(step.get("key")))
        if "complete" in step:
            self._answer(step)
        if "fail" in step:
            self._end(step["fail"], failed=True)
        if is_set(step, "complete_all"):
            self._end_all()

    def _submit(self, name: Any, results: Any) -> None:
        if results is not None and not isinstance(results, list):
            raise UnsupportedScenarioError(f"`results` must be a list or null, got `{results}`")
        # All rows are equal: a call is known by its ticket and by nothing else.
        ticket = self._pending.submit({"event": "the same"})
        self._tickets.append((name, ticket, results or []))
        if self._most is not None and len(self._pending.unanswered()) > self._most:
            raise UnsupportedScenarioError(
                f"`{name}` is one call more than `max_concurrent`; with us it waits for a place and"
                " is not refused"
            )
        if results is None:
            self._end(name)

    def _answer(self, step: dict[str, Any]) -> None:
        """A call ends, with the results that it was submitted with or those that stand here."""
        if "results" in step and "submit" not in step:
            results = step["results"]
            if results is not None and not isinstance(results, list):
                raise UnsupportedScenarioError(f"`results` must be a list or null, got `{results}`")
            at = next(
                (at for at, call in enumerate(self._tickets) if call[0] == step["complete"]), None
            )
            if at is not None:
                self._tickets[at] = (*self._tickets[at][:2], results or [])
        self._end(step["complete"])

    def _end(self, name: Any, *, failed: bool = False) -> None:
        call = next((call for call in self._tickets if call[0] == name), None)
        if call is None:
            raise UnsupportedScenarioError(f"no call `{name}` is pending")
        self._tickets.remove(call)
        if failed:
            self._pending.fail(call[1], str(name))
        else:
            self._pending.complete(call[1], [{"result": result} for result in call[2]])

    def _end_all(self) -> None:
        waiting = Counter(str(name) for name, *_ in self._tickets)
        if not waiting <= Counter(map(str, self._endings)):
            raise UnsupportedScenarioError(
                f"`completion_orders` leaves out calls that are pending: {self._endings}"
            )
        for name in self._endings:
            if any(call[0] == name for call in self._tickets):
                self._end(name)
                self._take()

    def _restart(self) -> None:
        saved = self._pending.save()
        self._pending = async_queue(ordered=self._order == "ordered")
        self._pending.restore(saved)

    def _take(self) -> None:
        for item in self._pending.release():
            if isinstance(item, AnswerBatch):
                self._found += [Signal("row", row["result"]) for row in item.rows]
            elif isinstance(item, FailedCall):
                self._found.append(Signal("failed", item.error))
            else:
                self._found.append(of_mark(item))

    # What is compared

    def _read(self, written: Any) -> list[Signal]:
        if not isinstance(written, list):
            raise UnsupportedScenarioError(f"what comes out must be a list, got `{written}`")
        return [self._read_one(entry) for entry in written]

    def _read_one(self, entry: Any) -> Signal:
        if isinstance(entry, dict):
            return (
                Signal("failed", str(entry["failed"]))
                if entry.keys() == {"failed"}
                else read(entry, self._ticks)
            )
        if isinstance(entry, list):
            raise UnsupportedScenarioError(f"a result is a text or a number, got `{entry}`")
        return Signal("row", entry)

    def _same(self, step: dict[str, Any], where: str) -> None:
        allowed = [self._read(step["out"])]
        if self._order == "unordered" and "or_if_unordered" in step:
            allowed.append(self._read(step["or_if_unordered"]))
        if self._found not in allowed:
            raise MismatchError(
                f"{where}: expected {' or '.join(str(show(one, self._ticks)) for one in allowed)},"
                f" got {self._shown()}"
            )

    def _same_set(self, step: dict[str, Any], where: str) -> None:
        expected = self._read(step["out_set"])
        if Counter(expected) != Counter(self._found):
            raise MismatchError(
                f"{where}: expected in any order {show(expected, self._ticks)}, got {self._shown()}"
            )
        for pair in self._pairs(step.get("before", [])):
            first, second = self._read(pair)
            if not {first, second} <= set(self._found):
                raise UnsupportedScenarioError(f"`before` names what is not in `out_set`: {pair}")
            if self._found.index(first) > self._found.index(second):
                raise MismatchError(
                    f"{where}: expected {pair[0]} before {pair[1]}, got {self._shown()}"
                )

    def _pairs(self, written: Any) -> list[Any]:
        if not isinstance(written, list) or not all(
            isinstance(pair, list) and len(pair) == 2 for pair in written
        ):
            raise UnsupportedScenarioError(f"`before` must be a list of pairs, got `{written}`")
        return written

    def _shown(self) -> list[Any]:
        return show(self._found, self._ticks)

"""AsyncExecutor run a coroutine function in an event loop on a thread of its own: attempts with a
timeout, pauses between them, replies in a queue.

Contract: every call that is started is replied to once, and within the limit of its specification
plus a grace, whatever the function does. A function that ignores its cancellation is no longer
listened to. One that blocks the loop cannot be stopped: the loop is left behind with its thread,
calls that are overdue fail, and the others are started again in a new loop. Only one thread may use
an object of this class.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import inspect
import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

from tidegate.instants import format_duration
from tidegate.spec.async_map import AsyncMap

GRACE = 1.0
"""Seconds beyond the limit of a call after which its loop counts as blocked."""
PATIENCE = 2.0
"""Seconds that closing waits for the loop to end; half of them for calls to take their
cancellation.
"""
_LONGEST_WAIT = 3600.0
_LONGEST_TEXT = 2000

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Reply:
    """The end of a call: the rows that it gave, or why there are none."""

    ticket: int
    results: list[Row] | None = None
    error: str | None = None
    attempts: int = 1


class AsyncExecutor:
    """The calls of one async map that are under way."""

    def __init__(self, spec: AsyncMap) -> None:
        self._spec = spec
        self._given: dict[int, tuple[Row, float]] = {}
        """AsyncExecutor without a reply: the row, and when it was given to the loop."""
        self._replies: deque[Reply] = deque()
        self._loop: _Loop | None = None
        self._look_at = 0.0
        """Before this instant no call can be overdue."""
        self.lost_loops = 0

    def __len__(self) -> int:
        return len(self._given)

    def start(self, calls: Mapping[int, Row]) -> None:
        """Call the function for rows, by ticket; the loop starts with the first of them."""
        if not calls:
            return
        if self._loop is None:
            self._loop = _Loop(self._spec)
            # Whoever forgets to close leaves no thread behind that works for nobody.
            weakref.finalize(self, self._loop.end)
        now = time.monotonic()
        if not self._given:
            self._look_at = now + self._limit()
        self._given.update({ticket: (row, now) for ticket, row in calls.items()})
        self._loop.start(dict(calls))

    def replies(self, *, wait: bool = False) -> list[Reply]:
        """The replies that have come; with `wait` at least one, if any call is under way."""
        self._listen(0.0)
        self._leave_blocked()
        while wait and self._given and not self._replies:
            self._listen(min(max(self._look_at - time.monotonic(), 0.0), _LONGEST_WAIT))
            self._leave_blocked()
        found = list(self._replies)
        self._replies.clear()
        return found

    @property
    def untaken(self) -> int:
        """How many replies have come that nobody has taken."""
        come = 0 if self._loop is None else self._loop.replies.qsize()
        return min(come, len(self._given)) + len(self._replies)

    def oldest(self) -> tuple[Row, float] | None:
        """The first call without a reply: its row, and for how many seconds it is under way."""
        if self._loop is None:
            return None
        begun, _ = self._loop.progress()
        running = [ticket for ticket in self._given if ticket in begun]
        # AsyncExecutor begin in their order, so those that have not begun come after those whose
        # reply nobody has taken.
        others = [ticket for ticket in self._given if ticket not in begun][
            self._loop.replies.qsize() :
        ]
        first = next(iter(running or others), None)
        if first is None:
            return None
        row, given_at = self._given[first]
        return row, max(0.0, time.monotonic() - begun.get(first, given_at))

    def close(self) -> None:
        """Cancel what runs. What does not let itself be cancelled is reported and left behind."""
        loop, self._loop = self._loop, None
        self._given.clear()
        if loop is None:
            return
        loop.end()
        loop.thread.join(PATIENCE)
        if loop.thread.is_alive():
            text = (
                "blocks its event loop, whose thread is left behind. Hint: await what takes long,"
                " or use asyncio.to_thread"
            )
            warnings.warn(f"the function of an async map {text}", RuntimeWarning, stacklevel=3)
        elif loop.stubborn:
            text = (
                f"the function of an async map ignores that {loop.stubborn} of its calls were"
                " cancelled; they are left behind"
            )
            warnings.warn(
                f"{text}. Hint: let asyncio.CancelledError pass", RuntimeWarning, stacklevel=3
            )

    def _listen(self, seconds: float) -> None:
        """Take replies, waiting so long for the first."""
        if self._loop is None:
            return
        try:
            reply = (
                self._loop.replies.get(timeout=seconds)
                if seconds > 0
                else self._loop.replies.get_nowait()
            )
            while reply is not None:
                del self._given[reply.ticket]
                self._replies.append(reply)
                reply = self._loop.replies.get_nowait()
        except Empty:
            pass

    def _limit(self) -> float:
        return self._spec.limit / 1_000_000 + GRACE

    def _leave_blocked(self) -> None:
        """Where a call is overdue its loop did not run for as long, or has ended: fail it, and
        start what is not overdue in a new loop.
        """
        now, loop = time.monotonic(), self._loop
        if loop is None or not self._given or (now < self._look_at and loop.thread.is_alive()):
            return
        begun, beat = loop.progress()
        # A call that has not begun waits for others to let it, and a loop that does anything is not
        # blocked, however slow it is.
        since = min(begun.get(ticket, max(beat, at)) for ticket, (_, at) in self._given.items())
        self._look_at = max(since + self._limit(), beat + GRACE)
        if now < self._look_at and loop.thread.is_alive():
            return
        begun = loop.abandon()
        self._listen(0.0)
        latest = now - self._limit() if loop.thread.is_alive() else now
        error = (
            f"TimeoutError: no answer within {format_duration(self._spec.limit)}, the event loop"
            " does not run"
        )
        for ticket in [
            ticket for ticket in self._given if ticket in begun and begun[ticket] <= latest
        ]:
            del self._given[ticket]
            self._replies.append(Reply(ticket, error=error))
        self.lost_loops += 1
        self._loop = None
        rest, self._given = self._given, {}
        self.start({ticket: row for ticket, (row, _) in rest.items()})
        text = (
            "the function of an async map blocks its event loop, whose thread is left behind, or"
            " has stopped it; another one is started"
        )
        warnings.warn(
            f"{text}. Hint: await what takes long, or use asyncio.to_thread",
            RuntimeWarning,
            stacklevel=4,
        )


@dataclass(eq=False, slots=True)
class _Attempt:
    """One of the attempts of a call."""

    ticket: int
    row: Row
    number: int
    timer: asyncio.TimerHandle | None = None
    is_over: bool = False


@dataclass(frozen=True, slots=True)
class _Outcome:
    """How an attempt ended; `is_final` where another one would be in vain."""

    results: list[Row] | None = None
    error: str | None = None
    is_final: bool = False


class _Loop:
    """An event loop and its thread; `replies` is what it has to say."""

    def __init__(self, spec: AsyncMap) -> None:
        self.replies: SimpleQueue[Reply | None] = SimpleQueue()
        """None says that there is news other than a reply: the loop has ended."""
        self.stubborn = 0
        self._spec = spec
        self._lock = threading.Lock()
        self._begun: dict[int, float] = {}
        self._beat = time.monotonic()
        self._is_abandoned = False
        self._running: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(self._complain)
        self.thread = threading.Thread(target=self._run, name="tidegate async map", daemon=True)
        self.thread.start()

    # From outside

    def start(self, calls: dict[int, Row]) -> None:
        # Whoever asks for replies finds out that a loop has ended, and what it was given.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._begin, calls)

    def progress(self) -> tuple[dict[int, float], float]:
        """When the calls without a reply began, and when the loop last did anything."""
        with self._lock:
            return dict(self._begun), self._beat

    def abandon(self) -> dict[int, float]:
        """Begin no more calls, and end once there is a chance to; when the calls without a reply
        began.
        """
        self.end()
        return self.progress()[0]

    def end(self) -> None:
        with self._lock:
            ended, self._is_abandoned = self._is_abandoned, True
        if not ended:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._begin_end)

    # In the thread

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._forget_unbegun()
            self._loop.close()
            self.replies.put(None)

    def _forget_unbegun(self) -> None:
        """Python complains of coroutines that never ran, and a function may stop the loop between
        the making of a task and its first step.
        """
        for task in self._running:
            coroutine = task.get_coro()
            if (
                inspect.iscoroutine(coroutine)
                and inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED
            ):
                coroutine.close()

    def _begin(self, calls: dict[int, Row]) -> None:
        for ticket, row in calls.items():
            self._try(_Attempt(ticket, row, 0))

    def _try(self, attempt: _Attempt) -> None:
        if self._is_abandoned:
            return
        task = self._loop.create_task(self._call(attempt))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        attempt.timer = self._loop.call_later(
            self._spec.timeout / 1_000_000, self._too_late, attempt, task
        )

    async def _call(self, attempt: _Attempt) -> None:
        """Reply from here and not when the task is done, so that a call which blocks the loop
        afterwards cannot hold the reply back.
        """
        with self._lock:
            if self._is_abandoned:
                return
            self._beat = time.monotonic()
            self._begun.setdefault(attempt.ticket, self._beat)
        outcome = await self._outcome(attempt.row)
        if not attempt.is_over:
            self._over(attempt, outcome)

    async def _outcome(self, row: Row) -> _Outcome:
        try:
            answer = await self._spec.function(_copied(row))
        except GeneratorExit:
            raise
        except BaseException as error:  # noqa: BLE001 - a user's function may raise anything
            return _Outcome(error=error_text(error))
        try:
            return _Outcome(results_of(answer))
        except Exception as error:  # noqa: BLE001 - so may a mapping of its own
            return _Outcome(error=error_text(error), is_final=True)

    def _too_late(self, attempt: _Attempt, task: asyncio.Task[None]) -> None:
        if not attempt.is_over:
            task.cancel()
            self._over(
                attempt,
                _Outcome(
                    error=f"TimeoutError: no answer within {format_duration(self._spec.timeout)}"
                ),
            )

    def _over(self, attempt: _Attempt, outcome: _Outcome) -> None:
        """An attempt has ended: reply, or try again after a pause."""
        attempt.is_over = True
        if attempt.timer is not None:
            attempt.timer.cancel()
        if outcome.results is None and not outcome.is_final and attempt.number < self._spec.retries:
            following = _Attempt(attempt.ticket, attempt.row, attempt.number + 1)
            self._loop.call_later(
                self._spec.pause(attempt.number) / 1_000_000, self._try, following
            )
            return
        with self._lock:
            if self._is_abandoned:
                return
            self._begun.pop(attempt.ticket, None)
            self._beat = time.monotonic()
        self.replies.put(Reply(attempt.ticket, outcome.results, outcome.error, attempt.number + 1))

    def _begin_end(self) -> None:
        self._ending = self._loop.create_task(self._end())

    async def _end(self) -> None:
        """Cancel everything that runs in this loop, wait a moment for it, and stop."""
        others = asyncio.all_tasks(self._loop) - {asyncio.current_task(self._loop)}
        for task in others:
            task.cancel()
        if others:
            await asyncio.wait(others, timeout=PATIENCE / 2)
        await asyncio.wait(
            [self._loop.create_task(self._loop.shutdown_asyncgens())], timeout=PATIENCE / 4
        )
        self.stubborn = sum(not task.done() for task in self._running)
        self._loop.stop()

    def _complain(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """AsyncExecutor that ignored their cancellation are reported when the loop ends; what else
        goes wrong is told as in every loop.
        """
        if context.get("task") not in self._running:
            loop.default_exception_handler(context)


def results_of(answer: object) -> list[Row]:
    """The rows of an answer: a mapping is one, None is none."""
    if answer is None:
        return []
    rows: list[Any] = list(answer) if isinstance(answer, list | tuple) else [answer]
    for row in rows:
        if not isinstance(row, Mapping):
            raise TypeError(
                f"a mapping, a list of mappings or None was expected, got {type(row).__name__}"
            )
        if not row:
            raise TypeError(
                "a row without columns says nothing. Hint: return None to leave a message out"
            )
        unnamed = [name for name in row if not isinstance(name, str)]
        if unnamed:
            raise TypeError(f"the names of columns are texts, got {unnamed[0]!r:.200}")
    # The function may go on changing what it gave.
    return [dict(row) for row in rows]


def _copied(row: Row) -> dict[str, Any]:
    """The row for a function that may do with it what it likes."""
    return {
        name: copy.deepcopy(value) if isinstance(value, list | dict) else value
        for name, value in row.items()
    }


def error_text(error: BaseException) -> str:
    """The type and the text of an error, in what every table can hold."""
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - the text of a user's error is a user's function
        text = f"{type(error).__name__}: (its text cannot be read)"
    return text[:_LONGEST_TEXT].encode("utf-8", "replace").decode()

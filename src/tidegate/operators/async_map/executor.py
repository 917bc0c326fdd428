"""The async executor: runs a coroutine function in an event loop on its own thread, with retries.

Contract: every started call gets one reply, within the limit of its specification plus a grace
period, whatever the function does. If a function ignores its cancellation, its result is ignored. A
function that blocks the event loop cannot be stopped: the loop is abandoned with its thread,
overdue calls fail, and the others are started again in a new loop. An executor may be used by one
thread only.
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
"""Seconds beyond the limit of a call after which its event loop counts as blocked."""
LOOP_THREAD = "tidegate async map"
"""The name of the threads that call users' functions."""
SHUTDOWN_TIMEOUT = 2.0
"""Seconds that `close` waits for the event loop to end; half of them for cancelled calls."""
_LONGEST_WAIT = 3600.0
_LONGEST_TEXT = 2000

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Reply:
    """The result of a call: its rows, or the error."""

    ticket: int
    results: list[Row] | None = None
    error: str | None = None
    attempts: int = 1


class AsyncExecutor:
    """The running calls of one async map."""

    def __init__(self, spec: AsyncMap) -> None:
        self._spec = spec
        self._calls: dict[int, tuple[Row, float]] = {}
        """The calls without a reply: the row, and when it was passed to the loop."""
        self._replies: deque[Reply] = deque()
        self._loop: _LoopThread | None = None
        self._overdue_at = 0.0
        """The earliest instant at which a call can be overdue."""
        self.lost_loops = 0

    def __len__(self) -> int:
        return len(self._calls)

    def use(self, spec: AsyncMap) -> None:
        """Call the function of another specification from now on, in the same event loop.

        Calls that still run are cancelled.
        """
        if self._calls:
            self.close()
        self._replies.clear()
        self._spec = spec

    def start(self, calls: Mapping[int, Row]) -> None:
        """Call the function for rows, by ticket; the first call starts the event loop."""
        if not calls:
            return
        if self._loop is None:
            self._loop = _LoopThread()
            # The thread ends even if `close` is not called.
            weakref.finalize(self, self._loop.end)
        now = time.monotonic()
        if not self._calls:
            self._overdue_at = now + self._limit()
        self._calls.update({ticket: (row, now) for ticket, row in calls.items()})
        self._loop.start(self._spec, dict(calls))

    def replies(self, *, wait: bool = False) -> list[Reply]:
        """The replies that have arrived; with `wait` at least one if any call is running."""
        self._receive(0.0)
        self._replace_blocked_loop()
        while wait and self._calls and not self._replies:
            self._receive(min(max(self._overdue_at - time.monotonic(), 0.0), _LONGEST_WAIT))
            self._replace_blocked_loop()
        found = list(self._replies)
        self._replies.clear()
        return found

    @property
    def untaken(self) -> int:
        """The number of replies that have arrived and were not taken."""
        arrived = 0 if self._loop is None else self._loop.replies.qsize()
        return min(arrived, len(self._calls)) + len(self._replies)

    def oldest(self) -> tuple[Row, float] | None:
        """The first call without a reply: its row, and for how many seconds it has been running."""
        if self._loop is None:
            return None
        started, _ = self._loop.progress()
        running = [ticket for ticket in self._calls if ticket in started]
        # Calls start in their order, so unstarted ones come after those whose reply was not taken.
        others = [ticket for ticket in self._calls if ticket not in started][
            self._loop.replies.qsize() :
        ]
        first = next(iter(running or others), None)
        if first is None:
            return None
        row, given_at = self._calls[first]
        return row, max(0.0, time.monotonic() - started.get(first, given_at))

    def close(self) -> None:
        """Cancel all calls; those that ignore it are abandoned with a warning."""
        loop, self._loop = self._loop, None
        self._calls.clear()
        if loop is None:
            return
        loop.end()
        loop.thread.join(SHUTDOWN_TIMEOUT)
        if loop.thread.is_alive():
            text = (
                "blocks its event loop, whose thread is abandoned. Hint: await long operations, or"
                " use asyncio.to_thread"
            )
            warnings.warn(f"the function of an async map {text}", RuntimeWarning, stacklevel=3)
        elif loop.uncancelled:
            text = (
                f"the function of an async map ignored the cancellation of {loop.uncancelled} of"
                " its calls, which are abandoned"
            )
            warnings.warn(
                f"{text}. Hint: do not catch asyncio.CancelledError", RuntimeWarning, stacklevel=3
            )

    def _receive(self, seconds: float) -> None:
        """Receive replies; waits up to `seconds` for the first."""
        if self._loop is None:
            return
        try:
            reply = (
                self._loop.replies.get(timeout=seconds)
                if seconds > 0
                else self._loop.replies.get_nowait()
            )
            while reply is not None:
                del self._calls[reply.ticket]
                self._replies.append(reply)
                reply = self._loop.replies.get_nowait()
        except Empty:
            pass

    def _limit(self) -> float:
        return self._spec.limit / 1_000_000 + GRACE

    def _replace_blocked_loop(self) -> None:
        """Replace an event loop that is blocked or has ended.

        Overdue calls fail; the others are started again in the new loop.
        """
        now, loop = time.monotonic(), self._loop
        if loop is None or not self._calls or (now < self._overdue_at and loop.thread.is_alive()):
            return
        started, active_at = loop.progress()
        # A call that has not started waits for other calls, and a loop with any activity is not
        # blocked, however slow it is.
        since = min(
            started.get(ticket, max(active_at, at)) for ticket, (_, at) in self._calls.items()
        )
        self._overdue_at = max(since + self._limit(), active_at + GRACE)
        if now < self._overdue_at and loop.thread.is_alive():
            return
        started = loop.abandon()
        self._receive(0.0)
        latest = now - self._limit() if loop.thread.is_alive() else now
        error = (
            f"TimeoutError: no answer within {format_duration(self._spec.limit)}, the event loop"
            " does not run"
        )
        for ticket in [
            ticket for ticket in self._calls if ticket in started and started[ticket] <= latest
        ]:
            del self._calls[ticket]
            self._replies.append(Reply(ticket, error=error))
        self.lost_loops += 1
        self._loop = None
        rest, self._calls = self._calls, {}
        self.start({ticket: row for ticket, (row, _) in rest.items()})
        text = (
            "the function of an async map blocks its event loop, whose thread is abandoned, or has"
            " stopped it; a new loop is started"
        )
        warnings.warn(
            f"{text}. Hint: await long operations, or use asyncio.to_thread",
            RuntimeWarning,
            stacklevel=4,
        )


@dataclass(eq=False, slots=True)
class _Attempt:
    """One attempt of a call."""

    spec: AsyncMap
    ticket: int
    row: Row
    number: int
    timer: asyncio.TimerHandle | None = None
    is_over: bool = False


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The end of an attempt; `is_final` if a retry cannot succeed."""

    results: list[Row] | None = None
    error: str | None = None
    is_final: bool = False


class _LoopThread:
    """An event loop with its thread and the queue of its replies."""

    def __init__(self) -> None:
        self.replies: SimpleQueue[Reply | None] = SimpleQueue()
        """Replies; None once the loop has ended."""
        self.uncancelled = 0
        self._lock = threading.Lock()
        self._started: dict[int, float] = {}
        self._active_at = time.monotonic()
        self._is_abandoned = False
        self._running: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(self._handle_exception)
        self.thread = threading.Thread(target=self._run, name=LOOP_THREAD, daemon=True)
        self.thread.start()

    # From outside

    def start(self, spec: AsyncMap, calls: dict[int, Row]) -> None:
        # A loop that has ended is replaced, with its calls, when replies are received.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._start_calls, spec, calls)

    def progress(self) -> tuple[dict[int, float], float]:
        """When the calls without a reply started, and when the loop was last active."""
        with self._lock:
            return dict(self._started), self._active_at

    def abandon(self) -> dict[int, float]:
        """End the loop as soon as it runs; returns when the calls without a reply started."""
        self.end()
        return self.progress()[0]

    def end(self) -> None:
        with self._lock:
            ended, self._is_abandoned = self._is_abandoned, True
        if not ended:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._begin_shutdown)

    # In the thread

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._close_unstarted()
            self._loop.close()
            self.replies.put(None)

    def _close_unstarted(self) -> None:
        """Close coroutines that never ran, for which Python warns.

        A function may stop the loop after a task is created and before its first step.
        """
        for task in self._running:
            coroutine = task.get_coro()
            if (
                inspect.iscoroutine(coroutine)
                and inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED
            ):
                coroutine.close()

    def _start_calls(self, spec: AsyncMap, calls: dict[int, Row]) -> None:
        for ticket, row in calls.items():
            self._attempt(_Attempt(spec, ticket, row, 0))

    def _attempt(self, attempt: _Attempt) -> None:
        if self._is_abandoned:
            return
        task = self._loop.create_task(self._call(attempt))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        attempt.timer = self._loop.call_later(
            attempt.spec.timeout / 1_000_000, self._time_out, attempt, task
        )

    async def _call(self, attempt: _Attempt) -> None:
        """Reply from the task itself, so that a call that then blocks the loop does not delay the
        reply.
        """
        with self._lock:
            if self._is_abandoned:
                return
            self._active_at = time.monotonic()
            self._started.setdefault(attempt.ticket, self._active_at)
        outcome = await _outcome(attempt)
        if not attempt.is_over:
            self._finish_attempt(attempt, outcome)

    def _time_out(self, attempt: _Attempt, task: asyncio.Task[None]) -> None:
        if not attempt.is_over:
            task.cancel()
            self._finish_attempt(
                attempt,
                _Outcome(
                    error=f"TimeoutError: no answer within {format_duration(attempt.spec.timeout)}"
                ),
            )

    def _finish_attempt(self, attempt: _Attempt, outcome: _Outcome) -> None:
        """End an attempt: reply, or retry after a pause."""
        attempt.is_over = True
        spec = attempt.spec
        if attempt.timer is not None:
            attempt.timer.cancel()
        if outcome.results is None and not outcome.is_final and attempt.number < spec.retries:
            following = _Attempt(spec, attempt.ticket, attempt.row, attempt.number + 1)
            self._loop.call_later(spec.pause(attempt.number) / 1_000_000, self._attempt, following)
            return
        with self._lock:
            if self._is_abandoned:
                return
            self._started.pop(attempt.ticket, None)
            self._active_at = time.monotonic()
        self.replies.put(Reply(attempt.ticket, outcome.results, outcome.error, attempt.number + 1))

    def _begin_shutdown(self) -> None:
        self._ending = self._loop.create_task(self._shutdown())

    async def _shutdown(self) -> None:
        """Cancel all tasks of the loop, wait shortly for them, and stop."""
        others = asyncio.all_tasks(self._loop) - {asyncio.current_task(self._loop)}
        for task in others:
            task.cancel()
        if others:
            await asyncio.wait(others, timeout=SHUTDOWN_TIMEOUT / 2)
        await asyncio.wait(
            [self._loop.create_task(self._loop.shutdown_asyncgens())], timeout=SHUTDOWN_TIMEOUT / 4
        )
        self.uncancelled = sum(not task.done() for task in self._running)
        self._loop.stop()

    def _handle_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Ignore errors of cancelled calls, which `close` reports; handle others by default."""
        if context.get("task") not in self._running:
            loop.default_exception_handler(context)


async def _outcome(attempt: _Attempt) -> _Outcome:
    try:
        answer = await attempt.spec.function(_copied(attempt.row))
    except GeneratorExit:
        raise
    except BaseException as error:  # noqa: BLE001 - a user's function may raise anything
        return _Outcome(error=error_text(error))
    try:
        return _Outcome(results_of(answer))
    except Exception as error:  # noqa: BLE001 - a mapping of the user may raise anything
        return _Outcome(error=error_text(error), is_final=True)


def results_of(answer: object) -> list[Row]:
    """The rows of an answer: a mapping is one row, None is none."""
    if answer is None:
        return []
    rows: list[Any] = list(answer) if isinstance(answer, list | tuple) else [answer]
    for row in rows:
        if not isinstance(row, Mapping):
            raise TypeError(
                f"a mapping, a list of mappings or None was expected, got {type(row).__name__}"
            )
        if not row:
            raise TypeError("a row has no columns. Hint: return None to drop a message")
        unnamed = [name for name in row if not isinstance(name, str)]
        if unnamed:
            raise TypeError(f"column names are strings, got {unnamed[0]!r:.200}")
    # The function may change its rows later.
    return [dict(row) for row in rows]


def _copied(row: Row) -> dict[str, Any]:
    """A copy of the row, which the function may change."""
    return {
        name: copy.deepcopy(value) if isinstance(value, list | dict) else value
        for name, value in row.items()
    }


def error_text(error: BaseException) -> str:
    """The type and the message of an error, as valid and bounded text."""
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - the text of a user's error is a user's function
        text = f"{type(error).__name__}: (unreadable message)"
    return text[:_LONGEST_TEXT].encode("utf-8", "replace").decode()

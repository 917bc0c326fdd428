"""The queue of an async map: pending calls and the marks between them.

Contract: every submitted row gets its own ticket, which is answered once, by `complete` or by
`fail`; equal rows are different calls. A mark is released after all calls that were submitted
before it. In the ordered queue everything leaves in the order of submission. In the unordered queue
an answer leaves with the next `release`, and may overtake marks and other answers. A watermark
directly behind one of the same key replaces it while both wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from tidegate.errors import CorruptStateError, InputError
from tidegate.kernel.watermarks.marks import Active, Idle, Mark, Watermark

Row = Mapping[str, Any]


@dataclass(eq=False, slots=True)
class Call:
    """A submitted row, and its answer once there is one."""

    ticket: int
    row: Row
    results: list[Row] | None = None
    error: str | None = None

    @property
    def is_settled(self) -> bool:
        return self.results is not None or self.error is not None


@dataclass(frozen=True, slots=True)
class Answer:
    """A row and its results."""

    row: Row
    results: list[Row]


@dataclass(frozen=True, slots=True)
class AnswerBatch:
    """Consecutive answers that are released together."""

    answers: list[Answer]

    @property
    def rows(self) -> list[Row]:
        return [row for answer in self.answers for row in answer.results]


@dataclass(frozen=True, slots=True)
class FailedCall:
    """A row whose call failed, and the error."""

    row: Row
    error: str


Item = AnswerBatch | FailedCall | Mark
Entry = Call | Mark
Entries = deque[Entry] | list[Entry]


@dataclass(frozen=True, slots=True)
class QueueSnapshot:
    """A snapshot: a JSON document, the submitted rows and the rows of answers, in their order."""

    document: dict[str, Any]
    rows: list[Row]
    results: list[Row]


class AsyncQueue(Protocol):
    """The interface of the ordered and the unordered queue."""

    def __len__(self) -> int:
        """The number of calls that were not released."""
        ...

    def submit(self, row: Row) -> int: ...

    def mark(self, mark: Mark) -> None: ...

    def complete(self, ticket: int, results: list[Row]) -> None: ...

    def fail(self, ticket: int, error: str) -> None: ...

    def release(self) -> list[Item]: ...

    def unanswered(self) -> list[Call]:
        """The calls without an answer, in their order; after a restore they are started again."""
        ...

    def waiting(self) -> list[tuple[Mark, int]]:
        """The marks that were not released, each with the number of unanswered calls before it."""
        ...

    def save(self) -> QueueSnapshot: ...

    def restore(self, saved: QueueSnapshot) -> None: ...


class _Calls:
    """The state that both queues share: tickets and unanswered calls."""

    def __init__(self) -> None:
        self._next = 0
        self._unanswered: dict[int, Call] = {}
        self._is_marked = False
        """Whether no row was submitted since the last mark."""

    def unanswered(self) -> list[Call]:
        return list(self._unanswered.values())

    def _submitted(self, row: Row) -> Call:
        call = Call(self._next, row)
        self._next += 1
        self._is_marked = False
        self._unanswered[call.ticket] = call
        return call

    def _marked(self, entries: Entries, mark: Mark) -> None:
        """Append a mark to the entries, or replace the watermark before it."""
        last = entries[-1] if entries and self._is_marked else None
        if isinstance(last, Watermark) and isinstance(mark, Watermark) and last.key == mark.key:
            entries[-1] = mark if mark.value > last.value else last
        else:
            entries.append(mark)
        self._is_marked = True

    def _answered(
        self, ticket: int, *, results: list[Row] | None = None, error: str | None = None
    ) -> Call:
        call = self._unanswered.pop(ticket, None)
        if call is None:
            raise InputError(
                f"the ticket {ticket} is not pending: it was answered before, or never issued"
            )
        call.results, call.error = results, error
        return call

    def _saved(self, ready: Iterable[Entry], waiting: Iterable[Entry]) -> QueueSnapshot:
        rows: list[Row] = []
        results: list[Row] = []

        def written(entry: Entry) -> dict[str, Any]:
            if not isinstance(entry, Call):
                return {"mark": mark_to_json(entry)}
            rows.append(entry.row)
            results.extend(entry.results or [])
            return {
                "ticket": entry.ticket,
                "results": None if entry.results is None else len(entry.results),
                "error": entry.error,
            }

        document: dict[str, Any] = {"next": self._next, "marked": self._is_marked}
        document.update(
            ready=[written(entry) for entry in ready], waiting=[written(entry) for entry in waiting]
        )
        return QueueSnapshot(document, rows, results)

    def _restored(self, saved: QueueSnapshot) -> tuple[list[Entry], list[Entry]]:
        rows, results = iter(saved.rows), iter(saved.results)

        def read(entry: dict[str, Any]) -> Entry:
            if "mark" in entry:
                return mark_from_json(entry["mark"])
            row = _next(rows)
            answer = (
                None
                if entry["results"] is None
                else [_next(results) for _ in range(entry["results"])]
            )
            return Call(entry["ticket"], row, answer, entry["error"])

        document = saved.document
        self._next, self._is_marked = document["next"], document["marked"]
        ready, waiting = (
            [read(entry) for entry in document[name]] for name in ("ready", "waiting")
        )
        calls = [entry for entry in (*ready, *waiting) if isinstance(entry, Call)]
        self._unanswered = {call.ticket: call for call in calls if not call.is_settled}
        return ready, waiting


class OrderedQueue(_Calls):
    """Releases everything in the order of submission."""

    def __init__(self) -> None:
        super().__init__()
        self._queue: deque[Entry] = deque()
        self._calls = 0

    def __len__(self) -> int:
        return self._calls

    def submit(self, row: Row) -> int:
        call = self._submitted(row)
        self._queue.append(call)
        self._calls += 1
        return call.ticket

    def mark(self, mark: Mark) -> None:
        self._marked(self._queue, mark)

    def complete(self, ticket: int, results: list[Row]) -> None:
        self._answered(ticket, results=results)

    def fail(self, ticket: int, error: str) -> None:
        self._answered(ticket, error=error)

    def release(self) -> list[Item]:
        """Everything up to the first call without an answer."""
        ready: list[Entry] = []
        while self._queue:
            head = self._queue[0]
            if isinstance(head, Call):
                if not head.is_settled:
                    break
                self._calls -= 1
            ready.append(self._queue.popleft())
        return _items(ready)

    def waiting(self) -> list[tuple[Mark, int]]:
        found: list[tuple[Mark, int]] = []
        before = 0
        for entry in self._queue:
            if isinstance(entry, Call):
                before += not entry.is_settled
            else:
                found.append((entry, before))
        return found

    def save(self) -> QueueSnapshot:
        return self._saved([], self._queue)

    def restore(self, saved: QueueSnapshot) -> None:
        ready, waiting = self._restored(saved)
        self._queue = deque([*ready, *waiting])
        self._calls = sum(isinstance(entry, Call) for entry in self._queue)


@dataclass(eq=False, slots=True)
class _Segment:
    """Calls without a mark between them: the number of unanswered ones, and the marks behind."""

    unanswered: int = 0
    marks: list[Entry] = field(default_factory=list)


class UnorderedQueue(_Calls):
    """Releases an answer at once, and a mark after all calls before it."""

    def __init__(self) -> None:
        super().__init__()
        self._ready: list[Entry] = []
        self._segments: deque[_Segment] = deque()
        """The first segment has unanswered calls."""
        self._places: dict[int, _Segment] = {}

    def __len__(self) -> int:
        return len(self._unanswered) + sum(isinstance(entry, Call) for entry in self._ready)

    def submit(self, row: Row) -> int:
        call = self._submitted(row)
        self._place(call)
        return call.ticket

    def _place(self, call: Call) -> None:
        if not self._segments or self._segments[-1].marks:
            self._segments.append(_Segment())
        self._places[call.ticket] = self._segments[-1]
        self._segments[-1].unanswered += 1

    def mark(self, mark: Mark) -> None:
        self._marked(self._segments[-1].marks if self._segments else self._ready, mark)

    def complete(self, ticket: int, results: list[Row]) -> None:
        self._settle(self._answered(ticket, results=results))

    def fail(self, ticket: int, error: str) -> None:
        self._settle(self._answered(ticket, error=error))

    def _settle(self, call: Call) -> None:
        self._ready.append(call)
        self._places.pop(call.ticket).unanswered -= 1
        while self._segments and not self._segments[0].unanswered:
            self._ready.extend(self._segments.popleft().marks)

    def release(self) -> list[Item]:
        """Everything that is ready, in the order in which it became ready."""
        ready, self._ready = self._ready, []
        return _items(ready)

    def waiting(self) -> list[tuple[Mark, int]]:
        found = [(entry, 0) for entry in self._ready if not isinstance(entry, Call)]
        before = 0
        for segment in self._segments:
            before += segment.unanswered
            found.extend((entry, before) for entry in segment.marks if not isinstance(entry, Call))
        return found

    def save(self) -> QueueSnapshot:
        calls = iter(self._unanswered.values())
        waiting: list[Entry] = []
        for segment in self._segments:
            waiting.extend(next(calls) for _ in range(segment.unanswered))
            waiting.extend(segment.marks)
        return self._saved(self._ready, waiting)

    def restore(self, saved: QueueSnapshot) -> None:
        self._ready, waiting = self._restored(saved)
        self._segments, self._places = deque(), {}
        for entry in waiting:
            if isinstance(entry, Call):
                self._place(entry)
            elif self._segments:
                self._segments[-1].marks.append(entry)
            else:
                self._ready.append(entry)


def async_queue(*, ordered: bool) -> AsyncQueue:
    """An ordered or an unordered queue."""
    return OrderedQueue() if ordered else UnorderedQueue()


def _items(ready: Iterable[Entry]) -> list[Item]:
    """The released items, with consecutive answers in one batch; empty answers are dropped."""
    items: list[Item] = []
    for entry in ready:
        if not isinstance(entry, Call):
            items.append(entry)
        elif entry.error is not None:
            items.append(FailedCall(entry.row, entry.error))
        elif entry.results:
            answer = Answer(entry.row, entry.results)
            last = items[-1] if items else None
            if isinstance(last, AnswerBatch):
                last.answers.append(answer)
            else:
                items.append(AnswerBatch([answer]))
    return items


# Snapshots


def mark_to_json(mark: Mark) -> list[Any]:
    """A mark as JSON."""
    if isinstance(mark, Watermark):
        return ["watermark", mark.key, mark.value]
    return ["idle" if isinstance(mark, Idle) else "active", mark.key]


def mark_from_json(document: list[Any]) -> Mark:
    """The inverse of `mark_to_json`."""
    match document:
        case ["watermark", key, value]:
            return Watermark(value, key)
        case ["idle", key]:
            return Idle(key)
        case ["active", key]:
            return Active(key)
    raise CorruptStateError(
        f"the stored mark {document!r} cannot be read. Hint: restore the state from a copy, or"
        " replay the input"
    )


def _next(rows: Iterator[Row]) -> Row:
    for row in rows:
        return row
    raise CorruptStateError(
        "there are fewer stored rows than pending calls. Hint: restore the state from a copy, or"
        " replay the input"
    )

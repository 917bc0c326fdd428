"""The embedded async map: calls a coroutine function for every message, in order with watermarks.

Only `add_messages` blocks, for free slots, and `finish`, for all answers; every other call takes
the answers that have arrived. Without a downstream, `get_result` returns a copy of the results and
`flush` clears those that were returned. With a downstream, results are offered to it in order;
while it refuses, input is refused too, and `timeout` offers again. A store makes pending messages,
results and watermarks durable together: after a crash, messages without an answer are called again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Any, Self

import numpy as np
import pyarrow as pa

from tidegate.embedded.async_rows import (
    AsyncResults,
    ResultItems,
    count_rows,
    item_from_json,
    item_to_json,
    kind_of,
    late_table,
    marks_of,
    results_of,
)
from tidegate.embedded.clock import Clock
from tidegate.embedded.exclusive import exclusive, lock_of
from tidegate.embedded.result_queue import Downstream, ResultQueue
from tidegate.embedded.source_control import SourceControl
from tidegate.errors import CorruptStateError, InputError, SpecError, StateError
from tidegate.instants import MAX, MIN, Instant
from tidegate.kernel.events.duplicates import ResumeOffsets
from tidegate.kernel.events.event_time import OK, is_ticks, read_times
from tidegate.kernel.watermarks.marks import Mark
from tidegate.operators.aggregate.migration import check_same
from tidegate.operators.async_map.executor import AsyncExecutor, Reply
from tidegate.operators.async_map.queue import (
    AnswerBatch,
    FailedCall,
    QueueSnapshot,
    Row,
    async_queue,
)
from tidegate.operators.async_map.rows import AsyncSchemas, python_rows, rows_of, table_error
from tidegate.operators.chain import role_columns
from tidegate.operators.explain.explanation import explain_calls, waiting_marks
from tidegate.operators.explain.facts import CallFacts, Explanation
from tidegate.operators.ingest.computed_columns import arriving_table
from tidegate.operators.ingest.delivery import Delivery, DeliveryReader
from tidegate.operators.ingest.ingest import Ingest, IngestHooks, Windows, whole_rows
from tidegate.operators.ingest.python_rows import to_table
from tidegate.operators.ingest.schema_cast import BROKEN, bindable, widened
from tidegate.operators.ingest.watermark_tracking import PausedSource, WatermarkTracker
from tidegate.operators.output import texts
from tidegate.operators.progress import Progress, late_by_reason
from tidegate.spec.async_map import AsyncMap
from tidegate.spec.composition import Exchange
from tidegate.spec.operator import Input, Options, TimeColumn, input_of
from tidegate.spec.watermarks import Lagging
from tidegate.state.memory import MemoryStore
from tidegate.state.store import Store, closed_on_error

FORMAT = 1
_NAME = "async_map"
_COUNTED = (
    "events",
    "duplicates",
    "markers",
    "results",
    "filtered",
    "failed",
    "retried",
    "late_rows",
)


Consumer = Callable[[AsyncResults], "bool | None"]


@exclusive
class EmbeddedAsyncMap(SourceControl):
    """One async map in this process."""

    def __init__(
        self,
        spec: AsyncMap,
        inputs: Sequence[Input],
        *,
        options: Options | None = None,
        store: Store | None = None,
        downstream: Consumer | Downstream | None = None,
        now: int | None = None,
    ) -> None:
        if not inputs:
            raise SpecError(
                "an async map needs an input. Hint: tg.stream(time='ts').async_map(...)"
            )
        if any(given.id is not None for given in inputs):
            raise SpecError(
                "an async map finds duplicates by `offset=`, not by `id=`. Hint: set `id=` in the"
                " stream of the downstream"
            )
        self.lock = lock_of(downstream)
        """Held during every call; operators that feed each other share it."""
        self.inputs = tuple(inputs)
        self.spec = spec
        self._consumer: Consumer | None = downstream if callable(downstream) else None
        self._downstream: Downstream | None = (
            None if downstream is None or callable(downstream) else downstream
        )
        _check_order(spec, self._downstream)
        self._store = MemoryStore() if store is None else store
        self._clock = Clock(now)
        self._options = options or Options()
        self._watermark_tracker = WatermarkTracker(
            self.inputs, self._options, now=self._clock.start
        )
        self._progress = Progress(now=self._clock.start)
        self._ingest = Ingest(self.inputs, self._store, self._progress)
        self._schemas = AsyncSchemas(spec)
        self._queue = async_queue(ordered=spec.ordered)
        self._executor = AsyncExecutor(spec)
        self._unstarted: deque[tuple[int, Row]] = deque()
        self._results: ResultQueue[ResultItems] = ResultQueue(
            None if downstream is None else self._accepts
        )
        self._error = ""
        """The error of the last failed call."""
        self._finished = self._closed = self._is_ahead = self._has_upstream = False
        if self._downstream is not None:
            self._downstream.follow(None)
        with closed_on_error(self._store):
            self._restore()
        self._start_calls()

    @property
    def named_columns(self) -> list[str]:
        """The columns of the messages that have a role."""
        return role_columns(self.inputs[0])

    def follow(self, upstream: Exchange | None) -> None:
        """Take the watermark of an upstream, and pass on whether its panes may be retractions."""
        if upstream is not None and upstream.changes and not self.spec.ordered:
            raise SpecError(
                "the upstream retracts panes, and a retraction must come before its replacement."
                " Hint: ordered=True"
            )
        self._has_upstream = True
        self._watermark_tracker.follow()
        if self._downstream is not None:
            self._downstream.follow(upstream)

    def expect(self, schema: pa.Schema) -> None:
        """Take the columns of an upstream; the function decides those of the output."""

    # Input

    def add_message(
        self, message: Mapping[str, Any], *, now: Instant | None = None, input: int = 0
    ) -> None:
        """Add one message."""
        self.add_messages([message], now=now, input=input)

    def add_messages(self, messages: Any, *, now: Instant | None = None, input: int = 0) -> None:
        """Add a delivery, and wait until all its calls have started.

        At most `max_in_flight` messages are in flight at once.
        """
        self._check_open()
        given = input_of(self.inputs, input)
        table = arriving_table(messages, self._schemas.input, given.computed)
        self._watermark_tracker.tick(self._now(now))
        if table.num_rows:
            self._take(input, given, table)
        self._release_marks()
        while self._unstarted:
            self._run()
            if self._unstarted:
                self._take_replies(self._executor.replies(wait=True))
        self._finish_call()

    def _change_sources(self, change: Callable[[WatermarkTracker], object]) -> None:
        self._check_open()
        change(self._watermark_tracker)
        self._release_marks()
        self._finish_call()

    def timeout(self, now: Instant | None = None) -> None:
        """Advance or read the clock: take answers, offer refused results, detect idle sources."""
        self._check_not_closed()
        if self._downstream is not None:
            self._downstream.timeout(now)
        if not self._finished:
            self._watermark_tracker.tick(self._now(now))
            self._release_marks()
        self._finish_call()

    def finish(self) -> None:
        """End the input, and wait for the answers of all calls; idempotent."""
        if self._finished:
            return
        self._check_open()
        while self.pending:
            self._run()
            self._take_replies(self._executor.replies(wait=True))
        for number in range(len(self.inputs)):
            self._watermark_tracker.end(ordinal=number)
        self._release_marks()
        self._finished = True
        self._finish_call()

    # Output

    def get_result(self) -> AsyncResults:
        """A copy of the results; `flush` clears them."""
        self._check_not_closed()
        self._finish_call()
        items = [item for items in self._results.fetch() for item in items]
        return results_of(self._schemas, items)

    def flush(self) -> None:
        """Clear the returned results, and make pending messages, results, watermarks and offsets
        durable together.
        """
        self._check_not_closed()
        self._run()
        self._results.drop_fetched()
        self._save()

    def close(self) -> None:
        """Cancel the calls and close the store; state that was not flushed is lost."""
        self._closed = True
        try:
            self._executor.close()
        finally:
            self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Queries

    @property
    def finished(self) -> bool:
        """Whether the input has ended, also before a restart."""
        return self._finished

    @property
    def is_refusing(self) -> bool:
        """Whether input is refused because the downstream refuses results."""
        return self._results.is_refused

    def paused(self) -> list[PausedSource]:
        """The sources that are too far ahead of the slowest and should not be read for now."""
        return self._watermark_tracker.paused()

    @property
    def pending(self) -> int:
        """The number of messages without an answer."""
        return len(self._executor) + len(self._unstarted)

    def resume_offsets(self) -> ResumeOffsets:
        """By partition, the first offset to deliver after a restart; 0 before its first message.

        Pending messages are stored and called again, so they are not delivered again.
        """
        return self._ingest.marks.resume()

    def stats(self) -> dict[str, Any]:
        """Counters of messages, results, failures, retries, late rows, watermarks and pending."""
        marks, counts = self._watermark_tracker.stats(), self._counts()
        held = {
            "pending": self.pending,
            "in_flight": len(self._executor),
            "waiting": len(self._results.waiting),
            "lost_loops": self._executor.lost_loops,
        }
        return {
            **{name: counts[name] for name in _COUNTED},
            **marks,
            "late_by_reason": late_by_reason(counts),
            **held,
        }

    def explain_watermark(self) -> Explanation:
        """Why there is no output: pending calls, the watermarks behind them, and the sources that
        hold the watermark back.

        Printed it is sentences; `to_dict` returns the same as data. Answers that have arrived are
        counted, and not taken.
        """
        self._check_not_closed()
        refused = [item for items in self._results.waiting for item in items]
        waiting = [item for items in self._results.unfetched for item in items]
        return explain_calls(
            self._watermark_tracker,
            self._call_facts(),
            {key: self._has_ticks(columns) for key, columns in self._columns().items()},
            self._counts(),
            newest=None if self._progress.newest == MIN else self._progress.newest,
            is_finished=self._finished,
            has_upstream=self._has_upstream,
            future_tolerance=self._options.future_tolerance,
            future_reference=self._options.future_reference,
            machine_clock=self._clock.at(None, 0) if self._clock.is_read else None,
            waiting_results=count_rows(waiting, "rows"),
            waiting_marks=len(marks_of(waiting)),
            waiting_late=count_rows(waiting, "late"),
            refused_rows=count_rows(refused, "rows") + count_rows(refused, "late"),
            refused_marks=len(marks_of(refused)),
            is_refused=self._results.is_refused,
        )

    def _counts(self) -> dict[str, int]:
        """The counters for users: `events` are all messages, including markers; `unreadable` are
        events without a readable time.
        """
        counters = self._progress.counters
        return {
            **{name: n for name, n in counters.items() if name.startswith("reason.")},
            **{name: counters[name] for name in (*_COUNTED, "future")},
            "events": counters["events"] + counters["markers"],
            "unreadable": counters["untimed"],
        }

    def _call_facts(self) -> CallFacts:
        marks, oldest = self._queue.waiting(), self._executor.oldest()
        listed = waiting_marks(marks)
        return CallFacts(
            pending=self.pending,
            untaken=self._executor.untaken,
            in_flight=len(self._executor),
            max_in_flight=self.spec.max_in_flight,
            answered=len(self._queue) - self.pending,
            is_ordered=self.spec.ordered,
            limit=self.spec.limit,
            oldest=None if oldest is None else dict(oldest[0]),
            oldest_for=None if oldest is None else int(oldest[1] * 1_000_000),
            marks=listed,
            more_marks=len(marks) - len(listed),
            error=self._error,
            lost_loops=self._executor.lost_loops,
        )

    def _columns(self) -> dict[int, list[TimeColumn]]:
        """The time columns of all inputs by watermark key, the first input first."""
        found: dict[int, list[TimeColumn]] = {}
        for given in self.inputs:
            for column in given.times:
                found.setdefault(column.key, []).append(column)
        return found

    def _has_ticks(self, columns: list[TimeColumn]) -> bool:
        """Whether times are plain numbers; those of a watermark that follows the clock are not."""
        schema = self._schemas.input
        seen = [
            column.column
            for column in columns
            if schema is not None and column.column in schema.names
        ]
        if schema is None or not seen:
            return not any(isinstance(column.watermark, Lagging) for column in columns)
        return is_ticks(schema.field(seen[0]).type)

    # Ingest

    def _take(self, number: int, given: Input, table: pa.Table) -> None:
        """Ingest a delivery and submit its rows; a refused delivery changes nothing."""
        _check_columns(given, table.schema)
        schema = widened(self._schemas.input, bindable(table.schema))
        # The number of an input tells its partitions apart from those of other inputs.
        reader = DeliveryReader(
            replace(given, key=()),
            prefix=f"{number}/" if len(self.inputs) > 1 else "",
            reads_time=False,
        )
        tracker, key = self._watermark_tracker, given.watermark_key
        limit, watermark = tracker.limit(key), tracker.output(key)
        hooks = IngestHooks(_LateTables(self._late), partial(self._observe, number), _no_ids)
        events = self._ingest.take(table, reader, schema, hooks).events.table
        self._schemas.bind(schema)
        rows, unreadable, errors = python_rows(events)
        self._observe_times(given, events, limit, watermark)
        self._late(unreadable, "bad_value", pa.array(errors, pa.string()))
        self._unstarted.extend((self._queue.submit(row), row) for row in rows)

    def _observe(self, number: int, new: Delivery) -> None:
        """Let the watermark tracker observe the rows that have no broken value."""
        table = new.where(whole_rows(new)).table
        self._watermark_tracker.observe_table(
            number, table.drop_columns([BROKEN]) if BROKEN in table.column_names else table
        )

    def _observe_times(self, given: Input, events: pa.Table, limit: int, watermark: int) -> None:
        """Count the newest event and those from the future, for explanations."""
        if given.time is None or given.watermark_key != self.inputs[0].watermark_key:
            return
        times, verdict = read_times(events.column(given.time), given.time)
        self._progress.counters["untimed"] += int((verdict != OK).sum())
        times = times[verdict == OK]
        future = (times > limit) & (times >= watermark)
        self._progress.counters["future"] += int(future.sum())
        newest = int(times[~future].max(initial=MIN))
        self._progress.newest = max(self._progress.newest, newest)

    def _release_marks(self) -> None:
        """Queue the released marks behind the rows that arrived before."""
        for mark in self._watermark_tracker.release().coalesced:
            self._queue.mark(mark)

    # Calls

    def _start_calls(self) -> None:
        """Start calls while there are free slots.

        An answer that waits for earlier ones keeps its slot, which bounds the number of such
        answers.
        """
        free = self.spec.max_in_flight - (len(self._queue) - len(self._unstarted))
        self._executor.start(
            dict(self._unstarted.popleft() for _ in range(min(free, len(self._unstarted))))
        )

    def _take_replies(self, replies: list[Reply]) -> None:
        """Take replies; an answer that no table can hold is a failure."""
        self._progress.counters["retried"] += sum(reply.attempts - 1 for reply in replies)
        fits = table_error([row for reply in replies for row in reply.results or []]) is None
        for reply in replies:
            error = (
                reply.error if fits or reply.error is not None else table_error(reply.results or [])
            )
            if error is not None:
                self._queue.fail(reply.ticket, error)
            else:
                self._progress.counters["filtered"] += not reply.results
                self._queue.complete(reply.ticket, reply.results or [])

    def _run(self) -> None:
        """Take replies, release results, start calls in free slots, and offer the results."""
        self._take_replies(self._executor.replies())
        self._release_results()
        self._start_calls()
        self._offer()

    def _finish_call(self) -> None:
        """End a call; results that the downstream accepted must not be emitted again."""
        self._run()
        if self._is_ahead:
            self._save()

    # Results

    def _release_results(self) -> None:
        leaving: list[pa.Table | FailedCall | Mark] = []
        for item in self._queue.release():
            leaving += (
                self._schemas.to_tables(item.answers) if isinstance(item, AnswerBatch) else [item]
            )
        for kind, group in groupby(leaving, key=kind_of):
            found: list[Any] = list(group)
            if kind == "late":
                self._progress.counters["failed"] += len(found)
                self._error = found[-1].error
                rows = pa.Table.from_pylist(
                    [failed.row for failed in found], schema=self._schemas.input
                )
                errors = pa.array([failed.error for failed in found], pa.string())
                self._late(rows, "async_failed", errors)
            elif kind == "mark":
                self._put([("mark", mark) for mark in found])
            else:
                for table in found:
                    self._progress.counters["results"] += table.num_rows
                    self._put([("rows", table)])

    def _late(self, rows: pa.Table, reason: str, details: pa.Array) -> None:
        if rows.num_rows:
            self._progress.counters["late_rows"] += rows.num_rows
            self._progress.counters[f"reason.{reason}"] += rows.num_rows
            self._put([("late", late_table(rows, reason, details))])

    def _put(self, items: ResultItems) -> None:
        # A downstream operator takes rows and marks only, so late rows are to be fetched.
        self._results.put(items, stays=self._downstream is not None and items[0][0] == "late")

    def _offer(self) -> None:
        """Offer the results in order, and then the end of the input."""
        self._is_ahead |= self._results.offer() > 0
        if (
            self._finished
            and not self._results.is_refused
            and self._downstream is not None
            and not self._downstream.finished
        ):
            self._results.is_refused = self._downstream.is_refusing
            if not self._results.is_refused:
                self._downstream.finish()
                self._is_ahead = True

    def _accepts(self, items: ResultItems) -> bool:
        if self._consumer is not None:
            return self._consumer(results_of(self._schemas, items)) is not False
        if self._downstream is None or self._downstream.is_refusing:
            return False
        if items[0][0] == "rows":
            self._downstream.add_messages(
                items[0][1], now=None if self._clock.is_read else self._watermark_tracker.now
            )
        else:
            self._downstream.take_marks(marks_of(items))
        return True

    # Snapshots

    def _save(self) -> None:
        """Make everything durable; the downstream first, since its input is dropped here."""
        if self._downstream is not None:
            self._downstream.flush()
        saved = self._queue.save()
        self._store.delete_prefix(f"{_NAME}/")
        results = (
            [saved.results]
            if table_error(saved.results) is None
            else [[row] for row in saved.results]
        )
        tables: dict[str, list[pa.Table]] = {
            "pending": (
                []
                if self._schemas.input is None
                else [pa.Table.from_pylist(saved.rows, schema=self._schemas.input)]
            ),
            "results": [to_table(rows, None) for rows in results],
            "items": [],
        }
        document = {
            "format": FORMAT,
            "spec": self._spec_document(),
            "watermark_tracker": self._watermark_tracker.save(),
            "progress": self._progress.to_json(),
            "offsets": self._ingest.marks.marks,
            "pending": saved.document,
            "schemas": self._schemas.save(),
            "waiting": [
                [item_to_json(item, tables["items"]) for item in items]
                for items in (*self._results.waiting, *self._results.kept)
            ],
            "finished": self._finished,
        }
        for kind, found in tables.items():
            for number, table in enumerate(found):
                self._store.put_table(f"{_NAME}/{kind}/{number:08d}", table)
        self._store.put_json(_NAME, document)
        self._store.commit()
        self._is_ahead = False

    def _restore(self) -> None:
        document = self._store.get_json(_NAME)
        if document is None:
            return
        if document.get("format") != FORMAT:
            raise CorruptStateError(
                f"state of format {document.get('format')!r} cannot be read; this version reads"
                f" format {FORMAT}"
            )
        check_same(document["spec"], self._spec_document())
        self._watermark_tracker.restore(document["watermark_tracker"])
        self._progress.restore(document["progress"])
        self._ingest.marks.marks = dict(document["offsets"])
        self._schemas.restore(document["schemas"])
        rows, results, items = (
            [self._store.get_table(name) for name in self._store.names(f"{_NAME}/{kind}/")]
            for kind in ("pending", "results", "items")
        )
        self._queue.restore(QueueSnapshot(document["pending"], rows_of(rows), rows_of(results)))
        self._unstarted.extend((call.ticket, call.row) for call in self._queue.unanswered())
        stored = iter(items)
        for found in document["waiting"]:
            self._put([item_from_json(item, stored) for item in found])
        self._finished = document["finished"]
        self._results.is_refused = bool(self._results.waiting)

    def _spec_document(self) -> dict[str, Any]:
        """The JSON form of the specification that stored state depends on."""
        return {**self.spec.to_dict(), "inputs": [given.to_dict() for given in self.inputs]}

    def _now(self, now: Instant | None) -> int:
        clock = self._clock.at(now, self._watermark_tracker.now)
        # A jump of the clock is no silence of the sources.
        if skipped := self._clock.skipped():
            self._watermark_tracker.shift(skipped)
        return clock

    def _check_open(self) -> None:
        self._check_not_closed()
        if self._finished:
            raise InputError("the operator is finished and takes no more input")
        self._results.check()

    def _check_not_closed(self) -> None:
        if self._closed:
            raise StateError("the async map is closed. Hint: open a new one on its store")


@dataclass(frozen=True, slots=True)
class _LateTables:
    """The late output of ingest, as tables of an async map."""

    put: Callable[[pa.Table, str, pa.Array], None]

    def late_rows(
        self,
        delivery: Delivery,
        index: np.ndarray,
        reason: str,
        lateness: pa.Array,  # noqa: ARG002 - an async map has no lateness classes
        windows: Windows | None = None,  # noqa: ARG002 - and no windows
        detail: str | pa.Array = "",
    ) -> None:
        details = texts(detail, len(index)) if isinstance(detail, str) else detail
        self.put(delivery.table.take(pa.array(index)), reason, details)


def _no_ids(delivery: Delivery) -> np.ndarray:
    """Ids do not expire here: an async map finds duplicates by offset alone."""
    return np.full(len(delivery), MAX)


def _check_columns(given: Input, schema: pa.Schema) -> None:
    DeliveryReader(given).check(schema)
    for other in given.others:
        DeliveryReader(given.on(str(other.column))).check(schema)


def _check_order(spec: AsyncMap, target: Downstream | None) -> None:
    """Raise `SpecError` if the downstream would drop results out of order as duplicates."""
    named = (
        [given.offset for given in target.inputs if given.offset is not None]
        if target is not None
        else []
    )
    if named and not spec.ordered:
        raise SpecError(
            f"the downstream finds duplicates by the offsets in `{named[0]}`, and would drop"
            " results that are out of order. Hint: ordered=True, or no `offset=` downstream"
        )

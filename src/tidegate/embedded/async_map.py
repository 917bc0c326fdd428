"""The embedded async map: calls a coroutine function for every message, and lets neither answers
nor watermarks leave in a wrong order.

Only `add_messages` waits, for free slots, and `finish`, for all answers; every other call takes
what has come. Standalone, `get_result` returns a copy of the results that wait and `flush` clears
those that were returned. With a downstream, results are offered to it in their order; while it
refuses, input is refused too, and `timeout` offers again. A store makes what is pending, waiting
and known durable together: after a crash, rows without an answer are called again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Any, Self

import numpy as np
import pyarrow as pa

from tidegate.embedded.async_executor import AsyncExecutor, Reply
from tidegate.embedded.async_rows import (
    AsyncResults,
    Forms,
    Pieces,
    count_rows,
    kind_of,
    late_table,
    marks_of,
    readable,
    reread,
    rows_of,
    unfit,
    written,
)
from tidegate.embedded.clock import Clock
from tidegate.embedded.result_queue import Downstream, ResultQueue
from tidegate.embedded.rows import to_table
from tidegate.embedded.source_control import SourceControl
from tidegate.errors import CorruptStateError, InputError, SpecError, StateError
from tidegate.instants import MAX, MIN, Instant
from tidegate.kernel.events.event_time import OK, is_ticks, read_times
from tidegate.kernel.watermarks.marks import Mark
from tidegate.operators.aggregate.migration import check_same
from tidegate.operators.async_map.queue import Failed, Row, Rows, Saved, pending
from tidegate.operators.explain.explanation import explain_calls, waiting_marks
from tidegate.operators.explain.facts import CallFacts, Explanation
from tidegate.operators.ingest.delivery import Delivery, DeliveryReader
from tidegate.operators.ingest.ingest import Ingest, IngestHooks, Windows, whole_rows
from tidegate.operators.ingest.schema_cast import BROKEN, bindable, widened
from tidegate.operators.ingest.watermark_tracking import PausedSource, WatermarkTracker
from tidegate.operators.output import texts
from tidegate.operators.progress import Progress, late_by_reason
from tidegate.spec.async_map import AsyncMap
from tidegate.spec.join import Upstream
from tidegate.spec.operator import Input, Options, TimeColumn, input_of
from tidegate.spec.watermarks import Lagging
from tidegate.state.memory import MemoryStore
from tidegate.state.store import Store

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
                "an async map recognises duplicates by `offset=` and not by `id=`. Hint: name the"
                " id in the downstream's stream"
            )
        self.inputs = tuple(inputs)
        self.spec = spec
        self._accept: Consumer | None = downstream if callable(downstream) else None
        self._target: Downstream | None = (
            None if downstream is None or callable(downstream) else downstream
        )
        _check_order(spec, self._target)
        self._store = MemoryStore() if store is None else store
        self._clock = Clock(now)
        self._options = options or Options()
        self._intake = WatermarkTracker(self.inputs, self._options, now=self._clock.start)
        self._progress = Progress(now=self._clock.start)
        self._ingest = Ingest(self.inputs, self._store, self._progress)
        self._forms = Forms()
        self._pending = pending(ordered=spec.ordered)
        self._calls = AsyncExecutor(spec)
        self._unstarted: deque[tuple[int, Row]] = deque()
        self._outlet: ResultQueue[Pieces] = ResultQueue(
            None if downstream is None else self._accepts
        )
        self._error = ""
        """Why the last call that failed did so."""
        self._finished = self._closed = self._is_ahead = self._has_upstream = False
        if self._target is not None:
            self._target.follow(None)
        self._restore()
        self._begin()

    def follow(self, upstream: Upstream | None) -> None:
        """Take the watermark of an upstream; if that is a window, let the downstream know that
        panes may be retractions.
        """
        if upstream is not None and upstream.mode == "retracting" and not self.spec.ordered:
            raise SpecError(
                "the upstream retracts panes, and a retraction must not come after what replaces"
                " it. Hint: ordered=True"
            )
        self._has_upstream = True
        self._intake.follow()
        if self._target is not None:
            self._target.follow(upstream)

    # Input

    def add_message(
        self, message: Mapping[str, Any], *, now: Instant | None = None, input: int = 0
    ) -> None:
        """Take one message."""
        self.add_messages([message], now=now, input=input)

    def add_messages(self, messages: Any, *, now: Instant | None = None, input: int = 0) -> None:
        """Take a delivery, and wait until all its calls are under way: at most `max_in_flight`
        messages are on their way through.
        """
        self._check_open()
        given = input_of(self.inputs, input)
        table = to_table(messages, self._forms.input)
        self._intake.tick(self._clock.at(now, self._intake.now))
        if table.num_rows:
            self._take(input, given, table)
        self._mark()
        while self._unstarted:
            self._pump()
            if self._unstarted:
                self._hear(self._calls.replies(wait=True))
        self._deliver()

    def _change_sources(self, change: Callable[[WatermarkTracker], object]) -> None:
        self._check_open()
        change(self._intake)
        self._mark()
        self._deliver()

    def timeout(self, now: Instant | None = None) -> None:
        """Tell the clock (or let it be read): takes answers, offers again what was refused, and
        looks which sources fell silent.
        """
        self._check_not_closed()
        if self._target is not None:
            self._target.timeout(now)
        if not self._finished:
            self._intake.tick(self._clock.at(now, self._intake.now))
            self._mark()
        self._deliver()

    def finish(self) -> None:
        """End the input: waits until every call has its answer, and nothing is left. To end it
        again changes nothing.
        """
        if self._finished:
            return
        self._check_open()
        while self.pending:
            self._pump()
            self._hear(self._calls.replies(wait=True))
        for number in range(len(self.inputs)):
            self._intake.end(ordinal=number)
        self._mark()
        self._finished = True
        self._deliver()

    # Output

    def get_result(self) -> AsyncResults:
        """A copy of the results that wait; they wait on until `flush`."""
        self._check_not_closed()
        self._deliver()
        return self._forms.results([piece for pieces in self._outlet.fetch() for piece in pieces])

    def flush(self) -> None:
        """Clear the results that were returned, and make what is pending, what waits, watermarks
        and offsets durable together.
        """
        self._check_not_closed()
        self._pump()
        self._outlet.drop_fetched()
        self._save()

    def close(self) -> None:
        """Cancel what runs and let go of the store; what was not flushed is gone."""
        self._closed = True
        try:
            self._calls.close()
        finally:
            self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # What can be asked

    @property
    def finished(self) -> bool:
        """Whether the input has ended, be it before a restart."""
        return self._finished

    @property
    def is_refusing(self) -> bool:
        """Whether input is refused because the downstream refuses results."""
        return self._outlet.is_refused

    def paused(self) -> list[PausedSource]:
        """The sources that run too far ahead of the slowest and should not be read for now."""
        return self._intake.paused()

    @property
    def pending(self) -> int:
        """How many messages have no answer yet."""
        return len(self._calls) + len(self._unstarted)

    def resume_offsets(self) -> dict[str, int]:
        """By partition, the first offset to deliver after a restart: what is pending was taken, and
        is called again by itself.
        """
        return {name: mark + 1 for name, mark in self._ingest.marks.marks.items()}

    def stats(self) -> dict[str, Any]:
        """What is held and what was counted: messages, results, failures, attempts after the first,
        late rows by reason, watermarks.
        """
        marks, counts = self._intake.stats(), self._counts()
        held = {
            "pending": self.pending,
            "in_flight": len(self._calls),
            "waiting": len(self._outlet.waiting),
            "lost_loops": self._calls.lost_loops,
        }
        return {
            **{name: counts[name] for name in _COUNTED},
            **marks,
            "late_by_reason": late_by_reason(counts),
            **held,
        }

    def explain_watermark(self) -> Explanation:
        """Why there is no output: which watermarks wait behind messages without an answer, how long
        calls may take, and who holds back.

        Print it to read sentences; `to_dict` gives the same as data. Answers that have come are
        counted, and not taken.
        """
        self._check_not_closed()
        refused = [piece for pieces in self._outlet.waiting for piece in pieces]
        waiting = [piece for pieces in self._outlet.unfetched for piece in pieces]
        return explain_calls(
            self._intake,
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
            is_refused=self._outlet.is_refused,
        )

    def _counts(self) -> dict[str, int]:
        """The counters as users see them: `events` are all messages, with markers; `unreadable`
        are events without a readable time.
        """
        counters = self._progress.counters
        return {
            **{name: n for name, n in counters.items() if name.startswith("reason.")},
            **{name: counters[name] for name in (*_COUNTED, "future")},
            "events": counters["events"] + counters["markers"],
            "unreadable": counters["untimed"],
        }

    def _call_facts(self) -> CallFacts:
        marks, oldest = self._pending.waiting(), self._calls.oldest()
        told = waiting_marks(marks)
        return CallFacts(
            pending=self.pending,
            untaken=self._calls.untaken,
            in_flight=len(self._calls),
            max_in_flight=self.spec.max_in_flight,
            answered=len(self._pending) - self.pending,
            is_ordered=self.spec.ordered,
            limit=self.spec.limit,
            oldest=None if oldest is None else dict(oldest[0]),
            oldest_for=None if oldest is None else int(oldest[1] * 1_000_000),
            marks=told,
            more_marks=len(marks) - len(told),
            error=self._error,
            lost_loops=self._calls.lost_loops,
        )

    def _columns(self) -> dict[int, list[TimeColumn]]:
        """The time columns of all inputs by watermark key, that of the first input first."""
        found: dict[int, list[TimeColumn]] = {}
        for given in self.inputs:
            for column in given.times:
                found.setdefault(column.key, []).append(column)
        return found

    def _has_ticks(self, columns: list[TimeColumn]) -> bool:
        """Whether times are plain numbers; a watermark that follows the clock is none."""
        schema = self._forms.input
        seen = [
            column.column
            for column in columns
            if schema is not None and column.column in schema.names
        ]
        if schema is None or not seen:
            return not any(isinstance(column.watermark, Lagging) for column in columns)
        return is_ticks(schema.field(seen[0]).type)

    # Taking a delivery

    def _take(self, number: int, given: Input, table: pa.Table) -> None:
        """Nothing is counted or pending when a delivery is refused."""
        _check_columns(given, table.schema)
        schema = widened(self._forms.input, bindable(table.schema))
        # The number of an input tells its partitions apart from those of other inputs.
        reader = DeliveryReader(
            replace(given, key=()),
            prefix=f"{number}/" if len(self.inputs) > 1 else "",
            reads_time=False,
        )
        tracker, key = self._intake, given.watermark_key
        limit, watermark = tracker.limit(key), tracker.output(key)
        hooks = IngestHooks(self, partial(self._observe, number), _no_ids)
        events = self._ingest.take(table, reader, schema, hooks).events.table
        self._forms.input = schema
        rows, unreadable, errors = readable(events)
        self._note_times(given, events, limit, watermark)
        self._late(unreadable, "bad_value", pa.array(errors, pa.string()))
        self._unstarted.extend((self._pending.submit(row), row) for row in rows)

    def _observe(self, number: int, new: Delivery) -> None:
        """Let the watermark tracker observe the rows that have no broken value."""
        table = new.where(whole_rows(new)).table
        self._intake.observe_table(
            number, table.drop_columns([BROKEN]) if BROKEN in table.column_names else table
        )

    def late_rows(
        self,
        delivery: Delivery,
        index: np.ndarray,
        reason: str,
        lateness: pa.Array,  # noqa: ARG002 - an async map has no lateness classes
        windows: Windows | None = None,  # noqa: ARG002 - and no windows
        detail: str | pa.Array = "",
    ) -> None:
        """Send rows to the late output."""
        self._late(
            delivery.table.take(pa.array(index)),
            reason,
            texts(detail, len(index)) if isinstance(detail, str) else detail,
        )

    def _note_times(self, given: Input, events: pa.Table, limit: int, watermark: int) -> None:
        """Remember what explains a watermark that follows events: the newest of them, and those
        from the future, which do not move it.
        """
        if given.time is None or given.watermark_key != self.inputs[0].watermark_key:
            return
        times, verdict = read_times(events.column(given.time), given.time)
        self._progress.counters["untimed"] += int((verdict != OK).sum())
        times = times[verdict == OK]
        future = (times > limit) & (times >= watermark)
        self._progress.counters["future"] += int(future.sum())
        newest = int(times[~future].max(initial=MIN))
        self._progress.newest = max(self._progress.newest, newest)

    def _mark(self) -> None:
        """Put what the inputs promise behind the rows that came before."""
        for mark in self._intake.release().coalesced:
            self._pending.mark(mark)

    # AsyncExecutor

    def _begin(self) -> None:
        """Start calls while there are slots. An answer that has to wait for earlier ones keeps its
        slot, so that few can wait.
        """
        free = self.spec.max_in_flight - (len(self._pending) - len(self._unstarted))
        self._calls.start(
            dict(self._unstarted.popleft() for _ in range(min(free, len(self._unstarted))))
        )

    def _hear(self, replies: list[Reply]) -> None:
        """Take replies; an answer that no table can hold is a failure."""
        self._progress.counters["retried"] += sum(reply.attempts - 1 for reply in replies)
        fits = unfit([row for reply in replies for row in reply.results or []]) is None
        for reply in replies:
            error = reply.error if fits or reply.error is not None else unfit(reply.results or [])
            if error is not None:
                self._pending.fail(reply.ticket, error)
            else:
                self._progress.counters["filtered"] += not reply.results
                self._pending.complete(reply.ticket, reply.results or [])

    def _pump(self) -> None:
        """Take what has come, let out what may leave, use the slots that are free, and offer."""
        self._hear(self._calls.replies())
        self._release()
        self._begin()
        self._offer()

    def _deliver(self) -> None:
        """The end of every call: what was accepted downstream must not come again."""
        self._pump()
        if self._is_ahead:
            self._save()

    # Results

    def _release(self) -> None:
        leaving: list[pa.Table | Failed | Mark] = []
        for item in self._pending.release():
            leaving += self._forms.rendered(item.answers) if isinstance(item, Rows) else [item]
        for kind, group in groupby(leaving, key=kind_of):
            found: list[Any] = list(group)
            if kind == "late":
                self._progress.counters["failed"] += len(found)
                self._error = found[-1].error
                rows = pa.Table.from_pylist(
                    [failed.row for failed in found], schema=self._forms.input
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

    def _put(self, pieces: Pieces) -> None:
        # An operator takes rows and marks only, so late rows stay for whoever fetches them.
        self._outlet.put(pieces, stays=self._target is not None and pieces[0][0] == "late")

    def _offer(self) -> None:
        """Offer what waits, one piece after the other, and then the end."""
        self._is_ahead |= self._outlet.offer() > 0
        if (
            self._finished
            and not self._outlet.is_refused
            and self._target is not None
            and not self._target.finished
        ):
            self._outlet.is_refused = self._target.is_refusing
            if not self._outlet.is_refused:
                self._target.finish()
                self._is_ahead = True

    def _accepts(self, pieces: Pieces) -> bool:
        if self._accept is not None:
            return self._accept(self._forms.results(pieces)) is not False
        if self._target is None or self._target.is_refusing:
            return False
        if pieces[0][0] == "rows":
            self._target.add_messages(
                pieces[0][1], now=None if self._clock.is_read else self._intake.now
            )
        else:
            self._target.take_marks(marks_of(pieces))
        return True

    # Snapshots

    def _save(self) -> None:
        """Make everything durable, what is downstream first: its input must not be forgotten here
        before it is safe there.
        """
        if self._target is not None:
            self._target.flush()
        saved = self._pending.save()
        self._store.delete_prefix(f"{_NAME}/")
        results = (
            [saved.results] if unfit(saved.results) is None else [[row] for row in saved.results]
        )
        tables: dict[str, list[pa.Table]] = {
            "pending": (
                []
                if self._forms.input is None
                else [pa.Table.from_pylist(saved.rows, schema=self._forms.input)]
            ),
            "results": [to_table(rows, None) for rows in results],
            "pieces": [],
        }
        document = {
            "format": FORMAT,
            "spec": self._form(),
            "watermark_tracker": self._intake.save(),
            "progress": self._progress.to_json(),
            "offsets": self._ingest.marks.marks,
            "pending": saved.document,
            "schemas": self._forms.save(),
            "waiting": [
                [written(piece, tables["pieces"]) for piece in pieces]
                for pieces in (*self._outlet.waiting, *self._outlet.kept)
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
        check_same(document["spec"], self._form())
        self._intake.restore(document["watermark_tracker"])
        self._progress.restore(document["progress"])
        self._ingest.marks.marks = dict(document["offsets"])
        self._forms.restore(document["schemas"])
        rows, results, pieces = (
            [self._store.get_table(name) for name in self._store.names(f"{_NAME}/{kind}/")]
            for kind in ("pending", "results", "pieces")
        )
        self._pending.restore(Saved(document["pending"], rows_of(rows), rows_of(results)))
        self._unstarted.extend((call.ticket, call.row) for call in self._pending.unanswered())
        stored = iter(pieces)
        for found in document["waiting"]:
            self._put([reread(piece, stored) for piece in found])
        self._finished = document["finished"]
        self._outlet.is_refused = bool(self._outlet.waiting)

    def _form(self) -> dict[str, Any]:
        """The JSON form of what stored state depends on."""
        return {**self.spec.to_dict(), "inputs": [given.to_dict() for given in self.inputs]}

    # Inside

    def _check_open(self) -> None:
        self._check_not_closed()
        if self._finished:
            raise InputError("the operator is finished and takes no more input")
        self._outlet.check()

    def _check_not_closed(self) -> None:
        if self._closed:
            raise StateError("the async map is closed. Hint: open a new one on its store")


def _no_ids(delivery: Delivery) -> np.ndarray:
    """Ids do not expire here: an async map finds duplicates by offset alone."""
    return np.full(len(delivery), MAX)


def _check_columns(given: Input, schema: pa.Schema) -> None:
    names = schema.names
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(
            "the columns of a message have different names, got"
            f" {', '.join(f'`{name}`' for name in twice)} more than once"
        )
    DeliveryReader(given).check(schema)
    for other in given.others:
        DeliveryReader(given.on(str(other.column))).check(schema)


def _check_order(spec: AsyncMap, target: Downstream | None) -> None:
    """Refuse what would look like duplicates: offsets that come in another order than they were
    given.
    """
    named = (
        [given.offset for given in target.inputs if given.offset is not None]
        if target is not None
        else []
    )
    if named and not spec.ordered:
        raise SpecError(
            f"the downstream recognises duplicates by the offsets in `{named[0]}`, and results out"
            " of order would look like some. Hint: ordered=True, or no `offset=` downstream"
        )

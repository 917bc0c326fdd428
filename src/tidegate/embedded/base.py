"""Base class of embedded operators: input by method calls, results in a queue, durable state.

Without a downstream, `get_result` returns a copy of the queued results and `flush` removes those
that were returned. With a downstream, results are offered to it; while it refuses them, the
operator refuses input, and `timeout` offers them again. Calls may come from several threads: each
is made alone, and operators that feed each other are one in this.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self, TypeVar

import numpy as np
import pyarrow as pa

from tidegate.embedded.clock import Clock
from tidegate.embedded.exclusive import exclusive, lock_of
from tidegate.embedded.mapped_inputs import MappedInputs
from tidegate.embedded.projected_inputs import ProjectedInputs
from tidegate.embedded.recording import DEFAULT_BYTES, Recording
from tidegate.embedded.result_queue import Downstream, ResultQueue
from tidegate.embedded.source_control import SourceControl
from tidegate.errors import InputError, SpecError
from tidegate.html import fields_html
from tidegate.instants import MIN, Instant
from tidegate.kernel.events.duplicates import ResumeOffsets
from tidegate.kernel.watermarks.marks import Mark
from tidegate.operators import snapshot
from tidegate.operators.aggregate.operator import WindowedAggregate
from tidegate.operators.chain import (
    Operator,
    OutputProgress,
    named_columns,
    render,
    with_columns,
)
from tidegate.operators.explain.brief import brief, fields
from tidegate.operators.explain.facts import Explanation, time_text
from tidegate.operators.ingest.computed_columns import arriving_table, with_computed_columns
from tidegate.operators.ingest.delivery import Arrival
from tidegate.operators.ingest.watermark_tracking import PausedSource, WatermarkTracker
from tidegate.operators.join.operator import WindowedJoin
from tidegate.operators.output import Output
from tidegate.operators.results import Results
from tidegate.operators.status import QueryStatus, embedded_status
from tidegate.spec.composition import Exchange, composed, exchanged
from tidegate.spec.join import Upstream
from tidegate.spec.operator import Input, input_of
from tidegate.state.memory import MemoryStore
from tidegate.state.store import Store, closed_on_error

Spec = TypeVar("Spec", bound=Upstream)
Consumer = Callable[[Results], "bool | None"]
"""A function that takes results; it refuses them by returning False."""


class EmbeddedBase(SourceControl):
    """One operator in this process; a subclass creates it."""

    operator: Operator

    def _open(
        self,
        store: Store | None,
        downstream: Consumer | Downstream | None,
        now: int | None,
        spec: Spec,
        history: int = DEFAULT_BYTES,
    ) -> Spec:
        """Set up everything but the operator; returns the specification that it runs with.

        An operator that feeds another one passes on changes, whatever its mode.
        """
        if downstream is not None and not callable(downstream):
            spec = exchanged(spec)
            downstream.follow(composed(spec, {}))
        self.lock = lock_of(downstream)
        """Held during every call; operators that feed each other share it."""
        # Arrow imports pandas when it first meets NumPy: do it here, not with the first message.
        pa.array(np.zeros(1, np.int64)).to_numpy()
        self._store = MemoryStore() if store is None else store
        self._clock = Clock(now)
        self._consumer: Consumer | None = downstream if callable(downstream) else None
        self._downstream: Downstream | None = None if callable(downstream) else downstream
        self._queue: ResultQueue[Results] = ResultQueue(
            None if downstream is None else self._accepts
        )
        self._forwarded: OutputProgress | None = None
        """The progress that the downstream has; None if unknown, as after a restart."""
        self._announced = False
        """Whether the downstream has the columns of the output."""
        self._awaited: list[str] = []
        """The columns that the downstream reads and no stream of a join has brought so far."""
        self._finished = False
        self._ended: set[int] = set()
        self._saved_windows = (0, 0)
        """Windows opened and closed when the state was last saved."""
        self._maps = MappedInputs(spec.inputs)
        self._projected = ProjectedInputs(spec.inputs)
        self._recording = Recording(history)
        return spec

    def _restore(self) -> None:
        """Restore the state that the store holds, if any."""
        with closed_on_error(self._store):
            if snapshot.restore(self.operator):
                self._finished = self._store.get_json("finished", False)
                self._ended = set(self._store.get_json("ended", []))
                self._restore_queue()

    def _drain(self) -> None:
        """Process buffered messages, so that buffering stays invisible."""

    def follow(self, upstream: Exchange | None, *, input: int | None = None) -> None:
        """Take the watermark from an upstream operator, for one input or for all.

        Rows of the upstream may be retractions, and windows are kept as long as these may come.
        Raises `SpecError` where the chain has no answer; see `spec.composition`.
        """
        self.operator.follow(upstream, input)
        if self._downstream is not None:
            self._downstream.follow(self.operator.exchange)

    def expect(self, schema: pa.Schema, *, input: int | str = 0) -> None:
        """Take the columns of an input before its first rows."""
        ordinal = self.ordinal(input)
        computed = input_of(self.inputs, ordinal).arrival.computed
        schema = with_computed_columns(schema.empty_table(), computed).schema
        self.operator.expect(self._projected.schema(ordinal, schema), ordinal)

    def port(self, input: int | str) -> Port:
        """One input, by number or by name, as the `downstream` of another operator."""
        ordinal = self.ordinal(input)
        input_of(self.inputs, ordinal)
        return Port(self, ordinal)

    @property
    def finished(self) -> bool:
        """Whether the input has ended, possibly before a restart."""
        return self._finished

    @property
    def ended(self) -> frozenset[int]:
        """The inputs that have ended."""
        return frozenset(self._ended)

    @property
    def named_columns(self) -> list[str]:
        """The columns of the first input that the specification names."""
        return named_columns(self.operator.spec, 0)

    # Input

    def add_messages(
        self, messages: Any, *, now: Instant | None = None, input: int | str = 0
    ) -> None:
        """Process a delivery: an Arrow table or batch, a pandas frame, or a list of dictionaries.

        `now` is the clock at its arrival. Behind an async map, the call waits for all answers.
        """
        self._check_open()
        self._drain()
        self._process([(self.ordinal(input), messages)], now)

    def _process(self, given: Sequence[tuple[int, Any]], now: Instant | None) -> None:
        """Process a delivery of several inputs, through their async maps."""
        clock = self._now(now)
        arrivals = [
            Arrival(
                ordinal,
                arriving_table(
                    messages,
                    self._expected(ordinal),
                    input_of(self.inputs, ordinal).arrival.computed,
                ),
            )
            for ordinal, messages in given
        ]
        mapped = self._maps.run(self.operator, arrivals)
        rows, observed = self._projected.run(self.operator, mapped.arrivals, mapped.observed)
        self._recording.deliver(rows)
        output = self.operator.process_all(rows, clock, observed=observed)
        failed = mapped.late(self.operator)
        for results in failed:
            self._put(results)
        self._emit(output, failed)

    def _expected(self, ordinal: int) -> pa.Schema | None:
        """The columns of the messages of an input, as far as they are known."""
        given = input_of(self.inputs, ordinal)
        if given.projections and given.mapped is None:
            return self._projected.expected(ordinal)
        return self._maps.expected(self.operator, ordinal)

    def end_input(self, *, input: int | str = 0, partition: str | None = None) -> None:
        """End a partition or a whole input; after the last one, `finish` fires the rest."""
        super().end_input(input=input, partition=partition)
        if partition is None:
            self._ended.add(self.ordinal(input))

    def _change_sources(self, change: Callable[[WatermarkTracker], object]) -> None:
        self._check_open()
        self._drain()
        self._emit(self.operator.change_sources(change))

    def timeout(self, now: Instant | None = None) -> None:
        """Advance the clock: offer refused results again, and fire what is due.

        Without `now`, the clock of the machine counts.
        """
        if self._downstream is not None:
            self._downstream.timeout(now)
        if self._queue.is_refused and not self._offer():
            return
        self._drain()
        self._emit(self.operator.advance_clock(self._now(now)))

    def finish(self) -> None:
        """End the input: everything fires, and no state is left. A second call does nothing."""
        if self._finished:
            return
        self._check_open()
        self._drain()
        self._finished = True
        self._emit(self.operator.finish())

    # Output

    def get_result(self) -> Results:
        """A copy of the queued results; they stay queued until `flush`."""
        self._drain()
        empty = self.operator.renderer().render(Output())
        return Results.together([empty, *self._queue.fetch()])

    def flush(self) -> None:
        """Remove the results that were returned; save state, offsets and queue in one commit."""
        self._drain()
        self._queue.drop_fetched()
        self._save()

    def __repr__(self) -> str:
        mark = self.operator.progress.watermark
        at = (
            "no watermark yet" if mark == MIN else f"watermark {time_text(mark, ticks=self._ticks)}"
        )
        state = "finished" if self._finished else at
        return f"{type(self).__name__}({brief(self.operator.spec)}; {state})"

    def _repr_html_(self) -> str:
        return fields_html(
            type(self).__name__, [("state", repr(self)), *fields(self.operator.spec)]
        )

    @property
    def _ticks(self) -> bool:
        operator = self.operator
        return isinstance(operator, WindowedAggregate) and operator.ticks

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the store; what was not flushed is lost."""
        self._maps.close()
        self._store.close()

    # Inspection

    @property
    def watermark(self) -> int | None:
        """The watermark, of a join the lesser of both sides; None while there is none."""
        self._drain()
        found = self.operator.progress.watermark
        return None if found == MIN else found

    @property
    def output_watermark(self) -> int:
        """The watermark that is forwarded downstream, of a join the least of its time columns."""
        self._drain()
        return self.operator.output_watermark

    @property
    def is_refusing(self) -> bool:
        """Whether input is refused because the downstream refuses results."""
        return self._queue.is_refused

    def status(self) -> QueryStatus:
        """What the operator has done, holds and waits for, as data."""
        found = self.explain_watermark()
        now = found.now if found.machine_clock is None else found.machine_clock
        return embedded_status(self.operator, found, now)

    @abstractmethod
    def explain_watermark(self) -> Explanation:
        """Why there is no output: a subclass knows what its windows or rows wait for."""

    def paused(self) -> list[PausedSource]:
        """The sources too far ahead of the slowest one, which should not be read for now."""
        self._drain()
        return self.operator.watermark_tracker.paused()

    def resume_offsets(self) -> ResumeOffsets:
        """By partition, of a join by side and partition, the first offset to deliver again.

        A partition without a delivered message starts at 0.
        """
        self._drain()
        return self.operator.resume_offsets()

    def _runtime_facts(self) -> dict[str, Any]:
        """The facts of an explanation that only the runtime knows."""
        refused, unfetched = self._queue.waiting, self._queue.unfetched
        return {
            "machine_clock": self._clock.at(None, 0) if self._clock.is_read else None,
            "waiting_panes": sum(results.panes.num_rows for results in unfetched),
            "waiting_late": sum(results.late.num_rows for results in unfetched),
            "refused_rows": sum(len(results) for results in refused),
            "is_refused": self._queue.is_refused,
        }

    # Passing results on

    def _now(self, now: Instant | None) -> int:
        clock = self._clock.at(now, self.operator.progress.now)
        # A jump of the clock is no silence of the sources.
        if skipped := self._clock.skipped():
            self.operator.watermark_tracker.shift(skipped)
        return clock

    def _check_open(self) -> None:
        if self._finished:
            raise InputError("the operator is finished and takes no more input")
        self._queue.check()

    def _emit(self, output: Output, failed: Sequence[Results] = ()) -> None:
        """Queue the results of a call, and offer them downstream: to a function by window."""
        # An operator takes the changes of a call in one delivery: no pane shows half of them.
        rendered = render(self.operator, output, by_window=self._consumer is not None)
        progress = self.operator.progress
        self._recording.add([*failed, *rendered], progress.now, progress.watermark)
        for results in rendered:
            self._put(results)
        if self._consumer is not None or self._downstream is not None:
            self._offer()

    def _put(self, results: Results) -> None:
        """Queue results; a downstream operator takes panes only, and late rows stay here."""
        if self._downstream is None:
            self._queue.put(results)
            return
        if results.late.num_rows:
            self._queue.put(Results(results.panes.slice(0, 0), results.late), stays=True)
        if results.panes.num_rows:
            self._queue.put(Results(results.panes, results.late.slice(0, 0)))

    def _offer(self) -> bool:
        """Offer queued results, then forward the progress; False if something is refused.

        The state is saved whenever results were accepted, and when windows opened or closed.
        """
        accepted = self._queue.offer()
        downstream = self._downstream
        if downstream is not None and not self._queue.is_refused and not downstream.is_refusing:
            self._forward_progress(downstream)
        counters = self.operator.progress.counters
        windows = (counters["windows_opened"], counters["windows_closed"])
        if accepted or windows != self._saved_windows:
            self._saved_windows = windows
            self._save()
        return not self._queue.is_refused

    def _accepts(self, results: Results) -> bool:
        """Deliver results downstream; False if they are refused."""
        if self._downstream is None:
            return self._consumer is None or self._consumer(results) is not False
        if self._downstream.is_refusing:
            return False
        self._announced = True
        self._downstream.add_messages(
            self._with_all_columns(results.panes, self._downstream),
            now=None if self._clock.is_read else self.operator.progress.now,
        )
        return True

    def _forward_progress(self, downstream: Downstream) -> None:
        """Forward the columns, the watermark, the idleness and the end of this operator."""
        if self._finished:
            if not downstream.finished:
                self._announce(downstream)
                downstream.finish()
            return
        if self.operator.is_typed:
            self._announce(downstream)
        given = downstream.inputs[0]
        progress = OutputProgress.of(self.operator, given.time)
        marks = progress.marks(given.watermark_key, since=self._forwarded)
        self._forwarded = progress
        if marks and not downstream.finished:
            downstream.take_marks(marks)

    def _announce(self, downstream: Downstream) -> None:
        """Forward the columns of the output: a join names its own after those of both sides."""
        if not self._announced and not downstream.finished:
            self._announced = True
            panes = self.operator.renderer().render(Output()).panes
            downstream.expect(self._with_all_columns(panes, downstream).schema)

    def _with_all_columns(self, panes: pa.Table, downstream: Downstream) -> pa.Table:
        """Panes with the columns that the downstream names: a side of a join that has ended without
        a row has brought none, and one of several streams those of the streams with rows.
        """
        operator = self.operator
        if not isinstance(operator, WindowedJoin):
            return panes
        names = downstream.named_columns
        if self._finished and not operator.is_typed:
            return with_columns(panes, names)
        coming = operator.columns_to_come(names)
        absent = [n for n in coming or self._awaited if n not in panes.column_names]
        if absent and not coming:
            raise SpecError(
                f"the next operator reads column `{absent[0]}`, but none of the streams of the join"
                f" has it; the join has {', '.join(panes.column_names)}"
            )
        self._awaited = absent
        return with_columns(panes, absent)

    # Durable state

    def _save(self) -> None:
        """Save everything in one commit, the downstream first.

        Its input must not be forgotten here before it is durable there.
        """
        if self._downstream is not None:
            self._downstream.flush()
        self._store.delete_prefix("waiting/")
        queued = [*self._queue.kept, *self._queue.waiting]
        for number, results in enumerate(queued):
            self._store.put_table(f"waiting/{number:08d}/panes", results.panes)
            self._store.put_table(f"waiting/{number:08d}/late", results.late)
        self._store.put_json("waiting", len(queued))
        self._store.put_json("finished", self._finished)
        self._store.put_json("ended", sorted(self._ended))
        snapshot.save(self.operator)
        self._store.commit()
        snapshot.release(self.operator)

    def _restore_queue(self) -> None:
        for number in range(self._store.get_json("waiting", 0)):
            panes, late = (
                self._store.get_table(f"waiting/{number:08d}/{kind}") for kind in ("panes", "late")
            )
            self._put(Results(panes, late))
        self._queue.is_refused = bool(self._queue.waiting)


@exclusive
class Port:
    """One input of an operator with several, as the `downstream` of another operator."""

    def __init__(self, operator: EmbeddedBase, ordinal: int) -> None:
        self._operator, self._ordinal = operator, ordinal

    @property
    def lock(self) -> threading.RLock:
        """The lock of the operator."""
        return self._operator.lock

    @property
    def inputs(self) -> tuple[Input, ...]:
        return (self._operator.inputs[self._ordinal],)

    @property
    def named_columns(self) -> list[str]:
        """The columns of this input that the specification names."""
        return named_columns(self._operator.operator.spec, self._ordinal)

    @property
    def is_refusing(self) -> bool:
        return self._operator.is_refusing

    @property
    def finished(self) -> bool:
        """Whether this input has ended."""
        return self._operator.finished or self._ordinal in self._operator.ended

    def follow(self, upstream: Exchange | None) -> None:
        """Take the watermark of this input from an upstream operator; see `EmbeddedBase.follow`."""
        self._operator.follow(upstream, input=self._ordinal)

    def expect(self, schema: pa.Schema) -> None:
        """Take the columns of the upstream before its first rows."""
        self._operator.expect(schema, input=self._ordinal)

    def add_messages(self, messages: Any, *, now: Instant | None = None) -> None:
        """Process a delivery of this input."""
        self._operator.add_messages(messages, now=now, input=self._ordinal)

    def take_marks(self, marks: Iterable[Mark]) -> None:
        """Apply the marks of the upstream operator to this input."""
        self._operator.take_marks(marks, input=self._ordinal)

    def timeout(self, now: Instant | None = None) -> None:
        """Advance the clock of the operator."""
        self._operator.timeout(now)

    def finish(self) -> None:
        """End this input; the operator finishes with the last one."""
        self._operator.end_input(input=self._ordinal)
        if len(self._operator.ended) == len(self._operator.inputs):
            self._operator.finish()

    def flush(self) -> None:
        """Save the state of the operator."""
        self._operator.flush()

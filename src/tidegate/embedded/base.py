"""A driven operator is moved by calls, keeps its results until they are taken, and survives a
crash.

Standalone, `get_result` returns a copy of the results that wait and `flush` clears those that were
returned. Automatic, with a downstream, results are offered to it; while it refuses, input is
refused too, and `timeout` offers again from where it stopped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import numpy as np
import pyarrow as pa

from tidegate.embedded.clock import Clock
from tidegate.embedded.ports import Port
from tidegate.embedded.result_queue import ResultQueue, Target
from tidegate.embedded.rows import to_table
from tidegate.embedded.source_control import SourceControl
from tidegate.errors import InputError
from tidegate.instants import MIN, Instant
from tidegate.kernel.watermarks.marks import Active, Idle, Mark, Watermark
from tidegate.operators import snapshot as stored
from tidegate.operators.aggregate.operator import WindowedAggregate
from tidegate.operators.aggregate.results import Results
from tidegate.operators.ingest.watermark_tracking import WatermarkTracker
from tidegate.operators.join.operator import WindowedJoin
from tidegate.operators.output import Output
from tidegate.spec.join import Upstream
from tidegate.spec.operator import input_of
from tidegate.state.memory import MemoryStore
from tidegate.state.protocol import Store

Downstream = Callable[[Results], "bool | None"]


class EmbeddedBase(SourceControl):
    """One operator in this process."""

    operator: WindowedAggregate | WindowedJoin

    def _drive(
        self,
        store: Store | None,
        downstream: Downstream | Target | None,
        now: int | None,
        spec: Upstream,
    ) -> None:
        """Make everything but the operator, which begins with the clock."""
        if downstream is not None and not callable(downstream):
            downstream.follow(spec)
        # Arrow looks for pandas when it first meets NumPy; better here than with the first message.
        pa.array(np.zeros(1, np.int64)).to_numpy()
        self._store = MemoryStore() if store is None else store
        self._clock = Clock(now)
        self._downstream: Downstream | None = downstream if callable(downstream) else None
        self._target: Target | None = None if callable(downstream) else downstream
        self._outlet: ResultQueue[Results] = ResultQueue(
            None if downstream is None else self._accepts
        )
        self._forwarded: Watermark | None = None
        self._forwarded_idle: bool | None = None
        self._finished = False
        self._ended: set[int] = set()
        self._seen_windows = (0, 0)

    def _continue(self) -> None:
        """Continue from what the store holds."""
        if stored.restore(self.operator):
            self._finished = self._store.get_json("finished", False)
            self._ended = set(self._store.get_json("ended", []))
            self._load_waiting()

    def _drain(self) -> None:
        """Take what is buffered, so that nobody sees the buffering."""

    def _promised(self, target: Target) -> int:  # noqa: ARG002 - a window has one watermark
        """What is promised to a downstream."""
        return self.operator.output_watermark

    def follow(self, upstream: Upstream | None, *, input: int | None = None) -> None:
        """Take the watermark of an upstream; of a window also retractions, and keep inherited
        windows as long as it may still correct them.
        """
        self.operator.follow(upstream, input)

    def port(self, input: int | str) -> Port:
        """One input of several, by number or by name, as the `downstream` of another operator."""
        ordinal = self.ordinal(input)
        input_of(self.inputs, ordinal)
        return Port(self, ordinal)

    @property
    def finished(self) -> bool:
        """Whether the input has ended, be it before a restart."""
        return self._finished

    @property
    def ended(self) -> frozenset[int]:
        """The inputs that have ended."""
        return frozenset(self._ended)

    # Input

    def add_messages(
        self, messages: Any, *, now: Instant | None = None, input: int | str = 0
    ) -> None:
        """Take a delivery: an Arrow table or batch, a pandas frame, or a list of dictionaries.
        `now` is the clock at its arrival.
        """
        self._check_open()
        self._drain()
        ordinal = self.ordinal(input)
        self._give(
            self.operator.process(
                to_table(messages, self.operator.expected(ordinal)), self._now(now), ordinal
            )
        )

    def end_input(self, *, input: int | str = 0, partition: str | None = None) -> None:
        """Say that a partition, or a whole input, has ended; when all have, `finish` does the
        rest.
        """
        super().end_input(input=input, partition=partition)
        if partition is None:
            self._ended.add(self.ordinal(input))

    def _tell(self, change: Callable[[WatermarkTracker], object]) -> None:
        self._check_open()
        self._drain()
        self._give(self.operator.tell(change))

    def timeout(self, now: Instant | None = None) -> None:
        """Tell the clock (or let it be read): offers again what was refused, and evaluates what
        became due.
        """
        if self._target is not None:
            self._target.timeout(now)
        if self._outlet.is_refused and not self._offer():
            return
        self._drain()
        self._give(self.operator.advance_clock(self._now(now)))

    def finish(self) -> None:
        """End the input: everything fires, and nothing is left. To end it again changes nothing."""
        if self._finished:
            return
        self._check_open()
        self._drain()
        self._finished = True
        self._give(self.operator.finish())

    # Output

    def get_result(self) -> Results:
        """A copy of the results that wait; they wait on until `flush`."""
        self._drain()
        empty = self.operator.renderer().render(Output())
        return Results.together([empty, *self._outlet.fetch()])

    def flush(self) -> None:
        """Clear the results that were returned, and make state, offsets and what still waits
        durable together.
        """
        self._drain()
        self._outlet.drop_fetched()
        self._save()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the store; what was not flushed is gone."""
        self._store.close()

    # Inside

    def _now(self, now: Instant | None) -> int:
        return self._clock.at(now, self.operator.progress.now)

    def _check_open(self) -> None:
        if self._finished:
            raise InputError("the operator is finished and takes no more input")
        self._outlet.check()

    def _give(self, output: Output) -> None:
        """Keep the results of a call, and offer them where there is somebody to take them."""
        automatic = self._downstream is not None or self._target is not None
        if not output.is_empty:
            renderer = self.operator.renderer()
            for results in renderer.by_window(output) if automatic else [renderer.render(output)]:
                self._put(results)
        if automatic:
            self._offer()

    def _put(self, results: Results) -> None:
        # An operator takes panes only, so late rows stay for whoever fetches them.
        self._outlet.put(results, stays=self._target is not None and results.late.num_rows > 0)

    def _offer(self) -> bool:
        """Offer what waits, one window after the other, and then how far this operator is; False
        where something is refused.
        """
        accepted = self._outlet.offer()
        if (
            self._target is not None
            and not self._outlet.is_refused
            and not self._target.is_refusing
        ):
            self._tell_progress(self._target)
        windows = (
            self.operator.progress.counters["windows_opened"],
            self.operator.progress.counters["windows_closed"],
        )
        if accepted or windows != self._seen_windows:
            self._seen_windows = windows
            self._save()
        return not self._outlet.is_refused

    def _accepts(self, results: Results) -> bool:
        if self._target is None:
            return self._downstream is None or self._downstream(results) is not False
        if self._target.is_refusing:
            return False
        self._target.add_messages(
            results.panes, now=None if self._clock.is_read else self.operator.progress.now
        )
        return True

    def _tell_progress(self, target: Target) -> None:
        """Forward the watermark, whether this operator is idle, and its end."""
        if self._finished:
            if not target.finished:
                target.finish()
            return
        key = target.inputs[0].watermark_key
        mark = Watermark(self._promised(target), key)
        marks: list[Mark] = [mark] if mark.value > MIN and mark != self._forwarded else []
        idle = self.operator.is_idle
        if idle != self._forwarded_idle:
            self._forwarded_idle = idle
            marks.append(Idle(key) if idle else Active(key))
        self._forwarded = mark
        if marks and not target.finished:
            target.take_marks(marks)

    @property
    def is_refusing(self) -> bool:
        """Whether input is refused because the downstream refuses results."""
        return self._outlet.is_refused

    def _save(self) -> None:
        """Make everything durable, what is downstream first: its input must not be forgotten here
        before it is safe there.
        """
        if self._target is not None:
            self._target.flush()
        self._store.delete_prefix("waiting/")
        held = [*self._outlet.kept, *self._outlet.waiting]
        for number, results in enumerate(held):
            self._store.put_table(f"waiting/{number:08d}/panes", results.panes)
            self._store.put_table(f"waiting/{number:08d}/late", results.late)
        self._store.put_json("waiting", len(held))
        self._store.put_json("finished", self._finished)
        self._store.put_json("ended", sorted(self._ended))
        stored.save(self.operator)
        self._store.commit()
        stored.release(self.operator)

    def _load_waiting(self) -> None:
        for number in range(self._store.get_json("waiting", 0)):
            panes, late = (
                self._store.get_table(f"waiting/{number:08d}/{kind}") for kind in ("panes", "late")
            )
            self._put(Results(panes, late))
        self._outlet.is_refused = bool(self._outlet.waiting)

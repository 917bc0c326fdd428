"""The embedded operator: a windowed aggregate that is driven by calls, keeps its results until they are taken, and survives a crash.

Standalone, `get_result` returns a copy of the results that wait and `flush` clears those that were returned. Automatic, with a downstream,
results are offered to it; while it refuses, input is refused too, and `timeout` offers again from where it stopped.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Self

import numpy as np
import pyarrow as pa

from tidegate.embedded.inspection import Inspection
from tidegate.embedded.results import Results
from tidegate.embedded.rows import to_table
from tidegate.errors import BackpressureError, InputError
from tidegate.instants import Instant, instant
from tidegate.operators import stored
from tidegate.operators.aggregate import WindowedAggregate
from tidegate.operators.output import Output
from tidegate.spec.operator import AggregateSpec
from tidegate.spec.watermarks import Explicit
from tidegate.spec.windows import Inherited
from tidegate.state.memory import MemoryStore
from tidegate.state.protocol import Store

Downstream = Callable[[Results], "bool | None"]
_BUFFER = 1024
_BUFFER_SPAN = 100_000
"""Buffered messages arrived within a tenth of a second of each other, so that their clock is right to that."""


class EmbeddedOperator(Inspection):
    """One operator in this process."""

    def __init__(
        self, spec: AggregateSpec, *, store: Store | None = None, downstream: Downstream | EmbeddedOperator | None = None, now: int | None = None
    ) -> None:
        if isinstance(downstream, EmbeddedOperator):
            downstream.follow(spec)
        # Arrow looks for pandas when it first meets NumPy; better here than with the first message.
        pa.array(np.zeros(1, np.int64)).to_numpy()
        self._store = MemoryStore() if store is None else store
        op_column = "op" if isinstance(spec.window, Inherited) else None
        self._reads_clock = now is None
        self.operator = WindowedAggregate(spec, self._store, now=_wall_clock() if now is None else now, op_column=op_column)
        self._downstream = downstream
        self._waiting: deque[Results] = deque()
        self._fetched = 0
        self._refused = False
        self._buffer: list[Mapping[str, Any]] = []
        self._buffered_at = 0
        self._finished = False
        self._seen_windows = (0, 0)
        # Single messages may wait for each other where nobody can tell: the watermark is told, and nothing looks at deliveries.
        self._buffers = (
            downstream is None and isinstance(spec.input.watermark, Explicit) and spec.options.granularity == "element" and not spec.retention
        )
        if stored.restore(self.operator):
            self._finished = self._store.get_json("finished", False)
            self._load_waiting()

    def follow(self, upstream: AggregateSpec) -> None:
        """Take retractions, and keep inherited windows as long as the upstream may still correct them."""
        self.operator.follow(upstream)

    @property
    def finished(self) -> bool:
        """Whether the input has ended, be it before a restart."""
        return self._finished

    @property
    def spec(self) -> AggregateSpec:
        return self.operator.spec

    # Input ----------------------------------------------------------------------------------------------------------------------

    def add_message(self, message: Mapping[str, Any], *, now: Instant | None = None) -> None:
        """Take one message."""
        self._check_open()
        if not self._buffers or now is not None or not self.operator.is_typed:
            # The first message with a value says what the others have to look like.
            self.add_messages([message], now=now)
            return
        clock = self._clock(None)
        if clock > self._buffered_at + _BUFFER_SPAN:
            self._drain()
            self._buffered_at = clock
        self._buffer.append(dict(message))
        if len(self._buffer) >= _BUFFER:
            self._drain()

    def add_messages(self, messages: Any, *, now: Instant | None = None) -> None:
        """Take a delivery: an Arrow table or batch, a pandas frame, or a list of dictionaries. `now` is the clock at its arrival."""
        self._check_open()
        self._drain()
        self._give(self.operator.process(to_table(messages, self.operator.schema), self._clock(now)))

    def advance_watermark(self, watermark: Instant) -> None:
        """Promise that nothing before the watermark is to be expected; a step back is ignored and counted."""
        self._check_open()
        self._take_watermark(instant(watermark))

    def _take_watermark(self, watermark: int) -> None:
        self._drain()
        self.operator.progress.told = True
        self._give(self.operator.process_watermark(watermark))

    def timeout(self, now: Instant | None = None) -> None:
        """Tell the clock (or let it be read): offers again what was refused, and evaluates what became due."""
        if isinstance(self._downstream, EmbeddedOperator):
            self._downstream.timeout(now)
        if self._refused and not self._offer():
            return
        self._drain()
        self._give(self.operator.advance_clock(self._clock(now)))

    def finish(self) -> None:
        """End the input: everything fires, and nothing is left. To end it again changes nothing."""
        if self._finished:
            return
        self._check_open()
        self._drain()
        self._finished = True
        self._give(self.operator.finish())

    # Output ---------------------------------------------------------------------------------------------------------------------

    def get_result(self) -> Results:
        """A copy of the results that wait; they wait on until `flush`."""
        self._drain()
        if self._downstream is None:
            self._fetched = len(self._waiting)
        empty = self._renderer().render(Output())
        return Results.together([empty, *self._waiting])

    def flush(self) -> None:
        """Clear the results that were returned, and make state, offsets and what still waits durable together."""
        self._drain()
        for _ in range(self._fetched):
            self._waiting.popleft()
        self._fetched = 0
        self._save()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the store; what was not flushed is gone."""
        self._store.close()

    # Inside ---------------------------------------------------------------------------------------------------------------------

    def _drain(self) -> None:
        if self._buffer:
            rows, self._buffer = self._buffer, []
            self._give(self.operator.process(to_table(rows, self.operator.schema), self._buffered_at if self._reads_clock else None))

    def _clock(self, now: Instant | None) -> int:
        """The instant that a call happens at: what was told, the clock of this machine, or where a told clock stands."""
        if now is not None:
            return instant(now)
        return _wall_clock() if self._reads_clock else self.operator.progress.now

    def _check_open(self) -> None:
        if self._finished:
            raise InputError("the operator is finished and takes no more input")
        if self._refused:
            raise BackpressureError(
                f"the downstream refuses results and {len(self._waiting)} wait; no input is taken until they are accepted. Hint: call timeout(now)"
            )

    def _give(self, output: Output) -> None:
        """Keep the results of a call, and offer them where there is somebody to take them."""
        if not output.is_empty:
            renderer = self._renderer()
            self._waiting.extend([renderer.render(output)] if self._downstream is None else renderer.by_window(output))
        if self._downstream is not None:
            self._offer()

    def _offer(self) -> bool:
        """Offer what waits, one window after the other; False where something is refused."""
        accepted = 0
        self._refused = False
        while self._waiting and not self._refused:
            if self._accepts(self._waiting[0]):
                self._waiting.popleft()
                accepted += 1
            else:
                self._refused = True
        if not self._refused and isinstance(self._downstream, EmbeddedOperator):
            self._downstream.follow_progress(self.operator.output_watermark, finished=self._finished)
        windows = (self.operator.progress.counters["windows_opened"], self.operator.progress.counters["windows_closed"])
        if accepted or windows != self._seen_windows:
            self._seen_windows = windows
            self._save()
        return not self._refused

    def _accepts(self, results: Results) -> bool:
        target = self._downstream
        if isinstance(target, EmbeddedOperator):
            if target.is_refusing:
                return False
            if results.panes.num_rows:
                target.add_messages(results.panes)
            return True
        return target is None or target(results) is not False

    @property
    def is_refusing(self) -> bool:
        """Whether input is refused because the downstream refuses results."""
        return self._refused

    def follow_progress(self, watermark: int, *, finished: bool) -> None:
        """Take over the upstream's watermark, and its end."""
        if finished and not self._finished:
            self.finish()
        elif not self._finished and watermark > self.operator.progress.watermark:
            self._take_watermark(watermark)

    def _save(self) -> None:
        """Make everything durable, what is downstream first: its input must not be forgotten here before it is safe there."""
        if isinstance(self._downstream, EmbeddedOperator):
            self._downstream.flush()
        self._store.delete_prefix("waiting/")
        for number, results in enumerate(self._waiting):
            self._store.put_table(f"waiting/{number:08d}/panes", results.panes)
            self._store.put_table(f"waiting/{number:08d}/late", results.late)
        self._store.put_json("waiting", len(self._waiting))
        self._store.put_json("finished", self._finished)
        stored.save(self.operator)
        self._store.commit()
        stored.release(self.operator)

    def _load_waiting(self) -> None:
        for number in range(self._store.get_json("waiting", 0)):
            panes, late = (self._store.get_table(f"waiting/{number:08d}/{kind}") for kind in ("panes", "late"))
            self._waiting.append(Results(panes, late))
        self._refused = self._downstream is not None and bool(self._waiting)


def _wall_clock() -> int:
    return time.time_ns() // 1_000

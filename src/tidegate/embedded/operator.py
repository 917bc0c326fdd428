"""The embedded windowed aggregate; see `EmbeddedBase` for input, output and state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidegate.embedded.base import Consumer
from tidegate.embedded.exclusive import exclusive
from tidegate.embedded.recording import DEFAULT_BYTES
from tidegate.embedded.result_queue import Downstream
from tidegate.embedded.visible import VisibleOperator
from tidegate.errors import InputError
from tidegate.instants import MAX, MIN, Instant
from tidegate.operators.aggregate.operator import WindowedAggregate
from tidegate.operators.explain.explanation import explain, worded
from tidegate.operators.explain.facts import Explanation
from tidegate.operators.history.facts import History
from tidegate.operators.history.history import Recorded, widened
from tidegate.operators.history.history import history as history_of
from tidegate.operators.history.open_windows import elsewhere, open_windows
from tidegate.operators.history.question import typed_range
from tidegate.operators.history.rows import Selection
from tidegate.operators.ingest.computed_columns import arriving_table
from tidegate.operators.ingest.delivery import Arrival
from tidegate.operators.ingest.python_rows import to_table
from tidegate.operators.inspection.aggregate import AggregateInspection
from tidegate.spec.operator import AggregateSpec
from tidegate.spec.watermarks import Explicit
from tidegate.state.store import Store

_BUFFER = 1024
"""Maximum number of single messages that are buffered."""
_BUFFER_SPAN = 100_000
"""Maximum age of the buffer, and so the error of its arrival clock, in microseconds."""


@exclusive
class EmbeddedOperator(AggregateInspection, VisibleOperator):
    """One windowed aggregate in this process."""

    operator: WindowedAggregate

    def __init__(
        self,
        spec: AggregateSpec,
        *,
        store: Store | None = None,
        downstream: Consumer | Downstream | None = None,
        now: int | None = None,
        history: int = DEFAULT_BYTES,
    ) -> None:
        spec = self._open(store, downstream, now, spec, history)
        self.inputs, self.names = spec.inputs, spec.names
        self.operator = WindowedAggregate(spec, self._store, now=self._clock.start)
        self._buffer: list[Mapping[str, Any]] = []
        self._buffered_at = 0
        # Single messages are buffered where that changes no result: the watermark is explicit, and
        # neither triggers nor retention look at deliveries.
        self._buffers = (
            downstream is None
            and not self._maps
            and not any(given.projections for given in spec.inputs)
            and all(
                isinstance(given.watermark, Explicit) and given.watermark.idle_after is None
                for given in spec.inputs
            )
            and spec.options.granularity == "element"
            and not spec.retention
            and not spec.also
        )
        self._restore()

    def _forget_partition(self, partition: str, ordinal: int) -> None:
        self._drain()
        self.operator.forget_partition(partition, ordinal)

    @property
    def spec(self) -> AggregateSpec:
        return self.operator.spec

    def explain_watermark(self) -> Explanation:
        """Why there is no output: what holds the watermark back, and what each window waits for.

        Print it to read sentences; `to_dict` returns the same as data.
        """
        self._drain()
        return worded(explain(self.operator), **self._runtime_facts())

    def why(
        self, key: Any = None, start: Instant | None = None, end: Instant | None = None
    ) -> History:
        """The history of one key and window, in order: panes with their causes, late rows, and
        what is still open.

        `start` and `end` are the bounds of the window; with `start` alone, the windows that contain
        this instant, or that overlap the range of a text like "12:00..12:05". It covers the recent
        output that the operator keeps in memory; see `history` of `Panes.embedded`. Print it to
        read sentences; `to_dict` returns the same as data.
        """
        self._drain()
        operator, recording = self.operator, self._recording
        low, high = (None if at is None else self._position(at) for at in typed_range(start, end))
        asked = Selection.of(key, self.spec.input.key, low, high)
        tables = self.recorded()
        wide = widened(asked, operator.spec, tables.panes)
        held = open_windows([operator], wide)
        watermark = operator.progress.watermark
        return history_of(
            Recorded(
                tables.panes,
                tables.late,
                operator.spec,
                deliveries=() if operator.is_fed else [*recording.deliveries()],
                open=held,
                open_elsewhere=elsewhere([operator], asked, held),
                has_ended=watermark == MAX,
                unit="call",
                watermark=None if watermark in {MIN, MAX} else watermark,
                now=operator.progress.now,
                ticks=operator.ticks,
                notes=recording.notes(),
            ),
            asked,
        )

    def add_message(
        self, message: Mapping[str, Any], *, now: Instant | None = None, input: int | str = 0
    ) -> None:
        """Process one message."""
        self._check_open()
        if not self._buffers or now is not None or input or not self.operator.is_typed:
            # The first message with a value determines the schema.
            self.add_messages([message], now=now, input=input)
            return
        clock = self._now(None)
        if clock > self._buffered_at + _BUFFER_SPAN:
            self._drain()
            self._buffered_at = clock
        if not isinstance(message, Mapping):
            raise InputError(f"a message is a dictionary, got {type(message).__name__}")
        self._buffer.append(dict(message))
        if len(self._buffer) >= _BUFFER:
            self._drain()

    def _drain(self) -> None:
        if self._buffer:
            rows, self._buffer = self._buffer, []
            self._take_buffered(rows)

    def _take_buffered(self, rows: list[Mapping[str, Any]]) -> None:
        """Process accepted messages; one that the operator refuses goes to `late` alone."""
        now = self._buffered_at if self._clock.is_read else self.operator.progress.now
        try:
            table = arriving_table(rows, self.operator.schema, self.spec.input.computed)
            output = self.operator.process(table, now)
            self._recording.deliver([Arrival(0, table)])
        except InputError as error:
            # The caller of `add_message` has gone on, so the error would be that of another call.
            if len(rows) > 1:
                half = len(rows) // 2
                self._take_buffered(rows[:half])
                self._take_buffered(rows[half:])
                return
            schema = self.operator.bound().context.schema
            table = to_table(rows, schema).select(schema.names)
            output = self.operator.refuse(table, now, "bad_value", str(error))
        self._emit(output)

"""The embedded operator: a windowed aggregate that is driven by calls; see `EmbeddedBase`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidegate.embedded.base import Downstream, EmbeddedBase
from tidegate.embedded.inspection import Inspection
from tidegate.embedded.result_queue import Target
from tidegate.embedded.rows import to_table
from tidegate.instants import Instant
from tidegate.operators.aggregate.operator import WindowedAggregate
from tidegate.spec.operator import AggregateSpec
from tidegate.spec.watermarks import Explicit
from tidegate.spec.windows import Inherited
from tidegate.state.protocol import Store

__all__ = ["Downstream", "EmbeddedOperator"]

_BUFFER = 1024
_BUFFER_SPAN = 100_000
"""Buffered messages arrived within a tenth of a second of each other, so that their clock is right
to that.
"""


class EmbeddedOperator(Inspection, EmbeddedBase):
    """One windowed aggregate in this process."""

    operator: WindowedAggregate

    def __init__(
        self,
        spec: AggregateSpec,
        *,
        store: Store | None = None,
        downstream: Downstream | Target | None = None,
        now: int | None = None,
    ) -> None:
        self._drive(store, downstream, now, spec)
        op_column = "op" if isinstance(spec.window, Inherited) else None
        self.inputs, self.names = spec.inputs, spec.names
        self.operator = WindowedAggregate(
            spec, self._store, now=self._clock.start, op_column=op_column
        )
        self._buffer: list[Mapping[str, Any]] = []
        self._buffered_at = 0
        # Single messages may wait for each other where nobody can tell: the watermark is told, and
        # nothing looks at deliveries.
        self._buffers = (
            downstream is None
            and all(
                isinstance(given.watermark, Explicit) and given.watermark.idle_after is None
                for given in spec.inputs
            )
            and spec.options.granularity == "element"
            and not spec.retention
            and not spec.also
        )
        self._continue()

    @property
    def spec(self) -> AggregateSpec:
        return self.operator.spec

    # Input

    def add_message(
        self, message: Mapping[str, Any], *, now: Instant | None = None, input: int | str = 0
    ) -> None:
        """Take one message."""
        self._check_open()
        if not self._buffers or now is not None or input or not self.operator.is_typed:
            # The first message with a value says what the others have to look like.
            self.add_messages([message], now=now, input=input)
            return
        clock = self._now(None)
        if clock > self._buffered_at + _BUFFER_SPAN:
            self._drain()
            self._buffered_at = clock
        self._buffer.append(dict(message))
        if len(self._buffer) >= _BUFFER:
            self._drain()

    def _drain(self) -> None:
        if self._buffer:
            rows, self._buffer = self._buffer, []
            self._give(
                self.operator.process(
                    to_table(rows, self.operator.schema),
                    self._buffered_at if self._clock.is_read else None,
                )
            )

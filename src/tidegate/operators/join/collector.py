"""Collects what one call of a join puts out.

Every verb of the operator makes a collector, passes it down to the steps that put out rows, and
returns its output.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tidegate.kernel.frame import Frame
from tidegate.operators.join.output import Emitter, Piece
from tidegate.operators.output import LateRows, Output

Window = tuple[np.ndarray, np.ndarray]
"""Starts and ends."""


@dataclass(eq=False)
class JoinCollector:
    """Collects the rows and late rows of one call.

    Steps put out rows out of order. Each row has a position, by which the output is sorted.
    """

    emitter: Emitter
    output: Output = field(default_factory=Output)
    _pieces: list[Piece] = field(default_factory=list)
    _position: int = 0
    """The next free position in the output."""

    def reserve(self, n: int) -> int:
        """The first of `n` positions that no other rows get."""
        first, self._position = self._position, self._position + n
        return first

    def put(
        self,
        left: Frame | None,
        right: Frame | None,
        *,
        op: int,
        timing: np.ndarray | int,
        order: np.ndarray,
        window: Window | None = None,
    ) -> None:
        """Put out pairs, or rows of one side if the other is None, at the positions `order`."""
        if len(order):
            rows = self.emitter.rows(left, right, op=op, timing=timing, n=len(order), window=window)
            self._pieces.append(Piece(rows, order))

    def late(self, rows: LateRows) -> None:
        """Put out late rows."""
        self.output.late.append(rows)

    def release(self, now: int, *, finishing: bool = False) -> None:
        """Put out the rows that were held back until now; all of them if `finishing`."""
        self.output.panes.extend(self.emitter.release(now, finishing=finishing))

    def finish(self, *, watermark: int, now: int, finishing: bool) -> Output:
        """The output of the call; rows that wait for the clock or for names stay in the emitter."""
        emitted = self.emitter.emit(self._pieces, watermark=watermark, now=now, finishing=finishing)
        self.output.panes.extend(emitted)
        return self.output

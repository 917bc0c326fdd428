"""SourceControl is what a program, or an upstream, can say of an operator's sources beside giving
it messages: how far they are, and who is silent.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable

from tidegate.instants import Instant, instant
from tidegate.kernel.watermarks.marks import Idle, Mark, Watermark
from tidegate.operators.ingest.watermark_tracking import WatermarkTracker
from tidegate.spec.operator import Input, input_of, ordinal_of
from tidegate.spec.watermarks import checked_key


class SourceControl(ABC):
    """The calls about sources, for every operator that has an watermark_tracker."""

    inputs: tuple[Input, ...]
    """Their specifications, by number."""
    names: tuple[str, ...] = ()
    """Their names, where streams are merged: an input may be said by its number or by its name."""

    def ordinal(self, input: int | str) -> int:
        """The number of an input that is said by number or by name."""
        return ordinal_of(self.names, input)

    @abstractmethod
    def _tell(self, change: Callable[[WatermarkTracker], object]) -> None:
        """Change something about the sources, and pass on what moves."""

    def advance_watermark(
        self,
        watermark: Instant,
        *,
        input: int | str = 0,
        partition: str | None = None,
        key: int | None = None,
    ) -> None:
        """Promise that nothing before the watermark is to be expected, from a partition or from
        all; a step back is ignored and counted.
        """
        ordinal = self.ordinal(input)
        number = input_of(self.inputs, ordinal).watermark_key if key is None else checked_key(key)
        self._tell(
            lambda watermark_tracker: watermark_tracker.promise(
                instant(watermark), ordinal=ordinal, partition=partition, key=number
            )
        )

    def mark_idle(
        self, *, input: int | str = 0, partition: str | None = None, key: int | None = None
    ) -> None:
        """Say that a partition, or a whole input, is silent: the watermark does not wait for it
        until it speaks again.
        """
        ordinal, number = self.ordinal(input), None if key is None else checked_key(key)
        self._tell(
            lambda watermark_tracker: watermark_tracker.idle(
                ordinal=ordinal, partition=partition, key=number
            )
        )

    def end_input(self, *, input: int | str = 0, partition: str | None = None) -> None:
        """Say that a partition, or a whole input, has ended; when all have, `finish` does the
        rest.
        """
        ordinal = self.ordinal(input)
        self._tell(
            lambda watermark_tracker: watermark_tracker.end(ordinal=ordinal, partition=partition)
        )

    def add_partition(self, partition: str, *, input: int | str = 0) -> None:
        """Say that there is one more partition: the watermark waits for it."""
        ordinal = self.ordinal(input)
        self._tell(lambda watermark_tracker: watermark_tracker.join(partition, ordinal=ordinal))

    def remove_partition(self, partition: str, *, input: int | str = 0) -> None:
        """Say that a partition is gone: the watermark no longer waits for it."""
        ordinal = self.ordinal(input)
        self._tell(lambda watermark_tracker: watermark_tracker.leave(partition, ordinal=ordinal))

    def take_marks(self, marks: Iterable[Mark], *, input: int | str = 0) -> None:
        """Take what an upstream says of its watermarks; it may say again what it said before a
        restart.
        """
        found, ordinal = list(marks), self.ordinal(input)
        self._tell(lambda watermark_tracker: _take(watermark_tracker, found, ordinal))


def _take(watermark_tracker: WatermarkTracker, marks: list[Mark], ordinal: int) -> None:
    for mark in marks:
        if isinstance(mark, Watermark):
            watermark_tracker.promise(mark.value, ordinal=ordinal, key=mark.key, repeats=True)
        elif watermark_tracker.has(mark.key, ordinal):
            (watermark_tracker.idle if isinstance(mark, Idle) else watermark_tracker.active)(
                ordinal=ordinal, key=mark.key
            )

"""Calls about the sources of an operator: watermarks, idleness, partitions and the end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable

from tidegate.instants import Instant, instant
from tidegate.kernel.watermarks.marks import Mark
from tidegate.operators.chain import apply_marks
from tidegate.operators.ingest.watermark_tracking import WatermarkTracker
from tidegate.spec.operator import Input, input_of, ordinal_of
from tidegate.spec.watermarks import checked_key


class SourceControl(ABC):
    """The calls about sources, for every operator that has a watermark tracker.

    `input` is the number of an input or, if streams are merged, its name. Without `partition`, a
    call is about the whole input; without `key`, about its first time column.
    """

    inputs: tuple[Input, ...]
    """The specifications of the inputs, by ordinal."""
    names: tuple[str, ...] = ()
    """The names of the inputs, if streams are merged."""

    def ordinal(self, input: int | str) -> int:
        """The ordinal of an input, which is given by number or by name."""
        return ordinal_of(self.names, input)

    @abstractmethod
    def _change_sources(self, change: Callable[[WatermarkTracker], object]) -> None:
        """Change the state of the sources, and emit what becomes due by that."""

    def advance_watermark(
        self,
        watermark: Instant,
        *,
        input: int | str = 0,
        partition: str | None = None,
        key: int | None = None,
    ) -> None:
        """Advance the watermark: no event before it is expected any more.

        A step back is ignored and counted.
        """
        ordinal = self.ordinal(input)
        number = input_of(self.inputs, ordinal).watermark_key if key is None else checked_key(key)
        self._change_sources(
            lambda tracker: tracker.promise(
                instant(watermark), ordinal=ordinal, partition=partition, key=number
            )
        )

    def mark_idle(
        self, *, input: int | str = 0, partition: str | None = None, key: int | None = None
    ) -> None:
        """Mark a partition or an input as idle: it holds no watermark back until it is active.

        Without `key`, it is idle for all time columns.
        """
        ordinal, number = self.ordinal(input), None if key is None else checked_key(key)
        self._change_sources(
            lambda tracker: tracker.idle(ordinal=ordinal, partition=partition, key=number)
        )

    def end_input(self, *, input: int | str = 0, partition: str | None = None) -> None:
        """End a partition or a whole input; after the last one, `finish` fires the rest."""
        ordinal = self.ordinal(input)
        self._change_sources(lambda tracker: tracker.end(ordinal=ordinal, partition=partition))

    def add_partition(self, partition: str, *, input: int | str = 0) -> None:
        """Add a partition: it holds the watermark back until it has one."""
        ordinal = self.ordinal(input)
        self._change_sources(lambda tracker: tracker.join(partition, ordinal=ordinal))

    def remove_partition(self, partition: str, *, input: int | str = 0) -> None:
        """Remove a partition: it no longer holds the watermark back.

        Its offset is forgotten too, once its messages would be very late if they came again.
        """
        ordinal = self.ordinal(input)
        self._forget_partition(partition, ordinal)
        self._change_sources(lambda tracker: tracker.leave(partition, ordinal=ordinal))

    def _forget_partition(self, partition: str, ordinal: int) -> None:  # noqa: B027 - optional
        """Forget the offset of a removed partition as soon as that is safe."""

    def take_marks(self, marks: Iterable[Mark], *, input: int | str = 0) -> None:
        """Apply the watermarks and idleness of an upstream operator; it may repeat them."""
        found, ordinal = list(marks), self.ordinal(input)
        self._change_sources(lambda tracker: apply_marks(tracker, found, ordinal))

"""The watermark of a query of Spark: one for all its inputs, which a batch teaches for the next
one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

POLICIES: dict[str, Callable[[Sequence[int]], int]] = {"min": min, "max": max}


@dataclass
class QueryWatermark:
    """What a query knows: the watermark, which its checkpoint keeps, and how far each input is,
    which it does not keep.
    """

    delays: Sequence[int | None]
    """By input, how far its watermark is behind its newest row; None where it has none, and so does
    not count.
    """
    policy: Callable[[Sequence[int]], int] = min
    value: int = 0
    _promises: dict[int, int] = field(default_factory=dict)

    def learn(self, times: Sequence[Sequence[int]]) -> int:
        """Look at the rows of a batch, by input; one that has said nothing keeps the others at
        0.
        """
        counting = [number for number, delay in enumerate(self.delays) if delay is not None]
        for number in counting:
            delay = self.delays[number] or 0
            self._promises[number] = max(
                [self._promises.get(number, 0), *(time - delay for time in times[number])]
            )
        promises = [self._promises[number] for number in counting]
        self.value = max(self.value, self.policy(promises) if promises else 0)
        return self.value

    def restart(self) -> None:
        """How far each input is has to be learnt again."""
        self._promises.clear()

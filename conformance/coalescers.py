"""Rules by which other systems coalesce the watermarks of many inputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tidegate.errors import SpecError, WatermarkError
from tidegate.instants import MAX, MIN, clamp, format_instant
from tidegate.kernel.watermarks.coalescer import ACTIVE, DONE, Coalescer, Inputs, Rules
from tidegate.kernel.watermarks.keyed import KeyedCoalescer


@dataclass(frozen=True)
class SystemRules(Rules):
    """Our rules, and those that only other systems have."""

    increasing: bool = False
    """With `strict`: a repeated promise, and a promise after the end, are errors (Hazelcast)."""
    woken_by: str = "any"
    """What ends the idleness of an input: `any` sign of life, or a `touch` only; promises made
    meanwhile are ignored (Flink).
    """
    policy: str = "min"
    """The least promise of the active inputs, or with `max` the highest promise of any (Spark)."""
    quorum: float = 1.0
    """The share of all inputs that must be active with a promise (Samza); inputs without a promise
    then do not hold the output back.

    With fewer, idle inputs count too: the output is the least promise of all. 1 asks it of the
    active inputs only.
    """
    patient: bool = False
    """With a `quorum`: an active input without a promise holds the output back until it is idle."""
    frame: int = 0
    """Outputs are rounded down to a multiple of it; 0 passes on every step."""
    any_key_wakes: bool = False
    """With several keys: a watermark of one key ends the idleness of its input for keys that are
    not known yet (Hazelcast).
    """

    def __post_init__(self) -> None:
        if self.policy not in {"min", "max"}:
            raise SpecError(
                'the policy of a watermark is "min" or "max" over its inputs, got'
                f" `{self.policy!r}`"
            )
        if self.woken_by not in {"any", "touch"}:
            raise SpecError(
                'an idle input is woken by "any" sign of life or by a "touch", got'
                f" `{self.woken_by!r}`"
            )
        if isinstance(self.quorum, bool) or not 0 < self.quorum <= 1:
            raise SpecError(
                f"a quorum is a share of the inputs, above 0 and at most 1, got `{self.quorum!r}`"
            )
        if self.frame < 0:
            raise SpecError(
                f"the frame of a watermark can't be negative, got {self.frame}. Hint: 0 passes"
                " every step on"
            )
        if self.increasing and not self.strict:
            raise SpecError(
                "`increasing` makes `strict` stricter, got it alone. Hint: set `strict=True` too"
            )
        if self.policy == "max" and (self.quorum < 1 or self.realign):
            raise SpecError(
                "the maximum waits for no input, so it goes with neither `quorum` nor `realign`."
                " Hint: leave them out"
            )

    def coalescer(
        self, inputs: int = 0, names: Sequence[str] = (), owner: str = ""
    ) -> SystemCoalescer:
        """A coalescer that follows these rules."""
        return SystemCoalescer(inputs, self, names, owner)


class SystemCoalescer(Coalescer):
    """A coalescer under the rules of another system."""

    rules: SystemRules

    def promise(
        self, inputs: Inputs, values: np.ndarray | Sequence[int] | int, *, repeats: bool = False
    ) -> None:
        rows = self._rows(inputs)
        given = np.broadcast_to(np.asarray(values, np.int64), rows.shape)
        self._refuse_ended(rows)
        if self.rules.woken_by == "touch":
            status = self.status[rows]
            heard = (status == ACTIVE) | (status >= DONE) | (given == MIN)
            rows, given = rows[heard], given[heard]
        super().promise(rows, given, repeats=repeats)

    def idle(self, inputs: Inputs) -> None:
        self._refuse_ended(self._rows(inputs))
        super().idle(inputs)

    def done(self, inputs: Inputs) -> None:
        self._refuse_ended(self._rows(inputs))
        super().done(inputs)

    def holders(self) -> np.ndarray:
        active = self.status == ACTIVE
        if self.rules.policy == "max":
            return np.flatnonzero(active)
        spoken = self._waited(active) & (self.promises > MIN)
        if spoken.any() and self._has_quorum(active):
            return self._lowest(spoken)
        return super().holders()

    def _standing(self) -> tuple[int, bool]:
        candidate, idle = super()._standing()
        if self.rules.policy == "max" and (self.status == ACTIVE).any():
            candidate = max(self.lifted, int(self.promises.max()))
        frame = self.rules.frame
        if frame > 1 and candidate not in {MIN, MAX}:
            candidate = clamp(candidate // frame * frame)
        return candidate, idle

    def _least(self, active: np.ndarray) -> int:
        promises = self.promises[self._waited(active)]
        if self.rules.quorum == 1 or not len(promises):
            return super()._least(active)
        spoken = promises[promises > MIN]
        if len(spoken) < len(promises) and self.rules.patient:
            return MIN
        if not self._has_quorum(active):
            return int(self.promises[self.status < DONE].min())
        return int(spoken.min()) if len(spoken) else MIN

    def _has_quorum(self, active: np.ndarray) -> bool:
        """Whether enough inputs have spoken that the others do not hold the output back."""
        if self.rules.quorum == 1:
            return False
        # A share such as 0.29 of 100 is meant to be 29, and a float makes it a little less.
        needed = max(1, math.floor(self.rules.quorum * len(self) + 1e-9))
        return int(np.count_nonzero(active & (self.promises > MIN))) >= needed

    def _is_behind(self, given: np.ndarray, before: np.ndarray) -> np.ndarray:
        return given <= before if self.rules.increasing else super()._is_behind(given, before)

    def _went_back(self, who: str, old: int, new: int) -> str:
        if old != new:
            return super()._went_back(who, old, new)
        return (
            f"{who} promised {format_instant(new)} twice, and its watermarks must increase."
            " Hint: `increasing=False` allows it"
        )

    def _refuse_ended(self, rows: np.ndarray) -> None:
        ended = rows[self.status[rows] >= DONE]
        if len(ended) and self.rules.increasing:
            raise WatermarkError(
                f"{self._name(int(ended[0]))} has ended, and sends a further mark. Hint: let a new"
                " one join, or leave `increasing` out"
            )


class SystemKeyedCoalescer(KeyedCoalescer):
    """A coalescer by watermark key under the rules of another system."""

    rules: SystemRules

    def promise(self, input: int, value: int, key: int = 0) -> None:
        super().promise(input, value, key)
        if self.rules.any_key_wakes and (value == MIN or self.rules.woken_by == "any"):
            self._keyless.touch(input)

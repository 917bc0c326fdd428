"""A coalescer computes one watermark from the promises of many inputs: the minimum of the active
ones.

The output never decreases. State is columns with one entry per input, and every call costs at most
a few passes over them. The verbs only change the columns; `release` evaluates them once and returns
what is due. An input that leaves frees its slot for the next one that joins, so memory is bounded
by the largest number of inputs at one time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tidegate.errors import InputError, WatermarkError
from tidegate.instants import MIN, format_instant

ACTIVE, IDLE, DONE, GONE = range(4)
"""Status of an input; `GONE` is the free slot of one that has left."""
STATUS = {ACTIVE: "active", IDLE: "idle", DONE: "ended"}
"""Names of the statuses of present inputs."""

Inputs = np.ndarray | Sequence[int] | int


@dataclass(frozen=True)
class Rules:
    """How a coalescer judges promises.

    Extension point: a subclass that returns a coalescer of its own adds the rules of another
    system, as the package `conformance` does.
    """

    strict: bool = False
    """Whether a promise below the last one of its input is an error; otherwise it is ignored and
    counted.
    """
    realign: bool = False
    """An active input behind the output does not hold it back until it has caught up."""

    def coalescer(self, inputs: int = 0, names: Sequence[str] = (), owner: str = "") -> Coalescer:
        """A coalescer that follows these rules."""
        return Coalescer(inputs, self, names, owner)


OURS = Rules()


@dataclass(frozen=True, slots=True)
class Released:
    """What is due, in order: the output is active again (`idle` is False), the watermark, the
    output is idle (`idle` is True).
    """

    watermark: int | None = None
    idle: bool | None = None


NOTHING = Released()


class Coalescer:
    """The promises of many inputs for one watermark key."""

    def __init__(
        self, inputs: int = 0, rules: Rules = OURS, names: Sequence[str] = (), owner: str = ""
    ) -> None:
        self.rules = rules
        self.names = names
        """What the inputs are called in error messages."""
        self.owner = owner
        """The owner of the inputs in error messages."""
        self.promises = np.full(inputs, MIN, np.int64)
        self.status = np.full(inputs, ACTIVE, np.int8)
        self.lifted = MIN
        """The promise for all inputs, including those that join later."""
        self.output = MIN
        self.is_idle = False
        self.steps_back = 0
        self.advances = 0
        self.after_end = 0
        """Number of promises and signs of life from inputs after their end."""
        self._gone = 0

    def __len__(self) -> int:
        """The inputs that have not left."""
        return len(self.status) - self._gone

    def promise(
        self, inputs: Inputs, values: np.ndarray | Sequence[int] | int, *, repeats: bool = False
    ) -> None:
        """Record a promise per input, which is also a sign of life; MIN is only a sign of life.

        With `repeats` values only describe what was seen, and a smaller one than before is no step
        back.
        """
        rows = self._rows(inputs)
        given = np.broadcast_to(np.asarray(values, np.int64), rows.shape)
        rows, given = self._heard(rows, given)
        before = self._before(rows, given)
        # After a lift the own promise of the input is unknown, so a value below the lift is no step
        # back.
        behind = self._is_behind(given, before) & (given > MIN) & (before > self.lifted)
        if behind.any() and not repeats:
            if self.rules.strict:
                first = int(np.flatnonzero(behind)[0])
                raise WatermarkError(
                    self._went_back(
                        self._name(int(rows[first])), int(before[first]), int(given[first])
                    )
                )
            self.steps_back += int(np.count_nonzero(behind))
        self.promises[rows] = np.maximum(before, given)
        self.status[rows] = ACTIVE

    def touch(self, inputs: Inputs) -> None:
        """Record a sign of life: an idle input becomes active."""
        rows = self._rows(inputs)
        ended = self.status[rows] >= DONE
        self.after_end += int(np.count_nonzero(ended))
        self.status[rows[~ended]] = ACTIVE

    def idle(self, inputs: Inputs) -> None:
        """Mark inputs idle until their next sign of life."""
        rows = self._rows(inputs)
        ended = self.status[rows] >= DONE
        self.status[rows[~ended]] = IDLE

    def done(self, inputs: Inputs) -> None:
        """Mark inputs ended; their last promises stay."""
        rows = self._rows(inputs)
        ended = self.status[rows] >= DONE
        self.status[rows[~ended]] = DONE

    def add(self, count: int = 1) -> np.ndarray:
        """Add inputs, active and without a promise; returns their numbers."""
        if count < 0:
            raise InputError(f"only a number of inputs that is not negative can join, got {count}")
        vacant = (
            np.flatnonzero(self.status == GONE)[:count] if self._gone else np.empty(0, np.int64)
        )
        size = len(self.status)
        more = size + count - len(vacant)
        self.promises, self.status = longer(self.promises, more), longer(self.status, more)
        rows = np.concatenate([vacant, np.arange(size, more)])
        self._gone -= len(vacant)
        self.promises[rows], self.status[rows] = self.lifted, ACTIVE
        return rows

    def remove(self, inputs: Inputs) -> None:
        """Remove inputs; the others keep their numbers."""
        rows = self._rows(inputs)
        self.promises[rows], self.status[rows] = MIN, GONE
        self._gone = int(np.count_nonzero(self.status == GONE))

    def lift(self, value: int) -> None:
        """Promise a value for all inputs that have not ended, including later ones. It is no sign
        of life.
        """
        if value < self.lifted:
            if self.rules.strict:
                raise WatermarkError(
                    self._went_back("the watermark for all sources", self.lifted, value)
                )
            self.steps_back += 1
            return
        self.lifted = int(value)
        running = self.status < DONE
        self.promises[running] = np.maximum(self.promises[running], value)

    def release(self) -> Released:
        """The watermark that is due, if any, and whether the output has become idle or active.

        Forwarding a watermark is a sign of life, so an idle output repeats its idleness after each.
        """
        candidate, idle = self._standing()
        risen = candidate > self.output
        if risen:
            self.output = candidate
            self.advances += 1
        turned, self.is_idle = idle != self.is_idle, idle
        if not (risen or turned):
            return NOTHING
        return Released(candidate if risen else None, idle if turned or idle else None)

    def holders(self) -> np.ndarray:
        """The active inputs that hold the output back: those without a promise, or those with the
        least one.
        """
        active = self.status == ACTIVE
        waited = self._waited(active)
        if not waited.any():
            return np.flatnonzero(active)
        silent = waited & (self.promises == MIN)
        return np.flatnonzero(silent) if silent.any() else self._lowest(waited)

    def _lowest(self, waited: np.ndarray) -> np.ndarray:
        """The inputs with the least promise, and those that came back behind the output."""
        least = self.promises[waited].min()
        return np.flatnonzero(waited & ((self.promises == least) | (self.promises < self.output)))

    def save(self) -> dict[str, Any]:
        return {
            "promises": self.promises.tolist(),
            "status": self.status.tolist(),
            "lifted": self.lifted,
            "output": self.output,
            "idle": self.is_idle,
            "steps_back": self.steps_back,
            "advances": self.advances,
            "after_end": self.after_end,
        }

    def restore(self, document: dict[str, Any]) -> None:
        self.promises = np.array(document["promises"], np.int64)
        self.status = np.array(document["status"], np.int8)
        self._gone = int(np.count_nonzero(self.status == GONE))
        self.lifted, self.output, self.is_idle = (
            document["lifted"],
            document["output"],
            document["idle"],
        )
        self.steps_back, self.advances, self.after_end = (
            document["steps_back"],
            document["advances"],
            document["after_end"],
        )

    def _standing(self) -> tuple[int, bool]:
        """The watermark that the inputs allow, and whether all of them are idle or ended."""
        if not len(self):
            return self.lifted, self.is_idle
        active = self.status == ACTIVE
        if not active.any():
            return max(self.lifted, int(self.promises.max())), True
        return self._least(active), False

    def _least(self, active: np.ndarray) -> int:
        waited = self._waited(active)
        promises = self.promises if waited.all() else self.promises[waited]
        return int(promises.min()) if len(promises) else MIN

    def _waited(self, active: np.ndarray) -> np.ndarray:
        """The active inputs that can hold the output back."""
        return active & (self.promises >= self.output) if self.rules.realign else active

    def _rows(self, inputs: Inputs) -> np.ndarray:
        rows = np.atleast_1d(np.asarray(inputs, np.int64))
        if len(rows) and not (rows.min() >= 0 and rows.max() < len(self.status)):
            raise InputError(
                f"there are inputs 0 to {len(self.status) - 1}, got {rows.min()} to {rows.max()}."
                " Hint: `add` lets one join"
            )
        return rows

    def _heard(self, rows: np.ndarray, given: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The promises of inputs that have not ended."""
        ended = self.status[rows] >= DONE
        if not ended.any():
            return rows, given
        self.after_end += int(np.count_nonzero(ended))
        return rows[~ended], given[~ended]

    def _is_behind(self, given: np.ndarray, before: np.ndarray) -> np.ndarray:
        """Mask of promises that step back."""
        return given < before

    def _before(self, rows: np.ndarray, given: np.ndarray) -> np.ndarray:
        """The promise before each of the given ones, in their order; an input may occur several
        times.
        """
        stood = self.promises[rows]
        if len(rows) < 2:
            return stood
        number = np.arange(len(rows))
        last = np.empty(len(self.promises), np.int64)
        last[rows] = number
        if (last[rows] == number).all():
            return stood
        order = np.argsort(rows, kind="stable")
        again = rows[order][1:] == rows[order][:-1]
        group = np.concatenate([[0], np.cumsum(~again)])
        values, rank = np.unique(np.maximum(stood, given)[order], return_inverse=True)
        # Ranks of a later group are above those of all earlier ones, so one running maximum
        # serves all groups.
        highest = values[np.maximum.accumulate(group * len(values) + rank) - group * len(values)]
        before = stood[order]
        before[1:][again] = highest[:-1][again]
        stood[order] = before
        return stood

    def _name(self, row: int) -> str:
        name = self.names[row] if row < len(self.names) else ""
        if not name:
            return self.owner or f"input {row}"
        return f"source `{name}` of {self.owner}" if self.owner else f"source `{name}`"

    def _went_back(self, who: str, old: int, new: int) -> str:
        return (
            f"{who} went back from {format_instant(old)} to {format_instant(new)}, and `strict`"
            " forbids it. Hint: allow for more disorder where its watermark is made, or leave"
            " `strict` out: then a step back is ignored and counted"
        )


def longer(column: np.ndarray, size: int) -> np.ndarray:
    """The column with room for more entries; it grows by doubling, so that joining one by one is
    cheap.
    """
    room = column if column.base is None else column.base
    if size > len(room):
        room = np.empty(max(size, 2 * len(room)), column.dtype)
        room[: len(column)] = column
    return room[:size]

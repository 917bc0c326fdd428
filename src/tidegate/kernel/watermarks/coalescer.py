"""A coalescer makes one watermark of the promises of many inputs: the least promise of those that
are active, and never a smaller one than before.

All is kept in columns with one entry an input, and every call costs at most a few passes over them.
The verbs only change the columns; `release` looks at them once and says what is due. An input that
has left leaves a slot behind, which the next one to join takes over, so that endless joining and
leaving needs no more memory than the most inputs there ever were at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tidegate.errors import InputError, SpecError, WatermarkError
from tidegate.instants import MAX, MIN, clamp, format_instant

ACTIVE, IDLE, DONE, GONE = range(4)
"""What an input is; `GONE` is the slot of one that has left."""
STATUS = {ACTIVE: "active", IDLE: "idle", DONE: "ended"}
"""The same in words, for those that are there."""

Inputs = np.ndarray | Sequence[int] | int


@dataclass(frozen=True)
class Rules:
    """How promises are judged and put together; the defaults are ours, the rest is there for those
    who know it from another system.
    """

    strict: bool = False
    """A promise below the last one of its input is an error; otherwise it is ignored and counted.
    """
    increasing: bool = False
    """With `strict`: so are a promise that repeats the last one, and whatever is said of an input
    after its end (Hazelcast).
    """
    realign: bool = False
    """An active input behind the output is left out until it has caught up (Flink); otherwise it is
    waited for.
    """
    woken_by: str = "any"
    """What ends the idleness of an input: `any` sign of life, or a `touch` only, and promises made
    meanwhile are ignored (Flink).
    """
    policy: str = "min"
    """The least promise of the active inputs, or with `max` the highest promise of any (Spark)."""
    quorum: float = 1.0
    """The share of all inputs that must be active and have spoken (Samza); those that have not
    spoken are then no longer waited for.

    With fewer, none is left out for being idle: the least promise of all counts. 1 asks it of the
    active inputs only.
    """
    patient: bool = False
    """With a `quorum`: an active input that has not spoken is waited for all the same, until it is
    idle.
    """
    frame: int = 0
    """Outputs are rounded down to a multiple of it, so that small steps are not passed on; 0 passes
    on all.
    """
    any_key_wakes: bool = False
    """With several keys: a watermark of one key ends the idleness of its input for keys that nobody
    has mentioned yet (Hazelcast).
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
                "the maximum waits for nobody, so it goes with neither `quorum` nor `realign`."
                " Hint: leave them out"
            )


OURS = Rules()


@dataclass(frozen=True, slots=True)
class Released:
    """What is due: first that the output is active again (`idle` is False), then the watermark,
    then that it is idle (`idle` is True).
    """

    watermark: int | None = None
    idle: bool | None = None


NOTHING = Released()


class Coalescer:
    """The promises of many inputs, one key, one output."""

    def __init__(
        self, inputs: int = 0, rules: Rules = OURS, names: Sequence[str] = (), owner: str = ""
    ) -> None:
        self.rules = rules
        self.names = names
        """What the inputs are called in the text of an error."""
        self.owner = owner
        """Whose they are, where that has to be said."""
        self.promises = np.full(inputs, MIN, np.int64)
        self.status = np.full(inputs, ACTIVE, np.int8)
        self.lifted = MIN
        """What was promised for all inputs, also those to come."""
        self.output = MIN
        self.is_idle = False
        self.steps_back = 0
        self.advances = 0
        self.after_end = 0
        """Promises and signs of life that came from an input after its end."""
        self._gone = 0

    def __len__(self) -> int:
        """The inputs that have not left."""
        return len(self.status) - self._gone

    def promise(
        self, inputs: Inputs, values: np.ndarray | Sequence[int] | int, *, repeats: bool = False
    ) -> None:
        """Each input promises a value, which is a sign of life too; MIN is only that, and so is a
        value that came before.

        With `repeats` the values only tell what was seen, and a smaller one than before is no step
        back but a sign of life.
        """
        rows = self._rows(inputs)
        given = np.broadcast_to(np.asarray(values, np.int64), rows.shape)
        rows, given = self._heard(rows, given)
        before = self._before(rows, given)
        # After a lift it is not known what the input itself had said, so what is below the lift is
        # no step back.
        behind = given <= before if self.rules.increasing else given < before
        behind &= (given > MIN) & (before > self.lifted)
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
        """An event came: an idle input is active again."""
        rows = self._rows(inputs)
        ended = self.status[rows] >= DONE
        self.after_end += int(np.count_nonzero(ended))
        self.status[rows[~ended]] = ACTIVE

    def idle(self, inputs: Inputs) -> None:
        """Nobody should wait for these inputs until they show a sign of life."""
        rows = self._rows(inputs)
        ended = self.status[rows] >= DONE
        self._refuse_after_end(rows[ended])
        self.status[rows[~ended]] = IDLE

    def done(self, inputs: Inputs) -> None:
        """These inputs have ended; their last promises stay."""
        rows = self._rows(inputs)
        ended = self.status[rows] >= DONE
        self._refuse_after_end(rows[ended])
        self.status[rows[~ended]] = DONE

    def add(self, count: int = 1) -> np.ndarray:
        """Inputs join, active and without a promise of their own; the answer is their numbers."""
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
        """Inputs leave and count for nothing from now on; the others keep their numbers."""
        rows = self._rows(inputs)
        self.promises[rows], self.status[rows] = MIN, GONE
        self._gone = int(np.count_nonzero(self.status == GONE))

    def lift(self, value: int) -> None:
        """A promise for all inputs that have not ended, also for those to come; it is nobody's sign
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

        Who forwards a watermark shows a sign of life, so an output that is idle says so again after
        each.
        """
        candidate, idle = self._standing()
        candidate = self._framed(candidate)
        risen = candidate > self.output
        if risen:
            self.output = candidate
            self.advances += 1
        turned, self.is_idle = idle != self.is_idle, idle
        if not (risen or turned):
            return NOTHING
        return Released(candidate if risen else None, idle if turned or idle else None)

    def holders(self) -> np.ndarray:
        """The active inputs that hold the output where it is: those without a promise if they are
        waited for, or those with the least one.
        """
        active = self.status == ACTIVE
        if self.rules.policy == "max" or not active.any():
            return np.flatnonzero(active)
        waited = self._waited(active)
        if not waited.any():
            return np.flatnonzero(active)
        silent = waited & (self.promises == MIN)
        spoken = waited & ~silent
        if silent.any() and not (self._has_quorum(active) and spoken.any()):
            return np.flatnonzero(silent)
        # Those that came back behind the output all have to reach it before it moves.
        return np.flatnonzero(
            spoken
            & ((self.promises == self.promises[spoken].min()) | (self.promises < self.output))
        )

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
        """How far the inputs would let the output go, and whether all of them are idle or done."""
        if not len(self):
            return self.lifted, self.is_idle
        active = self.status == ACTIVE
        if not active.any():
            return max(self.lifted, int(self.promises.max())), True
        if self.rules.policy == "max":
            return max(self.lifted, int(self.promises.max())), False
        return self._least(active), False

    def _least(self, active: np.ndarray) -> int:
        waited = self._waited(active)
        promises = self.promises if waited.all() else self.promises[waited]
        if not len(promises):
            return MIN
        if self.rules.quorum < 1:
            spoken = promises[promises > MIN]
            if len(spoken) < len(promises) and self.rules.patient:
                return MIN
            if not self._has_quorum(active):
                return int(self.promises[self.status < DONE].min())
            return int(spoken.min()) if len(spoken) else MIN
        return int(promises.min())

    def _waited(self, active: np.ndarray) -> np.ndarray:
        """The active inputs that the output waits for."""
        return active & (self.promises >= self.output) if self.rules.realign else active

    def _has_quorum(self, active: np.ndarray) -> bool:
        """Whether so many have spoken that the others are not waited for."""
        if self.rules.quorum == 1:
            return False
        # A share such as 0.29 of 100 is meant to be 29, and a float makes it a little less.
        needed = max(1, math.floor(self.rules.quorum * len(self) + 1e-9))
        return int(np.count_nonzero(active & (self.promises > MIN))) >= needed

    def _framed(self, value: int) -> int:
        frame = self.rules.frame
        return value if frame <= 1 or value in {MIN, MAX} else clamp(value // frame * frame)

    def _rows(self, inputs: Inputs) -> np.ndarray:
        rows = np.atleast_1d(np.asarray(inputs, np.int64))
        if len(rows) and not (rows.min() >= 0 and rows.max() < len(self.status)):
            raise InputError(
                f"there are inputs 0 to {len(self.status) - 1}, got {rows.min()} to {rows.max()}."
                " Hint: `add` lets one join"
            )
        return rows

    def _heard(self, rows: np.ndarray, given: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The promises of inputs that may still promise something."""
        status = self.status[rows]
        ended = status >= DONE
        if ended.any():
            self._refuse_after_end(rows[ended])
            self.after_end += int(np.count_nonzero(ended))
        heard = ~ended
        if self.rules.woken_by == "touch":
            heard &= (status == ACTIVE) | (given == MIN)
        return (rows, given) if heard.all() else (rows[heard], given[heard])

    def _before(self, rows: np.ndarray, given: np.ndarray) -> np.ndarray:
        """The promise that stood before each of the given ones, as if they came one by one; an
        input may come several times.
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
        # Ranks of a later group lie above those of all earlier ones, so one running maximum serves
        # all groups.
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
        if old == new:
            return (
                f"{who} promised {format_instant(new)} twice, and its watermarks must increase."
                " Hint: `increasing=False` allows it"
            )
        return (
            f"{who} went back from {format_instant(old)} to {format_instant(new)}, and `strict`"
            " forbids it. Hint: allow for more disorder where its watermark is made, or leave"
            " `strict` out: then a step back is ignored and counted"
        )

    def _refuse_after_end(self, rows: np.ndarray) -> None:
        if len(rows) and self.rules.increasing:
            who = self._name(int(rows[0]))
            raise WatermarkError(
                f"{who} has ended, and something was said of it again. Hint: let a new one join, or"
                " leave `increasing` out"
            )


def longer(column: np.ndarray, size: int) -> np.ndarray:
    """The column with room for more entries at its end; it grows by doubling, so that joining one
    by one costs what joining at once does.
    """
    room = column if column.base is None else column.base
    if size > len(room):
        room = np.empty(max(size, 2 * len(room)), column.dtype)
        room[: len(column)] = column
    return room[:size]

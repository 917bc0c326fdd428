"""The specification of a windowed aggregate: one frozen record of what comes in, how it is windowed, when it fires and what comes out."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from tidegate.errors import SpecError
from tidegate.spec.aggregates import Aggregate
from tidegate.spec.evictors import Evictor
from tidegate.spec.triggers import Policy, Trigger
from tidegate.spec.watermarks import Implied, Watermarks
from tidegate.spec.windows import Axis, Inherited, Window

SECOND = 1_000_000
RESERVED = frozenset(
    {"window_start", "window_end", "op", "timing", "pane", "pane_nonspeculative", "is_first", "is_last", "time", "watermark", "emitted_at"}
    | {"pane_id", "class", "reason", "detail", "windows"}
)
_MODES = ("accumulating", "discarding", "retracting")
_CHOICES: dict[str, tuple[str, ...]] = {
    "drop_by": ("event", "window"),
    "session_lateness": ("own", "merged"),
    "future": ("process", "reject"),
    "future_reference": ("clock", "watermark"),
    "on_time": ("if_nonempty", "if_updated", "always"),
    "closing": ("if_nonempty", "always", "never"),
    "granularity": ("element", "batch"),
    "timestamp": ("end_of_window", "earliest", "latest"),
}


@dataclass(frozen=True)
class Input:
    """Which columns of the input say when, whose and which message a row is."""

    time: str | None = None
    key: tuple[str, ...] = ()
    id: str | None = None
    offset: str | None = None
    partition: str | None = None
    watermark: Watermarks = field(default_factory=Implied)

    def __post_init__(self) -> None:
        if self.id is not None and self.offset is not None:
            raise SpecError("duplicates are recognised by `offset=` or by `id=`, not by both. Hint: name one of them")
        if len(set(self.key)) != len(self.key):
            raise SpecError(f"key columns must be different, got {list(self.key)}")


@dataclass(frozen=True)
class Retention:
    """Bounds on state beside lateness; None is unbounded."""

    time: int | None = None
    windows: int | None = None
    messages: int | None = None
    bytes: int | None = None

    def __post_init__(self) -> None:
        for bound in dataclasses.fields(self):
            value = getattr(self, bound.name)
            if value is not None and value <= 0:
                raise SpecError(f"retention by {bound.name} must be positive, got {value}")

    def __bool__(self) -> bool:
        return any(getattr(self, f.name) is not None for f in dataclasses.fields(self))


@dataclass(frozen=True)
class Options:
    """What people change rarely; the defaults are Tidegate's own semantics."""

    drop_by: str = "event"
    session_lateness: str = "own"
    future: str = "process"
    future_tolerance: int = 60 * SECOND
    future_reference: str = "clock"
    fire_only_updated: bool = False
    on_time: str = "if_nonempty"
    closing: str = "if_nonempty"
    granularity: str = "element"
    timestamp: str = "end_of_window"
    strict: bool = False
    keep_fired: bool = True
    keep_messages: bool = False

    def __post_init__(self) -> None:
        for name, allowed in _CHOICES.items():
            value = getattr(self, name)
            if value not in allowed:
                raise SpecError(f"`{name}` must be one of {', '.join(allowed)}; got {value!r}")
        if self.future_tolerance < 0:
            raise SpecError(f"`future_tolerance` can't be negative, got {self.future_tolerance}")


@dataclass(frozen=True)
class AggregateSpec:
    """A windowed aggregate, whole."""

    input: Input
    window: Window
    aggregates: tuple[tuple[str, Aggregate], ...]
    trigger: Trigger | None = None
    mode: str = "accumulating"
    allowed_lateness: int = 60 * SECOND
    options: Options = field(default_factory=Options)
    retention: Retention = field(default_factory=Retention)
    evictor: Evictor | None = None

    def __post_init__(self) -> None:
        if self.mode not in _MODES:
            raise SpecError(f"`mode` must be one of {', '.join(_MODES)}; got {self.mode!r}")
        if self.allowed_lateness < 0:
            raise SpecError(f"`allow_lateness` can't be negative, got {self.allowed_lateness}")
        self._check_names()
        self._check_modes()
        self._check_axis()

    @property
    def firing(self) -> Trigger:
        """The trigger in force: where none was given, one pane when complete and late updates batched for 10 seconds."""
        return Policy() if self.trigger is None else self.trigger

    def to_dict(self) -> dict[str, Any]:
        """The JSON form: two specifications with the same form may share stored state."""
        return {
            "input": {**dataclasses.asdict(self.input), "key": list(self.input.key), "watermark": repr(self.input.watermark)},
            "window": self.window.to_dict(),
            "aggregates": {name: aggregate.to_dict() for name, aggregate in self.aggregates},
            "trigger": str(self.firing),
            "mode": self.mode,
            "allowed_lateness": self.allowed_lateness,
            "options": dataclasses.asdict(self.options),
            "retention": dataclasses.asdict(self.retention),
            "evictor": repr(self.evictor),
        }

    def _check_names(self) -> None:
        names = [name for name, _ in self.aggregates]
        if not names:
            raise SpecError("`aggregate` needs at least one aggregate. Hint: .aggregate(n=tg.count())")
        taken = RESERVED & {*names, *self.input.key}
        if taken:
            raise SpecError(f"the name(s) {', '.join(sorted(taken))} belong to columns that every pane has. Hint: choose another name")
        both = set(names) & set(self.input.key)
        if both:
            raise SpecError(f"the name(s) {', '.join(sorted(both))} are key columns and aggregates at once. Hint: rename the aggregate")

    def _check_modes(self) -> None:
        if self.options.fire_only_updated and self.mode == "discarding":
            raise SpecError("`fire_only_updated` contradicts discarding: a discarded pane has no former value. Hint: use accumulating or retracting")
        if not self.options.keep_fired and (self.mode == "retracting" or self.options.fire_only_updated):
            raise SpecError("`keep_fired=False` forgets the values that were fired, but retracting and `fire_only_updated` need them")

    def _check_axis(self) -> None:
        axis = self.window.axis
        if axis is Axis.EVENT_TIME and self.input.time is None and not isinstance(self.window, Inherited):
            raise SpecError("a window on event time needs a time column. Hint: tg.stream(time='ts', ...)")
        if not axis.is_time and self.retention.time is not None:
            raise SpecError(f"retention by time needs a window on time, this one is on {axis}. Hint: retain by windows or messages")
        if axis is Axis.OFFSET and self.input.offset is None:
            raise SpecError("a window on offsets needs an offset column. Hint: tg.stream(offset='offset', ...)")

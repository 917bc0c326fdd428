"""Trigger specifications: when a window emits a pane.

A trigger is a tree of frozen values with a text form that parses back. `kernel.triggers` has the
state machines that run these trees. Names and semantics follow Beam where Beam has the trigger.
Constructors take ticks (microseconds); the lower-case functions take durations in any form.

>>> str(after_watermark(early=after_count(2), late=after_count(1)))
'AfterWatermark(early=AfterCount(2), late=AfterCount(1))'
"""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.errors import SpecError
from tidegate.instants import MAX, Duration, duration, format_duration


class Trigger:
    """Base of all triggers; immutable, compares by value."""

    __slots__ = ()

    @property
    def children(self) -> tuple[Trigger, ...]:
        """The direct subtriggers, in the order of the text form."""
        return ()

    def or_finally(self, until: Trigger) -> OrFinally:
        """This trigger until the other one fires, which finishes both."""
        return OrFinally(self, until)

    def _arguments(self) -> list[str]:
        """The arguments of the text form."""
        return [str(child) for child in self.children]

    def __str__(self) -> str:
        return f"{type(self).__name__}({', '.join(self._arguments())})"


def _check_trigger(owner: str, role: str, value: object) -> None:
    if not isinstance(value, Trigger):
        raise SpecError(
            f"`{role}` of `{owner}` must be a trigger, got {value!r}. Hint: write for instance"
            " after_count(1)"
        )


def _check_count(owner: str, value: object, unit: str, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MAX:
        raise SpecError(
            f"`{owner}` needs a whole number of {unit}, at least {least}, got {value!r}"
        )


def _check_span(owner: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise SpecError(f"`{owner}` needs a whole number of ticks, got {value!r}")
    if not least <= value <= MAX:
        bound = "greater than 0" if least else "of at least 0"
        raise SpecError(f"`{owner}` needs a duration {bound}, got {format_duration(value)}")


def _check_flag(owner: str, name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise SpecError(f"`{name}` of `{owner}` must be True or False, got {value!r}")


def _named(owner: str, **parts: Trigger | None) -> None:
    for role, part in parts.items():
        if part is not None:
            _check_trigger(owner, role, part)


@dataclass(frozen=True, slots=True)
class AfterWatermark(Trigger):
    """Fires when the watermark reaches the end of the window.

    `early` repeats before that, `late` after. Without `late` the trigger finishes there.
    """

    early: Trigger | None = None
    late: Trigger | None = None

    def __post_init__(self) -> None:
        _named("AfterWatermark", early=self.early, late=self.late)

    @property
    def children(self) -> tuple[Trigger, ...]:
        return tuple(part for part in (self.early, self.late) if part is not None)

    def _arguments(self) -> list[str]:
        return [
            f"{role}={part}"
            for role, part in (("early", self.early), ("late", self.late))
            if part is not None
        ]


@dataclass(frozen=True, slots=True)
class AfterCount(Trigger):
    """Fires once, when at least `n` elements have arrived."""

    n: int

    def __post_init__(self) -> None:
        _check_count("AfterCount", self.n, "elements", 1)

    def _arguments(self) -> list[str]:
        return [str(self.n)]


@dataclass(frozen=True, slots=True)
class EveryElement(Trigger):
    """Fires for every element, forever."""


@dataclass(frozen=True, slots=True)
class AfterDelay(Trigger):
    """Fires once, when the clock is `delay` past the arrival of the first element of the pane."""

    delay: int

    def __post_init__(self) -> None:
        _check_span("AfterDelay", self.delay, 0)

    def _arguments(self) -> list[str]:
        return [f'"{format_duration(self.delay)}"']


@dataclass(frozen=True, slots=True)
class Every(Trigger):
    """Fires at every `interval` of the clock since the creation of the window, if elements arrived.

    With `refire` it also fires if none arrived. With `aligned` it fires at the multiples of the
    interval.
    """

    interval: int
    refire: bool = False
    aligned: bool = False

    def __post_init__(self) -> None:
        _check_span("Every", self.interval, 1)
        _check_flag("Every", "refire", self.refire)
        _check_flag("Every", "aligned", self.aligned)

    def _arguments(self) -> list[str]:
        flags = [f"{name}=True" for name in ("refire", "aligned") if getattr(self, name)]
        return [f'"{format_duration(self.interval)}"', *flags]


@dataclass(frozen=True, slots=True)
class EventInterval(Trigger):
    """Fires when the watermark passes a multiple of `interval`, if elements arrived.

    With `refire` it also fires if none arrived. The first multiple is the one after the earliest
    element, or with `refire` after the element that arrived first.
    """

    interval: int
    refire: bool = False

    def __post_init__(self) -> None:
        _check_span("EventInterval", self.interval, 1)
        _check_flag("EventInterval", "refire", self.refire)

    def _arguments(self) -> list[str]:
        return [f'"{format_duration(self.interval)}"', *(["refire=True"] if self.refire else [])]


@dataclass(frozen=True, slots=True)
class Repeatedly(Trigger):
    """Restarts the trigger each time it has finished, forever."""

    trigger: Trigger

    def __post_init__(self) -> None:
        _check_trigger("Repeatedly", "trigger", self.trigger)

    @property
    def children(self) -> tuple[Trigger, ...]:
        return (self.trigger,)


@dataclass(frozen=True, slots=True, init=False, repr=False)
class _Several(Trigger):
    """A trigger made of one or more others, given as positional arguments."""

    triggers: tuple[Trigger, ...]

    def __init__(self, *triggers: Trigger) -> None:
        name = type(self).__name__
        if not triggers:
            raise SpecError(
                f"`{name}` needs at least one trigger, got none. Hint: {name}(AfterCount(2),"
                " AfterWatermark())"
            )
        for position, trigger in enumerate(triggers, 1):
            _check_trigger(name, f"argument {position}", trigger)
        object.__setattr__(self, "triggers", triggers)

    @property
    def children(self) -> tuple[Trigger, ...]:
        return self.triggers

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.triggers))})"


class AfterEach(_Several):
    """Runs its triggers in sequence; the next one starts when the former has finished."""

    __slots__ = ()


class AfterAll(_Several):
    """Fires once, when all its triggers are ready."""

    __slots__ = ()


class AfterAny(_Several):
    """Fires once, when one of its triggers is ready."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class OrFinally(Trigger):
    """Runs `main` until it finishes or `until` fires.

    `until` sees every element, also across the firings of `main`.
    """

    main: Trigger
    until: Trigger

    def __post_init__(self) -> None:
        _check_trigger("OrFinally", "main", self.main)
        _check_trigger("OrFinally", "until", self.until)

    @property
    def children(self) -> tuple[Trigger, ...]:
        return (self.main, self.until)


@dataclass(frozen=True, slots=True)
class Never(Trigger):
    """Never fires; the content of the window is emitted when the window closes."""


@dataclass(frozen=True, slots=True)
class Default(Trigger):
    """Ready whenever the watermark is at or past the end of the window; never finishes.

    So each late element fires again.
    """


LATE_UPDATES = AfterDelay(10_000_000)
"""The default late trigger: late updates are batched for ten seconds."""


@dataclass(frozen=True, slots=True)
class Policy(Trigger):
    """Early emission, full size and late arrival.

    Like `AfterWatermark`, but an early trigger that has finished just stops. A window is full when
    the watermark reaches its end, or when the trigger `full` is ready, whichever comes first.
    """

    early: Trigger | None = None
    late: Trigger | None = LATE_UPDATES
    full: Trigger | None = None

    def __post_init__(self) -> None:
        _named("Policy", early=self.early, late=self.late, full=self.full)

    @property
    def children(self) -> tuple[Trigger, ...]:
        return tuple(part for part in (self.early, self.late, self.full) if part is not None)

    def _arguments(self) -> list[str]:
        early = [] if self.early is None else [f"early={self.early}"]
        full = [] if self.full is None else [f"full={self.full}"]
        return [*early, f"late={self.late}", *full]


def contains_refire(trigger: Trigger) -> bool:
    """Whether a part of the trigger may fire without new elements."""
    return (isinstance(trigger, Every | EventInterval) and trigger.refire) or any(
        contains_refire(part) for part in trigger.children
    )


def needs_all(trigger: Trigger) -> bool:
    """Whether a part of the trigger waits for all of its own parts."""
    return isinstance(trigger, AfterAll) or any(map(needs_all, trigger.children))


def after_watermark(*, early: Trigger | None = None, late: Trigger | None = None) -> AfterWatermark:
    """One pane when the window is complete, `early` panes before it and `late` panes after it."""
    return AfterWatermark(early, late)


def after_count(n: int) -> AfterCount:
    """A pane after `n` elements."""
    return AfterCount(n)


def every_element() -> EveryElement:
    """A pane for every element."""
    return EveryElement()


def after_delay(delay: Duration, *, unit: str | None = None) -> AfterDelay:
    """A pane when the clock is `delay` past the arrival of its first element."""
    return AfterDelay(duration(delay, unit=unit))


def every(
    interval: Duration, *, unit: str | None = None, refire: bool = False, aligned: bool = False
) -> Every:
    """A pane at every `interval` of the clock if elements arrived.

    With `refire` even if none did. Intervals count from the first element of the window, or with
    `aligned` from the epoch: every full minute, every full hour.
    """
    return Every(duration(interval, unit=unit), refire, aligned)


def event_interval(
    interval: Duration, *, unit: str | None = None, refire: bool = False
) -> EventInterval:
    """A pane when the watermark passes a multiple of `interval`, if elements arrived.

    With `refire` even if none did.
    """
    return EventInterval(duration(interval, unit=unit), refire)


def repeatedly(trigger: Trigger) -> Repeatedly:
    """The trigger, restarted each time it has finished."""
    return Repeatedly(trigger)


def after_each(*triggers: Trigger) -> AfterEach:
    """The triggers in sequence."""
    return AfterEach(*triggers)


def after_all(*triggers: Trigger) -> AfterAll:
    """One pane when all the triggers are ready."""
    return AfterAll(*triggers)


def after_any(*triggers: Trigger) -> AfterAny:
    """One pane when one of the triggers is ready."""
    return AfterAny(*triggers)


def or_finally(main: Trigger, until: Trigger) -> OrFinally:
    """`main` until `until` fires."""
    return OrFinally(main, until)


def never() -> Never:
    """No pane before the window closes."""
    return Never()


def policy(
    *,
    early: Trigger | None = None,
    late: Trigger | None = LATE_UPDATES,
    full: Trigger | None = None,
) -> Policy:
    """One pane when the window is full; late updates are batched for ten seconds.

    An `early` trigger that has finished just stops.
    """
    return Policy(early, late, full)

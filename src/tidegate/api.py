"""The Python API: a stream, a window, a trigger, a mode and aggregates, said one after the other; each step is a new frozen value."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tidegate.embedded.async_map import EmbeddedAsyncMap
from tidegate.embedded.async_rows import AsyncResults
from tidegate.embedded.operator import Downstream, EmbeddedOperator
from tidegate.embedded.outlet import Target
from tidegate.errors import SpecError
from tidegate.instants import Duration, Instant, duration, instant
from tidegate.spec.aggregates import Aggregate
from tidegate.spec.async_map import AsyncMap
from tidegate.spec.evictors import Evictor
from tidegate.spec.operator import AggregateSpec, Input, Options, Retention, TimeColumn, check_union
from tidegate.spec.presets import habits
from tidegate.spec.trigger_text import parse_trigger
from tidegate.spec.triggers import AfterDelay, Policy, Trigger
from tidegate.spec.watermarks import Explicit, Implied, Watermarks
from tidegate.spec.windows import Inherited, Window
from tidegate.state.protocol import Store

_DURATIONS = ("future_tolerance",)


@dataclass(frozen=True)
class Stream:
    """Messages, and which of their columns say when, whose and which they are."""

    input: Input
    also: tuple[Input, ...] = ()
    """Further inputs, where streams are united."""

    def window(self, window: Window, *, on: str | None = None) -> Windowed:
        """Put the messages into windows; `on` names the time column where the stream has several."""
        if not isinstance(window, Window):
            raise SpecError(f"`window` takes a window, got {window!r}. Hint: tg.tumbling('1 minute')")
        if on is None:
            return Windowed(self.input, window, also=self.also)
        return Windowed(self.input.on(on), window, also=tuple(given.on(on) for given in self.also))

    def aggregate(self, **aggregates: Aggregate) -> Panes:
        """Aggregate panes of an upstream operator in the windows that they come with."""
        return self.inherit().aggregate(**aggregates)

    def inherit(self) -> Windowed:
        """Take the windows of an upstream operator's panes, to say more about triggers and modes."""
        return Windowed(_inheriting(self.input), Inherited(), also=tuple(_inheriting(given) for given in self.also))

    def async_map(
        self,
        function: Callable[[Any], Awaitable[Any]],
        *,
        ordered: bool = True,
        max_in_flight: int = 100,
        timeout: Duration = "30 seconds",
        retries: int = 0,
        backoff: Duration = "100 ms",
        strict: bool = False,
        future_tolerance: Duration = "60 seconds",
        future_reference: str = "clock",
    ) -> Mapped:
        """Call an asynchronous function for every message; watermarks never overtake a message whose answer is pending.

        The last three say how watermarks are judged, as the options of a window do.
        """
        options = Options(strict=strict, future_tolerance=duration(future_tolerance), future_reference=future_reference)
        return Mapped(self.inputs, AsyncMap(function, ordered, max_in_flight, duration(timeout), retries, duration(backoff)), options)

    @property
    def inputs(self) -> tuple[Input, ...]:
        """All inputs, by ordinal."""
        return (self.input, *self.also)


def _inheriting(given: Input) -> Input:
    """Panes carry their time in the column `time`; the upstream tells the watermark."""
    if not isinstance(given.watermark, Implied | Explicit):
        raise SpecError(f"inherited windows follow the upstream's watermark, but `watermark` is {given.watermark}. Hint: leave it out")
    return dataclasses.replace(given, time=given.time or "time", watermark=Explicit())


@dataclass(frozen=True)
class Windowed:
    """Windowed messages, and all that decides when and how results come out."""

    input: Input
    windows: Window
    firing: Trigger | None = None
    mode: str | None = None
    lateness: int | None = None
    chosen: Options = field(default_factory=Options)
    said: frozenset[str] = frozenset()
    """The options that were named: a preset does not change them."""
    retention: Retention = field(default_factory=Retention)
    evictor: Evictor | None = None
    also: tuple[Input, ...] = ()

    def trigger(self, trigger: Trigger | str) -> Windowed:
        """Say when panes come out, as a trigger or as its text."""
        return dataclasses.replace(self, firing=parse_trigger(trigger) if isinstance(trigger, str) else trigger)

    def early_emission(self, trigger: Trigger) -> Windowed:
        """The early-emission policy: panes before the window is full. A trigger that finishes just stops."""
        return self._policy(early=trigger)

    def full_size(self, trigger: Trigger) -> Windowed:
        """The full-size policy: a window is full when the watermark reaches its end, or as soon as the trigger is ready."""
        return self._policy(full=trigger)

    def late_arrival(self, trigger: Trigger | None = None, *, every: Duration | None = None) -> Windowed:
        """The late-arrival policy: corrections are batched for `every`, or fire as the trigger says; neither means that there are none."""
        if trigger is not None and every is not None:
            raise SpecError("`late_arrival` takes a trigger or `every`, not both. Hint: leave one of them out")
        return self._policy(late=AfterDelay(duration(every)) if every is not None else trigger)

    def _policy(self, **parts: Trigger | None) -> Windowed:
        former = self.firing if self.firing is not None else Policy()
        if not isinstance(former, Policy):
            raise SpecError(f"policies and a trigger exclude each other; the trigger is {former}. Hint: say it all with `trigger`")
        return dataclasses.replace(self, firing=dataclasses.replace(former, **parts))

    def accumulating(self) -> Windowed:
        """A pane holds the whole window so far."""
        return dataclasses.replace(self, mode="accumulating")

    def discarding(self) -> Windowed:
        """A pane holds what came since the last pane."""
        return dataclasses.replace(self, mode="discarding")

    def retracting(self) -> Windowed:
        """A pane holds the whole window so far, and what it replaces is taken back before it."""
        return dataclasses.replace(self, mode="retracting")

    def allow_lateness(self, lateness: Duration, *, unit: str | None = None) -> Windowed:
        """How far behind the watermark an event is still taken; 60 seconds unless said."""
        return dataclasses.replace(self, lateness=duration(lateness, unit=unit))

    def options(self, *, semantics: str | None = None, **options: Any) -> Windowed:
        """Change what people change rarely; `semantics` takes the habits of another system for what was not said."""
        known = {field.name for field in dataclasses.fields(Options)}
        unknown = sorted(set(options) - known)
        if unknown:
            raise SpecError(f"there is no option {', '.join(f'`{u}`' for u in unknown)}; the options are {', '.join(sorted(known))}")
        options.update({name: duration(options[name]) for name in _DURATIONS if name in options})
        said = self.said | set(options)
        if semantics is None:
            return dataclasses.replace(self, chosen=dataclasses.replace(self.chosen, **options), said=said)
        preset = habits(semantics)
        rest = {name: value for name, value in preset.options.items() if name not in said}
        return dataclasses.replace(
            self,
            chosen=dataclasses.replace(self.chosen, **options, **rest),
            said=said,
            firing=self.firing if self.firing is not None else preset.trigger,
            mode=self.mode if self.mode is not None else preset.mode,
            lateness=self.lateness if self.lateness is not None else preset.allowed_lateness,
        )

    def retain(self, *, time: Duration | None = None, windows: int | None = None, messages: int | None = None, bytes: int | None = None) -> Windowed:
        """Bound the state: by time, and by windows and messages of a key, and by bytes."""
        return dataclasses.replace(self, retention=Retention(None if time is None else duration(time), windows, messages, bytes))

    def evict(self, evictor: Evictor) -> Windowed:
        """Leave messages of a window out, before the function or after it."""
        return dataclasses.replace(self, evictor=evictor)

    def aggregate(self, **aggregates: Aggregate) -> Panes:
        """Say what is computed; the names become columns of the panes."""
        for name, aggregate in aggregates.items():
            if not isinstance(aggregate, Aggregate):
                raise SpecError(f"`{name}` is no aggregate: {aggregate!r}. Hint: {name}=tg.count()")
        lateness: dict[str, Any] = {} if self.lateness is None else {"allowed_lateness": self.lateness}
        rest = {"options": self.chosen, "retention": self.retention, "evictor": self.evictor, "also": self.also, **lateness}
        return Panes(AggregateSpec(self.input, self.windows, tuple(aggregates.items()), self.firing, self.mode or "accumulating", **rest))


@dataclass(frozen=True)
class Panes:
    """A complete specification of panes, ready to be run."""

    spec: AggregateSpec

    def embedded(
        self, *, store: Store | None = None, downstream: Downstream | Target | None = None, now: Instant | None = None
    ) -> EmbeddedOperator:
        """An operator in this process; a store that holds state of this specification is continued.

        With `now` the clock begins there and moves only where a call tells it; without, the clock of the machine is read.
        """
        return EmbeddedOperator(self.spec, store=store, downstream=downstream, now=None if now is None else instant(now))


@dataclass(frozen=True)
class Mapped:
    """A stream whose messages go through an asynchronous function."""

    inputs: tuple[Input, ...]
    map: AsyncMap
    options: Options = field(default_factory=Options)

    def embedded(
        self,
        *,
        store: Store | None = None,
        downstream: Target | Callable[[AsyncResults], bool | None] | None = None,
        now: Instant | None = None,
    ) -> EmbeddedAsyncMap:
        """An operator in this process; see `Panes.embedded`."""
        clock = None if now is None else instant(now)
        return EmbeddedAsyncMap(self.map, self.inputs, options=self.options, store=store, downstream=downstream, now=clock)


def union(*streams: Stream) -> Stream:
    """Messages of all streams as one: a watermark is forwarded when every stream has it."""
    if not streams or not all(isinstance(given, Stream) for given in streams):
        raise SpecError("`union` takes streams. Hint: tg.union(tg.stream(time='ts'), tg.stream(time='ts'))")
    inputs = [given for united in streams for given in united.inputs]
    check_union(inputs)
    return Stream(inputs[0], tuple(inputs[1:]))


def stream(
    *,
    time: str | None = None,
    key: str | Sequence[str] | None = None,
    id: str | None = None,
    offset: str | None = None,
    partition: str | None = None,
    watermark: Watermarks | None = None,
    watermark_key: int = 0,
    times: Mapping[str, Watermarks | tuple[int, Watermarks]] | None = None,
) -> Stream:
    """Messages with these columns; without `watermark` it follows the newest event.

    `times` names further time columns with watermarks of their own, which get the keys after `watermark_key` in their order, or the key that
    stands before the watermark.
    """
    keys = () if key is None else (key,) if isinstance(key, str) else tuple(key)
    others, free = [], watermark_key
    for name, said in (times or {}).items():
        match said:
            case Watermarks():
                free, mark = free + 1, said
            case (int(free), Watermarks() as mark):
                pass
            case _:
                raise SpecError(f"`times` names columns with a watermark, or with a key and a watermark, got {said!r} for `{name}`")
        others.append(TimeColumn(name, mark, free))
    main = Implied() if watermark is None else watermark
    if not isinstance(main, Watermarks):
        raise SpecError(f"`watermark` takes a watermark, got {main!r}. Hint: tg.bounded('10 seconds')")
    return Stream(Input(time, keys, id, offset, partition, main, watermark_key, tuple(others)))

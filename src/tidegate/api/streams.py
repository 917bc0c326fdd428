"""Streams and panes: a stream, a window, a trigger, a mode and aggregates, said one after the
other; each step is a new frozen value.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from tidegate.api.running import Pipeline
from tidegate.embedded.async_map import EmbeddedAsyncMap
from tidegate.embedded.async_rows import AsyncResults
from tidegate.embedded.base import Consumer
from tidegate.embedded.operator import EmbeddedOperator
from tidegate.embedded.result_queue import Downstream
from tidegate.errors import SpecError
from tidegate.instants import Duration, Instant, duration, instant
from tidegate.spec.aggregates import Aggregate
from tidegate.spec.async_map import AsyncMap
from tidegate.spec.evictors import Evictor
from tidegate.spec.join import Condition, JoinWindow, Within
from tidegate.spec.operator import (
    AggregateSpec,
    Input,
    Options,
    Retention,
    TimeColumn,
    check_merge,
    check_union,
)
from tidegate.spec.presets import choose
from tidegate.spec.trigger_text import parse_trigger
from tidegate.spec.triggers import AfterDelay, Policy, Trigger
from tidegate.spec.watermarks import Explicit, Implied, Watermarks
from tidegate.spec.windows import Inherited, Window
from tidegate.state.protocol import Store

if TYPE_CHECKING:
    from pyspark.sql import Column

    from tidegate.api.joins import Joined

Named: TypeAlias = "str | Column | Callable[[pa.Table], pa.Array | pa.ChunkedArray] | None"
"""How a column is said: by name, and on Spark by an expression or by a function over columns."""


@dataclass(frozen=True)
class Stream:
    """Messages, and which of their columns say when, whose and which they are."""

    input: Input
    also: tuple[Input, ...] = ()
    """Further inputs, where streams are united."""
    sources: tuple[Any, ...] = field(default=(), compare=False)
    """On Spark, what each input is read from: a DataFrame or a direct source with what was added to
    it, or the panes of another pipeline.
    """
    names: tuple[str, ...] = ()
    """The names of the inputs, where streams are merged."""

    def window(self, window: Window, *, on: str | None = None) -> Windowed:
        """Put the messages into windows; `on` names the time column where the stream has
        several.
        """
        if not isinstance(window, Window):
            raise SpecError(
                f"`window` takes a window, got {window!r}. Hint: tg.tumbling('1 minute')"
            )
        if on is None:
            return Windowed(
                self.input, window, also=self.also, sources=self.sources, names=self.names
            )
        return Windowed(
            self.input.on(on),
            window,
            also=tuple(given.on(on) for given in self.also),
            sources=self.sources,
            names=self.names,
        )

    def aggregate(self, **aggregates: Aggregate) -> Panes:
        """Aggregate panes of an upstream operator in the windows that they come with."""
        return self.inherit().aggregate(**aggregates)

    def inherit(self) -> Windowed:
        """Take the windows of an upstream operator's panes, to say more about triggers and
        modes.
        """
        also = tuple(_inheriting(given) for given in self.also)
        return Windowed(
            _inheriting(self.input), Inherited(), also=also, sources=self.sources, names=self.names
        )

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
        """Call an asynchronous function for every message; watermarks never overtake a message
        whose answer is pending.

        The last three say how watermarks are judged, as the options of a window do.
        """
        if self.names:
            raise SpecError(
                "a merge goes into windows. Hint: map the streams before they are merged"
            )
        if self.sources:
            raise SpecError(
                "an asynchronous map runs embedded only. Hint: call the service with mapInArrow"
                " before the stream"
            )
        options = Options(
            strict=strict,
            future_tolerance=duration(future_tolerance),
            future_reference=future_reference,
        )
        return Mapped(
            self.inputs,
            AsyncMap(
                function, ordered, max_in_flight, duration(timeout), retries, duration(backoff)
            ),
            options,
        )

    def join(
        self,
        other: Stream,
        window: JoinWindow | Within,
        *,
        on: str | Sequence[str] | Mapping[str, str] | None = None,
        how: str = "inner",
        where: Condition | None = None,
        names: tuple[str, str] = ("left_", "right_"),
    ) -> Joined:
        """Rows of this stream, which is the left one, that meet rows of another in a window.

        `on` names the columns that must be equal, `where` says what more must hold of a pair, and
        `how` is inner, left, right, full, semi or anti. A column that both sides have gets the
        prefixes in `names`.
        """
        from tidegate.api.joins import join

        return join(self, other, window, on=on, how=how, where=where, names=names)

    @property
    def inputs(self) -> tuple[Input, ...]:
        """All inputs, by ordinal."""
        return (self.input, *self.also)


def _inheriting(given: Input) -> Input:
    """Panes carry their time in the column `time`; the upstream tells the watermark."""
    if not isinstance(given.watermark, Implied | Explicit):
        raise SpecError(
            "inherited windows follow the upstream's watermark, but `watermark` is"
            f" {given.watermark}. Hint: leave it out"
        )
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
    sources: tuple[Any, ...] = field(default=(), compare=False)
    names: tuple[str, ...] = ()

    def trigger(self, trigger: Trigger | str) -> Windowed:
        """Say when panes come out, as a trigger or as its text."""
        return dataclasses.replace(
            self, firing=parse_trigger(trigger) if isinstance(trigger, str) else trigger
        )

    def early_emission(self, trigger: Trigger) -> Windowed:
        """The early-emission policy: panes before the window is full. A trigger that finishes just
        stops.
        """
        return self._policy(early=trigger)

    def full_size(self, trigger: Trigger) -> Windowed:
        """The full-size policy: a window is full when the watermark reaches its end, or as soon as
        the trigger is ready.
        """
        return self._policy(full=trigger)

    def late_arrival(
        self, trigger: Trigger | None = None, *, every: Duration | None = None
    ) -> Windowed:
        """The late-arrival policy: corrections are batched for `every`, or fire as the trigger
        says; neither means that there are none.
        """
        if trigger is not None and every is not None:
            raise SpecError(
                "`late_arrival` takes a trigger or `every`, not both. Hint: leave one of them out"
            )
        return self._policy(late=AfterDelay(duration(every)) if every is not None else trigger)

    def _policy(self, **parts: Trigger | None) -> Windowed:
        former = self.firing if self.firing is not None else Policy()
        if not isinstance(former, Policy):
            raise SpecError(
                f"policies and a trigger exclude each other; the trigger is {former}. Hint: say it"
                " all with `trigger`"
            )
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
        """Change what people change rarely; `semantics` takes the habits of another system for what
        was not said.
        """
        chosen, said, preset = choose(self.chosen, self.said, semantics, options)
        if preset is None:
            return dataclasses.replace(self, chosen=chosen, said=said)
        return dataclasses.replace(
            self,
            chosen=chosen,
            said=said,
            firing=self.firing if self.firing is not None else preset.trigger,
            mode=self.mode if self.mode is not None else preset.mode,
            lateness=self.lateness if self.lateness is not None else preset.allowed_lateness,
        )

    def retain(
        self,
        *,
        time: Duration | None = None,
        windows: int | None = None,
        messages: int | None = None,
        bytes: int | None = None,
    ) -> Windowed:
        """Bound the state: by time, and by windows and messages of a key, and by bytes."""
        return dataclasses.replace(
            self,
            retention=Retention(None if time is None else duration(time), windows, messages, bytes),
        )

    def evict(self, evictor: Evictor) -> Windowed:
        """Leave messages of a window out, before the function or after it."""
        return dataclasses.replace(self, evictor=evictor)

    def aggregate(self, **aggregates: Aggregate) -> Panes:
        """Say what is computed; the names become columns of the panes."""
        for name, aggregate in aggregates.items():
            if not isinstance(aggregate, Aggregate):
                raise SpecError(f"`{name}` is no aggregate: {aggregate!r}. Hint: {name}=tg.count()")
        lateness: dict[str, Any] = (
            {} if self.lateness is None else {"allowed_lateness": self.lateness}
        )
        rest = {
            "options": self.chosen,
            "retention": self.retention,
            "evictor": self.evictor,
            "also": self.also,
            "names": self.names,
            **lateness,
        }
        spec = AggregateSpec(
            self.input,
            self.windows,
            tuple(aggregates.items()),
            self.firing,
            self.mode or "accumulating",
            **rest,
        )
        return Panes(spec, self.sources)


@dataclass(frozen=True)
class Panes(Pipeline[AggregateSpec]):
    """A complete specification of panes, ready to be run: embedded, or on Spark where its stream
    was made from a DataFrame.
    """

    def embedded(
        self,
        *,
        store: Store | None = None,
        downstream: Consumer | Downstream | None = None,
        now: Instant | None = None,
    ) -> EmbeddedOperator:
        """An operator in this process; a store that holds state of this specification is continued.

        With `now` the clock begins there and moves only where a call tells it; without, the clock
        of the machine is read.
        """
        return EmbeddedOperator(
            self.spec, store=store, downstream=downstream, now=None if now is None else instant(now)
        )


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
        downstream: Downstream | Callable[[AsyncResults], bool | None] | None = None,
        now: Instant | None = None,
    ) -> EmbeddedAsyncMap:
        """An operator in this process; see `Panes.embedded`."""
        clock = None if now is None else instant(now)
        return EmbeddedAsyncMap(
            self.map,
            self.inputs,
            options=self.options,
            store=store,
            downstream=downstream,
            now=clock,
        )


def union(*streams: Stream) -> Stream:
    """Messages of all streams as one: a watermark is forwarded when every stream has it."""
    if not streams or not all(isinstance(given, Stream) for given in streams):
        raise SpecError(
            "`union` takes streams. Hint: tg.union(tg.stream(time='ts'), tg.stream(time='ts'))"
        )
    if any(united.names for united in streams):
        raise SpecError(
            "a merge goes into windows and cannot be united. Hint: unite streams before they are"
            " merged"
        )
    inputs = [given for united in streams for given in united.inputs]
    check_union(inputs)
    return Stream(inputs[0], tuple(inputs[1:]), _sources(streams, inputs))


def merge(**streams: Stream) -> Stream:
    """Messages of several streams, each with columns of its own, in one accumulation per window and
    key.

    All have the same key columns; the names of their times, ids, offsets and partitions may differ.
    An aggregate with `of="orders"` takes the messages of that stream only, one without takes those
    of all. Every message has a column `input` with the name of its stream, and is null in the
    columns that only other streams have. A user's own accumulation looks at `input`, or is given a
    function for each stream (`tg.python`). A column that several streams have must be of one type.
    The watermark is the earliest of the streams'.
    """
    if len(streams) < 2 or not all(isinstance(given, Stream) for given in streams.values()):
        raise SpecError(
            "`merge` takes two streams or more, each by a name. Hint:"
            " tg.merge(orders=tg.stream(time='ts'), clicks=tg.stream(time='ts'))"
        )
    if any(given.names for given in streams.values()):
        raise SpecError(
            "a merge goes into windows and cannot be merged again. Hint: name all streams in one"
            " merge"
        )
    inputs = [given for merged in streams.values() for given in merged.inputs]
    names = [name for name, merged in streams.items() for _ in merged.inputs]
    check_merge(names, inputs)
    return Stream(
        inputs[0], tuple(inputs[1:]), _sources(list(streams.values()), inputs), tuple(names)
    )


def _sources(streams: Sequence[Stream], inputs: Sequence[Input]) -> tuple[Any, ...]:
    """What the inputs of several streams are read from on Spark."""
    sources = [source for given in streams for source in given.sources]
    if sources and len(sources) != len(inputs):
        raise SpecError(
            "some of the united streams have a source and some have none. Hint: make all of them"
            " from DataFrames, or none"
        )
    return tuple(sources)


def stream(
    source: Any = None,
    *,
    time: Named = None,
    key: Named | Sequence[Named] = None,
    id: Named = None,
    offset: Named = None,
    partition: Named = None,
    watermark: Watermarks | None = None,
    watermark_key: int = 0,
    times: Mapping[str, Watermarks | tuple[int, Watermarks]] | None = None,
) -> Stream:
    """Messages with these columns; without `watermark` it follows the newest event.

    On Spark `source` is a DataFrame, a direct source (`tg.sources`) or the panes of another
    pipeline, and a column may be said by name, by an expression of Spark or by a function from an
    Arrow table to an Arrow column. Without a source the stream runs embedded.

    `times` names further time columns with watermarks of their own, which get the keys after
    `watermark_key` in their order, or the key that stands before the watermark.
    """
    keys: tuple[Any, ...] = (
        () if key is None else tuple(key) if isinstance(key, list | tuple) else (key,)
    )
    named: dict[str, Any] = {"time": time, "id": id, "offset": offset, "partition": partition}
    sources: tuple[Any, ...] = ()
    if isinstance(source, Panes):
        sources, named["time"] = (source,), time if time is not None else "time"
    elif source is not None:
        from tidegate.spark.plan.input import given

        found, names, keys = given(source, named, keys)
        named.update(names)
        sources = (found,)
    _check_names(named, keys)
    others, free = [], watermark_key
    for name, said in (times or {}).items():
        match said:
            case Watermarks():
                free, mark = free + 1, said
            case (int(free), Watermarks() as mark):
                pass
            case _:
                raise SpecError(
                    "`times` names columns with a watermark, or with a key and a watermark, got"
                    f" {said!r} for `{name}`"
                )
        others.append(TimeColumn(name, mark, free))
    main = Implied() if watermark is None else watermark
    if not isinstance(main, Watermarks):
        raise SpecError(
            f"`watermark` takes a watermark, got {main!r}. Hint: tg.bounded('10 seconds')"
        )
    given_input = Input(
        named["time"],
        keys,
        named["id"],
        named["offset"],
        named["partition"],
        main,
        watermark_key,
        tuple(others),
    )
    return Stream(given_input, sources=sources)


def _check_names(named: Mapping[str, Any], keys: Sequence[Any]) -> None:
    """Without a source of Spark there is nobody who could evaluate an expression."""
    for role, value in [*named.items(), *(("key", value) for value in keys)]:
        if not (value is None and role != "key") and not isinstance(value, str):
            raise SpecError(
                f"`{role}` takes the name of a column, got {value!r}. Hint: expressions and"
                " functions need a source: tg.stream(df, ...)"
            )

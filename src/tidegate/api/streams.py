"""The fluent API of windows: stream, window, trigger, mode, aggregates; each step is a value."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from tidegate.api.running import Pipeline, has_source
from tidegate.api.showing import moments_of
from tidegate.embedded.base import Consumer
from tidegate.embedded.operator import EmbeddedOperator
from tidegate.embedded.recording import DEFAULT_BYTES
from tidegate.embedded.result_queue import Downstream
from tidegate.errors import SpecError
from tidegate.html import fields_html
from tidegate.instants import Duration, Instant, duration, instant
from tidegate.operators.explain.brief import brief, described_aggregate, input_text
from tidegate.page import picture
from tidegate.spec.aggregates import Aggregate
from tidegate.spec.async_map import AsyncMap
from tidegate.spec.computed import ColumnFunction, Computed
from tidegate.spec.evictors import Evictor
from tidegate.spec.join import Condition, JoinWindow, Within
from tidegate.spec.json_form import function_from, is_function_form
from tidegate.spec.operator import (
    AggregateSpec,
    Input,
    Options,
    Retention,
    TimeColumn,
    check_merge,
    check_union,
    included_columns,
)
from tidegate.spec.presets import change_options
from tidegate.spec.short_repr import short_repr
from tidegate.spec.trigger_text import parse_trigger
from tidegate.spec.triggers import AfterDelay, Policy, Trigger
from tidegate.spec.watermarks import Explicit, Implied, Watermarks
from tidegate.spec.windows import Inherited, Window
from tidegate.state.store import Store

if TYPE_CHECKING:
    from pyspark.sql import Column

    from tidegate.api.async_maps import Columns, Mapped
    from tidegate.api.joins import Joined
    from tidegate.page.picture import Picture

Named: TypeAlias = "str | ColumnFunction | Mapping[str, str] | Column | None"
"""A column: its name, a function of an Arrow table, `{"function": "module:name"}`, or behind a
DataFrame an expression.
"""


@dataclass(frozen=True, repr=False)
class Stream:
    """Messages, and which of their columns are time, key, id, offset and partition."""

    input: Input
    also: tuple[Input, ...] = ()
    """Further inputs, of a union or a merge."""
    sources: tuple[Any, ...] = field(default=(), compare=False)
    """On Spark, the source of each input: a DataFrame or a direct source, with its computed
    columns, or another pipeline.
    """
    names: tuple[str, ...] = ()
    """The names of the inputs, of a merge."""

    def __repr__(self) -> str:
        return short_repr(self)

    def _repr_html_(self) -> str:
        shown = [
            (self.names[n] if self.names else f"input {n}", input_text(one))
            for n, one in enumerate(self.inputs)
        ]
        return fields_html(type(self).__name__, shown)

    def window(self, window: Window, *, on: str | None = None) -> Windowed:
        """Assign messages to windows; `on` names the time column if the stream has several."""
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
        """Aggregate the panes of an upstream operator in the windows that they belong to."""
        return self.inherit().aggregate(**aggregates)

    def inherit(self) -> Windowed:
        """Inherit the windows of an upstream operator's panes, to set triggers and modes."""
        also = tuple(_inheriting(given) for given in self.also)
        return Windowed(
            _inheriting(self.input), Inherited(), also=also, sources=self.sources, names=self.names
        )

    def async_map(
        self,
        function: Callable[[Any], Awaitable[Any]],
        *,
        schema: Columns | None = None,
        ordered: bool = True,
        max_in_flight: int = 100,
        timeout: Duration = "30 seconds",
        retries: int = 0,
        backoff: Duration = "100 ms",
        strict: bool | None = None,
        future_tolerance: Duration | None = None,
        future_reference: str | None = None,
    ) -> Mapped:
        """Call an asynchronous function for every message; the results are a stream.

        Watermarks follow the messages and never overtake one whose call is pending.

        - `schema`: the columns of the results, required on Spark: a `pyarrow.Schema`, a
          `StructType`, or text such as "user string, price double", where a leading "*" stands for
          the columns of the messages. Default: the first value of a column decides its type.
        - `max_in_flight`: calls at once; on Spark, in every reading task.
        - `strict`, `future_tolerance`, `future_reference`: as in the options of a window, for a map
          that runs alone. In front of a window, those of the window count.
        """
        from tidegate.api.async_maps import mapped, result_columns

        declared, extends = result_columns(schema)
        called = AsyncMap(
            function,
            ordered,
            max_in_flight,
            duration(timeout),
            retries,
            duration(backoff),
            declared,
            extends,
        )
        chosen: dict[str, Any] = {
            "strict": strict,
            "future_tolerance": None if future_tolerance is None else duration(future_tolerance),
            "future_reference": future_reference,
        }
        explicit = {name: value for name, value in chosen.items() if value is not None}
        return mapped(self, called, Options(**explicit) if explicit else None)

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
        """Join this stream, the left side, with another one in a window.

        - `on`: the columns that must be equal.
        - `how`: inner, left, right, full, semi or anti.
        - `where`: a further condition on pairs.
        - `names`: the prefixes of columns that both sides have.
        """
        from tidegate.api.joins import join

        return join(self, other, window, on=on, how=how, where=where, names=names)

    @property
    def inputs(self) -> tuple[Input, ...]:
        """All inputs, by ordinal."""
        return (self.input, *self.also)


def _inheriting(given: Input) -> Input:
    """The input of panes: their time is in the column `time`, and their watermark explicit."""
    if not isinstance(given.watermark, Implied | Explicit):
        raise SpecError(
            "inherited windows use the watermark of the upstream, but `watermark` is"
            f" {given.watermark}. Hint: leave it out"
        )
    return dataclasses.replace(given, time=given.time or "time", watermark=Explicit())


@dataclass(frozen=True, repr=False)
class Windowed:
    """Windowed messages: triggers, mode, lateness, retention and options of an aggregation."""

    input: Input
    windows: Window
    firing: Trigger | None = None
    mode: str | None = None
    lateness: int | None = None
    chosen: Options = field(default_factory=Options)
    explicit_options: frozenset[str] = frozenset()
    """The options that were set explicitly: a preset does not change them."""
    retention: Retention = field(default_factory=Retention)
    evictor: Evictor | None = None
    also: tuple[Input, ...] = ()
    sources: tuple[Any, ...] = field(default=(), compare=False)
    names: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return short_repr(self)

    def trigger(self, trigger: Trigger | str) -> Windowed:
        """Set when panes fire, as a trigger or as its text form.

        Prefer `.trigger(tg.after_watermark(early=..., late=...))`. The policies `early_emission`,
        `full_size` and `late_arrival` are for windows that are full before the watermark, and for
        early triggers that fire a limited number of times.
        """
        return dataclasses.replace(self, firing=_trigger(trigger))

    def early_emission(self, trigger: Trigger | str) -> Windowed:
        """The early-emission policy: panes before the window is full.

        Prefer `.trigger(tg.after_watermark(early=...))`, which repeats the early trigger: here, a
        trigger that finishes does not fire again.
        """
        return self._policy(early=_trigger(trigger))

    def full_size(self, trigger: Trigger | str) -> Windowed:
        """The full-size policy: when the on-time pane fires.

        A window is full when the watermark reaches its end, or as soon as the trigger is ready.
        """
        return self._policy(full=_trigger(trigger))

    def late_arrival(
        self, trigger: Trigger | str | None = None, *, every: Duration | None = None
    ) -> Windowed:
        """The late-arrival policy: late panes fire by a trigger, or are batched for `every`.

        With neither there are no late panes. Default: batched for 10 seconds of the clock. Prefer
        `.trigger(tg.after_watermark(late=...))`.
        """
        if trigger is not None and every is not None:
            raise SpecError(
                "`late_arrival` takes a trigger or `every`, not both. Hint: leave one of them out"
            )
        late = None if trigger is None else _trigger(trigger)
        return self._policy(late=late if every is None else AfterDelay(duration(every)))

    def _policy(self, **parts: Trigger | None) -> Windowed:
        former = self.firing if self.firing is not None else Policy()
        if not isinstance(former, Policy):
            raise SpecError(
                f"policies and a trigger exclude each other; the trigger is {former}. Hint: put"
                " all of it into `trigger`"
            )
        return dataclasses.replace(self, firing=dataclasses.replace(former, **parts))

    def accumulating(self) -> Windowed:
        """Each pane holds the whole window so far."""
        return dataclasses.replace(self, mode="accumulating")

    def discarding(self) -> Windowed:
        """Each pane holds only what arrived since the last pane."""
        return dataclasses.replace(self, mode="discarding")

    def retracting(self) -> Windowed:
        """Each pane holds the whole window so far, and a retraction of the former pane precedes
        it.
        """
        return dataclasses.replace(self, mode="retracting")

    def allow_lateness(self, lateness: Duration, *, unit: str | None = None) -> Windowed:
        """How far behind the watermark an event may be.

        Default: 60 seconds, or with `.retain` as far as windows are retained.
        """
        return dataclasses.replace(self, lateness=duration(lateness, unit=unit))

    def options(self, *, semantics: str | None = None, **options: Any) -> Windowed:
        """Set advanced options; `semantics` takes those of another system as defaults."""
        chosen, explicit, preset = change_options(
            self.chosen, self.explicit_options, semantics, options
        )
        if preset is None:
            return dataclasses.replace(self, chosen=chosen, explicit_options=explicit)
        return dataclasses.replace(
            self,
            chosen=chosen,
            explicit_options=explicit,
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
        """Keep past windows: by time, by windows and messages per key, and by bytes.

        Windows and messages within all bounds can be read, and accept late messages; without
        `.allow_lateness` retention alone decides what is too late. A window beyond a bound emits
        what it has not emitted yet as its last pane and is evicted.
        """
        return dataclasses.replace(
            self,
            retention=Retention(None if time is None else duration(time), windows, messages, bytes),
        )

    def evict(self, evictor: Evictor) -> Windowed:
        """Evict messages from a window, before or after it is aggregated."""
        return dataclasses.replace(self, evictor=evictor)

    def aggregate(self, **aggregates: Aggregate) -> Panes:
        """Set the aggregates; their names become columns of the panes."""
        for name, aggregate in aggregates.items():
            if not isinstance(aggregate, Aggregate):
                raise SpecError(
                    f"`{name}` is not an aggregate: {aggregate!r}. Hint: {name}=tg.count()"
                )
        spec = AggregateSpec(
            self.input,
            self.windows,
            tuple(aggregates.items()),
            self.firing,
            self.mode or "accumulating",
            allowed_lateness=self.lateness,
            options=self.chosen,
            retention=self.retention,
            evictor=self.evictor,
            also=self.also,
            names=self.names,
        )
        return Panes(spec, self.sources).checked()


@dataclass(frozen=True, repr=False)
class Panes(Pipeline[AggregateSpec]):
    """The complete specification of a windowed aggregation.

    It runs embedded, or on Spark if its stream was made from a DataFrame.
    """

    def explain(self) -> str:
        """The aggregation as text: what it reads, when panes fire, and when state is freed."""
        return described_aggregate(self.spec)

    def plot(self, of: Any = None, *, path: str | os.PathLike[str] | None = None) -> Picture:
        """The plot of event time against processing time: panes by timing, watermark, late rows.

        `of` is what `show` takes; an iterator of messages is one delivery after the other. A
        notebook shows the plot. `path`: an HTML file that it is written to, which needs no network.
        """
        return picture(*moments_of(self, of), brief(self.spec), path)

    def include(self, *columns: str) -> Panes:
        """Add optional columns to the rows on Spark; all of them without arguments.

        They are `pane_nonspeculative`, `time` and `pane_id`. Embedded results always have them.
        """
        return dataclasses.replace(self, included=included_columns(columns))

    def embedded(
        self,
        *,
        store: Store | None = None,
        downstream: Consumer | Downstream | None = None,
        now: Instant | None = None,
        history: int = DEFAULT_BYTES,
    ) -> EmbeddedOperator:
        """Run the aggregation in this process; state in the store is restored.

        - `now`: the clock starts there and advances only with the calls. Default: the clock of the
          machine.
        - `history`: how much recent input and output stays in memory for `why` and `plot`, in
          bytes; 0 for none.
        """
        return EmbeddedOperator(
            self.spec,
            store=store,
            downstream=downstream,
            now=None if now is None else instant(now),
            history=history,
        )


def union(*streams: Stream) -> Stream:
    """One stream with the messages of all; time, id, offset and partition may differ in name.

    Its watermark is the earliest of the streams'; a watermark key must be one of every stream.
    """
    if not streams or not all(isinstance(given, Stream) for given in streams):
        raise SpecError(
            "`union` takes streams. Hint: tg.union(tg.stream(time='ts'), tg.stream(time='ts'))"
        )
    if any(united.names for united in streams):
        raise SpecError(
            "a merge feeds windows and cannot be part of a union. Hint: unite the streams, then"
            " merge them"
        )
    inputs = [given for united in streams for given in united.inputs]
    check_union(inputs)
    return Stream(inputs[0], tuple(inputs[1:]), sources_of(streams))


def merge(**streams: Stream) -> Stream:
    """Streams with different columns, aggregated together per window and key.

    All streams have the same key columns; their time, id, offset and partition columns may differ.
    A column that several streams have must have one type. The watermark is the earliest of the
    streams'.

    An aggregate with `of="orders"` uses the messages of that stream; without `of`, those of all.
    Every message has a column `input` with the name of its stream, and nulls in the columns of
    other streams. A user-defined accumulation reads `input`, or has one function for each stream
    (`tg.python`).
    """
    if len(streams) < 2 or not all(isinstance(given, Stream) for given in streams.values()):
        raise SpecError(
            "`merge` takes two or more streams by name. Hint:"
            " tg.merge(orders=tg.stream(time='ts'), clicks=tg.stream(time='ts'))"
        )
    if any(given.names for given in streams.values()):
        raise SpecError(
            "a merge feeds windows and cannot be merged again. Hint: name all streams in one merge"
        )
    inputs = [given for merged in streams.values() for given in merged.inputs]
    names = [name for name, merged in streams.items() for _ in merged.inputs]
    check_merge(names, inputs)
    return Stream(inputs[0], tuple(inputs[1:]), sources_of(list(streams.values())), tuple(names))


def sources_of(streams: Sequence[Stream]) -> tuple[Any, ...]:
    """The sources of the inputs of several streams: on Spark one for each.

    Embedded, an input has a source only if it is the output of another pipeline.
    """
    sources = tuple(
        source for given in streams for source in given.sources or (None,) * len(given.inputs)
    )
    real = [has_source(source) for source in sources]
    if any(real) and not all(real):
        raise SpecError(
            "some of the streams have a source and some have none. Hint: make all of them from"
            " DataFrames, or none"
        )
    return sources if any(source is not None for source in sources) else ()


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
    """A stream of messages with these columns.

    - `source`: on Spark, a DataFrame, a direct source (`tg.sources`) or the panes of another
      pipeline. Without a source, the stream runs embedded.
    - `time`, `key`, `id`, `offset`, `partition`: names of columns, or functions from an Arrow table
      to an Arrow column (see `tidegate.spec.computed`); behind a DataFrame also expressions.
    - `watermark`: how the watermark is generated. Default: it follows the newest event.
    - `times`: further time columns, each with its own watermark. Their watermark keys follow
      `watermark_key` in order, unless given as `(key, watermark)`.
    """
    keys: tuple[Any, ...] = (
        () if key is None else tuple(key) if isinstance(key, list | tuple) else (key,)
    )
    named: dict[str, Any] = {"time": time, "id": id, "offset": offset, "partition": partition}
    sources: tuple[Any, ...] = ()
    taken: Sequence[str] = ()
    if isinstance(source, Panes):
        sources, named["time"] = (source,), time if time is not None else "time"
    elif source is not None:
        from tidegate.spark.plan.input import plan_input

        found, named, keys = plan_input(source, named, keys)
        sources = (found,)
        taken = found.source.schema.names
    named, keys, computed = _resolved(named, keys, taken, computes=not isinstance(source, Panes))
    others, number = [], watermark_key
    for name, value in (times or {}).items():
        match value:
            case Watermarks():
                number, mark = number + 1, value
            case (int(number), Watermarks() as mark):
                pass
            case _:
                raise SpecError(
                    "`times` names columns with a watermark, or with a key and a watermark, got"
                    f" {value!r} for `{name}`"
                )
        others.append(TimeColumn(name, mark, number))
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
        computed,
    )
    return Stream(given_input, sources=sources)


def _resolved(
    named: Mapping[str, Any], keys: Sequence[Any], taken: Sequence[str], *, computes: bool
) -> tuple[dict[str, Any], tuple[str, ...], tuple[Computed, ...]]:
    """The column names of all roles and of the key, and the columns that functions compute."""
    computed: list[Computed] = []

    def name(role: str, value: Any) -> str | None:
        if isinstance(value, str) or (value is None and role != "key"):
            return value
        function = function_from(value) if is_function_form(value) else value
        if not callable(function) or not computes:
            raise SpecError(
                f"`{role}` takes the name of a column"
                + (f" or a function over columns, got {value!r}" if computes else " of the panes")
                + ". Hint: Spark expressions need a DataFrame: tg.stream(df, ...)"
            )
        computed.append(Computed.of(role, function, [*taken, *(c.name for c in computed)]))
        return computed[-1].name

    names = {role: name(role, value) for role, value in named.items()}
    return names, tuple(str(name("key", value)) for value in keys), tuple(computed)


def _trigger(given: Trigger | str) -> Trigger:
    """A trigger, or the one that a text describes."""
    return parse_trigger(given) if isinstance(given, str) else given

"""The specification of a windowed aggregate: inputs, windows, triggers, options and outputs."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import pyarrow as pa

from tidegate.errors import InputError, SpecError
from tidegate.instants import MAX, format_duration
from tidegate.spec.aggregates import INPUT, Aggregate, Python
from tidegate.spec.async_map import AsyncMap
from tidegate.spec.computed import Computed
from tidegate.spec.evictors import Evictor
from tidegate.spec.json_form import function_from, is_function_form, json_form
from tidegate.spec.projection import Projection
from tidegate.spec.triggers import Policy, Trigger
from tidegate.spec.watermarks import (
    Bounded,
    Explicit,
    Generated,
    Implied,
    PerKey,
    Punctuated,
    Watched,
    Watermarks,
    checked_key,
)
from tidegate.spec.windows import Axis, Inherited, Session, Window

SECOND = 1_000_000
TimestampFunction = Callable[[pa.Table], pa.Array | pa.ChunkedArray]
Timestamp = str | TimestampFunction
"""The output time of panes: a choice by name, or a function of `TIMESTAMP_COLUMNS`."""
RESERVED = frozenset(
    {
        "window_start",
        "window_end",
        "op",
        "timing",
        "pane",
        "pane_nonspeculative",
        "is_first",
        "is_last",
        "time",
        "watermark",
        "emitted_at",
    }
    | {"pane_id", "class", "reason", "detail", "windows"}
)
ROLES = ("time", "id", "offset", "partition")
"""The columns of an input, beside its key, that may have another name in every stream."""
OPTIONAL_COLUMNS = ("pane_nonspeculative", "time", "pane_id")
"""Columns of panes that rows on Spark have on request."""
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


def included_columns(columns: Sequence[str]) -> tuple[str, ...]:
    """The optional columns of panes with these names, in their order; all without names."""
    for name in columns:
        if name not in OPTIONAL_COLUMNS:
            raise SpecError(
                f"`include` takes {', '.join(OPTIONAL_COLUMNS)}, got {name!r}. Hint: the other"
                " columns of panes are always there"
            )
    return tuple(name for name in OPTIONAL_COLUMNS if not columns or name in columns)


@dataclass(frozen=True)
class TimeColumn:
    """A time column with its own watermark, identified by a watermark key."""

    column: str | None
    watermark: Watermarks = field(default_factory=Implied)
    key: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", checked_key(self.key))

    def unaligned(self) -> TimeColumn:
        """The same without alignment, for a column without windows: it pauses no source."""
        mark = self.watermark
        return (
            replace(self, watermark=replace(mark, align=None))
            if isinstance(mark, Watched)
            else self
        )


@dataclass(frozen=True)
class Input:
    """The roles of the columns of an input: time, key, id, offset and partition."""

    time: str | None = None
    key: tuple[str, ...] = ()
    id: str | None = None
    offset: str | None = None
    partition: str | None = None
    watermark: Watermarks = field(default_factory=Implied)
    watermark_key: int = 0
    others: tuple[TimeColumn, ...] = ()
    """Further time columns; operators that forward messages forward their watermarks too."""
    computed: tuple[Computed, ...] = ()
    """Columns that functions compute from the others when rows arrive."""
    projections: tuple[Projection, ...] = ()
    """What rows pass, one after the other, before the operator sees them."""
    mapped: MapStep | None = None
    """The async map whose results are the rows of this input.

    The watermarks follow its messages.
    """

    @property
    def times(self) -> tuple[TimeColumn, ...]:
        """All time columns, starting with the one used for windows."""
        return (TimeColumn(self.time, self.watermark, self.watermark_key), *self.others)

    def on(self, column: str) -> Input:
        """The same input with another of its time columns used for windows."""
        found = {time.column: time for time in self.times}
        if column not in found:
            raise SpecError(
                f"the stream has no time column `{column}`; it has"
                f" {', '.join(str(name) for name in found)}"
            )
        rest = tuple(time.unaligned() for time in self.times if time.column != column)
        mapped = self.mapped
        if mapped is not None and column != self.time:
            mapped = replace(mapped, input=mapped.input.on(column))
        return replace(
            self,
            mapped=mapped,
            time=column,
            watermark=found[column].watermark,
            watermark_key=found[column].key,
            others=rest,
        )

    @property
    def arrival(self) -> Input:
        """The roles of the columns of the messages that arrive, before an async map."""
        return self if self.mapped is None else self.mapped.input

    @property
    def row_watermark(self) -> Watermarks:
        """The watermark that is read from the rows; none is read from the results of a map."""
        return self.watermark if self.mapped is None else Explicit()

    def to_dict(self) -> dict[str, Any]:
        """The JSON form of what stored state depends on: the map of the rows may change."""
        document = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name != "mapped"
        }
        others = [
            {"column": other.column, "watermark": other.watermark.to_dict(), "key": other.key}
            for other in self.others
        ]
        computed = [column.to_dict() for column in self.computed]
        projections = [projection.to_dict() for projection in self.projections]
        del document["computed"], document["projections"]
        return {
            **document,
            "key": list(self.key),
            "watermark": self.watermark.to_dict(),
            "others": others,
            **({"computed": computed} if computed else {}),
            **({"projections": projections} if projections else {}),
        }

    def __post_init__(self) -> None:
        object.__setattr__(self, "watermark_key", checked_key(self.watermark_key))
        if any(
            isinstance(other.watermark, Watched) and other.watermark.align is not None
            for other in self.others
        ):
            # Alignment on two columns could deadlock: each might pause a source that the other
            # needs.
            raise SpecError(
                "sources are aligned on the first time column of a stream only. Hint: omit"
                " `align` in `times`"
            )
        for mark in (time.watermark for time in self.times if self.partition is None):
            if isinstance(mark, Bounded | Punctuated | Generated | PerKey) and mark.declared:
                raise SpecError(
                    f"declared partitions need a partition column, got {list(mark.declared)}."
                    " Hint: tg.stream(partition=...), or omit `partitions`"
                )
        for name, values in (
            ("time columns", [t.column for t in self.times]),
            ("watermark keys", [t.key for t in self.times]),
        ):
            if len(set(values)) != len(values):
                raise SpecError(f"the {name} of a stream must be distinct, got {values}")
        if self.id is not None and self.offset is not None:
            raise SpecError(
                "duplicates are detected by `offset=` or by `id=`, not by both. Hint: omit one of"
                " them"
            )
        for name, columns in (
            ("key columns", self.key),
            ("computed columns", [column.name for column in self.computed]),
        ):
            if len(set(columns)) != len(columns):
                raise SpecError(f"{name} must be distinct, got {list(columns)}")


DEFAULT_LATENESS = 60 * SECOND
"""The allowed lateness without retention."""


@dataclass(frozen=True)
class MapStep:
    """An async map in front of an operator: every delivery is answered before it is processed."""

    map: AsyncMap
    input: Input
    """The roles of the columns of the messages."""
    options: Options | None = None
    """The options of a map that runs alone; in front of an operator, those of the operator count.
    """


def check_mapped(inputs: Sequence[Input]) -> None:
    """Refuse an async map with options that the operator behind it decides."""
    for given in inputs:
        if given.mapped is not None and given.mapped.options is not None:
            raise SpecError(
                "`strict`, `future_tolerance` and `future_reference` are options of the operator"
                " behind an async map. Hint: .window(...).options(strict=True)"
            )


@dataclass(frozen=True)
class Retention:
    """How much of the past is kept: windows and messages within all bounds; None is no bound.

    What is within retention can be read. It also accepts late messages, as far as an explicit
    lateness allows.
    """

    time: int | None = None
    windows: int | None = None
    messages: int | None = None
    bytes: int | None = None

    def __post_init__(self) -> None:
        for bound in dataclasses.fields(self):
            value = getattr(self, bound.name)
            if value is not None and value <= 0:
                shown = format_duration(value) if bound.name == "time" else value
                raise SpecError(f"retention by {bound.name} must be positive, got {shown}")

    def __bool__(self) -> bool:
        return any(getattr(self, f.name) is not None for f in dataclasses.fields(self))

    @property
    def counts(self) -> bool:
        """Whether single messages decide what is evicted: by windows or messages of a key."""
        return self.windows is not None or self.messages is not None

    def lateness(self, allowed: int | None) -> int:
        """The effective lateness: without an allowed one, retention alone decides if it is set."""
        if allowed is not None:
            return allowed
        return MAX if self else DEFAULT_LATENESS


TIMESTAMP_COLUMNS = pa.schema(
    [(name, pa.int64()) for name in ("window_start", "window_end", "earliest", "latest")]
)
"""The columns that a `timestamp` function receives, in ticks of the window's axis."""


def _check_timestamp(function: TimestampFunction) -> None:
    """Refuse a function that does not return a column of times."""
    hint = "Hint: lambda panes: panes['earliest']"
    try:
        found = function(TIMESTAMP_COLUMNS.empty_table())
    except Exception as error:
        raise SpecError(
            f"the `timestamp` function fails on an empty table with the columns"
            f" {', '.join(TIMESTAMP_COLUMNS.names)}: {error}. {hint}"
        ) from error
    kind = found.type if isinstance(found, pa.Array | pa.ChunkedArray) else None
    if kind is None or len(found) or not (pa.types.is_integer(kind) or pa.types.is_timestamp(kind)):
        raise SpecError(
            "the `timestamp` function must return an Arrow column of integers or timestamps with a"
            f" value for each pane, got {type(found).__name__ if kind is None else kind}. {hint}"
        )


@dataclass(frozen=True)
class Options:
    """Advanced options; the defaults are the semantics of Tidegate."""

    drop_by: str = "event"
    session_lateness: str = "own"
    future: str = "process"
    future_tolerance: int = 60 * SECOND
    future_reference: str = "clock"
    fire_only_updated: bool = False
    on_time: str = "if_nonempty"
    closing: str = "if_nonempty"
    granularity: str = "element"
    timestamp: Timestamp = "end_of_window"
    strict: bool = False
    keep_messages: bool = False

    def __post_init__(self) -> None:
        if is_function_form(self.timestamp):
            object.__setattr__(self, "timestamp", function_from(self.timestamp))  # type: ignore[arg-type]
        if callable(self.timestamp):
            _check_timestamp(self.timestamp)
        for name, allowed in _CHOICES.items():
            value = getattr(self, name)
            if value not in allowed and not (name == "timestamp" and callable(value)):
                raise SpecError(f"`{name}` must be one of {', '.join(allowed)}; got {value!r}")
        if self.future_tolerance < 0:
            raise SpecError(
                "`future_tolerance` can't be negative, got"
                f" {format_duration(self.future_tolerance)}"
            )

    def to_dict(self) -> dict[str, Any]:
        """The JSON form; a function appears by its qualified name."""
        return {field.name: json_form(getattr(self, field.name)) for field in fields(self)}


@dataclass(frozen=True)
class AggregateSpec:
    """The complete specification of a windowed aggregate."""

    input: Input
    window: Window
    aggregates: tuple[tuple[str, Aggregate], ...]
    trigger: Trigger | None = None
    mode: str = "accumulating"
    allowed_lateness: int | None = None
    """The lateness that was set explicitly; see `lateness`."""
    options: Options = field(default_factory=Options)
    retention: Retention = field(default_factory=Retention)
    evictor: Evictor | None = None
    also: tuple[Input, ...] = ()
    """Further inputs: a union of streams with the same columns, each with its own watermarks."""
    names: tuple[str, ...] = ()
    """The names of all inputs of a merge; aggregates refer to them."""

    def __post_init__(self) -> None:
        self._settle_gap()
        if self.mode not in _MODES:
            raise SpecError(f"`mode` must be one of {', '.join(_MODES)}; got {self.mode!r}")
        if self.lateness < 0:
            raise SpecError(
                f"`allow_lateness` can't be negative, got {format_duration(self.lateness)}"
            )
        self._check_names()
        self._check_inputs()
        self._check_modes()
        self._check_axis()
        self._check_watermarks()

    def _settle_gap(self) -> None:
        """Make the gap of a session that a function computes a computed column of every input."""
        if not isinstance(self.window, Session) or not isinstance(self.window.gap_column, Computed):
            return
        gap = self.window.gap_column
        first, *rest = (replace(given, computed=(*given.computed, gap)) for given in self.inputs)
        for name, value in (
            ("window", replace(self.window, gap_column=gap.name)),
            ("input", first),
            ("also", tuple(rest)),
        ):
            object.__setattr__(self, name, value)

    @property
    def inputs(self) -> tuple[Input, ...]:
        """All inputs, by ordinal."""
        return (self.input, *self.also)

    @property
    def lateness(self) -> int:
        """How far behind the watermark an event is still processed; `MAX`: retention decides."""
        return self.retention.lateness(self.allowed_lateness)

    @property
    def firing(self) -> Trigger:
        """The effective trigger.

        Default: one pane when complete, late updates batched for 10 seconds.
        """
        return Policy() if self.trigger is None else self.trigger

    @property
    def key(self) -> tuple[str, ...]:
        """The key columns of the panes."""
        return self.input.key

    @property
    def identity(self) -> tuple[str, ...]:
        """The columns that identify which pane a pane replaces."""
        return (*self.key, "window_start", "window_end")

    def to_dict(self) -> dict[str, Any]:
        """The JSON form; specifications with the same form may share stored state."""
        return {
            "input": self.input.to_dict(),
            **({"also": [given.to_dict() for given in self.also]} if self.also else {}),
            **({"names": list(self.names)} if self.names else {}),
            "window": self.window.to_dict(),
            "aggregates": {name: aggregate.to_dict() for name, aggregate in self.aggregates},
            "trigger": str(self.firing),
            "mode": self.mode,
            "allowed_lateness": self.lateness,
            "options": self.options.to_dict(),
            "retention": dataclasses.asdict(self.retention),
            "evictor": repr(self.evictor),
        }

    def _check_names(self) -> None:
        names = [name for name, _ in self.aggregates]
        if not names:
            raise SpecError(
                "`aggregate` needs at least one aggregate. Hint: .aggregate(n=tg.count())"
            )
        taken = RESERVED & {*names, *self.input.key}
        if taken:
            raise SpecError(
                f"the name(s) {', '.join(sorted(taken))} are reserved for columns of every pane."
                " Hint: choose another name"
            )
        both = set(names) & set(self.input.key)
        if both:
            raise SpecError(
                f"the name(s) {', '.join(sorted(both))} are both key columns and aggregates. Hint:"
                " rename the aggregate"
            )

    def _check_inputs(self) -> None:
        """Check that aggregates refer to existing inputs of the merge."""
        check_mapped(self.inputs)
        if self.names:
            check_merge(self.names, self.inputs)
        for name, aggregate in self.aggregates:
            used = aggregate.inputs_used()
            if used and not self.names:
                raise SpecError(
                    f"`{name}` refers to the input `{used[0]}`, but nothing is merged. Hint:"
                    f" tg.merge({used[0]}=..., other=...)"
                )
            unknown = [other for other in used if other not in self.names]
            if unknown:
                raise SpecError(
                    f"`{name}` refers to the input `{unknown[0]}`; the inputs of the merge are"
                    f" {_listed(self.names)}"
                )
            for steps in (aggregate.add, aggregate.remove) if isinstance(aggregate, Python) else ():
                missing = [
                    other
                    for other in self.names
                    if isinstance(steps, tuple) and other not in dict(steps)
                ]
                if missing:
                    raise SpecError(
                        f"`{name}` has no function for the input `{missing[0]}`. Hint: pass one"
                        f" for each of {_listed(self.names)}"
                    )

    def _check_modes(self) -> None:
        if self.options.fire_only_updated and self.mode == "discarding":
            raise SpecError(
                "`fire_only_updated` contradicts discarding: a discarded pane has no former"
                " value. Hint: use accumulating or retracting"
            )

    def _check_axis(self) -> None:
        axis = self.window.axis
        if (
            axis is Axis.EVENT_TIME
            and self.input.time is None
            and not isinstance(self.window, Inherited)
        ):
            raise SpecError(
                "a window on event time needs a time column. Hint: tg.stream(time='ts', ...)"
            )
        if not axis.is_time and self.retention.time is not None:
            raise SpecError(
                f"retention by time needs a window on time, but this one is on {axis}. Hint:"
                " retain by windows or messages"
            )
        if axis is Axis.OFFSET and self.input.offset is None:
            raise SpecError(
                "a window on offsets needs an offset column. Hint: tg.stream(offset='offset', ...)"
            )

    def _check_watermarks(self) -> None:
        if self.also and not self.names:
            check_union([dataclasses.replace(given, others=()) for given in self.inputs])
        if any(isinstance(given.watermark, PerKey) for given in self.inputs):
            if self.window.axis is not Axis.EVENT_TIME or isinstance(self.window, Inherited):
                raise SpecError("per-key watermarks need a window on event time")
            if not self.input.key:
                raise SpecError(
                    "per-key watermarks need a key. Hint: tg.stream(time='ts', key='device', ...)"
                )
            if self.window.create == "static":
                raise SpecError(
                    "static windows exist for all keys at once, which per-key watermarks do not"
                    " support. Hint: omit one of them"
                )
            if len({given.watermark for given in self.inputs}) > 1:
                marks = " and ".join(str(given.watermark) for given in self.inputs)
                raise SpecError(
                    "united streams with per-key watermarks must all have the same one, got"
                    f" {marks}. Hint: use one for all of them"
                )
            self._check_future(self.input.watermark)

    def _check_future(self, mark: Watermarks) -> None:
        """Check that the first event of a new key, which is at the floor, is not in the future."""
        if (
            isinstance(mark, PerKey)
            and self.options.future_reference == "watermark"
            and self.options.future_tolerance < mark.floor
        ):
            raise SpecError(
                "with per-key watermarks and `future_reference='watermark'`, events of every new"
                " key would be in the future: `future_tolerance` is"
                f" {format_duration(self.options.future_tolerance)} and the floor is"
                f" {format_duration(mark.floor)} behind. Hint: make `future_tolerance` at least as"
                " large as the floor"
            )


def input_of(inputs: Sequence[Input], number: int) -> Input:
    """The input with this number."""
    if not isinstance(number, int) or not 0 <= number < len(inputs):
        raise InputError(
            f"there is no input {number!r}; the operator has {len(inputs)}, numbered from 0"
        )
    return inputs[number]


def ordinal_of(names: Sequence[str], given: int | str) -> int:
    """The number of an input, given by number or, in a merge, by name."""
    if isinstance(given, int):
        return given
    found = [number for number, name in enumerate(names) if name == given]
    if len(found) == 1:
        return found[0]
    if found:
        raise InputError(
            f"`{given}` is a union of several inputs. Hint: use the number of one,"
            f" {' or '.join(map(str, found))}"
        )
    known = f"inputs are {_listed(names)}" if names else "inputs have numbers only"
    raise InputError(f"there is no input `{given}`; {known}")


def check_union(inputs: Sequence[Input]) -> None:
    """Check that streams can be united: same keys; time, id, offset and partition columns may
    have different names.

    Warns if a watermark key is never forwarded.
    """
    _check_roles("united", inputs, [f"stream {number}" for number in range(len(inputs))])
    keys = [{time.key for time in given.times} for given in inputs]
    for key in sorted(set.union(*keys)):
        missing = [number for number, known in enumerate(keys) if key not in known]
        if missing:
            names = ", ".join(str(number) for number in missing)
            warnings.warn(
                f"the union can never forward watermark key {key}: input(s) {names} do not have"
                " it. Hint: use the same key for the same time column in all inputs",
                UserWarning,
                stacklevel=3,
            )


def check_merge(names: Sequence[str], inputs: Sequence[Input]) -> None:
    """Check that streams can be merged: same keys; other columns may differ."""
    if len(names) != len(inputs) or len(inputs) < 2:
        raise SpecError(
            f"a merge needs two or more named inputs, got {len(inputs)} with the names"
            f" {list(names)}"
        )
    for name, given in zip(names, inputs, strict=True):
        if INPUT in {given.time, *given.key, given.id, given.offset, given.partition}:
            raise SpecError(
                f"the stream `{name}` has a column `{INPUT}`, which in a merge is the name of the"
                " input. Hint: rename the column"
            )
        if given.watermark_key != inputs[0].watermark_key:
            raise SpecError(
                f"the watermark key of `{name}` is {given.watermark_key} and that of `{names[0]}`"
                f" is {inputs[0].watermark_key}"
            )
    _check_roles("merged", inputs, [f"`{name}`" for name in names])


def _check_roles(what: str, inputs: Sequence[Input], names: Sequence[str]) -> None:
    """Check that streams have the same keys, and each role in all of them or in none."""
    for name, given in zip(names, inputs, strict=True):
        if given.key != inputs[0].key:
            raise SpecError(
                f"{what} streams must have the same key columns; {list(given.key)} of {name}"
                f" differs from {list(inputs[0].key)} of {names[0]}. Hint: rename columns first"
            )
        for role in ROLES:
            if (getattr(given, role) is None) != (getattr(inputs[0], role) is None):
                raise SpecError(
                    f"some of the {what} streams have `{role}` and some do not. Hint: set it for"
                    " all, or for none"
                )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in dict.fromkeys(names))

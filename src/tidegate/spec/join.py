"""Specification of a windowed join: inputs, equal fields, the window of matches, and the output.

Sizes are int64 ticks: microseconds of event time, or messages. The dataclasses take ticks. The
functions in lower case take durations in any form ("1 hour", `timedelta`, an integer with `unit=`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal, TypeAlias

import pyarrow.compute as pc

from tidegate.errors import SpecError
from tidegate.instants import MAX, Duration, duration, format_duration
from tidegate.spec.json_form import qualified_name
from tidegate.spec.operator import (
    AggregateSpec,
    Input,
    Options,
    Retention,
    TimeColumn,
    check_mapped,
    check_merge,
    check_union,
)
from tidegate.spec.watermarks import PerKey
from tidegate.spec.windows import (
    Axis,
    ByDifference,
    Calendar,
    Cumulative,
    Global,
    Hopping,
    Session,
    Tumbling,
    Window,
)

LEFT, RIGHT = 0, 1
SIDES = ("left", "right")
HOWS = ("inner", "left", "right", "full", "semi", "anti")
PADDINGS = ("complete", "early", "final")
ADDED = ("op", "timing", "pair_id", "watermark", "emitted_at")
"""Columns that every output row has after the columns of the inputs."""
BOUNDS = ("window_start", "window_end")
"""Columns before them if rows match in windows."""
Closed = Literal["both", "left", "right", "neither"]
Condition: TypeAlias = "pc.Expression | Callable[[Any], Any]"
"""An Arrow expression over the columns of the output, or a function from a table of candidate pairs
to a boolean column.
"""


@dataclass(frozen=True)
class Within:
    """`left.t` lies in [`right.t - before`, `right.t + after`]; None is no bound on that end.

    `closed` tells which ends are included.
    """

    before: int | None
    after: int | None
    closed: Closed = "both"
    left: str | None = None
    right: str | None = None

    def __post_init__(self) -> None:
        if self.closed not in ("both", "left", "right", "neither"):
            raise SpecError(
                f"within `closed` must be one of both, left, right, neither; got `{self.closed}`"
            )
        low, high = self.low, self.high
        if low is not None and high is not None and low > high:
            ends = (
                f"before={format_duration(self.before or 0)},"
                f" after={format_duration(self.after or 0)}, closed={self.closed!r}"
            )
            raise SpecError(
                f"no two rows are within these bounds: {ends}. Hint: `before` and `after` must add"
                " up to more than nothing"
            )

    @property
    def low(self) -> int | None:
        """The least of `left.t - right.t`, included."""
        return None if self.before is None else -self.before + (self.closed not in ("both", "left"))

    @property
    def high(self) -> int | None:
        """The greatest of `left.t - right.t`, included."""
        return None if self.after is None else self.after - (self.closed not in ("both", "right"))

    def column(self, side: int) -> str | None:
        """The time column of a side that is compared; None for the main one."""
        return self.right if side == RIGHT else self.left

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {"type": "within", **dataclasses.asdict(self)}


@dataclass(frozen=True)
class Rows:
    """A window of each side that new rows of the other side look into as it is when they arrive.

    It is the last n messages of each partition by offset, or of one side the messages that are less
    than a time older than the row that looks; None keeps what retention keeps.
    """

    left: int | None = None
    right: int | None = None
    left_time: int | None = None
    right_time: int | None = None

    def __post_init__(self) -> None:
        for name in SIDES:
            size, span = getattr(self, name), getattr(self, f"{name}_time")
            if size is not None and (
                isinstance(size, bool) or not isinstance(size, int) or size <= 0
            ):
                raise SpecError(
                    f"rows `{name}` is a number of messages of 1 or more, or a duration, got"
                    f" {size!r}. Hint: leave it out for a side without a window"
                )
            if span is not None and (span <= 0 or size is not None):
                raise SpecError(
                    f"the {name} window of `rows` is a number of messages or a duration above 0,"
                    f" got {format_duration(span) if size is None else f'{size!r} and a duration'}."
                    " Hint: tg.rows(left=3, right='2 minutes')"
                )
        if self.left_time is not None and self.right_time is not None:
            raise SpecError(
                "`rows` has a window of messages on one side at least. Hint: tg.within(...) bounds"
                " the times of both"
            )

    def size(self, side: int) -> int | None:
        """The number of messages in the window of a side."""
        return self.right if side == RIGHT else self.left

    def span(self, side: int) -> int | None:
        """The length of the window of a side in time."""
        return self.right_time if side == RIGHT else self.left_time

    @property
    def compares_times(self) -> bool:
        """Whether one side has a window of time."""
        return self.left_time is not None or self.right_time is not None

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {"type": "rows", **dataclasses.asdict(self)}


@dataclass(frozen=True)
class AsOf:
    """Each left row matches the latest right row at or before it, at most `tolerance` older.

    With `strict`, the right row is before the left row.
    """

    tolerance: int | None = None
    strict: bool = False

    def __post_init__(self) -> None:
        if self.tolerance is not None and (
            self.tolerance < 0 or (self.strict and self.tolerance == 0)
        ):
            raise SpecError(
                "as_of `tolerance` must leave room for a row, got"
                f" {format_duration(self.tolerance)}. Hint: leave it out for none"
            )

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {"type": "as_of", **dataclasses.asdict(self)}


SHARED = (Tumbling, Hopping, ByDifference, Cumulative, Session, Calendar, Global)
"""The kinds of windows that rows of both sides can share."""
JoinWindow: TypeAlias = (
    tuple[Within, ...]
    | Tumbling
    | Hopping
    | ByDifference
    | Cumulative
    | Session
    | Calendar
    | Global
    | Rows
    | AsOf
)


@dataclass(frozen=True, eq=False)
class JoinSpec:
    """A windowed join."""

    left: Input
    right: Input
    window: JoinWindow
    on: tuple[tuple[str, str], ...] = ()
    """The equal fields: pairs of a left and a right column."""
    how: str = "inner"
    where: Condition | None = None
    names: tuple[str, str] = ("left_", "right_")
    """Prefixes of output columns that both sides have."""
    allowed_lateness: int | None = None
    """The lateness that was set explicitly; see `lateness`."""
    options: Options = field(default_factory=Options)
    retention: Retention = field(default_factory=Retention)
    padding: str = "complete"
    on_time_period: int | None = None
    late_period: int | None = None
    layout: tuple[str, ...] | None = None
    """The equal fields (left names) that messages are sorted by first. Default: by the query."""
    also: tuple[tuple[Input, ...], tuple[Input, ...]] = ((), ())
    """By side, the further inputs of a union or a merge."""
    merged: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    """By side, the names of the inputs of a merge."""

    def __post_init__(self) -> None:
        for name, value, allowed in (("how", self.how, HOWS), ("padding", self.padding, PADDINGS)):
            if value not in allowed:
                raise SpecError(
                    f"`{name}` of a join must be one of {', '.join(allowed)}; got {value!r}"
                )
        if self.lateness < 0:
            raise SpecError(
                f"`allow_lateness` can't be negative, got {format_duration(self.lateness)}"
            )
        check_mapped(self.inputs)
        self._check_sides()
        self._check_window()
        self._check_fields()
        self._check_rest()

    @property
    def inputs(self) -> tuple[Input, ...]:
        """All inputs, by ordinal: those of the left side, then those of the right."""
        return (*self.inputs_of(LEFT), *self.inputs_of(RIGHT))

    @property
    def input_names(self) -> tuple[str, ...]:
        """The names of all inputs: those of a merge, else those of the sides."""
        return tuple(
            name
            for side in (LEFT, RIGHT)
            for name in self.merged[side] or (SIDES[side],) * len(self.inputs_of(side))
        )

    def side(self, side: int) -> Input:
        """The input of a side; of several the first, whose column names all rows get."""
        return self.right if side == RIGHT else self.left

    def inputs_of(self, side: int) -> tuple[Input, ...]:
        """The inputs of a side."""
        return (self.side(side), *self.also[side])

    def side_of(self, ordinal: int) -> int:
        """The side of an input."""
        return LEFT if ordinal < len(self.inputs_of(LEFT)) else RIGHT

    def with_inputs(self, inputs: Sequence[Input]) -> JoinSpec:
        """The same join with other inputs, by ordinal."""
        number = len(self.inputs_of(LEFT))
        left, right = tuple(inputs[:number]), tuple(inputs[number:])
        return dataclasses.replace(self, left=left[0], right=right[0], also=(left[1:], right[1:]))

    @property
    def lateness(self) -> int:
        """How far behind the watermark a row is still matched; `MAX`: retention decides."""
        return self.retention.lateness(self.allowed_lateness)

    @property
    def key(self) -> tuple[str, ...]:
        """The key columns of the output: the equal fields."""
        return self.fields(LEFT)

    @property
    def mode(self) -> str:
        """The accumulation mode of the output: retracting."""
        return "retracting"

    @property
    def identity(self) -> tuple[str, ...]:
        """The columns that identify an output row for its retraction."""
        return (*self.key, "pair_id")

    @property
    def bounds(self) -> tuple[Within, ...]:
        """The bounds between time columns; none for other windows."""
        return self.window if isinstance(self.window, tuple) else ()

    def axis(self, side: int) -> Axis:  # noqa: ARG002
        """The axis on which rows of a side are matched: event time or offsets."""
        if isinstance(self.window, Rows):
            return Axis.OFFSET
        return self.window.axis if isinstance(self.window, Window) else Axis.EVENT_TIME

    def is_timed(self, side: int) -> bool:
        """Whether rows of a side are matched by event time."""
        return self.axis(side) is Axis.EVENT_TIME

    @property
    def has_windows(self) -> bool:
        """Whether rows match in windows with a start and an end."""
        return isinstance(self.window, Window)

    @property
    def shows_pairs(self) -> bool:
        """Whether the output has pairs."""
        return self.how not in ("semi", "anti")

    def pads(self, side: int) -> bool:
        """Whether unmatched rows of a side come out, padded with nulls."""
        return self.how in (("right", "full") if side == RIGHT else ("left", "full", "anti"))

    def fields(self, side: int) -> tuple[str, ...]:
        """The equal fields of a side."""
        return tuple(pair[side] for pair in self.on)

    @property
    def session_on(self) -> tuple[tuple[str, str], ...]:
        """The equal fields that sessions go by: the key of the streams; all if they have none."""
        if not isinstance(self.window, Session):
            return self.on
        keyed = tuple(
            pair for pair in self.on if pair[LEFT] in self.left.key or pair[RIGHT] in self.right.key
        )
        return keyed or self.on

    @property
    def hashed_on(self) -> tuple[tuple[str, str], ...]:
        """The equal fields that stored rows are sorted by first."""
        if self.layout is None:
            return self.session_on
        return tuple(pair for pair in self.on if pair[LEFT] in self.layout)

    def shard_fields(self, side: int) -> tuple[str, ...]:
        """The fields of a side whose values decide which rows must be processed together."""
        if not all(self.is_timed(number) for number in (LEFT, RIGHT)):
            # Offsets count messages of all keys.
            return ()
        return tuple(pair[side] for pair in self.session_on)

    def times(self, side: int) -> tuple[TimeColumn, ...]:
        """The time columns of a side that decide lateness and expiry, the main one first."""
        given = self.side(side)
        if not self.is_timed(side):
            return given.times[:1] if given.time is not None else ()
        used = {bound.column(side) or given.time for bound in self.bounds}
        return tuple(
            time for time in given.times if time.column in used or time.column == given.time
        )

    def to_dict(self) -> dict[str, Any]:
        """The JSON form: two specifications with the same form may share stored state."""
        window = (
            [bound.to_dict() for bound in self.window]
            if isinstance(self.window, tuple)
            else self.window.to_dict()
        )
        where = (
            None
            if self.where is None
            else (
                str(self.where)
                if isinstance(self.where, pc.Expression)
                else {"function": qualified_name(self.where)}
            )
        )
        return {
            "join": {"left": self.left.to_dict(), "right": self.right.to_dict()},
            "on": [list(pair) for pair in self.on],
            "window": window,
            "how": self.how,
            "where": where,
            "names": list(self.names),
            "allowed_lateness": self.lateness,
            "options": self.options.to_dict(),
            "retention": dataclasses.asdict(self.retention),
            "padding": self.padding,
            "periods": [self.on_time_period, self.late_period],
            "layout": None if self.layout is None else list(self.layout),
            **self._more_inputs(),
        }

    def _more_inputs(self) -> dict[str, Any]:
        """The JSON form of unions and merges."""
        found: dict[str, Any] = {}
        if any(self.also):
            found["also"] = [[given.to_dict() for given in side] for side in self.also]
        if any(self.merged):
            found["merged"] = [list(names) for names in self.merged]
        return found

    def __eq__(self, other: object) -> bool:
        # Comparing Arrow expressions gives an expression, not a truth value.
        return isinstance(other, JoinSpec) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash((self.left, self.right, self.on, self.how))

    def _check_sides(self) -> None:
        for side in (LEFT, RIGHT):
            inputs = self.inputs_of(side)
            if self.merged[side]:
                check_merge(self.merged[side], inputs)
            elif len(inputs) > 1:
                check_union([dataclasses.replace(given, others=()) for given in inputs])
            columns = [time.column for time in inputs[0].others]
            for given in inputs[1:]:
                if [time.column for time in given.others] != columns:
                    raise SpecError(
                        f"the inputs of the {SIDES[side]} side have the further time columns"
                        f" {columns} and {[time.column for time in given.others]}. Hint: name the"
                        " same in all of them"
                    )

    def _check_window(self) -> None:
        window = self.window
        if isinstance(window, tuple):
            if not window or not all(isinstance(bound, Within) for bound in window):
                raise SpecError(
                    f"several bounds of a join are all `within`, got {window!r}. Hint:"
                    " (tg.within(...), tg.within(...))"
                )
            self._check_columns(window)
        elif isinstance(window, Window):
            self._check_shared(window)
        elif not isinstance(window, AsOf | Rows):
            raise SpecError(
                f"a join takes a window, got {window!r}. Hint: tg.within('1 hour', '1 hour')"
            )
        if isinstance(window, AsOf) and self.how not in ("inner", "left"):
            raise SpecError(
                f"an as-of join is an inner or a left join, got how={self.how!r}. Hint: swap the"
                " streams, or use tg.within"
            )
        self._check_tuples()
        for side, (name, given) in enumerate(zip(SIDES, (self.left, self.right), strict=True)):
            if self.is_timed(side) and given.time is None:
                raise SpecError(
                    f"the {name} stream of this join needs a time column. Hint:"
                    " tg.stream(time='ts', ...)"
                )
            if any(
                isinstance(time.watermark, PerKey)
                for one in self.inputs_of(side)
                for time in one.times
            ):
                raise SpecError(
                    f"the {name} stream has per-key watermarks, and a join waits for the watermark"
                    " of a whole side. Hint: tg.bounded(...)"
                )

    def _check_columns(self, window: Sequence[Within]) -> None:
        for bound in window:
            for side, name in enumerate(SIDES):
                known = [time.column for time in self.side(side).times]
                column = bound.column(side)
                if column is not None and column not in known:
                    raise SpecError(
                        f"within names the {name} time column `{column}`, but the stream has"
                        f" {', '.join(map(str, known))}. Hint: tg.stream(times={{...}}) names more"
                        " of them"
                    )

    def _check_shared(self, window: Window) -> None:
        if not isinstance(window, SHARED) or window.axis not in (Axis.EVENT_TIME, Axis.OFFSET):
            raise SpecError(
                "rows of a join share tumbling, hopping, sliding, cumulative, calendar, session or"
                f" global windows on event time or on offsets, got {window!r}. Hint: tg.within(...)"
                " bounds times, axis='offset' counts messages"
            )
        if window.create == "static":
            raise SpecError(
                "the windows of a join are created on demand, got create='static'. Hint: leave"
                " `create` out"
            )
        if not isinstance(window, Session):
            return
        if window.gap is None:
            raise SpecError(
                "a session join has one gap for both streams, got `gap_column`. Hint:"
                " tg.session('10 minutes')"
            )
        missing = [
            name
            for side in (LEFT, RIGHT)
            for name in self.side(side).key
            if name not in self.fields(side)
        ]
        if not self.on or missing:
            what = (
                "leaves out the session key"
                f" {', '.join(f'`{name}`' for name in dict.fromkeys(missing))}"
                if missing
                else "has no equal fields"
            )
            raise SpecError(
                f"a session join {what}: a row of one stream would have to look into every session"
                " of the other, which is a join without sessions. Hint: name the session key in"
                " `on`, or use tg.within(...)"
            )

    def _check_tuples(self) -> None:
        for side, name in enumerate(SIDES):
            if self.is_timed(side):
                continue
            window = self.window if isinstance(self.window, Rows) else None
            if window is not None and window.compares_times and self.side(side).time is None:
                raise SpecError(
                    f"a window of time beside one of messages compares times, so the {name} stream"
                    " needs a time column. Hint: tg.stream(time='ts', ...)"
                )
            is_counted = window is None or window.span(side) is None
            if self.side(side).offset is None and is_counted:
                raise SpecError(
                    f"a join of tuples counts offsets, so the {name} stream needs `offset=`. Hint:"
                    " tg.stream(offset='offset')"
                )
            if self.retention.time is not None:
                raise SpecError(
                    "retention by time needs a join on time, this one counts messages. Hint:"
                    " retain by messages or bytes"
                )

    def _check_fields(self) -> None:
        for side, name in enumerate(SIDES):
            fields = self.fields(side)
            if len(set(fields)) != len(fields):
                raise SpecError(f"`on` names a {name} column twice: {list(fields)}")
        if len(self.names) != 2 or self.names[0] == self.names[1]:
            raise SpecError(
                f"`names` are two different prefixes, got {self.names!r}. Hint: names=('order_',"
                " 'shipment_')"
            )
        taken = set(ADDED) & {*self.fields(LEFT)}
        if taken:
            raise SpecError(
                f"the name(s) {', '.join(sorted(taken))} belong to columns that every row of a join"
                " has. Hint: rename the column"
            )
        goes_by = [pair[LEFT] for pair in self.session_on]
        unknown = [name for name in self.layout or () if name not in goes_by]
        if unknown or (self.layout is not None and not self.on):
            kind = (
                "the session key, which is"
                if isinstance(self.window, Session)
                else ("equal fields, which are")
            )
            raise SpecError(
                f"a keyed message store goes by {kind} {goes_by}; got {unknown or 'none to go by'}."
                " Hint: name them in `on`"
            )

    def _check_rest(self) -> None:
        if (
            self.where is not None
            and not isinstance(self.where, pc.Expression)
            and not callable(self.where)
        ):
            raise SpecError(
                "`where` is an expression of Arrow or a function over candidate pairs, got"
                f" {self.where!r}. Hint: where=pc.field('a') > 1"
            )
        if self.retention.windows is not None:
            raise SpecError(
                "a join retains messages, not windows. Hint: retain(time=..., messages=...,"
                " bytes=...)"
            )
        for name in ("on_time_period", "late_period"):
            period = getattr(self, name)
            if period is not None and not 0 < period < MAX:
                raise SpecError(
                    "an update period must be greater than 0 and finite, got"
                    f" {format_duration(period)}"
                )


Upstream: TypeAlias = AggregateSpec | JoinSpec
"""An operator upstream, whose output may have retractions."""


def progress_axis(spec: Upstream, number: int) -> Axis:
    """The axis that measures the progress of the sources of an input."""
    if isinstance(spec, JoinSpec):
        # Rows that are matched by offset all go to one shard, which counts them itself.
        return Axis.OFFSET if spec.inputs[number].time is None else Axis.EVENT_TIME
    return spec.window.axis


def within(
    before: Duration | None,
    after: Duration | None,
    *,
    closed: Closed = "both",
    left: str | None = None,
    right: str | None = None,
    unit: str | None = None,
) -> Within:
    """Match rows if `left.t` is in [`right.t - before`, `right.t + after`].

    None is no bound on that end. Bounds may be negative. `left` and `right` name the time columns
    of streams that have several.

    >>> within("1 hour", 0)
    Within(before=3600000000, after=0, closed='both', left=None, right=None)
    """
    ends = [None if end is None else duration(end, unit=unit) for end in (before, after)]
    finite = [None if end in (None, MAX) else end for end in ends]
    return Within(finite[0], finite[1], closed, left, right)


def rows(left: int | Duration | None = None, right: int | Duration | None = None) -> Rows:
    """Match a new row with the window of the other side as it is then.

    An integer is the last n messages of each partition by offset. A duration (text or `timedelta`),
    on one side only, is the messages that are less than that older than the row. A side without a
    window keeps what retention keeps.

    >>> rows(left=3, right="2 minutes")
    Rows(left=3, right=None, left_time=None, right_time=120000000)
    """
    spans = [
        duration(size) if isinstance(size, str | timedelta) else None for size in (left, right)
    ]
    sizes: list[Any] = [
        None if span is not None else size for size, span in zip((left, right), spans, strict=True)
    ]
    return Rows(*sizes, *spans)


def as_of(
    tolerance: Duration | None = None, *, strict: bool = False, unit: str | None = None
) -> AsOf:
    """Match each left row with the latest right row at or before it, at most `tolerance` older.

    With `strict`, the right row is before the left row.
    """
    reach = None if tolerance is None else duration(tolerance, unit=unit)
    return AsOf(None if reach == MAX else reach, strict)


def equal_fields(
    on: str | Sequence[str] | Mapping[str, str] | None, left: Input, right: Input
) -> tuple[tuple[str, str], ...]:
    """The equal fields as pairs of columns. Default: the key, if both streams have the same."""
    if on is None:
        return tuple((name, name) for name in left.key) if left.key == right.key else ()
    pairs = (
        [(on, on)]
        if isinstance(on, str)
        else list(on.items())
        if isinstance(on, Mapping)
        else [(name, name) for name in on]
    )
    if not all(isinstance(name, str) for pair in pairs for name in pair):
        raise SpecError(
            f"`on` takes names of columns, got {on!r}. Hint: on='id', on=['a', 'b'] or on={{'id':"
            " 'order_id'}"
        )
    return tuple(pairs)

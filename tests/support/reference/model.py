"""The windowed aggregate of design section 1, element by element, with dicts and lists."""

from __future__ import annotations

import copy
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

from support.reference.triggers import ByHand, Moment, Node, start
from support.reference.windows import (
    Span,
    aligned,
    clamp,
    gap_of,
    left_of,
    meet,
    proto,
    right_of,
    union,
)
from tidegate.errors import WatermarkError
from tidegate.instants import MAX, MIN
from tidegate.spec.triggers import Policy, Trigger
from tidegate.spec.windows import Axis, ByDifference, Session, Window

Key = tuple[Any, ...]
SECOND = 1_000_000
REASONS = ("window_expired", "out_of_retention", "window_closed")


@dataclass(frozen=True)
class Config:
    """What a reference is made of; the names are those of `.options()` and `.stream()`, durations
    are ticks.

    Panes always carry `n`, `total` and `values`; `aggregates` names those that `fire_only_updated`
    compares. With the watermark `per_key`, every key has its own, `disorder` behind its newest
    event, and the operator's is the floor, `floor` behind the newest of the slowest partition.
    """

    window: Window
    trigger: Trigger | None = None
    mode: str = "accumulating"
    allowed_lateness: int = 60 * SECOND
    time: str = "ts"
    value: str = "v"
    key: tuple[str, ...] = ()
    id: str | None = None
    offset: str | None = None
    partition: str | None = None
    watermark: str = "explicit"
    disorder: int = 0
    floor: int = 0
    max_keys: int | None = None
    drop_by: str = "event"
    session_lateness: str = "own"
    future: str = "process"
    future_tolerance: int = 60 * SECOND
    future_reference: str = "clock"
    fire_only_updated: bool = False
    aggregates: tuple[str, ...] = ("n", "total", "values")
    on_time: str = "if_nonempty"
    closing: str = "if_nonempty"
    granularity: str = "element"
    timestamp: str = "end_of_window"
    strict: bool = False
    retain_time: int | None = None
    retain_windows: int | None = None
    retain_messages: int | None = None
    now: Any = 0


@dataclass
class Element:
    """A row that was accepted, with what was known when it came."""

    seq: int
    row: dict[str, Any]
    x: int
    lateness: str
    on_time: bool


@dataclass
class State:
    """One window of one key: what it holds, what of it is new, and what it has put out."""

    key: Key
    start: int
    end: int
    trigger: Node
    members: list[Element] = field(default_factory=list)
    elements: list[Element] = field(default_factory=list)
    new: list[Element] = field(default_factory=list)
    fired: dict[str, Any] | None = None
    panes: int = 0
    later_panes: int = 0
    completed: bool = False
    touched: bool = False

    @property
    def span(self) -> Span:
        return self.start, self.end


class Reference:
    """The operator. Every call returns the panes and the late rows that it caused."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.now = config.now
        self.watermark = MIN
        self.before: Any = MIN
        self.ended = False
        self.told = False
        self.seq = 0
        self.states: dict[tuple[Key, Span], State] = {}
        self.closed: set[tuple[Key, Span]] = set()
        self.kept: dict[tuple[Key, Span], State] = {}
        """Windows that take no more elements and that retention keeps."""
        self.keys: dict[Key, int] = {}
        self.counts: dict[Key, int] = {}
        self.key_marks: dict[Key, int] = {}
        self.newest_of: dict[Key, int] = {}
        self.newest_in: dict[Any, int] = {}
        self.told_floor = MIN
        self.marks: dict[Any, int] = {}
        self.newest_before = MIN
        self.ids: dict[Any, int] = {}
        self.heard: dict[Key, list[Element]] = {}
        self.floors: dict[Key, tuple[int, int]] = {}
        self.newest = MIN
        self.stats: Counter[str] = Counter()
        self.panes: list[dict[str, Any]] = []
        self.late: list[dict[str, Any]] = []
        self.switch(ready=False, finishes=False)

    # ---- what the outside calls

    def add(self, rows: list[dict[str, Any]]) -> tuple[list[dict], list[dict]]:
        """One delivery."""
        self.before = self._marks()
        self.newest_of = {}
        for row in self._in_order(rows):
            self._take(row)
        if self.config.granularity == "batch" and self._axis is not Axis.ORDINAL:
            for state in self._sorted():
                if state.touched:
                    self._look(state)
        self._end_delivery()
        return self._collect()

    def advance_watermark(self, watermark: int) -> tuple[list[dict], list[dict]]:
        if self.config.strict and watermark < self.watermark:
            raise WatermarkError(f"{watermark} after {self.watermark}")
        if self._axis is Axis.EVENT_TIME:
            self.told = True
            self.told_floor = max(self.told_floor, watermark)
            self._move(watermark)
        return self._collect()

    def timeout(self, now: Any) -> tuple[list[dict], list[dict]]:
        """The clock; on the clock axis it is the watermark too."""
        self.now = max(self.now, now)
        if self._axis is Axis.CLOCK:
            self._move(self.now)
        self.before = self._marks()
        for state in self._sorted():
            self._look(state)
        return self._collect()

    def finish(self) -> tuple[list[dict], list[dict]]:
        """End of input: everything fires and is flushed."""
        self.before = self._marks()
        self.ended, self.watermark = True, MAX
        self.kept.clear()
        self._sweep()
        return self._collect()

    def switch(self, *, ready: bool, finishes: bool) -> None:
        """The switches of `Manual`."""
        ByHand.switches.update(ready=ready, finishes=finishes)

    def snapshot(self) -> Any:
        return copy.deepcopy(
            {name: value for name, value in vars(self).items() if name != "config"}
        )

    def restore(self, snapshot: Any) -> None:
        vars(self).update(copy.deepcopy(snapshot))

    # ---- time

    @property
    def _axis(self) -> Axis:
        return self.config.window.axis

    def _mark(self, key: Key) -> int:
        """The watermark that counts for a key: its own on ordinals, the common one elsewhere, its
        own but not below the common one per key.
        """
        if self._axis is Axis.ORDINAL and not self.ended:
            return self.key_marks.get(key, 0)
        return (
            max(self.key_marks.get(key, MIN), self.watermark) if self._per_key else self.watermark
        )

    @property
    def _per_key(self) -> bool:
        return self._axis is Axis.EVENT_TIME and self.config.watermark == "per_key"

    def _marks(self) -> Any:
        """The watermark of every key, as far as keys have their own."""
        if self._per_key:
            return defaultdict(
                lambda floor=self.watermark: floor, {key: self._mark(key) for key in self.key_marks}
            )
        return dict(self.key_marks) if self._axis is Axis.ORDINAL else self.watermark

    def _mark_before(self, key: Key) -> int:
        if isinstance(self.before, defaultdict):
            return self.before[key]
        return self.before.get(key, 0) if isinstance(self.before, dict) else self.before

    def _move(self, watermark: int) -> None:
        """A watermark that goes back is ignored and counted."""
        if watermark <= self.watermark:
            self.stats["watermark_back"] += watermark < self.watermark
            return
        self.before = self._marks()
        self.watermark = watermark
        self._sweep()

    def _move_keys(self) -> None:
        """All watermarks move in one step: those of the keys that spoke, and the floor; of too many
        keys ahead of it, the slowest are given up.
        """
        self.before = self._marks()
        for key, newest in self.newest_of.items():
            self.key_marks[key] = max(self.key_marks.get(key, MIN), newest - self.config.disorder)
        floors = [
            max(clamp(newest - self.config.floor), self.told_floor)
            for newest in self.newest_in.values()
        ]
        self.watermark = max([self.watermark, *([min(floors)] if floors else [])])
        ahead = sorted(mark for mark in self.key_marks.values() if mark > self.watermark)
        if self.config.max_keys is not None and len(ahead) > self.config.max_keys:
            self.watermark = ahead[len(ahead) - self.config.max_keys - 1]
        self._sweep()

    def _end_delivery(self) -> None:
        """Watermarks that follow from the messages move now; one that was told once is not implied
        any more.
        """
        self._retain_time()
        self.newest_before = self.newest
        if self._per_key:
            self._move_keys()
        elif self._axis is Axis.EVENT_TIME and self.config.watermark == "implied" and not self.told:
            self._move(self.newest)
        elif self._axis is Axis.OFFSET and self.marks:
            self._move(min(self.marks.values()) + 1)
        elif self._axis is Axis.ORDINAL and self.config.granularity == "batch":
            self.before, self.key_marks = self.key_marks, dict(self.counts)
            self._sweep()

    def _horizon(self, watermark: int) -> int:
        """Times below it are very late."""
        if self.config.allowed_lateness == MAX:
            return MIN
        if watermark in (MIN, MAX):
            return watermark
        return clamp(watermark - self.config.allowed_lateness)

    def _is_expired(self, key: Key, end: int) -> bool:
        lateness = self.config.allowed_lateness if self._axis is Axis.EVENT_TIME else 0
        if self._retains and self._axis is Axis.OFFSET and self.config.partition is not None:
            lateness = MAX
        window = self.config.window
        if isinstance(window, Session) and self.config.drop_by == "event":
            # An event at the end of a session may extend it, also one that has no gap itself.
            own_gaps = window.gap_column is not None and self._axis is Axis.EVENT_TIME
            end += window.touch == "merge" or own_gaps
        return self.ended or (
            lateness < MAX and clamp(end + lateness) <= self._mark(key) and self._mark(key) > MIN
        )

    def _sorted(self) -> list[State]:
        return sorted(self.states.values(), key=lambda s: (s.end, s.start, self.keys[s.key]))

    def _sweep(self) -> None:
        """The watermark has moved: fire what is ready, close what has expired, forget what can no
        longer matter.
        """
        for state in self._sorted():
            self._settle_state(state, expires=self._is_expired(state.key, state.end))
        self.closed = {
            (key, span)
            for key, span in self.closed
            if not self._is_expired(key, span[1]) or (key, span) in self.kept
        }
        self.ids = {
            name: until
            for name, until in self.ids.items()
            if until >= self._horizon(self.watermark)
        }
        if isinstance(self.config.window, ByDifference):
            size = self.config.window.size
            self.heard = {
                key: [
                    e
                    for e in heard
                    if not self._is_expired(key, right_of(e.x, size)[1]) or self._is_kept(key, e)
                ]
                for key, heard in self.heard.items()
            }

    def _is_kept(self, key: Key, element: Element) -> bool:
        """Whether retention keeps a window that holds the element."""
        return any(k == key and s[0] <= element.x < s[1] for k, s in self.kept)

    def _settle_state(self, state: State, *, expires: bool) -> None:
        if state.trigger.ready(self._moment(state)):
            self._fire(state, expires=expires)
        elif expires:
            self._close(state)
        if expires and self.states.pop((state.key, state.span), None) is not None:
            self._keep(state)

    # ---- a row comes in

    def _in_order(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Rows of a delivery are taken in the order of (partition, offset) where they have one."""
        if self.config.offset is None:
            return rows
        return sorted(rows, key=lambda row: (self._partition(row), row[self.config.offset]))

    def _partition(self, row: dict[str, Any]) -> Any:
        return 0 if self.config.partition is None else row[self.config.partition]

    def _is_duplicate(self, row: dict[str, Any]) -> bool:
        if self.config.offset is not None:
            partition, offset = self._partition(row), row[self.config.offset]
            if offset <= self.marks.get(partition, MIN):
                return True
            self.marks[partition] = offset
        if self.config.id is not None and row[self.config.id] is not None:
            name = row[self.config.id]
            if name in self.ids:
                return True
            self.ids[name] = self._matters_until(row)
        return False

    def _matters_until(self, row: dict[str, Any]) -> int:
        """An id is kept until this instant is very late: its time, but not less than what is due
        now; by windows, the last window's end.
        """
        t = row[self.config.time]
        if not isinstance(t, int):
            return self.watermark
        if self.config.drop_by == "event":
            return max(t, self.watermark)
        window = self.config.window
        spans = (
            [right_of(t, window.size)] if isinstance(window, ByDifference) else self._spans(row, t)
        )
        return max(t, max((s[1] - 1 for s in spans), default=t), self.watermark)

    def _take(self, row: dict[str, Any]) -> None:
        if self._is_duplicate(row):
            self.stats["duplicate"] += 1
            return
        key = tuple(row[name] for name in self.config.key)
        self.keys.setdefault(key, len(self.keys))
        x = self._position(key, row)
        if not isinstance(x, int | float):
            # A sign of life, though not of progress.
            self.newest_in.setdefault(self._partition(row), MIN)
            self._to_late(row, None, "null_time" if x is None else "bad_time", [])
            return
        lateness = self._classify(x, self._mark(key))
        self.stats[lateness] += 1
        if lateness in ("on_time", "mildly_late"):
            self.newest = max(self.newest, x)
        if lateness != "future":
            self.newest_of[key] = max(self.newest_of.get(key, MIN), x)
            self.newest_in[self._partition(row)] = max(
                self.newest_in.get(self._partition(row), MIN), x
            )
        if lateness == "future" and self.config.future == "reject":
            self._to_late(row, lateness, "future", self._spans(row, x))
        elif lateness == "very_late" and self.config.drop_by == "event":
            self._to_late(row, lateness, "very_late", self._spans(row, x))
        else:
            self._place(key, Element(self.seq, row, x, lateness, on_time=x >= self._mark(key)))
        self.seq += 1

    def _position(self, key: Key, row: dict[str, Any]) -> Any:
        """Where the element is on the axis of the window."""
        match self._axis:
            case Axis.EVENT_TIME:
                return row[self.config.time]
            case Axis.CLOCK:
                return self.now
            case Axis.OFFSET:
                return row[self.config.offset]
        self.counts[key] = self.counts.get(key, 0) + 1
        return self.counts[key] - 1

    def _classify(self, x: int, watermark: int) -> str:
        """Lateness first: what is behind the watermark is late, whatever the clock says."""
        if self._axis is not Axis.EVENT_TIME:
            return "on_time"
        if x < watermark:
            return "very_late" if x < self._horizon(watermark) else "mildly_late"
        reference = self.now if self.config.future_reference == "clock" else watermark
        return (
            "future"
            if reference > MIN and x > reference + self.config.future_tolerance
            else "on_time"
        )

    def _spans(self, row: dict[str, Any], x: int) -> list[Span]:
        """The windows that a row would be in on its own."""
        window = self.config.window
        if isinstance(window, Session):
            gap = gap_of(window, row)
            return [] if gap is None else [proto(window, x, gap)]
        if isinstance(window, ByDifference):
            return [left_of(x, window.size)]
        return aligned(window, x)

    def _place(self, key: Key, element: Element) -> None:
        window = self.config.window
        if isinstance(window, Session):
            self._place_in_session(key, element, window)
        elif isinstance(window, ByDifference):
            self._place_by_difference(key, element, window.size)
        elif spans := aligned(window, element.x):
            self._place_in(key, element, spans)
        else:
            self._to_late(element.row, element.lateness, "no_window", [])

    def _place_in(self, key: Key, element: Element, spans: list[Span]) -> list[Span]:
        """Add the element to those windows that can still take it; one late row a reason lists the
        others. Returns what took it.
        """
        missed = {s: reason for s in spans if (reason := self._refused(key, s))}
        wanted = [s for s in spans if s not in missed]
        for s in self._too_many(key, wanted, replaced=[]):
            self._push_out(key, s)
            if s in wanted:
                missed[s] = "out_of_retention"
        taken = [s for s in wanted if s not in missed]
        for s in taken:
            self._join(self._state(key, s), element)
        for reason in REASONS:
            if reason in missed.values():
                self._to_late(
                    element.row,
                    element.lateness,
                    reason,
                    sorted(s for s in missed if missed[s] == reason),
                )
        self._settle(key, taken)
        return taken

    def _refused(self, key: Key, span: Span) -> str | None:
        """Why a window cannot take an element, if it cannot."""
        by_window = self._axis is Axis.EVENT_TIME and self.config.drop_by == "window"
        # A partition may begin behind windows on offsets that are over.
        if (by_window or self._axis is Axis.OFFSET) and self._is_expired(key, span[1]):
            return "window_expired"
        if self._is_out_of_retention(key, span):
            return "out_of_retention"
        return "window_closed" if (key, span) in self.closed else None

    def _state(self, key: Key, span: Span) -> State:
        if (key, span) not in self.states:
            trigger = Policy() if self.config.trigger is None else self.config.trigger
            self.states[key, span] = State(key, *span, start(trigger, self.now))
        return self.states[key, span]

    def _join(self, state: State, element: Element) -> None:
        state.trigger.element(self._moment(state, element.x))
        for content in (state.members, state.elements, state.new):
            content.append(element)
        state.touched = True

    def _settle(self, key: Key, taken: list[Span]) -> None:
        """After an element: see what fires, then make room."""
        if self._axis is Axis.ORDINAL and self.config.granularity == "element":
            self.before, self.key_marks = self.key_marks, {**self.key_marks, key: self.counts[key]}
            self._sweep()
        elif self.config.granularity == "element":
            for s in sorted(taken, key=lambda s: (s[1], s[0])):
                if (key, s) in self.states:
                    self._look(self.states[key, s])
        self._retain_messages(key)

    # ---- sessions

    def _place_in_session(self, key: Key, element: Element, window: Session) -> None:
        gap = gap_of(window, element.row)
        if gap is None:
            self._to_late(element.row, element.lateness, "bad_gap", [])
            return
        own = proto(window, element.x, gap)
        met = sorted(s for k, s in self.states if k == key and meet(window.touch, own, s))
        whole = union([own, *met])
        reason = self._session_refused(key, own, whole)
        if reason is None and met != [whole]:
            over = self._too_many(key, [whole], replaced=met)
            if whole in over:
                reason = "out_of_retention"
            else:
                for s in over:
                    self._push_out(key, s)
        if reason is not None:
            self._to_late(
                element.row, element.lateness, reason, [whole if reason == "window_closed" else own]
            )
            return
        if met != [whole]:
            self._replace(key, met, whole)
        self._join(self.states[key, whole], element)
        self._settle(key, [whole])

    def _session_refused(self, key: Key, own: Span, whole: Span) -> str | None:
        counted = whole if self.config.session_lateness == "merged" else own
        if (
            self._axis is Axis.EVENT_TIME
            and self.config.drop_by == "window"
            and self._is_expired(key, counted[1])
        ):
            return "window_expired"
        if self._is_out_of_retention(key, own):
            return "out_of_retention"
        return "window_closed" if (key, whole) in self.closed else None

    def _replace(self, key: Key, met: list[Span], whole: Span) -> None:
        """A session that grows or swallows others is a new window; what the old ones had put out is
        taken back.
        """
        old = [self.states.pop((key, s)) for s in met]
        for state in old:
            if self.config.mode != "discarding":
                self._retract(state)
        state = self._state(key, whole)
        if old:
            state.trigger.merge([s.trigger for s in old], self._moment(state))
        for name in ("members", "elements", "new"):
            setattr(
                state, name, sorted((e for s in old for e in getattr(s, name)), key=lambda e: e.seq)
            )

    # ---- by difference

    def _place_by_difference(self, key: Key, element: Element, size: int) -> None:
        """Windows begin and end at elements, so a new element also makes windows that hold older
        ones.
        """
        heard = self.heard.setdefault(key, [])
        x = element.x
        edges = {s for e in [*heard, element] for s in (left_of(e.x, size), right_of(e.x, size))}
        mine = sorted(s for s in edges if s[0] <= x < s[1])
        fresh = [s for s in mine if (key, s) not in self.states]
        if not self._fill_and_place(key, element, mine, fresh, heard):
            return
        heard = self.heard.setdefault(key, [])
        heard.append(element)
        after = right_of(x, size)
        held = [e for e in heard if after[0] <= e.x < after[1]]
        if held and (key, after) not in self.states and self._refused(key, after) is None:
            over = self._too_many(key, [after], replaced=[])
            if after not in over:
                for s in over:
                    self._push_out(key, s)
                for e in held:
                    self._join(self._state(key, after), e)
                self._settle(key, [after])

    def _fill_and_place(
        self, key: Key, element: Element, mine: list[Span], fresh: list[Span], heard: list[Element]
    ) -> list[Span]:
        """New windows first get the older elements that they hold."""
        allowed = [s for s in fresh if self._refused(key, s) is None]
        over = self._too_many(key, [s for s in mine if self._refused(key, s) is None], replaced=[])
        for s in allowed:
            if s not in over:
                for e in heard:
                    if s[0] <= e.x < s[1]:
                        self._join(self._state(key, s), e)
        return self._place_in(key, element, mine)

    # ---- retention

    @property
    def _retains(self) -> bool:
        config = self.config
        return any((config.retain_time, config.retain_windows, config.retain_messages))

    def _keep(self, state: State) -> None:
        """A window that is over stays readable."""
        if self._retains and not self.ended:
            self.kept[state.key, state.span] = state
            self.closed.add((state.key, state.span))

    def readable(self) -> dict[tuple[Key, Span], int]:
        """How many elements each window holds."""
        return {at: len(s.members) for at, s in {**self.states, **self.kept}.items()}

    def _is_out_of_retention(self, key: Key, span: Span) -> bool:
        by_time = (
            self.config.retain_time is not None
            and span[1] <= self.newest_before - self.config.retain_time
        )
        return by_time or (span[1], span[0]) <= self.floors.get(key, (MIN, MIN))

    def _too_many(self, key: Key, wanted: list[Span], replaced: list[Span]) -> list[Span]:
        """The oldest windows of a key that would be beyond their number if it also held the wanted
        ones.
        """
        if self.config.retain_windows is None:
            return []
        held = {s for k, s in [*self.states, *self.kept] if k == key}
        held = (held | set(wanted)) - set(replaced)
        ordered = sorted(held, key=lambda s: (s[1], s[0]))
        return ordered[: max(0, len(ordered) - self.config.retain_windows)]

    def _push_out(self, key: Key, span: Span) -> None:
        """A window that retention pushes out fires what it holds."""
        state = self.states.get((key, span)) or self.kept.get((key, span))
        if state is None:
            return
        self.floors[state.key] = max(
            self.floors.get(state.key, (MIN, MIN)), (state.end, state.start)
        )
        self._evict(state)

    def _evict(self, state: State) -> None:
        if self.kept.pop((state.key, state.span), None) is None:
            self._last_pane(state, pushed=True)
            del self.states[state.key, state.span]

    def _retain_time(self) -> None:
        """At the end of a delivery, windows too far behind the newest event go."""
        if self.config.retain_time is not None and self._axis is Axis.EVENT_TIME:
            for state in [*self._sorted(), *list(self.kept.values())]:
                if state.end <= self.newest - self.config.retain_time:
                    self._evict(state)

    def _retain_messages(self, key: Key) -> None:
        """A message counts in every window that holds it; the newest window stays whatever it
        holds.
        """
        if self.config.retain_messages is not None:
            held = [s for s in [*self._sorted(), *self.kept.values()] if s.key == key]
            held.sort(key=lambda s: (s.end, s.start))
            while len(held) > 1 and sum(len(s.members) for s in held) > self.config.retain_messages:
                self._push_out(key, held.pop(0).span)

    # ---- firing

    def _moment(self, state: State, x: int = 0) -> Moment:
        return Moment(state.end, self._mark(state.key), self.now, len(state.new), x)

    def _look(self, state: State) -> None:
        """A session without a gap, of an element at the watermark itself, is over with it."""
        state.touched = False
        expires = self._is_expired(state.key, state.end)
        self._settle_state(state, expires=expires)
        if expires and (state.key, state.span) not in self.kept:
            self.closed.discard((state.key, state.span))

    def _fire(self, state: State, *, expires: bool) -> None:
        at = self._moment(state)
        refires = state.trigger.refires(at)
        state.trigger.fire(at)
        wanted = self._is_wanted(state, at, refires=refires)
        wanted = wanted or (expires and self.config.closing == "always")
        if wanted:
            self._emit(state, last=expires or state.trigger.finished)
        state.completed |= at.complete or self._is_full(state)
        state.new = []
        if state.trigger.finished:
            del self.states[state.key, state.span]
            self.closed.add((state.key, state.span))
            self._keep(state)

    def _is_empty(self, state: State) -> bool:
        return not (state.new if self.config.mode == "discarding" else state.elements)

    @staticmethod
    def _is_full(state: State) -> bool:
        """Whether a full-size policy has completed the window."""
        policy = state.trigger.spec
        return isinstance(policy, Policy) and policy.full is not None and state.trigger.is_over

    def _is_wanted(self, state: State, at: Moment, *, refires: bool) -> bool:
        if (at.complete or self._is_full(state)) and not state.completed:
            return {
                "always": True,
                "if_nonempty": not self._is_empty(state),
                "if_updated": bool(state.new),
            }[self.config.on_time]
        return bool(state.new) or (refires and not self._is_empty(state))

    def _close(self, state: State) -> None:
        """The window goes and its trigger is not ready: what never fired must not be lost."""
        if self.config.closing == "never":
            for element in state.new:
                self._to_late(element.row, element.lateness, "unfired", [state.span])
        else:
            due = (
                self.config.on_time == "always" and state.panes and self._timing(state) == "on_time"
            )
            self._last_pane(state, due=bool(due))

    def _last_pane(self, state: State, *, due: bool = False, pushed: bool = False) -> None:
        if due or state.new or self.config.closing == "always":
            self._emit(state, last=True, pushed=pushed)

    def _timing(self, state: State, *, pushed: bool = False) -> str:
        if self._mark(state.key) < state.end and not pushed and not self._is_full(state):
            return "early"
        behind = self._mark_before(state.key) >= state.end and not any(e.on_time for e in state.new)
        return "late" if state.completed or behind else "on_time"

    def _output_time(self, state: State) -> int:
        times = [e.x for e in state.new if e.on_time]
        if self.config.timestamp == "end_of_window" or not times:
            return state.end - 1 if state.end < MAX else MAX
        return min(times) if self.config.timestamp == "earliest" else max(times)

    def _emit(self, state: State, *, last: bool, pushed: bool = False) -> None:
        content = state.new if self.config.mode == "discarding" else state.elements
        values = [e.row[self.config.value] for e in content]
        known = [v for v in values if isinstance(v, int | float)]
        value = {"values": values, "n": len(values), "total": sum(known) if known else None}
        if (
            self.config.fire_only_updated
            and state.fired is not None
            and all(state.fired[name] == value[name] for name in self.config.aggregates)
        ):
            return
        if self.config.mode == "retracting":
            self._retract(state)
        timing = self._timing(state, pushed=pushed)
        pane = {
            **dict(zip(self.config.key, state.key, strict=True)),
            "window_start": finite(state.start),
            "window_end": finite(state.end),
            "op": "+",
            "timing": timing,
            "pane": state.panes,
            "pane_nonspeculative": -1 if timing == "early" else state.later_panes,
            "is_first": state.panes == 0,
            "is_last": last,
            **value,
            "time": finite(self._output_time(state)),
            **self._stamp(state.key),
        }
        state.panes += 1
        state.later_panes += timing != "early"
        state.fired = pane
        if self.config.mode == "discarding":
            state.elements = []
        self.panes.append(pane)

    def _retract(self, state: State) -> None:
        """The row that takes the last pane back: the same pane, now."""
        if state.fired is not None:
            self.panes.append({**state.fired, "op": "-", **self._stamp(state.key)})

    def _stamp(self, key: Key) -> dict[str, Any]:
        return {"watermark": finite(self._mark(key)), "emitted_at": self.now}

    def _to_late(
        self, row: dict[str, Any], lateness: str | None, reason: str, windows: list[Span]
    ) -> None:
        self.stats["dropped_pairs"] += len(windows)
        key = tuple(row[name] for name in self.config.key)
        spans = [(finite(s), finite(e)) for s, e in windows]
        self.late.append(
            {**row, "class": lateness, "reason": reason, "windows": spans, **self._stamp(key)}
        )

    def _collect(self) -> tuple[list[dict], list[dict]]:
        done = self.panes, self.late
        self.panes, self.late = [], []
        return done


def finite(instant: int) -> int | None:
    """The ends of time have no number in an output."""
    return None if instant in (MIN, MAX) else instant

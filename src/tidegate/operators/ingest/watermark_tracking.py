"""Watermark tracking: one watermark for an operator, from all sources of all its inputs.

A source is a partition or a writer of an input. A promise is the watermark of one source. The
watermark of an input is coalesced over its sources, and that of the operator over its inputs.
Operators that treat their inputs separately read `ReleasedMarks.by_input`, the others
`ReleasedMarks.coalesced`.

An input is idle when all its sources are. An input without sources, or one whose watermark the
program advances, counts as a single source: it holds the watermark back until it is marked idle or
is silent for `idle_after`.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.errors import InputError, SpecError, TidegateError, WatermarkError
from tidegate.instants import MAX, MIN, format_instant, saturating_add
from tidegate.kernel.events.duplicates import partitions_of
from tidegate.kernel.events.event_time import OK, read_times
from tidegate.kernel.watermarks.coalescer import Rules
from tidegate.kernel.watermarks.generators import Generator, Observed, compile_generator
from tidegate.kernel.watermarks.keyed import KeyedCoalescer
from tidegate.kernel.watermarks.marks import Active, Idle, Mark, Watermark
from tidegate.kernel.watermarks.tracker import SourceTracker
from tidegate.spec.operator import Input, Options, TimeColumn, input_of
from tidegate.spec.watermarks import Explicit, Implied, Noted, Watched

_UNWATCHED = Watched()
_LISTED = 5
"""The number of sources that a warning names."""


@dataclass(frozen=True, slots=True)
class ReleasedMarks:
    """Marks that one call released: those of single inputs, and those of all inputs together."""

    by_input: list[tuple[int, Mark]] = field(default_factory=list)
    by_group: list[tuple[int, Mark]] = field(default_factory=list)
    """Those of groups of inputs; of a group with one input, those of the input."""
    coalesced: list[Mark] = field(default_factory=list)

    @property
    def watermark(self) -> int:
        """The watermark that all inputs together have risen to; `MIN` if it has not risen."""
        return max(
            (mark.value for mark in self.coalesced if isinstance(mark, Watermark)), default=MIN
        )


@dataclass(frozen=True, slots=True)
class PausedSource:
    """A source that the runtime should not read for now; an empty name means the whole input."""

    input: int
    name: str


@dataclass(eq=False)
class TimeColumnTracker:
    """The watermark of one time column of one input: its generator and the state of its sources."""

    spec: TimeColumn
    generator: Generator
    sources: SourceTracker
    is_external: bool = False
    """Whether the program or an upstream advances the watermark, which ends an implied one."""
    is_awake: bool = True
    """Whether the input itself holds the watermark back while all its sources are idle, because its
    own activity is newer than theirs.
    """
    spoke_at: int = 0
    """The clock at the last activity of the input as a whole."""
    is_idle: bool = False
    """The status that was released last."""
    has_warned: bool = False
    """Whether a warning said that only undeclared sources send rows."""

    def touch(self, now: int) -> None:
        """Record activity of the input as a whole."""
        self.is_awake, self.spoke_at = True, now

    @property
    def is_source(self) -> bool:
        """Whether the input itself counts as the source, since no source of it is active."""
        return not len(self.sources) or self.sources.is_idle

    def is_silent(self, now: int) -> bool:
        """Whether the input does not hold the watermark back."""
        if not self.is_source:
            return False
        limit = self.sources.idle_after
        return not self.is_awake or (limit is not None and now - self.spoke_at >= limit)

    @property
    def next_due(self) -> int:
        """The clock at which the next source, or the input, becomes idle; `MAX` if none does."""
        limit, due = self.sources.idle_after, self.sources.next_due
        is_pending = self.is_source and self.is_awake and not self.is_idle
        return (
            due
            if limit is None or not is_pending
            else min(due, int(saturating_add(self.spoke_at, limit)))
        )

    def save(self) -> dict[str, Any]:
        whole = {
            "is_external": self.is_external,
            "is_awake": self.is_awake,
            "spoke_at": self.spoke_at,
            "is_idle": self.is_idle,
        }
        return {**whole, "generator": self.generator.save(), "sources": self.sources.save()}

    def restore(self, document: dict[str, Any], pause: int) -> None:
        self.is_external, self.is_awake, self.is_idle = (
            document["is_external"],
            document["is_awake"],
            document["is_idle"],
        )
        self.spoke_at = document["spoke_at"]
        self.generator.restore(document["generator"])
        self.sources.restore(document["sources"])
        self.shift(pause)

    def shift(self, pause: int) -> None:
        """Exclude a pause of the operator from the silence of the sources."""
        self.spoke_at += pause
        self.sources.shift(pause)


class WatermarkTracker:
    """The watermarks of an operator's inputs."""

    def __init__(
        self,
        inputs: Sequence[Input],
        options: Options,
        *,
        now: int,
        groups: Sequence[Sequence[int]] = (),
    ) -> None:
        """Create a tracker; `groups` are inputs whose watermarks are coalesced for themselves."""
        self._inputs = tuple(inputs)
        self._groups = {ordinal: n for n, group in enumerate(groups) for ordinal in group}
        self._within = [
            KeyedCoalescer(len(group), Rules(strict=options.strict)) for group in groups
        ]
        self._places = {ordinal: n for group in groups for n, ordinal in enumerate(group)}
        """The number of each input in its group."""
        self._options = options
        self.counters: Counter[str] = Counter()
        self.now = now
        self.columns = [
            {column.key: self._column(column, n, now) for column in given.times}
            for n, given in enumerate(inputs)
        ]
        self.across = KeyedCoalescer(len(inputs), Rules(strict=options.strict))
        self.failure = ""
        """The last failure of a generator."""
        self._risen: dict[int, int] = {}
        self._ended: set[int] = set()
        self._held = [list[str]() for _ in inputs]
        """The paused sources at the last release, by input. Their silence does not count."""
        self._common = set.intersection(*({*columns} for columns in self.columns))
        """The watermark keys that all inputs have. Others are dropped, even while an input that
        lacks them is idle.
        """
        for key in sorted(self._common):
            self.across.coalescer(key)

    def _column(self, column: TimeColumn, ordinal: int, now: int) -> TimeColumnTracker:
        watched = _watched(column)
        tracker = SourceTracker(
            idle_after=watched.idle_after,
            declared=watched.declared,
            forget_after=watched.forget_after if isinstance(watched, Noted) else None,
            rules=Rules(strict=self._options.strict, realign=watched.realign),
            now=now,
            owner=f"input {ordinal}" if len(self._inputs) > 1 else "",
        )
        return TimeColumnTracker(column, compile_generator(column.watermark), tracker, spoke_at=now)

    def follow(self, ordinal: int | None = None) -> None:
        """Take the watermark of one input, or of all, from an upstream instead of from the rows."""
        followed = self.columns if ordinal is None else [self._columns(ordinal)]
        for column in [column for columns in followed for column in columns.values()]:
            if not isinstance(column.spec.watermark, Implied | Explicit):
                raise SpecError(
                    "the upstream provides the watermark, but `watermark` is"
                    f" {column.spec.watermark}. Hint: leave it out"
                )
            column.is_external = True

    # Observations and events of sources

    def limit(self, key: int = 0) -> int:
        """The instant beyond which events are from the future."""
        origin = self.now if self._options.future_reference == "clock" else self.output(key)
        return MAX if origin == MIN else int(saturating_add(origin, self._options.future_tolerance))

    def observe(self, ordinal: int, seen: Observed, key: int = 0) -> None:
        """Observe a delivery; rows from the future neither advance a watermark nor are activity."""
        column = self._found(ordinal, key)
        if not self._is_open(ordinal):
            return
        kept = seen.without_future(self.output(key))
        if len(kept) < len(seen):
            # A marker from the future is refused, and it is no event that is counted elsewhere.
            self.counters["refused_promises"] += _markers(column, seen) - _markers(column, kept)
        if len(kept):
            self._take(column, kept)

    def observe_table(self, ordinal: int, table: pa.Table) -> None:
        """Observe the rows of a table by all time columns of an input."""
        partition, names = partitions_of(table, self._inputs[ordinal].partition)
        named = [
            (key, column.spec.column)
            for key, column in self._columns(ordinal).items()
            if column.spec.column is not None
        ]
        # All columns are read before any is observed, so that an unreadable one refuses all.
        read = [(key, *read_times(table.column(name), name)) for key, name in named]
        self.observe_columns(
            ordinal,
            {
                key: Observed(
                    table, times, verdict == OK, partition, names, self.now, self.limit(key)
                )
                for key, times, verdict in read
            },
        )

    def observe_columns(self, ordinal: int, seen: Mapping[int, Observed]) -> None:
        """Observe a delivery by several time columns: by all, or by none if one goes back."""
        before = (
            {key: self.columns[ordinal][key].save() for key in seen}
            if self._options.strict and len(seen) > 1
            else {}
        )
        try:
            for key, observed in seen.items():
                self.observe(ordinal, observed, key)
        except WatermarkError:
            for key, saved in before.items():
                self.columns[ordinal][key].restore(saved, 0)
            raise

    def _take(self, column: TimeColumnTracker, seen: Observed) -> None:
        before = column.generator.save() if self._options.strict else None
        try:
            promises = column.generator.observe(seen)
        except Exception as error:  # noqa: BLE001
            self._failed(error)
            promises = column.generator.alive(seen)
        tracker, names, values = column.sources, promises.names, promises.values
        self.counters["refused_promises"] += promises.refused
        ended = column.is_external and isinstance(column.spec.watermark, Implied)
        if ended:
            # The program advances the watermark, so events are activity only.
            values = np.full(len(names), MIN)
        if ended or not column.generator.joins:
            known = [n for n, name in enumerate(names) if name in tracker]
            names, values = [names[n] for n in known], values[known]
        if names:
            try:
                tracker.promise(names, values, self.now, repeats=column.generator.repeats)
            except WatermarkError:
                # The delivery is refused, so the generator must not have observed it.
                column.generator.restore(before)
                raise
            column.is_awake = False
            self._warn_undeclared(column)
        elif not len(tracker):
            column.touch(self.now)
        tracker.leave(promises.replaced)

    def _warn_undeclared(self, column: TimeColumnTracker) -> None:
        """Warn once if rows come only from partitions that are not declared."""
        declared = _watched(column.spec).declared
        is_known = column.has_warned or column.sources.output > MIN
        if not declared or is_known or isinstance(column.spec.watermark, Noted):
            return
        spoken = {one.name for one in column.sources.describe() if one.promise is not None}
        if not spoken or not spoken.isdisjoint(declared):
            return
        column.has_warned = True
        warnings.warn(
            f"rows come from {_listed(sorted(spoken))}, and none from the declared"
            f" {_listed(declared)}, which hold the watermark back. Hint: declare the names in the"
            " partition column, or set `idle_after`",
            RuntimeWarning,
            stacklevel=2,
        )

    def _failed(self, error: Exception) -> None:
        if not isinstance(error, TidegateError):
            error = TidegateError(f"{type(error).__name__}: {error}")
        self.counters["generator_failures"] += 1
        self.failure = str(error)
        warnings.warn(
            f"a watermark generator failed and did not advance the watermark: {error}",
            RuntimeWarning,
            stacklevel=2,
        )

    def has(self, key: int | None, ordinal: int = 0) -> bool:
        """Whether an input has a time column with this watermark key; None stands for all keys."""
        return key is None or key in self._columns(ordinal)

    def promise(
        self,
        value: int,
        *,
        ordinal: int = 0,
        partition: str | None = None,
        key: int = 0,
        repeats: bool = False,
    ) -> None:
        """Advance the watermark of one partition, or of a whole input, from outside.

        With `repeats` an older value is ignored and not a step back. A watermark with a key that
        the input does not have is dropped: a window reads one time column only.
        """
        if not self.has(key, ordinal):
            self.counters["watermarks_dropped"] += 1
            return
        column = self._found(ordinal, key)
        if not self._is_open(ordinal) or (repeats and value < column.sources.output):
            return
        column.is_external = True
        if partition is None:
            column.touch(self.now)
            self._lift(column.sources, value)
            return
        if isinstance(column.spec.watermark, Implied):
            # From now on each partition has a watermark of its own, so the source that stood for
            # all events leaves.
            column.sources.leave([""])
        column.is_awake = False
        column.sources.promise([str(partition)], np.array([value]), self.now)

    def _lift(self, tracker: SourceTracker, value: int) -> None:
        if value >= tracker.output:
            tracker.lift(value, self.now)
            return
        self.counters["steps_back"] += 1
        if self._options.strict:
            old, new = format_instant(tracker.output), format_instant(value)
            name = (
                f"the watermark of {tracker.coalescer.owner}"
                if tracker.coalescer.owner
                else "the watermark"
            )
            raise WatermarkError(
                f"{name} went back from {old} to {new}. Hint: leave `strict` out to ignore and"
                " count steps back"
            )

    def idle(
        self, *, ordinal: int = 0, partition: str | None = None, key: int | None = None
    ) -> None:
        """Mark a partition, or a whole input, as idle, for one watermark key or for all."""
        columns = self._columns(ordinal) if key is None else {key: self._found(ordinal, key)}
        for column in columns.values():
            column.is_awake = False
            column.sources.idle(None if partition is None else [str(partition)], self.now)
        if partition is None and key is None:
            # This also holds for keys that are not known yet.
            self.across.idle(ordinal)
            if ordinal in self._groups:
                self._within[self._groups[ordinal]].idle(self._places[ordinal])

    def active(self, *, ordinal: int = 0, key: int | None = None) -> None:
        """Mark a whole input as active again, for one watermark key or for all."""
        columns = self._columns(ordinal) if key is None else {key: self._found(ordinal, key)}
        for column in columns.values():
            column.sources.wake(self.now)
            column.touch(self.now)

    def join(self, partition: str, *, ordinal: int = 0) -> None:
        """Add a partition that has not sent anything yet."""
        for column in self._columns(ordinal).values():
            column.is_awake = False
            column.sources.join([str(partition)], self.now)

    def leave(self, partition: str, *, ordinal: int = 0) -> None:
        """Remove a partition."""
        for column in self._columns(ordinal).values():
            there = len(column.sources)
            column.sources.leave([str(partition)])
            self._emptied(column, there)

    def _emptied(self, column: TimeColumnTracker, before: int) -> None:
        """After its last source has left, an input itself holds the watermark back, unless it was
        idle.
        """
        if before and not len(column.sources) and not column.is_idle:
            column.touch(self.now)

    def end(self, *, ordinal: int = 0, partition: str | None = None) -> None:
        """End a partition, or a whole input."""
        for column in self._columns(ordinal).values():
            column.is_awake = False
            column.sources.end(None if partition is None else [str(partition)], self.now)
        if partition is None:
            self._ended.add(ordinal)

    def has_ended(self, ordinal: int) -> bool:
        """Whether a whole input has ended."""
        return ordinal in self._ended

    def _is_open(self, ordinal: int) -> bool:
        """Whether an input has not ended; counts what comes after its end."""
        self.counters["after_end"] += ordinal in self._ended
        return ordinal not in self._ended

    def tick(self, now: int) -> None:
        """Advance the clock; it never goes back."""
        self.now = max(self.now, now)
        for ordinal, columns in enumerate(self.columns):
            for column in columns.values() if ordinal not in self._ended else ():
                promises = column.generator.tick(self.now)
                if promises.names:
                    column.sources.promise(promises.names, promises.values, self.now, repeats=True)

    def shift(self, pause: int) -> None:
        """Exclude a pause of the operator from the silence of the sources."""
        for column in [column for columns in self.columns for column in columns.values()]:
            column.shift(pause)

    def release(self) -> ReleasedMarks:
        """Coalesce all watermarks once, and return the marks that changed."""
        step = ReleasedMarks()
        for ordinal, columns in enumerate(self.columns):
            for key, column in columns.items():
                self._release(ordinal, key, column, step)
            if ordinal in self._ended:
                self.across.done(ordinal)
                if ordinal in self._groups:
                    self._within[self._groups[ordinal]].done(self._places[ordinal])
        for number, coalescer in enumerate(self._within):
            step.by_group.extend((number, mark) for mark in coalescer.release())
        step.coalesced.extend(self.across.release())
        self._risen.update(
            (mark.key, self.now) for mark in step.coalesced if isinstance(mark, Watermark)
        )
        self._held = [self._paused(ordinal) for ordinal in range(len(self.columns))]
        return step

    def _release(
        self, ordinal: int, key: int, column: TimeColumnTracker, step: ReleasedMarks
    ) -> None:
        tracker, there = column.sources, len(column.sources)
        held = set(self._held[ordinal])
        tracker.tick(
            self.now,
            np.array(
                [n for n, name in enumerate(tracker.names) if name in held] if held else [],
                np.int64,
            ),
        )
        self._emptied(column, there)
        if "" in held and column.is_source:
            column.spoke_at = self.now
        watermark = tracker.release(self.now).watermark
        idle = ordinal in self._ended or column.is_silent(self.now)
        marks: list[Mark] = []
        if column.is_idle and not idle:
            marks.append(Active(key))
        if watermark is not None:
            marks.append(Watermark(watermark, key))
        if idle and (marks or not column.is_idle):
            # A watermark makes an input active downstream, so an idle one is marked idle again.
            marks.append(Idle(key))
        column.is_idle = idle
        step.by_input.extend((ordinal, mark) for mark in marks)
        targets = [(self.across, ordinal)] if key in self._common else []
        if ordinal in self._groups:
            targets.append((self._within[self._groups[ordinal]], self._places[ordinal]))
        for coalescer, number in targets:
            if not idle:
                coalescer.active(number, key)
            for mark in marks:
                coalescer.take(number, mark)

    # Queries

    def output(self, key: int = 0) -> int:
        """The watermark of all inputs together; `MIN` while there is none."""
        if key in self._common:
            return self.across.coalescer(key).output
        return min(
            (columns[key].sources.output for columns in self.columns if key in columns),
            default=MIN,
        )

    def is_idle(self, key: int = 0) -> bool:
        """Whether all inputs are idle or done."""
        return key in self._common and self.across.coalescer(key).is_idle

    def since(self, key: int = 0) -> int:
        """The clock when the watermark last advanced, or at the start."""
        return self._risen.get(
            key, min(columns[key].sources.since for columns in self.columns if key in columns)
        )

    @property
    def next_due(self) -> int:
        """The clock at which the next silent source becomes idle; `MAX` if none does."""
        return min(column.next_due for columns in self.columns for column in columns.values())

    def clock_at(self, value: int, key: int = 0) -> int:
        """The first clock that may advance the watermark to a value without any further activity;
        `MAX` if none does.
        """
        running = [
            columns[key]
            for ordinal, columns in enumerate(self.columns)
            if key in columns and ordinal not in self._ended
        ]
        # A column that has already reached the value does not hold it back.
        return min(
            (
                column.generator.clock_at(value)
                for column in running
                if column.sources.output < value
            ),
            default=MAX,
        )

    def stats(self) -> dict[str, int]:
        """Counters of watermarks: advances, steps back, refused and dropped ones."""
        trackers = [column.sources for columns in self.columns for column in columns.values()]
        ended = sum(tracker.coalescer.after_end for tracker in trackers)
        return {
            "watermark_steps_back": (
                self.counters["steps_back"] + sum(tracker.steps_back for tracker in trackers)
            ),
            "watermark_advances": self.across.advances,
            "watermarks_refused": self.counters["refused_promises"],
            "watermarks_dropped": self.counters["watermarks_dropped"],
            "watermarks_after_end": self.counters["after_end"] + ended,
            "generator_failures": self.counters["generator_failures"],
        }

    def paused(self) -> list[PausedSource]:
        """The sources that are too far ahead of the slowest and should not be read for now."""
        return [
            PausedSource(ordinal, name)
            for ordinal in range(len(self.columns))
            for name in self._paused(ordinal)
        ]

    def _paused(self, ordinal: int) -> list[str]:
        """Only the first time column of an input decides: with two, each of two sources could wait
        for the other.
        """
        key, column = next(iter(self.columns[ordinal].items()))
        align = _watched(column.spec).align
        if align is None:
            return []
        slowest = [
            self._slowest(n, columns[key])
            for n, columns in enumerate(self.columns)
            if key in columns
        ]
        known = [promise for promise in slowest if promise is not None]
        if not known:
            return []
        limit = int(saturating_add(min(known), align))
        if self._is_whole(ordinal, column):
            return [""] if column.sources.output > limit else []
        return [column.sources.names[n] for n in column.sources.beyond(limit).tolist()]

    def _slowest(self, ordinal: int, column: TimeColumnTracker) -> int | None:
        if self._is_whole(ordinal, column):
            return None if column.sources.output == MIN else column.sources.output
        return column.sources.slowest

    def _is_whole(self, ordinal: int, column: TimeColumnTracker) -> bool:
        """Whether an active input counts as a single source."""
        return ordinal not in self._ended and column.is_source and not column.is_silent(self.now)

    def _columns(self, ordinal: int) -> dict[int, TimeColumnTracker]:
        input_of(self._inputs, ordinal)
        return self.columns[ordinal]

    def _found(self, ordinal: int, key: int) -> TimeColumnTracker:
        columns = self._columns(ordinal)
        if key not in columns:
            known = ", ".join(str(k) for k in columns) or "none"
            raise InputError(f"input {ordinal} has no watermark key {key}; it has {known}")
        return columns[key]

    # Snapshots

    def save(self) -> dict[str, Any]:
        return {
            "now": self.now,
            "columns": [
                {str(key): column.save() for key, column in found.items()} for found in self.columns
            ],
            "across": self.across.save(),
            **({"within": [one.save() for one in self._within]} if self._within else {}),
            "ended": sorted(self._ended),
            "held": self._held,
            "counters": dict(self.counters),
            "failure": self.failure,
            "risen": list(self._risen.items()),
        }

    def restore(self, document: dict[str, Any], *, counts: int = 0) -> None:
        """Restore a snapshot.

        Downtime does not count as silence of the sources, except for `counts` microseconds of it.
        """
        pause = max(0, self.now - document["now"] - counts)
        self.now = max(self.now, document["now"])
        for columns, saved in zip(self.columns, document["columns"], strict=True):
            for key, column in columns.items():
                column.restore(saved[str(key)], pause)
        self.across.restore(document["across"])
        for coalescer, saved in zip(self._within, document.get("within", ()), strict=True):
            coalescer.restore(saved)
        self._ended = set(document["ended"])
        self._held = [list(names) for names in document["held"]]
        self.counters = Counter(document["counters"])
        self.failure = document["failure"]
        self._risen = dict(document["risen"])


def _watched(column: TimeColumn) -> Watched:
    """The source options of a time column; the defaults where there is only one source."""
    return column.watermark if isinstance(column.watermark, Watched) else _UNWATCHED


def _markers(column: TimeColumnTracker, seen: Observed) -> int:
    found = column.generator.markers(seen.table, seen.readable, ~seen.readable)
    return 0 if found is None else int(found.sum())


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(f"`{name}`" for name in names[:_LISTED])
    return shown if len(names) <= _LISTED else f"{shown} and {len(names) - _LISTED} more"

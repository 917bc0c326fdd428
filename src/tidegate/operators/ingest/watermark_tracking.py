"""The watermark_tracker makes one watermark of what all sources of all inputs promise: generators,
a tracker per input and key, and a coalescer over the inputs.

Every input has partitions (or writers), which promise on their own; the input's watermark is
coalesced over them, and the operator's over the inputs. Operators that tell their inputs apart look
at `Step.by_input`, the others at `Step.coalesced`.

An input is idle when all its sources are. One without sources, and one for which the program itself
promises, is waited for as a whole: until it says that it is idle, or is silent for `idle_after`.
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
from tidegate.kernel.events.partitions import partitions_of
from tidegate.kernel.events.times import OK, read_times
from tidegate.kernel.watermarks.coalescer import Rules
from tidegate.kernel.watermarks.generators import Generator, Observed, compile_generator
from tidegate.kernel.watermarks.keyed import KeyedCoalescer
from tidegate.kernel.watermarks.marks import Active, Idle, Mark, Watermark
from tidegate.kernel.watermarks.tracker import SourceTracker
from tidegate.spec.operator import Input, Options, TimeColumn, input_of
from tidegate.spec.watermarks import Explicit, Implied, Noted, Watched

_UNWATCHED = Watched()


@dataclass(frozen=True, slots=True)
class Step:
    """Marks that one call released: those of single inputs, and those of all inputs together."""

    by_input: list[tuple[int, Mark]] = field(default_factory=list)
    coalesced: list[Mark] = field(default_factory=list)

    @property
    def watermark(self) -> int:
        """The watermark that all inputs together have risen to; `MIN` if it has not risen."""
        return max(
            (mark.value for mark in self.coalesced if isinstance(mark, Watermark)), default=MIN
        )


@dataclass(frozen=True, slots=True)
class Source:
    """A source by its input and its name."""

    input: int
    name: str


@dataclass(eq=False)
class Channel:
    """One time column of one input: its generator, and the sources that it makes promises for."""

    column: TimeColumn
    generator: Generator
    tracker: SourceTracker
    told: bool = False
    """Whether the program advanced the watermark, which ends an implied one."""
    is_awake: bool = True
    """Whether the input as a whole is waited for, though none of its sources is: it was the last to
    speak, and not one of them.
    """
    spoke_at: int = 0
    """The clock at the last sign of life of the input as a whole."""
    is_idle: bool = False
    """What was told of it."""

    def speaks(self, now: int) -> None:
        """The input as a whole shows a sign of life."""
        self.is_awake, self.spoke_at = True, now

    @property
    def is_source(self) -> bool:
        """Whether none of its sources is waited for, so that it can only be the input itself."""
        return not len(self.tracker) or self.tracker.is_idle

    def silent(self, now: int) -> bool:
        """Whether nobody has to wait for the input."""
        if not self.is_source:
            return False
        limit = self.tracker.idle_after
        return not self.is_awake or (limit is not None and now - self.spoke_at >= limit)

    @property
    def next_due(self) -> int:
        """The clock at which nobody waits for a source, or for the input, any more if none speaks;
        `MAX` where that never is.
        """
        limit, due = self.tracker.idle_after, self.tracker.next_due
        waited = self.is_source and self.is_awake and not self.is_idle
        return (
            due
            if limit is None or not waited
            else min(due, int(saturating_add(self.spoke_at, limit)))
        )

    def save(self) -> dict[str, Any]:
        whole = {
            "told": self.told,
            "is_awake": self.is_awake,
            "spoke_at": self.spoke_at,
            "is_idle": self.is_idle,
        }
        return {**whole, "generator": self.generator.save(), "tracker": self.tracker.save()}

    def restore(self, document: dict[str, Any], pause: int) -> None:
        self.told, self.is_awake, self.is_idle = (
            document["told"],
            document["is_awake"],
            document["is_idle"],
        )
        self.spoke_at = document["spoke_at"]
        self.generator.restore(document["generator"])
        self.tracker.restore(document["tracker"])
        self.shift(pause)

    def shift(self, pause: int) -> None:
        """Nobody listened for so long."""
        self.spoke_at += pause
        self.tracker.shift(pause)


class WatermarkTracker:
    """The watermarks of an operator's inputs."""

    def __init__(self, inputs: Sequence[Input], options: Options, *, now: int) -> None:
        self._inputs = tuple(inputs)
        self._options = options
        self.counters: Counter[str] = Counter()
        self.now = now
        self.channels = [
            {column.key: self._channel(column, n, now) for column in given.times}
            for n, given in enumerate(inputs)
        ]
        self.across = KeyedCoalescer(len(inputs), Rules(strict=options.strict))
        self.failure = ""
        """The last failure of a generator."""
        self._risen: dict[int, int] = {}
        self._ended: set[int] = set()
        self._held = [list[str]() for _ in inputs]
        """By input, the sources that were paused when the runtime last asked: their silence says
        nothing.
        """
        self._common = set.intersection(*({*channels} for channels in self.channels))
        """A key that some input lacks is promised by none for all, so it ends here, also while that
        input is idle.
        """
        for key in sorted(self._common):
            self.across.coalescer(key)

    def _channel(self, column: TimeColumn, ordinal: int, now: int) -> Channel:
        watched = _watched(column)
        tracker = SourceTracker(
            idle_after=watched.idle_after,
            declared=watched.declared,
            forget_after=watched.forget_after if isinstance(watched, Noted) else None,
            rules=Rules(strict=self._options.strict, realign=watched.realign),
            now=now,
            owner=f"input {ordinal}" if len(self._inputs) > 1 else "",
        )
        return Channel(column, compile_generator(column.watermark), tracker, spoke_at=now)

    def follow(self, ordinal: int | None = None) -> None:
        """An upstream feeds an input, or all, and tells its watermarks: what is read from its rows,
        in whatever order they come, does not count.
        """
        followed = self.channels if ordinal is None else [self._channels(ordinal)]
        for channel in [channel for channels in followed for channel in channels.values()]:
            if not isinstance(channel.column.watermark, Implied | Explicit):
                raise SpecError(
                    "the upstream tells the watermark, but `watermark` is"
                    f" {channel.column.watermark}. Hint: leave it out"
                )
            channel.told = True

    # What happens

    def limit(self, key: int = 0) -> int:
        """The instant beyond which events are from the future."""
        origin = self.now if self._options.future_reference == "clock" else self.output(key)
        return MAX if origin == MIN else int(saturating_add(origin, self._options.future_tolerance))

    def observe(self, ordinal: int, seen: Observed, key: int = 0) -> None:
        """A delivery has come: rows from the future neither promise anything nor are a sign of
        life.
        """
        channel = self._found(ordinal, key)
        if not self._is_open(ordinal):
            return
        kept = seen.without_future(self.output(key))
        if len(kept) < len(seen):
            # What a marker from the future says is refused, and it is no event that would be
            # counted as such.
            self.counters["refused_promises"] += _markers(channel, seen) - _markers(channel, kept)
        if len(kept):
            self._take(channel, kept)

    def observe_table(self, ordinal: int, table: pa.Table) -> None:
        """The same for all time columns of an input, read from its rows."""
        partition, names = partitions_of(table, self._inputs[ordinal].partition)
        named = [
            (key, channel.column.column)
            for key, channel in self._channels(ordinal).items()
            if channel.column.column is not None
        ]
        # All are read before any is taken: what cannot be read is refused as a whole.
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
        """Observe one delivery by watermark key: by all time columns, or by none if one goes
        back.
        """
        before = (
            {key: self.channels[ordinal][key].save() for key in seen}
            if self._options.strict and len(seen) > 1
            else {}
        )
        try:
            for key, observed in seen.items():
                self.observe(ordinal, observed, key)
        except WatermarkError:
            for key, saved in before.items():
                self.channels[ordinal][key].restore(saved, 0)
            raise

    def _take(self, channel: Channel, seen: Observed) -> None:
        before = channel.generator.save() if self._options.strict else None
        try:
            promises = channel.generator.observe(seen)
        except Exception as error:  # noqa: BLE001 - a generator that fails promises nothing; the rows are taken all the same
            self._failed(error)
            promises = channel.generator.alive(seen)
        tracker, names, values = channel.tracker, promises.names, promises.values
        self.counters["refused_promises"] += promises.refused
        ended = channel.told and isinstance(channel.column.watermark, Implied)
        if ended:
            # The program says how far the events have come, and they only that they come.
            values = np.full(len(names), MIN)
        if ended or not channel.generator.joins:
            known = [n for n, name in enumerate(names) if name in tracker]
            names, values = [names[n] for n in known], values[known]
        if names:
            try:
                tracker.promise(names, values, self.now, repeats=channel.generator.repeats)
            except WatermarkError:
                # The delivery is refused, so the generator has not seen it.
                channel.generator.restore(before)
                raise
            channel.is_awake = False
        elif not len(tracker):
            channel.speaks(self.now)
        tracker.leave(promises.replaced)

    def _failed(self, error: Exception) -> None:
        if not isinstance(error, TidegateError):
            error = TidegateError(f"{type(error).__name__}: {error}")
        self.counters["generator_failures"] += 1
        self.failure = str(error)
        warnings.warn(
            f"a watermark generator failed and promised nothing: {error}",
            RuntimeWarning,
            stacklevel=2,
        )

    def has(self, key: int | None, ordinal: int = 0) -> bool:
        """Whether an input has a time column with this watermark key; without a key all are
        meant.
        """
        return key is None or key in self._channels(ordinal)

    def promise(
        self,
        value: int,
        *,
        ordinal: int = 0,
        partition: str | None = None,
        key: int = 0,
        repeats: bool = False,
    ) -> None:
        """A watermark that is told from outside: of one partition, or of all. One that `repeats`
        may be an old one, which is no step back.

        A watermark with a key that the input does not have ends here: a window looks at one time
        column, and drops the others.
        """
        if not self.has(key, ordinal):
            self.counters["watermarks_dropped"] += 1
            return
        channel = self._found(ordinal, key)
        if not self._is_open(ordinal) or (repeats and value < channel.tracker.output):
            return
        channel.told = True
        if partition is None:
            channel.speaks(self.now)
            self._lift(channel.tracker, value)
            return
        if isinstance(channel.column.watermark, Implied):
            # The source that followed all events has had its say: partitions promise on their own
            # from now on.
            channel.tracker.leave([""])
        channel.is_awake = False
        channel.tracker.promise([str(partition)], np.array([value]), self.now)

    def _lift(self, tracker: SourceTracker, value: int) -> None:
        if value >= tracker.output:
            tracker.lift(value, self.now)
            return
        self.counters["steps_back"] += 1
        if self._options.strict:
            old, new = format_instant(tracker.output), format_instant(value)
            who = (
                f"the watermark of {tracker.coalescer.owner}"
                if tracker.coalescer.owner
                else "the watermark"
            )
            raise WatermarkError(
                f"{who} went back from {old} to {new}. Hint: leave `strict` out to have steps back"
                " ignored and counted"
            )

    def idle(
        self, *, ordinal: int = 0, partition: str | None = None, key: int | None = None
    ) -> None:
        """A partition, or a whole input, says that it is idle, for one watermark key or for all."""
        channels = self._channels(ordinal) if key is None else {key: self._found(ordinal, key)}
        for channel in channels.values():
            channel.is_awake = False
            channel.tracker.idle(None if partition is None else [str(partition)], self.now)
        if partition is None and key is None:
            # Then it is also said of keys that are not known yet.
            self.across.idle(ordinal)

    def active(self, *, ordinal: int = 0, key: int | None = None) -> None:
        """A whole input that was idle counts again, for one watermark key or for all."""
        channels = self._channels(ordinal) if key is None else {key: self._found(ordinal, key)}
        for channel in channels.values():
            channel.tracker.wake(self.now)
            channel.speaks(self.now)

    def join(self, partition: str, *, ordinal: int = 0) -> None:
        """A partition is there from now on, though it has not spoken."""
        for channel in self._channels(ordinal).values():
            channel.is_awake = False
            channel.tracker.join([str(partition)], self.now)

    def leave(self, partition: str, *, ordinal: int = 0) -> None:
        """A partition is gone, and no longer counts."""
        for channel in self._channels(ordinal).values():
            there = len(channel.tracker)
            channel.tracker.leave([str(partition)])
            self._emptied(channel, there)

    def _emptied(self, channel: Channel, before: int) -> None:
        """Where the last source of an input has left, others may come: it is waited for unless it
        was idle.
        """
        if before and not len(channel.tracker) and not channel.is_idle:
            channel.speaks(self.now)

    def end(self, *, ordinal: int = 0, partition: str | None = None) -> None:
        """A partition, or a whole input, has ended."""
        for channel in self._channels(ordinal).values():
            channel.is_awake = False
            channel.tracker.end(None if partition is None else [str(partition)], self.now)
        if partition is None:
            self._ended.add(ordinal)

    def _is_open(self, ordinal: int) -> bool:
        """Whether an input may still say something; what comes after its end is counted."""
        self.counters["after_end"] += ordinal in self._ended
        return ordinal not in self._ended

    def tick(self, now: int) -> None:
        """The clock has come to this instant; it never goes back."""
        self.now = max(self.now, now)
        for ordinal, channels in enumerate(self.channels):
            for channel in channels.values() if ordinal not in self._ended else ():
                promises = channel.generator.tick(self.now)
                if promises.names:
                    channel.tracker.promise(promises.names, promises.values, self.now, repeats=True)

    def shift(self, pause: int) -> None:
        """Time has passed in which nobody listened: it is no silence of the sources."""
        for channel in [channel for channels in self.channels for channel in channels.values()]:
            channel.shift(pause)

    def release(self) -> Step:
        """Look once at everything, and give what has moved."""
        step = Step()
        for ordinal, channels in enumerate(self.channels):
            for key, channel in channels.items():
                self._release(ordinal, key, channel, step)
            if ordinal in self._ended:
                self.across.done(ordinal)
        step.coalesced.extend(self.across.release())
        self._risen.update(
            (mark.key, self.now) for mark in step.coalesced if isinstance(mark, Watermark)
        )
        self._held = [self._paused(ordinal) for ordinal in range(len(self.channels))]
        return step

    def _release(self, ordinal: int, key: int, channel: Channel, step: Step) -> None:
        tracker, there = channel.tracker, len(channel.tracker)
        held = set(self._held[ordinal])
        tracker.tick(
            self.now,
            np.array(
                [n for n, name in enumerate(tracker.names) if name in held] if held else [],
                np.int64,
            ),
        )
        self._emptied(channel, there)
        if "" in held and channel.is_source:
            channel.spoke_at = self.now
        watermark = tracker.release(self.now).watermark
        idle = ordinal in self._ended or channel.silent(self.now)
        marks: list[Mark] = []
        if channel.is_idle and not idle:
            marks.append(Active(key))
        if watermark is not None:
            marks.append(Watermark(watermark, key))
        if idle and (marks or not channel.is_idle):
            # Who forwards a watermark shows a sign of life, so who is idle says so again.
            marks.append(Idle(key))
        channel.is_idle = idle
        step.by_input.extend((ordinal, mark) for mark in marks)
        if key in self._common:
            if not idle:
                self.across.active(ordinal, key)
            for mark in marks:
                self.across.take(ordinal, mark)

    # What can be asked

    def output(self, key: int = 0) -> int:
        """The watermark of all inputs together; `MIN` while there is none."""
        if key in self._common:
            return self.across.coalescer(key).output
        return min(
            (channels[key].tracker.output for channels in self.channels if key in channels),
            default=MIN,
        )

    def is_idle(self, key: int = 0) -> bool:
        """Whether all inputs are idle or done."""
        return key in self._common and self.across.coalescer(key).is_idle

    def since(self, key: int = 0) -> int:
        """The clock when the watermark last rose, or that of the start."""
        return self._risen.get(
            key, min(channels[key].tracker.since for channels in self.channels if key in channels)
        )

    @property
    def next_due(self) -> int:
        """The clock at which silence changes something if nobody speaks; `MAX` where it never
        does.
        """
        return min(channel.next_due for channels in self.channels for channel in channels.values())

    def clock_at(self, value: int, key: int = 0) -> int:
        """The first clock that may bring the watermark to a value though nobody speaks or falls
        silent; `MAX` where none does.
        """
        running = [
            channels[key]
            for ordinal, channels in enumerate(self.channels)
            if key in channels and ordinal not in self._ended
        ]
        # Who has promised so much already is not the one that the others wait for.
        return min(
            (
                channel.generator.clock_at(value)
                for channel in running
                if channel.tracker.output < value
            ),
            default=MAX,
        )

    def stats(self) -> dict[str, int]:
        """What was counted: nothing that was said of watermarks goes without a trace."""
        trackers = [channel.tracker for channels in self.channels for channel in channels.values()]
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

    def paused(self) -> list[Source]:
        """The sources that run too far ahead of the slowest and should not be read for now."""
        return [
            Source(ordinal, name)
            for ordinal in range(len(self.channels))
            for name in self._paused(ordinal)
        ]

    def _paused(self, ordinal: int) -> list[str]:
        """Only the first time column of an input is looked at: by two, each of two sources could be
        made to wait for the other.
        """
        key, channel = next(iter(self.channels[ordinal].items()))
        align = _watched(channel.column).align
        if align is None:
            return []
        slowest = [
            self._slowest(n, channels[key])
            for n, channels in enumerate(self.channels)
            if key in channels
        ]
        spoken = [promise for promise in slowest if promise is not None]
        if not spoken:
            return []
        limit = int(saturating_add(min(spoken), align))
        if self._is_whole(ordinal, channel):
            return [""] if channel.tracker.output > limit else []
        return [channel.tracker.names[n] for n in channel.tracker.beyond(limit).tolist()]

    def _slowest(self, ordinal: int, channel: Channel) -> int | None:
        if self._is_whole(ordinal, channel):
            return None if channel.tracker.output == MIN else channel.tracker.output
        return channel.tracker.slowest

    def _is_whole(self, ordinal: int, channel: Channel) -> bool:
        """Whether an input is waited for as a whole, and is like one source."""
        return ordinal not in self._ended and channel.is_source and not channel.silent(self.now)

    def _channels(self, ordinal: int) -> dict[int, Channel]:
        input_of(self._inputs, ordinal)
        return self.channels[ordinal]

    def _found(self, ordinal: int, key: int) -> Channel:
        channels = self._channels(ordinal)
        if key not in channels:
            known = ", ".join(str(k) for k in channels) or "none"
            raise InputError(f"input {ordinal} has no watermark key {key}; it has {known}")
        return channels[key]

    # Snapshots

    def save(self) -> dict[str, Any]:
        return {
            "now": self.now,
            "channels": [
                {str(key): channel.save() for key, channel in found.items()}
                for found in self.channels
            ],
            "across": self.across.save(),
            "ended": sorted(self._ended),
            "held": self._held,
            "counters": dict(self.counters),
            "failure": self.failure,
            "risen": list(self._risen.items()),
        }

    def restore(self, document: dict[str, Any], *, counts: int = 0) -> None:
        """Continue where a snapshot was taken; time in which nothing ran is no silence of the
        sources, but for as much of it as `counts`.
        """
        pause = max(0, self.now - document["now"] - counts)
        self.now = max(self.now, document["now"])
        for channels, saved in zip(self.channels, document["channels"], strict=True):
            for key, channel in channels.items():
                channel.restore(saved[str(key)], pause)
        self.across.restore(document["across"])
        self._ended = set(document["ended"])
        self._held = [list(names) for names in document["held"]]
        self.counters = Counter(document["counters"])
        self.failure = document["failure"]
        self._risen = dict(document["risen"])


def _watched(column: TimeColumn) -> Watched:
    """What is said of the sources of a time column; nothing where there is only one."""
    return column.watermark if isinstance(column.watermark, Watched) else _UNWATCHED


def _markers(channel: Channel, seen: Observed) -> int:
    found = channel.generator.markers(seen.table, seen.readable, ~seen.readable)
    return 0 if found is None else int(found.sum())

"""The description of a stream: segments, settings and head, stored in the cell `description`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from tidegate.errors import CorruptStateError, SpecError
from tidegate.instants import format_duration
from tidegate.kernel.streams.segments import Position, Segment, Segments
from tidegate.state.damage import damage_in

VERSION = 1
CELL = "description"
MOST_SEGMENTS = 10_000
_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")


def checked_name(what: str, name: object) -> str:
    """The name of a stream, a writer, a group or a reader, validated."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name.strip(".") == "":
        raise SpecError(
            f"the name of {what} has 1 to 200 characters of a-z, A-Z, 0-9, `.`, `_`, `-`, got"
            f" {name!r}"
        )
    return name


@dataclass(frozen=True)
class StreamSettings:
    """Settings of a stream, fixed when it is created; durations in microseconds."""

    timestamp_aggregation_timeout: int = 60_000_000
    """A writer that is behind and silent for this long no longer holds the watermark back."""
    initial_delay: int = 5_000_000
    """Time after creation without a watermark, so that all writers can start."""

    def __post_init__(self) -> None:
        for name in ("timestamp_aggregation_timeout", "initial_delay"):
            if getattr(self, name) < 0:
                raise SpecError(
                    f"`{name}` must not be negative, got {format_duration(getattr(self, name))}"
                )


@dataclass(frozen=True)
class Description:
    """The metadata of a stream: everything except events, marks and watermarks."""

    segments: Segments
    settings: StreamSettings
    created: int
    head: Position
    """The cut before which the stream is truncated; segments of the first epoch start at 0."""
    scaling: bool = False
    """Whether segments of the newest epoch may still have to be opened, and old ones sealed."""

    @classmethod
    def new(cls, segments: int, settings: StreamSettings, created: int) -> Description:
        found = [Segment(str(n), low, high) for n, (low, high) in enumerate(even(segments))]
        return cls(
            Segments.of(found), settings, created, {one.name: 0 for one in found}, scaling=True
        )

    def scaled(self, sealed: Sequence[str], ranges: Sequence[tuple[float, float]]) -> Description:
        """A description whose next epoch replaces segments by new ones with the same keys."""
        if isinstance(sealed, str):
            raise SpecError(
                f"`seal` is a list of segment names, got {sealed!r}. Hint: seal=[{sealed!r}]"
            )
        try:
            ranges = [(float(low), float(high)) for low, high in ranges]
        except (TypeError, ValueError):
            raise SpecError(
                f"`ranges` is a list of pairs of numbers, got {ranges!r}. Hint: ranges=[(0, 0.5),"
                " (0.5, 1)]"
            ) from None
        newest = {one.name: one for one in self.segments.newest()}
        gone = [
            newest[name] if name in newest else self._not_open(name)
            for name in dict.fromkeys(sealed)
        ]
        if not gone or _joined([(one.low, one.high) for one in gone]) != _joined(list(ranges)):
            covered = ", ".join(
                f"[{low:g}, {high:g})" for low, high in sorted((one.low, one.high) for one in gone)
            )
            raise SpecError(
                f"the successors must cover the keys of the sealed segments, {covered}, exactly"
                f" once; got {list(ranges)}"
            )
        first, epoch = len(self.segments.by_name), self.segments.epoch + 1
        if first + len(ranges) > MOST_SEGMENTS:
            raise SpecError(f"a stream has at most {MOST_SEGMENTS} segments, including sealed ones")
        fresh = [
            Segment(str(first + n), low, high, epoch)
            for n, (low, high) in enumerate(sorted(ranges))
        ]
        return replace(
            self, segments=Segments.of([*self.segments.by_name.values(), *fresh]), scaling=True
        )

    def scaled_to(self, count: int) -> Description:
        """A description with this number of equal segments; segments that fit stay."""
        wanted = even(count)
        stay = {(one.low, one.high) for one in self.segments.newest()}.intersection(wanted)
        gone = [one.name for one in self.segments.newest() if (one.low, one.high) not in stay]
        fresh = [one for one in wanted if one not in stay]
        return self.scaled(gone, fresh) if gone else self

    def _not_open(self, name: str) -> Segment:
        self.segments[name]
        raise SpecError(
            f"the segment `{name}` is already sealed. Hint: open segments are"
            f" {', '.join(one.name for one in self.segments.newest())}"
        )

    @property
    def sealed(self) -> list[str]:
        """The segments that have successors."""
        newest = {one.name for one in self.segments.newest()}
        return [name for name in self.segments.by_name if name not in newest]

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        segments = [
            {"name": one.name, "low": one.low, "high": one.high, "epoch": one.epoch}
            for one in self.segments.by_name.values()
        ]
        settings = {
            name: getattr(self.settings, name) for name in StreamSettings.__dataclass_fields__
        }
        plain = {
            "version": VERSION,
            "created": self.created,
            "scaling": self.scaling,
            "head": dict(self.head),
        }
        return {**plain, "settings": settings, "segments": segments}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Description:
        if document.get("version") != VERSION:
            raise CorruptStateError(
                f"the description of the stream has version {document.get('version')!r}, but this"
                f" Tidegate reads version {VERSION}. Hint: read it with the version of Tidegate"
                " that wrote it"
            )
        with damage_in("the description of the stream"):
            segments = Segments.of(Segment(**one) for one in document["segments"])
            return cls(
                segments,
                StreamSettings(**document["settings"]),
                document["created"],
                document["head"],
                document["scaling"],
            )


def even(count: int) -> list[tuple[float, float]]:
    """The key space split into equal ranges."""
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= MOST_SEGMENTS:
        raise SpecError(f"a stream has 1 to {MOST_SEGMENTS} segments, got {count!r}")
    return [(n / count, (n + 1) / count) for n in range(count)]


def _joined(ranges: Sequence[tuple[float, float]]) -> list[tuple[float, float]] | None:
    """The ranges with adjacent ones merged; None if two overlap."""
    ordered = sorted(ranges)
    if any(high > low for (_, high), (low, _) in pairwise(ordered)) or any(
        low >= high for low, high in ordered
    ):
        return None
    found: list[tuple[float, float]] = []
    for low, high in ordered:
        if found and found[-1][1] == low:
            found[-1] = (found[-1][0], high)
        else:
            found.append((low, high))
    return found

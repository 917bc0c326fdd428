"""Plans the batches of a query over topics, on the driver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from tidegate.errors import InputError, SpecError
from tidegate.instants import instant
from tidegate.spark.sources.admission import limit_events
from tidegate.spark.sources.topics.offsets import Place, TopicOffset, partition_name

if TYPE_CHECKING:
    from tidegate.spark.sources.topics.consumer import TopicClients

EARLIEST, LATEST = "earliest", "latest"


@dataclass(frozen=True)
class Starting:
    """Where a query without a checkpoint begins."""

    word: str = LATEST
    """`earliest` or `latest`; for partitions that have no offset here."""
    time: int | None = None
    """The time of the first message, in microseconds, instead of a word."""
    offsets: tuple[tuple[Place, int | str], ...] = ()
    """The first offsets of partitions, or a word."""

    @classmethod
    def parse(cls, given: Any, topics: tuple[str, ...]) -> Starting:
        """`earliest`, `latest`, an instant, or a mapping of partitions to offsets."""
        if given in (EARLIEST, LATEST):
            return cls(given)
        if isinstance(given, datetime | str):
            return cls(time=instant(given))
        if isinstance(given, Mapping):
            return cls(
                EARLIEST,
                offsets=tuple(
                    (_place(name, topics), _offset(name, value)) for name, value in given.items()
                ),
            )
        raise SpecError(
            "`starting` is 'earliest', 'latest', an instant, or offsets by partition, got"
            f" {given!r}. Hint: starting={{'clicks-0': 17}}"
        )


def _place(name: Any, topics: tuple[str, ...]) -> Place:
    if isinstance(name, int) and not isinstance(name, bool) and len(topics) == 1:
        return topics[0], name
    topic, _, number = str(name).rpartition("-")
    if topic in topics and number.isdecimal():
        return topic, int(number)
    raise SpecError(
        f"`{name}` in `starting` is no partition of {', '.join(f'`{one}`' for one in topics)}."
        f" Hint: '{topics[0]}-0'"
    )


def _offset(name: Any, value: Any) -> int | str:
    is_offset = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    if is_offset or value in (EARLIEST, LATEST):
        return value
    raise SpecError(
        f"the offset of `{name}` in `starting` is a number of at least 0, 'earliest' or 'latest',"
        f" got {value!r}"
    )


class TopicPlanner:
    """Plans batches by the ends of the partitions."""

    def __init__(
        self,
        clients: TopicClients,
        topics: tuple[str, ...],
        starting: Starting,
        *,
        skips_lost: bool = False,
    ) -> None:
        self._clients, self._topics, self._starting = clients, topics, starting
        self._skips_lost = skips_lost
        self._frozen: tuple[dict[Place, int], dict[str, str]] | None = None

    def start(self) -> TopicOffset:
        """The start offset of a query."""
        known, starting = self._clients.describe(self._topics), self._starting
        places = known.places
        if starting.time is not None:
            return TopicOffset(self._clients.offsets_at(places, starting.time), ids=known.ids)
        given = dict(starting.offsets)
        if unknown := sorted(given.keys() - {*places}):
            raise InputError(
                f"`starting` names the partition `{partition_name(unknown[0])}`, which does not"
                f" exist. Hint: there are {', '.join(map(partition_name, places))}"
            )
        wanted = {place: given.get(place, starting.word) for place in places}
        firsts = [place for place, offset in wanted.items() if offset == EARLIEST]
        lasts = [place for place, offset in wanted.items() if offset == LATEST]
        found = {place: offset for place, offset in wanted.items() if isinstance(offset, int)}
        if firsts:
            found |= self._clients.first_offsets(firsts)
        if lasts:
            found |= self._clients.read_ends(lasts)
        return TopicOffset(found, ids=known.ids)

    def freeze(self) -> None:
        """Ignore messages that arrive from now on."""
        self._frozen = self._ends()

    def next(self, start: TopicOffset, clock: int, most: int | None = None) -> TopicOffset:
        """The end of the next batch, of at most `most` messages; `start` if there is none."""
        ends, ids = self._ends() if self._frozen is None else self._frozen
        self._check(start, ends, ids)
        joined = [place for place in ends if place not in start.positions]
        firsts = self._clients.first_offsets(joined) if joined else {}
        begun = {place: start.positions.get(place, firsts.get(place, 0)) for place in ends}
        available = {place: ends[place] - at for place, at in begun.items() if at < ends[place]}
        # One message of every partition: the watermark of one that is not read would be unknown,
        # and its messages late when they are.
        taken = limit_events(available, None if most is None else max(most, len(available)))
        if not any(taken.values()):
            return start
        moved = {place: begun[place] + count for place, count in taken.items() if count}
        return TopicOffset(
            {**start.positions, **moved},
            {place: first for place, first in firsts.items() if place in moved},
            max(clock, start.clock),
            {**start.ids, **ids},
        )

    def _ends(self) -> tuple[dict[Place, int], dict[str, str]]:
        """The ends of the partitions, and the ids of the topics."""
        found = self._clients.describe(self._topics)
        return self._clients.read_ends(found.places), found.ids

    def _check(self, start: TopicOffset, ends: Mapping[Place, int], ids: Mapping[str, str]) -> None:
        """Refuse topics that were created again, and missing partitions unless `lost` allows."""
        for topic, now in ids.items():
            before = start.ids.get(topic, now)
            if now != before:
                raise InputError(
                    f"the topic `{topic}` was created again: the query has read the one with id"
                    f" {before}, and this one has id {now}. Hint: start with a new checkpoint"
                )
        for place, at in start.positions.items():
            name = partition_name(place)
            if place not in ends and place[0] in self._topics and not self._skips_lost:
                raise InputError(
                    f"the partition `{name}`, of which the query has read up to {at}, does not"
                    ' exist any more. Hint: lost="late" continues with the others'
                )
            if at > ends.get(place, at):
                raise InputError(
                    f"the query is at {at} in `{name}`, which ends at {ends[place]}: the topic was"
                    " created again. Hint: start with a new checkpoint"
                )

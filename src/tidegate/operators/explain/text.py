"""The words of an explanation: plain sentences about who holds a watermark back and what windows or
calls wait for, made of nothing but facts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidegate.instants import MAX, MIN, format_duration, format_instant
from tidegate.operators.explain.facts import (
    CallsStanding,
    Explanation,
    InputStanding,
    MarkStanding,
    SourceStanding,
    WindowStanding,
    time_text,
)

NAMED = 3
"""So many sources, keys or windows are named; of the others only how many there are."""
_SECOND, _MILLISECOND = 1_000_000, 1_000
_LONGEST_TEXT = 120
"""Messages and errors of the user are cut here."""


def sentences(found: Explanation) -> tuple[str, ...]:
    """The explanation in words, the most decisive first."""
    words = _Words(found)
    if found.calls is not None:
        said = [
            *_calls(words, found.calls),
            *_keyed(words),
            *_counted(words),
            *_called(words, found.calls),
        ]
    else:
        windows = _windows(words) if found.trigger else []
        said = [
            *(_Watermark(words).said() if found.axis == "event_time" else _other_axes(words)),
            *windows,
            *_counted(words),
        ]
    return tuple(text for text in (*_results(words), *said, *_overdue(words)) if text)


def many(count: int, noun: str) -> str:
    """How many there are of something.

    >>> many(1, "key"), many(12000, "key")
    ('1 key', '12,000 keys')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def listed(names: Sequence[str], named: int = NAMED) -> str:
    """A few names, and how many more there are.

    >>> listed(["a", "b"]), listed(["a", "b", "c", "d", "e"])
    ('a and b', 'a, b, c and 2 more')
    """
    if len(names) > named + 1:
        return f"{', '.join(names[:named])} and {len(names) - named:,} more"
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)


class _Words:
    """How times, spans and sources are called in one explanation."""

    def __init__(self, found: Explanation) -> None:
        self.found = found
        self._inputs = {given.input: given for given in found.inputs}

    def input(self, ordinal: int) -> InputStanding:
        return self._inputs[ordinal]

    def time(self, value: int) -> str:
        return time_text(value, ticks=self.found.ticks)

    def span(self, ticks: int) -> str:
        """A distance on the window's axis."""
        if self.found.axis in {"offset", "ordinal"}:
            return many(ticks, "message")
        return many(ticks, "tick") if self.found.ticks else rounded(ticks)

    def ago(self, clock: int) -> str:
        past = self.found.now - clock
        return (
            f"{format_instant(clock)}, {rounded(past)} ago" if past > 0 else format_instant(clock)
        )

    def ahead(self, clock: int) -> str:
        """An instant of the clock that lies ahead, or that has passed without anybody looking."""
        left = clock - self.found.now
        return (
            f"{format_instant(clock)}, {rounded(left)} to go"
            if left > 0
            else f"{format_instant(clock)}, which has passed: call `timeout`"
        )

    def source(self, source: SourceStanding) -> str:
        several = len(self.found.inputs) > 1
        if not source.name and (
            source.spoke_at is None or not self.found.inputs or self.input(source.input).sources < 2
        ):
            return f"input {source.input}" if several else "the input"
        kind = "writer" if self.kind(source.input) == "noted" else "partition"
        return f"{kind} `{source.name}`{f' of input {source.input}' if several else ''}"

    def sources(self, sources: Sequence[SourceStanding]) -> str:
        """Some sources; a common noun is said once."""
        if len(sources) == 1:
            return self.source(sources[0])
        plain = len(self.found.inputs) < 2 and all(source.name for source in sources)
        if not plain:
            return listed(
                [self.source(source) for source in sources[: NAMED + 1]]
                + [""] * (len(sources) - NAMED - 1)
            )
        noun = "writers" if self.kind(sources[0].input) == "noted" else "partitions"
        return f"{noun} {listed([f'`{source.name}`' for source in sources])}"

    def kind(self, ordinal: int) -> str:
        return self.input(ordinal).kind if self.found.inputs else ""


def rounded(span: int) -> str:
    """A duration without digits that nobody wants to read."""
    unit = (
        _SECOND
        if abs(span) >= 10 * _SECOND
        else _MILLISECOND
        if abs(span) >= 10 * _MILLISECOND
        else 1
    )
    return format_duration((span + unit // 2) // unit * unit if span not in (MIN, MAX) else span)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _verb(count: int, one: str, more: str) -> str:
    return one if count == 1 else more


# The watermark


class _Watermark:
    """Where the watermark on event time stands, and why it does not move."""

    def __init__(self, words: _Words, *, is_keyed: bool = False) -> None:
        self.words = words
        self.found = words.found
        self.is_keyed = is_keyed
        """Whether there are others from which it is told by its key."""
        self.name = f" of key {self.found.watermark_key}" if is_keyed else ""
        speaking = {source.input for source in self.found.sources if source.status == "active"}
        whole = [
            given
            for given in self.found.inputs
            if not given.sources or (given.status == "active" and given.input not in speaking)
        ]
        self.points = [*self.found.sources, *(_as_source(given) for given in whole)]
        """All who promise: sources, and inputs that are waited for as a whole."""
        self.active = [point for point in self.points if point.status == "active"]

    def said(self) -> list[str]:
        found = self.found
        if found.is_finished and found.calls is not None:
            return ["The input has ended, and every message has its answer."]
        if found.is_finished:
            return [
                "The input has ended: the watermark is at the end of time, and all windows are"
                " complete."
            ]
        ahead = (
            f"{many(found.keys_ahead, 'key')} {_verb(found.keys_ahead, 'is', 'are')} ahead of it."
            if found.keys_ahead
            else ""
        )
        return [
            self._head(),
            *self._nothing(),
            *self._cause(),
            *self._future(),
            ahead,
            *self._left_out(),
        ]

    def held(self) -> list[str]:
        """Only who holds the watermark back, if anybody does."""
        if self.found.lacking:
            return [self._head()]
        return (
            [self._head(), *self._cause()]
            if not self.found.is_idle and (self._lack() or self._holds())
            else []
        )

    def _head(self) -> str:
        found, words = self.found, self.words
        if found.lacking:
            numbers = listed([str(number) for number in found.lacking])
            lack = _verb(len(found.lacking), f"input {numbers} does", f"inputs {numbers} do")
            return f"The watermark{self.name} ends here, because {lack} not have that key."
        if found.watermark is None:
            began = (
                ""
                if found.since is None or found.since >= found.now
                else f"; the operator began at {words.ago(found.since)}"
            )
            return f"There is no watermark{self.name} yet{began}."
        since = "" if found.since is None else f" since {words.ago(found.since)}"
        name = (
            "The floor of the watermarks of all keys"
            if found.keys_ahead is not None
            else f"The watermark{self.name}"
        )
        return f"{name} is at {words.time(found.watermark)}{since}."

    def _nothing(self) -> list[str]:
        """Said where no message has come at all."""
        counted = self.found.counters
        if self.found.watermark is not None or counted["events"] or counted["duplicates"]:
            return []
        return ["No message has come yet."]

    def _cause(self) -> list[str]:
        found = self.found
        if found.lacking:
            return []
        if found.is_idle:
            return self._all_idle()
        lacking, holders = self._lack(), self._holds()
        return (
            self._lacking(lacking)
            if lacking
            else self._held(holders)
            if holders
            else [self._even()]
        )

    def _lack(self) -> list[SourceStanding]:
        """Those without whom there is no watermark."""
        return [point for point in self.points if point.holds and point.promise is None]

    def _holds(self) -> list[SourceStanding]:
        """Those who are behind others; nobody where all are even."""
        holders, highest = (
            [point for point in self.active if point.holds],
            max(self._highest(), self._passed()),
        )
        return (
            holders
            if any(point.promise is not None and point.promise < highest for point in holders)
            else []
        )

    def _passed(self) -> int:
        """The watermark, where it is made of nothing but promises: whoever has promised less has
        come back behind it.
        """
        return (
            MIN
            if self.found.watermark is None or self.found.keys_ahead is not None
            else self.found.watermark
        )

    def _highest(self) -> int:
        return max(
            (point.promise for point in self.active if point.promise is not None), default=MIN
        )

    def _all_idle(self) -> list[str]:
        found = self.found
        ended = all(given.status == "ended" for given in found.inputs) or all(
            point.status == "ended" for point in self.points
        )
        who = "Every source has ended" if ended else "Every source is idle or has ended"
        if found.watermark is None:
            return [f"{who}, and none has promised anything, so there is nothing to release."]
        rest = "`finish` fires what is left" if found.calls is None else "`finish` ends the input"
        hint = rest if ended else "it moves when one of them speaks again"
        return [f"{who}, so the highest promise was released; {hint}."]

    def _lacking(self, lacking: list[SourceStanding]) -> list[str]:
        """Those without whom there is no watermark, by how they would speak."""
        told = [point for point in lacking if self.words.input(point.input).is_told]
        others = [point for point in lacking if not self.words.input(point.input).is_told]
        said = [self._untold(told)] if told else []
        silent = [point for point in others if not self._is_unheard(point)]
        unheard = [point for point in others if self._is_unheard(point)]
        if unheard:
            text = self._unheard(unheard)
            said += [text] if text else []
        if silent:
            said.append(self._silent(silent))
        return said + self._idle_clause(lacking)

    def _untold(self, told: list[SourceStanding]) -> str:
        """Explicit watermarks that nobody has advanced."""
        words = self.words
        if self.found.has_upstream and len(self.found.inputs) < 2:
            return "The upstream tells the watermark, and has told none yet."
        named = [point for point in told if point.name or len(self.found.inputs) > 1]
        if not named:
            return (
                "The watermark is explicit, and nobody has advanced it. Hint: call"
                f" {self._advance(told[0])}."
            )
        since = (
            ""
            if named[0].moved_at is None
            else (
                f", {_verb(len(named), 'which is', 'which are')} waited for since"
                f" {words.ago(_oldest(named))}"
            )
        )
        return (
            "The watermark is explicit, and nobody has advanced it for"
            f" {words.sources(named)}{since}. Hint: {self._advance(named[0])}."
        )

    def _advance(self, point: SourceStanding) -> str:
        """The call with which a program moves a watermark."""
        given = [f"input={point.input}"] if len(self.found.inputs) > 1 else []
        given += [f"partition={point.name!r}"] if point.name else []
        given += [f"key={self.found.watermark_key}"] if self.is_keyed else []
        return f"`advance_watermark(..., {', '.join(given)})`" if given else "`advance_watermark`"

    def _is_unheard(self, point: SourceStanding) -> bool:
        """Whether no source of an input has ever been seen."""
        return point.spoke_at is None

    def _unheard(self, points: list[SourceStanding]) -> str:
        several = len(self.found.inputs) > 1
        if several:
            numbers = listed([str(point.input) for point in points])
            noun = _verb(len(points), f"input {numbers}", f"inputs {numbers}")
            return f"It waits for {noun}, from which nothing has come that moves a watermark."
        if self.found.inputs[0].kind == "lagging":
            return (
                "The watermark follows the clock, which the operator has not been told yet. Hint:"
                " call `timeout`."
            )
        counted = self.found.counters
        if counted["events"] and not counted["future"]:
            return "Nothing that came says a time that the watermark could follow."
        return ""

    def _silent(self, points: list[SourceStanding]) -> str:
        """Sources that are known and have promised nothing."""
        words = self.words
        who = words.sources(points)
        if len(points) == 1 and not points[0].name and len(self.found.inputs) < 2:
            return f"Messages have come, but none {self._wanted(points[0])}."
        lack = "has not said a watermark"
        if self._follows_events(points[0].input):
            counted = self.found.counters
            # A source whose events have no time, or one in the future, has spoken and promised
            # nothing.
            is_vain = counted.get("unreadable") or counted.get("future")
            lack = "has sent nothing that it could follow" if is_vain else "has not spoken"
        lacks = lack if len(points) == 1 else lack.replace("has", "have", 1)
        since = f" since {words.ago(_oldest(points))}"
        declared = " (declared beforehand)" if all(point.declared for point in points) else ""
        return f"It waits for {who}{declared}, which {lacks}{since}."

    def _follows_events(self, ordinal: int) -> bool:
        return self.words.input(ordinal).behind is not None

    def _wanted(self, point: SourceStanding) -> str:
        return (
            "has a time that the watermark could follow"
            if self._follows_events(point.input)
            else "says a watermark"
        )

    def _held(self, holders: list[SourceStanding]) -> list[str]:
        found, words, highest = self.found, self.words, self._highest()
        promises = [point.promise for point in holders if point.promise is not None]
        who, least, most = words.sources(holders), min(promises), max(promises)
        one = len(holders) == 1
        promised = (
            f"promised {words.time(least)}{f' to {words.time(most)}' if most > least else ''}"
        )
        if len(holders) < len(self.active):
            promised = f"{promised}, others up to {words.time(highest)}"
        else:
            they = "it has" if one else "all of them have"
            promised = (
                f"{promised}; the watermark moves when {they} promised more than"
                f" {words.time(self._passed())}"
            )
        said = [
            f"{_sentence(who)} {_verb(len(holders), 'holds', 'hold')} it back:"
            f" {_verb(len(holders), 'it has', 'they have')} {promised}."
        ]
        spoken = [point for point in holders if point.spoke_at is not None]
        told = words.input(holders[0].input).is_told
        if told and not found.has_upstream:
            said.append(f"It is explicit there. Hint: {self._advance(holders[0])}.")
        elif spoken:
            last = min(spoken, key=lambda point: point.spoke_at or 0)
            moved = ""
            if one and last.moved_at is not None and last.moved_at != last.spoke_at:
                moved = f"; its promise last rose at {words.ago(last.moved_at)}"
            together = len({point.spoke_at for point in spoken}) == 1
            it = (
                "It"
                if one
                else "They"
                if together
                else f"Of these, {words.source(last)} is silent longest: it"
            )
            said.append(f"{it} last spoke at {words.ago(last.spoke_at or 0)}{moved}.")
        if (
            found.newest is not None
            and found.watermark is not None
            and found.newest > found.watermark
        ):
            said.append(
                f"The newest event is at {words.time(found.newest)},"
                f" {words.span(found.newest - found.watermark)} ahead of the watermark."
            )
        return said + self._idle_clause(holders)

    def _idle_clause(self, holders: list[SourceStanding]) -> list[str]:
        """When those who hold the watermark back are left out, or how to have that."""
        if not holders:
            return []
        clocks = [point.idle_at for point in holders if point.idle_at is not None]
        it = _verb(len(holders), "it is", "they are")
        if len(clocks) == len(holders):
            last = max(clocks)
            silent = _verb(len(holders), "If it stays silent", "If they stay silent")
            return [
                f"{silent}, {it} left out as idle when the clock reaches {self.words.ahead(last)}."
            ]
        if len(self.points) < 2:
            return []
        return [
            f"Hint: with `idle_after` {it} left out when silent for so long; `mark_idle` does so at"
            " once."
        ]

    def _even(self) -> str:
        """Nobody is behind the others: what the watermark itself follows."""
        found, words = self.found, self.words
        kinds = {given.kind for given in found.inputs if given.status == "active"}
        if all(given.is_told for given in found.inputs):
            return (
                "The upstream tells it."
                if found.has_upstream
                else "It moves only when the program calls `advance_watermark`."
            )
        behind = {given.behind for given in found.inputs if given.status == "active"}
        only = next(iter(behind)) if len(behind) == 1 else None
        if kinds == {"lagging"} and only is not None:
            return (
                f"It stays {self._span(only)} behind the clock, and moves when the operator is told"
                " the clock."
            )
        if (
            only is not None
            and "lagging" not in kinds
            and found.newest is not None
            and found.watermark == found.newest - only
        ):
            stays = (
                f"It stays {self._span(only)} behind the newest event"
                if only
                else "It follows the newest event"
            )
            return (
                f"{stays}, which is at {words.time(found.newest)}; it moves when newer events come."
            )
        moves = {
            "punctuated": "the stream says the next one",
            "noted": "the writers have noted a later time",
            "generated": "its generator promises more",
        }
        text = (
            moves.get(next(iter(kinds)), "newer events come")
            if len(kinds) == 1
            else "all inputs promise more"
        )
        newest = (
            "" if found.newest is None else f" The newest event is at {words.time(found.newest)}."
        )
        return f"It moves when {text}.{newest}"

    def _span(self, ticks: int) -> str:
        return many(ticks, "tick") if self.found.ticks else format_duration(ticks)

    def _future(self) -> list[str]:
        """Events from the future, which are not let move a watermark that follows events."""
        found = self.found
        count = found.counters["future"]
        if not count or all(given.is_told or given.kind == "lagging" for given in found.inputs):
            return []
        where = (
            f"the clock, which is at {format_instant(found.now)}"
            if found.future_reference == "clock"
            else "the watermark"
        )
        span = (
            many(found.future_tolerance, "tick")
            if found.ticks
            else format_duration(found.future_tolerance)
        )
        told = (
            "check the clock that the operator is told, or raise"
            if found.future_reference == "clock"
            else "raise"
        )
        what = f"{many(count, 'event')} from the future"
        head = (
            f"Only events from the future have come ({count:,})"
            if found.newest is None
            else f"{what} came"
        )
        it = _verb(count, "it lies", "they lie")
        hint = f"{told} `future_tolerance`."
        return [
            f"{head}: {it} more than {span} ahead of {where}, and {_verb(count, 'was', 'were')} not"
            f" let move the watermark. Hint: {hint}"
        ]

    def _left_out(self) -> list[str]:
        """Who is not waited for, and who should not be read."""
        words, said = self.words, []
        idle = [point for point in self.points if point.status == "idle"]
        if idle:
            known = [point.spoke_at for point in idle if point.spoke_at is not None]
            longest = "" if len(known) == 1 else "the longest "
            since = f", {longest}silent since {words.ago(min(known))}" if known else ""
            said.append(
                f"{_sentence(words.sources(idle))} {_verb(len(idle), 'is', 'are')} idle and not"
                f" waited for{since}."
            )
        ended = [point for point in self.points if point.status == "ended"]
        if ended and not all(point.status == "ended" for point in self.points):
            said.append(
                f"{_sentence(words.sources(ended))} {_verb(len(ended), 'has', 'have')} ended."
            )
        paused = [point for point in self.points if point.paused]
        if paused:
            it = _verb(len(paused), "is", "are")
            said.append(
                f"{_sentence(words.sources(paused))} {it} too far ahead of the slowest and paused:"
                " not to be read for now (`paused`)."
            )
        return said


def _as_source(given: InputStanding) -> SourceStanding:
    """An input of which no source is known stands for itself."""
    return SourceStanding(
        given.input,
        "",
        given.status,
        given.promise,
        None,
        None,
        given.holds,
        paused=given.paused,
        idle_at=given.idle_at,
    )


def _oldest(points: Sequence[SourceStanding]) -> int:
    """The earliest clock since which one of them is waited for."""
    return min((point.moved_at for point in points if point.moved_at is not None), default=0)


def _other_axes(words: _Words) -> list[str]:
    """On the clock, offsets and ordinals nobody promises anything."""
    found = words.found
    if found.is_finished:
        return ["The input has ended, and all windows have fired."]
    nothing = (
        []
        if found.counters["events"] or found.counters["duplicates"]
        else ["No message has come yet."]
    )
    if found.axis == "clock":
        return [f"Windows follow the clock, which is at {format_instant(found.now)}.", *nothing]
    if found.axis == "ordinal":
        return ["Windows follow the number of messages of each key.", *nothing]
    if found.watermark is None:
        return ["Windows follow offsets.", *nothing]
    holders = [source for source in found.sources if source.holds]
    held = ""
    if len(holders) < len(found.sources):
        held = (
            f" {_sentence(words.sources(holders))} {_verb(len(holders), 'is', 'are')} the furthest"
            " behind, and all windows wait for that."
        )
    return [f"Windows follow offsets: all below {found.watermark} have come.{held}"]


# Windows


def _windows(words: _Words) -> list[str]:
    found = words.found
    said = [_window(words, window) for window in found.windows[:NAMED]]
    more = found.more_windows + len(found.windows) - len(said)
    if more:
        said.append(
            f"{many(more, 'more window')} {_verb(more, 'waits', 'wait')} behind"
            f" {_verb(len(said), 'it', 'them')}."
        )
    if found.keys:
        said.append(_keys(words))
    return said or _no_windows(words)


def _window(words: _Words, window: WindowStanding) -> str:
    found = words.found
    keys = (
        f" of {many(window.keys, 'key')}" if found.key_columns and window.keys is not None else ""
    )
    bounds = f"[{words.time(window.start)}, {words.time(window.end)})"
    name = (
        f"window {bounds}{keys}"
        if (window.start, window.end) != (MIN, MAX)
        else f"the global window{keys}"
    )
    if window.is_complete:
        what = "corrections wait" if window.has_fired else "what came for it waits"
        return f"{_sentence(name)} is complete; {what} {_until(words, window)}."
    return f"{_sentence(name)} waits {_until(words, window)}."


def _until(words: _Words, window: WindowStanding) -> str:
    """What makes the window give its next pane."""
    found = words.found
    clock = [] if window.clock is None else [f"until the clock reaches {words.ahead(window.clock)}"]
    elements = ["for more events"] if window.by_elements else []
    if window.watermark is None:
        return _without_watermark(words, window, [*clock, *elements])
    text = _reaching(words, window, window.watermark)
    if found.needs_all:
        return f"{text}, and for all parts of its trigger `{found.trigger}`"
    if clock or elements:
        return (
            f"{text}; a pane before that waits {' or '.join([*clock, *elements])} (its trigger is"
            f" `{found.trigger}`)"
        )
    return text


def _without_watermark(words: _Words, window: WindowStanding, ways: list[str]) -> str:
    """The same for a trigger to which the watermark means nothing, or nothing any more."""
    found = words.found
    if window.expiry is None:
        over = "until the input ends with `finish`"
    else:
        over = (
            f"{_reaching(words, window, window.expiry, to_go=window.clock is None)}, and the window"
            " is over"
        )
    if found.closing == "never":
        over += "; what has not fired by then goes to `late` as `unfired`"
    if not ways:
        return f"{over}; its trigger `{found.trigger}` does not fire before"
    blind = (
        "is"
        if window.is_complete or found.axis != "event_time" or window.end == MAX
        else "does not fire at the end of the window, it is"
    )
    return f"{' or '.join(ways)} (its trigger {blind} `{found.trigger}`), at the latest {over}"


def _reaching(words: _Words, window: WindowStanding, position: int, *, to_go: bool = True) -> str:
    found, left = words.found, window.to_go if to_go else None
    if found.axis == "clock":
        return f"until the clock reaches {words.ahead(position)}"
    if found.axis == "ordinal":
        if left is None:
            return f"until message {position} of its key has come"
        several = window.keys is not None and window.keys > 1
        return (
            f"until {many(left, 'more message')} of {'a' if several else 'its'} key"
            f" {_verb(left, 'has', 'have')} come"
        )
    if found.axis == "offset":
        return f"until all offsets below {position} have come" + (
            "" if left is None else f", {many(left, 'message')} to go"
        )
    whose = "the watermark of the key" if found.keys_ahead is not None else "the watermark"
    if left is None:
        return f"until {whose} reaches {words.time(position)}"
    nearest = " for the nearest key" if found.keys_ahead is not None and window.keys != 1 else ""
    return f"until {whose} reaches {words.time(position)}, {words.span(left)} to go{nearest}"


def _keys(words: _Words) -> str:
    """Data keys that windows wait for."""
    named = []
    for standing in words.found.keys[: NAMED + 1]:
        values = list(standing.key.values())
        name = (
            f"`{values[0]}`"
            if len(values) == 1
            else "`" + ", ".join(str(value) for value in values) + "`"
        )
        at = (
            "has no watermark"
            if standing.watermark is None
            else f"is at {words.time(standing.watermark)}"
        )
        named.append(f"key {name} {at}")
    return f"Of the keys that windows wait for, {listed(named[:NAMED])}."


def _no_windows(words: _Words) -> list[str]:
    """Said where no window owes anything."""
    found, counted = words.found, words.found.counters
    if found.is_finished or not (counted["events"] or counted["duplicates"]):
        return []
    panes = counted["panes_early"] + counted["panes_on_time"] + counted["panes_late"]
    if found.kept:
        return [
            f"No window waits: {many(found.kept, 'result')} came out and"
            f" {_verb(found.kept, 'is', 'are')} kept for corrections by late events."
        ]
    if panes:
        return [f"No window waits: all have fired ({many(panes, 'pane')}) and are over."]
    if counted["late_rows"] and counted["late_rows"] >= counted["events"]:
        return ["No window waits: everything that came went to `late`."]
    return ["No window waits: nothing that came is in one."]


# Calls


def _calls(words: _Words, calls: CallsStanding) -> list[str]:
    """The messages of an async map that have no answer, and what waits behind them."""
    said = []
    if calls.untaken:
        it = _verb(calls.untaken, "has come and waits", "have come and wait")
        said.append(
            f"{many(calls.untaken, 'answer')} {it} to be taken. Hint: call `timeout` or"
            " `get_result`."
        )
    if calls.pending:
        unstarted, running = calls.pending - calls.in_flight, calls.in_flight - calls.untaken
        slot = (
            f", and {many(unstarted, 'message')} {_verb(unstarted, 'waits', 'wait')} for a slot"
            if unstarted
            else ""
        )
        lack = "no answer that was taken" if calls.untaken else "no answer yet"
        under_way = (
            f"{many(running, 'call')} of at most {calls.max_in_flight:,}"
            f" {_verb(running, 'is', 'are')} under way{slot}"
        )
        said.append(
            f"{many(calls.pending, 'message')} {_verb(calls.pending, 'has', 'have')} {lack};"
            f" {under_way}."
        )
    elif not words.found.is_finished and words.found.counters["events"]:
        said.append("No message waits for an answer.")
    said += _waiting_marks(words, calls)
    if calls.answered:
        said.append(
            f"{many(calls.answered, 'answer')} {_verb(calls.answered, 'waits', 'wait')} for those"
            " of earlier messages."
        )
    if calls.in_flight + calls.answered >= calls.max_in_flight:
        slots = _verb(
            calls.max_in_flight, "The only slot is", f"All {calls.max_in_flight:,} slots are"
        )
        said.append(
            f"{slots} taken, so that `add_messages` waits for an answer. Hint: a larger"
            " `max_in_flight`."
        )
    return [*said, _oldest_call(calls)]


def _oldest_call(calls: CallsStanding) -> str:
    if calls.oldest_for is None or calls.left is None:
        return ""
    past = "less than a second" if calls.oldest_for < _SECOND else rounded(calls.oldest_for)
    head = f"The oldest call is under way for {past}"
    about = (
        "it is about"
        f" `{_cut(', '.join(f'{name}={value}' for name, value in (calls.oldest or {}).items()))}`"
    )
    if calls.left < 0:
        late = (
            f"longer than the {format_duration(calls.limit)} that it may take: it blocks its event"
            " loop, or another one does"
        )
        return f"{head}, {late}; {about}. Hint: call `timeout`, and await what takes long."
    return f"{head} and ends within {rounded(calls.left)}, with an answer or in `late`; {about}."


def _waiting_marks(words: _Words, calls: CallsStanding) -> list[str]:
    """The first watermark of each key that waits, and that all sources are idle."""
    found, said = words.found, []
    by_key: dict[int, list[MarkStanding]] = {}
    for mark in calls.marks:
        if mark.watermark is not None and mark.watermark_key is not None:
            by_key.setdefault(mark.watermark_key, []).append(mark)
    for key, (first, *others) in list(by_key.items())[:NAMED]:
        times = _Words(found.of_key(key))
        more = ""
        if others:
            more = (
                f", and {len(others):,} more behind it, up to"
                f" {times.time(others[-1].watermark or 0)}"
            )
        said.append(
            f"Watermark {times.time(first.watermark or 0)}{_of(words, key)} waits"
            f" {_behind(calls, first)}{more}."
        )
    hidden = sum(len(marks) for marks in list(by_key.values())[NAMED:]) + calls.more_marks
    if hidden:
        said.append(
            f"{many(hidden, 'more watermark')} {_verb(hidden, 'waits', 'wait')} with"
            f" {_verb(len(said), 'it', 'them')}."
        )
    idle = next((mark for mark in calls.marks if mark.kind == "idle"), None)
    if idle is not None:
        said.append(
            "That all"
            f" sources{'' if idle.watermark_key is None else _of(words, idle.watermark_key)} are"
            f" idle waits {_behind(calls, idle)}."
        )
    return said


def _behind(calls: CallsStanding, mark: MarkStanding) -> str:
    if not mark.before:
        return "for nothing but the next call of `timeout`"
    return (
        f"behind {mark.before:,} of them"
        if mark.before < calls.pending
        else f"behind {_verb(calls.pending, 'it', 'them')}"
    )


def _of(words: _Words, key: int) -> str:
    """The key of a watermark, where there are several."""
    return f" of key {key}" if words.found.also else ""


def _keyed(words: _Words) -> list[str]:
    """Where the main watermark stands and who holds it back, and who holds those of other keys
    back.
    """
    found = words.found
    said = _Watermark(words, is_keyed=bool(found.also)).said()
    if found.is_finished:
        return said
    others = [
        held for other in found.also if (held := _Watermark(_Words(other), is_keyed=True).held())
    ]
    more = len(others) - NAMED
    rest = [f"The watermarks of {many(more, 'more key')} are held back too."] if more > 0 else []
    return [*said, *(text for held in others[:NAMED] for text in held), *rest]


def _called(words: _Words, calls: CallsStanding) -> list[str]:
    """What became of the calls so far."""
    n, said = words.found.counters, []
    if calls.error:
        said.append(f"The last call that failed did so with: {_cut(calls.error)}.")
    if n["retried"]:
        said.append(
            f"{many(n['retried'], 'attempt')} {_verb(n['retried'], 'was', 'were')} made because an"
            " earlier one had failed."
        )
    if n["filtered"]:
        said.append(
            f"{many(n['filtered'], 'message')} {_verb(n['filtered'], 'was', 'were')} answered with"
            " nothing and left out."
        )
    if calls.lost_loops:
        text = (
            f"The function blocked its event loop {many(calls.lost_loops, 'time')}, and another one"
            " was started"
        )
        said.append(f"{text}. Hint: await what takes long, or use asyncio.to_thread.")
    return said


def _cut(text: str) -> str:
    """A text of the user in one line that is not too long."""
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST_TEXT else f"{line[:_LONGEST_TEXT]}..."


# What was counted, and what the runtime knows


def _counted(words: _Words) -> list[str]:
    found, n = words.found, words.found.counters
    said = []
    if n["generator_failures"]:
        last = f"; the last error was: {' '.join(found.failure.split())}" if found.failure else ""
        said.append(
            f"The watermark generator failed {many(n['generator_failures'], 'time')} and promised"
            f" nothing then{last}."
        )
    if n["watermark_steps_back"]:
        said.append(
            f"{many(n['watermark_steps_back'], 'step')} back of a promise"
            f" {_verb(n['watermark_steps_back'], 'was', 'were')} ignored."
        )
    if n["watermarks_refused"]:
        what = many(n["watermarks_refused"], "watermark")
        said.append(
            f"{what} could not be read or lay in the future, and"
            f" {_verb(n['watermarks_refused'], 'was', 'were')} not taken."
        )
    if n["watermarks_after_end"]:
        said.append(
            f"Sources that had ended spoke {many(n['watermarks_after_end'], 'time')}, which was"
            " ignored."
        )
    if n["watermarks_dropped"]:
        keys = " and ".join(
            str(key)
            for key in (found.watermark_key, *(other.watermark_key for other in found.also))
        )
        said.append(
            f"{many(n['watermarks_dropped'], 'watermark')} of other keys than {keys} ended here."
        )
    if n["duplicates"]:
        said.append(
            f"{many(n['duplicates'], 'message')} had come before and"
            f" {_verb(n['duplicates'], 'was', 'were')} left out."
        )
    if found.late:
        reasons = ", ".join(
            f"{count:,} {reason}"
            for reason, count in sorted(found.late.items(), key=lambda item: -item[1])
        )
        said.append(f"{many(n['late_rows'], 'row')} went to `late`: {reasons}.")
    return said


def _results(words: _Words) -> list[str]:
    found, said = words.found, []
    if found.is_refused:
        refused = {"result": found.refused_rows, "watermark": found.refused_marks}
        nothing = (
            "The end of the input waits"
            if found.calls is not None and found.is_finished
            else "Results wait"
        )
        what = _wait(refused) or nothing
        said.append(
            f"{what} because the downstream refuses; no input is taken until it accepts. Hint: call"
            " `timeout` to offer again."
        )
    waiting = {
        "pane": found.waiting_panes,
        "result": found.waiting_results,
        "watermark": found.waiting_marks,
        "late row": found.waiting_late,
    }
    if _wait(waiting):
        said.append(f"{_wait(waiting)} to be taken. Hint: call `get_result`.")
    return said


def _wait(counts: Mapping[str, int]) -> str:
    """How many of what wait; nothing where there are none."""
    named = [many(count, noun) for noun, count in counts.items() if count]
    return f"{listed(named)} {_verb(sum(counts.values()), 'waits', 'wait')}" if named else ""


def _overdue(words: _Words) -> list[str]:
    """Where the clock of the machine has gone on and nobody told the operator, what is due by it
    waits.
    """
    found = words.found
    if found.machine_clock is None or found.is_finished:
        return []
    due = [source.idle_at for source in found.sources] + [window.clock for window in found.windows]
    due += [window.end for window in found.windows if found.axis == "clock"]
    lagging = (
        found.axis == "event_time"
        and bool(found.windows)
        and any(given.kind == "lagging" for given in found.inputs)
    )
    late = [
        clock for clock in due if clock is not None and found.now < clock <= found.machine_clock
    ]
    if not late and not (lagging and found.machine_clock > found.now):
        return []
    past = rounded(found.machine_clock - found.now)
    return [
        f"The operator was last told the clock {past} ago, and something has become due since."
        " Hint: call `timeout` from time to time."
    ]

"""Sentences about a watermark: where it is, and which source holds it back."""

from __future__ import annotations

from collections.abc import Sequence

from tidegate.instants import MIN, format_duration, format_instant
from tidegate.operators.explain.facts import InputFacts, SourceFacts
from tidegate.operators.explain.wording import NAMED, Wording, capitalized, listed, verb
from tidegate.units import many


def watermark_sentences(words: Wording) -> list[str]:
    """The watermarks of all keys: the main one, and of the others those that are held back."""
    found = words.found
    texts = WatermarkText(words, is_keyed=bool(found.also)).sentences()
    if found.is_finished:
        return texts
    others = [
        held
        for other in found.also
        if (held := WatermarkText(Wording(other), is_keyed=True).hold_back())
    ]
    more = len(others) - NAMED
    rest = [f"The watermarks of {many(more, 'more key')} are held back too."] if more > 0 else []
    return [*texts, *(text for held in others[:NAMED] for text in held), *rest]


class WatermarkText:
    """Sentences about one event-time watermark: where it is, and why it does not advance."""

    def __init__(self, words: Wording, *, is_keyed: bool = False) -> None:
        self.words = words
        self.found = words.found
        self.is_keyed = is_keyed
        """Whether sentences name its key, because there are several watermarks."""
        self.name = f" of key {self.found.watermark_key}" if is_keyed else ""
        speaking = {source.input for source in self.found.sources if source.status == "active"}
        whole = [
            given
            for given in self.found.inputs
            if not given.sources or (given.status == "active" and given.input not in speaking)
        ]
        self.points = [*self.found.sources, *(_as_source(given) for given in whole)]
        """All sources, and the inputs that count as a single source."""
        self.active = [point for point in self.points if point.status == "active"]

    def sentences(self) -> list[str]:
        found = self.found
        if found.is_finished and found.calls is not None:
            return ["The input has ended, and every message has its answer."]
        if found.is_finished:
            return [
                "The input has ended: the watermark is at the end of time, and all windows are"
                " complete."
            ]
        ahead = (
            f"{many(found.keys_ahead, 'key')} {verb(found.keys_ahead, 'is', 'are')} ahead of it."
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

    def hold_back(self) -> list[str]:
        """Only the sources that hold the watermark back, if there are any."""
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
            numbers = listed([words.number(number) for number in found.lacking])
            lack = verb(len(found.lacking), f"input {numbers} does", f"inputs {numbers} do")
            return f"The watermark{self.name} is dropped, because {lack} not have that key."
        if found.watermark is None:
            began = (
                ""
                if found.since is None or found.since >= found.now
                else f"; the operator started at {words.ago(found.since)}"
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
        """The sentence for an operator without any message."""
        counted = self.found.counters
        if self.found.watermark is not None or counted["events"] or counted["duplicates"]:
            return []
        return ["No message has arrived yet."]

    def _cause(self) -> list[str]:
        found = self.found
        if found.lacking:
            return []
        if found.is_idle:
            return self._all_idle()
        lacking, holders = self._lack(), self._holds()
        if lacking:
            return self._lacking(lacking)
        return self._held(holders) if holders else [self._even()]

    def _lack(self) -> list[SourceFacts]:
        """The sources without a promise, so that there is no watermark."""
        return [point for point in self.points if point.holds and point.promise is None]

    def _holds(self) -> list[SourceFacts]:
        """The sources that are behind others; none if all are even."""
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
        """The watermark of an operator without per-key watermarks.

        A source with a lower promise was idle and came back behind it.
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
        all_of_them = "Every source has ended" if ended else "Every source is idle or has ended"
        if found.watermark is None:
            return [f"{all_of_them}, and none has promised anything, so nothing was released."]
        finish = (
            "`finish` fires the remaining windows"
            if found.calls is None
            else "`finish` ends the input"
        )
        hint = (
            finish
            if ended and not found.is_scheduled
            else "it advances when one of them becomes active again"
        )
        return [f"{all_of_them}, so the highest promise was released; {hint}."]

    def _lacking(self, lacking: list[SourceFacts]) -> list[str]:
        """The sources without a promise, by how their watermark would advance."""
        explicit = [point for point in lacking if self.words.input(point.input).is_explicit]
        others = [point for point in lacking if not self.words.input(point.input).is_explicit]
        texts = [self._not_advanced(explicit)] if explicit else []
        silent = [point for point in others if not self._is_unknown(point)]
        unknown = [point for point in others if self._is_unknown(point)]
        if unknown:
            text = self._unknown(unknown)
            texts += [text] if text else []
        if silent:
            texts.append(self._silent(silent))
        return texts + self._idle_clause(lacking)

    def _not_advanced(self, explicit: list[SourceFacts]) -> str:
        """Explicit watermarks that have not been advanced."""
        words = self.words
        if self.found.has_upstream and len(self.found.inputs) < 2:
            return "The upstream provides the watermark, and has sent none yet."
        named = [point for point in explicit if point.name or len(self.found.inputs) > 1]
        if not named:
            return (
                "The watermark is explicit and has not been advanced yet. Hint: call"
                f" {self._advance(explicit[0])}."
            )
        since = (
            ""
            if named[0].moved_at is None
            else (
                f", {verb(len(named), 'which has', 'which have')} held it back since"
                f" {words.ago(_oldest(named))}"
            )
        )
        return (
            "The watermark is explicit and has not been advanced for"
            f" {words.sources(named)}{since}. Hint: call {self._advance(named[0])}."
        )

    def _advance(self, point: SourceFacts) -> str:
        """The call that advances the watermark of a source."""
        names = self.found.names
        shown = repr(names[point.input]) if point.input < len(names) else point.input
        given = [f"input={shown}"] if len(self.found.inputs) > 1 else []
        given += [f"partition={point.name!r}"] if point.name else []
        given += [f"key={self.found.watermark_key}"] if self.is_keyed else []
        return f"`advance_watermark(..., {', '.join(given)})`" if given else "`advance_watermark`"

    def _is_unknown(self, point: SourceFacts) -> bool:
        """Whether no source of an input is known."""
        return point.spoke_at is None

    def _unknown(self, points: list[SourceFacts]) -> str:
        several = len(self.found.inputs) > 1
        if several:
            numbers = listed([self.words.number(point.input) for point in points])
            lack = verb(len(points), f"Input {numbers} has", f"Inputs {numbers} have")
            return f"{lack} not sent anything that advances the watermark."
        if self.found.inputs[0].kind == "lagging":
            return (
                "The watermark follows the clock, which the operator has not read yet. Hint: call"
                " `timeout`."
            )
        counted = self.found.counters
        if counted["events"] and not counted["future"]:
            return "No message has a time that advances the watermark."
        return ""

    def _silent(self, points: list[SourceFacts]) -> str:
        """Known sources that have not promised anything."""
        words = self.words
        if len(points) == 1 and not points[0].name and len(self.found.inputs) < 2:
            return f"Messages have arrived, but none {self._wanted(points[0])}."
        lack = "sent a watermark"
        if self._follows_events(points[0].input):
            counted = self.found.counters
            # A source may have sent events without a time, or with one in the future.
            is_vain = counted.get("unreadable") or counted.get("future")
            lack = "sent an event that advances the watermark" if is_vain else "sent an event"
        has = verb(len(points), "has", "have")
        declared = " (declared)" if all(point.declared for point in points) else ""
        return (
            f"{capitalized(words.sources(points))}{declared} {has} not {lack} yet;"
            f" {verb(len(points), 'it', 'they')} {has} held the watermark back since"
            f" {words.ago(_oldest(points))}.{self._undeclared(points)}"
        )

    def _undeclared(self, silent: list[SourceFacts]) -> str:
        """A hint if no declared source of an input has sent anything, but undeclared ones have."""
        given = [point for point in self.found.sources if point.input == silent[0].input]
        others = [point for point in given if not point.declared and point.promise is not None]
        if not others or any(point.declared and point not in silent for point in given):
            return ""
        return (
            f" All messages come from {self.words.sources(others)}. Hint: declare the names that"
            " the messages carry."
        )

    def _follows_events(self, ordinal: int) -> bool:
        return self.words.input(ordinal).behind is not None

    def _wanted(self, point: SourceFacts) -> str:
        return (
            "has a time that advances the watermark"
            if self._follows_events(point.input)
            else "carries a watermark"
        )

    def _held(self, holders: list[SourceFacts]) -> list[str]:
        found, words, highest = self.found, self.words, self._highest()
        promises = [point.promise for point in holders if point.promise is not None]
        names, least, most = words.sources(holders), min(promises), max(promises)
        one = len(holders) == 1
        promised = (
            f"promised {words.time(least)}{f' to {words.time(most)}' if most > least else ''}"
        )
        if len(holders) < len(self.active):
            promised = f"{promised}, others up to {words.time(highest)}"
        else:
            they = "it has" if one else "all of them have"
            promised = (
                f"{promised}; the watermark advances when {they} promised more than"
                f" {words.time(self._passed())}"
            )
        texts = [
            f"{capitalized(names)} {verb(len(holders), 'holds', 'hold')} the watermark back:"
            f" {verb(len(holders), 'it has', 'they have')} {promised}."
        ]
        seen = [point for point in holders if point.spoke_at is not None]
        if words.input(holders[0].input).is_explicit and not found.has_upstream:
            texts.append(
                f"The watermark is explicit there. Hint: call {self._advance(holders[0])}."
            )
        elif seen:
            last = min(seen, key=lambda point: point.spoke_at or 0)
            moved = ""
            if one and last.moved_at is not None and last.moved_at != last.spoke_at:
                moved = f"; its promise last advanced at {words.ago(last.moved_at)}"
            together = len({point.spoke_at for point in seen}) == 1
            it = (
                "It was"
                if one
                else "They were"
                if together
                else f"Of these, {words.source(last)} has been silent longest: it was"
            )
            texts.append(f"{it} last active at {words.ago(last.spoke_at or 0)}{moved}.")
        if (
            found.newest is not None
            and found.watermark is not None
            and found.newest > found.watermark
        ):
            texts.append(
                f"The newest event is at {words.time(found.newest)},"
                f" {words.span(found.newest - found.watermark)} ahead of the watermark."
            )
        return texts + self._idle_clause(holders)

    def _idle_clause(self, holders: list[SourceFacts]) -> list[str]:
        """When the sources that hold the watermark back become idle, or how to make them idle."""
        if not holders:
            return []
        clocks = [point.idle_at for point in holders if point.idle_at is not None]
        if len(clocks) == len(holders):
            last = max(clocks)
            silent = verb(
                len(holders),
                "If it stays silent, it becomes idle",
                "If they stay silent, they become idle",
            )
            return [f"{silent} when the clock reaches {self.words.ahead(last)}."]
        if len(self.points) < 2:
            return []
        it = verb(len(holders), "it", "they")
        call = "" if self.found.is_scheduled else ", or call `mark_idle`"
        return [
            f"Hint: set `idle_after`, after which {it} {verb(len(holders), 'becomes', 'become')}"
            f" idle when silent{call}."
        ]

    def _even(self) -> str:
        """What the watermark follows, where no source is behind the others."""
        found, words = self.found, self.words
        kinds = {given.kind for given in found.inputs if given.status == "active"}
        if all(given.is_explicit for given in found.inputs):
            return (
                "The upstream provides it."
                if found.has_upstream
                else "It advances only when the program calls `advance_watermark`."
            )
        behind = {given.behind for given in found.inputs if given.status == "active"}
        only = next(iter(behind)) if len(behind) == 1 else None
        if kinds == {"lagging"} and only is not None:
            return (
                f"It stays {self._span(only)} behind the clock, and advances when the operator"
                " reads the clock."
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
                f"{stays}, which is at {words.time(found.newest)}; it advances when newer events"
                " arrive."
            )
        moves = {
            "punctuated": "the stream sends the next one",
            "noted": "the writers note a later time",
            "generated": "its generator promises more",
        }
        text = (
            moves.get(next(iter(kinds)), "newer events arrive")
            if len(kinds) == 1
            else "all inputs promise more"
        )
        newest = (
            "" if found.newest is None else f" The newest event is at {words.time(found.newest)}."
        )
        return f"It advances when {text}.{newest}"

    def _span(self, ticks: int) -> str:
        return many(ticks, "tick") if self.found.ticks else format_duration(ticks)

    def _future(self) -> list[str]:
        """Events from the future, which do not advance a watermark that follows events."""
        found = self.found
        count = found.counters["future"]
        if not count or all(given.is_explicit or given.kind == "lagging" for given in found.inputs):
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
        check = (
            "check the clock of the operator, or raise"
            if found.future_reference == "clock"
            else "raise"
        )
        what = f"{many(count, 'event')} from the future"
        head = (
            f"Only events from the future have arrived ({count:,})"
            if found.newest is None
            else f"{what} arrived"
        )
        it = verb(count, "it is", "they are")
        does = verb(count, "it does", "they do")
        return [
            f"{head}: {it} more than {span} ahead of {where}, so {does} not advance the watermark."
            f" Hint: {check} `future_tolerance`."
        ]

    def _left_out(self) -> list[str]:
        """The sources that are idle, ended or paused."""
        words, texts = self.words, []
        idle = [point for point in self.points if point.status == "idle"]
        if idle:
            known = [point.spoke_at for point in idle if point.spoke_at is not None]
            longest = "" if len(known) == 1 else "the longest "
            since = f", {longest}silent since {words.ago(min(known))}" if known else ""
            texts.append(
                f"{capitalized(words.sources(idle))}"
                f" {verb(len(idle), 'is idle and does', 'are idle and do')} not hold the watermark"
                f" back{since}."
            )
        ended = [point for point in self.points if point.status == "ended"]
        if ended and not all(point.status == "ended" for point in self.points):
            texts.append(
                f"{capitalized(words.sources(ended))} {verb(len(ended), 'has', 'have')} ended."
            )
        paused = [point for point in self.points if point.paused]
        if paused:
            are = verb(len(paused), "is paused: it is", "are paused: they are")
            texts.append(
                f"{capitalized(words.sources(paused))} {are} too far ahead of the slowest source"
                " and should not be read for now (`paused`)."
            )
        return texts


def _as_source(given: InputFacts) -> SourceFacts:
    """An input without an active source, as a source."""
    return SourceFacts(
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


def _oldest(points: Sequence[SourceFacts]) -> int:
    """The earliest clock since which one of the sources holds the watermark back."""
    return min((point.moved_at for point in points if point.moved_at is not None), default=0)

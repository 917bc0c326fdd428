"""The wording of explanations: how times, spans, counts and sources are written."""

from __future__ import annotations

from collections.abc import Sequence

from tidegate.instants import format_instant
from tidegate.operators.explain.facts import Explanation, InputFacts, SourceFacts, time_text
from tidegate.units import many, rounded

NAMED = 3
"""How many sources, keys or windows a sentence names; the others are only counted."""


def listed(names: Sequence[str], named: int = NAMED) -> str:
    """The first names, and the number of the others.

    >>> listed(["a", "b"]), listed(["a", "b", "c", "d", "e"])
    ('a and b', 'a, b, c and 2 more')
    """
    if len(names) > named + 1:
        return f"{', '.join(names[:named])} and {len(names) - named:,} more"
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)


class Wording:
    """Texts of times, spans and sources in one explanation."""

    def __init__(self, found: Explanation) -> None:
        self.found = found
        self._inputs = {given.input: given for given in found.inputs}

    def input(self, ordinal: int) -> InputFacts:
        return self._inputs[ordinal]

    def time(self, value: int) -> str:
        return time_text(value, ticks=self.found.ticks)

    def span(self, ticks: int) -> str:
        """A distance on the axis of the windows."""
        if self.found.axis in {"offset", "ordinal"}:
            return many(ticks, "message")
        return many(ticks, "tick") if self.found.ticks else rounded(ticks)

    def ago(self, clock: int) -> str:
        past = self.found.now - clock
        return (
            f"{format_instant(clock)}, {rounded(past)} ago" if past > 0 else format_instant(clock)
        )

    def ahead(self, clock: int) -> str:
        """An instant of the clock with the time to go; it may have passed without a `timeout`."""
        left = clock - self.found.now
        if left > 0:
            return f"{format_instant(clock)}, {rounded(left)} to go"
        due = "due with the next batch" if self.found.is_scheduled else "call `timeout`"
        return f"{format_instant(clock)}, which has passed: {due}"

    def source(self, source: SourceFacts) -> str:
        several = len(self.found.inputs) > 1
        if not source.name and (
            source.spoke_at is None or not self.found.inputs or self.input(source.input).sources < 2
        ):
            return f"input {self.number(source.input)}" if several else "the input"
        kind = "writer" if self.kind(source.input) == "noted" else "partition"
        of = f" of input {self.number(source.input)}" if several else ""
        return f"{kind} `{source.name}`{of}"

    def number(self, ordinal: int) -> str:
        """The name of an input, or its number."""
        names = self.found.names
        return f"`{names[ordinal]}`" if ordinal < len(names) else str(ordinal)

    def sources(self, sources: Sequence[SourceFacts]) -> str:
        """Several sources, with a common noun written once."""
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


def capitalized(text: str) -> str:
    """The text with a capital first letter."""
    return text[:1].upper() + text[1:]


def verb(count: int, one: str, more: str) -> str:
    """The singular or the plural form."""
    return one if count == 1 else more

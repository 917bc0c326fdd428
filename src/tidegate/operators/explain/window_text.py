"""Sentences about windows: what each waits for until its next pane."""

from __future__ import annotations

from tidegate.instants import MAX, MIN
from tidegate.operators.explain.facts import WindowFacts
from tidegate.operators.explain.wording import NAMED, Wording, capitalized, listed, verb
from tidegate.units import many


def window_sentences(words: Wording) -> list[str]:
    """The windows that wait, or why none does."""
    found = words.found
    texts = [_window(words, window) for window in found.windows[:NAMED]]
    more = found.more_windows + len(found.windows) - len(texts)
    if more:
        texts.append(
            f"{many(more, 'more window')} {verb(more, 'waits', 'wait')} behind"
            f" {verb(len(texts), 'it', 'them')}."
        )
    if found.unlisted:
        texts.append(
            f"{many(found.unlisted, 'window')} of single keys {verb(found.unlisted, 'is', 'are')}"
            " open, too many to list."
        )
    if found.keys:
        texts.append(_keys(words))
    return texts or _no_windows(words)


def _window(words: Wording, window: WindowFacts) -> str:
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
        what = "corrections wait" if window.has_fired else "its rows wait"
        return f"{capitalized(name)} is complete; {what} {until(words, window)}."
    return f"{capitalized(name)} waits {until(words, window)}."


def until(words: Wording, window: WindowFacts) -> str:
    """What makes the window fire its next pane."""
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


def _without_watermark(words: Wording, window: WindowFacts, ways: list[str]) -> str:
    """The same for a trigger that does not, or no longer, depend on the watermark."""
    found = words.found
    if window.expiry is None:
        over = "until the input ends" + ("" if found.is_scheduled else " with `finish`")
    else:
        over = (
            f"{_reaching(words, window, window.expiry, to_go=window.clock is None)}, when the"
            " window expires"
        )
    if found.closing == "never":
        over += "; rows that have not fired by then go to `late` as `unfired`"
    if not ways:
        return f"{over}; its trigger `{found.trigger}` does not fire earlier"
    blind = (
        "is"
        if window.is_complete or found.axis != "event_time" or window.end == MAX
        else "does not fire at the end of the window, it is"
    )
    return f"{' or '.join(ways)} (its trigger {blind} `{found.trigger}`), at the latest {over}"


def _reaching(words: Wording, window: WindowFacts, position: int, *, to_go: bool = True) -> str:
    found, left = words.found, window.to_go if to_go else None
    if found.axis == "clock":
        return f"until the clock reaches {words.ahead(position)}"
    if found.axis == "ordinal":
        if left is None:
            return f"until message {position} of its key has arrived"
        several = window.keys is not None and window.keys > 1
        return (
            f"until {many(left, 'more message')} of {'a' if several else 'its'} key"
            f" {verb(left, 'has', 'have')} arrived"
        )
    if found.axis == "offset":
        return f"until all offsets below {position} have arrived" + (
            "" if left is None else f", {many(left, 'message')} to go"
        )
    whose = "the watermark of the key" if found.keys_ahead is not None else "the watermark"
    if left is None:
        return f"until {whose} reaches {words.time(position)}"
    nearest = " for the nearest key" if found.keys_ahead is not None and window.keys != 1 else ""
    return f"until {whose} reaches {words.time(position)}, {words.span(left)} to go{nearest}"


def _keys(words: Wording) -> str:
    """The data keys that windows wait for."""
    named = []
    for key in words.found.keys[: NAMED + 1]:
        values = list(key.key.values())
        name = (
            f"`{values[0]}`"
            if len(values) == 1
            else "`" + ", ".join(str(value) for value in values) + "`"
        )
        at = "has no watermark" if key.watermark is None else f"is at {words.time(key.watermark)}"
        named.append(f"key {name} {at}")
    return f"Of the keys that windows wait for, {listed(named[:NAMED])}."


def _no_windows(words: Wording) -> list[str]:
    """Why no window waits."""
    found, counted = words.found, words.found.counters
    if found.is_finished or not (counted["events"] or counted["duplicates"]):
        return []
    panes = counted["panes_early"] + counted["panes_on_time"] + counted["panes_late"]
    if found.kept:
        return [
            f"No window waits: {many(found.kept, 'result')}"
            f" {verb(found.kept, 'was emitted and is', 'were emitted and are')} kept for"
            " corrections by late events."
        ]
    if panes:
        return [f"No window waits: all have fired ({many(panes, 'pane')}) and expired."]
    if counted["late_rows"] and counted["late_rows"] >= counted["events"]:
        return ["No window waits: all rows went to `late`."]
    return ["No window waits: no row is in a window."]

"""Sentences about the calls of an async map, and about the marks that wait behind them."""

from __future__ import annotations

from tidegate.instants import format_duration
from tidegate.operators.explain.facts import CallFacts, MarkFacts
from tidegate.operators.explain.wording import NAMED, Wording, verb
from tidegate.units import SECOND, many, rounded

_LONGEST_TEXT = 120
"""The length at which messages and errors of the user are cut."""


def call_sentences(words: Wording, calls: CallFacts) -> list[str]:
    """The messages without an answer, and what waits behind them."""
    texts = []
    if calls.untaken:
        it = verb(calls.untaken, "has arrived and waits", "have arrived and wait")
        texts.append(
            f"{many(calls.untaken, 'answer')} {it} to be taken. Hint: call `timeout` or"
            " `get_result`."
        )
    if calls.pending:
        unstarted, running = calls.pending - calls.in_flight, calls.in_flight - calls.untaken
        slot = (
            f", and {many(unstarted, 'message')} {verb(unstarted, 'waits', 'wait')} for a slot"
            if unstarted
            else ""
        )
        lack = "no answer that was taken" if calls.untaken else "no answer yet"
        started = (
            f"{many(running, 'call')} of at most {calls.max_in_flight:,}"
            f" {verb(running, 'is', 'are')} running{slot}"
        )
        texts.append(
            f"{many(calls.pending, 'message')} {verb(calls.pending, 'has', 'have')} {lack};"
            f" {started}."
        )
    elif not words.found.is_finished and words.found.counters["events"]:
        texts.append("No message waits for an answer.")
    texts += _waiting_marks(words, calls)
    if calls.answered:
        texts.append(
            f"{many(calls.answered, 'answer')} {verb(calls.answered, 'waits', 'wait')} for the"
            " answers of earlier messages."
        )
    if calls.in_flight + calls.answered >= calls.max_in_flight:
        slots = verb(
            calls.max_in_flight, "The only slot is", f"All {calls.max_in_flight:,} slots are"
        )
        texts.append(
            f"{slots} in use, so `add_messages` waits for an answer. Hint: raise `max_in_flight`."
        )
    return [*texts, _oldest_call(calls)]


def _oldest_call(calls: CallFacts) -> str:
    if calls.oldest_for is None or calls.left is None:
        return ""
    past = "less than a second" if calls.oldest_for < SECOND else rounded(calls.oldest_for)
    head = f"The oldest call has been running for {past}"
    message = (
        "its message is"
        f" `{_cut(', '.join(f'{name}={value}' for name, value in (calls.oldest or {}).items()))}`"
    )
    if calls.left < 0:
        late = (
            f"longer than its limit of {format_duration(calls.limit)}: it or another call blocks"
            " the event loop"
        )
        return f"{head}, {late}; {message}. Hint: call `timeout`, and await long operations."
    return f"{head} and ends within {rounded(calls.left)}, with an answer or in `late`; {message}."


def _waiting_marks(words: Wording, calls: CallFacts) -> list[str]:
    """The first watermark of each key that waits, and an idle status that waits."""
    found, texts = words.found, []
    by_key: dict[int, list[MarkFacts]] = {}
    for mark in calls.marks:
        if mark.watermark is not None and mark.watermark_key is not None:
            by_key.setdefault(mark.watermark_key, []).append(mark)
    for key, (first, *others) in list(by_key.items())[:NAMED]:
        times = Wording(found.of_key(key))
        more = ""
        if others:
            more = (
                f", and {len(others):,} more behind it, up to"
                f" {times.time(others[-1].watermark or 0)}"
            )
        texts.append(
            f"Watermark {times.time(first.watermark or 0)}{_of(words, key)} waits"
            f" {_behind(calls, first)}{more}."
        )
    hidden = sum(len(marks) for marks in list(by_key.values())[NAMED:]) + calls.more_marks
    if hidden:
        texts.append(
            f"{many(hidden, 'more watermark')} {verb(hidden, 'waits', 'wait')} with"
            f" {verb(len(texts), 'it', 'them')}."
        )
    idle = next((mark for mark in calls.marks if mark.kind == "idle"), None)
    if idle is not None:
        texts.append(
            "The idle status of all"
            f" sources{'' if idle.watermark_key is None else _of(words, idle.watermark_key)} waits"
            f" {_behind(calls, idle)}."
        )
    return texts


def _behind(calls: CallFacts, mark: MarkFacts) -> str:
    if not mark.before:
        return "only for the next call of `timeout`"
    return (
        f"behind {mark.before:,} of them"
        if mark.before < calls.pending
        else f"behind {verb(calls.pending, 'it', 'them')}"
    )


def _of(words: Wording, key: int) -> str:
    """The key of a watermark, where there are several."""
    return f" of key {key}" if words.found.also else ""


def call_counts(words: Wording, calls: CallFacts) -> list[str]:
    """The failed, retried and dropped calls so far."""
    n, texts = words.found.counters, []
    if calls.error:
        texts.append(f"The last failed call ended with: {_cut(calls.error)}.")
    if n["retried"]:
        texts.append(
            f"{many(n['retried'], 'attempt')}"
            f" {verb(n['retried'], 'was a retry', 'were retries')} after a failure."
        )
    if n["filtered"]:
        texts.append(
            f"{many(n['filtered'], 'message')} had no result and"
            f" {verb(n['filtered'], 'was', 'were')} dropped."
        )
    if calls.lost_loops:
        text = (
            f"The function blocked its event loop {many(calls.lost_loops, 'time')}, and a new loop"
            " was started"
        )
        texts.append(f"{text}. Hint: await long operations, or use asyncio.to_thread.")
    return texts


def _cut(text: str) -> str:
    """A text of the user in one line, cut at a maximal length."""
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST_TEXT else f"{line[:_LONGEST_TEXT]}..."

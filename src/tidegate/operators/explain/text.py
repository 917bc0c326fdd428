"""An explanation as sentences, made of nothing but its facts."""

from __future__ import annotations

from collections.abc import Mapping

from tidegate.instants import format_instant
from tidegate.operators.explain.call_text import call_counts, call_sentences
from tidegate.operators.explain.facts import Explanation
from tidegate.operators.explain.watermark_text import WatermarkText, watermark_sentences
from tidegate.operators.explain.window_text import window_sentences
from tidegate.operators.explain.wording import Wording, capitalized, listed, verb
from tidegate.units import many, rounded


def sentences(found: Explanation) -> tuple[str, ...]:
    """The sentences of an explanation, the most important first."""
    words = Wording(found)
    if found.calls is not None:
        texts = [
            *call_sentences(words, found.calls),
            *watermark_sentences(words),
            *_counted(words),
            *call_counts(words, found.calls),
        ]
    else:
        windows = window_sentences(words) if found.trigger else []
        texts = [
            *(
                WatermarkText(words).sentences()
                if found.axis == "event_time"
                else _other_axes(words)
            ),
            *windows,
            *_counted(words),
        ]
    return tuple(text for text in (*_results(words), *texts, *_overdue(words)) if text)


def _other_axes(words: Wording) -> list[str]:
    """The progress of windows on the clock, on offsets and on ordinals."""
    found = words.found
    if found.is_finished:
        return ["The input has ended, and all windows have fired."]
    nothing = (
        []
        if found.counters["events"] or found.counters["duplicates"]
        else ["No message has arrived yet."]
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
            f" {capitalized(words.sources(holders))}"
            f" {verb(len(holders), 'is furthest behind and holds', 'are furthest behind and hold')}"
            " all windows back."
        )
    return [f"Windows follow offsets: all below {found.watermark} have arrived.{held}"]


def _counted(words: Wording) -> list[str]:
    """What the counters tell about failures, ignored watermarks, duplicates and late rows."""
    found, n = words.found, words.found.counters
    texts = []
    if n["generator_failures"]:
        last = f"; the last error was: {' '.join(found.failure.split())}" if found.failure else ""
        texts.append(
            f"The watermark generator failed {many(n['generator_failures'], 'time')} and did not"
            f" advance the watermark then{last}."
        )
    if n["watermark_steps_back"]:
        texts.append(
            f"{many(n['watermark_steps_back'], 'step')} back of a promise"
            f" {verb(n['watermark_steps_back'], 'was', 'were')} ignored."
        )
    if n["watermarks_refused"]:
        what = many(n["watermarks_refused"], "watermark")
        texts.append(
            f"{what} {verb(n['watermarks_refused'], 'was', 'were')} refused as unreadable or in the"
            " future."
        )
    if n["watermarks_after_end"]:
        texts.append(
            "Activity after the end of a source was ignored"
            f" {many(n['watermarks_after_end'], 'time')}."
        )
    if n["watermarks_dropped"]:
        keys = " and ".join(
            str(key)
            for key in (found.watermark_key, *(other.watermark_key for other in found.also))
        )
        texts.append(
            f"{many(n['watermarks_dropped'], 'watermark')} of keys other than {keys}"
            f" {verb(n['watermarks_dropped'], 'was', 'were')} dropped."
        )
    if n["duplicates"]:
        texts.append(
            f"{many(n['duplicates'], 'duplicate message')}"
            f" {verb(n['duplicates'], 'was', 'were')} dropped."
        )
    if found.late:
        reasons = ", ".join(
            f"{count:,} {reason}"
            for reason, count in sorted(found.late.items(), key=lambda item: (-item[1], item[0]))
        )
        texts.append(f"{many(n['late_rows'], 'row')} went to `late`: {reasons}.")
    return texts


def _results(words: Wording) -> list[str]:
    """The results that wait for the downstream or for `get_result`."""
    found, texts = words.found, []
    if found.is_refused:
        refused = {"result": found.refused_rows, "watermark": found.refused_marks}
        nothing = (
            "The end of the input waits"
            if found.calls is not None and found.is_finished
            else "Results wait"
        )
        what = _wait(refused) or nothing
        texts.append(
            f"{what} because the downstream refuses; no input is accepted until it takes results."
            " Hint: call `timeout` to offer again."
        )
    waiting = {
        "pane": found.waiting_panes,
        "result": found.waiting_results,
        "watermark": found.waiting_marks,
        "late row": found.waiting_late,
    }
    if _wait(waiting):
        texts.append(f"{_wait(waiting)} to be fetched. Hint: call `get_result`.")
    return texts


def _wait(counts: Mapping[str, int]) -> str:
    """The counts of what waits; empty if nothing does."""
    named = [many(count, noun) for noun, count in counts.items() if count]
    return f"{listed(named)} {verb(sum(counts.values()), 'waits', 'wait')}" if named else ""


def _overdue(words: Wording) -> list[str]:
    """What is due by the clock of the machine, while the clock of the operator is behind it."""
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
        f"The operator last read the clock {past} ago, and something has become due since. Hint:"
        " call `timeout` regularly."
    ]

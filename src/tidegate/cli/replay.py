"""`tidegate replay`: runs scenario files and prints one line per scenario."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path

from tidegate.progress_bar import progress_bar
from tidegate.scenarios import FAIL, NO_EXTENSION, PASS, UNSUPPORTED, Extension, Outcome, run_files
from tidegate.spark.environment.stderr_filter import filtered_stderr

_COLOURS = {PASS: "32", FAIL: "31", UNSUPPORTED: "33"}


def replay(
    files: Sequence[str],
    *,
    as_json: bool,
    runtime: str = "embedded",
    extension: Extension = NO_EXTENSION,
) -> int:
    """Run the files; the exit status is 0 if no scenario failed and one passed."""
    counts: Counter[str] = Counter()
    with nullcontext() if runtime == "embedded" else filtered_stderr():
        outcomes = run_files([Path(name) for name in files], runtime=runtime, extension=extension)
    with progress_bar("scenarios") as advance:
        for outcome in outcomes:
            counts[outcome.status] += 1
            print(json.dumps(asdict(outcome)) if as_json else _line(outcome), flush=True)
            advance(counts.total(), None)
    if not as_json:
        print(_summary(counts))
    return 1 if counts[FAIL] or not counts[PASS] else 0


def _line(outcome: Outcome) -> str:
    word = f"{outcome.status:<11}"
    if sys.stdout.isatty():
        word = f"\x1b[{_COLOURS[outcome.status]}m{word}\x1b[0m"
    return f"{word} {outcome.id}" + (f": {outcome.detail}" if outcome.detail else "")


def _summary(counts: Counter[str]) -> str:
    total = counts.total()
    return (
        f"{total} scenario{'' if total == 1 else 's'}: {counts[PASS]} passed, {counts[FAIL]}"
        f" failed, {counts[UNSUPPORTED]} unsupported"
    )

"""Progress bars for long work: on a terminal with the package `rich`, and silent elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec

Advance = Callable[[int, int | None], None]
"""Sets the number of finished parts, and the number of all parts if it is known."""


def is_shown() -> bool:
    """Whether there is a terminal, and the package to draw on it."""
    return sys.stderr.isatty() and find_spec("rich") is not None


@contextmanager
def progress_bar(text: str) -> Iterator[Advance]:
    """A bar on standard error while the block runs; it is removed at the end."""
    if not is_shown():
        yield lambda done, total: None  # noqa: ARG005 - nothing to show
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,.0f}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(text, total=None)
        yield lambda done, total: shown.update(task, completed=done, total=total)

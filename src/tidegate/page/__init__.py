"""The page of a pipeline: event time against processing time, explanations and histories."""

from __future__ import annotations

import os
from collections.abc import Iterable
from importlib.util import find_spec
from typing import TYPE_CHECKING

from tidegate.errors import MissingExtraError

if TYPE_CHECKING:
    from tidegate.page.feed import Feed, Moment
    from tidegate.page.picture import Picture
    from tidegate.page.server import Page


def serve(feed: Feed, *, port: int = 0) -> Page:
    """Start the live page of a feed on this machine; `port` 0 takes a free one."""
    check_bokeh("the live page")
    from tidegate.page.server import Page

    return Page(feed, port=port).start()


def picture(
    moments: Iterable[Moment],
    ticks: bool,  # noqa: FBT001 - the second half of a pair
    title: str,
    path: str | os.PathLike[str] | None = None,
) -> Picture:
    """The plot of moments; written to `path`, if given. `ticks`: event times are plain numbers."""
    check_bokeh("a plot")
    from tidegate.page.picture import Picture

    found = Picture(moments, title, ticks=ticks)
    if path is not None:
        found.save(path)
    return found


def check_bokeh(feature: str) -> None:
    """Refuse a feature whose package is missing, with the extra to install."""
    if find_spec("bokeh") is None:
        raise MissingExtraError("bokeh", "ui", feature)

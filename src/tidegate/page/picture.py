"""The plot of a pipeline as one document that needs no server and no network."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from bokeh.embed import file_html
from bokeh.resources import Resources

from tidegate.errors import SetupError
from tidegate.html import escaped
from tidegate.page.feed import Moment, Reading
from tidegate.page.plot import TimePlot
from tidegate.page.timeline import Timeline
from tidegate.units import many

_HEIGHT = 620
_UNUSED = ("bokeh-gl", "bokeh-widgets", "bokeh-tables", "bokeh-mathjax")
"""Components that Bokeh removes from the list, which must have them."""


class Picture:
    """A plot of event time against processing time; a notebook shows it, `save` writes it."""

    def __init__(self, moments: Iterable[Moment], title: str, *, ticks: bool = False) -> None:
        """`ticks`: whether event times are plain numbers."""
        self.title = title
        timeline = Timeline()
        timeline.add(Reading(None, [*moments]))
        self._moments = len(timeline.moments)
        plot = TimePlot(ticks=ticks)
        plot.update(timeline)
        plot.figure.title.text = title
        self.figure = plot.figure
        """The figure of Bokeh, for changes."""

    def __repr__(self) -> str:
        shown = many(self._moments, "moment")
        return f"Picture({self.title!r}, {shown}). Hint: .save('panes.html')"

    def html(self) -> str:
        """The document, with all that it needs inside."""
        return file_html(
            self.figure, Resources(mode="inline", components=["bokeh", *_UNUSED]), self.title
        )

    def _repr_html_(self) -> str:
        return (
            f'<iframe sandbox="allow-scripts" style="width:100%;height:{_HEIGHT}px;border:0"'
            f' srcdoc="{escaped(self.html())}"></iframe>'
        )

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the document to a file, and return its path."""
        written = Path(path)
        try:
            written.write_text(self.html(), encoding="utf-8")
        except OSError as error:
            raise SetupError(
                f"the picture cannot be written to {written}: {error.strerror}. Hint: name a file"
                " in a folder that exists"
            ) from error
        return written

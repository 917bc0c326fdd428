"""What an embedded operator shows of its recent input and output: rows, a page, a plot."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from tidegate.embedded.base import EmbeddedBase
from tidegate.embedded.feed import OperatorFeed
from tidegate.embedded.recording import Recording
from tidegate.instants import Instant
from tidegate.operators.history.facts import History
from tidegate.operators.output import Output
from tidegate.operators.results import Results
from tidegate.page import picture, serve

if TYPE_CHECKING:
    from tidegate.page.picture import Picture
    from tidegate.page.server import Page


class VisibleOperator(EmbeddedBase, ABC):
    """An embedded operator whose recording can be looked at; a subclass has its histories."""

    @abstractmethod
    def why(
        self, key: object = None, start: Instant | None = None, end: Instant | None = None
    ) -> History:
        """The history of one key and window."""

    def ui(self, *, port: int = 0) -> Page:
        """Start the live page of the operator on this machine, and return it.

        Print it or its `url` to see the address; `stop` ends it. Its address has a token.
        """
        return serve(OperatorFeed(self), port=port)

    def plot(self, *, path: str | os.PathLike[str] | None = None) -> Picture:
        """The plot of event time against processing time, of the recent input and output.

        A notebook shows it. `path`: an HTML file that it is written to.
        """
        self._drain()
        return picture(OperatorFeed(self).moments(), self.operator.ticks, repr(self), path)

    def recorded(self) -> Results:
        """The recent panes and late rows with the number of their call, which stay to be fetched.

        It covers what the operator keeps in memory; see `history` of `Panes.embedded`.
        """
        self._drain()
        return self._recording.tables(self.operator.renderer().render(Output()))

    @property
    def recording(self) -> Recording:
        """The recent input and output, kept for `why` and `plot`."""
        return self._recording

"""The words users write: streams, windows over them, and what is computed."""

from tidegate.api.streams import Mapped, Panes, Stream, Windowed, merge, stream, union

__all__ = ["Mapped", "Panes", "Stream", "Windowed", "merge", "stream", "union"]

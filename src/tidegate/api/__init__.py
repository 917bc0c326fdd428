"""The fluent API: streams, windows over them, triggers, and aggregates."""

from tidegate.api.async_maps import Mapped
from tidegate.api.streams import Panes, Stream, Windowed, merge, stream, union

__all__ = ["Mapped", "Panes", "Stream", "Windowed", "merge", "stream", "union"]

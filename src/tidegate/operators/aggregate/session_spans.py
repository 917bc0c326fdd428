"""Session spans: the windows that sessions go through while their rows fire several panes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tidegate.kernel.frame import Column, Frame
from tidegate.kernel.windows.session_growth import Growth
from tidegate.operators.aggregate.element_panes import Segments, Spans

Fresh = Callable[[Frame, dict[str, Column]], Frame]
"""Makes cells of windows with some identities and keys."""


def spans_of(
    growth: Growth,
    segments: Segments,
    identity: Frame,
    keys: Frame,
    old: tuple[np.ndarray, Frame],
    seq: np.ndarray,
    fresh: Fresh,
) -> Spans:
    """The spans of sessions that rows grow one by one.

    `identity` and `keys` are those of the sessions, `old` the numbers of those that existed and
    their cells, and `seq` the arrival number of each row of the segments.
    """
    n, cell, (known, cells) = len(identity), segments.cell, old
    stop = np.cumsum(segments.schedule.size)
    begin, last = stop - segments.schedule.size, stop - 1
    changed = np.concatenate([[0], np.cumsum(growth.changes)])
    first = np.flatnonzero(segments.is_first)
    is_new = np.ones(n, bool)
    is_new[known] = False
    # A new session begins with the bounds that it has at the end of its first segment.
    further = (changed[stop] > changed[begin]) & ~(segments.is_first & is_new[cell])
    begun = np.cumsum(further)
    own = begun > (begun - further)[first][cell]
    of_segment = np.where(own, n + begun - 1, cell)
    where = np.concatenate([last[first], last[further]])
    number = np.concatenate([np.arange(n), cell[further]])
    windows = identity.take(number).with_columns(start=growth.start[where], end=growth.end[where])
    whole = fresh(windows, dict(keys.take(number).columns))
    if len(known):
        whole = whole.replaced(known, cells)
    places = np.flatnonzero(further)
    left = np.where(segments.is_first[places], cell[places], of_segment[places - 1])
    changes = np.flatnonzero(growth.changes)
    at = changes[np.searchsorted(changes, begin[places])] if len(places) else places
    return Spans(whole, of_segment, of_segment[segments.is_last], left, seq[at])

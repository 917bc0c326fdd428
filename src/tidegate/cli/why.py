"""`tidegate why`: the history of one key and window, from a checkpoint or the folder of panes."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Sequence

from tidegate.operators.history.question import parse_key, parse_range
from tidegate.spark.environment.stderr_filter import filtered_stderr
from tidegate.spark.query.history import QueryHistory


def why(
    location: str,
    *,
    key: Sequence[str] | None = None,
    window: str | None = None,
    operator: int = -1,
    as_json: bool,
) -> int:
    """Print the history of a key and a range of windows."""
    with warnings.catch_warnings(), filtered_stderr():
        warnings.simplefilter("always", RuntimeWarning)
        warnings.showwarning = lambda message, *_: print(f"note: {message}", file=sys.stderr)
        history = QueryHistory(location)
        chosen = parse_key(key or [], history.key_schema(operator))
        found = history.why(chosen, *parse_range(window), operator=operator)
    print(json.dumps(found.to_dict()) if as_json else found)
    return 0

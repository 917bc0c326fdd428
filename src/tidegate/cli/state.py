"""`tidegate state`: shows the state of a query from its checkpoint, while it runs or afterwards."""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Sequence

from tidegate.cli.state_rows import json_rows, row_lines, selected
from tidegate.operators.status_text import status_lines
from tidegate.spark.environment.stderr_filter import filtered_stderr
from tidegate.spark.query.state.query_state import read_state
from tidegate.units import rounded, when


def state(
    checkpoint: str,
    *,
    key: Sequence[str] | None = None,
    window: str | None = None,
    messages: bool = False,
    operator: int = -1,
    as_json: bool,
) -> int:
    """Print the state of a query, or the windows and rows of a key and a range."""
    with warnings.catch_warnings(), filtered_stderr():
        # Without the files, Spark is started: the reason is shown before that takes its time.
        warnings.simplefilter("always", RuntimeWarning)
        warnings.showwarning = lambda message, *_: print(f"note: {message}", file=sys.stderr)
        found = read_state(checkpoint)
        after = f"after batch {found.batch}"
        if key is None and window is None and not messages:
            status = found.status()
            ago = time.time_ns() // 1000 - status.now
            after += f" at {when(status.now)}{f', {rounded(ago)} ago' if ago > 0 else ''}"
            shown = status.to_dict() if as_json else status_lines(status)
        else:
            tables = selected(found, operator, key, window, messages=messages)
            shown = json_rows(found, tables) if as_json else row_lines(tables)
    if isinstance(shown, dict):
        print(json.dumps(shown))
    else:
        name = found.name or found.query or "(started without `write`)"
        print(f"query {name} at {checkpoint}, {after}", *shown, sep="\n")
    return 0

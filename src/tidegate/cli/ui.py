"""`tidegate ui`: the live page of a query, from its checkpoint, while it runs or afterwards."""

from __future__ import annotations

import json
import warnings
from typing import TYPE_CHECKING

from tidegate.cli.shutdown import shutdown_requests
from tidegate.page import serve
from tidegate.spark.environment.stderr_filter import filtered_stderr

if TYPE_CHECKING:
    from tidegate.page.server import Page


def ui(checkpoint: str, *, port: int = 0, as_json: bool = False) -> int:
    """Serve the page of a query until Ctrl-C."""
    from tidegate.spark.query.feed import QueryFeed
    from tidegate.spark.query.state.query_state import read_state

    with warnings.catch_warnings(), filtered_stderr():
        warnings.simplefilter("ignore", RuntimeWarning)
        # A folder that is not a checkpoint is an error here, not on the page.
        read_state(checkpoint)
    with shutdown_requests() as shutdown, serve(QueryFeed(checkpoint), port=port) as page:
        announce(page, as_json=as_json)
        while not shutdown.stop:
            shutdown.wait(3600)
    return 0


def announce(page: Page, *, as_json: bool) -> None:
    """Print the address of a page, which carries its token."""
    if as_json:
        print(json.dumps({"event": "ui", "url": page.url}), flush=True)
    else:
        print(f"live page: {page.url}", flush=True)

"""Watches a running query from a thread, and logs what its operators must know."""

from __future__ import annotations

import threading
from typing import Protocol

from tidegate.operators.status import QueryStatus
from tidegate.operators.status_log import LOGGER, StatusLog

INTERVAL_SECONDS = 10.0
FAILURES = 6
"""After how many failed looks in a row the query counts as gone."""


class Watched(Protocol):
    """A query that can be asked whether it runs."""

    @property
    def is_active(self) -> bool: ...

    def status(self) -> QueryStatus: ...


class Watch:
    """A thread that looks at a query now and then, until the query ends or it is stopped."""

    def __init__(self, query: Watched, interval: float = INTERVAL_SECONDS) -> None:
        self._query, self._interval, self._log = query, interval, StatusLog()
        self._stopped = threading.Event()
        threading.Thread(target=self._run, name="tidegate-watch", daemon=True).start()

    def stop(self) -> None:
        """End the thread soon; it does not look at the query again."""
        self._stopped.set()

    def _run(self) -> None:
        failures = 0
        while not self._stopped.wait(self._interval):
            try:
                if not has_session():
                    return
                is_active = self._query.is_active
                self._log.log(self._query.status())
                failures = 0
            except Exception:  # noqa: BLE001 - Spark ends in many ways; watching must not fail
                LOGGER.debug("the status of a query cannot be read", exc_info=True)
                failures += 1
                is_active = failures < FAILURES
            if not is_active:
                return


def has_session() -> bool:
    """Whether Spark still runs, as far as this process knows."""
    from pyspark.sql import SparkSession
    from pyspark.sql.utils import is_remote

    # Not `getActiveSession`, which asks the JVM and knows the sessions of one thread.
    return is_remote() or SparkSession._instantiatedSession is not None  # noqa: SLF001

"""Complete event-time windows for Python and Apache Spark.

Triggers, panes, retractions, joins, and no event dropped without a trace.
"""

import logging as _logging
import typing as _typing

import tidegate.state as _package  # noqa: F401 - a package sets its name when it is imported first
from tidegate.api.state import state as state
from tidegate.api.state import why as why
from tidegate.sql.entry import sql as sql

if _typing.TYPE_CHECKING:
    from tidegate import streams as streams
    from tidegate.surface import *  # noqa: F403 - the names are listed there

__version__ = "0.1.0"


def __getattr__(name: str) -> _typing.Any:
    """Import the names of `surface` on first use.

    Each Python process of a query imports parts of this package, and few of them need the rest.
    `state` and `sql` are bound above, because parts of the package have these names, too.
    """
    import importlib

    if name == "streams":
        return importlib.import_module("tidegate.streams")
    if name.startswith("_") and name != "__all__":
        raise AttributeError(f"module `tidegate` has no attribute `{name}`")
    surface = importlib.import_module("tidegate.surface")
    if name == "__all__":
        return sorted([*surface.__all__, "sql", "state", "streams", "why"])
    found = globals()[name] = getattr(surface, name)
    return found


def __dir__() -> list[str]:
    """All names, also those that are imported on first use."""
    return sorted({*globals(), *__getattr__("__all__")})


# A program that configures logging sees what the library logs; others are not written to.
_logging.getLogger(__name__).addHandler(_logging.NullHandler())

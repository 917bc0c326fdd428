"""Cost as a number of function calls, which does not depend on the speed of the machine."""

from __future__ import annotations

import cProfile
import pstats
from collections.abc import Callable
from typing import Any


def calls_of(function: Callable[..., Any], *args: Any) -> int:
    """The number of Python and C function calls that a call makes."""
    profile = cProfile.Profile()
    profile.runcall(function, *args)
    return pstats.Stats(profile).total_calls  # type: ignore[attr-defined]

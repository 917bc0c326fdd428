"""The table of fuzz targets; add a target here, and it runs in `make test`, `fuzz` and `nightly`."""

from __future__ import annotations

from fuzz import input_targets, state_targets, text_targets
from fuzz.target import Target

TARGETS: dict[str, Target] = {
    target.name: target
    for target in (*text_targets.TARGETS, *input_targets.TARGETS, *state_targets.TARGETS)
}

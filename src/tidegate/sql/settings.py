"""Settings of a script: what `SET 'name' = 'value'` changes."""

from __future__ import annotations

import dataclasses
import difflib
from dataclasses import dataclass
from typing import Any

from tidegate.instants import duration
from tidegate.sql.statements import SetOption

_NAMES = {
    "execution.runtime-mode": "mode",
    "execution.checkpointing.dir": "checkpoint",
    "execution.checkpointing.interval": "trigger",
    "state.checkpoints.dir": "checkpoint",
    "parallelism.default": "shards",
    "pipeline.name": "name",
    "table.local-time-zone": "zone",
    "tidegate.checkpoint": "checkpoint",
    "tidegate.trigger": "trigger",
    "tidegate.shards": "shards",
}
"""The settings of Flink and of Tidegate, and the fields that they set."""
_MODES = ("streaming", "batch", "automatic")


@dataclass(frozen=True)
class Settings:
    """How the queries of a script run."""

    mode: str = "automatic"
    """`streaming`, or `batch`: tables are read once, as they are now. Default: `batch` if all
    tables end, as files do.
    """
    checkpoint: str | None = None
    """The folder of the checkpoints; every query has a folder of its own in it."""
    trigger: str | None = None
    """The interval between micro-batches. Default: 1 second, or `available_now` for files."""
    shards: int | None = None
    name: str | None = None

    def changed(self, statement: SetOption) -> Settings:
        """The settings after a statement; refuses names and values that are wrong."""
        name, value = _NAMES.get(statement.name), statement.value
        if name is None:
            near = difflib.get_close_matches(statement.name, _NAMES, 1)
            raise statement.place.error(
                f"`{statement.name}` is not a setting",
                f"did you mean '{near[0]}'?" if near else f"one of {', '.join(sorted(_NAMES))}",
            )
        if name == "mode" and value.lower() not in _MODES:
            raise statement.place.error(
                f"the runtime mode is one of {', '.join(_MODES)}, got {value!r}"
            )
        if name == "zone":
            if value.upper() not in ("UTC", "Z", "ETC/UTC"):
                raise statement.place.error(
                    f"times are in UTC, the zone cannot be {value!r}",
                    "calendar windows and the functions of Spark have a zone of their own",
                )
            return self
        if name == "shards":
            if not value.isdecimal() or not int(value):
                raise statement.place.error(f"shards are a whole number above 0, got {value!r}")
            return dataclasses.replace(self, shards=int(value))
        if name == "trigger" and value != "available_now":
            try:
                duration(value)
            except ValueError as error:
                raise statement.place.error(f"`{statement.name}`: {error}") from None
        changes: dict[str, Any] = {name: value.lower() if name == "mode" else value}
        return dataclasses.replace(self, **changes)

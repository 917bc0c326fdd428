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
    "table.exec.source.idle-timeout": "idle",
    "tidegate.shards": "shards",
}
"""The settings of Flink and of Tidegate, and the fields that they set."""
_REFUSED = {"table.exec.emit.": "EMIT EARLY EVERY INTERVAL '10' SECOND ALLOW LATENESS ..."}
"""Settings of Flink that have another form here, with a hint."""
_TUNING = (
    *("table.exec.", "table.optimizer.", "table.dml-sync", "table.plan.", "sql-client."),
    *("execution.checkpointing.", "execution.buffer-timeout", "execution.savepoint."),
    *("pipeline.", "parallelism.", "taskmanager.", "jobmanager.", "cluster.", "rest.", "web."),
    *("state.", "restart-strategy", "metrics.", "heartbeat.", "high-availability"),
)
"""Settings that tune the runtime of Flink, which have no effect here."""
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
    idle: str | None = None
    """After which time without rows a partition is idle, where the table does not say."""

    def shown(self) -> list[str]:
        """The settings that differ from their defaults."""
        return [
            f"{name} = {getattr(self, field)}"
            for name, field in _NAMES.items()
            if getattr(self, field, None) not in (None, getattr(Settings, field, None))
        ]

    def changed(self, statement: SetOption) -> Settings:
        """The settings after a statement; refuses names and values that are wrong."""
        if statement.name is None:
            return Settings()
        name, value = _NAMES.get(statement.name), statement.value
        if name is None:
            _check_unknown(statement, statement.name)
            return self
        if value is None:
            usual: dict[str, Any] = {one.name: one.default for one in dataclasses.fields(self)}
            return dataclasses.replace(self, **{name: usual[name]}) if name in usual else self
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
        if name == "idle" or (name == "trigger" and value != "available_now"):
            try:
                duration(value)
            except ValueError as error:
                raise statement.place.error(f"`{statement.name}`: {error}") from None
        changes: dict[str, Any] = {name: value.lower() if name == "mode" else value}
        return dataclasses.replace(self, **changes)


def _check_unknown(statement: SetOption, name: str) -> None:
    """Refuse a name that is neither a setting nor one of Flink without an effect."""
    for refused, hint in _REFUSED.items():
        if name.startswith(refused):
            raise statement.place.error(f"`{name}` of Flink does not apply here", hint)
    near = difflib.get_close_matches(name, _NAMES, 1, 0.9)
    if not near and name.startswith(_TUNING):
        return
    near = near or difflib.get_close_matches(name, _NAMES, 1)
    raise statement.place.error(
        f"`{name}` is not a setting",
        f"did you mean '{near[0]}'?" if near else f"one of {', '.join(sorted(_NAMES))}",
    )

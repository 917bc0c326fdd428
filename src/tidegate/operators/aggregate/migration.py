"""Migration: the changes of a specification that stored state can follow.

Aggregates may be added. They are null for windows (of a key) that held rows before. The allowed
lateness may be extended. Windows that had expired before stay expired. The bounds of retention may
change. Windows that had been evicted before stay evicted. Every other change is refused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tidegate.errors import SpecError, SpecMismatchError
from tidegate.instants import MIN, format_duration
from tidegate.operators.aggregate.aggregate_set import AggregateSet
from tidegate.operators.aggregate.context import OperatorContext, expired_end
from tidegate.operators.aggregate.requirements import needs_messages
from tidegate.spec.operator import AggregateSpec, Retention
from tidegate.spec.watermarks import PerKey
from tidegate.spec.windows import Axis, Inherited
from tidegate.units import byte_size

_HINT = "Hint: use a new store, or the old specification"


@dataclass(frozen=True)
class Migrated:
    """The migrations of stored state: added aggregates, and the latest end of expired windows."""

    recent: tuple[str, ...] = ()
    expired_at_migration: int = MIN

    @classmethod
    def of(cls, context: OperatorContext) -> Migrated | None:
        return (
            cls(context.aggregates.recent, context.expired_at_migration)
            if context.is_migrated
            else None
        )

    def to_json(self) -> dict[str, Any]:
        return {"recent": list(self.recent), "expired_at_migration": self.expired_at_migration}

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Migrated:
        return cls(tuple(document["recent"]), document["expired_at_migration"])


@dataclass(frozen=True)
class Changes:
    """How a specification differs from the stored one, where state can follow."""

    added: tuple[str, ...] = ()
    former_lateness: int | None = None
    """The lateness before it was extended; None if it was not."""
    former_retention: Retention | None = None
    """The retention before its bounds changed; None if they did not."""

    def __bool__(self) -> bool:
        return bool(self.added) or self.former_lateness is not None


def changes(stored: dict[str, Any], wanted: dict[str, Any]) -> Changes:
    """The changes from the stored specification; raises where state cannot follow."""
    if "aggregates" not in stored or "aggregates" not in wanted:
        # A join has matched rows by the former specification, and purged rows cannot match again.
        check_same(stored, wanted)
        return Changes()
    added = tuple(name for name in wanted["aggregates"] if name not in stored["aggregates"])
    longer = stored["allowed_lateness"] < wanted["allowed_lateness"]
    followed = {
        **stored,
        "aggregates": {
            **stored["aggregates"],
            **{name: wanted["aggregates"][name] for name in added},
        },
    }
    if longer:
        followed["allowed_lateness"] = wanted["allowed_lateness"]
    former, current = (Retention(**given["retention"]) for given in (stored, wanted))
    # With retention state is held in another form than without.
    rebounded = former != current and bool(former) and bool(current)
    if rebounded:
        followed["retention"] = wanted["retention"]
    obstacles = _differences("", followed, wanted)
    if obstacles:
        raise SpecMismatchError(
            _refusal(_differences("", stored, wanted), obstacles, stored, wanted)
        )
    return Changes(
        added, stored["allowed_lateness"] if longer else None, former if rebounded else None
    )


def check_same(stored: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Raise if the stored specification differs, and list the differences."""
    found = _differences("", stored, wanted)
    if found:
        raise SpecMismatchError(
            f"the stored state belongs to another specification: {_listed(found)}. {_HINT}"
        )


def _refusal(
    found: Sequence[_Difference],
    obstacles: Sequence[_Difference],
    stored: dict[str, Any],
    wanted: dict[str, Any],
) -> str:
    rules = []
    if len(obstacles) < len(found):
        rules.append(
            f"Of these, state cannot follow {', '.join(f'`{one.path}`' for one in obstacles)}"
        )
    if stored["allowed_lateness"] > wanted["allowed_lateness"]:
        rules.append("Lateness can be made longer, but not shorter")
    if any(one.path.startswith("retention.") for one in obstacles):
        rules.append("Bounds of retention can change, but retention cannot begin or end")
    if any(one.path.startswith("aggregates.") for one in obstacles):
        rules.append("Aggregates can be added, but not changed or left out")
    return ". ".join(
        [f"the stored state belongs to another specification: {_listed(found)}", *rules, _HINT]
    )


@dataclass(frozen=True)
class _Difference:
    path: str
    stored: Any
    wanted: Any
    in_numbers: bool = False
    """Whether sizes are numbers of messages, and no durations."""

    def __str__(self) -> str:
        stored, wanted = (self._shown(value) for value in (self.stored, self.wanted))
        return f"`{self.path}` was {stored} and is now {wanted}"

    def _shown(self, value: Any) -> str:
        word = self.path.rpartition(".")[2]
        if isinstance(value, int) and not isinstance(value, bool):
            if word == "bytes":
                return byte_size(value)
            return format_duration(value) if word in _SPANS and not self.in_numbers else repr(value)
        if word == "evictor" and isinstance(value, str) and not self.in_numbers:
            return repr(_SPAN.sub(lambda found: format_duration(int(found[0])), value))
        return repr(value)


_SPANS = frozenset(
    {
        *("size", "slide", "gap", "step", "allowed_lateness", "idle_after", "disorder", "lag"),
        *(
            "offset",
            "forget_after",
            "floor",
            "future_tolerance",
            "time",
            "align",
            "before",
            "after",
            "tolerance",
        ),
        *("on_time_period", "late_period"),
    }
)
"""The last words of the paths of durations, in microseconds."""
_SPAN = re.compile(r"(?<=span=)\d+")


def _listed(found: Sequence[_Difference]) -> str:
    return "; ".join(map(str, found))


def _differences(
    path: str, stored: Any, wanted: Any, *, in_numbers: bool = False
) -> list[_Difference]:
    if isinstance(stored, dict) and isinstance(wanted, dict):
        counted = in_numbers or wanted.get("axis") in ("offset", "ordinal")
        return [
            difference
            for name in sorted({*stored, *wanted})
            for difference in _differences(
                f"{path}.{name}" if path else name,
                stored.get(name),
                wanted.get(name),
                in_numbers=counted,
            )
        ]
    return [] if stored == wanted else [_Difference(path, stored, wanted, in_numbers)]


def with_columns(changed: Changes, spec: AggregateSpec, schema: pa.Schema) -> pa.Schema:
    """The stored schema with the columns that only new aggregates read, as null columns."""
    aggregates = dict(spec.aggregates)
    named: list[str] = []
    for name in changed.added:
        where = aggregates[name].where
        named += [*(aggregates[name].reads() or ()), *([where] if isinstance(where, str) else [])]
    return pa.schema(
        [
            *schema,
            *(
                pa.field(name, pa.null())
                for name in dict.fromkeys(named)
                if name not in schema.names
            ),
        ]
    )


def followed(
    changed: Changes,
    former: Migrated | None,
    spec: AggregateSpec,
    schema: pa.Schema,
    *,
    watermark: int,
    retracts: bool,
    keeps_messages: bool,
    has_messages: bool,
) -> Migrated | None:
    """The migrations of state including these changes; None without any.

    Raises where state cannot follow.
    """
    if not changed:
        return former
    former = Migrated() if former is None else former
    expired_at_migration = former.expired_at_migration
    if changed.added:
        _check_added(
            changed.added,
            spec,
            schema,
            retracts=retracts,
            keeps_messages=keeps_messages,
            has_messages=has_messages,
        )
    if changed.former_lateness is not None and (
        spec.window.axis is Axis.EVENT_TIME or isinstance(spec.window, Inherited)
    ):
        if isinstance(spec.input.watermark, PerKey):
            raise SpecMismatchError(
                f"`allowed_lateness` was {format_duration(changed.former_lateness)} and is now"
                f" {format_duration(spec.lateness)}, but with per-key watermarks windows have"
                f" expired for some keys and not for others, so state cannot follow. {_HINT}"
            )
        expired_at_migration = max(
            expired_at_migration, expired_end(watermark, changed.former_lateness)
        )
    return Migrated((*former.recent, *changed.added), expired_at_migration)


def _check_added(
    added: Sequence[str],
    spec: AggregateSpec,
    schema: pa.Schema,
    *,
    retracts: bool,
    keeps_messages: bool,
    has_messages: bool,
) -> None:
    """Raise if new aggregates do not fit the stored columns and messages."""
    names = ", ".join(f"`aggregates.{name}`" for name in added)
    wider = with_columns(Changes(tuple(added)), spec, schema)
    try:
        aggregates = AggregateSet.bound(spec, wider, retractions=retracts)
    except SpecError as unfit:
        raise SpecMismatchError(
            f"{names} cannot be added to the stored state: {unfit}. {_HINT}"
        ) from unfit
    if needs_messages(spec, aggregates, retracts=retracts) and not keeps_messages:
        raise SpecMismatchError(
            f"{names} cannot be added to the stored state: the messages themselves are needed for"
            " it, and they were not kept. Hint: use a new store, or an aggregate that needs no"
            " messages"
        )
    new = [name for name in wider.names if name not in schema.names]
    if has_messages and new:
        lacking = ", ".join(f"`{name}`" for name in new)
        raise SpecMismatchError(
            f"{names} cannot be added to the stored state: the messages that are kept have no"
            f" column {lacking}. {_HINT}"
        )

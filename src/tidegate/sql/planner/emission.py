"""What `EMIT` means for a windowed aggregate and for a join."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import Any

from tidegate.api.joins import Joined
from tidegate.api.streams import Windowed
from tidegate.errors import SpecError
from tidegate.spec.composition import fires_again
from tidegate.spec.operator import Options, Retention
from tidegate.spec.triggers import AfterWatermark, Never, Trigger
from tidegate.spec.windows import Axis, Session, Window
from tidegate.sql.statements import EmitClause

_PADDINGS = "padding"
_JOIN_OPTIONS = (_PADDINGS, "update_every", "late_update_every", "layout", "names", "times")
_OPTIONS = frozenset(field.name for field in dataclasses.fields(Options))


def within_chain(clause: EmitClause | None) -> EmitClause | None:
    """What operators take from the clause of the operator that they feed."""
    if clause is None:
        return None
    return EmitClause(
        trigger=clause.trigger,
        lateness=clause.lateness,
        is_final=clause.is_final or clause.trigger == AfterWatermark(),
        is_default=clause.is_default,
    )


def merged(own: EmitClause | None, outer: EmitClause | None) -> EmitClause | None:
    """The clause of a query: its own, or that of the query around it."""
    return outer if own is None else own


def emitting(windowed: Windowed, clause: EmitClause | None) -> Windowed:
    """The windowed stream with the trigger, mode, lateness and options of a clause.

    Default: one pane when the watermark reaches the end, and no lateness.
    """
    found = EmitClause() if clause is None else clause
    trigger = trigger_of(found)
    if _is_over_after_its_end(windowed.windows) and (clause is None or found.is_final):
        # The row at the end of a session may come when the watermark is there.
        trigger = Never()
    mode = found.mode
    if mode is None:
        mode = "retracting" if trigger is None or fires_again(trigger) else "accumulating"
    unknown = [name for name, _ in found.options if name not in _OPTIONS]
    if unknown:
        raise SpecError(
            f"there is no option `{unknown[0]}` of a window. Hint: options are"
            f" {', '.join(sorted(_OPTIONS))}"
        )
    return replace(
        windowed,
        firing=trigger,
        mode=mode,
        lateness=_lateness(found),
        chosen=Options(**dict(found.options)),
        explicit_options=frozenset(name for name, _ in found.options),
        retention=found.retention,
        evictor=found.evictor,
    )


def _is_over_after_its_end(window: Window) -> bool:
    """Whether rows at the end of a window still extend it."""
    return isinstance(window, Session) and window.axis is Axis.EVENT_TIME and window.reaches_end


def joining(joined: Joined, clause: EmitClause | None) -> Joined:
    """The join with the lateness, retention and options of a clause."""
    found = EmitClause() if clause is None else clause
    options: dict[str, Any] = dict(found.options)
    special = {name: options.pop(name) for name in _JOIN_OPTIONS if name in options}
    unknown = [name for name in options if name not in _OPTIONS]
    if unknown or found.evictor is not None:
        raise SpecError(
            f"a join has no {f'option `{unknown[0]}`' if unknown else 'evictor'}. Hint: options of"
            f" a join are {', '.join(_JOIN_OPTIONS)}"
        )
    emits_early = found.trigger is not None and fires_again(found.trigger)
    layout = special.get("layout")
    spec = replace(
        joined.spec,
        allowed_lateness=_lateness(found),
        retention=found.retention,
        options=Options(**options),
        padding=special.get(_PADDINGS, "early" if emits_early else "complete"),
        on_time_period=special.get("update_every"),
        late_period=special.get("late_update_every"),
        layout=(layout,) if isinstance(layout, str) else layout,
        names=special.get("names", joined.spec.names),
    )
    return replace(joined, spec=spec, explicit_options=frozenset(options))


def trigger_of(clause: EmitClause) -> Trigger | None:
    """The trigger of a clause; None for the default of the API."""
    if clause.is_final:
        # Without lateness, the window closes with the watermark, and the pane is on time.
        return Never() if _lateness(clause) else AfterWatermark()
    if clause.is_default:
        return None
    return AfterWatermark() if clause.trigger is None else clause.trigger


def _lateness(clause: EmitClause) -> int | None:
    if clause.lateness is not None:
        return None if clause.lateness < 0 else clause.lateness
    late = getattr(clause.trigger, "late", None)
    # Late panes need late rows: windows take them as long as the API does by default.
    takes_late = clause.is_default or late is not None or clause.retention != Retention()
    return None if takes_late else 0

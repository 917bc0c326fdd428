"""Presets: options and defaults that reproduce the behaviour of other systems.

A preset has two parts. Its *options* are keyword arguments of `.options()`. Its *defaults* for
windows, lateness and triggers are not options of the operator; the API applies them unless the user
sets these explicitly.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from tidegate.errors import SpecError
from tidegate.instants import MAX, duration
from tidegate.spec.operator import Options
from tidegate.spec.triggers import AfterCount, AfterWatermark, Default, Trigger

OURS = "tidegate"
_DURATIONS = ("future_tolerance",)
"""Options that take a duration."""


@dataclass(frozen=True)
class Preset:
    """Options and defaults of one system; None keeps the default of Tidegate."""

    options: MappingProxyType[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    touch: str = "separate"
    mode: str = "accumulating"
    trigger: Trigger | None = None
    allowed_lateness: int | None = 0


def _options(**options: Any) -> MappingProxyType[str, Any]:
    return MappingProxyType(options)


_PRESETS: MappingProxyType[str, Preset] = MappingProxyType(
    {
        OURS: Preset(allowed_lateness=None),
        "beam": Preset(
            _options(
                drop_by="window",
                session_lateness="own",
                granularity="batch",
                on_time="always",
                closing="if_nonempty",
            ),
            mode="discarding",
            trigger=Default(),
        ),
        "flink": Preset(
            _options(
                drop_by="window",
                session_lateness="merged",
                granularity="element",
                on_time="if_nonempty",
                closing="never",
            ),
            touch="merge",
            trigger=AfterWatermark(late=AfterCount(1)),
        ),
        "hazelcast": Preset(
            _options(
                drop_by="event",
                session_lateness="own",
                granularity="element",
                on_time="if_nonempty",
                closing="if_nonempty",
            ),
            mode="discarding",
            trigger=AfterWatermark(),
        ),
        # Malhar's rule for touching sessions depends on the order of arrival and is not supported;
        # `separate` is closest to it.
        "apex": Preset(
            _options(
                drop_by="event",
                session_lateness="own",
                granularity="batch",
                on_time="if_nonempty",
                closing="if_nonempty",
            ),
            trigger=AfterWatermark(),
            allowed_lateness=MAX,
        ),
        "samza": Preset(
            _options(
                drop_by="event",
                session_lateness="own",
                granularity="element",
                on_time="if_nonempty",
                closing="if_nonempty",
            ),
            mode="discarding",
            trigger=AfterWatermark(),
        ),
        "spark": Preset(
            _options(
                drop_by="window",
                session_lateness="own",
                granularity="batch",
                on_time="if_nonempty",
                closing="if_nonempty",
            ),
            touch="merge",
            trigger=AfterWatermark(),
        ),
    }
)

NAMES = tuple(_PRESETS)


def system_preset(name: str) -> Preset:
    """The preset of a system."""
    if name not in _PRESETS:
        raise SpecError(f"`semantics` must be one of {', '.join(NAMES)}; got `{name}`.")
    return _PRESETS[name]


def preset_options(name: str) -> dict[str, Any]:
    """The option values of a system, as `.options()` takes them.

    >>> preset_options("flink")["drop_by"]
    'window'
    """
    return dict(system_preset(name).options)


def change_options(
    options: Options, explicit: frozenset[str], semantics: str | None, changes: Mapping[str, Any]
) -> tuple[Options, frozenset[str], Preset | None]:
    """The changed options, the names of all options set explicitly, and the preset, if any."""
    known = {field.name for field in dataclasses.fields(Options)}
    unknown = sorted(set(changes) - known)
    if unknown:
        raise SpecError(
            f"there is no option {', '.join(f'`{u}`' for u in unknown)}; the options are"
            f" {', '.join(sorted(known))}"
        )
    wanted: dict[str, Any] = {
        name: duration(value) if name in _DURATIONS else value for name, value in changes.items()
    }
    explicit |= set(wanted)
    found = None if semantics is None else system_preset(semantics)
    rest = (
        {}
        if found is None
        else {name: value for name, value in found.options.items() if name not in explicit}
    )
    return dataclasses.replace(options, **wanted, **rest), explicit, found

"""The extension of the scenario runner: the kinds and words of other systems."""

from __future__ import annotations

from conformance.assignment import (
    run_assign,
    run_groups,
    run_merge,
    run_merge_sequence,
    run_sessions,
)
from conformance.async_calls import run_async
from conformance.checks import run_classify, run_state_store, run_validation
from conformance.coalesce import run_coalesce
from conformance.generate import run_generate, run_idleness
from conformance.grouping import group, group_sessions
from conformance.join_watermarks import run_join_watermark
from conformance.lazy_joins import run_join_of_any_system
from conformance.manual import run_panes_of_any_system
from conformance.microbatch import run_microbatch
from conformance.stream_cuts import (
    run_compare,
    run_stream_cut,
    run_time_window,
    run_writer_activity,
    run_writer_marks,
)
from conformance.trigger_machines import run_trigger
from conformance.words import TRIGGERS, prepared, read_trigger_text
from conformance.worked_examples import run_worked_example
from tidegate.scenarios import KINDS as OUR_KINDS
from tidegate.scenarios.extension import Extension, Kind

_FURTHER_KINDS: dict[str, Kind] = {
    "panes": Kind(run_panes_of_any_system, run_panes_of_any_system),
    "trigger": Kind(run_trigger),
    "assign": Kind(run_assign),
    "groups": Kind(run_groups, group),
    "sessions": Kind(run_sessions, group_sessions),
    "merge": Kind(run_merge),
    "merge_sequence": Kind(run_merge_sequence),
    "classify": Kind(run_classify),
    "validation": Kind(run_validation),
    "state_store": Kind(run_state_store),
    "worked_example": Kind(run_worked_example, run_worked_example),
    "coalesce": Kind(run_coalesce),
    "generate": Kind(run_generate),
    "idleness": Kind(run_idleness),
    "async": Kind(run_async),
    "microbatch": Kind(run_microbatch, run_microbatch),
    "join": Kind(run_join_of_any_system, run_join_of_any_system),
    "join_watermark": Kind(run_join_watermark, run_join_watermark),
    "stream_cut": Kind(run_stream_cut),
    "writer_activity": Kind(run_writer_activity),
    "writer_marks": Kind(run_writer_marks),
    "compare": Kind(run_compare),
    "time_window": Kind(run_time_window),
}
KINDS: dict[str, Kind] = {**OUR_KINDS, **_FURTHER_KINDS}
"""All kinds: those of `tidegate replay`, and those of other systems."""
EXTENSION = Extension(
    kinds=_FURTHER_KINDS, triggers=TRIGGERS, trigger_text=read_trigger_text, prepare=prepared
)

"""Plans as text: the pipelines of a query, from its output to its tables."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from tidegate.api.running import Pipeline
from tidegate.api.streams import Stream
from tidegate.instants import MAX, format_duration
from tidegate.kernel.windows.assigners import Aligned, build
from tidegate.operators.aggregate.requirements import takes_partials
from tidegate.operators.explain.join import described
from tidegate.redaction import redacted_options
from tidegate.spec.join import JoinSpec
from tidegate.spec.operator import AggregateSpec, Input
from tidegate.spec.projection import Projection
from tidegate.spec.windows import Axis, ByDifference
from tidegate.sql.definitions import TableDefinition
from tidegate.sql.plan import Branch, QueryPlan, Select, TableScan

_SPANS = frozenset(
    {"size", "slide", "step", "gap", "offset", "disorder", "lag", "floor", "idle_after"}
    | {"forget_after", "align"}
)
_FIRST = frozenset({"size", "gap", "column", "disorder", "lag", "columns"})
"""Fields that are written without their names."""


def explained(plan: QueryPlan, tables: Mapping[str, TableDefinition]) -> str:
    """The plan of a query as text, the last step first."""
    lines: list[str] = []
    if len(plan.branches) > 1:
        lines.append("Union of all rows")
    for branch in plan.branches:
        lines += _indented(_branch(branch, tables), len(plan.branches) > 1)
    return "\n".join(lines)


def _branch(branch: Branch, tables: Mapping[str, TableDefinition]) -> Iterator[str]:
    below = _root(branch.root, tables)
    title = "Late rows" if branch.late else "Project"
    if not branch.select and not branch.late:
        yield from below
        return
    yield f"{title}: {', '.join(_named(branch.select))}" if branch.select else title
    if branch.select.where is not None:
        yield f"  Filter: {branch.select.where.sql(dialect='spark')}"
    yield from _indented(below)


def _named(select: Select) -> Iterator[str]:
    for name, tree in select.columns:
        text = tree.sql(dialect="spark").replace("`", "")
        yield name if text == name else f"{text} AS {name}"


def _root(root: Any, tables: Mapping[str, TableDefinition]) -> Iterator[str]:
    if isinstance(root, Stream):
        for given, source in zip(root.inputs, root.sources, strict=True):
            yield from _input(given, source, tables)
        return
    spec = root.spec
    yield from _aggregate(spec) if isinstance(spec, AggregateSpec) else _join(spec)
    for given, source in zip(spec.inputs, root.sources, strict=True):
        yield from _indented(_input(given, source, tables))


def _aggregate(spec: AggregateSpec) -> Iterator[str]:
    yield f"Aggregate by {', '.join(spec.key) or 'nothing'}"
    yield f"  Window: {worded(spec.window)}"
    yield f"  Trigger: {spec.firing}, {spec.mode}"
    yield f"  Allowed lateness: {_span(spec.lateness)}"
    for name, aggregate in spec.aggregates:
        yield f"  {name}: {worded(aggregate)}"
    yield f"  State: {_state(spec)}"


def _state(spec: AggregateSpec) -> str:
    if spec.evictor is not None or isinstance(spec.window, ByDifference):
        return "messages, once each, and a cell per key and window"
    if takes_partials(spec, keeps_messages=False) and isinstance(build(spec.window), Aligned):
        return "partial aggregates per key between two window edges (slices)"
    return "a cell per key and window: partial aggregates, counts and the trigger"


def _join(spec: JoinSpec) -> Iterator[str]:
    yield "Join"
    yield from _indented(iter(described(spec).splitlines()))


def _input(given: Input, source: Any, tables: Mapping[str, TableDefinition]) -> Iterator[str]:
    for projection in reversed(given.projections):
        yield f"Project: {', '.join(_projected(projection))}"
        if projection.where is not None:
            yield f"  Filter: {projection.where}"
    if isinstance(source, Pipeline):
        yield from _root(source, tables)
        return
    if not isinstance(source, TableScan):
        yield "Rows of a source"
        return
    if source.select:
        yield f"Project: {', '.join(_named(source.select))}"
        if source.select.where is not None:
            yield f"  Filter: {source.select.where.sql(dialect='spark').replace('`', '')}"
    yield f"Scan: {source.table}{_from(tables.get(source.table))}"
    for time in given.times:
        if time.column is not None:
            yield f"  Watermark: {time.column}, {worded(time.watermark)}"
    if given.partition is not None:
        yield f"  Partitions: {given.partition}"


def _projected(projection: Projection) -> Iterator[str]:
    for name, text in projection.columns:
        plain = text.replace('"', "")
        yield name if plain == name else f"{plain} AS {name}"


def _from(definition: TableDefinition | None) -> str:
    if definition is None or definition.options is None or definition.connector is None:
        return ""
    shown = redacted_options(definition.options.prefixed(""))
    rest = ", ".join(f"{name}={value}" for name, value in shown.items() if name != "connector")
    return f" ({definition.connector}: {rest})" if rest else f" ({definition.connector})"


def worded(value: Any) -> str:
    """A specification as a call with the fields that are not at their defaults."""
    parts = []
    for one in dataclasses.fields(value):
        found = getattr(value, one.name)
        if found == one.default or found is None or found in ((), Axis.EVENT_TIME):
            continue
        is_span = one.name in _SPANS and isinstance(found, int) and not isinstance(found, bool)
        by_time = getattr(value, "axis", Axis.EVENT_TIME) in (Axis.EVENT_TIME, Axis.CLOCK)
        text = format_duration(found) if is_span and by_time else str(found)
        parts.append(text if one.name in _FIRST else f"{one.name}={text}")
    return f"{type(value).__name__.lower()}({', '.join(parts)})"


def _span(lateness: int) -> str:
    return "as long as windows are retained" if lateness >= MAX else format_duration(lateness)


def _indented(lines: Iterator[str], by: bool = True) -> Iterator[str]:  # noqa: FBT001, FBT002
    return (f"  {line}" if by else line for line in lines)

"""Binding: the tables of a plan become inputs of its pipelines, with their scalar steps.

A step in front of an operator is evaluated by DuckDB embedded and behind direct sources, and by
Spark where the rows are a DataFrame. Steps between operators, and the last one, run inside the
process of the operators: those are projections in every runtime.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tidegate.api.running import Pipeline
from tidegate.api.streams import Stream
from tidegate.spec.join import JoinSpec, Upstream
from tidegate.spec.operator import AggregateSpec, Input
from tidegate.spec.projection import Projection, reference, referenced
from tidegate.sql.plan import Select, TableScan
from tidegate.sql.scalars import compile_duckdb

Leaf = Callable[[TableScan, Input, Upstream | None], tuple[Input, Any]]
"""The input and the source that take the place of the scan of a table, below an operator if any."""


def bound(pipeline: Pipeline[Any], leaf: Leaf) -> Any:
    """The pipeline with other inputs and sources where it scans tables."""
    found = [
        _bound_input(given, source, pipeline.spec, leaf)
        for given, source in zip(pipeline.spec.inputs, pipeline.sources, strict=True)
    ]
    spec = with_inputs(pipeline.spec, [given for given, _ in found])
    return dataclasses.replace(pipeline, spec=spec, sources=tuple(source for _, source in found))


def _bound_input(given: Input, source: Any, spec: Upstream, leaf: Leaf) -> tuple[Input, Any]:
    if isinstance(source, TableScan):
        return leaf(source, given, spec)
    return given, bound(source, leaf) if isinstance(source, Pipeline) else source


def bound_stream(stream: Stream, leaf: Leaf) -> Stream:
    """The same for a stream without an operator."""
    found = [
        leaf(source, given, None) if isinstance(source, TableScan) else (given, source)
        for given, source in zip(stream.inputs, stream.sources, strict=True)
    ]
    (first, *others), sources = [given for given, _ in found], tuple(one for _, one in found)
    return dataclasses.replace(stream, input=first, also=tuple(others), sources=sources)


def with_inputs(spec: Upstream, inputs: Sequence[Input]) -> Upstream:
    """The specification with other inputs."""
    if isinstance(spec, JoinSpec):
        return spec.with_inputs(list(inputs))
    return dataclasses.replace(spec, input=inputs[0], also=tuple(inputs[1:]))


def scans(root: Pipeline[Any] | Stream) -> Iterator[TableScan]:
    """The scans of tables below a pipeline or a stream."""
    for source in root.sources:
        if isinstance(source, TableScan):
            yield source
        elif isinstance(source, Pipeline):
            yield from scans(source)


def roles(given: Input) -> list[str]:
    """The columns that an input reads beside those that a query selects."""
    named = [given.time, *given.key, given.id, given.offset, given.partition]
    for one in given.times:
        named.append(one.column)
        named += [getattr(one.watermark, name, None) for name in ("column", "marker", "writer")]
    return list(dict.fromkeys(name for name in named if isinstance(name, str)))


def step(select: Select, given: Input, *, keeps: str = "nothing") -> tuple[Projection, ...]:
    """The scalar step over a table, with the columns that the input reads."""
    if not select:
        return ()
    found = compile_duckdb(select, keeps=keeps)
    if found.keeps == "all":
        return (found,)
    present = {name for name, _ in found.columns}
    more = tuple((name, reference(name)) for name in roles(given) if name not in present)
    return (dataclasses.replace(found, columns=(*found.columns, *more)),)


def is_plain(projection: Projection) -> bool:
    """Whether a projection only selects columns, each under its own name."""
    return (
        projection.where is None
        and projection.unnest is None
        and all(referenced(text) == name for name, text in projection.columns)
    )


def is_aggregate(spec: Upstream) -> bool:
    """Whether an operator is a windowed aggregate, whose results are panes."""
    return isinstance(spec, AggregateSpec)

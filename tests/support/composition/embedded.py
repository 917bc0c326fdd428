"""Pipelines in this process: built from plans, played through histories, with restarts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from operator import add
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import tidegate as tg
from support.composition.batch import Accepted, Bounds, shape, shown
from support.composition.plans import (
    Aggregate,
    Join,
    Match,
    Node,
    Operator,
    Row,
    Source,
    Value,
    Window,
    operators,
    sources,
)
from tidegate.state.memory import MemoryStore

PREFIXES = ("left_", "right_")


@dataclass(frozen=True)
class Step:
    """One call: `add` with a source and rows, `watermark` with a source and an instant, `timeout`
    with an instant, or `restart`.
    """

    verb: str
    source: str = ""
    value: Any = None


# Specifications


def stream(node: Node, key: Sequence[str] = ()) -> tg.Stream:
    """The rows of a source, or the output of an operator, as a stream."""
    if isinstance(node, Source):
        mark = tg.explicit() if node.watermark == "explicit" else None
        identity = {} if node.identity == "none" else {node.identity: node.number}
        return tg.stream(time=node.time, key=list(key), watermark=mark, **identity)
    return tg.stream(time=node.time, key=list(key), watermark=tg.explicit())


def window(given: Window) -> Any:
    size, slide, axis = given.size, given.slide, given.axis
    unit = {"unit": "us"} if axis == "event_time" else {}
    match given.kind:
        case "tumbling":
            return tg.tumbling(size, axis=axis, offset=given.offset, **unit)
        case "hopping":
            return tg.hopping(size, slide, axis=axis, **unit)
        case "cumulative":
            return tg.cumulative(size, slide, **unit)
        case "sliding":
            return tg.sliding(size, **unit)
        case "session":
            if given.by is not None:
                return tg.session(partial(_gap, size, given.by))
            return tg.session(size, **unit)
    return tg.global_window()


def _gap(size: int, by: str, rows: pa.Table) -> pa.ChunkedArray:
    """A session gap that is a multiple of a column."""
    return pc.multiply(rows.column(by), size)


def function(value: Value) -> Any:
    words: dict[str, Any] = {} if value.of is None else {"of": value.of}
    column = value.column or ""
    if value.above is not None:
        words["where"] = partial(_is_above, column, value.above)
    match value.function:
        case "count":
            return tg.count(**words)
        case "quantile":
            return tg.quantile(column, 0.25, exact=True, **words)
        case "squares":
            steps = {"add": partial(_add, column, 1), "remove": partial(_add, column, -1)}
            return tg.python(
                zero=0, **steps, merge=add, result=int, result_type=pa.int64(), **words
            )
        case "spread":
            return tg.apply(partial(_spread, column), pa.int64(), [column], **words)
    name = "list_" if value.function == "list" else value.function
    return getattr(tg, name)(column, **words)


def _is_above(column: str, bound: int, rows: pa.Table) -> pa.ChunkedArray:
    return pc.greater(rows.column(column), bound)


def _add(column: str, sign: int, total: int, row: Row) -> int:
    return total + sign * (row[column] or 0) ** 2


def _spread(column: str, rows: pa.Table) -> int | None:
    ends = pc.min_max(rows.column(column)).as_py()
    return None if ends["min"] is None else ends["max"] - ends["min"]


def aggregate(node: Aggregate, streams: Sequence[tg.Stream]) -> tg.Panes:
    """An aggregate over streams of its inputs."""
    if node.names:
        whole = tg.merge(**dict(zip(node.names, streams, strict=True)))
    else:
        whole = streams[0] if len(streams) == 1 else tg.union(*streams)
    windowed = (
        whole.inherit() if node.window.kind == "inherited" else whole.window(window(node.window))
    )
    windowed = getattr(windowed, node.mode)().allow_lateness(node.lateness, unit="us")
    if node.trigger is not None:
        windowed = windowed.trigger(node.trigger)
    if node.only_updated:
        windowed = windowed.options(fire_only_updated=True)
    windowed = windowed.options(**dict(node.options))
    return windowed.aggregate(**{value.name: function(value) for value in node.aggregates})


def matching(given: Match) -> Any:
    match given.kind:
        case "within":
            return tg.within(given.before, given.after, unit="us")
        case "tumbling":
            return tg.tumbling(given.before, unit="us")
        case "hopping":
            return tg.hopping(given.before, given.after, unit="us")
        case "cumulative":
            return tg.cumulative(given.before, given.after, unit="us")
        case "sliding":
            return tg.sliding(given.before, unit="us")
        case "global":
            return tg.global_window()
        case "session":
            return tg.session(given.before, unit="us")
    return tg.as_of(given.before, unit="us")


def join(node: Join, streams: Sequence[tg.Stream]) -> tg.Joined:
    """A join of streams of its inputs."""
    left, right = streams
    names = [child.values[0] for child in node.inputs] if node.ascending else []
    where = None
    if names:
        sides = [
            f"{p}{n}" if names[0] == names[1] else n for p, n in zip(PREFIXES, names, strict=True)
        ]
        where = pc.field(sides[0]) <= pc.field(sides[1])
    found = left.join(right, matching(node.match), on=list(node.on), how=node.how, where=where)
    found = found.allow_lateness(node.lateness, unit="us")
    if node.every is not None:
        every = timedelta(microseconds=node.every)
        found = found.update_every(every, every)
    if node.padding == "early":
        return found.early_padding()
    return found.final_padding() if node.padding == "final" else found


def spec(node: Operator) -> tg.Panes | tg.Joined:
    if isinstance(node, Join):
        return join(node, [stream(child) for child in node.inputs])
    return aggregate(node, [stream(child, node.key) for child in node.inputs])


# Runs


class Pipeline:
    """The operators of a plan, connected; the last one keeps its results."""

    def __init__(self, plan: Operator) -> None:
        self.plan, self.now = plan, 0
        self.stores = {id(node): MemoryStore() for node in operators(plan)}
        self.accepted = Accepted({source.name: [] for source in sources(plan)})
        self._taken: set[int] = set()
        self.panes: list[Row] = []
        self.late: list[Row] = []
        """Late rows of operators behind others."""
        self._open()

    def _open(self) -> None:
        self.ports: dict[str, tuple[Any, int, Source]] = {}
        self.running: list[tuple[Any, Operator]] = []
        self.last = self._run(self.plan, None)

    def _run(self, node: Operator, downstream: Any) -> Any:
        operator = spec(node).embedded(
            store=self.stores[id(node)], downstream=downstream, now=self.now
        )
        for number, child in enumerate(node.inputs):
            if isinstance(child, Source):
                self.ports[child.name] = operator, number, child
            else:
                self._run(child, operator if len(node.inputs) == 1 else operator.port(number))
        self.running.insert(0, (operator, node))
        return operator

    @property
    def _first(self) -> list[Any]:
        """The operators with sources, upstream first."""
        found = {id(operator): operator for operator, _, _ in self.ports.values()}
        return [operator for operator, _ in self.running if id(operator) in found]

    def play(self, steps: Sequence[Step]) -> None:
        """Take all steps, then the end of the input."""
        for step in steps:
            self.take(step)
        for operator, number, _ in self.ports.values():
            operator.port(number).finish()
        self._fetch({})

    def take(self, step: Step) -> None:
        delivered: dict[int, tuple[Source, Row]] = {}
        if step.verb == "add":
            operator, number, source = self.ports[step.source]
            delivered = {row[source.number]: (source, row) for row in step.value}
            operator.add_messages(step.value, input=number, now=self.now)
        elif step.verb == "watermark":
            operator, number, _ = self.ports[step.source]
            operator.advance_watermark(step.value, input=number)
        elif step.verb == "timeout":
            self.now = max(self.now, step.value)
            for operator in self._first:
                operator.timeout(self.now)
        self._fetch(delivered)
        if step.verb == "restart":
            for operator in self._first:
                operator.flush()
            self._open()

    def _fetch(self, delivered: dict[int, tuple[Source, Row]]) -> None:
        """Take results: which rows of a delivery were accepted, and the panes at the end."""
        for operator, node in self.running:
            result = operator.get_result()
            late = result.late.to_pylist()
            if operator is self.last:
                self.panes += result.panes.to_pylist()
            for row in late:
                self._missed(row, node, delivered)
            operator.flush()
        for n, (source, row) in delivered.items():
            if n not in self._taken:
                self._taken.add(n)
                self.accepted.rows[source.name].append(row)

    def _missed(self, row: Row, node: Operator, delivered: dict[int, tuple[Source, Row]]) -> None:
        numbers = [
            row[child.number]
            for child in node.inputs
            if isinstance(child, Source) and row.get(child.number) is not None
        ]
        if not numbers:
            self.late.append(row)
            return
        assert numbers[0] in delivered, row
        if numbers[0] in self._taken:
            # Its windows are over, and its id is forgotten.
            return
        bounds: list[Bounds] = [
            (window["window_start"], window["window_end"]) for window in row.get("windows") or []
        ]
        passes = row["reason"] in ("window_closed", "window_expired", "out_of_retention")
        if passes and isinstance(node, Aggregate) and bounds and node.window.kind != "session":
            self.accepted.missed |= {(numbers[0], found) for found in bounds}
        else:
            self._taken.add(numbers[0])
            del delivered[numbers[0]]


def net(plan: Operator, panes: Sequence[Row]) -> Counter[tuple[Any, ...]]:
    """What a reader of the last operator ends with, by the rule of its mode."""
    mode = "retracting" if isinstance(plan, Join) else plan.mode
    if mode == "retracting":
        found: Counter[tuple[Any, ...]] = Counter()
        for pane in panes:
            found[shape(plan, pane)] += 1 if pane["op"] == "+" else -1
            assert found[shape(plan, pane)] >= 0, pane
        return +found
    assert isinstance(plan, Aggregate)
    identity = (*plan.key, "window_start", "window_end")
    if mode == "accumulating":
        table: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        for pane in panes:
            at = tuple(pane[name] for name in identity)
            if pane["op"] == "+":
                table[at] = shape(plan, pane)
            else:
                assert table.pop(at) == shape(plan, pane), pane
        return Counter(table.values())
    return _summed(plan, panes)


def _summed(plan: Aggregate, panes: Sequence[Row]) -> Counter[tuple[Any, ...]]:
    """Discarded panes added up; a window that nets to no rows is gone."""
    totals: dict[tuple[Any, ...], list[int]] = {}
    names = shown(plan)
    width = len(plan.key) + 2
    for pane in panes:
        values = [pane[name] for name in names]
        sign = 1 if pane["op"] == "+" else -1
        at = tuple(values[:width])
        former = totals.get(at, [0] * (len(values) - width))
        totals[at] = [a + sign * (b or 0) for a, b in zip(former, values[width:], strict=True)]
    # The first aggregate of a discarding operator counts its rows.
    return Counter((*at, *values) for at, values in totals.items() if values[0])

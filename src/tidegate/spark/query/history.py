"""The history of a key and window of a query: from its output, its late rows and its state."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import fs

from tidegate.errors import InputError, SinkError, TidegateError
from tidegate.instants import MAX, MIN, Instant, instant
from tidegate.kernel.frame import repeat, to_arrow
from tidegate.operators.aggregate.operator import WindowedAggregate
from tidegate.operators.history.facts import Bounds, Contribution, Fired, History
from tidegate.operators.history.history import Recorded, count_column, history, widened
from tidegate.operators.history.open_windows import elsewhere, open_windows
from tidegate.operators.history.question import typed_range
from tidegate.operators.history.rows import BATCH, Selection, check_panes
from tidegate.spark.checkpoint import open_checkpoint, tidegate_folder
from tidegate.spark.query.metadata import QueryMetadata, read_metadata
from tidegate.spark.query.state.query_state import QueryState, read_state
from tidegate.spark.query.state.reader import CheckpointReader, batch_clocks, committed_batches
from tidegate.spark.sinks.reading import owner_of, place_of, read_rows
from tidegate.spark.tasks.transport import LATE, PANES
from tidegate.spec.join import JoinSpec, Upstream
from tidegate.spec.operator import AggregateSpec
from tidegate.spec.windows import Axis, Session

VERSIONS_READ = 120
"""How many former batches of the state are read, at most, to count the rows of each batch."""
BYTES_READ = 512 << 20
"""How much state of former batches is read about, at most, and at least that of `_LEAST_READ`."""
_LEAST_READ = 20

Place = Mapping[str, str]


def why(
    location: str,
    key: Any = None,
    start: Instant | None = None,
    end: Instant | None = None,
    *,
    operator: int = -1,
    specs: Sequence[Sequence[Upstream]] | None = None,
) -> History:
    """The history of a key and window; `location` is a checkpoint, or the folder of the panes."""
    return QueryHistory(location, specs=specs).why(key, start, end, operator=operator)


class QueryHistory:
    """The written rows and the state of one query, for histories."""

    def __init__(self, location: str, *, specs: Sequence[Sequence[Upstream]] | None = None) -> None:
        """`specs`: the specifications of the pipeline, by stage; default: those in the state."""
        self._specs = specs
        self._places: dict[str, Place] = {}
        self._shards: list[WindowedAggregate] = []
        """The operators that were read last."""
        self._checkpoint = _checkpoint_of(location)
        self._metadata: QueryMetadata | None = None
        if self._checkpoint is None:
            owner = owner_of(location)
            self._places[owner.get("output", PANES)] = place_of(location)
            self._checkpoint = owner.get("checkpoint")
        if self._checkpoint is not None:
            self._metadata = read_metadata(self._checkpoint)
            self._places = {**_outputs(self._metadata), **self._places}

    def why(
        self,
        key: Any = None,
        start: Instant | None = None,
        end: Instant | None = None,
        *,
        operator: int = -1,
    ) -> History:
        """The history of a key and window of an operator, by default the last one."""
        state, notes = self._state(operator)
        low, high = map(_position, typed_range(start, end))
        asked = Selection.of(key, self._key_names(state, operator), low, high)
        is_last = state is None or operator in {-1, len(state.specs) - 1}
        panes = self._rows(PANES, asked, notes) if is_last else pa.table({})
        spec: Any = None if state is None else state.spec(operator)
        wide = widened(asked, spec, panes)
        found = self._held(state, operator, wide)
        if not is_last:
            notes.append("the panes of this operator feed the next one and are not written")
        late = self._rows(LATE, asked, notes)
        recorded = dataclasses.replace(
            found, panes=self._numbered(panes), late=self._numbered(late), notes=tuple(notes)
        )
        counted = [*self._contributions(operator, recorded, wide, notes)]
        recorded = dataclasses.replace(recorded, contributions=counted, notes=tuple(notes))
        return history(recorded, asked)

    def key_schema(self, operator: int = -1) -> pa.Schema:
        """The key columns of an operator with their types."""
        state, _ = self._state(operator)
        if state is not None:
            return state.key_schema(operator)
        place = self._places[PANES]
        try:
            empty = read_rows(place, PANES, lambda _: pc.scalar(False))
        except SinkError as error:
            if self._checkpoint is not None:
                raise
            raise InputError(
                f"{place['path']} is neither the checkpoint of a query nor a folder of its panes."
                " Hint: pass what `checkpoint` or `to` names"
            ) from error
        return _before_windows(empty.schema)

    def _state(self, operator: int) -> tuple[QueryState | None, list[str]]:
        if self._checkpoint is None:
            return None, [
                "the folder names no checkpoint, so late rows, triggers and open windows"
                " are unknown"
            ]
        try:
            state = read_state(self._checkpoint, specs=self._specs)
            _aggregates(state, operator)
        except InputError:
            raise
        except TidegateError as error:
            if PANES not in self._places:
                raise
            return None, [f"the state is not known: {error}"]
        return state, []

    def _key_names(self, state: QueryState | None, operator: int) -> Sequence[str]:
        if state is not None:
            spec = state.spec(operator)
            return [] if spec is None else [*spec.key]
        return self.key_schema().names

    def _held(self, state: QueryState | None, operator: int, asked: Selection) -> Recorded:
        empty = pa.table({})
        if state is None:
            return Recorded(empty, empty)
        operators = self._shards = _aggregates(state, operator, asked)
        bound = [one for one in operators if one.is_bound]
        if not bound:
            spec: Any = state.spec(operator)
            return Recorded(empty, empty, spec)
        last = max(bound, key=lambda one: one.progress.now)
        watermark = last.progress.watermark
        held = open_windows(bound, asked)
        return Recorded(
            empty,
            empty,
            last.spec,
            open=held,
            open_elsewhere=elsewhere(bound, asked, held),
            has_ended=watermark == MAX,
            watermark=None if watermark in {MIN, MAX} else watermark,
            late_time=_time_of(state),
            now=last.progress.now,
            ticks=last.ticks,
        )

    def _rows(self, output: str, asked: Selection, notes: list[str]) -> pa.Table:
        place = self._places.get(output)
        if place is None:
            if self._metadata is not None:
                notes.append(f"the checkpoint does not say where the {output} are written")
            return pa.table({})
        try:
            found = read_rows(place, output, asked.filter)
            if output == PANES and found.num_rows:
                check_panes(found)
        except TidegateError as error:
            notes.append(f"the {output} are not known: {error}")
            return pa.table({})
        return found

    def _numbered(self, rows: pa.Table) -> pa.Table:
        """The rows with the number of their batch, from the clocks of batches if need be."""
        if BATCH in rows.column_names or self._checkpoint is None or not rows.num_rows:
            return rows
        clocks = batch_clocks(self._checkpoint)
        name = "emitted_at" if "emitted_at" in rows.column_names else "_commit_timestamp"
        column = to_arrow(rows.column(name)).cast(pa.int64())
        if not clocks:
            return rows.append_column(BATCH, repeat(None, rows.num_rows, pa.int64()))
        index = pc.index_in(column, value_set=pa.array(list(clocks), pa.int64()))
        return rows.append_column(BATCH, pa.array(list(clocks.values()), pa.int64()).take(index))

    # The rows of each batch

    def _contributions(
        self, operator: int, recorded: Recorded, asked: Selection, notes: list[str]
    ) -> Iterator[Contribution]:
        """The rows that each batch added, as far as the checkpoint has the state of batches.

        A note names the batches whose state it does not have any more.
        """
        spec = recorded.spec
        if self._checkpoint is None or spec is None or spec.window.axis is not Axis.EVENT_TIME:
            return
        fired = [step for step in history(recorded, asked).steps if isinstance(step, Fired)]
        batches = {step.batch for step in fired if step.batch is not None}
        size = max((one.nbytes for one in self._shards), default=0)
        limit = min(VERSIONS_READ, max(_LEAST_READ, BYTES_READ // max(size, 1)))
        versions = _Versions(self._checkpoint, self._metadata, self._specs, operator, asked, limit)
        counts = _counts(spec, fired)
        clocks = {batch: clock for clock, batch in batch_clocks(self._checkpoint).items()}
        totals: dict[Bounds, int] = {}
        merges = isinstance(spec.window, Session)
        forgotten = last = -1
        for batch, rows in versions.changes(batches | {batch - 1 for batch in batches}):
            last = batch
            if batch in versions.baseline and (rows or any(one <= batch for one in batches)):
                forgotten = batch
            known = {**rows, **counts.get(batch, {})}
            for bounds, total, added in arrived(known, totals, merges=merges):
                if batch not in versions.baseline:
                    yield Contribution(
                        start=bounds[0],
                        end=bounds[1],
                        at=clocks.get(batch),
                        batch=batch,
                        rows=added,
                        total=total,
                    )
        if forgotten >= 0:
            notes.append(
                f"the rows that arrived up to batch {forgotten} are not listed by batch, because"
                " the checkpoint keeps the state of the last batches only"
            )
        if versions.is_cut:
            notes.append(
                f"the rows that arrived after batch {last} are not listed by batch, because the"
                f" states of more than {limit} batches would be read; one window needs fewer"
            )


class _Versions:
    """The state of former batches: how many rows each window of a selection had."""

    def __init__(
        self,
        checkpoint: str,
        metadata: QueryMetadata | None,
        specs: Sequence[Sequence[Upstream]] | None,
        operator: int,
        asked: Selection,
        limit: int,
    ) -> None:
        """`limit`: of the batches whose state is read."""
        self._checkpoint, self._metadata, self._specs = checkpoint, metadata, specs
        self._operator, self._asked, self._limit = operator, asked, limit
        self.is_cut = False
        """Whether the limit was reached."""
        self._known: dict[int, dict[Bounds, int] | None] = {}
        self.baseline: set[int] = set()
        """The oldest batch, whose state has the rows of all batches before it."""

    def changes(self, points: set[int]) -> Iterator[tuple[int, dict[Bounds, int]]]:
        """The batches after which the windows differ, with their rows, the oldest first.

        Between two batches with the same windows and counts nothing is read. `points` are batches
        of which is known that something happened.
        """
        try:
            batches = committed_batches(self._checkpoint)
        except OSError:
            return
        if not batches:
            return
        marks = sorted({batches[0], batches[-1], *(points & set(batches))})
        first = self._rows(marks[0])
        if first is not None:
            if marks[0] > 0:
                self.baseline.add(marks[0])
            yield marks[0], first
        for low, high in pairwise(marks):
            for found in self._between(low, high):
                if self.is_cut:
                    return
                yield found

    def _between(self, low: int, high: int) -> Iterator[tuple[int, dict[Bounds, int]]]:
        before, after = self._rows(low), self._rows(high)
        if high - low <= 1 or before is None or after is None:
            if after is not None and (before is not None or high == low + 1):
                yield high, after
            return
        if before == after:
            return
        middle = (low + high) // 2
        yield from self._between(low, middle)
        yield from self._between(middle, high)

    def _rows(self, batch: int) -> dict[Bounds, int] | None:
        """The rows of the windows after a batch; None if that state is not there any more."""
        if batch not in self._known:
            self.is_cut |= len(self._known) >= self._limit
            self._known[batch] = None if self.is_cut else self._read(batch)
        return self._known[batch]

    def _read(self, batch: int) -> dict[Bounds, int] | None:
        try:
            state = QueryState(
                self._checkpoint,
                CheckpointReader(self._checkpoint, batch),
                metadata=self._metadata,
                specs=self._specs,
            )
            found = open_windows(_aggregates(state, self._operator, self._asked), self._asked)
        except (TidegateError, OSError):
            return None
        return {(window.start, window.end): window.rows for window in found}


def arrived(
    known: Mapping[Bounds, int], totals: dict[Bounds, int], *, merges: bool
) -> Iterator[tuple[Bounds, int, int]]:
    """The windows that got rows in a batch, with their rows in all and those that are new.

    `known`: the rows of windows after the batch; `totals`: those before it, brought up to date.
    Sessions that became a part of another one within the batch are left out.
    """
    found = []
    for bounds in _outermost(known) if merges else known:
        parts = sum(totals[one] for one in _outermost(totals, within=bounds)) if merges else 0
        found.append((bounds, known[bounds], known[bounds] - totals.get(bounds, parts)))
    totals.update(known)
    yield from (one for one in found if one[-1] > 0)


def _outermost(windows: Iterable[Bounds], within: Bounds | None = None) -> list[Bounds]:
    """The windows that are no part of another one; with `within`, of those inside this one."""
    inside = [
        one
        for one in windows
        if within is None or (one != within and within[0] <= one[0] and one[1] <= within[1])
    ]
    return [
        one
        for one in inside
        if not any(other != one and other[0] <= one[0] and one[1] <= other[1] for other in inside)
    ]


def _counts(spec: AggregateSpec, fired: Sequence[Fired]) -> dict[int, dict[Bounds, int]]:
    """By batch, the rows of windows as their panes have them: a closed window has no state."""
    name = count_column(spec)
    found: dict[int, dict[Bounds, int]] = {}
    if name is not None and spec.mode != "discarding":
        for step in fired:
            if step.batch is not None and step.values.get(name) is not None:
                found.setdefault(step.batch, {})[step.start, step.end] = int(step.values[name])
    return found


def _aggregates(
    state: QueryState, operator: int, asked: Selection | None = None
) -> list[WindowedAggregate]:
    """The shards of an aggregate; raises `InputError` for a join."""
    if isinstance(state.spec(operator), JoinSpec):
        raise InputError(
            "a join has no windows with a history. Hint: tidegate state shows its rows; `operator=`"
            " selects an aggregate of the query"
        )
    key = None if asked is None else asked.key or None
    return [
        found for found in state.restored(operator, key=key) if isinstance(found, WindowedAggregate)
    ]


def _time_of(state: QueryState) -> str | None:
    """The time column of the first operator of a query, whose late rows are written."""
    return next((spec.input.time for spec in state.specs if isinstance(spec, AggregateSpec)), None)


def _checkpoint_of(location: str) -> str | None:
    """The location, if it is the checkpoint of a query."""
    system, path = open_checkpoint(location)
    _, folder = tidegate_folder(location)
    names = (f"{folder}/query.json", f"{path}/commits")
    kinds = [info.type for info in system.get_file_info([*names, path])]
    if kinds[-1] == fs.FileType.NotFound:
        raise InputError(f"{location} does not exist. Hint: pass a checkpoint or a folder of panes")
    return None if set(kinds[:-1]) == {fs.FileType.NotFound} else location


def _outputs(metadata: QueryMetadata | None) -> dict[str, Place]:
    return {} if metadata is None else dict(metadata.outputs)


def _position(at: Instant | None) -> int | None:
    return None if at is None else instant(at)


def _before_windows(schema: pa.Schema) -> pa.Schema:
    """The key columns of panes, which come before the window."""
    if "window_start" not in schema.names:
        return pa.schema([])
    return pa.schema([schema.field(n) for n in range(schema.get_field_index("window_start"))])

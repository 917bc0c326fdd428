"""The state of a query after a batch: windows, messages, current values and watermarks.

Only what a call needs is read: with a key of an aggregate, one shard.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any, Concatenate, NoReturn, ParamSpec, TypeVar

import pyarrow as pa

from tidegate.errors import InputError, MissingExtraError, SetupError, StateError
from tidegate.instants import MIN, Instant
from tidegate.operators.aggregate.operator import WindowedAggregate
from tidegate.operators.chain import Operator
from tidegate.operators.explain.facts import Explanation
from tidegate.operators.explain.shards import explain_shards
from tidegate.operators.inspection.shards import ShardedAggregate, ShardedJoin, shard_number
from tidegate.operators.join.operator import WindowedJoin
from tidegate.operators.status import (
    OperatorStatus,
    QueryStatus,
    explained_sources,
    shard_status,
)
from tidegate.spark.query.metadata import QueryMetadata, read_metadata
from tidegate.spark.query.state.changelog import UnsupportedCheckpointError
from tidegate.spark.query.state.reader import CheckpointReader, StateReader
from tidegate.spark.query.state.restored_chain import restore_operators
from tidegate.spark.query.state.rocksdb_partition import has_rocksdb
from tidegate.spark.query.state.status import source_status
from tidegate.spark.tasks.shards import ShardLayout
from tidegate.spark.tasks.state_store import SparkStore
from tidegate.spec.join import Upstream
from tidegate.units import many

_SCANNED = 20_000
"""A status explains windows of single keys in detail up to this number of them."""
_EXPLAINED = 200_000
"""The same for an explanation."""
_ATTEMPTS = 5
"""How often a read starts again with a newer batch, if the query deletes files meanwhile."""
P = ParamSpec("P")
R = TypeVar("R")


def _consistent(
    read: Callable[Concatenate[QueryState, P], R],
) -> Callable[Concatenate[QueryState, P], R]:
    """Makes a method read the state of one batch; the first read may move to a newer batch."""

    @functools.wraps(read)
    def reading(self: QueryState, /, *args: P.args, **options: P.kwargs) -> R:
        for _ in range(_ATTEMPTS):
            try:
                found = read(self, *args, **options)
            except UnsupportedCheckpointError as reason:
                self._use(_spark_reader(self.checkpoint, str(reason)))
            except FileNotFoundError:
                if self._is_pinned:
                    break
                self._use(open_reader(self.checkpoint))
            else:
                self._is_pinned = True
                return found
        raise StateError(
            f"the state after batch {self.batch} is no longer in the checkpoint"
            f" {self.checkpoint}. Hint: call tg.state again for the current one"
        )

    return reading


class QueryState:
    """The state of a query after one batch, read from its checkpoint; the query is not affected.

    An operator is selected by its number in the order of the data; the default is the last one.
    """

    def __init__(
        self,
        checkpoint: str,
        reader: StateReader,
        *,
        metadata: QueryMetadata | None = None,
        specs: Sequence[Sequence[Upstream]] | None = None,
    ) -> None:
        """`specs`: the specifications of the pipeline, by stage; default: those in the state."""
        self.checkpoint = checkpoint
        self._metadata, self._specs = metadata, specs
        self._is_pinned = False
        """Whether something was read, so that all further reads are of the same batch."""
        self._use(reader)

    def __repr__(self) -> str:
        return f"QueryState({self.checkpoint!r}, batch={self.batch})"

    @property
    def batch(self) -> int:
        """The batch after which the query had this state."""
        return self._reader.batch

    @property
    def query(self) -> str | None:
        """The id of the query; None if it was started without `write`."""
        return None if self._metadata is None else self._metadata.query

    @property
    def name(self) -> str | None:
        """The name that the user gave the query."""
        return None if self._metadata is None else self._metadata.name

    @property
    @_consistent
    def specs(self) -> list[Upstream]:
        """The specifications of all operators, in the order of the data."""
        return [
            operator.declared for stage in self._stages() for operator in self._first_shard(stage)
        ]

    @property
    @_consistent
    def watermark(self) -> int | None:
        """The watermark of the last operator in microseconds; None while there is none."""
        found = max((one.progress.watermark for one in self._operators(-1)), default=MIN)
        return None if found == MIN else found

    @_consistent
    def spec(self, operator: int = -1) -> Upstream | None:
        """The specification of an operator; None before the first batch with rows."""
        found = self._operators(operator)
        return found[0].declared if found else None

    @_consistent
    def key_schema(self, operator: int = -1) -> pa.Schema:
        """The key columns of an operator with their types; of a join the equal fields, as the left
        side names them.
        """
        for found in self._operators(operator):
            schema = found.sides[0].schema if isinstance(found, WindowedJoin) else found.schema
            if schema is not None:
                return pa.schema([schema.field(name) for name in found.spec.key])
        return pa.schema([])

    @_consistent
    def windows(
        self,
        start: Instant | None = None,
        end: Instant | None = None,
        *,
        key: Any = None,
        side: int | str | None = None,
        operator: int = -1,
    ) -> pa.Table:
        """The windows that overlap a range, sorted, with counts, panes and offsets.

        `key` selects the windows of one key: a value, a tuple, or a dictionary by column. Without
        it, a window that all keys share is listed once. A join needs `side`.
        """
        found = self._operators(operator, key)
        if (joins := _joins(found)) is not None:
            return ShardedJoin(joins).windows(_needed(side), start, end, key=key)
        _refused(side)
        return ShardedAggregate(_aggregates(found)).windows(start, end, key=key)

    @_consistent
    def messages(
        self,
        start: Instant | None = None,
        end: Instant | None = None,
        *,
        key: Any = None,
        side: int | str | None = None,
        operator: int = -1,
        start_offset: int | None = None,
        end_offset: int | None = None,
    ) -> pa.Table:
        """The stored messages from (start, start_offset) to (end, end_offset), both included.

        An aggregate keeps messages if its values need them, or with `keep_messages`. A join needs
        `side`.
        """
        found = self._operators(operator, key)
        selected = {"key": key, "start_offset": start_offset, "end_offset": end_offset}
        if (joins := _joins(found)) is not None:
            return ShardedJoin(joins).messages(_needed(side), start, end, **selected)
        _refused(side)
        return ShardedAggregate(_aggregates(found)).messages(start, end, **selected)

    @_consistent
    def peek(
        self,
        start: Instant | None = None,
        end: Instant | None = None,
        *,
        key: Any = None,
        operator: int = -1,
    ) -> pa.Table:
        """The current values of the windows that are not closed and overlap a range."""
        found = self._operators(operator, key)
        if _joins(found) is not None:
            raise InputError(
                "a join has no values, only rows. Hint: messages(side='left'), or `operator=` for"
                " an aggregate of the query"
            )
        return ShardedAggregate(_aggregates(found)).peek(start, end, key=key)

    @_consistent
    def explain_watermark(self, operator: int = -1) -> Explanation:
        """Why there is no output: what holds the watermark back, and what windows wait for.

        Print it to read sentences; `to_dict` returns the same as data. With more than 200,000
        windows of single keys, only the first ones are explained, from a summary.
        """
        found = self._operators(operator)
        if not found:
            raise StateError(f"operator {operator} has no state yet. Hint: wait for the first rows")
        return self._explained(found, _EXPLAINED)

    @_consistent
    def restored(self, operator: int = -1, *, key: Any = None) -> list[Operator]:
        """The shards of an operator, or the one that has a key of an aggregate; only for reading.

        An operator whose keys have no state yet has no shards.
        """
        return self._operators(operator, key)

    @_consistent
    def status(self) -> QueryStatus:
        """What the query has done, holds and waits for, in all operators.

        It reads summaries and documents only, unless the state is small. `now` is the moment at
        which the last batch was committed.
        """
        operators: list[OperatorStatus] = []
        number = 0
        for stage in self._stages():
            one = self._stage_status(stage, number)
            operators.append(one)
            number += one.size
        metadata = self._metadata
        return QueryStatus(
            self.query,
            self.batch,
            self._now(),
            tuple(operators),
            name=self.name,
            specs=[] if metadata is None else metadata.specs,
        )

    def _stage_status(self, stage: int, number: int) -> OperatorStatus:
        stores = {
            shard: store
            for shard in sorted(self._layout(stage).ids)
            if (store := self._store(stage, shard)) is not None
        }
        if not stores:
            return OperatorStatus(number, 1, (), ())
        shards = tuple(stores)
        described = tuple(shard_status(shard, stores[shard].summary) for shard in shards)
        first = next(iter(stores.values()))
        size = int(first.get_json("chain")["operators"])
        try:
            explanations = tuple(
                self._explained(self._at(stage, position, shards), _SCANNED)
                for position in range(size)
            )
        except StateError as reason:
            # The specification has functions, which a checkpoint does not have.
            sources = source_status(first, self._now())
            return OperatorStatus(number, size, described, sources, (None,) * size, str(reason))
        sources = explained_sources(explanations[0], self._now())
        return OperatorStatus(number, size, described, sources, explanations)

    def _explained(self, found: Sequence[Operator], limit: int) -> Explanation:
        """What an operator waits for; with more than `limit` cells, from summaries."""
        cells = sum(
            len(operator.wiring.context.cells)
            for operator in _aggregates(found)
            if operator.wiring is not None
        )
        return explain_shards(found, scans=cells <= limit, now=self._now())

    def _now(self) -> int:
        """The clock of the last batch, which may have called no shard."""
        clocks = (
            int(store.summary["clock"])
            for stage in self._stages()
            for shard in self._layout(stage).ids
            if (store := self._store(stage, shard)) is not None
        )
        return max(self._reader.clock, *clocks, 0)

    # Shards

    def _use(self, reader: StateReader) -> None:
        self._reader = reader
        self._stores: dict[tuple[int, int], SparkStore | None] = {}
        self._restored: dict[tuple[int, int], list[Operator]] = {}
        self._order: list[int] | None = None

    def _stages(self) -> list[int]:
        """Spark's numbers of the stateful operators, in the order of the data."""
        if self._order is None:
            # Spark numbers them in another order.
            numbers = {
                self._stage_number(operator): operator for operator in self._reader.operators()
            }
            self._order = [numbers[number] for number in sorted(numbers)]
        return self._order

    def _stage_number(self, operator: int) -> int:
        for shard in self._layout(operator).ids:
            store = self._store(operator, shard)
            if store is not None:
                return int(store.summary["operator"])
        return -operator

    def _layout(self, stage: int) -> ShardLayout:
        if self._metadata is not None:
            return self._metadata.layout
        return ShardLayout.balanced(self._reader.partitions(stage))

    def _store(self, stage: int, shard: int) -> SparkStore | None:
        if (stage, shard) not in self._stores:
            value = self._reader.meta(stage, shard)
            variables = _ReadOnlyVariables(self._reader, stage, shard)
            self._stores[stage, shard] = (
                None if value is None else SparkStore(variables, variables, value)
            )
        return self._stores[stage, shard]

    def _shard(self, stage: int, shard: int) -> list[Operator]:
        """The operators of a shard; none if it has no state."""
        if (stage, shard) not in self._restored:
            store = self._store(stage, shard)
            specs = None if self._specs is None else self._specs[self._stages().index(stage)]
            self._restored[stage, shard] = [] if store is None else restore_operators(store, specs)
        return self._restored[stage, shard]

    def _first_shard(self, stage: int) -> list[Operator]:
        """The operators of any shard that has state."""
        found = (self._shard(stage, shard) for shard in self._layout(stage).ids)
        return next(filter(None, found), [])

    def _operators(self, number: int, key: Any = None) -> list[Operator]:
        """An operator in all shards, or in the shard that has a key of an aggregate."""
        places = [
            (stage, position)
            for stage in self._stages()
            for position in range(len(self._first_shard(stage)))
        ]
        if not places:
            return []
        try:
            stage, position = places[number]
        except IndexError:
            raise InputError(
                f"the query has {many(len(places), 'operator')}, got operator={number}. Hint:"
                " they count from 0, in the order of the data"
            ) from None
        shards, first = self._layout(stage).ids, self._first_shard(stage)[position]
        if key is not None and isinstance(first, WindowedAggregate) and first.is_bound:
            shards = (shards[shard_number(first, key, len(shards))],)
        return self._at(stage, position, shards)

    def _at(self, stage: int, position: int, shards: Sequence[int]) -> list[Operator]:
        """An operator of a stage in the shards that have state."""
        return [found[position] for shard in shards if (found := self._shard(stage, shard))]


class _ReadOnlyVariables:
    """The state variables of a shard for `SparkStore`, without writes."""

    def __init__(self, reader: StateReader, operator: int, shard: int) -> None:
        self._reader, self._operator, self._shard = reader, operator, shard

    def get(self) -> tuple[Any, ...] | None:
        return self._reader.meta(self._operator, self._shard)

    def getValue(self, key: tuple[Any, ...]) -> tuple[Any, ...] | None:  # noqa: N802
        return self._reader.blob(self._operator, self._shard, *key)

    def update(self, value: tuple[Any, ...]) -> None:
        self._refuse(value)

    def updateValue(self, key: tuple[Any, ...], value: tuple[Any, ...]) -> None:  # noqa: N802
        self._refuse(key, value)

    def removeKey(self, key: tuple[Any, ...]) -> None:  # noqa: N802
        self._refuse(key)

    def _refuse(self, *_: object) -> NoReturn:
        raise StateError(
            "the state of a query is read-only here. Hint: stop the query to change it"
        )


def read_state(checkpoint: str, *, specs: Sequence[Sequence[Upstream]] | None = None) -> QueryState:
    """The state of the query with this checkpoint after its last committed batch."""
    reader = open_reader(checkpoint)
    return QueryState(checkpoint, reader, metadata=read_metadata(checkpoint), specs=specs)


def open_reader(checkpoint: str) -> StateReader:
    """A reader of the files of a checkpoint; if that is not possible, one that starts Spark."""
    try:
        reader = CheckpointReader(checkpoint)
    except (SetupError, UnsupportedCheckpointError) as reason:
        return _spark_reader(checkpoint, str(reason))
    if not has_rocksdb():
        missing = MissingExtraError("rocksdict", "rocksdb", "reading state without Spark")
        return _spark_reader(checkpoint, str(missing))
    return reader


def _spark_reader(checkpoint: str, reason: str) -> StateReader:
    if find_spec("pyspark") is None:
        raise StateError(f"the state in {checkpoint} cannot be read: {reason}")
    from tidegate.spark.environment.session import running_session, session
    from tidegate.spark.query.state.spark_reader import SparkReader

    warnings.warn(
        f"the state is read through Spark, which takes longer: {reason}", RuntimeWarning, 3
    )
    return SparkReader(running_session() or session("tidegate state", cores=1), checkpoint)


def _joins(operators: Sequence[Operator]) -> list[WindowedJoin] | None:
    """The operators as joins; None if they are aggregates."""
    found = [operator for operator in operators if isinstance(operator, WindowedJoin)]
    return found or None


def _aggregates(operators: Sequence[Operator]) -> list[WindowedAggregate]:
    return [operator for operator in operators if isinstance(operator, WindowedAggregate)]


def _needed(side: int | str | None) -> int | str:
    if side is None:
        raise InputError("the operator is a join and has two sides. Hint: side='left'")
    return side


def _refused(side: int | str | None) -> None:
    if side is not None:
        raise InputError(f"only joins have sides, got side={side!r}. Hint: leave `side` out")

"""The stateful processor of a query in which every shard plays its part of a scenario."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import Row

from tidegate.errors import TidegateError
from tidegate.operators.aggregate.operator import WindowedAggregate
from tidegate.operators.inspection.aggregate import AggregateInspection
from tidegate.operators.inspection.join import kept, messages_in
from tidegate.operators.join.operator import WindowedJoin
from tidegate.scenarios.runtimes import window_of
from tidegate.scenarios.spark_script import ScriptedProcessor
from tidegate.spark.tasks.chain import Chain, ChainOutput, ChainPlan
from tidegate.spark.tasks.shards import ShardLayout
from tidegate.spark.tasks.state_store import SparkStore
from tidegate.spark.tasks.transport import encode_json_payload
from tidegate.spec.join import SIDES
from tidegate.state.serialization import encode_table

SEEN, CONTENTS = "seen", "contents"
"""Further outputs of a script: facts of the operator, and the values of its open windows."""
KEPT = tuple(f"kept_{side}" for side in SIDES)
"""And the buffered rows of each side of a join."""


@dataclass(frozen=True)
class Role:
    """The part of a shard."""

    plan: ChainPlan
    layout: ShardLayout
    start_clock: int = 0
    """Where the clock of a new operator starts."""


class Players(ScriptedProcessor):
    """One operator per role; each is the one that its own query would have."""

    def __init__(self, roles: Mapping[int, Role], *, keeps: bool) -> None:
        """With `keeps` a worker keeps operators from batch to batch as usual; without, each is read
        from Spark's state again.
        """
        some = next(iter(roles.values()))
        super().__init__(some.plan, some.layout)
        self._roles, self._keeps = dict(roles), keeps

    def _call(
        self,
        shard: int,
        timers: Any,
        work: Callable[[Chain, int], list[ChainOutput]],
        forwarded: Sequence[tuple[str, bytes]] = (),
    ) -> Iterator[Row]:
        role = self._roles[shard]
        self._plan, self._layout = role.plan, role.layout
        self._start_clock = role.start_clock
        seen: list[tuple[str, bytes]] = []

        def watched(chain: Chain, now: int) -> list[ChainOutput]:
            found = work(chain, now)
            seen.extend(_seen(chain))
            return found

        try:
            rows = list(super()._call(shard, timers, watched, forwarded))
        except TidegateError as error:
            # As after a batch that failed, nothing has been stored.
            rows, seen = [], [(SEEN, encode_json_payload({"refused": str(error)}))]
        except Exception as error:  # noqa: BLE001
            rows, seen = (
                [],
                [(SEEN, encode_json_payload({"broken": f"{type(error).__name__}: {error}"}))],
            )
        yield from rows
        yield from (
            Row(output=output, shard=shard, payload=payload, metrics=None)
            for output, payload in seen
        )

    def _keep(self, shard: int, chain: Chain, store: SparkStore) -> None:
        if self._keeps:
            super()._keep(shard, chain, store)


def _seen(chain: Chain) -> Iterator[tuple[str, bytes]]:
    first = chain.operators[0]
    return _join_seen(first) if isinstance(first, WindowedJoin) else _aggregate_seen(first)


def _join_seen(join: WindowedJoin) -> Iterator[tuple[str, bytes]]:
    yield (
        SEEN,
        encode_json_payload(
            {"output_watermarks": {**join.output_watermarks, "": join.output_watermark}}
        ),
    )
    for output, side in zip(KEPT, join.sides, strict=True):
        rows = messages_in(kept(side))
        if rows.num_rows:
            yield output, encode_table(rows).to_pybytes()


def _aggregate_seen(operator: WindowedAggregate) -> Iterator[tuple[str, bytes]]:
    inside = _Inside(operator)
    asked = {
        "dropped": operator.progress.counters["dropped_pairs"],
        "hold": operator.hold,
        "watermark": operator.progress.watermark,
        "output_watermark": operator.output_watermark,
        "windows": sorted({window_of(row) for row in inside.get_windows(None, None)}),
    }
    yield SEEN, encode_json_payload(asked)
    contents: pa.Table = inside.peek()
    if contents.num_rows:
        yield CONTENTS, encode_table(contents).to_pybytes()


class _Inside(AggregateInspection):
    """An operator of a chain, with the inspection of an embedded one."""

    def __init__(self, operator: WindowedAggregate) -> None:
        self.operator = operator

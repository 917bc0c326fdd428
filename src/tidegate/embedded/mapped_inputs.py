"""The async maps in front of an embedded operator, which gets only answered deliveries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from tidegate.operators.async_map.delivery import DeliveryCalls, late_results, observed_messages
from tidegate.operators.async_map.executor import AsyncExecutor
from tidegate.operators.chain import Operator
from tidegate.operators.ingest.delivery import Arrival
from tidegate.operators.results import Results
from tidegate.spec.join import progress_axis
from tidegate.spec.operator import Input
from tidegate.spec.windows import Axis


@dataclass(frozen=True, eq=False)
class MappedArrivals:
    """A delivery of several inputs behind their maps."""

    arrivals: list[Arrival]
    observed: list[Arrival] | None
    """The rows that watermarks follow, where those are not the arrivals."""
    failed: list[Arrival]
    """Messages without a result."""

    def late(self, operator: Operator) -> list[Results]:
        """The failed messages as late rows of the operator."""
        return [
            late_results(operator, one.table, one.ordinal)
            for one in self.failed
            if one.table.num_rows
        ]


class MappedInputs:
    """The maps of the inputs of one operator, with one event loop."""

    def __init__(self, inputs: Sequence[Input]) -> None:
        self._inputs = inputs
        self._executors: list[AsyncExecutor] = []
        self._calls: dict[int, DeliveryCalls] = {}
        for number, given in enumerate(inputs):
            if given.mapped is not None:
                self._executors = self._executors or [AsyncExecutor(given.mapped.map)]
                self._calls[number] = DeliveryCalls(given, given.mapped, self._executors[0])

    def __len__(self) -> int:
        return len(self._calls)

    def expected(self, operator: Operator, ordinal: int) -> pa.Schema | None:
        """The columns of the messages of an input, as far as they are known."""
        calls = self._calls.get(ordinal)
        return operator.expected(ordinal) if calls is None else calls.schemas.input

    def run(self, operator: Operator, arrivals: Sequence[Arrival]) -> MappedArrivals:
        """Call the functions for the messages of mapped inputs, and wait for all answers."""
        if not any(arrival.ordinal in self._calls for arrival in arrivals):
            return MappedArrivals(list(arrivals), None, [])
        results, observed, failed = list[Arrival](), list[Arrival](), list[Arrival]()
        for arrival in arrivals:
            number = arrival.ordinal
            calls = self._calls.get(number)
            if calls is None:
                results.append(arrival)
                observed.append(arrival)
                continue
            calls.know(operator.expected(number))
            mapped = calls.run(arrival.table)
            # On other axes than time, the results themselves are the progress.
            seen = (
                observed_messages(self._inputs[number], mapped.messages)
                if progress_axis(operator.spec, number) is Axis.EVENT_TIME
                else mapped.rows
            )
            results.append(Arrival(number, mapped.rows))
            observed.append(Arrival(number, seen))
            failed.append(Arrival(number, mapped.failed))
        return MappedArrivals(results, observed, failed)

    def close(self) -> None:
        """Cancel running calls and end the event loop."""
        for executor in self._executors:
            executor.close()

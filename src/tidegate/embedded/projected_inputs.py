"""The projections in front of an embedded operator, which gets only their results."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from tidegate.operators.chain import Operator
from tidegate.operators.ingest.delivery import Arrival
from tidegate.operators.ingest.projection import project_arrivals, projected_schema
from tidegate.operators.ingest.schema_cast import bindable, cast_to_schema, widened
from tidegate.spec.operator import Input


class ProjectedInputs:
    """The projections of the inputs of one operator, and the columns that rows bring."""

    def __init__(self, inputs: Sequence[Input]) -> None:
        self._inputs = inputs
        self._raw: dict[int, pa.Schema] = {}
        """By input with projections, the columns of its rows so far."""

    def __len__(self) -> int:
        return sum(bool(given.projections) for given in self._inputs)

    def has(self, ordinal: int) -> bool:
        """Whether the rows of an input pass a projection."""
        return bool(self._inputs[ordinal].projections)

    def expected(self, ordinal: int) -> pa.Schema | None:
        """The columns of the rows of an input with projections, as far as they are known."""
        return self._raw.get(ordinal)

    def schema(self, ordinal: int, schema: pa.Schema) -> pa.Schema:
        """The columns behind the projections of an input whose rows have these columns."""
        if self.has(ordinal):
            schema = self._raw[ordinal] = bindable(schema)
        return projected_schema(schema, self._inputs[ordinal].projections)

    def run(
        self, operator: Operator, arrivals: Sequence[Arrival], observed: Sequence[Arrival] | None
    ) -> tuple[list[Arrival], list[Arrival] | None]:
        """The arrivals behind their projections, and the rows that watermarks follow."""
        cast = [self._cast(arrival) for arrival in arrivals]
        return project_arrivals(operator.spec.inputs, cast, observed)

    def _cast(self, arrival: Arrival) -> Arrival:
        """The arrival with the column types of those before it."""
        ordinal = arrival.ordinal
        if not self.has(ordinal):
            return arrival
        schema = widened(self._raw.get(ordinal), bindable(arrival.table.schema))
        self._raw[ordinal] = schema
        return Arrival(ordinal, cast_to_schema(arrival.table, schema, None).table)

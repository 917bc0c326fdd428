"""The embedded join; see `EmbeddedBase` for input, output and state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from tidegate.embedded.base import Consumer
from tidegate.embedded.exclusive import exclusive
from tidegate.embedded.result_queue import Downstream
from tidegate.embedded.visible import VisibleOperator
from tidegate.errors import InputError
from tidegate.instants import Instant
from tidegate.operators.explain.facts import Explanation
from tidegate.operators.explain.join import described, explain_join
from tidegate.operators.history.facts import History
from tidegate.operators.inspection.join import JoinInspection
from tidegate.operators.join.operator import WindowedJoin
from tidegate.spec.join import SIDES, JoinSpec
from tidegate.spec.operator import ordinal_of
from tidegate.state.store import Store


@exclusive
class EmbeddedJoin(JoinInspection, VisibleOperator):
    """One join in this process; its inputs are "left" and "right", or 0 and 1.

    The inputs of a union have numbers, those of a merge names: the left ones come first.
    """

    operator: WindowedJoin

    def __init__(
        self,
        spec: JoinSpec,
        *,
        store: Store | None = None,
        downstream: Consumer | Downstream | None = None,
        now: int | None = None,
        schemas: tuple[pa.Schema | None, pa.Schema | None] = (None, None),
    ) -> None:
        """With `schemas`, those of both sides, the output columns are known from the start."""
        spec = self._open(store, downstream, now, spec)
        self.inputs, self.names = spec.inputs, spec.input_names
        self.operator = WindowedJoin(spec, self._store, now=self._clock.start)
        self._restore()
        self.operator.bind(*schemas)

    @property
    def spec(self) -> JoinSpec:
        return self.operator.spec

    def add_message(
        self, message: Mapping[str, Any], *, now: Instant | None = None, input: int | str = 0
    ) -> None:
        """Process one message of an input."""
        self.add_messages([message], now=now, input=input)

    def add(self, *, left: Any = None, right: Any = None, now: Instant | None = None) -> None:
        """Process a delivery of both inputs: left before right; watermarks advance after both."""
        self._check_open()
        names = [SIDES[self.spec.side_of(number)] for number in range(len(self.inputs))]
        given = zip(SIDES, (left, right), strict=True)
        self._process(
            [(ordinal_of(names, side), rows) for side, rows in given if rows is not None], now
        )

    # Explanation

    def explain(self) -> str:
        """What the join does, as text, with the current layout of its state."""
        left, right = (side.buffer.is_large for side in self.operator.sides)
        return described(self.spec, (left, right))

    def explain_watermark(self) -> Explanation:
        """Why there is no output: what holds a watermark back, and how many rows wait for one."""
        return explain_join(self.operator, **self._runtime_facts())

    def why(
        self,
        key: object = None,  # noqa: ARG002 - as for windows
        start: Instant | None = None,  # noqa: ARG002
        end: Instant | None = None,  # noqa: ARG002
    ) -> History:
        """Raises `InputError`: the rows of a join are in no window with a history."""
        raise InputError(
            "a join has no windows with a history. Hint: `get_messages` shows its rows, `why` of an"
            " aggregate behind it the history of its windows"
        )

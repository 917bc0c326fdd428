"""Joined streams: two streams, the window in which their rows meet, and all that decides what comes
out when.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tidegate.api.running import Pipeline
from tidegate.embedded.base import Consumer
from tidegate.embedded.join import EmbeddedJoin
from tidegate.embedded.result_queue import Downstream
from tidegate.errors import SpecError
from tidegate.instants import Duration, Instant, duration, instant
from tidegate.operators.explain.join import described
from tidegate.spec.join import Condition, JoinSpec, JoinWindow, Within, equal_fields
from tidegate.spec.operator import Input, Retention
from tidegate.spec.presets import choose
from tidegate.spec.watermarks import Explicit
from tidegate.state.protocol import Store

if TYPE_CHECKING:
    from tidegate.api.streams import Stream


@dataclass(frozen=True)
class Joined(Pipeline[JoinSpec]):
    """A complete specification of a join, ready to be run: embedded, or on Spark where its streams
    were made from DataFrames.
    """

    said: frozenset[str] = frozenset()
    """The options that were named: a preset does not change them."""

    def allow_lateness(self, lateness: Duration, *, unit: str | None = None) -> Joined:
        """How far behind the watermark of its side a row is still taken; 60 seconds unless said."""
        return self._with(
            said=self.said | {"allowed_lateness"}, allowed_lateness=duration(lateness, unit=unit)
        )

    def retain(
        self, *, time: Duration | None = None, messages: int | None = None, bytes: int | None = None
    ) -> Joined:
        """Bound the state: by time back from the newest row of a side, by messages of an equal key
        and side, and by bytes.
        """
        return self._with(
            retention=Retention(None if time is None else duration(time), None, messages, bytes)
        )

    def options(self, *, semantics: str | None = None, **options: Any) -> Joined:
        """Change what people change rarely; `semantics` takes the habits of another system for what
        was not said.
        """
        chosen, said, preset = choose(self.spec.options, self.said, semantics, options)
        lateness = None if preset is None or "allowed_lateness" in said else preset.allowed_lateness
        return self._with(
            said=said,
            options=chosen,
            **({} if lateness is None else {"allowed_lateness": lateness}),
        )

    def early_padding(self) -> Joined:
        """A row that comes without a partner is padded at once, and taken back when one comes."""
        return self._with(padding="early")

    def final_padding(self) -> Joined:
        """A row without a partner is padded only when none could be taken any more, so that nothing
        is ever taken back.
        """
        return self._with(padding="final")

    def update_every(self, on_time: Duration | None = None, late: Duration | None = None) -> Joined:
        """Hold what comes out back until the clock reaches the next multiple of a period: one for
        late pairs, one for all others.
        """
        periods = [None if period is None else duration(period) for period in (on_time, late)]
        return self._with(on_time_period=periods[0], late_period=periods[1])

    def keyed_message_store(self, *fields: str) -> Joined:
        """Keep messages by equal fields first, by these or by all of them, whatever the size of
        windows is.
        """
        return self._with(layout=fields or tuple(name for name, _ in self.spec.on))

    def explain(self) -> str:
        """What the join does, as text: how rows meet, when each side is freed and padded, how
        messages are kept and why, what is promised.
        """
        return described(self.spec)

    def stream(self, *, time: str, key: str | Sequence[str] | None = None) -> Stream:
        """What comes out as a stream on one of its time columns, whose watermark is that which the
        join promises for it.
        """
        from tidegate.api.streams import Stream

        keys = () if key is None else (key,) if isinstance(key, str) else tuple(key)
        return Stream(Input(time=time, key=keys, watermark=Explicit()), sources=(self,))

    def embedded(
        self,
        *,
        store: Store | None = None,
        downstream: Consumer | Downstream | None = None,
        now: Instant | None = None,
        schemas: tuple[pa.Schema | None, pa.Schema | None] = (None, None),
    ) -> EmbeddedJoin:
        """An operator in this process; a store that holds state of this specification is continued.

        With `now` the clock begins there and moves only where a call tells it; without, the clock
        of the machine is read. `schemas` are the columns of both sides; without, they are known
        when the first rows come.
        """
        return EmbeddedJoin(
            self.spec,
            store=store,
            downstream=downstream,
            now=None if now is None else instant(now),
            schemas=schemas,
        )

    def _with(self, *, said: frozenset[str] | None = None, **changes: Any) -> Joined:
        return dataclasses.replace(
            self,
            spec=dataclasses.replace(self.spec, **changes),
            said=self.said if said is None else said,
        )


def join(
    left: Stream,
    right: Stream,
    window: JoinWindow | Within,
    *,
    on: str | Sequence[str] | Mapping[str, str] | None = None,
    how: str = "inner",
    where: Condition | None = None,
    names: tuple[str, str] = ("left_", "right_"),
) -> Joined:
    """Rows of two streams that meet; see `Stream.join`."""
    if left.also or right.also:
        raise SpecError(
            "a united stream cannot be joined as a whole. Hint: join each of its streams, and unite"
            " what comes out"
        )
    fields = equal_fields(on, left.input, right.input)
    spec = JoinSpec(
        left.input,
        right.input,
        (window,) if isinstance(window, Within) else window,
        fields,
        how,
        where,
        (names[0], names[1]),
    )
    if bool(left.sources) != bool(right.sources):
        raise SpecError(
            "one of the joined streams has a source and the other has none. Hint: make both from"
            " DataFrames, or none"
        )
    return Joined(spec, (*left.sources, *right.sources))

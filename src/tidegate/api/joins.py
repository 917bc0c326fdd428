"""The fluent API of joins: two streams, a window, and options for output and state."""

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
from tidegate.instants import Duration, Instant, duration, instant
from tidegate.operators.explain.join import described
from tidegate.spec.join import Condition, JoinSpec, JoinWindow, Within, equal_fields
from tidegate.spec.operator import Input, Retention
from tidegate.spec.presets import change_options
from tidegate.spec.watermarks import Explicit
from tidegate.state.store import Store

if TYPE_CHECKING:
    from tidegate.api.streams import Stream


@dataclass(frozen=True, repr=False)
class Joined(Pipeline[JoinSpec]):
    """The complete specification of a join.

    It runs embedded, or on Spark if its streams were made from DataFrames.
    """

    explicit_options: frozenset[str] = frozenset()
    """The options that were set explicitly: a preset does not change them."""

    def allow_lateness(self, lateness: Duration, *, unit: str | None = None) -> Joined:
        """How late a row may be, behind the watermark of its side.

        Default: 60 seconds, or with `.retain` as far as rows are retained.
        """
        return self._with(
            explicit_options=self.explicit_options | {"allowed_lateness"},
            allowed_lateness=duration(lateness, unit=unit),
        )

    def retain(
        self, *, time: Duration | None = None, messages: int | None = None, bytes: int | None = None
    ) -> Joined:
        """Keep past rows: by time behind the newest row of a side, by messages per equal key and
        side, and by bytes.

        Rows within all bounds can be read, and match late rows; without `.allow_lateness` retention
        alone decides what is too late.
        """
        return self._with(
            retention=Retention(None if time is None else duration(time), None, messages, bytes)
        )

    def options(self, *, semantics: str | None = None, **options: Any) -> Joined:
        """Set advanced options; `semantics` takes those of another system as defaults."""
        chosen, explicit, preset = change_options(
            self.spec.options, self.explicit_options, semantics, options
        )
        keeps = preset is None or "allowed_lateness" in explicit
        lateness = None if preset is None or keeps else preset.allowed_lateness
        return self._with(
            explicit_options=explicit,
            options=chosen,
            **({} if lateness is None else {"allowed_lateness": lateness}),
        )

    def early_padding(self) -> Joined:
        """Pad an unmatched row with nulls at once, and retract that when a partner arrives."""
        return self._with(padding="early")

    def final_padding(self) -> Joined:
        """Pad an unmatched row only when no partner can arrive any more: no retractions."""
        return self._with(padding="final")

    def update_every(self, on_time: Duration | None = None, late: Duration | None = None) -> Joined:
        """Batch output until the next multiple of a period of the clock: `late` is the period of
        late pairs, `on_time` that of all others.
        """
        periods = [None if period is None else duration(period) for period in (on_time, late)]
        return self._with(on_time_period=periods[0], late_period=periods[1])

    def keyed_message_store(self, *fields: str) -> Joined:
        """Store messages by equal fields first, whatever the window size.

        Default: all of them; of a session join the session key.
        """
        return self._with(layout=fields or tuple(name for name, _ in self.spec.session_on))

    def explain(self) -> str:
        """The join as text: how rows match, when state is freed and rows are padded, the layout of
        the messages, and the output watermarks.
        """
        return described(self.spec)

    def stream(self, *, time: str, key: str | Sequence[str] | None = None) -> Stream:
        """The output as a stream on one of its time columns, with the join's watermark for it."""
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
        """Run the join in this process; state in the store is restored.

        With `now`, the clock starts there and advances only with the calls. Default: the clock of
        the machine. `schemas` are the columns of both sides. Default: those of the first rows.
        """
        return EmbeddedJoin(
            self.spec,
            store=store,
            downstream=downstream,
            now=None if now is None else instant(now),
            schemas=schemas,
        )

    def _with(self, *, explicit_options: frozenset[str] | None = None, **changes: Any) -> Joined:
        return dataclasses.replace(
            self,
            spec=dataclasses.replace(self.spec, **changes),
            explicit_options=(
                self.explicit_options if explicit_options is None else explicit_options
            ),
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
    """Join two streams; see `Stream.join`."""
    from tidegate.api.streams import sources_of

    fields = equal_fields(on, left.input, right.input)
    spec = JoinSpec(
        left.input,
        right.input,
        (window,) if isinstance(window, Within) else window,
        fields,
        how,
        where,
        (names[0], names[1]),
        also=(left.also, right.also),
        merged=(left.names, right.names),
    )
    return Joined(spec, sources_of([left, right])).checked()

"""The windowed join and its reference behind the same calls, and what is compared of their
answers.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from support.join_strategies import Case, fragile, not_above
from support.reference.join import reference
from support.reference.join_config import LEFT, RIGHT, AsOf, JoinConfig, Row, Rows
from tidegate.embedded.join import EmbeddedJoin
from tidegate.instants import MAX, MIN
from tidegate.kernel.frame import to_arrow
from tidegate.operators import snapshot as stored
from tidegate.operators.ingest.delivery import Arrival
from tidegate.operators.join.operator import WindowedJoin
from tidegate.spec import join as spec
from tidegate.spec.operator import Input, Options, Retention, TimeColumn
from tidegate.spec.watermarks import Explicit, Implied
from tidegate.state.memory import MemoryStore
from tidegate.state.store import Store

Output = tuple[list[Row], list[Row]]
SIDES = ("left", "right")
COLUMNS: dict[str, pa.DataType] = {
    "ts": pa.int64(),
    "t2": pa.int64(),
    "k": pa.string(),
    "v": pa.int64(),
    "n": pa.string(),
    "o": pa.int64(),
    "p": pa.string(),
}


def play(machine: Any, case: Case, look: Callable[[Any], Any] | None = None) -> list[Any]:
    """What each step gives, and with `look` what is seen after it; the last step is the end of
    input.
    """
    verbs = {
        "add": lambda value: machine.add(*value),
        "watermark": lambda value: machine.advance_watermark(*value),
        "timeout": machine.timeout,
        "flush": lambda _: machine.flush(),
        "restart": lambda _: machine.restart(),
        "finish": lambda _: machine.finish(),
    }
    answers = []
    for verb, value in [*((step.verb, step.value) for step in case.steps), ("finish", None)]:
        output = verbs[verb](value)
        answers.append(output if look is None else (output, look(machine)))
    return answers


class Model:
    """The reference, which restarts by a copy of itself."""

    def __init__(self, config: JoinConfig) -> None:
        self.machine = reference(config)

    def __getattr__(self, verb: str) -> Any:
        return getattr(self.machine, verb)

    def flush(self) -> Output:
        return [], []

    def restart(self) -> Output:
        self.machine.restore(self.machine.snapshot())
        return [], []

    def kept(self, side: int) -> list[str]:
        return sorted(row["n"] for row in self.machine.kept(side))


def window_of(config: JoinConfig) -> Any:
    """The window of the specification."""
    match config.window:
        case tuple():
            return tuple(
                spec.Within(w.before, w.after, w.closed, w.left, w.right) for w in config.window
            )
        case Rows():
            return spec.Rows(**dataclasses.asdict(config.window))
        case AsOf(tolerance, strict):
            return spec.AsOf(tolerance, strict)
    return config.window


def condition(config: JoinConfig) -> Any:
    """The condition of the reference as one over columns."""
    if config.where is not_above:
        return pc.field("left_v") <= pc.field("right_v")
    return _fragile if config.where is fragile else None


def _fragile(pairs: pa.Table) -> Any:
    left, right = pairs.column("left_v"), pairs.column("right_v")
    if pc.any(pc.and_(pc.equal(left, 2), pc.equal(right, 1))).as_py():
        raise ArithmeticError
    return pc.less_equal(left, right)


def specification(config: JoinConfig) -> spec.JoinSpec:
    """The specification of the operator that a configuration means."""
    time = "ts" if config.columns(LEFT) else None
    mark = Explicit() if config.watermark == "explicit" else Implied()
    others = [
        (TimeColumn("t2", mark, 1),) if "t2" in config.columns(side) else ()
        for side in (LEFT, RIGHT)
    ]
    left, right = (
        Input(time, keys, config.id, config.offset, config.partition, mark, others=more)
        for keys, more in zip(session_keys(config), others, strict=True)
    )
    return spec.JoinSpec(
        left,
        right,
        window_of(config),
        config.on,
        config.how,
        condition(config),
        allowed_lateness=config.allowed_lateness,
        options=Options(future=config.future, future_tolerance=config.future_tolerance),
        retention=Retention(time=config.retain_time),
        padding=config.padding,
        on_time_period=config.on_time_every,
        late_period=config.late_every,
    )


def session_keys(config: JoinConfig) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The keys of both streams, where these are the session key."""
    fields = config.on[: config.session_fields] if config.session_fields is not None else ()
    return tuple(pair[LEFT] for pair in fields), tuple(pair[RIGHT] for pair in fields)


class Bare:
    """The operator without a runtime behind the calls of the reference; it is saved and restored
    with every `restart`.
    """

    def __init__(self, config: JoinConfig, store: Callable[[], Store] | None = None) -> None:
        names: dict[str, pa.DataType] = {
            **COLUMNS,
            **({"op": pa.string()} if config.retracts else {}),
        }
        self.config, self.now, self.schema = config, 0, pa.schema(names)
        self.open_store = store
        self.store = store() if store is not None else MemoryStore()
        self.operator = self.made()
        self.operator.bind(self.schema, self.schema)

    def made(self) -> WindowedJoin:
        return WindowedJoin(
            specification(self.config),
            self.store,
            now=self.now,
            op_column="op" if self.config.retracts else None,
        )

    def flush(self) -> Output:
        stored.save(self.operator)
        self.store.commit()
        stored.release(self.operator)
        return [], []

    def restart(self) -> Output:
        self.flush()
        if self.open_store is not None:
            self.store.close()
            self.store = self.open_store()
        self.operator = self.made()
        assert stored.restore(self.operator)
        return [], []

    def add(self, left: list[Row], right: list[Row]) -> Output:
        arrivals = [
            Arrival(side, pa.Table.from_pylist(rows, self.schema))
            for side, rows in enumerate((left, right))
            if rows
        ]
        return self.plain(self.operator.process_all(arrivals, self.now))

    def advance_watermark(self, side: int, watermark: int, column: str = "ts") -> Output:
        return self.plain(
            self.operator.change_sources(
                lambda watermark_tracker: watermark_tracker.promise(
                    watermark, ordinal=side, key=1 if column == "t2" else 0
                )
            )
        )

    def timeout(self, now: int) -> Output:
        self.now = max(self.now, now)
        return self.plain(self.operator.advance_clock(self.now))

    def finish(self) -> Output:
        return self.plain(self.operator.finish())

    def kept(self, side: int) -> list[str]:
        frames = self.operator.sides[side].buffer.frames()
        return sorted(str(name) for frame in frames for name in to_arrow(frame["m.n"]).to_pylist())

    def output_watermarks(self) -> tuple[int, int]:
        promised = [self.operator.matching.promised(side)["ts"] for side in (LEFT, RIGHT)]
        return promised[LEFT], promised[RIGHT]

    def plain(self, output: Any) -> Output:
        """The answer of the operator as the reference gives it."""
        results = self.operator.renderer().render(output)
        return self.shown(results.panes.to_pylist(), results.late.to_pylist())

    def shown(self, panes: list[Row], late: list[Row]) -> Output:
        """Rendered rows as the reference gives them."""
        return [self._pane(row) for row in panes], [_late(row) for row in late]

    def _pane(self, row: Row) -> Row:
        window = None if "window_start" not in row else _bounds(row)
        sides = {side: self._side(row, side) for side in SIDES}
        return {
            **sides,
            "window": window,
            **{added: row[added] for added in ("op", "timing", "pair_id", "emitted_at")},
        }

    def _side(self, row: Row, side: str) -> Row | None:
        """The columns of one side; None where it is padded. Equal fields are there once, and of
        semi and anti joins the left side only.
        """
        if self.config.how in ("semi", "anti"):
            return None if side == "right" else {column: row[column] for column in COLUMNS}
        found = {
            column: row[column if (column, column) in self.config.on else f"{side}_{column}"]
            for column in COLUMNS
        }
        return None if found["n"] is None else found


class Embedded(Bare):
    """The operator in the embedded runtime: results wait there until they are fetched, and a
    restart is that of a process.
    """

    def __init__(self, config: JoinConfig, store: Callable[[], Store] | None = None) -> None:
        super().__init__(config, store)
        self.open()

    def open(self) -> None:
        self.runtime = EmbeddedJoin(
            specification(self.config),
            store=self.store,
            now=self.now,
            schemas=(self.schema, self.schema),
        )
        self.operator = self.runtime.operator

    def results(self) -> Output:
        found = self.runtime.get_result()
        self.runtime.flush()
        return [self._pane(row) for row in found.panes.to_pylist()], [
            _late(row) for row in found.late.to_pylist()
        ]

    def flush(self) -> Output:
        self.runtime.flush()
        return self.results()

    def restart(self) -> Output:
        self.runtime.flush()
        if self.open_store is not None:
            self.runtime.close()
            self.store = self.open_store()
        self.open()
        return self.results()

    def add(self, left: list[Row], right: list[Row]) -> Output:
        tables = [
            pa.Table.from_pylist(rows, self.schema) if rows else None for rows in (left, right)
        ]
        self.runtime.add(left=tables[LEFT], right=tables[RIGHT])
        return self.results()

    def advance_watermark(self, side: int, watermark: int, column: str = "ts") -> Output:
        self.runtime.advance_watermark(watermark, input=SIDES[side], key=1 if column == "t2" else 0)
        return self.results()

    def timeout(self, now: int) -> Output:
        self.now = max(self.now, now)
        self.runtime.timeout(now)
        return self.results()

    def finish(self) -> Output:
        self.runtime.finish()
        return self.results()

    def kept(self, side: int) -> list[str]:
        return sorted(map(str, self.runtime.get_messages(SIDES[side]).column("n").to_pylist()))


def _bounds(row: Row) -> tuple[int, int]:
    """The window of a row; the ends of time are null in the output."""
    start, end = row["window_start"], row["window_end"]
    return (MIN if start is None else start), (MAX if end is None else end)


def _late(row: Row) -> Row:
    if row["reason"] == "nothing_to_retract":
        row["op"] = "-"
    return {
        "side": SIDES.index(row["input"]),
        "row": row,
        "class": row["class"],
        "reason": row["reason"],
    }


def name(row: Row | None) -> str | None:
    return None if row is None else row["n"]


def shape(row: Row) -> str:
    """What is compared of a row of output."""
    return repr((row["op"], name(row["left"]), name(row["right"]), row["window"], row["timing"]))


def shapes(rows: Iterable[Row]) -> list[str]:
    return sorted(shape(row) for row in rows)


def late_shapes(rows: list[Row]) -> list[str]:
    """What is compared of late rows; of a pair whose condition failed either row may be told."""
    told = [
        (row["side"], name(row["row"]), row["class"]) if row["reason"] != "bad_condition" else ()
        for row in rows
    ]
    return sorted(repr((*what, row["reason"])) for what, row in zip(told, rows, strict=True))


def net(outputs: Iterable[Output]) -> Counter[tuple[str | None, str | None]]:
    """What stands at the end: emits minus retracts."""
    found: Counter[tuple[str | None, str | None]] = Counter()
    for row in (row for out in outputs for row in out[0]):
        found[name(row["left"]), name(row["right"])] += 1 if row["op"] == "+" else -1
    return found

"""Random joins and histories of their two sides, small enough to be read when one of them fails."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from hypothesis import strategies as st

from support.reference.join_config import AsOf, JoinConfig, Row, Rows, Within
from tidegate.instants import MAX
from tidegate.spec.windows import (
    Axis,
    ByDifference,
    Cumulative,
    Global,
    Hopping,
    Session,
    Tumbling,
)

KEYS = ("a", "a", "a", "a", "b", "b", None)
PAIRS = [
    (("t2", "t2"),),
    (("ts", "ts"), ("t2", "t2")),
    (("ts", "t2"), ("t2", "ts")),
    (("t2", "ts"),),
    (("ts", "ts"), ("ts", "t2")),
]
"""Time columns of the left and the right that bounds are between."""
CLOSED: tuple[Literal["both", "left", "right", "neither"], ...] = (
    "both",
    "both",
    "left",
    "right",
    "neither",
)
HOWS = ("inner", "left", "right", "full", "semi", "anti")


@dataclass(frozen=True)
class Step:
    """One call: `add` with the rows of both sides, `watermark` with side, instant and column,
    `timeout` with an instant, `flush`, `restart`.
    """

    verb: str
    value: Any = None


@dataclass(frozen=True)
class Case:
    """A join and what happens to it; the end of input comes after the last step."""

    config: JoinConfig
    steps: tuple[Step, ...]


def not_above(left: Row, right: Row) -> bool | None:
    """A condition that is unknown where a value is."""
    return None if left["v"] is None or right["v"] is None else left["v"] <= right["v"]


def fragile(left: Row, right: Row) -> bool | None:
    """A condition that fails for some pairs."""
    if left["v"] == 2 and right["v"] == 1:
        raise ArithmeticError
    return not_above(left, right)


@st.composite
def bounds(draw: st.DrawFn, *, open_ended: bool = True) -> Within:
    closed = draw(st.sampled_from(CLOSED))
    before, width = (
        draw(st.integers(-6, 10)),
        draw(st.integers({"both": 0, "neither": 2}.get(closed, 1), 14)),
    )
    after = width - before
    rarely = draw(st.integers(0, 9)) if open_ended else 9
    return Within(None if rarely == 0 else before, None if rarely == 1 else after, closed)


@st.composite
def windows(draw: st.DrawFn, kinds: tuple[str, ...]) -> Any:
    match draw(st.sampled_from(kinds)):
        case "tuples":
            window = draw(windows((*GRIDS, "session", "session")))
            touch = {"touch": "separate"} if isinstance(window, Session) else {}
            return replace(window, axis=Axis.OFFSET, **touch)
        case "within":
            return (draw(bounds()),)
        case "several":
            return (draw(bounds()), draw(bounds(open_ended=False)))
        case "columns":
            return tuple(
                replace(draw(bounds()), left=left, right=right)
                for left, right in draw(st.sampled_from(PAIRS))
            )
        case "tumbling":
            return Tumbling(draw(st.integers(1, 12)), draw(st.integers(-5, 5)))
        case "hopping":
            size = draw(st.integers(1, 12))
            return Hopping(size, draw(st.integers(max(1, size // 4), 14)), draw(st.integers(-5, 5)))
        case "cumulative":
            size = draw(st.integers(1, 12))
            return Cumulative(size, draw(st.integers(1, size)), draw(st.integers(-5, 5)))
        case "global":
            return Global()
        case "by_difference":
            return ByDifference(draw(st.integers(1, 12)))
        case "session":
            return Session(
                draw(st.integers(1, 8)),
                touch=draw(st.sampled_from(["separate", "separate", "merge"])),
            )
        case "rows":
            return Rows(draw(st.none() | st.integers(1, 5)), draw(st.none() | st.integers(1, 5)))
        case "mixed":
            count, span = draw(st.none() | st.integers(1, 5)), draw(st.integers(1, 12))
            if draw(st.booleans()):
                return Rows(left=count, right_time=span)
            return Rows(right=count, left_time=span)
    strict = draw(st.booleans())
    return AsOf(draw(st.none() | st.integers(int(strict), 10)), strict)


GRIDS = ("tumbling", "hopping", "cumulative", "global", "by_difference")
RANGES = ("within", "within", "within", "several", "columns", *GRIDS)
ALL_KINDS = (
    *(*RANGES, "session", "session", "rows", "mixed", "as_of", "as_of", "tuples", "tuples"),
)
TIMED = tuple(kind for kind in ALL_KINDS if kind not in ("rows", "mixed", "tuples"))


@st.composite
def configs(
    draw: st.DrawFn,
    kinds: tuple[str, ...] = ALL_KINDS,
    *,
    periods: bool = False,
    retention: bool = False,
) -> JoinConfig:
    window = draw(windows(kinds))
    how = draw(st.sampled_from(HOWS if not isinstance(window, AsOf) else ("inner", "left")))
    counted = JoinConfig(window).is_counted
    identity = "offset" if counted else draw(st.sampled_from(["", "offset", "id"]))
    on = draw(st.sampled_from([(), *[(("k", "k"),)] * 4, (("k", "k"), ("v", "v"))]))
    plain = isinstance(window, AsOf) or len(on) > 1
    config = JoinConfig(
        window,
        how,
        on=on or ((("k", "k"),) if isinstance(window, Session) else ()),
        where=None if plain else draw(st.sampled_from([None, None, None, not_above, fragile])),
        allowed_lateness=draw(st.sampled_from([0, 0, 3, 10, 30, MAX])),
        id="n" if identity == "id" else None,
        offset="o" if identity == "offset" else None,
        watermark=(
            draw(st.sampled_from(["explicit", "explicit", "implied"]))
            if not counted
            else "explicit"
        ),
        partition="p" if isinstance(window, Rows) and draw(st.booleans()) else None,
        future_tolerance=draw(st.sampled_from([MAX // 2, MAX // 2, MAX // 2, 20])),
        future=draw(st.sampled_from(["process", "reject"])),
    )
    if how in ("left", "right", "full", "anti") or isinstance(window, AsOf):
        config = replace(
            config, padding=draw(st.sampled_from(["complete", "complete", "early", "final"]))
        )
    if isinstance(window, Session) and len(config.on) > 1:
        config = replace(config, session_fields=draw(st.sampled_from([None, 1, 1])))
    if periods:
        config = replace(
            config,
            on_time_every=draw(st.none() | st.integers(1, 6)),
            late_every=draw(st.none() | st.integers(1, 6)),
        )
    if retention and not counted:
        config = replace(config, retain_time=draw(st.integers(1, 15)))
    return config


class Sender:
    """Makes the rows of one side: times of both sides wander forward together, with disorder;
    offsets have holes, some rows come again.
    """

    def __init__(
        self, draw: st.DrawFn, name: str, config: JoinConfig, *, first: int = 0, front: list[int]
    ) -> None:
        self.draw, self.name, self.config = draw, name, config
        self.front, self.offsets = front, dict.fromkeys(("x", "y"), first)
        self.sent: list[Row] = []

    def row(self) -> Row:
        again = self.draw(st.integers(0, 7)) if self.sent else 9
        if again == 0:
            return dict(self.draw(st.sampled_from(self.sent[-5:])))
        partition = self.draw(st.sampled_from("xy")) if self.config.partition else "x"
        self.offsets[partition] += self.draw(st.sampled_from([1, 1, 1, 2, 4]))
        offset = self.offsets[partition]
        if self.config.retracts and again in (1, 2):
            back = self.draw(st.sampled_from(self.sent[-5:]))
            return {
                **back,
                "op": "-",
                "o": offset if self.config.offset is not None else back["o"],
                "p": partition,
            }
        self.front[0] += self.draw(st.integers(0, 2))
        time = self.front[0] + self.draw(st.sampled_from([0, 0, 0, 1, 3, -1, -2, -4, -9, -25, 30]))
        unknown = self.draw(st.integers(0, 40))
        row = {
            "ts": None if unknown == 0 else time,
            "t2": None if unknown < 2 else time + self.draw(st.sampled_from([0, 0, 1, 4, -3])),
            "k": self.draw(st.sampled_from(KEYS)),
            "v": self.draw(st.sampled_from([0, 1, 2, 2, 3, None])),
            "n": f"{self.name}{len(self.sent)}",
            "o": offset,
            "p": partition,
        }
        if self.config.retracts:
            row["op"] = "+"
        self.sent.append(row)
        return row


@st.composite
def histories(
    draw: st.DrawFn, config: JoinConfig, most: int = 12, *, both: bool = True
) -> tuple[Step, ...]:
    """Deliveries of either side or both, watermarks, clock steps and restarts, in any order; a
    watermark goes back now and then.
    """
    front = [0]
    senders = [
        Sender(draw, "l", config, front=front),
        Sender(draw, "r", config, first=100, front=front),
    ]
    now, steps = 0, list[Step]()
    for _ in range(draw(st.integers(1, most))):
        verb = draw(
            st.sampled_from(["add"] * 5 + ["watermark"] * 3 + ["timeout", "flush", "restart"])
        )
        if verb == "add":
            which = draw(st.sampled_from(["left", "right", "both"] if both else ["left", "right"]))
            counts = [
                draw(st.integers(1, 4)) if which in (side, "both") else 0
                for side in ("left", "right")
            ]
            steps.append(
                Step(
                    "add",
                    tuple(
                        [sender.row() for _ in range(count)]
                        for sender, count in zip(senders, counts, strict=True)
                    ),
                )
            )
        elif verb == "watermark":
            side = draw(st.sampled_from([0, 1]))
            mark = front[0] + draw(st.sampled_from([-12, -6, -2, 0, 1, 9]))
            steps.append(
                Step(
                    "watermark",
                    (side, mark, draw(st.sampled_from(config.columns(side) or ("ts",)))),
                )
            )
        elif verb == "timeout":
            now += draw(st.integers(0, 9))
            steps.append(Step("timeout", now))
        else:
            steps.append(Step(verb))
    return tuple(steps)


@st.composite
def cases(
    draw: st.DrawFn, /, kinds: tuple[str, ...] = ALL_KINDS, *, retracts: bool = False, **more: Any
) -> Case:
    config = draw(configs(kinds, **more))
    if retracts:
        # Retractions reach no join that counts messages of several partitions.
        config = replace(config, retracts=True, id=None, partition=None)
    return Case(config, draw(histories(config)))


@st.composite
def cut_cases(
    draw: st.DrawFn, /, kinds: tuple[str, ...] = ALL_KINDS, **more: Any
) -> tuple[Case, Case]:
    """The same rows in the same order, cut into deliveries in two ways; watermarks are told at the
    same places.
    """
    case = draw(cases(kinds, **more))
    config = replace(case.config, watermark="explicit")
    # Where the rows of both sides are in one delivery, tuples are taken by their offsets, so that
    # cuts decide their order.
    steps = [step for step in case.steps if step.verb in ("add", "watermark", "timeout")]
    if isinstance(config.window, Rows):
        steps = [step for step in steps if step.verb != "add" or not all(step.value)]
    return Case(config, tuple(steps)), Case(
        config, tuple(piece for step in steps for piece in _apart(draw, step))
    )


def _apart(draw: st.DrawFn, step: Step) -> list[Step]:
    """A delivery in pieces, left before right, with a restart now and then between them."""
    if step.verb != "add":
        return [step]
    pieces = []
    for side, rows in enumerate(step.value):
        cut = draw(st.integers(0, len(rows)))
        for part in (rows[:cut], rows[cut:]):
            if part:
                pieces.append(Step("add", (part, []) if side == 0 else ([], part)))
            if draw(st.integers(0, 5)) == 0:
                pieces.append(Step(draw(st.sampled_from(["flush", "restart"]))))
    return pieces

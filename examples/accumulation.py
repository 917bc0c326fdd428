"""Accumulations of one's own: a weighted mean over whole columns, and the longest run of failures in plain Python."""

# ruff: noqa: INP001, T201

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

import tidegate as tg


def lift(table: pa.Table, groups: Any) -> dict[str, np.ndarray]:
    """Per group, the sum of price times amount and the sum of amounts."""
    price, amount = (table.column(name).to_numpy() for name in ("price", "amount"))
    return {"paid": groups.sum(price * amount), "amount": groups.sum(amount)}


def combine(partials: dict[str, np.ndarray], groups: Any) -> dict[str, np.ndarray]:
    """The partials of each group, added up."""
    return {name: groups.sum(column) for name, column in partials.items()}


def lower(partials: dict[str, np.ndarray]) -> np.ndarray:
    """One result for each group."""
    return partials["paid"] / partials["amount"]


WEIGHTED_MEAN = tg.columnar(
    lift=lift,
    combine=combine,
    lower=lower,
    partial_types={"paid": pa.float64(), "amount": pa.float64()},
    result_type=pa.float64(),
    columns=["price", "amount"],
)


def add(state: dict[str, int], failed: bool) -> dict[str, int]:  # noqa: FBT001 - called by position
    """One more message: `now` is the run that is under way."""
    now = state["now"] + 1 if failed else 0
    whole = state["head"] == state["n"] and failed
    return {"n": state["n"] + 1, "head": state["head"] + whole, "now": now, "best": max(state["best"], now)}


def merge(left: dict[str, int], right: dict[str, int]) -> dict[str, int]:
    """What came first, then what came after: a run may reach over the seam."""
    across = left["now"] + right["head"]
    return {
        "n": left["n"] + right["n"],
        "head": left["n"] + right["head"] if left["head"] == left["n"] else left["head"],
        "now": left["now"] + right["n"] if right["now"] == right["n"] else right["now"],
        "best": max(left["best"], right["best"], across),
    }


LONGEST_RUN = tg.python(
    zero={"n": 0, "head": 0, "now": 0, "best": 0},
    add=add,
    merge=merge,
    result=lambda state: state["best"],
    result_type=pa.int64(),
    columns="failed",
    name="longest_run",
)

PANES = (
    tg.stream(time="ts", key="shop", watermark=tg.explicit())
    .window(tg.tumbling("1 hour"))
    .aggregate(price=WEIGHTED_MEAN, worst=LONGEST_RUN, orders=tg.count(where="failed"))
)


def main() -> None:
    """Two deliveries into one window."""
    op = PANES.embedded(now="2025-03-14T12:00:00Z")
    rows = [(1, 2.0, 10.0, False), (2, 4.0, 10.0, True), (3, 3.0, 20.0, True), (4, 3.0, 10.0, True), (5, 8.0, 10.0, False)]
    orders = [{"ts": f"2025-03-14T12:{m:02}:00Z", "shop": "x", "price": p, "amount": a, "failed": f} for m, p, a, f in rows]
    op.add_messages(orders[:3])
    op.add_messages(orders[3:])
    op.finish()
    for pane in op.get_result().panes.to_pylist():
        print(f"{pane['shop']}: mean price {pane['price']:.2f}, longest run of failures {pane['worst']}, failures {pane['orders']}")


if __name__ == "__main__":
    main()

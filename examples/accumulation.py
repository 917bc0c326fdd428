"""User-defined accumulations: a weighted mean over columns, and the most frequent item in
Python.
"""

# ruff: noqa: INP001, T201

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

import tidegate as tg


def lift(table: pa.Table, groups: Any) -> dict[str, np.ndarray]:
    """One partial per group of rows: the amount paid, and the quantity."""
    price, amount = (table.column(name).to_numpy() for name in ("price", "amount"))
    return {"paid": groups.sum(price * amount), "amount": groups.sum(amount)}


def combine(partials: dict[str, np.ndarray], groups: Any) -> dict[str, np.ndarray]:
    """One partial per group of partials."""
    return {name: groups.sum(column) for name, column in partials.items()}


def lower(partials: dict[str, np.ndarray]) -> np.ndarray:
    """One result per partial."""
    return partials["paid"] / partials["amount"]


MEAN_PRICE = tg.columnar(
    lift=lift,
    combine=combine,
    lower=lower,
    partial_types={"paid": pa.float64(), "amount": pa.float64()},
    result_type=pa.float64(),
    columns=["price", "amount"],
)


def add(counts: dict[str, int], item: str, by: int = 1) -> dict[str, int]:
    """Count an item; the state is a dictionary, which JSON can represent."""
    counts[item] = counts.get(item, 0) + by
    return counts


def merge(left: dict[str, int], right: dict[str, int]) -> dict[str, int]:
    """Add two states of counts."""
    for item, count in right.items():
        add(left, item, count)
    return left


FAVOURITE = tg.python(
    zero=dict,
    add=add,
    remove=lambda counts, item: add(counts, item, -1),
    merge=merge,
    result=lambda counts: min(counts, key=lambda item: (-counts[item], item), default=None),
    result_type=pa.string(),
    columns="item",
    name="favourite",
)

PANES = (
    tg.stream(time="ts", key="shop", watermark=tg.explicit())
    .window(tg.tumbling("1 hour"))
    .aggregate(price=MEAN_PRICE, favourite=FAVOURITE)
)


def main() -> None:
    """Two deliveries into one window."""
    op = PANES.embedded(now="2025-03-14T12:00:00Z")
    rows = [
        (1, 2.0, 10.0, "tea"),
        (2, 4.0, 10.0, "jam"),
        (3, 3.0, 20.0, "tea"),
        (4, 8.0, 10.0, "rum"),
    ]
    orders = [
        {"ts": f"2025-03-14T12:{m:02}:00Z", "shop": "x", "price": p, "amount": a, "item": i}
        for m, p, a, i in rows
    ]
    op.add_messages(orders[:2])
    op.add_messages(orders[2:])
    op.finish()
    for pane in op.get_result().panes.to_pylist():
        print(f"{pane['shop']}: mean price {pane['price']:.2f}, favourite {pane['favourite']}")


if __name__ == "__main__":
    main()

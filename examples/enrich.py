"""An async map: orders get prices from a slow service, are summed by minute, and failures are
late.
"""

# ruff: noqa: INP001, T201

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import tidegate as tg

NOON = datetime(2025, 3, 14, 12, tzinfo=UTC)
PRICES = {"tea": 3, "cup": 8, "pot": 21}


class PriceService:
    """A slow service that fails the first request for a pot."""

    def __init__(self) -> None:
        self.asked = 0
        self._was_down = False

    async def __call__(self, order: dict[str, Any]) -> dict[str, Any]:
        """The order with its price and its offset, by which the downstream recognises
        duplicates.
        """
        self.asked += 1
        await asyncio.sleep(0.02)
        if order["item"] == "pot" and not self._was_down:
            self._was_down = True
            raise ConnectionError("the service is down")
        return {**order, "price": PRICES[order["item"]]}


def order(offset: int, second: int, user: str, item: str) -> dict[str, object]:
    """An order of a user for an item."""
    return {"offset": offset, "ts": NOON + timedelta(seconds=second), "user": user, "item": item}


ORDERS = [
    *(
        order(0, 5, "ann", "pot"),
        order(1, 9, "bob", "tea"),
        order(2, 7, "ann", "hat"),
        order(3, 58, "bob", "cup"),
    ),
    *(order(4, 66, "ann", "tea"), order(5, 61, "bob", "tea"), order(6, 130, "ann", "cup")),
]


def main() -> None:
    """The map computes the watermark from the orders and forwards it behind the last result."""
    service = PriceService()
    priced = tg.stream(time="ts", offset="offset", watermark=tg.bounded("5 seconds")).async_map(
        service, max_in_flight=4, retries=1, backoff="10 ms"
    )
    spent = (
        tg.stream(time="ts", key="user", offset="offset", watermark=tg.explicit())
        .window(tg.tumbling("1 minute"))
        .aggregate(orders=tg.count(), spent=tg.sum("price"))
        .embedded(now=NOON + timedelta(minutes=3))
    )
    with priced.embedded(downstream=spent, now=NOON + timedelta(minutes=3)) as lookup:
        for each in ORDERS:
            lookup.add_message(each)
        lookup.finish()
        late = lookup.get_result().late.to_pylist()
    for pane in (
        spent.get_result()
        .panes.sort_by([("window_start", "ascending"), ("user", "ascending")])
        .to_pylist()
    ):
        print(
            f"{pane['window_start']:%H:%M}  {pane['user']}  orders {pane['orders']}  spent"
            f" {pane['spent']}  {pane['timing']}"
        )
    for row in late:
        print(f"late: {row['user']} ordered a {row['item']}, {row['reason']}: {row['detail']}")
    print(
        f"asked {service.asked} times for {len(ORDERS)} orders; {spent.stats()['mildly_late']} came"
        " late to the windows"
    )


if __name__ == "__main__":
    main()

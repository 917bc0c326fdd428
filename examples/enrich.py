"""An async map: orders are completed with prices of a slow service, summed by minute on time, and
those without a price go to the late output.
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
    """A service that takes its time, and is not there when it is first asked for a pot."""

    def __init__(self) -> None:
        self.asked = 0
        self._was_down = False

    async def __call__(self, order: dict[str, Any]) -> dict[str, Any]:
        """The order with its price; the offset goes along, so that the downstream recognises an
        order that comes twice.
        """
        self.asked += 1
        await asyncio.sleep(0.02)
        if order["item"] == "pot" and not self._was_down:
            self._was_down = True
            raise ConnectionError("the service is down")
        return {**order, "price": PRICES[order["item"]]}


def order(offset: int, second: int, user: str, item: str) -> dict[str, object]:
    """An order of somebody for something."""
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
    """The map reads the watermark off the orders and tells it downstream, behind the last answer
    that it holds for.
    """
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

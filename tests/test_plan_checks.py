"""What a query on Spark refuses before it starts."""

from __future__ import annotations

import pyarrow as pa
import pytest

import tidegate as tg
from support.spark_fakes import Columns
from tidegate.api.running import plan_of
from tidegate.errors import SpecError
from tidegate.spark.plan.dataflow import check_plan


def source(**options: object) -> tg.Stream:
    schema = pa.schema({"ts": pa.int64(), "k": pa.string(), "p": pa.int64()})
    mark = tg.bounded("5 seconds", **options)
    return tg.stream(Columns(schema), time="ts", key="k", partition="p", watermark=mark)


@pytest.mark.parametrize("kind", ["window", "union", "join", "mapped"])
def test_align_is_refused_with_the_reason_and_an_alternative(kind: str) -> None:
    async def same(row: object) -> object:
        return row

    aligned, window = source(align="1 minute"), tg.tumbling("1 minute")
    pipeline = {
        "window": lambda: aligned.window(window).aggregate(n=tg.count()),
        "union": lambda: tg.union(source(), aligned).window(window).aggregate(n=tg.count()),
        "join": lambda: source().join(aligned, window, on="k"),
        "mapped": lambda: (
            aligned.async_map(same, schema="*").window(window).aggregate(n=tg.count())
        ),
    }[kind]()
    with pytest.raises(SpecError, match=r"`align` is 1 minute, but.*Hint: .*maxOffsetsPerTrigger"):
        check_plan(plan_of(pipeline))
    check_plan(plan_of(source().window(window).aggregate(n=tg.count())))

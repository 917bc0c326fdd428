"""Accumulations against plain Python: whole, in any split, and after a trip through stored
tables.
"""

from __future__ import annotations

import datetime as dt
import decimal
import math
import statistics
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tidegate
from tidegate.errors import InputError, SpecError
from tidegate.kernel.accumulations import Accumulation, Rows, bind
from tidegate.kernel.frame import Frame, concat_frames
from tidegate.kernel.groups import Groups
from tidegate.spec import aggregates as tg

GROUPS = 4
INT64 = 2**63

UTC = dt.UTC
TYPES: dict[str, tuple[pa.DataType, st.SearchStrategy]] = {
    "int64": (pa.int64(), st.integers(-INT64, INT64 - 1)),
    "small": (pa.int64(), st.integers(-5, 5)),
    "int8": (pa.int8(), st.integers(-128, 127)),
    "uint64": (pa.uint64(), st.integers(0, 2**64 - 1)),
    "float": (pa.float64(), st.floats(-1e6, 1e6) | st.just(math.nan)),
    "wild": (pa.float64(), st.floats()),
    "float32": (pa.float32(), st.floats(-1000, 1000, width=32)),
    "text": (pa.string(), st.text("abß", max_size=3)),
    "binary": (pa.binary(), st.binary(max_size=2)),
    "decimal": (pa.decimal128(38, 2), st.decimals(min_value=-(10**35), max_value=10**35, places=2)),
    "decimal256": (
        pa.decimal256(60, 1),
        st.decimals(min_value=-(10**20), max_value=10**20, places=1),
    ),
    "timestamp": (
        pa.timestamp("us", "UTC"),
        st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2100, 1, 1), timezones=st.just(UTC)),
    ),
    "date": (pa.date32(), st.dates(dt.date(1900, 1, 1), dt.date(2100, 1, 1))),
    "time": (pa.time64("us"), st.times()),
    "duration": (pa.duration("us"), st.timedeltas(dt.timedelta(days=-999), dt.timedelta(days=999))),
    "bool": (pa.bool_(), st.booleans()),
}
NUMBERS = ["int64", "small", "int8", "uint64", "float", "float32", "decimal", "decimal256", "bool"]
INTEGERS = ["int64", "small", "int8", "uint64", "bool"]
DECIMALS = ["decimal", "decimal256"]


@st.composite
def batches(draw: Any, kind: str) -> dict[str, Any]:
    """Random rows: values with nulls, a few equal times, groups of which some are empty, and a cut
    into parts.
    """
    _, values = TYPES[kind]
    n = draw(st.integers(0, 24))
    lists = {
        "v": draw(st.lists(st.none() | values, min_size=n, max_size=n)),
        "time": draw(st.lists(st.integers(-3, 3), min_size=n, max_size=n)),
        "id": draw(st.lists(st.integers(0, GROUPS - 1), min_size=n, max_size=n)),
        "part": draw(st.lists(st.integers(0, 2), min_size=n, max_size=n)),
    }
    order = list(range(100, 100 + n))
    return {**lists, "order": draw(st.permutations(order))}


def rows_of(
    batch: dict[str, Any], type: pa.DataType, keep: np.ndarray | None = None
) -> tuple[Rows, np.ndarray]:
    table = pa.table(
        {
            "v": pa.array(batch["v"], type),
            "w": pa.array([t % 2 == 0 for t in batch["time"]], pa.bool_()),
        }
    )
    index = np.arange(len(batch["v"])) if keep is None else np.flatnonzero(keep)
    time, order, ids = (np.array(batch[name], np.int64)[index] for name in ("time", "order", "id"))
    return Rows(table.take(pa.array(index)), time, order), ids


def stored(partials: dict[str, Any], accumulation: Accumulation) -> Frame:
    """Partials as they come back from a store, with the types they promised."""
    table = Frame.of(partials).to_table()
    assert {
        name: table.schema.field(name).type for name in table.column_names
    } == accumulation.partial_types
    return Frame.from_table(table)


def whole(accumulation: Accumulation, batch: dict[str, Any], type: pa.DataType) -> list[Any]:
    rows, ids = rows_of(batch, type)
    result = accumulation.lower(accumulation.lift(rows, Groups(ids, GROUPS)).partials)
    assert result.type == accumulation.result_type
    return result.to_pylist()


def split(accumulation: Accumulation, batch: dict[str, Any], type: pa.DataType) -> list[Any]:
    """Parts lifted one by one, stored, and combined from the right and then as a whole."""
    frames = []
    for part in range(3):
        rows, ids = rows_of(batch, type, np.array(batch["part"], np.int64) == part)
        frames.append(stored(accumulation.lift(rows, Groups(ids, GROUPS)).partials, accumulation))
    pair = np.tile(np.arange(GROUPS), 2)
    right = concat_frames(frames[1:])
    merged = stored(accumulation.combine(right.columns, Groups(pair, GROUPS)), accumulation)
    both = concat_frames([frames[0], merged])
    return accumulation.lower(accumulation.combine(both.columns, Groups(pair, GROUPS))).to_pylist()


def same(left: Any, right: Any, tolerance: float = 1e-6) -> bool:
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, float) and isinstance(right, float):
        return (math.isnan(left) and math.isnan(right)) or math.isclose(
            left, right, rel_tol=1e-9, abs_tol=tolerance
        )
    return left == right


def members(batch: dict[str, Any], group: int) -> list[tuple[int, int, Any]]:
    rows = zip(batch["time"], batch["order"], batch["v"], batch["id"], strict=True)
    return sorted(((t, o, v) for t, o, v, g in rows if g == group), key=lambda row: row[:2])


def as_stored(batch: dict[str, Any], type: pa.DataType) -> dict[str, Any]:
    """The batch with values as Arrow gives them back."""
    return {**batch, "v": pa.array(batch["v"], type).to_pylist()}


def differential(
    aggregate: tg.Aggregate,
    kind: str,
    batch: dict[str, Any],
    expected: Callable[[list[tuple[int, int, Any]]], Any],
) -> None:
    type = TYPES[kind][0]
    accumulation = bind(aggregate, pa.schema({"v": type, "w": pa.bool_()}))
    wanted = [expected(members(as_stored(batch, type), group)) for group in range(GROUPS)]
    for result in (whole(accumulation, batch, type), split(accumulation, batch, type)):
        assert same(result, wanted), (result, wanted)


def known(rows: list[tuple[int, int, Any]]) -> list[Any]:
    return [v for _, _, v in rows if v is not None]


def no_nan(values: list[Any]) -> list[Any]:
    return [v for v in values if not (isinstance(v, float) and math.isnan(v))]


def drawn(kinds: list[str]) -> st.SearchStrategy:
    return st.sampled_from(kinds).flatmap(lambda kind: st.tuples(st.just(kind), batches(kind)))


@given(drawn(list(TYPES)))
def test_count(given_batch):
    kind, batch = given_batch
    differential(tg.count(), kind, batch, len)
    differential(tg.count("v"), kind, batch, lambda rows: len(known(rows)))


def int_sum(rows):
    values = known(rows)
    total = sum(map(int, values))
    return total if values and -INT64 <= total < INT64 else None


@given(drawn(INTEGERS))
def test_integer_sums_are_exact_and_null_where_they_overflow(given_batch):
    kind, batch = given_batch
    differential(tg.sum("v"), kind, batch, int_sum)


@given(drawn(DECIMALS))
def test_decimal_sums_are_exact(given_batch):
    kind, batch = given_batch

    def expected(rows):
        if not (values := known(rows)):
            return None
        with decimal.localcontext(prec=80):
            return sum(values, Decimal(0))

    differential(tg.sum("v"), kind, batch, expected)


@given(drawn(["float", "float32"]))
def test_float_sums(given_batch):
    kind, batch = given_batch
    differential(
        tg.sum("v"), kind, batch, lambda rows: math.fsum(known(rows)) if known(rows) else None
    )


@given(drawn(["duration"]))
def test_duration_sums_and_means(given_batch):
    kind, batch = given_batch
    differential(
        tg.sum("v"),
        kind,
        batch,
        lambda rows: sum(known(rows), dt.timedelta()) if known(rows) else None,
    )

    def floor_mean(rows):
        micros = [v // dt.timedelta(microseconds=1) for v in known(rows)]
        return dt.timedelta(microseconds=sum(micros) // len(micros)) if micros else None

    differential(tg.mean("v"), kind, batch, floor_mean)


@given(drawn(NUMBERS))
def test_mean(given_batch):
    kind, batch = given_batch

    def expected(rows):
        values = known(rows)
        if no_nan(values) != values:
            return math.nan
        return (
            float(
                statistics.mean(
                    map(float, values) if kind.startswith("float") else map(int, values)
                )
            )
            if values
            else None
        )

    def expected_decimal(rows):
        values = known(rows)
        with decimal.localcontext(prec=80):
            return float(sum(values) / len(values)) if values else None

    differential(tg.mean("v"), kind, batch, expected_decimal if kind in DECIMALS else expected)


@given(drawn(["small", "float", "int8", "bool"]))
def test_variance_and_deviation(given_batch):
    kind, batch = given_batch

    def spread(ddof, root):
        def expected(rows):
            values = list(map(float, known(rows)))
            if len(values) <= ddof:
                return None
            if any(map(math.isnan, values)):
                return math.nan
            found = statistics.pvariance(values) * len(values) / (len(values) - ddof)
            return math.sqrt(found) if root else found

        return expected

    differential(tg.variance("v"), kind, batch, spread(1, False))
    differential(tg.variance("v", ddof=0), kind, batch, spread(0, False))
    differential(tg.stddev("v"), kind, batch, spread(1, True))


def test_variance_keeps_its_digits_far_from_zero():
    rows = Rows(
        pa.table({"v": [1e9 + x for x in (4.0, 7.0, 13.0, 16.0)]}), np.arange(4), np.arange(4)
    )
    accumulation = bind(tg.variance("v"), rows.table.schema)
    assert accumulation.lower(accumulation.lift(rows, Groups.single(4)).partials).to_pylist() == [
        30.0
    ]


@given(drawn(list(TYPES)))
def test_min_and_max_of_every_type(given_batch):
    kind, batch = given_batch

    def best(choose):
        def expected(rows):
            values = known(rows)
            return choose(no_nan(values) or values, default=None)

        return expected

    differential(tg.min("v"), kind, batch, best(min))
    differential(tg.max("v", distinct=True), kind, batch, best(max))


@given(drawn(list(TYPES)))
def test_first_and_last(given_batch):
    kind, batch = given_batch
    differential(tg.first("v"), kind, batch, lambda rows: rows[0][2] if rows else None)
    differential(tg.last("v"), kind, batch, lambda rows: rows[-1][2] if rows else None)
    differential(
        tg.first("v", ignore_nulls=True), kind, batch, lambda rows: next(iter(known(rows)), None)
    )
    differential(
        tg.last("v", ignore_nulls=True), kind, batch, lambda rows: next(reversed(known(rows)), None)
    )


@given(drawn(list(TYPES)))
def test_arg_min_and_arg_max_take_the_earliest_of_equals(given_batch):
    kind, batch = given_batch

    def winner(choose):
        def expected(rows):
            candidates = [row for row in rows if row[2] is not None]
            candidates = [row for row in candidates if no_nan([row[2]])] or candidates
            if any(not no_nan([row[2]]) for row in candidates):
                return candidates[0][0] % 2 == 0
            found = choose((row[2] for row in candidates), default=None)
            return next((row[0] % 2 == 0 for row in candidates if row[2] == found), None)

        return expected

    differential(tg.arg_min("w", "v"), kind, batch, winner(min))
    differential(tg.arg_max("w", "v"), kind, batch, winner(max))


@given(drawn(["bool"]))
def test_any_and_all(given_batch):
    kind, batch = given_batch
    differential(tg.any("v"), kind, batch, lambda rows: any(known(rows)) if known(rows) else None)
    differential(tg.all("v"), kind, batch, lambda rows: all(known(rows)) if known(rows) else None)


@given(drawn(list(TYPES)))
def test_list_by_time_and_arrival(given_batch):
    kind, batch = given_batch
    differential(tg.list_("v"), kind, batch, lambda rows: [v for _, _, v in rows])
    differential(tg.list_("v", ignore_nulls=True), kind, batch, known)


def different(rows):
    values = known(rows)
    return sorted(set(no_nan(values))) + [math.nan] * (no_nan(values) != values)


@given(drawn(list(TYPES)))
def test_distinct_values(given_batch):
    kind, batch = given_batch
    differential(tg.distinct("v"), kind, batch, different)
    differential(tg.list_("v", distinct=True), kind, batch, different)
    differential(tg.count_distinct("v"), kind, batch, lambda rows: len(different(rows)))
    differential(tg.count("v", distinct=True), kind, batch, lambda rows: len(different(rows)))


@given(drawn(["small", "int8"]))
def test_distinct_before_any_aggregate(given_batch):
    kind, batch = given_batch
    differential(
        tg.sum("v", distinct=True),
        kind,
        batch,
        lambda rows: sum(different(rows)) if different(rows) else None,
    )
    differential(
        tg.mean("v", distinct=True),
        kind,
        batch,
        lambda rows: statistics.mean(map(float, different(rows))) if different(rows) else None,
    )
    differential(
        tg.median("v", distinct=True),
        kind,
        batch,
        lambda rows: float(statistics.median(different(rows))) if different(rows) else None,
    )


@given(drawn(list(TYPES)), st.integers(1, 4))
def test_top_k(given_batch, k):
    kind, batch = given_batch

    def largest(values):
        good = sorted(no_nan(values), reverse=True)
        return (good + [math.nan] * (len(values) - len(good)))[:k]

    differential(tg.top_k("v", k), kind, batch, lambda rows: largest(known(rows)))
    differential(
        tg.top_k("v", k, distinct=True), kind, batch, lambda rows: largest(different(rows))
    )


@given(drawn(["small", "text", "decimal", "timestamp"]), st.integers(1, 4))
def test_top_k_by_another_column_takes_the_earliest_of_equals(given_batch, k):
    kind, batch = given_batch

    def by_value(rows):
        return sorted(
            (row for row in rows if row[2] is not None), key=lambda row: row[2], reverse=True
        )

    def novel(rows):
        seen = []
        return [
            seen.append(key) or row
            for row in by_value(rows)
            if (key := (row[2], row[0] % 2)) not in seen
        ]

    differential(
        tg.top_k("w", k, by="v"),
        kind,
        batch,
        lambda rows: [row[0] % 2 == 0 for row in by_value(rows)[:k]],
    )
    differential(
        tg.top_k("w", k, by="v", distinct=True),
        kind,
        batch,
        lambda rows: [row[0] % 2 == 0 for row in novel(rows)[:k]],
    )


def test_top_k_by_the_fields_of_a_struct_in_their_own_directions():
    operator = (
        tidegate.stream(time="ts", watermark=tidegate.explicit())
        .window(tidegate.tumbling("1 minute"))
        .aggregate(best=tg.top_k("v", 4, by="by", ascending=[True, False]))
        .embedded()
    )
    pairs = [(2, "a"), (1, None), (None, "z"), (1, "b"), (1, "c"), (2, "b")]
    rows = [
        {"ts": 1741953600000000 + n, "v": n, "by": {"first": first, "then": then}}
        for n, (first, then) in enumerate(pairs)
    ]
    operator.add_messages(rows)
    operator.finish()
    # Null is smallest: first where the smallest come first, else last.
    assert operator.get_result().panes["best"].to_pylist() == [[2, 4, 3, 1]]


@given(
    drawn(["small", "float", "int8", "decimal256"]),
    st.lists(st.sampled_from([0, 0.1, 0.25, 0.5, 0.9, 1]), min_size=1, max_size=3),
)
def test_exact_quantiles(given_batch, qs):
    kind, batch = given_batch

    def values(rows):
        return no_nan(list(map(float, known(rows))))

    differential(
        tg.median("v"),
        kind,
        batch,
        lambda rows: statistics.median(values(rows)) if values(rows) else None,
    )
    differential(
        tg.quantile("v", qs, exact=True),
        kind,
        batch,
        lambda rows: np.quantile(values(rows), qs).tolist() if values(rows) else None,
    )


@given(drawn(["small", "wild", "text"]))
def test_rows_that_fail_the_filter_do_not_count(given_batch):
    kind, batch = given_batch
    even = lambda rows: [row for row in rows if row[0] % 2 == 0]  # noqa: E731
    differential(tg.count(where="w"), kind, batch, lambda rows: len(even(rows)))
    differential(
        tg.max("v", where="w"),
        kind,
        batch,
        lambda rows: max(no_nan(known(even(rows))) or known(even(rows)), default=None),
    )
    differential(
        tg.arg_max("v", "v", where="w"),
        kind,
        batch,
        lambda rows: max(no_nan(known(even(rows))) or known(even(rows)), default=None),
    )
    differential(
        tg.list_("v", where=lambda table: table["w"]),
        kind,
        batch,
        lambda rows: [v for _, _, v in even(rows)],
    )


@given(drawn(NUMBERS), st.data())
def test_what_can_be_inverted_forgets_rows_that_are_taken_back(given_batch, data):
    """Rows that come and go, in any order and any split, leave what the others give."""
    kind, batch = given_batch
    type = TYPES[kind][0]
    gone = np.array(
        data.draw(st.lists(st.booleans(), min_size=len(batch["v"]), max_size=len(batch["v"]))), bool
    )
    rows, ids = rows_of(batch, type)
    kept, kept_ids = rows_of(batch, type, ~gone)
    back = np.flatnonzero(gone)
    weight = np.concatenate([np.ones(len(ids), np.int64), np.full(len(back), -1)])
    mixed = data.draw(st.permutations(range(len(weight)))) if len(weight) else []
    mixed = np.array(mixed, np.int64)
    index = np.concatenate([np.arange(len(ids)), back])[mixed]
    both = Rows(
        rows.table.take(pa.array(index)), rows.time[index], rows.order[index], weight[mixed]
    )
    aggregates: list[tg.Aggregate] = [tg.count(), tg.count("v")]
    aggregates += [] if pa.types.is_floating(type) else [tg.sum("v"), tg.mean("v")]
    for aggregate in aggregates:
        accumulation = bind(aggregate, rows.table.schema)
        assert accumulation.invertible
        half = len(mixed) // 2
        parts = [np.arange(len(mixed)) < half, np.arange(len(mixed)) >= half]
        lifted = [
            Frame.of(accumulation.lift(both.where(p), Groups(ids[index][p], GROUPS)).partials)
            for p in parts
        ]
        frame = concat_frames(lifted)
        found = accumulation.lower(
            accumulation.combine(frame.columns, Groups(np.tile(np.arange(GROUPS), 2), GROUPS))
        ).to_pylist()
        wanted = accumulation.lower(
            accumulation.lift(kept, Groups(kept_ids, GROUPS)).partials
        ).to_pylist()
        assert found == wanted, aggregate


@pytest.mark.parametrize("aggregate", [tg.sum("v"), tg.mean("v"), tg.variance("v"), tg.stddev("v")])
def test_results_of_floats_cannot_be_inverted(aggregate):
    """1e300 + 1 - 1e300 is 0 in floats: with retractions the messages are needed."""
    table = pa.table({"v": [1e300, 1.0, 1e300]})
    accumulation = bind(aggregate, table.schema)
    assert not accumulation.invertible
    with pytest.raises(InputError, match="does not support retractions"):
        accumulation.lift(
            Rows(table, np.arange(3), np.arange(3), np.array([1, 1, -1])), Groups.single(3)
        )


def test_any_and_all_take_rows_back():
    rows = Rows(
        pa.table({"v": [True, False, True]}), np.arange(3), np.arange(3), np.array([1, 1, -1])
    )
    for aggregate, wanted in ((tg.any("v"), False), (tg.all("v"), False)):
        accumulation = bind(aggregate, rows.table.schema)
        assert accumulation.lower(
            accumulation.lift(rows, Groups.single(3)).partials
        ).to_pylist() == [wanted]


@pytest.mark.parametrize(
    "aggregate",
    [
        tg.max("v"),
        tg.first("v"),
        tg.list_("v"),
        tg.count_distinct("v"),
        tg.sum("v", distinct=True),
        tg.top_k("v", 2),
    ],
)
def test_others_refuse_retractions(aggregate):
    rows = Rows(pa.table({"v": [1, 1]}), np.arange(2), np.arange(2), np.array([1, -1]))
    accumulation = bind(aggregate, rows.table.schema)
    assert not accumulation.invertible
    with pytest.raises(InputError, match="does not support retractions"):
        accumulation.lift(rows, Groups.single(2))


def test_overflow_is_reported_and_goes_away_when_the_sum_fits_again():
    rows = Rows(
        pa.table({"v": pa.array([2**63 - 1, 1, -1, 5], pa.int64())}), np.arange(4), np.arange(4)
    )
    accumulation = bind(tg.sum("v"), rows.table.schema)
    partials = accumulation.lift(rows, Groups(np.array([0, 0, 1, 2]), 3)).partials
    lowered = accumulation.evaluate(partials)
    assert lowered.values.to_pylist() == [None, -1, 5]
    assert lowered.failed is not None
    assert lowered.failed.tolist() == [True, False, False]
    assert "does not fit int64" in lowered.why
    merged = accumulation.combine(partials, Groups(np.array([0, 0, 1]), 2))
    assert accumulation.overflowed(merged) is None
    assert accumulation.lower(merged).to_pylist() == [2**63 - 1, 5]


def test_decimal_overflow_is_reported():
    high = Decimal(10**38 - 1)
    rows = Rows(
        pa.table(
            {
                "v": pa.array(
                    [high, Decimal(1), high.copy_negate(), Decimal(-1), high], pa.decimal128(38, 0)
                )
            }
        ),
        np.arange(5),
        np.arange(5),
    )
    accumulation = bind(tg.sum("v"), rows.table.schema)
    partials = accumulation.lift(rows, Groups(np.array([0, 0, 1, 1, 2]), 3)).partials
    assert accumulation.lower(partials).to_pylist() == [None, None, high]
    assert accumulation.overflowed(partials).tolist() == [True, True, False]
    assert accumulation.lower(accumulation.combine(partials, Groups.single(3))).to_pylist() == [
        high
    ]


def test_mean_of_integers_beyond_int64_and_float_precision():
    rows = Rows(
        pa.table({"v": pa.array([2**63 - 1] * 3 + [2**53 + 1], pa.int64())}),
        np.arange(4),
        np.arange(4),
    )
    accumulation = bind(tg.mean("v"), rows.table.schema)
    partials = accumulation.lift(rows, Groups(np.array([0, 0, 0, 1]), 2)).partials
    assert accumulation.lower(partials).to_pylist() == [float(2**63 - 1), float(2**53 + 1)]
    assert accumulation.overflowed(partials) is None


def test_dictionary_columns_are_read_as_their_values():
    rows = Rows(
        pa.table({"v": pa.array(["b", "a", None]).dictionary_encode()}), np.arange(3), np.arange(3)
    )
    for aggregate, wanted in (
        (tg.max("v"), "b"),
        (tg.first("v"), "b"),
        (tg.distinct("v"), ["a", "b"]),
        (tg.count("v"), 2),
    ):
        accumulation = bind(aggregate, rows.table.schema)
        assert accumulation.lower(
            accumulation.lift(rows, Groups.single(3)).partials
        ).to_pylist() == [wanted]


def test_structs_can_be_counted_once():
    values = [
        {"a": 1, "b": "x"},
        {"a": 1, "b": "x"},
        {"a": 1, "b": None},
        {"a": None, "b": "x"},
        None,
    ]
    rows = Rows(pa.table({"v": pa.array(values)}), np.arange(5), np.arange(5))
    accumulation = bind(tg.count_distinct("v"), rows.table.schema)
    assert accumulation.lower(accumulation.lift(rows, Groups.single(5)).partials).to_pylist() == [3]


@pytest.mark.parametrize("n", [0, 2])
def test_groups_without_rows(n):
    schema = pa.schema({"v": pa.int64(), "b": pa.bool_()})
    nothing = np.zeros(0, np.int64)
    expected = {
        tg.count(): 0,
        tg.sum("v"): None,
        tg.mean("v"): None,
        tg.max("v"): None,
        tg.variance("v"): None,
        tg.last("v"): None,
        tg.arg_max("v", "v"): None,
        tg.any("b"): None,
        tg.list_("v"): [],
        tg.distinct("v"): [],
        tg.median("v"): None,
        tg.top_k("v", 2): [],
        tg.count_distinct("v"): 0,
        tg.quantile("v", 0.5): None,
        tg.approx_distinct("v"): 0,
    }
    for aggregate, wanted in expected.items():
        accumulation = bind(aggregate, schema)
        partials = accumulation.lift(
            Rows(schema.empty_table(), nothing, nothing), Groups(nothing, n)
        ).partials
        merged = accumulation.combine(partials, Groups(np.arange(n), n))
        assert accumulation.lower(merged).to_pylist() == [wanted] * n


def test_unknown_columns_and_unsuitable_types_are_refused():
    schema = pa.schema(
        {"name": pa.string(), "tags": pa.list_(pa.string()), "at": pa.timestamp("us")}
    )
    for aggregate in (
        tg.sum("nme"),
        tg.count("nme"),
        tg.arg_min("name", "nme"),
        tg.count(where="nme"),
    ):
        with pytest.raises(
            SpecError, match="reads column `nme`, but the input has `name`, `tags`, `at`"
        ):
            bind(aggregate, schema)
    for aggregate, wanted in (
        (tg.sum("name"), "needs numbers, but column `name` is of type string"),
        (tg.mean("at"), "needs numbers"),
        (tg.max("tags"), "can be sorted"),
        (tg.any("name"), "needs booleans"),
        (tg.count(where="name"), "needs booleans"),
        (tg.quantile("name", 0.5), "needs numbers"),
    ):
        with pytest.raises(SpecError, match=wanted):
            bind(aggregate, schema)
    with pytest.raises(SpecError, match="is not an aggregate"):
        bind("count", schema)  # type: ignore[arg-type]

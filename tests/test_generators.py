"""Watermark generators: what deliveries promise, column by column, against what single rows would;
and what is refused as a specification.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.api.streams import stream
from tidegate.errors import InputError, ParseError, SpecError, WatermarkError
from tidegate.instants import MAX, MIN
from tidegate.kernel.events.duplicates import partitions_of
from tidegate.kernel.events.event_time import NULL, OK, read_times
from tidegate.kernel.watermarks.generators import (
    Generator,
    Observed,
    Promises,
    check_columns,
    columns_of,
    compile_generator,
)
from tidegate.kernel.watermarks.tracker import SourceTracker
from tidegate.spec import watermarks as w
from tidegate.spec.watermarks import (
    Bounded,
    Explicit,
    Generated,
    Implied,
    Lagging,
    Noted,
    PerKey,
    Punctuated,
    Watermarks,
    ascending,
    bounded,
    explicit,
    generated,
    lagging,
    noted,
    per_key,
    punctuated,
)

Row = dict[str, Any]
COLUMNS = {
    "ts": pa.int64(),
    "p": pa.string(),
    "wm": pa.int64(),
    "m": pa.bool_(),
    "writer": pa.string(),
}


def table(rows: list[Row], **kinds: pa.DataType) -> pa.Table:
    return pa.table(
        {
            name: pa.array([row.get(name) for row in rows], kinds.get(name, kind))
            for name, kind in COLUMNS.items()
        }
    )


def observed(
    rows: list[Row],
    *,
    now: int = 0,
    limit: int = MAX,
    partition: str | None = "p",
    **kinds: pa.DataType,
) -> Observed:
    found = table(rows, **kinds)
    times, verdict = read_times(found.column("ts"), "ts")
    number, names = partitions_of(found, partition)
    return Observed(found, times, verdict == OK, number, names, now, limit)


def promised(spec: Watermarks, rows: list[Row], **more: Any) -> dict[str, int]:
    return last_words(compile_generator(spec).observe(observed(rows, **more)))


def last_words(promises: Promises) -> dict[str, int]:
    """The highest that each source said."""
    found: dict[str, int] = {}
    for name, value in zip(promises.names, promises.values.tolist(), strict=True):
        found[name] = max(value, found.get(name, MIN))
    return found


# One generator after the other

OUT_OF_ORDER = [
    {"ts": 7, "p": "a"},
    {"ts": 3, "p": "a"},
    {"ts": -4, "p": "b"},
    {"ts": -9, "p": "b"},
]


def test_an_implied_watermark_is_the_newest_event_whatever_its_partition():
    assert promised(Implied(), OUT_OF_ORDER) == {"": 7}


def test_an_explicit_watermark_is_never_promised_by_events_and_lets_nobody_join():
    assert promised(explicit(), OUT_OF_ORDER) == {"a": MIN, "b": MIN}
    assert not compile_generator(explicit()).joins


def test_a_bounded_watermark_stays_behind_the_newest_event_of_each_partition():
    assert promised(Bounded(5), OUT_OF_ORDER) == {"a": 2, "b": -9}


def test_an_ascending_watermark_is_the_newest_event_of_each_partition():
    assert promised(ascending(), OUT_OF_ORDER) == {"a": 7, "b": -4}


def test_a_lagging_watermark_looks_at_the_clock_only():
    generator = compile_generator(Lagging(30))
    assert last_words(generator.observe(observed(OUT_OF_ORDER, now=100))) == {"": 70}
    assert last_words(generator.tick(130)) == {"": 100}


def test_the_floor_of_per_key_watermarks_is_bounded_by_partition():
    assert promised(PerKey(1, 5), OUT_OF_ORDER) == {"a": 2, "b": -9}


def test_a_punctuated_watermark_is_what_a_column_says_and_rows_that_say_none_are_signs_of_life():
    rows = [{"ts": 9, "p": "a", "wm": 4}, {"ts": 9, "p": "a"}, {"ts": 9, "p": "b"}]
    assert promised(Punctuated(column="wm"), rows) == {"a": 4, "b": MIN}


def marked(generator: Generator, rows: pa.Table) -> list[bool] | None:
    verdict = read_times(rows.column("ts"), "ts")[1]
    found = generator.markers(rows, verdict == OK, verdict == NULL)
    return None if found is None else found.tolist()


def test_marker_rows_say_their_own_time_and_events_are_signs_of_life():
    rows = [{"ts": 9, "p": "a", "m": False}, {"ts": 5, "p": "a", "m": True}, {"ts": 9, "p": "b"}]
    generator = compile_generator(Punctuated(marker="m"))
    assert last_words(generator.observe(observed(rows))) == {"a": 5, "b": MIN}
    assert marked(generator, table(rows)) == [False, True, False]
    assert marked(generator, table(rows).set_column(3, "m", pa.nulls(3))) == [False] * 3


def test_a_marker_without_a_readable_time_promises_nothing():
    assert promised(Punctuated(marker="m"), [{"p": "a", "m": True}]) == {"a": MIN}


def test_only_markers_and_notes_are_no_events():
    assert all(
        marked(compile_generator(spec), table([{"ts": 1}])) is None
        for spec in (Implied(), Bounded(1), Punctuated(column="wm"), Noted("wm"))
    )


def test_a_note_has_no_time_a_writer_and_a_time_that_can_be_read():
    rows = [
        {"wm": 5, "writer": "x"},
        {"ts": 1, "wm": 5, "writer": "x"},
        {"wm": 5},
        {"writer": "x"},
        {"wm": MAX, "writer": "x"},
    ]
    assert marked(compile_generator(Noted("wm")), table(rows)) == [True, False, False, False, False]


def test_writers_are_sources_of_their_own_in_each_partition():
    rows = [
        {"ts": 1, "p": "a", "writer": "x", "wm": 10},
        {"ts": 1, "p": "b", "writer": "x", "wm": 3},
        {"ts": 1, "p": "a", "writer": "y"},
        {"ts": 1, "p": "a", "writer": None, "wm": 99},
    ]
    spec = Noted("wm", "writer")
    assert promised(spec, rows) == {"a/x": 10, "b/x": 3, "a/y": MIN}
    assert promised(spec, rows, partition=None) == {"x": 10, "y": MIN}


def test_a_writer_may_be_a_number():
    rows = [{"ts": 1, "writer": 7, "wm": 10}]
    assert promised(Noted("wm"), rows, partition=None, writer=pa.int32()) == {"7": 10}


def test_rows_without_a_writer_promise_nothing_for_anybody():
    assert promised(Noted("wm"), [{"ts": 1, "wm": 5}]) == {}


def test_what_a_writer_notes_by_partition_replaces_the_writer_that_was_declared():
    seen = observed([{"ts": 1, "p": "a", "writer": "x", "wm": 10}])
    assert compile_generator(Noted("wm")).observe(seen).replaced == ("x",)
    alone = observed([{"ts": 1, "writer": "x", "wm": 10}], partition=None)
    assert compile_generator(Noted("wm")).observe(alone).replaced == ()


def test_a_generated_watermark_is_what_the_function_returns_and_its_state_is_kept():
    def halfway(seen: Observed) -> np.ndarray:
        seen.state["deliveries"] = seen.state.get("deliveries", 0) + 1
        return seen.newest() // 2 + seen.state["deliveries"]

    generator = compile_generator(generated(halfway, state={"deliveries": 10}))
    assert last_words(generator.observe(observed(OUT_OF_ORDER))) == {"a": 14, "b": 9}
    again = compile_generator(generated(halfway))
    again.restore(json.loads(json.dumps(generator.save())))
    assert last_words(again.observe(observed(OUT_OF_ORDER))) == {"a": 15, "b": 10}


# What columns may hold

EVENTS = [Implied(), Bounded(5), PerKey(0, 5)]


@pytest.mark.parametrize("spec", EVENTS, ids=str)
def test_rows_without_a_readable_time_are_signs_of_life_only(spec):
    rows = [{"ts": None, "p": "a"}, {"ts": "soon", "p": "b"}]
    found = promised(spec, rows, ts=pa.string())
    assert set(found.values()) == {MIN}
    assert found


@pytest.mark.parametrize(
    "kind", [pa.timestamp("us", "UTC"), pa.timestamp("ms"), pa.string(), pa.int32()], ids=str
)
def test_a_punctuation_may_be_written_as_any_time(kind):
    second = {pa.int32(): 1_000_000, pa.string(): "1970-01-01T00:00:01Z"}.get(
        kind, 1_000_000 if kind == pa.timestamp("us", "UTC") else 1_000
    )
    assert promised(Punctuated(column="wm"), [{"ts": 1, "p": "a", "wm": second}], wm=kind) == {
        "a": 1_000_000
    }


def test_a_punctuation_that_cannot_be_read_is_refused_and_counted():
    rows = [
        {"ts": 1, "p": "a", "wm": "tomorrow"},
        {"ts": 1, "p": "a", "wm": None},
        {"ts": 1, "p": "a", "wm": "1970-01-01T00:00:00Z"},
    ]
    found = compile_generator(Punctuated(column="wm")).observe(observed(rows, wm=pa.string()))
    assert (last_words(found), found.refused) == ({"a": 0}, 1)


@pytest.mark.parametrize("spec", [Punctuated(column="wm"), Noted("wm")], ids=str)
def test_a_punctuation_in_the_future_is_refused_and_counted(spec):
    rows = [
        {"ts": 1, "p": "", "writer": "", "wm": 101},
        {"ts": 1, "p": "", "writer": "", "wm": 100},
        {"ts": 1, "p": "", "writer": "", "wm": MAX},
    ]
    found = compile_generator(spec).observe(observed(rows, limit=100))
    assert (last_words(found), found.refused) == ({"": 100}, 2)


@pytest.mark.parametrize(
    ("time", "behind"), [(MIN + 1, MIN), (MIN + 6, MIN + 1), (-3, -8), (MAX - 1, MAX - 6)]
)
def test_times_at_the_ends_of_time_are_no_trouble(time, behind):
    assert promised(Bounded(5), [{"ts": time, "p": "a"}]) == {"a": behind}


def test_behind_an_infinite_disorder_nothing_is_ever_promised():
    assert promised(bounded("inf"), [{"ts": 5, "p": "a"}]) == {"a": MIN}
    assert last_words(compile_generator(lagging("inf")).tick(5)) == {"": MIN}


@pytest.mark.parametrize(
    "spec",
    [
        Implied(),
        explicit(),
        Bounded(5),
        Punctuated(column="wm"),
        Punctuated(marker="m"),
        Noted("wm"),
    ],
    ids=str,
)
def test_an_empty_delivery_and_a_clock_that_moves_promise_nothing(spec):
    generator = compile_generator(spec)
    assert set(last_words(generator.observe(observed([]))).values()) <= {MIN}
    assert generator.tick(100).names == []


# One call a delivery

times = st.none() | st.integers(-20, 40)
rows_of = st.lists(
    st.fixed_dictionaries(
        {
            "ts": times,
            "p": st.sampled_from(["a", "b", None]),
            "wm": times,
            "m": st.sampled_from([True, False, None]),
            "writer": st.sampled_from(["x", "y", None]),
        }
    ),
    min_size=1,
    max_size=12,
)


def slowly(spec: Watermarks, row: Row, limit: int) -> dict[str, int]:
    """What one row promises, by name; said out loud."""
    name = row["p"] or "null"
    if isinstance(spec, Implied):
        return {"": MIN if row["ts"] is None else row["ts"]}
    if isinstance(spec, Bounded | PerKey):
        behind = spec.disorder if isinstance(spec, Bounded) else spec.floor
        return {name: MIN if row["ts"] is None else row["ts"] - behind}
    if isinstance(spec, Punctuated):
        said = row["wm"] if spec.column else row["ts"] if row["m"] else None
        return {name: MIN if said is None or (spec.column and said > limit) else said}
    if isinstance(spec, Noted):
        said = row["wm"]
        return (
            {}
            if row["writer"] is None
            else {f"{name}/{row['writer']}": MIN if said is None or said > limit else said}
        )
    return {name: MIN}


SPECS = [
    Implied(),
    explicit(),
    Bounded(0),
    Bounded(7),
    PerKey(2, 7),
    Punctuated(column="wm"),
    Punctuated(marker="m"),
    Noted("wm"),
]


@pytest.mark.parametrize("spec", SPECS, ids=str)
@given(rows=rows_of, limit=st.sampled_from([MAX, 15]))
def test_a_delivery_in_one_call_promises_what_its_rows_would_one_by_one(spec, rows, limit):
    whole, slow = compile_generator(spec).observe(observed(rows, limit=limit)), dict[str, int]()
    single = compile_generator(spec)
    together: dict[str, int] = {}
    for row in rows:
        for name, value in slowly(spec, row, limit).items():
            slow[name] = max(value, slow.get(name, MIN))
        for name, value in last_words(single.observe(observed([row], limit=limit))).items():
            together[name] = max(value, together.get(name, MIN))
    assert last_words(whole) == slow == together


@pytest.mark.parametrize(
    "spec", [Punctuated(column="wm"), Punctuated(marker="m"), Noted("wm")], ids=str
)
@given(rows=rows_of)
def test_a_source_that_goes_back_inside_a_delivery_is_noticed_as_if_rows_came_one_by_one(
    spec, rows
):
    whole, single = SourceTracker(), SourceTracker()
    generator = compile_generator(spec)
    take(whole, generator, rows)
    for row in rows:
        take(single, generator, [row])
    assert (whole.steps_back > 0) == (single.steps_back > 0)
    assert sorted(whole.describe(), key=str) == sorted(single.describe(), key=str)


def take(tracker: SourceTracker, generator: Generator, rows: list[Row]) -> None:
    found = generator.observe(observed(rows))
    tracker.promise(found.names, found.values, 0, repeats=generator.repeats)


# A user's own generator


@pytest.mark.parametrize(
    "answer",
    [
        np.zeros(1, np.int64),
        np.zeros((2, 1), np.int64),
        5,
        [1.5, 2.5],
        [True, False],
        ["a", "b"],
        np.zeros(2, "M8[us]"),
        [2**70, 1],
        [None, 1],
    ],
    ids=str,
)
def test_an_answer_of_the_wrong_shape_or_type_is_an_error_that_says_what_is_wanted(answer):
    generator = compile_generator(generated(lambda _: answer, name="mine"))
    with pytest.raises(
        WatermarkError, match=r"`mine` must return one integer per partition \(2\), got"
    ):
        generator.observe(observed(OUT_OF_ORDER))


@pytest.mark.parametrize("kind", [np.int64, np.int8, np.uint8, np.uint64, int])
def test_an_answer_may_be_whole_numbers_of_any_kind(kind):
    assert promised(generated(lambda seen: [kind(3), kind(4)]), OUT_OF_ORDER) == {"a": 3, "b": 4}


def test_a_generator_behind_an_infinite_lag_promises_nothing():
    assert promised(generated(lambda seen: seen.behind(MAX)), OUT_OF_ORDER) == {"a": MIN, "b": MIN}


def test_no_answer_is_a_sign_of_life():
    assert promised(generated(lambda _: None), OUT_OF_ORDER) == {"a": MIN, "b": MIN}


def test_a_generated_promise_in_the_future_is_refused_and_counted():
    generator = compile_generator(generated(lambda _: np.array([101, 2**63], np.uint64)))
    found = generator.observe(observed(OUT_OF_ORDER, limit=100))
    assert (last_words(found), found.refused) == ({"a": MIN, "b": MIN}, 2)


def test_what_wraps_around_the_end_of_time_is_no_promise():
    nothing = [{"ts": None, "p": "a"}]
    careless = compile_generator(generated(lambda seen: seen.newest() - 10)).observe(
        observed(nothing, limit=MAX)
    )
    assert (last_words(careless), careless.refused) == ({"a": MIN}, 1)
    careful = compile_generator(generated(lambda seen: seen.behind(10))).observe(
        observed([*nothing, {"ts": 50, "p": "b"}], limit=MAX)
    )
    assert (last_words(careful), careful.refused) == ({"a": MIN, "b": 40}, 0)


def test_a_generator_cannot_change_the_events():
    def greedy(seen: Observed) -> None:
        seen.times[:] = 0

    # Arrow's own memory cannot be changed anyway; what was made of nulls could.
    seen = observed([*OUT_OF_ORDER, {"ts": None, "p": "a"}])
    assert seen.times.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        compile_generator(generated(greedy)).observe(seen)
    assert seen.times.flags.writeable


def test_a_state_is_what_it_would_be_after_a_restart_from_the_first_call_on():
    kinds = []

    def remember(seen: Observed) -> None:
        kinds.append({key: type(value) for key, value in seen.state.items()})
        seen.state.update({"newest": seen.times.max(), "all": seen.newest(), "pair": (1, 2), 5: 1})

    generator = compile_generator(generated(remember))
    generator.observe(observed(OUT_OF_ORDER))
    generator.observe(observed(OUT_OF_ORDER))
    assert kinds[1] == {"newest": int, "all": list, "pair": list, "5": int}
    assert json.loads(json.dumps(generator.save())) == {
        "newest": 7,
        "all": [7, -4],
        "pair": [1, 2],
        "5": 1,
    }


HARM = {
    "raises": lambda seen: 1 // 0,
    "state": lambda seen: seen.state.update(bad=object()),
    "answer": lambda seen: [1.5],
}


@pytest.mark.parametrize("harm", HARM.values(), ids=HARM)
def test_a_generator_that_fails_keeps_the_state_of_its_last_success(harm):
    def once(seen: Observed) -> Any:
        seen.state["calls"] = seen.state.get("calls", 0) + 1
        return None if seen.state["calls"] == 1 else harm(seen)

    generator = compile_generator(generated(once))
    generator.observe(observed(OUT_OF_ORDER))
    for _ in range(2):
        with pytest.raises((ZeroDivisionError, TypeError, WatermarkError)):
            generator.observe(observed(OUT_OF_ORDER))
    assert generator.save() == {"calls": 1}


def test_two_operators_with_one_specification_share_no_state():
    spec = generated(lambda seen: seen.state.setdefault("seen", []).append(1), state={"seen": []})
    one, other = compile_generator(spec), compile_generator(spec)
    one.observe(observed([{"ts": 1, "p": "a"}]))
    assert (one.save(), other.save()) == ({"seen": [1]}, {"seen": []})


# Columns of the input


def test_a_watermark_names_the_columns_it_is_read_from():
    assert columns_of(Punctuated(column="wm")) == ["wm"]
    assert columns_of(Punctuated(marker="m")) == ["m"]
    assert columns_of(Noted("wm", "who")) == ["wm", "who"]
    assert columns_of(Bounded(1)) == []


@pytest.mark.parametrize(
    ("spec", "schema", "text"),
    [
        (Punctuated(column="wm"), {"wm": pa.float64()}, "`wm` has type `double`"),
        (
            Punctuated(marker="m"),
            {"m": pa.string()},
            "marker column `m` has type `string`.*cast it to bool",
        ),
        (Noted("wm", "who"), {"wm": pa.list_(pa.int64()), "who": pa.string()}, "`wm` has type"),
        (
            Noted("wm", "who"),
            {"wm": pa.int64(), "who": pa.struct({"x": pa.int8()})},
            "writer column `who`",
        ),
    ],
    ids=str,
)
def test_a_column_that_can_say_no_watermark_is_refused(spec, schema, text):
    with pytest.raises(InputError, match=text):
        check_columns(spec, pa.schema(schema))


@pytest.mark.parametrize(
    "kind", [pa.bool_(), pa.null(), pa.dictionary(pa.int8(), pa.bool_())], ids=str
)
def test_a_marker_column_says_true_or_false_or_nothing(kind):
    check_columns(Punctuated(marker="m"), pa.schema({"m": kind}))


# Specifications

WRITTEN = [
    Implied(),
    explicit(partitions=3, idle_after="1 minute"),
    bounded("10 seconds", idle_after="1 minute", align="5 minutes"),
    bounded(5, unit="ms", partitions=["x", "y"], realign=True),
    ascending(),
    lagging("30 seconds"),
    punctuated("wm"),
    punctuated(marker="m"),
    noted("wm", writer="who", writers=["w1"], forget_after="1 hour"),
    per_key("1 second", floor="1 minute", max_keys=10),
]


def test_there_is_one_example_of_every_specification():
    assert {type(spec) for spec in WRITTEN} | {Generated} == {
        Implied,
        Explicit,
        Bounded,
        Lagging,
        Punctuated,
        Noted,
        PerKey,
        Generated,
    }


@pytest.mark.parametrize("spec", WRITTEN, ids=str)
def test_the_text_of_a_specification_can_be_pasted_back(spec):
    assert eval(repr(spec), vars(w).copy()) == spec  # noqa: S307 - that is what pasting back is


@pytest.mark.parametrize(
    "spec", [*WRITTEN, generated(slowly, name="mine", state={"a": [1]}, partitions=2)], ids=str
)
def test_the_json_form_holds_everything_and_survives_json(spec):
    document = spec.to_dict()
    assert json.loads(json.dumps(document)) == document
    assert document["type"] == type(spec).__name__.lower()
    fields = {
        name: value for name, value in vars(spec).items() if name not in {"function", "declared"}
    }
    assert {name: document[name] for name in fields} == fields
    assert document.get("declared", []) == list(getattr(spec, "declared", []))


def test_specifications_that_differ_have_different_json_forms():
    specs = [
        *WRITTEN,
        generated(slowly),
        generated(take),
        generated(take, state={"a": 1}),
        Bounded(1),
        Bounded(2),
    ]
    assert len({json.dumps(spec.to_dict()) for spec in specs}) == len(specs)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (lambda: bounded("-1 second"), "disorder of a bounded watermark can't be negative"),
        (lambda: lagging("-1 second"), "lag of a lagging watermark can't be negative"),
        (
            lambda: bounded("1 second", idle_after="0 seconds"),
            "`idle_after` must be greater than 0 and finite.*omit it",
        ),
        (
            lambda: bounded("1 second", idle_after="inf"),
            "`idle_after` must be greater than 0 and finite",
        ),
        (lambda: bounded("1 second", align="-1 second"), "`align` must be greater than 0"),
        (lambda: explicit(partitions=["a", "a"]), "declared partitions must be distinct"),
        (
            lambda: explicit(partitions="abc"),
            "`partitions` takes the names of partitions, or their number",
        ),
        (
            lambda: explicit(partitions=-1),
            "`partitions` takes the names of partitions, or their number",
        ),
        (
            lambda: explicit(partitions=2.5),
            "`partitions` takes the names of partitions, or their number",
        ),
        (
            lambda: explicit(partitions=True),
            "`partitions` takes the names of partitions, or their number",
        ),
        (lambda: explicit(realign="yes"), "`realign` must be True or False"),
        (lambda: punctuated(3), "needs column names, got 3"),
        (lambda: stream(time="a", times={"b": (1,)}), "`times` names columns with a watermark"),
        (
            lambda: stream(time="a", watermark=bounded("1 s", partitions=["x"])),
            r"need a partition column, got \['x'\].*partition=",
        ),
        (
            lambda: stream(time="a", times={"b": bounded("1 s", align="1 s")}),
            "aligned on the first time column",
        ),
        (punctuated, "needs a column or marker rows"),
        (lambda: punctuated("wm", marker="m"), "needs a column or marker rows"),
        (lambda: noted(forget_after="0 s"), "`forget_after` must be greater than 0"),
        (
            lambda: noted(forget_after="1 s", idle_after="1 s"),
            "`idle_after` must be shorter than `forget_after`",
        ),
        (lambda: generated(5), "needs a function"),
        (lambda: generated(slowly, state={"a": object()}), "must be JSON-serialisable"),
        (lambda: per_key("1 minute", floor="1 second"), "can't be less than their disorder"),
        (
            lambda: per_key("1 s", floor="1 minute", max_keys=0),
            "`max_keys` must be a positive whole number, got 0",
        ),
        (
            lambda: per_key("1 s", floor="1 minute", max_keys="5"),
            "`max_keys` must be a positive whole number, got '5'",
        ),
    ],
)
def test_a_specification_that_makes_no_sense_is_refused(wrong, text):
    with pytest.raises(SpecError, match=text):
        wrong()


def test_a_number_needs_a_unit():
    with pytest.raises(ParseError, match="needs a unit"):
        bounded(10)

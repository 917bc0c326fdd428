"""The public names, their docstrings, and specifications with an equality and a usable repr."""

from __future__ import annotations

import dataclasses
import inspect
import types
import warnings
from typing import Any

import pytest

import tidegate as tg
from tidegate.spec import aggregates, evictors, triggers, watermarks, windows
from tidegate.spec.operator import AggregateSpec, Input, Options, Retention, TimeColumn

PUBLIC = {
    # The steps of a pipeline, and its runtimes.
    "stream",
    "union",
    "merge",
    "Stream",
    "Windowed",
    "Panes",
    "Mapped",
    "EmbeddedOperator",
    "Results",
    "EmbeddedAsyncMap",
    "AsyncResults",
    "MemoryStore",
    "RocksDBStore",
    "sinks",
    "sources",
    "spark_session",
    "sql",
    "state",
    "spark_errors",
    "streams",
    # Windows and their axes.
    "Axis",
    "tumbling",
    "hopping",
    "sliding",
    "cumulative",
    "session",
    "calendar",
    "global_window",
    "custom",
    # Joins.
    "Joined",
    "EmbeddedJoin",
    "within",
    "rows",
    "as_of",
    # Watermarks.
    "explicit",
    "bounded",
    "ascending",
    "lagging",
    "punctuated",
    "noted",
    "generated",
    "per_key",
    "Watermark",
    "Idle",
    "Active",
    "Explanation",
    # Triggers.
    "after_watermark",
    "after_count",
    "after_delay",
    "every",
    "every_element",
    "event_interval",
    "never",
    "repeatedly",
    "after_each",
    "after_all",
    "after_any",
    "or_finally",
    "parse_trigger",
    # Evictors.
    "evict_count",
    "evict_time",
    "evict_delta",
    # Aggregates.
    "count",
    "sum",
    "mean",
    "min",
    "max",
    "variance",
    "why",
    "stddev",
    "first",
    "last",
    "arg_min",
    "arg_max",
    "any",
    "all",
    "approx_distinct",
    "approx_quantile",
    "quantile",
    "median",
    "top_k",
    "distinct",
    "count_distinct",
    "list_",
    "columnar",
    "python",
    "apply",
    # Status and output of queries.
    "QueryStatus",
    "read_latest",
    "serve_metrics",
    # Errors.
    "TidegateError",
    "SpecError",
    "ParseError",
    "InputError",
    "WatermarkError",
    "BackpressureError",
    "StateError",
    "CorruptStateError",
    "SpecMismatchError",
    "SqlError",
    "MissingExtraError",
    "SetupError",
    "SinkError",
    "StreamError",
}


def test_all_is_the_public_names():
    assert set(tg.__all__) == PUBLIC
    assert list(tg.__all__) == sorted(tg.__all__)


def test_nothing_public_is_missing_from_all():
    """Besides `__all__`, the package shows its modules only."""
    shown = {name for name in vars(tg) if not name.startswith("_")}
    beside = shown - set(tg.__all__)
    assert {name for name in beside if not isinstance(getattr(tg, name), types.ModuleType)} == set()


def test_the_version_is_that_of_the_package():
    from importlib.metadata import version

    assert tg.__version__ == version("tidegate")


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_every_public_name_says_what_it_is(name):
    assert _says_something(getattr(tg, name))


@pytest.mark.parametrize(
    "name",
    [
        "Stream",
        "Windowed",
        "Panes",
        "Mapped",
        "EmbeddedOperator",
        "Results",
        "EmbeddedAsyncMap",
        "Explanation",
    ],
)
def test_every_public_method_says_what_it_does(name):
    methods = {
        n: m
        for n, m in inspect.getmembers(getattr(tg, name), inspect.isfunction)
        if not n.startswith("_")
    }
    assert [n for n, method in methods.items() if not method.__doc__] == []


def _says_something(thing: Any) -> bool:
    """Whether the docstring is a sentence, and not the signature that a dataclass generates."""
    opening = (thing.__doc__ or "").strip().split("\n\n", 1)[0]
    return (
        len(opening.split()) >= 3
        and opening.endswith((".", ":"))
        and not opening.startswith(f"{thing.__name__}(")
    )


def test_every_error_is_one_of_ours_and_one_of_pythons():
    errors = [getattr(tg, name) for name in tg.__all__ if name.endswith("Error")]
    assert all(issubclass(error, tg.TidegateError) for error in errors)


def column_sum(rows: Any) -> Any:
    return rows


SPECS = {
    "tumbling": lambda: tg.tumbling("1 minute", offset="5 seconds"),
    "static": lambda: tg.tumbling("1 minute", create="static"),
    "hopping": lambda: tg.hopping("10 minutes", "1 minute"),
    "gaps": lambda: tg.hopping("1 minute", "5 minutes"),
    "sliding": lambda: tg.sliding("1 minute"),
    "cumulative": lambda: tg.cumulative("1 day", "1 hour"),
    "session": lambda: tg.session("5 minutes", touch="merge"),
    "session by column": lambda: tg.session(gap_column="gap"),
    "calendar": lambda: tg.calendar("month", 7, zone="Europe/Berlin", start="2014-03-05"),
    "global": tg.global_window,
    "offsets": lambda: tg.tumbling(3, axis="offset"),
    "ordinals": lambda: tg.hopping(3, 1, axis="ordinal"),
    "custom": lambda: tg.custom(column_sum, name="mine"),
    "after_watermark": lambda: tg.after_watermark(
        early=tg.after_count(2), late=tg.after_delay("10 seconds")
    ),
    "every": lambda: tg.every("5 seconds", refire=True),
    "composites": lambda: tg.after_each(
        tg.after_all(tg.after_count(1), tg.every_element()),
        tg.after_any(tg.event_interval("1 s"), tg.never()),
    ),
    "or_finally": lambda: tg.or_finally(tg.repeatedly(tg.after_count(2)), tg.after_count(10)),
    "explicit": tg.explicit,
    "bounded": lambda: tg.bounded("30 seconds"),
    "idle-aware": lambda: tg.bounded(
        "30 seconds", idle_after="1 minute", partitions=["a", "b"], align="1 hour", realign=True
    ),
    "ascending": tg.ascending,
    "lagging": lambda: tg.lagging("5 seconds"),
    "punctuated": lambda: tg.punctuated("safe_until"),
    "markers": lambda: tg.punctuated(marker="is_marker", idle_after="1 minute"),
    "noted": lambda: tg.noted("noted", writer="host", writers=3, forget_after="1 hour"),
    "generated": lambda: tg.generated(column_sum, state={"lag": 3}),
    "per_key": lambda: tg.per_key("10 seconds", floor="1 hour", max_keys=1000),
    "merge": lambda: tg.merge(
        orders=tg.stream(time="ts"), clicks=tg.stream(time="at", watermark=tg.bounded("1 second"))
    ),
    "union": lambda: tg.union(
        tg.stream(time="ts"), tg.stream(time="ts", watermark=tg.bounded("1 second"))
    ),
    "several times": lambda: tg.stream(
        time="ordered", times={"shipped": tg.bounded("1 hour"), "paid": (7, tg.ascending())}
    ),
    "evict_count": lambda: tg.evict_count(3, after=True),
    "evict_time": lambda: tg.evict_time("1 minute"),
    "evict_delta": lambda: tg.evict_delta("v", 2.5),
    "count": tg.count,
    "sum": lambda: tg.sum("v", where="ok", distinct=True),
    "mean": lambda: tg.mean("v"),
    "min": lambda: tg.min("v"),
    "max": lambda: tg.max("v"),
    "variance": lambda: tg.variance("v", ddof=0),
    "stddev": lambda: tg.stddev("v"),
    "first": lambda: tg.first("v", ignore_nulls=True),
    "last": lambda: tg.last("v"),
    "arg_min": lambda: tg.arg_min("v", "w"),
    "arg_max": lambda: tg.arg_max("v", "w"),
    "any": lambda: tg.any("ok"),
    "all": lambda: tg.all("ok"),
    "approx_distinct": lambda: tg.approx_distinct("v"),
    "approx_quantile": lambda: tg.approx_quantile("v", [0.5, 0.99]),
    "quantile": lambda: tg.quantile("v", 0.9, exact=True),
    "median": lambda: tg.median("v"),
    "top_k": lambda: tg.top_k("v", 3, by="w"),
    "distinct": lambda: tg.distinct("v"),
    "count_distinct": lambda: tg.count_distinct("v"),
    "list": lambda: tg.list_("v"),
    "stream": lambda: tg.stream(
        time="ts", key=["a", "b"], offset="o", partition="p", watermark=tg.bounded("1 second")
    ),
    "windowed": lambda: (
        tg.stream(time="ts")
        .window(tg.tumbling("1 minute"))
        .trigger("AfterWatermark(early=AfterCount(2))")
        .retain(windows=3)
    ),
    "panes": lambda: (
        tg.stream(time="ts", key="k")
        .window(tg.tumbling("1 minute"))
        .retracting()
        .evict(tg.evict_count(2))
        .aggregate(n=tg.count())
    ),
}
NAMES = {
    **{
        name: value
        for module in (aggregates, evictors, triggers, watermarks, windows)
        for name, value in vars(module).items()
    },
    "column_sum": column_sum,
    **{
        kind.__name__: kind
        for kind in (
            AggregateSpec,
            Input,
            Options,
            Retention,
            TimeColumn,
            tg.Stream,
            tg.Windowed,
            tg.Panes,
        )
    },
}


def made(name: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return SPECS[name]()


@pytest.mark.parametrize("name", SPECS)
def test_specifications_that_say_the_same_are_equal(name):
    one, other = made(name), made(name)
    assert one == other
    assert hash(one) == hash(other)


def test_specifications_that_say_something_else_are_not_equal():
    everything = [made(name) for name in SPECS]
    assert [(a, b) for at, a in enumerate(everything) for b in everything[:at] if a == b] == []


@pytest.mark.parametrize("name", SPECS)
def test_the_repr_of_a_specification_can_be_pasted_back(name):
    value = made(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert eval(repr(value), dict(NAMES)) == value  # noqa: S307


@pytest.mark.parametrize("name", SPECS)
def test_specifications_cannot_be_changed(name):
    value = made(name)
    fields = dataclasses.fields(value)
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(value, fields[0].name if fields else "anything", None)

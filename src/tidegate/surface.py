"""The names of `tidegate`, except those that it binds itself."""

import importlib
import typing

from tidegate.api.async_maps import Mapped
from tidegate.api.joins import Joined
from tidegate.api.latest import read_latest
from tidegate.api.streams import Panes, Stream, Windowed, merge, stream, union
from tidegate.embedded.async_map import EmbeddedAsyncMap
from tidegate.embedded.async_rows import AsyncResults
from tidegate.embedded.join import EmbeddedJoin
from tidegate.embedded.operator import EmbeddedOperator
from tidegate.errors import (
    BackpressureError,
    CorruptStateError,
    InputError,
    MissingExtraError,
    ParseError,
    SetupError,
    SinkError,
    SpecError,
    SpecMismatchError,
    SqlError,
    StateError,
    StreamError,
    TidegateError,
    WatermarkError,
)
from tidegate.kernel.watermarks.marks import Active, Idle, Watermark
from tidegate.operators.explain.facts import Explanation
from tidegate.operators.prometheus_server import serve_metrics
from tidegate.operators.results import Results
from tidegate.operators.status import QueryStatus
from tidegate.spec.aggregates import (
    all,
    any,
    apply,
    approx_distinct,
    approx_quantile,
    arg_max,
    arg_min,
    columnar,
    count,
    count_distinct,
    distinct,
    first,
    last,
    list_,
    max,
    mean,
    median,
    min,
    python,
    quantile,
    stddev,
    sum,
    top_k,
    variance,
)
from tidegate.spec.evictors import evict_count, evict_delta, evict_time
from tidegate.spec.join import as_of, rows, within
from tidegate.spec.trigger_text import parse_trigger
from tidegate.spec.triggers import (
    after_all,
    after_any,
    after_count,
    after_delay,
    after_each,
    after_watermark,
    event_interval,
    every,
    every_element,
    never,
    or_finally,
    repeatedly,
)
from tidegate.spec.watermarks import (
    ascending,
    bounded,
    explicit,
    generated,
    lagging,
    noted,
    per_key,
    punctuated,
)
from tidegate.spec.windows import (
    Axis,
    calendar,
    cumulative,
    custom,
    global_window,
    hopping,
    session,
    sliding,
    tumbling,
)
from tidegate.state.memory import MemoryStore
from tidegate.state.rocksdb import RocksDBStore

if typing.TYPE_CHECKING:
    from tidegate.spark import sinks, sources
    from tidegate.spark.environment.session import session as spark_session
    from tidegate.spark.failures import spark_errors


def __getattr__(name: str) -> typing.Any:
    """Import Spark on first use: embedded operators do not need it."""
    if name == "spark_session":
        return importlib.import_module("tidegate.spark.environment.session").session
    if name == "spark_errors":
        return importlib.import_module("tidegate.spark.failures").spark_errors
    if name in {"sinks", "sources"}:
        return importlib.import_module(f"tidegate.spark.{name}")
    raise AttributeError(f"module `tidegate` has no attribute `{name}`")


__all__ = [
    "Active",
    "AsyncResults",
    "Axis",
    "BackpressureError",
    "CorruptStateError",
    "EmbeddedAsyncMap",
    "EmbeddedJoin",
    "EmbeddedOperator",
    "Explanation",
    "Idle",
    "InputError",
    "Joined",
    "Mapped",
    "MemoryStore",
    "MissingExtraError",
    "Panes",
    "ParseError",
    "QueryStatus",
    "Results",
    "RocksDBStore",
    "SetupError",
    "SinkError",
    "SpecError",
    "SpecMismatchError",
    "SqlError",
    "StateError",
    "Stream",
    "StreamError",
    "TidegateError",
    "Watermark",
    "WatermarkError",
    "Windowed",
    "after_all",
    "after_any",
    "after_count",
    "after_delay",
    "after_each",
    "after_watermark",
    "all",
    "any",
    "apply",
    "approx_distinct",
    "approx_quantile",
    "arg_max",
    "arg_min",
    "as_of",
    "ascending",
    "bounded",
    "calendar",
    "columnar",
    "count",
    "count_distinct",
    "cumulative",
    "custom",
    "distinct",
    "event_interval",
    "every",
    "every_element",
    "evict_count",
    "evict_delta",
    "evict_time",
    "explicit",
    "first",
    "generated",
    "global_window",
    "hopping",
    "lagging",
    "last",
    "list_",
    "max",
    "mean",
    "median",
    "merge",
    "min",
    "never",
    "noted",
    "or_finally",
    "parse_trigger",
    "per_key",
    "punctuated",
    "python",
    "quantile",
    "read_latest",
    "repeatedly",
    "rows",
    "serve_metrics",
    "session",
    "sinks",
    "sliding",
    "sources",
    "spark_errors",
    "spark_session",
    "stddev",
    "stream",
    "sum",
    "top_k",
    "tumbling",
    "union",
    "variance",
    "within",
]

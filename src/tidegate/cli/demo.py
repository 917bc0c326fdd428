"""`tidegate demo`: runs an out-of-order click stream through a pipeline on local Spark."""

from __future__ import annotations

import json
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds

import tidegate as tg
from tidegate.cli.demo_clicks import FILES, SCHEMA, SPAN, Click, write
from tidegate.cli.picture import Moment, Span, as_png, as_text
from tidegate.errors import MissingExtraError, SinkError
from tidegate.instants import instant
from tidegate.spark.environment.session import running_session
from tidegate.spark.environment.stderr_filter import filtered_stderr

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FOLDER = "tidegate-demo"
_MARK = ".tidegate-demo"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PANES = {"": 2, "user": 6, "window": 19, "timing": 9, "pane": 6, "clicks": 8, "spent": 8}
_SHOWN = "ann"


@dataclass(frozen=True)
class Shown:
    """What the demo displays."""

    clicks: list[list[Click]]
    panes: list[dict[str, Any]]
    late: list[dict[str, Any]]
    metrics: list[dict[str, Any]]


def pipeline(clicks: DataFrame) -> tg.Panes:
    """Clicks and revenue per user and minute.

    A pane for every fifteenth click, one when the minute is complete, and one per late click.
    """
    return (
        tg.stream(clicks, time="ts", key="user", id="event_id", watermark=tg.bounded("10 seconds"))
        .window(tg.tumbling("1 minute"))
        .trigger(tg.after_watermark(early=tg.after_count(15), late=tg.after_count(1)))
        .allow_lateness("2 minutes")
        .retracting()
        .options(future="reject")
        .aggregate(clicks=tg.count(), spent=tg.sum("price"))
    )


def demo(*, as_json: bool, folder: str = FOLDER) -> int:
    """Run the demo and print its output."""
    place = _emptied(Path(folder))
    with filtered_stderr():
        shown = _run(place, quiet=as_json)
    if as_json:
        for output, rows in (
            ("panes", shown.panes),
            ("late", shown.late),
            ("metrics", shown.metrics),
        ):
            for row in rows:
                print(json.dumps({"output": output, **row}, default=_plain))
        return 0
    for line in _text(shown, place):
        print(line)
    return 0


def _emptied(folder: Path) -> Path:
    """An empty folder for the demo; only a folder of an earlier run is cleared."""
    if folder.exists() and any(folder.iterdir()):
        if not (folder / _MARK).exists():
            raise SinkError(
                f"the folder `{folder}` is not empty and was not created by the demo. Hint:"
                " tidegate demo --folder ANOTHER"
            )
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _MARK).touch()
    return folder


def _run(folder: Path, *, quiet: bool) -> Shown:
    clicks = write(folder / "clicks", datetime.now(UTC))
    if not quiet:
        print(
            f"{sum(map(len, clicks))} clicks in {FILES} files under {folder}/clicks; starting Spark"
            " (this takes a while) ...",
            flush=True,
        )
    running = running_session()
    spark = running or tg.spark_session("tidegate demo", cores=2, memory="1g")
    try:
        panes = pipeline(_reading(spark, folder / "clicks"))
        outputs = {name: tg.sinks.parquet(folder / name) for name in ("panes", "late", "metrics")}
        query = panes.write(
            outputs["panes"],
            late=outputs["late"],
            metrics=outputs["metrics"],
            checkpoint=str(folder / "checkpoint"),
            trigger="available_now",
        )
        printed = -1
        while not query.await_termination(1):
            printed = printed if quiet else _print_progress(query.recent_progress, printed)
        if not quiet:
            _print_progress(query.recent_progress, printed)
    finally:
        if running is None:
            spark.stop()
    return Shown(clicks, *(_read(folder / name) for name in ("panes", "late", "metrics")))


def _reading(spark: SparkSession, folder: Path) -> DataFrame:
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(folder))


def _print_progress(progress: Sequence[Any], printed: int) -> int:
    """Print a line for each new micro-batch."""
    for given in progress:
        if given.batch_id > printed and given.counts["events"]:
            counts = given.counts
            panes = sum(counts[name] for name in ("panes_early", "panes_on_time", "panes_late"))
            watermark = (
                f"{_moment(given.watermark):%H:%M:%S}" if given.watermark is not None else "none"
            )
            took = given.duration_ms.get("triggerExecution", 0) / 1000
            print(
                f"  batch {given.batch_id:>2}: {counts['events']:>3} clicks, watermark {watermark},"
                f" {panes} panes, {took:.1f} s",
                flush=True,
            )
            printed = given.batch_id
    return printed


def _read(folder: Path) -> list[dict[str, Any]]:
    """The rows of a sink in the order of micro-batches, which are in the names of its folders."""
    if not folder.exists():
        return []
    rows = (
        ds.dataset(folder, partitioning="hive", exclude_invalid_files=True).to_table().to_pylist()
    )
    return sorted(rows, key=lambda row: row["batch"])


def _text(shown: Shown, folder: Path) -> Iterator[str]:
    yield ""
    yield (f"Panes of {_SHOWN} (a row with - retracts a former pane; the + after it replaces it):")
    yield "  " + "".join(f"{name:<{width}}" for name, width in _PANES.items()).rstrip()
    yield from (_row(pane) for pane in shown.panes if pane["user"] == _SHOWN)
    others = sum(pane["user"] != _SHOWN for pane in shown.panes)
    yield f"  ... and {others} panes of other users, in {folder}/panes"
    yield ""
    yield "Nothing is dropped silently. The late output contains:"
    yield from (_late(row) for row in shown.late)
    repeated = sum(row["duplicates"] for row in shown.metrics)
    yield f"  and {repeated} clicks arrived twice: they were deduplicated by their id."
    yield ""
    yield "Event time to the right, processing time down; . clicks, | the watermark,"
    yield "<e-> early, <O-> on-time and <L-> late panes of a minute:"
    moments, span = _moments(shown)
    yield from ("  " + line for line in as_text(moments, span))
    yield ""
    try:
        as_png(moments, span, folder / "picture.png")
        yield f"The same as an image: {folder}/picture.png"
    except MissingExtraError as error:
        yield f"No image was drawn: {error}"
    yield _verdict(shown)


def _row(pane: Mapping[str, Any]) -> str:
    window = f"{pane['window_start']:%H:%M} to {pane['window_end']:%H:%M}"
    cells = (
        pane["op"],
        pane["user"],
        window,
        pane["timing"],
        pane["pane"],
        pane["clicks"],
        f"{pane['spent']:.0f}",
    )
    text = (
        "  "
        + "".join(
            f"{cell!s:<{width}}" for cell, width in zip(cells, _PANES.values(), strict=True)
        ).rstrip()
    )
    return _coloured(
        text,
        (
            "31"
            if pane["op"] == "-"
            else {"early": "36", "on_time": "32", "late": "33"}[pane["timing"]]
        ),
    )


def _late(row: Mapping[str, Any]) -> str:
    return (
        f"  {row['event_id']:<9} {row['user']:<5} time {row['ts'] or 'missing':<26} {row['reason']}"
    )


def _moments(shown: Shown) -> tuple[list[Moment], Span]:
    """The micro-batches as moments of the picture; the n-th has the n-th file."""
    found = []
    for batch, clicks in enumerate(shown.clicks):
        measured = [row for row in shown.metrics if row["batch"] == batch]
        if not measured:
            continue
        fired = {
            (row["window_start"], row["window_end"], row["timing"]): None
            for row in shown.panes
            if row["batch"] == batch and row["op"] == "+"
        }
        events = [
            moment for moment in (_readable(click.ts) for click in clicks) if moment is not None
        ]
        found.append(Moment(measured[0]["clock"], events, measured[0]["watermark"], list(fired)))
    windows = [window for moment in found for window in moment.panes]
    start, end = (
        min((start for start, _, _ in windows), default=_EPOCH),
        max((end for _, end, _ in windows), default=_EPOCH),
    )
    return found, Span(start, end + timedelta(seconds=SPAN))


def _readable(text: str | None) -> datetime | None:
    try:
        return None if text is None else _moment(instant(text))
    except tg.ParseError:
        return None


def _verdict(shown: Shown) -> str:
    """Whether emits minus retracts equal a recount of the accepted clicks, per complete minute."""
    net, truth = Counter[tuple[str, datetime]](), Counter[tuple[str, datetime]]()
    for pane in shown.panes:
        net[pane["user"], pane["window_start"]] += (
            pane["clicks"] if pane["op"] == "+" else -pane["clicks"]
        )
    refused = {row["event_id"] for row in shown.late}
    for click in {click.event_id: click for clicks in shown.clicks for click in clicks}.values():
        moment = None if click.event_id in refused else _readable(click.ts)
        if moment is not None:
            truth[click.user, moment.replace(second=0, microsecond=0)] += 1
    complete = {
        (pane["user"], pane["window_start"]) for pane in shown.panes if pane["timing"] != "early"
    }
    wrong = [window for window in complete if net[window] != truth[window]]
    if wrong:
        return (
            f"Emits minus retracts differ from a recount of the clicks in {len(wrong)} of"
            f" {len(complete)} windows."
        )
    return (
        f"Emits minus retracts equal a recount of the clicks in all {len(complete)} windows that"
        " are complete."
    )


def _moment(micros: int) -> datetime:
    return _EPOCH + timedelta(microseconds=micros)


def _plain(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)


def _coloured(text: str, code: str) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if sys.stdout.isatty() else text

"""Benchmarks: the cost of each part of Tidegate as a ratio to a peer on the same data."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from bench import kafka, per_key, safety, spark, streams, watermarks
from bench.cases import FULL, Measured
from bench.kernel import CASES
from bench.nexmark import racing as nexmark
from bench.scaling import growth, operators, report
from bench.scaling.model import Model
from bench.spark_sides import FILES_A_BATCH, OURS, WARM

_RACE = ("events", "cases", "keys", "files", "warm", "cores", "memory", "ours", "profile")
_OPTIONS = {
    "kernel": ("events", "case"),
    "watermarks": ("events", "partitions"),
    "spark": _RACE,
    "joins": _RACE,
    "kafka": (*_RACE, "brokers"),
    "streams": ("events", "brokers"),
    "nexmark": ("events", "cases", "cores", "memory"),
    "scaling": ("events", "memory", "embedded"),
    "growth": ("events", "memory", "embedded", "plot"),
    "safety": ("events", "files", "memory", "cores", "embedded"),
}
"""The areas, and the options that apply to each."""
_RACES = {"spark": spark.CASES, "joins": spark.JOINS, "kafka": kafka.CASES}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print. The exit status does not depend on speed."""
    parser = _parser()
    options = parser.parse_args(argv)
    for name in sorted(
        {name for names in _OPTIONS.values() for name in names} - set(_OPTIONS[options.part])
    ):
        if getattr(options, name):
            parser.error(f"--{name} means nothing to `{options.part}`")
    if options.part == "kafka":
        with kafka.broker(options.brokers) as servers:
            _spark(options, kafka.CASES, kafka.Topics(servers))
        return 0
    if options.part in _RACES:
        _spark(options, _RACES[options.part])
        return 0
    if options.part == "streams":
        _streams(options.events or streams.EVENTS, options.brokers, as_json=options.json)
        return 0
    if options.part in _OTHERS:
        _OTHERS[options.part](options)
        return 0
    events = options.events or FULL
    if options.part == "watermarks":
        _watermarks(options.partitions or watermarks.SIZES, as_json=options.json)
        if not options.partitions:
            _per_key(events, as_json=options.json)
        return 0
    if not options.json:
        print(_HEAD)
    for case in run(options.case or list(CASES), events):
        for line in [_json(case)] if options.json else map(_line, case):
            print(line, flush=True)
    return 0


def run(cases: Sequence[str], events: int = FULL) -> Iterator[list[Measured]]:
    """Yield the measurements of each case: the case itself, then its variations."""
    for case in cases:
        yield CASES[case](events)


def _watermarks(sizes: Sequence[int], *, as_json: bool) -> None:
    if not as_json:
        print(watermarks.HEAD)
    for found in watermarks.measure(sizes):
        print(json.dumps(found.to_dict()) if as_json else watermarks.line(found), flush=True)


def _per_key(rows: int, *, as_json: bool) -> None:
    if not as_json:
        print(f"\n{per_key.HEAD}")
    for found in per_key.compare(rows):
        print(json.dumps(found.to_dict()) if as_json else per_key.line(found), flush=True)


def _streams(events: int, brokers: str | None, *, as_json: bool) -> None:
    if not as_json:
        print(streams.HEAD)
    for found in streams.measure(events, brokers):
        print(json.dumps(found.to_dict()) if as_json else streams.line(found), flush=True)
    if brokers is None:
        print("Kafka is skipped: pass --brokers HOST:PORT to measure it", file=sys.stderr)


def _nexmark(options: argparse.Namespace) -> None:
    races = nexmark.race(
        nexmark.named(options.cases),
        spark.say,
        events=options.events or nexmark.EVENTS,
        cores=options.cores or os.cpu_count() or 1,
        memory=options.memory or "8g",
    )
    for number, raced in enumerate(races):
        if not options.json and number == 0:
            print(nexmark.HEAD)
        print(json.dumps(raced.to_dict()) if options.json else nexmark.line(raced), flush=True)


def _scaling(options: argparse.Namespace) -> None:
    share = (options.events or operators.FULL) / operators.FULL
    given = list(report.samples(share, options.memory or "4g", embedded=options.embedded))
    model = Model.fitted(given)
    found: Iterable[Any] = report.to_dicts(model, given) if options.json else report.lines(model)
    for line in found:
        print(json.dumps(line) if options.json else line, flush=True)


def _growth(options: argparse.Namespace) -> None:
    share = (options.events or operators.FULL) / operators.FULL
    found = []
    if not options.json:
        print(growth.HEAD)
    for sample in growth.samples(share, options.memory or "4g", embedded=options.embedded):
        found.append(sample)
        print(json.dumps(sample.to_dict()) if options.json else growth.line(sample), flush=True)
    if options.plot is not None:
        growth.draw(found, options.plot)


def _safety(options: argparse.Namespace) -> None:
    found = safety.embedded(options.events or safety.ROWS)
    if not options.embedded:
        racing = spark.Racing(
            total=options.events,
            files=options.files,
            memory=options.memory or "8g",
            cores=options.cores,
        )
        found = chain(found, safety.on_spark(racing))
    if not options.json:
        print(safety.HEAD)
    for one in found:
        print(json.dumps(one.to_dict()) if options.json else safety.line(one), flush=True)


_OTHERS = {"nexmark": _nexmark, "scaling": _scaling, "growth": _growth, "safety": _safety}


def _spark(
    options: argparse.Namespace,
    known: Mapping[str, spark.Case],
    topics: kafka.Topics | None = None,
) -> None:
    warm = WARM if options.warm is None else options.warm
    racing = spark.Racing(
        total=options.events,
        files=options.files,
        keys=options.keys,
        memory=options.memory or "8g",
        cores=options.cores,
        warm=warm,
        topics=topics,
    )
    cases = spark.named(options.cases, known)
    if options.ours or options.profile:
        racing.sides = (OURS,)
    if not options.profile:
        spark.bench(cases, racing, as_json=options.json)
        return
    from bench import spark_profile

    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as folder:
        racing.profile, racing.warm = Path(folder), 0
        spark.bench(cases, racing, as_json=options.json)
        spark.say(spark_profile.report(racing.profile))


def _json(case: list[Measured]) -> str:
    first, *others = (measured.to_dict() for measured in case)
    return json.dumps({**first, "also": others})


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("part", choices=list(_OPTIONS), help="the area to measure")
    as_json = 'print one JSON object per case: {"name", "ratio", "events_per_second", ...}'
    parser.add_argument("--json", action="store_true", help=as_json)
    smaller = (
        "kernel: rows of a large delivery; watermarks: rows for per-key watermarks; the number of"
        f" keys shrinks in proportion (default: {FULL:,}); spark: events of a case (default:"
        f" {spark.FILES * spark.ROWS:,}); joins: events of each side (default:"
        f" {spark.FILES * spark.JOINED_ROWS:,}); streams: events per turn (default:"
        f" {streams.EVENTS:,}); nexmark: events of all kinds (default: {nexmark.EVENTS:,});"
        f" scaling, growth: rows of a delivery, with the other numbers in proportion (default:"
        f" {operators.FULL:,}); safety: rows of an embedded delivery (default: {safety.ROWS:,})"
    )
    parser.add_argument("--events", type=_positive, metavar="N", help=smaller)
    cases = f"kernel: run only this case; repeatable: {', '.join(CASES)}"
    parser.add_argument("--case", action="append", choices=list(CASES), metavar="NAME", help=cases)
    sizes = (
        "watermarks: number of partitions; repeatable; skips the per-key watermarks"
        f" (default: {', '.join(map(str, watermarks.SIZES))})"
    )
    parser.add_argument("--partitions", action="append", type=_positive, metavar="N", help=sizes)
    named = {**{part: list(known) for part, known in _RACES.items()}, "nexmark": nexmark.NAMES}
    races = "; ".join(f"{part}: {', '.join(names)}" for part, names in named.items())
    parser.add_argument(
        "--cases",
        metavar="NAME,NAME",
        help=f"run only these cases (default: all that have an aim); {races}",
    )
    both = ", ".join(_RACES)
    parser.add_argument(
        "--keys",
        type=_positive,
        metavar="N",
        help=f"{both}: number of keys, instead of the case's own",
    )
    parser.add_argument(
        "--files",
        type=_positive,
        metavar="N",
        help=f"{both}: number of files per side, {FILES_A_BATCH} per micro-batch",
    )
    before = (
        f"{both}: number of small warm-up batches before a run, during which the JVM compiles"
        f" (default: {WARM})"
    )
    parser.add_argument("--warm", type=_whole, metavar="N", help=before)
    parser.add_argument(
        "--cores",
        type=_positive,
        metavar="N",
        help=f"{both}, nexmark: number of cores (default: all)",
    )
    memory = f"{both}, nexmark: memory of Spark's JVM (default: 8g); scaling, growth (default: 4g)"
    parser.add_argument("--memory", metavar="SIZE", help=memory)
    parser.add_argument(
        "--brokers",
        metavar="HOST:PORT",
        help="streams: Kafka brokers to measure as well; kafka: brokers instead of our own",
    )
    parser.add_argument(
        "--ours",
        action="store_true",
        help=f"{both}: run only Tidegate, without the equality check and the ratio",
    )
    parser.add_argument(
        "--embedded",
        action="store_true",
        help="scaling, growth, safety: only what needs no Spark session",
    )
    picture = "growth: draw a picture, such as docs/images/growth.svg"
    parser.add_argument("--plot", type=Path, metavar="FILE", help=picture)
    parser.add_argument(
        "--profile",
        action="store_true",
        help=f"{both}: run only Tidegate and profile its Python workers, which slows them down",
    )
    return parser


def _positive(text: str) -> int:
    return _number(text, 1)


def _whole(text: str) -> int:
    return _number(text, 0)


def _number(text: str, least: int) -> int:
    number = int(text)
    if number < least:
        raise argparse.ArgumentTypeError(f"must be at least {least}, got {number}")
    return number


_HEAD = (
    f"{'case':<48}{'ratio':>7}{'aim':>6}  "
    f" {'against':<26}{'keys':>11}{'ours':>11}{'peer':>11}{'events/s':>13}{'bytes':>8}\n"
    f"{'':<48}{'':>7}{'':>6}"
    f"   {'':<26}{'':>11}{'ms':>11}{'ms':>11}{'':>13}{'/cell':>8}"
)


def _line(found: Measured) -> str:
    verdict = "" if found.ratio <= found.aim else "  over"
    ours, peer = found.seconds * 1e3, found.peer_seconds * 1e3
    return (
        f"{found.name:<48}{found.ratio:>7.2f}{found.aim:>6.1f}  "
        f" {found.peer:<26}{found.keys:>11,}{ours:>11.1f}{peer:>11.1f}"
        f"{found.events_per_second:>13,.0f}{found.bytes_per_key_and_window:>8.0f}{verdict}"
    )

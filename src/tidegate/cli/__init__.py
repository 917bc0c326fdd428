"""The command line: `run`, `sql`, `state`, `why`, `ui`, `stream`, `replay`, `demo`, `doctor`."""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from tidegate.cli import sql, stream
from tidegate.errors import TidegateError
from tidegate.redaction import redacted_lines


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command, and return its exit status.

    0: success. 1: something failed. 2: the command could not be run.
    """
    options = _parsed(argv)
    warnings.filterwarnings(
        "ignore", message="PySpark does not yet fully support pandas", category=FutureWarning
    )
    try:
        return int(options.command(options))
    except TidegateError as error:
        print(redacted_lines(f"tidegate {options.name}: {error}"), file=sys.stderr)
        return 2
    except BrokenPipeError:
        # The reader has closed the pipe; avoid a second error when Python flushes it.
        sys.stderr.close()
        return 1


def _parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = _parser()
    options, left = parser.parse_known_args(argv)
    # argparse does not assign files that follow options.
    if left and (
        not hasattr(options, "files") or any(word.startswith("-") and word != "-" for word in left)
    ):
        parser.error(f"unrecognized arguments: {' '.join(left)}")
    if left:
        options.files = [*options.files, *left]
    return options


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tidegate", description="Event-time windows, triggers and panes over streams."
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {version('tidegate')}")
    commands = parser.add_subparsers(dest="name", metavar="COMMAND", required=True)
    replay = commands.add_parser(
        "replay", help="run scenario files and report which pass", description=_REPLAY
    )
    add_replay_options(replay)
    replay.set_defaults(command=_replay)
    demo = commands.add_parser(
        "demo",
        help="run a click stream through a pipeline on local Spark, and show its output",
    )
    demo.add_argument(
        "--folder",
        default="tidegate-demo",
        metavar="FOLDER",
        help="folder for its files (default: %(default)s)",
    )
    demo.add_argument(
        "--json", action="store_true", help="print one JSON object per line instead of tables"
    )
    demo.set_defaults(command=_demo)
    run = commands.add_parser("run", help="run a pipeline file on Spark", description=_RUN)
    run.add_argument(
        "file", metavar="PIPELINE.yaml", help="the pipeline file; docs/pipelines.md describes it"
    )
    run.add_argument(
        "--dry-run",
        action="store_true",
        help="check the file and show what would run, without starting or writing anything",
    )
    run.add_argument(
        "--until-idle",
        action="store_true",
        help="process the available input and exit, whatever trigger the file sets",
    )
    run.add_argument("--ui", action="store_true", help="serve the live page of the query")
    run.add_argument(
        "--metrics",
        metavar="[HOST:]PORT",
        help="serve metrics for Prometheus at this address (default host: 127.0.0.1)",
    )
    run.add_argument("--json", action="store_true", help="print one JSON object per line")
    run.set_defaults(command=_run)
    _add_state(commands)
    _add_why(commands)
    _add_ui(commands)
    stream.add(commands)
    sql.add(commands)
    doctor = commands.add_parser(
        "doctor", help="check Java, Python, Spark and packages, and show how to fix problems"
    )
    doctor.add_argument(
        "--checkpoint", metavar="FOLDER", help="check that this checkpoint folder is writable"
    )
    doctor.add_argument(
        "--spark", action="store_true", help="also start a session and run a small query"
    )
    doctor.add_argument("--json", action="store_true", help="print one JSON object per line")
    doctor.set_defaults(command=_doctor)
    completion = commands.add_parser(
        "completion",
        help="print a completion script for a shell",
        description='For bash, add `eval "$(tidegate completion bash)"` to ~/.bashrc.',
    )
    completion.add_argument("shell", choices=["bash", "zsh", "fish"])
    completion.set_defaults(command=_completion)
    return parser


def _add_state(commands: Any) -> None:
    state = commands.add_parser(
        "state",
        help="show the state of a query on Spark, without stopping it",
        description=_STATE,
    )
    state.add_argument(
        "checkpoint", metavar="CHECKPOINT", help="the checkpoint folder of the query"
    )
    state.add_argument(
        "--key",
        action="append",
        metavar="[COLUMN=]VALUE",
        help="show the windows of this key; repeat it for a key of several columns",
    )
    state.add_argument(
        "--window",
        metavar="START[/END]",
        help="show the windows that overlap this range; one instant: those that contain it",
    )
    state.add_argument(
        "--messages", action="store_true", help="show the stored messages of the windows as well"
    )
    state.add_argument(
        "--operator",
        type=int,
        default=-1,
        metavar="N",
        help="the operator to show, counted from 0 in the order of the data (default: the last)",
    )
    state.add_argument("--json", action="store_true", help="print one JSON object")
    state.set_defaults(command=_state)


def _add_why(commands: Any) -> None:
    why = commands.add_parser(
        "why",
        help="show the history of one key and window: panes, their causes, late rows",
        description=_WHY,
    )
    why.add_argument(
        "location",
        metavar="CHECKPOINT|OUTPUT",
        help="the checkpoint of the query, or the folder or Delta table of its panes",
    )
    why.add_argument(
        "--key",
        action="append",
        metavar="[COLUMN=]VALUE",
        help="the key; repeat it for a key of several columns",
    )
    why.add_argument(
        "--window",
        metavar="START[/END]",
        help="the bounds of the window; one instant: the windows that contain it (default: all)",
    )
    why.add_argument(
        "--operator",
        type=int,
        default=-1,
        metavar="N",
        help="the operator, counted from 0 in the order of the data (default: the last)",
    )
    why.add_argument("--json", action="store_true", help="print one JSON object")
    why.set_defaults(command=_why)


def add_replay_options(parser: argparse.ArgumentParser) -> None:
    """Add the files and options of `tidegate replay` to a parser."""
    parser.add_argument(
        "files", nargs="+", metavar="FILE", help="a YAML file with a list of scenarios"
    )
    parser.add_argument(
        "--runtime",
        choices=["embedded", "spark"],
        default="embedded",
        help="where operators run (default: %(default)s)",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help='print one JSON object per line: {"id", "status", "detail"}',
    )


_REPLAY = """\
Runs every scenario of the files and prints one line for each: pass, fail with the difference, or
unsupported with the reason. The exit status is 0 if none failed and some passed, 1 otherwise, and
2 if a file cannot be read. With `--runtime spark` all scenarios run in one query on local Spark.
docs/scenarios.md describes the format."""


def _replay(options: argparse.Namespace) -> int:
    from tidegate.cli.replay import replay

    return replay(options.files, as_json=options.json, runtime=options.runtime)


_RUN = """\
Runs a pipeline file and shows its progress. Ctrl-C (or SIGTERM) stops it cleanly: the current
micro-batch is abandoned, and runs again at the next start. The exit status is 0 if the query ended
or was stopped, 1 if it failed, and 2 if it could not be started."""


def _run(options: argparse.Namespace) -> int:
    from tidegate.cli.run import run

    return run(
        options.file,
        dry_run=options.dry_run,
        as_json=options.json,
        until_idle=options.until_idle,
        with_ui=options.ui,
        metrics=options.metrics,
    )


_STATE = """\
Shows the state of a query after its last committed batch: windows, rows of joins, watermarks by
source, what the output waits for, sizes and late rows. With `--key`, `--window` or `--messages`, it
shows the selected windows and their current values, or the selected rows of a join. It reads the
files of the checkpoint and starts no Spark session. The query may run meanwhile."""


def _state(options: argparse.Namespace) -> int:
    from tidegate.cli.state import state

    return state(
        options.checkpoint,
        key=options.key,
        window=options.window,
        messages=options.messages,
        operator=options.operator,
        as_json=options.json,
    )


def _add_ui(commands: Any) -> None:
    ui = commands.add_parser(
        "ui", help="serve the live page of a query on this machine", description=_UI
    )
    ui.add_argument("checkpoint", metavar="CHECKPOINT", help="the checkpoint folder of the query")
    ui.add_argument(
        "--port", type=int, default=0, metavar="N", help="the port (default: a free one)"
    )
    ui.add_argument("--json", action="store_true", help="print the address as a JSON object")
    ui.set_defaults(command=_ui)


_UI = """\
Serves a page that shows a query live: event time against processing time, rates, lag and state,
what holds the watermark back, and the history of a key and window. It reads the checkpoint and the
output, and starts no Spark session; the query may run in another process, or have ended. The page
is on the loopback interface, and its address has a token. Ctrl-C ends it."""


def _ui(options: argparse.Namespace) -> int:
    from tidegate.cli.ui import ui

    return ui(options.checkpoint, port=options.port, as_json=options.json)


_WHY = """\
Shows what happened to the windows of one key, in order: each pane with the trigger, the watermark
and the batch that caused it and the values that it changed, the rows of each batch, merges of
sessions, retractions, late rows with the reason and the distance, and what is open and waits. It
reads what the query writes anyway: panes and late rows (Parquet or Delta) and the checkpoint. It
starts no Spark session, and the query may run meanwhile."""


def _why(options: argparse.Namespace) -> int:
    from tidegate.cli.why import why

    return why(
        options.location,
        key=options.key,
        window=options.window,
        operator=options.operator,
        as_json=options.json,
    )


def _completion(options: argparse.Namespace) -> int:
    from tidegate.cli.completion import script

    print(script(_parser(), options.shell), end="")
    return 0


def _doctor(options: argparse.Namespace) -> int:
    from tidegate.cli.doctor import doctor

    return doctor(checkpoint=options.checkpoint, spark=options.spark, as_json=options.json)


def _demo(options: argparse.Namespace) -> int:
    from tidegate.cli.demo import demo

    return demo(as_json=options.json, folder=options.folder)

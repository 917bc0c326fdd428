"""The command line: `tidegate replay`, `tidegate demo` and `tidegate bench`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from tidegate.errors import TidegateError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit status is 0 when all is well, 1 when something failed, 2 when the command could not be run."""
    options = _parser().parse_args(argv)
    try:
        return int(options.command(options))
    except TidegateError as error:
        print(f"tidegate {options.name}: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # The reader of our output has seen enough; a second error while Python closes the pipe would only confuse.
        sys.stderr.close()
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tidegate", description="Event-time windows, triggers and panes over streams.")
    commands = parser.add_subparsers(dest="name", metavar="COMMAND", required=True)
    replay = commands.add_parser("replay", help="run scenario files and say which pass", description=_REPLAY)
    replay.add_argument("files", nargs="+", metavar="FILE", help="a YAML file that holds a list of scenarios")
    replay.add_argument("--runtime", choices=["embedded"], default="embedded", help="where the operators run (default: %(default)s)")
    replay.add_argument("--json", action="store_true", help='print one JSON object a line: {"id", "status", "detail"}')
    replay.set_defaults(command=_replay)
    demo = commands.add_parser("demo", help="show early, on-time and late panes of a small stream")
    demo.add_argument("--json", action="store_true", help="print one JSON object a line instead of tables")
    demo.set_defaults(command=_demo)
    # It has a parser of its own, so whatever looks like an option is for that one.
    bench = commands.add_parser("bench", help="measure the kernel, or the watermarks", add_help=False, prefix_chars="\0")
    bench.add_argument("arguments", nargs=argparse.REMAINDER)
    bench.set_defaults(command=_bench)
    return parser


_REPLAY = """Runs every scenario of the files and prints one line for each: pass, fail with the difference, or unsupported with the
reason. The exit status is 0 only if none failed, and 2 if a file cannot be read. The format is described in docs/scenarios.md."""


def _replay(options: argparse.Namespace) -> int:
    from tidegate.cli.replay import replay

    return replay(options.files, as_json=options.json)


def _demo(options: argparse.Namespace) -> int:
    from tidegate.cli.demo import demo

    return demo(as_json=options.json)


def _bench(options: argparse.Namespace) -> int:
    from tidegate.bench import main as bench

    return bench(options.arguments)

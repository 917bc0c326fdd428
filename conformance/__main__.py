"""`python -m conformance`: replay scenario files of any system."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from conformance.kinds import EXTENSION
from tidegate.cli import add_replay_options
from tidegate.cli.replay import replay
from tidegate.errors import TidegateError


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status: 0 if no scenario failed, 1 if one did, 2 if a file cannot be read."""
    parser = argparse.ArgumentParser(
        prog="python -m conformance",
        description="Replay scenario files, also those of other systems; see conformance/README.md",
    )
    add_replay_options(parser)
    options = parser.parse_intermixed_args(argv)
    try:
        return replay(
            options.files, as_json=options.json, runtime=options.runtime, extension=EXTENSION
        )
    except TidegateError as error:
        print(f"conformance: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())

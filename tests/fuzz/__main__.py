"""Fuzz targets guided by coverage: `python -m fuzz [--seconds N] [TARGET ...]`.

Each target runs in a process of its own, for its share of the seconds. An input that crashes one is
written to `tests/fuzz/corpus/TARGET`, where `tests/test_fuzz.py` finds it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

MAX_BYTES = 20_000
MEMORY_MB = 2_000
ONE_INPUT_SECONDS = 20
"""An input that takes longer is a finding."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", help="default: all")
    parser.add_argument("--seconds", type=int, default=600, help="for all targets together")
    parser.add_argument("--in-process", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.in_process:
        _run(options.targets[0], Path(options.targets[1]), options.seconds)
        return 0
    from fuzz.targets import TARGETS

    names = options.targets or list(TARGETS)
    failed = []
    for name in names:
        seconds = max(1, options.seconds // len(names))
        with tempfile.TemporaryDirectory() as corpus:
            for number, seed in enumerate(TARGETS[name].seeds()):
                Path(corpus, str(number)).write_bytes(seed)
            command = [sys.executable, "-m", "fuzz", "--in-process", "--seconds", str(seconds)]
            run = subprocess.run(
                [*command, name, corpus], capture_output=True, text=True, check=False
            )
        figures = [line for line in run.stderr.splitlines() if line.startswith("stat::")]
        runs = next((line.split()[-1] for line in figures if "executed_units" in line), "?")
        print(f"{name}: {runs} inputs, {'FAILED' if run.returncode else 'passed'}", flush=True)
        if run.returncode:
            failed.append(name)
            print("\n".join((run.stdout + run.stderr).splitlines()[-40:]), flush=True)
    return len(failed)


def _run(name: str, corpus: Path, seconds: int) -> None:
    import atheris

    with atheris.instrument_imports(include=["tidegate"]):
        from fuzz.targets import TARGETS
    from fuzz.target import CORPUS

    target = TARGETS[name]
    (CORPUS / name).mkdir(parents=True, exist_ok=True)
    arguments = (
        f"-max_total_time={seconds}",
        f"-max_len={MAX_BYTES}",
        f"-rss_limit_mb={MEMORY_MB}",
        f"-timeout={ONE_INPUT_SECONDS}",
        f"-artifact_prefix={CORPUS / name}/",
        "-print_final_stats=1",
        "-verbosity=0",
    )
    atheris.Setup([sys.argv[0], *arguments, str(corpus)], target.check)
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())

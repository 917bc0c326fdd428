"""Builds the wheel, checks its metadata and contents, and smoke-tests it in an empty environment.

Run by `make package`. The environment is created in a temporary folder. Extras are installed one
after the other, at the versions of the lock file; each has a smoke test in `SMOKE`.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import tomllib
import venv
import zipfile
from pathlib import Path

from packaging.metadata import Metadata

REPOSITORY = Path(__file__).resolve().parent.parent
LOCK = REPOSITORY / "requirements" / "dev.lock"
REQUIRED = ("tidegate/__init__.py", "tidegate/py.typed", "tidegate/cli/__init__.py")
FORBIDDEN = ("tests", "bench", "conformance", "docs", "examples")
"""Folders of the repository that users do not run."""

EMBEDDED = """
import tidegate as tg
panes = tg.stream(time="ts", key="k").window(tg.tumbling("1 minute")).aggregate({aggregate})
op = panes.embedded(now=0)
op.add_messages([{{"ts": 1, "k": "a"}}, {{"ts": 2, "k": "a"}}])
op.finish()
(pane,) = op.get_result().panes.to_pylist()
assert pane["n"] == 2, pane
"""
SMOKE = {
    "rocksdb": """
import tempfile, tidegate as tg
with tempfile.TemporaryDirectory() as folder:
    store = tg.RocksDBStore(folder)
    store.put_json("a", {"b": 1})
    store.commit()
    assert store.get_json("a") == {"b": 1}
    store.close()
""",
    "sketches": EMBEDDED.format(aggregate='n=tg.approx_distinct("ts")'),
    "spark": "import pyspark, tidegate as tg; tg.sources; tg.sinks; tg.spark_session",
    "connect": "import pyspark.sql.connect.session, tidegate",
    "delta": 'import deltalake, tidegate as tg; tg.sinks.delta("out")',
    "kafka": 'import confluent_kafka, tidegate as tg; tg.sinks.kafka("localhost:9092", "t")',
    "postgres": 'import psycopg, tidegate as tg; tg.sinks.postgres("host=localhost", "t")',
    "plot": "import matplotlib, tidegate",
    "avro": "import fastavro, tidegate",
    "sql": "import duckdb, prompt_toolkit, sqlglot, tidegate",
    "ui": "import bokeh, tidegate",
    "metrics": "import prometheus_client, tidegate",
    "rich": "import rich, tidegate",
}
"""One program per extra; it fails if the extra does not install what it promises."""


def main() -> None:
    """Run all checks; an exception or a non-zero exit status of a command fails the target."""
    with tempfile.TemporaryDirectory(prefix="tidegate-package-") as folder:
        wheel = build(Path(folder) / "dist")
        check_contents(wheel)
        python = empty_environment(Path(folder) / "environment")
        install(python, str(wheel))
        run(python, EMBEDDED.format(aggregate="n=tg.count()"))
        command = python.with_name("tidegate")
        subprocess.run([command, "--help"], check=True, stdout=subprocess.DEVNULL)
        print("import tidegate, tidegate --help: ok")
        for extra in extras():
            install(python, f"{wheel}[{extra}]")
            run(python, SMOKE[extra])
            print(f"extra {extra}: ok")


def build(folder: Path) -> Path:
    """Build the wheel with the pinned build backend and validate its metadata."""
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--wheel-dir", folder, REPOSITORY], check=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        found = Metadata.from_email(archive.read(name), validate=True)
    if found.description is None or not found.license_expression:
        raise SystemExit(f"{wheel.name} lacks a description or a license")
    print(f"{wheel.name}: {wheel.stat().st_size:,} bytes, metadata valid")
    return wheel


def check_contents(wheel: Path) -> None:
    """Fail if the wheel holds anything but the package, or lacks part of it."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    metadata = wheel.name.split("-py3")[0] + ".dist-info"
    foreign = [name for name in names if name.split("/")[0] not in {"tidegate", metadata}]
    foreign += [name for name in names if set(Path(name).parts) & set(FORBIDDEN)]
    missing = [name for name in REQUIRED if name not in names]
    if foreign or missing:
        raise SystemExit(f"{wheel.name}: unexpected files {foreign}, missing files {missing}")
    print(f"{wheel.name}: {len(names)} files, no benchmarks, conformance code or tests")


def empty_environment(folder: Path) -> Path:
    """Create a virtual environment without any package and return its interpreter."""
    venv.create(folder, with_pip=True)
    return folder / "bin" / "python"


def install(python: Path, requirement: str) -> None:
    """Install a requirement at the locked versions."""
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--constraint", LOCK, requirement], check=True)


def run(python: Path, program: str) -> None:
    """Run a smoke test outside the repository, so that only the wheel is importable."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [python, "-W", "error::DeprecationWarning", "-c", program], check=True, cwd=folder
        )


def extras() -> list[str]:
    """All extras of the project but the one for development."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]
    return [name for name in project["optional-dependencies"] if name != "dev"]


if __name__ == "__main__":
    main()

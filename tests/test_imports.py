"""Importing Tidegate is cheap, and its parts import each other in one direction only."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ["pandas", "pyspark", "rocksdict", "datasketches", "_datasketches", "yaml"]
SURFACES = ["tidegate.cli", "tidegate.scenarios", "bench", "conformance"]
MAY_IMPORT_THE_WHOLE = ("__init__.py", "__main__.py", "cli", "scenarios", "bench")


@pytest.fixture(scope="module")
def imported() -> set[str]:
    """The modules that a fresh interpreter holds after `import tidegate`."""
    program = "import sys, tidegate; print(*sys.modules, sep='\\n')"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize("name", HEAVY)
def test_import_leaves_out_what_is_heavy_or_optional(name: str, imported: set[str]) -> None:
    assert name not in imported


@pytest.mark.parametrize("name", SURFACES)
def test_import_leaves_out_the_command_line(name: str, imported: set[str]) -> None:
    assert name not in imported


@pytest.mark.parametrize("command", ["state", "why"])
def test_a_command_that_reads_a_checkpoint_loads_little(command: str) -> None:
    """It answers within a second or two, most of which are imports."""
    program = f"import sys\nfrom tidegate.cli import main\nmain({[command, '/missing']!r})\n"
    done = subprocess.run(
        [sys.executable, "-c", f"{program}print(*sys.modules, sep='\\n')"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "/missing" in done.stderr
    loaded = set(done.stdout.split())
    assert not {"pyspark", "sqlglot", "duckdb", "bokeh", "yaml", "tidegate.streams"} & loaded


def test_import_contracts_hold(repository: Path) -> None:
    program = (
        "import sys; from importlinter.cli import lint_imports;"
        " sys.exit(lint_imports(no_cache=True, no_logo=True))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=repository, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def imports_the_whole(source: str, parts: set[str]) -> bool:
    """Whether a module imports the package `tidegate` itself, which stands above every layer and
    hides what is used.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import) and any(alias.name == "tidegate" for alias in node.names):
            return True
        if (
            isinstance(node, ast.ImportFrom)
            and node.module == "tidegate"
            and any(alias.name not in parts for alias in node.names)
        ):
            return True
    return False


def test_no_part_imports_the_whole(repository: Path) -> None:
    package = repository / "src" / "tidegate"
    parts = {path.stem for path in package.iterdir()}
    inner = [
        path
        for path in package.rglob("*.py")
        if path.relative_to(package).parts[0] not in MAY_IMPORT_THE_WHOLE
    ]
    assert inner
    assert [
        str(path.relative_to(package))
        for path in inner
        if imports_the_whole(path.read_text("utf-8"), parts)
    ] == []


def test_an_import_of_the_whole_is_seen() -> None:
    parts = {"errors", "spec"}
    assert imports_the_whole("import tidegate as tg", parts)
    assert imports_the_whole("def f():\n    from tidegate import stream", parts)
    assert not imports_the_whole(
        "import tidegate.errors\nfrom tidegate.spec import windows\nfrom tidegate import errors",
        parts,
    )

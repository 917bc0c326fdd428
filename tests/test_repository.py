"""The habits of the repository: sizes, names, opening sentences, and files that agree with each
other.
"""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest
import yaml

REPOSITORY = Path(__file__).resolve().parent.parent
SOURCES = sorted(
    path
    for folder in ("src", "tests", "bench", "conformance", ".ci")
    for path in (REPOSITORY / folder).rglob("*.py")
)
TEXTS = [
    *SOURCES,
    *sorted((REPOSITORY / "docs").rglob("*.md")),
    *sorted((REPOSITORY / "requirements").iterdir()),
    *(
        REPOSITORY / name
        for name in (
            "README.md",
            "CONTRIBUTING.md",
            "CHANGELOG.md",
            "Makefile",
            "pyproject.toml",
            ".ci/run",
        )
    ),
]
PROSE = [path for path in TEXTS if path.is_relative_to(REPOSITORY / "src") or path.suffix == ".md"]
RIDDLES = re.compile(
    r"\b(?:unless sa" + r"id|is to" + r"ld|are to" + r"ld|no" + r"body|some" + r"body)\b"
)
"""Phrases that no reader would search for."""
MODULE_LINES = 800
FUNCTION_LINES = 80
SAYS_NOTHING = {"util", "utils", "helper", "helpers", "common", "misc"}
# Written in two pieces, so that this file does not find itself.
UNFINISHED = re.compile(
    r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X|HA" + r"CK|NotImplemented" + r"Error)\b"
)
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:ro" + r"ot|ho" + r"me|wo" + r"rk|Use" + r"rs)/\w")


def names(paths: list[Path]) -> list[str]:
    return [path.relative_to(REPOSITORY).as_posix() for path in paths]


def lines_of_functions(source: str) -> dict[str, int]:
    """How many lines each function takes, from `def` to its last line."""
    functions = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return {
        f"{node.name}, line {node.lineno}": (node.end_lineno or node.lineno) - node.lineno + 1
        for node in functions
    }


def opens_with_a_sentence(source: str) -> bool:
    """Whether the first paragraph of the module's docstring is one sentence (words, then a full
    stop).
    """
    docstring = ast.get_docstring(ast.parse(source)) or ""
    opening = " ".join(docstring.split("\n\n")[0].split())
    return bool(re.fullmatch(r"[`A-Z*].*\w.*\.", opening))


def pinned(lock: str) -> dict[str, str]:
    """Package names of a lock file and the versions they are pinned to."""
    return dict(re.findall(r"^([\w.-]+)==([\w.+!-]+)", lock, re.MULTILINE))


def canonical(requirement: str) -> str:
    """The name in a requirement, spelled as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", requirement)[0]).lower()


@pytest.fixture(scope="module")
def project() -> dict:
    return tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]


@pytest.fixture(scope="module")
def lock() -> str:
    return (REPOSITORY / "requirements" / "dev.lock").read_text("utf-8")


@pytest.mark.parametrize("path", SOURCES, ids=names(SOURCES))
def test_module_keeps_its_size_and_opens_with_a_sentence(path: Path) -> None:
    source = path.read_text("utf-8")
    assert len(source.splitlines()) <= MODULE_LINES
    assert {
        name: lines for name, lines in lines_of_functions(source).items() if lines > FUNCTION_LINES
    } == {}
    assert opens_with_a_sentence(source), (
        f"the docstring of {path.name} must open with one sentence that says what the module is"
    )


def test_names_say_what_is_inside() -> None:
    everything = [
        path
        for folder in ("src", "tests", "conformance", "docs")
        for path in (REPOSITORY / folder).rglob("*")
    ]
    assert names([path for path in everything if path.stem.lower() in SAYS_NOTHING]) == []


@pytest.mark.parametrize("path", TEXTS, ids=names(TEXTS))
def test_nothing_is_left_unfinished(path: Path) -> None:
    text = path.read_text("utf-8")
    assert UNFINISHED.findall(text) == []
    assert MACHINE_PATH.findall(text) == []


def test_lock_names_no_registry_and_pins_everything_with_digests(lock: str, project: dict) -> None:
    entries = lock.replace(" \\\n", " ").splitlines()
    digests = r"( --hash=sha256:[0-9a-f]{64})+"
    pin = re.compile(rf"[\w.-]+==[\w.+!-]+( ; [^#]+?)?\s*{digests}$")
    assert [entry for entry in entries if entry and not pin.match(re.sub(r"\s+", " ", entry))] == []
    wanted = project["dependencies"] + [
        name for extra in project["optional-dependencies"].values() for name in extra
    ]
    locked = {canonical(name) for name in pinned(lock)}
    assert {canonical(name) for name in wanted} - {"tidegate"} <= locked


def test_changelog_tells_of_this_version(project: dict) -> None:
    changelog = (REPOSITORY / "CHANGELOG.md").read_text("utf-8")
    newest = re.findall(r"^## \[?([\w.]+)\]?", changelog, re.MULTILINE)
    assert project["version"] in newest
    entry = changelog.split(f"## [{project['version']}]")[1].split("\n## ")[0]
    assert "### Stored state" in entry


def test_ci_runs_what_people_run() -> None:
    run = REPOSITORY / ".ci" / "run"
    assert run.stat().st_mode & 0o111, ".ci/run must be executable"
    assert run.read_text("utf-8").rstrip().endswith("make test")
    assert "make test" in (REPOSITORY / "README.md").read_text("utf-8")


def test_workflow_covers_every_supported_python(project: dict) -> None:
    workflow = yaml.safe_load((REPOSITORY / ".github" / "workflows" / "ci.yml").read_text("utf-8"))
    prefix = "Programming Language :: Python :: 3."
    supported = [
        name.rpartition(" ")[2] for name in project["classifiers"] if name.startswith(prefix)
    ]
    assert workflow["jobs"]["test"]["strategy"]["matrix"]["python"] == supported
    targets = re.findall(
        r"^([a-z-]+):.*## ", (REPOSITORY / "Makefile").read_text("utf-8"), re.MULTILINE
    )
    commands = [
        step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step
    ]
    assert {command.removeprefix("make ") for command in commands} - {".ci/run"} <= set(targets)


def test_package_ships_its_types_and_its_licence() -> None:
    assert (REPOSITORY / "src" / "tidegate" / "py.typed").exists()
    assert "Apache License" in (REPOSITORY / "LICENSE").read_text("utf-8")


def test_the_rules_can_fail() -> None:
    assert lines_of_functions("def f():\n    a = 1\n    return a\n") == {"f, line 1": 3}
    assert opens_with_a_sentence('"""What it is: a thing.\n\nMore."""')
    assert opens_with_a_sentence('"""A sentence over\ntwo lines."""')
    assert not opens_with_a_sentence("x = 1")
    assert not opens_with_a_sentence('"""a fragment"""')
    assert UNFINISHED.search("# TO" + "DO: later")
    assert MACHINE_PATH.search("see /ho" + "me/me/file")
    assert not MACHINE_PATH.search("docs/home/page")
    assert canonical("Types_PyYAML>=6") == "types-pyyaml"


@pytest.mark.parametrize(("name", "lines"), [("README.md", 170), ("docs/architecture.md", 200)])
def test_first_pages_stay_short(name: str, lines: int) -> None:
    assert len((REPOSITORY / name).read_text("utf-8").splitlines()) <= lines


@pytest.mark.parametrize("path", [*PROSE], ids=names(PROSE))
def test_prose_uses_the_words_of_the_field(path: Path) -> None:
    assert RIDDLES.findall(path.read_text("utf-8")) == []

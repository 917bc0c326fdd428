"""`tidegate doctor` finds problems and shows how to fix them; `make` finds or installs Java."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tidegate.cli import main
from tidegate.cli.doctor import NOTE, OK, PROBLEM, Finding, findings
from tidegate.errors import SetupError
from tidegate.spark.environment.java import find_java
from tidegate.spark.environment.session import session


def java_of(folder: Path, text: str) -> Path:
    """A program that prints a version of Java."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(f"#!/bin/sh\necho '{text}' >&2\n")
    program.chmod(0o755)
    return folder


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Java that is new enough, independent of the machine."""
    home = java_of(tmp_path / "java", 'openjdk version "21.0.1" 2024-01-01')
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.delenv("SPARK_HOME", raising=False)
    return home


def found(name: str, **options: str) -> Finding:
    return next(finding for finding in findings(**options) if finding.check == name)


def test_a_good_machine_is_well(
    java: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["doctor", "--checkpoint", str(tmp_path / "a" / "b")]) == 0
    shown = capsys.readouterr().out
    assert "no problems" in shown
    assert "Java 21" in shown
    assert not (tmp_path / "a").exists(), "a folder that was made to look is removed again"


def test_it_speaks_json(java: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {
        "java",
        "python",
        "python of workers",
        "pyspark",
        "pyarrow",
        "spark",
        "temporary folder",
        "network",
    } <= {line["check"] for line in lines}
    assert all(set(line) == {"check", "status", "message", "fix"} for line in lines)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_202"', 8),
        ('openjdk version "25" 2025-09-16', 25),
        ("Error: no Java", 0),
    ],
)
def test_the_version_of_java_is_read(
    text: str, version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java_of(tmp_path, text)))
    java = find_java()
    assert java is not None
    assert (java.version, java.new_enough) == (version, version >= 17)


def test_an_old_java_is_a_problem(java: Path, capsys: pytest.CaptureFixture[str]) -> None:
    java_of(java, 'java version "1.8.0_202"')
    assert main(["doctor"]) == 1
    shown = capsys.readouterr().out
    assert "is Java 8; Spark needs 17 or newer" in shown
    assert "to fix it: install one" in shown
    assert "1 problem" in shown


def test_a_wrong_java_home_is_a_problem_even_with_java_on_the_path(
    java: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{java / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    assert found("java").status == PROBLEM
    assert "JAVA_HOME is /nowhere" in found("java").message
    monkeypatch.delenv("JAVA_HOME")
    assert found("java").message == f"Java 21, {java / 'bin' / 'java'} (from PATH)"


def test_no_java_at_all_is_a_problem(
    java: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert found("java").message == "there is no java on the PATH, and JAVA_HOME is not set"


def test_a_session_without_java_says_the_same(java: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "tidegate.spark.environment.session.running_session", lambda _remote=None: None
    )
    java_of(java, 'java version "1.8.0_202"')
    with pytest.raises(
        SetupError, match=r"needs Java 17 or newer: .* is Java 8\. Hint: install one"
    ):
        session()


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("#!/bin/sh\nexit 1\n", "cannot import tidegate"),
        ("#!/bin/sh\necho 2 7 0.1.0\n", "is Python 2.7"),
    ],
)
def test_another_python_for_the_workers_is_a_problem(
    program: str, message: str, java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "python"
    other.write_text(program)
    other.chmod(0o755)
    monkeypatch.setenv("PYSPARK_PYTHON", str(other))
    finding = found("python of workers")
    assert finding.status == PROBLEM
    assert message in finding.message
    assert f"PYSPARK_PYTHON={sys.executable}" in finding.fix


def test_a_python_for_the_workers_that_does_not_run_or_is_this_one(
    java: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/nowhere/python")
    assert "does not run" in found("python of workers").message
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    assert found("python of workers").status == OK


def test_packages_that_are_missing_or_old(java: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.metadata.version

    def version(package: str) -> str:
        if package in {"protobuf", "deltalake"}:
            raise importlib.metadata.PackageNotFoundError(package)
        return "4.0.9" if package == "pyspark" else real(package)

    monkeypatch.setattr(importlib.metadata, "version", version)
    by_name = {finding.check: finding for finding in findings()}
    assert (by_name["protobuf"].status, by_name["protobuf"].fix) == (
        PROBLEM,
        "pip install 'tidegate[spark]'",
    )
    assert by_name["deltalake"].status == NOTE
    assert by_name["pyspark"].message == "4.0.9 is too old; 4.1 or newer is needed"
    assert by_name["spark"].status == PROBLEM, "the jars are of another version than the package"


def test_a_spark_home_without_its_jars(
    java: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert (found("spark").status, found("spark").fix) == (PROBLEM, "unset SPARK_HOME")
    assert "rocksdbjni-*.jar" in found("spark").message


def test_a_checkpoint_that_cannot_be_written(
    java: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert main(["doctor", "--checkpoint", str(tmp_path / "file" / "checkpoint")]) == 1
    assert "is not writable: Not a directory" in capsys.readouterr().out


def test_a_machine_without_loopback(java: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError("not allowed")

    monkeypatch.setattr(socket, "create_server", refuse)
    assert found("network").status == PROBLEM


def test_a_check_that_fails_itself_does_not_hide_the_others(
    java: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate.cli.doctor.find_java", lambda: 1 / 0)
    everything = list(findings())
    assert "ZeroDivisionError" in everything[0].message
    assert everything[0].status == PROBLEM
    assert everything[-1].check == "network"


# -- make


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A folder of programs without Java, apt or sudo, as a PATH."""
    folder = tmp_path / "bare"
    folder.mkdir()
    for name in ("sh", "sed", "head", "tail", "mktemp", "rm", "cat", "chmod"):
        (folder / name).symlink_to(shutil.which(name) or name)
    (folder / "id").write_text("#!/bin/sh\necho ${FAKE_ID:-0}\n")
    (folder / "id").chmod(0o755)
    return folder


def look_for_java(
    repository: Path, path: Path, **environment: str
) -> subprocess.CompletedProcess[str]:
    shell = shutil.which("sh") or "sh"
    command = [shell, str(repository / ".ci" / "java")]
    return subprocess.run(
        command, env={"PATH": str(path), **environment}, capture_output=True, text=True, check=False
    )


def fake_apt(bare: Path, package: str, version: str) -> None:
    """An apt with one package, which installs a Java of some version; it records its calls."""
    made = (
        f"printf '#!/bin/sh\\necho version \\\\\"{version}\\\\\" >&2\\n' > {bare}/java; chmod +x"
        f" {bare}/java"
    )
    known = (
        f'case "$*" in *update*) exit 100;; *{package}*) {made}; exit 0;; *) echo no such package;'
        " exit 100;; esac"
    )
    (bare / "apt-get").write_text(f'#!/bin/sh\necho "$*" >> {bare}/calls\n{known}\n')
    (bare / "apt-get").chmod(0o755)


@pytest.mark.parametrize("package", ["openjdk-17-jre-headless", "default-jre-headless"])
def test_make_installs_java_where_apt_can(package: str, repository: Path, bare: Path) -> None:
    fake_apt(bare, package, "17.0.1")
    done = look_for_java(repository, bare)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"install -qq -y --no-install-recommends {package}" in (bare / "calls").read_text()


def test_make_says_what_to_do_where_apt_cannot(repository: Path, bare: Path) -> None:
    fake_apt(bare, "none-of-these", "17")
    done = look_for_java(repository, bare)
    assert done.returncode == 1
    assert "no such package" in done.stderr
    assert "Hint: install one" in done.stderr


def test_make_does_not_ask_for_a_password(repository: Path, bare: Path) -> None:
    fake_apt(bare, "openjdk-17-jre-headless", "17")
    done = look_for_java(repository, bare, FAKE_ID="1000")
    assert (done.returncode, (bare / "calls").exists()) == (1, False)
    assert "Hint: install one" in done.stderr


def test_make_uses_the_java_that_is_there(repository: Path, bare: Path, tmp_path: Path) -> None:
    new, old = (
        java_of(tmp_path / "new", 'openjdk version "25"'),
        java_of(tmp_path / "old", 'java version "1.8.0"'),
    )
    fake_apt(bare, "openjdk-17-jre-headless", "17")
    assert look_for_java(repository, bare, JAVA_HOME=str(new)).returncode == 0
    done = look_for_java(repository, bare, JAVA_HOME=str(old))
    assert done.returncode == 1
    assert "holds Java 8" in done.stderr
    assert not (bare / "calls").exists(), "a new Java on the PATH would not help"

"""The command line around its commands: version, completion, exit statuses, addresses."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

import tidegate as tg
from tidegate.cli import main
from tidegate.spark.environment import stderr_filter
from tidegate.spark.environment.session import configured

BASH = shutil.which("bash")


def test_the_version_is_printed(capsys):
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"tidegate {tg.__version__}\n"


@pytest.mark.skipif(BASH is None, reason="there is no bash")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["stat"], "state"),
        (["state", "--k"], "--key"),
        (["run", "x.yaml", "--unt"], "--until-idle"),
        (["stream", "mar"], "marks"),
    ],
)
def test_bash_completes_commands_and_options(words: list[str], expected: str, capsys):
    assert main(["completion", "bash"]) == 0
    typed = " ".join(words)
    program = (
        f"{capsys.readouterr().out}\nCOMP_WORDS=(tidegate {typed}); COMP_CWORD={len(words)};"
        ' _tidegate; echo "${COMPREPLY[@]}"'
    )
    done = subprocess.run([BASH, "-c", program], capture_output=True, text=True, check=True)
    assert expected in done.stdout.split()
    assert done.stderr == ""


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_all_commands(shell: str, capsys):
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for word in ("state", "doctor", "until-idle"):
        assert word in script


UNSUPPORTED = (
    "- {id: other, kind: panes_by_window, config: {window: {type: tumbling, size: 5}, trigger:"
    " AfterWatermark()}, data: [[7, x]], expect: [{window: [5, 10], panes: [[x]]}]}"
)


def test_a_replay_in_which_nothing_passes_is_no_success(tmp_path: Path, capsys):
    (tmp_path / "all.yaml").write_text(UNSUPPORTED)
    assert main(["replay", str(tmp_path / "all.yaml")]) == 1
    shown = capsys.readouterr().out
    assert "window type `tumbling` is not covered by this version. Hint: did you mean `fixed`?" in (
        shown
    )
    assert "0 passed, 0 failed, 1 unsupported" in shown


def test_an_address_of_metrics_is_checked_first(tmp_path: Path, capsys):
    for wrong in ("metrics", "127.0.0.1", "127.0.0.1:99999"):
        assert main(["run", "--metrics", wrong, str(tmp_path / "missing.yaml")]) == 2
        assert "`--metrics` is PORT or HOST:PORT" in capsys.readouterr().err


def test_settings_of_the_user_are_seen(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert not configured("spark.ui.enabled")
    (tmp_path / "spark-defaults.conf").write_text("spark.ui.enabledX 1\n# spark.ui.enabled true\n")
    assert not configured("spark.ui.enabled")
    (tmp_path / "spark-defaults.conf").write_text("spark.ui.enabled   true\n")
    assert configured("spark.ui.enabled")


def test_lines_of_workers_are_left_out_and_others_pass(capfd):
    with stderr_filter.filtered_stderr():
        program = (
            "echo 'Streaming TransformWithStateInPandas Python worker finish init' >&2;"
            " echo 'an error that matters' >&2"
        )
        subprocess.run(["sh", "-c", program], check=True)
    deadline = 1000
    shown = ""
    while "matters" not in shown and deadline:
        shown += capfd.readouterr().err
        deadline -= 1
        os.sched_yield()
    assert "an error that matters" in shown
    assert "TransformWithState" not in shown

"""Every example in README and docs runs, and every command they name exists.

A document's ```python blocks run in order, in one namespace and in an empty folder. A block with
`>>>` prompts is a doctest. A ```text block right after a ```python block is what that block prints,
to the letter. Blocks marked ```python spark run in tests/spark/test_documents_spark.py.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import re
import sys
from itertools import takewhile
from pathlib import Path

import pytest

from support.documents import REPOSITORY, Block, blocks, commands, documents, name_of

FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
COMMANDS = sorted(
    {tuple(words) for path in documents() for words in commands(path.read_text("utf-8"))}
)
TARGETS = set(
    re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text("utf-8"), re.MULTILINE)
)


def run_block(block: Block, names: dict[str, object], where: str) -> str:
    """Run one block and return what it printed; a doctest that differs fails."""
    if ">>> " in block.code:
        test = doctest.DocTestParser().get_doctest(block.code, names, where, where, block.line - 1)
        report = io.StringIO()
        failed = (
            doctest.DocTestRunner(optionflags=FLAGS)
            .run(test, out=report.write, clear_globs=False)
            .failed
        )
        assert not failed, report.getvalue()
        names.update(test.globs)
        return ""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile("\n" * (block.line - 1) + block.code, where, "exec"), names)  # noqa: S102 - the examples are our own
    return printed.getvalue()


def run_document(text: str, where: str, mark: str = "") -> None:
    """Run the blocks that have the mark."""
    names: dict[str, object] = {"__name__": "__main__"}
    printed, after_python = "", False
    for block in blocks(text):
        if block.language == "python" and block.mark == mark:
            printed, after_python = run_block(block, names, where), True
            continue
        if block.language == "text" and block.follows and after_python:
            assert printed.rstrip().splitlines() == block.code.rstrip().splitlines(), (
                f"{where}, line {block.line}: the example prints something else"
            )
        after_python = False


@pytest.mark.parametrize("path", documents(), ids=name_of)
def test_examples_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_document(path.read_text("utf-8"), name_of(path))


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_commands_exist(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if words[0] == "make":
        assert {word for word in words[1:] if "=" not in word} <= TARGETS
        return
    from tidegate.cli import main

    options = re.findall(r"--[a-z][a-z-]*", " ".join(words))
    before_options = takewhile(lambda word: not word.startswith(("-", "[")), words)
    monkeypatch.setattr(sys, "argv", [*before_options, "--help"])
    with pytest.raises(SystemExit) as stopped:
        main()
    told = capsys.readouterr()
    assert stopped.value.code in (0, None), told.err
    assert [option for option in options if option not in told.out] == []


def test_a_wrong_example_fails() -> None:
    run_document("```python\nprint(1 + 1)\n```\n\n```text\n2\n```\n", "right")
    run_document("```python\nprint(1)\n```\n\nSomething else:\n\n```text\n3\n```\n", "apart")
    run_document(
        "```python\nx = 4\n```\n```python\n>>> x\n4\n>>> y = x\n```\n```python\nassert y =="
        " 4\n```\n",
        "mixed",
    )
    with pytest.raises(AssertionError, match="prints something else"):
        run_document("```python\nprint(1 + 1)\n```\n\n```text\n3\n```\n", "wrong output")
    with pytest.raises(AssertionError, match="Expected"):
        run_document("```python\n>>> 1 + 1\n3\n```\n", "wrong doctest")
    with pytest.raises(ZeroDivisionError):
        run_document("```python\n1 / 0\n```\n", "broken")

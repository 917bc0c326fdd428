"""The prompt of `tidegate sql`, with history and completion; a statement ends with a semicolon."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidegate.cli.sql import execute
from tidegate.errors import MissingExtraError, TidegateError

if TYPE_CHECKING:
    from prompt_toolkit.completion import CompleteEvent, Completion
    from prompt_toolkit.document import Document

_WORDS = (
    *("SELECT", "FROM", "WHERE", "GROUP BY", "HAVING", "JOIN", "LEFT JOIN", "UNION ALL", "ON"),
    *("TABLE", "TUMBLE", "HOP", "CUMULATE", "SESSION", "DESCRIPTOR", "INTERVAL", "PARTITION BY"),
    *("EMIT AFTER WATERMARK", "EMIT CHANGES", "EMIT FINAL", "EARLY EVERY", "LATE AFTER"),
    *("ALLOW LATENESS", "ACCUMULATING", "DISCARDING", "RETRACTING", "CREATE TABLE", "CREATE VIEW"),
    *(
        "WATERMARK FOR",
        "WITH",
        "INSERT INTO",
        "EXPLAIN",
        "SET",
        "SHOW TABLES",
        "DESCRIBE",
        "LATE",
        "COUNT",
        "SUM",
        "AVG",
    ),
    *("MIN", "MAX", "FIRST_VALUE", "LAST_VALUE", "ARRAY_AGG", "ROW_NUMBER() OVER", "CAST"),
    *("window_start", "window_end", "window_time", "DROP TABLE", "DROP VIEW", "quit", "help"),
)
_HELP = """\
A statement ends with `;`. CREATE TABLE ... WITH ('connector' = 'filesystem', ...) names files,
SELECT runs over them, EXPLAIN shows a plan. `quit` or Ctrl-D ends. docs/sql.md describes the
language."""


def prompt(options: argparse.Namespace) -> int:
    """Ask for statements until the end of the input."""
    from tidegate.sql.session import SqlSession

    session = SqlSession()
    print("Statements end with `;`. `help` explains, `quit` ends.")
    for text in statements(_lines(session)):
        word = text.strip().rstrip(";").strip().lower()
        if word in ("quit", "exit"):
            break
        if word == "help":
            print(_HELP)
            continue
        try:
            execute(session, text, options)
        except TidegateError as error:
            print(error, file=sys.stderr)
        except KeyboardInterrupt:
            print("stopped", file=sys.stderr)
    return 0


def statements(lines: Iterator[str | None]) -> Iterator[str]:
    """The statements of lines: each ends with a semicolon; words of the prompt need none.

    None in place of a line discards the lines that wait for their end.
    """
    held: list[str] = []
    for line in lines:
        if line is None:
            held = []
            continue
        if not held and line.strip().lower() in ("quit", "exit", "help"):
            yield line
            continue
        if not held and not line.strip():
            continue
        held.append(line)
        if is_complete("\n".join(held)):
            yield "\n".join(held)
            held = []


def is_complete(text: str) -> bool:
    """Whether a text ends with a semicolon that is neither in quotes nor in a comment."""
    from sqlglot.errors import TokenError
    from sqlglot.tokenizer_core import TokenType

    from tidegate.sql.dialect import Tidegate

    if ";" not in text:
        return False
    try:
        tokens = Tidegate().tokenize(text)
    except TokenError:
        return False
    return bool(tokens) and tokens[-1].token_type == TokenType.SEMICOLON


def words_of(session: Any) -> list[str]:
    """The words that complete an input: keywords, and the names of tables and columns."""
    found = [*_WORDS, *session.views]
    for name, definition in session.definitions.items():
        columns = definition.columns
        found += [name, *([] if columns is None else columns.names), *definition.proctimes]
    return list(dict.fromkeys(found))


def _lines(session: Any) -> Iterator[str | None]:
    """The lines that are typed; None for Ctrl-C."""
    try:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.history import FileHistory
    except ImportError:
        raise MissingExtraError("prompt-toolkit", "sql", "the prompt") from None
    path = history_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    asked: PromptSession[str] = PromptSession(
        history=FileHistory(str(path)), completer=_completer(session), complete_while_typing=False
    )
    while True:
        try:
            yield asked.prompt("sql> ")
        except KeyboardInterrupt:
            yield None
        except EOFError:
            return


def history_file() -> Path:
    """The file with the lines of former prompts."""
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "tidegate" / "sql_history"


def _completer(session: Any) -> Any:
    from prompt_toolkit.completion import Completer, Completion

    class Words(Completer):
        """Completes the word before the cursor, whatever its case."""

        def get_completions(
            self,
            document: Document,
            complete_event: CompleteEvent,  # noqa: ARG002
        ) -> Iterator[Completion]:
            typed = document.get_word_before_cursor()
            for word in words_of(session):
                if typed and word.lower().startswith(typed.lower()):
                    yield Completion(word, start_position=-len(typed))

    return Words()

"""`tidegate sql`: runs SQL over files, standard input and Spark, or asks for it at a prompt."""

from __future__ import annotations

import argparse
import contextlib
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tidegate.api.streams import Stream
from tidegate.errors import InputError, MissingExtraError
from tidegate.kernel.frame import rows_of
from tidegate.spec.join import JoinSpec
from tidegate.spec.projection import PROTOCOL

if TYPE_CHECKING:
    from tidegate.cli.sql_output import Printer
    from tidegate.sql.writing import Writer

_STDIN = re.compile(r"\bstdin\b", re.IGNORECASE)
FORMATS = ("table", "json", "csv")


def add(commands: Any) -> None:
    """Add the command to the parser."""
    command = commands.add_parser(
        "sql",
        help="run SQL over files, standard input or Spark",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("file", nargs="?", metavar="FILE", help="a script; `-` is standard input")
    command.add_argument("-c", "--command", metavar="TEXT", dest="text", help="the statements")
    command.add_argument("--explain", action="store_true", help="show the plans, and run nothing")
    command.add_argument(
        "--format",
        choices=FORMATS,
        help="of the output (default: a table on a terminal, else one JSON object per line)",
    )
    command.add_argument(
        "--input-format",
        choices=["json", "csv"],
        help="of standard input (default: JSON if the first line begins with a brace, else CSV)",
    )
    command.add_argument(
        "--spark", action="store_true", help="run on Spark, even if files are enough"
    )
    command.add_argument(
        "--checkpoint", metavar="FOLDER", help="where queries on Spark keep their state"
    )
    command.add_argument(
        "--changes", action="store_true", help="show the columns of panes, such as op and timing"
    )
    command.set_defaults(command=_command)


_DESCRIPTION = """\
Runs the statements of FILE or TEXT; without either, asks for them at a prompt.

  cat clicks.jsonl | tidegate sql -c "SELECT window_start, COUNT(*) AS n
      FROM TABLE(TUMBLE(TABLE stdin, DESCRIPTOR(ts), INTERVAL '1' MINUTE))
      GROUP BY window_start, window_end"

The table `stdin` has the columns of the first lines of standard input. docs/sql.md describes the
language. The exit status is 0 after success, 1 if rows were late or unreadable and no statement
takes them, and 2 if a statement is wrong."""


def _command(options: argparse.Namespace) -> int:
    try:
        import duckdb  # noqa: F401
        import sqlglot  # noqa: F401
    except ImportError:
        raise MissingExtraError("sqlglot", "sql", "`tidegate sql`") from None
    if options.file is not None and options.text is not None:
        raise InputError("a script comes from FILE or from -c TEXT, not from both")
    if options.file is None and options.text is None:
        if sys.stdin.isatty():
            from tidegate.cli.sql_prompt import prompt

            return prompt(options)
        options.file = "-"
    return run(_text_of(options), options, folder=_folder(options))


def _text_of(options: argparse.Namespace) -> str:
    if options.text is not None:
        return str(options.text)
    if options.file == "-":
        return sys.stdin.read()
    try:
        return Path(options.file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {options.file}: {error}") from None


def _folder(options: argparse.Namespace) -> str | None:
    """Where relative paths begin: in the folder of a script."""
    if options.text is not None or options.file in (None, "-"):
        return None
    return str(Path(options.file).resolve().parent)


def run(text: str, options: argparse.Namespace, *, folder: str | None = None) -> int:
    """Run the statements of a text."""
    from tidegate.sql.reading import Lines
    from tidegate.sql.session import SqlSession

    reads_stdin = _STDIN.search(text) is not None and options.file != "-"
    given = {"stdin": Lines(sys.stdin.buffer, options.input_format)} if reads_stdin else {}
    return execute(SqlSession(given, folder=folder), text, options)


def execute(session: Any, text: str, options: argparse.Namespace) -> int:
    """Run the statements of a text in a session; inserts run together at the end."""
    from tidegate.sql.insertion import Insertions
    from tidegate.sql.query import SqlQuery

    inserts: list[Any] = []
    lost = 0
    for result in session.execute(text):
        if isinstance(result, Insertions):
            inserts += result.inserts
        elif isinstance(result, SqlQuery):
            if options.explain:
                print(result.explain())
            else:
                lost += _run_query(result, options)
        elif result is not None:
            print(result)
    if inserts:
        found = Insertions(tuple(inserts)).joined()
        if options.explain:
            print(found.explain())
        else:
            lost += _run_inserts(found, options)
    return 1 if lost else 0


# Queries


def _run_query(query: Any, options: argparse.Namespace) -> int:
    """Run a query and print its rows; returns the number of late rows that no statement takes."""
    from tidegate.cli.sql_output import printer

    shown = printer(options.format, sys.stdout)
    if not options.spark and query.runs_embedded:
        return _run_embedded(query, shown, every=options.changes)
    with _spark(query):
        if query.df.isStreaming:
            return _stream(query, options)
        names = _shown_names(query, every=options.changes)
        rows = query.df.toArrow()
        _print(shown, rows.select(list(names or rows.column_names)))
    shown.close()
    return 0


def _run_embedded(query: Any, shown: Printer, *, every: bool) -> int:
    """Run a query in this process; results are printed as they come."""
    late = 0
    names = _shown_names(query, every=every)
    for results in embedded_results(query):
        rows = results.panes
        # An input without lines has no columns.
        if names is not None and rows.num_rows:
            rows = rows.select([*names])
        _print(shown, rows)
        late += _report_late(results.late)
    shown.close()
    return late


def embedded_results(query: Any) -> Iterator[Any]:
    """The results of a query over tables that end, delivery by delivery."""
    from tidegate.sql.reading import deliveries

    with query.embedded() as op:
        tables = [query.tables[name] for name in query.sources]
        for name, table in deliveries(tables, query.folder):
            op.add_messages(table, input=name)
            yield op.get_result()
            op.flush()
        op.finish()
        yield op.get_result()


def _shown_names(query: Any, *, every: bool) -> tuple[str, ...] | None:
    """The columns that a query selects, and `op` if it retracts; None for all."""
    if every:
        return None
    retracts = any(
        not branch.late and not isinstance(branch.root, Stream) and _retracts(branch.root.spec)
        for branch in query.plan.branches
    )
    return (*query.columns, *(["op"] if retracts and "op" not in query.columns else []))


def _retracts(spec: Any) -> bool:
    if isinstance(spec, JoinSpec):
        return spec.how != "inner" and spec.padding != "final"
    return spec.mode == "retracting"


def _print(shown: Printer, rows: pa.Table) -> None:
    if rows.num_rows:
        shown.write(rows)


def _report_late(late: pa.Table) -> int:
    """Print what is wrong with late rows to standard error."""
    for row in rows_of(late.slice(0, 10)):
        detail = f": {row['detail']}" if row.get("detail") else ""
        print(f"late: {row['reason']}{detail}", file=sys.stderr)
    if late.num_rows > 10:
        print(f"late: {late.num_rows - 10:,} more rows", file=sys.stderr)
    return late.num_rows


# Inserts


def _run_inserts(inserts: Any, options: argparse.Namespace) -> int:
    from tidegate.sql.reading import check_reads
    from tidegate.sql.writing import WRITTEN

    targets = [
        one for insert in inserts.inserts for one in (insert.target, insert.late) if one is not None
    ]
    local = inserts.runs_embedded and all(one.connector in WRITTEN for one in targets)
    if not options.spark and local:
        queries = [one.query for one in inserts.inserts]
        check_reads([query.tables[name] for query in queries for name in query.sources])
        return sum(_insert_embedded(one, options) for one in inserts.inserts)
    first = inserts.inserts[0].query
    with _spark(first):
        queries = inserts.start(checkpoint=options.checkpoint)
        _await(queries)
    return 0


def _insert_embedded(insert: Any, options: argparse.Namespace) -> int:
    """Run an insert in this process."""
    from tidegate.sql.scalars import compile_duckdb
    from tidegate.sql.writing import writer_of

    query, lost = insert.query, 0
    from tidegate.cli.sql_output import printer

    printed = printer(options.format, sys.stdout)
    to = writer_of(insert.target, query.folder, printed)
    late = None if insert.late is None else writer_of(insert.late, query.folder, printed)
    for results in embedded_results(query):
        lost += _insert_rows(results.panes, query.output, insert.target, to)
        if late is None or query.late is None:
            lost += _report_late(results.late)
            continue
        steps = (compile_duckdb(query.late.select),) if query.late.select else ()
        lost += _insert_rows(results.late, (*steps, *query.late_output), insert.late, late)
    to.close()
    if late is not None and late is not to:
        late.close()
    return lost


def _insert_rows(rows: pa.Table, steps: Any, target: Any, to: Writer) -> int:
    """Write rows into a table; returns the number of those with values that it cannot have."""
    from tidegate.operators.ingest.projection import project
    from tidegate.operators.ingest.schema_cast import BROKEN

    found, failed = project(rows, steps).rows, 0
    if BROKEN in found.column_names:
        problems = found.column(BROKEN).drop_null()
        reasons = pa.array(["bad_value"] * len(problems), pa.string())
        failed = _report_late(pa.table({"reason": reasons, "detail": problems}))
        found = found.filter(found.column(BROKEN).is_null()).drop_columns([BROKEN])
    _print(to, _columns_of(found, target))
    return failed


def _columns_of(rows: pa.Table, target: Any) -> pa.Table:
    """The rows with the columns of a table only."""
    schema = target.written_schema()
    names = [*schema.names, *(["op"] if "op" in rows.column_names else [])]
    found = rows.select(list(dict.fromkeys(names)))
    hidden = [name for name in found.column_names if name in PROTOCOL and name not in schema.names]
    return found.drop_columns(hidden).cast(schema)


# Spark


@contextlib.contextmanager
def _spark(query: Any) -> Iterator[Any]:
    """A session for a query; stopped afterwards if it is new."""
    from tidegate.spark.environment.session import running_session
    from tidegate.spark.environment.stderr_filter import filtered_stderr
    from tidegate.sql.spark_binding import session_of

    is_running = running_session() is not None
    with filtered_stderr():
        spark = session_of(query)
    try:
        yield spark
    finally:
        if not is_running:
            spark.stop()


def _stream(query: Any, options: argparse.Namespace) -> int:
    """Run a streaming query whose rows are printed, until it ends or is stopped."""
    import tempfile

    from tidegate.spark import sinks

    trigger = query.settings.trigger or ("available_now" if query.ends else None)
    with tempfile.TemporaryDirectory(prefix="tidegate-sql-") as folder:
        checkpoint = options.checkpoint or query.settings.checkpoint or f"{folder}/checkpoint"
        _await([query.write(sinks.console(1000), checkpoint=checkpoint, trigger=trigger)])
    return 0


def _await(queries: Sequence[Any]) -> None:
    """Wait until all queries have ended; Ctrl-C stops them."""
    from tidegate.cli.shutdown import ShutdownRequest, shutdown_requests

    shutdown = ShutdownRequest()
    with shutdown_requests(shutdown):
        shutdown.listen()
        try:
            while not shutdown.stop and any(query.is_active for query in queries):
                shutdown.wait(0.25)
            if not shutdown.stop:
                for query in queries:
                    query.await_termination()
        finally:
            for query in queries:
                query.stop()

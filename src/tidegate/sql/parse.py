"""The parser of scripts: from a text to statements."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlglot import exp
from sqlglot.errors import ErrorLevel, ParseError, TokenError
from sqlglot.tokenizer_core import Token, TokenType

from tidegate.errors import SpecError, SqlError
from tidegate.sql.commands import WORDS, command
from tidegate.sql.dialect import GROUP_WINDOWS, Tidegate
from tidegate.sql.nodes import MetadataColumn, Watermark, local_name
from tidegate.sql.positions import Place, place_of
from tidegate.sql.statements import (
    ColumnDefinition,
    CreateTable,
    CreateView,
    Drop,
    Explain,
    Insert,
    Like,
    Query,
    Statement,
    StatementSet,
    TableOption,
    WatermarkDefinition,
)

LONGEST = 1_000_000
"""The number of characters of the longest script."""
_DETAILS = ("ESTIMATED_COST", "CHANGELOG_MODE", "JSON_EXECUTION_PLAN", "PLAN_ADVICE", ",")
"""What Flink's EXPLAIN may show further; the plan has all there is."""
_HALF = re.compile(r"[\ud800-\udfff]")
_OPTIONS_HINT = re.compile(r"\s*/\*\+\s*OPTIONS\b", re.IGNORECASE)
_OPENING = re.compile(r"['\"`]|/\*")
_SEARCHED, _TRIED = 100_000, 50
"""How long a text may be whose open quote is searched, and how many quotes are tried."""
_DEEPEST = 200
"""How deep parentheses may be nested."""


@dataclass(frozen=True)
class _Chunk:
    """The tokens of one statement."""

    tokens: Sequence[Token]
    place: Place

    def words(self) -> list[str]:
        return [token.text.upper() for token in self.tokens[:4]]

    def without(self, number: int) -> _Chunk:
        return replace(self, tokens=self.tokens[number:])


def parse_script(text: str) -> tuple[Statement, ...]:
    """The statements of a script, separated by semicolons."""
    if not isinstance(text, str):
        raise SqlError(f"SQL is a text, got {type(text).__name__}")
    if len(text) > LONGEST:
        raise SqlError(f"a script has at most {LONGEST:,} characters, got {len(text):,}")
    if text.startswith("\ufeff"):
        # The mark of the order of bytes, with which some editors begin a file.
        text = f" {text[1:]}"
    half = _HALF.search(text)
    if half is not None:
        raise Place(text, half.start(), half.start()).error(
            "the text holds half of a character", "read it as UTF-8"
        )
    found: list[Statement] = []
    chunks = _chunks(text, _tokens(text))
    while chunks:
        chunk = chunks.pop(0)
        words = chunk.words()
        if words[:3] == ["BEGIN", "STATEMENT", "SET"]:
            found.append(_statement_set(text, chunk, chunk.without(3), chunks))
        elif words[1:] == ["STATEMENT", "SET", "BEGIN"] and words[0] in ("EXECUTE", "EXPLAIN"):
            whole = _statement_set(text, chunk, chunk.without(4), chunks)
            found.append(whole if words[0] == "EXECUTE" else Explain(whole, chunk.place, text))
        elif words[0] in WORDS:
            one = command(text, chunk.tokens)
            found += [] if one is None else [replace(one, text=_text_of(text, chunk))]
        else:
            if words[0] == "EXECUTE" and words[1:2] in (["INSERT"], ["SELECT"], ["WITH"]):
                chunk = chunk.without(1)
            found.append(_statement(text, chunk))
    return tuple(found)


def parse_query(text: str) -> Query:
    """The query of a text that has nothing else."""
    statements = parse_script(text)
    if len(statements) != 1 or not isinstance(statements[0], Query):
        raise SqlError(f"one query was expected, got {len(statements)} statements")
    return statements[0]


def _tokens(text: str) -> list[Token]:
    try:
        found = Tidegate().tokenize(text)
    except TokenError as error:
        start = error.start if error.start is not None else 0
        at = max(0, min(start, len(text) - 1))
        if error.end is not None:
            at = max(0, min(error.end, len(text) - 1))
        at = _unclosed(text, at)
        raise Place(text, at, at).error(
            "the text has no tokens of SQL",
            "close every quote and comment",
        ) from None
    except (RecursionError, ValueError) as error:
        raise SqlError(f"the text has no tokens of SQL: {error}") from None
    for token in found:
        # Behind a table, a hint is a comment for the tokenizer.
        if token.comments and _OPTIONS_HINT.match(text, token.end + 1):
            raise Place(text, token.start, token.end).error(
                "hints are not supported", "write the options of a table in CREATE TABLE"
            )
    return _with_window_calls(found)


def _unclosed(text: str, default: int) -> int:
    """Where the quote or comment begins that is open at the end of a text."""
    if len(text) > _SEARCHED:
        return default
    for found in reversed(list(_OPENING.finditer(text))[-_TRIED:]):
        try:
            Tidegate().tokenize(text[: found.start()])
        except TokenError:
            continue
        return found.start()
    return default


def _with_window_calls(tokens: list[Token]) -> list[Token]:
    """The same tokens, with `window` as a plain name where it begins no clause.

    That is the function `window(ts, ...)` of Spark, and its column: `GROUP BY window`.
    """
    for number, token in enumerate(tokens):
        if token.token_type != TokenType.WINDOW:
            continue
        named, by = ([*tokens[number + 1 : number + 3], None, None])[:2]
        defines = by is not None and by.token_type == TokenType.ALIAS
        if not defines and (named is None or named.text.upper() not in GROUP_WINDOWS):
            token.token_type = TokenType.VAR
    return tokens


def _chunks(text: str, tokens: Sequence[Token]) -> list[_Chunk]:
    found: list[list[Token]] = [[]]
    depth = 0
    for token in tokens:
        if token.token_type == TokenType.SEMICOLON:
            found.append([])
            depth = 0
            continue
        depth += (token.token_type == TokenType.L_PAREN) - (token.token_type == TokenType.R_PAREN)
        if depth > _DEEPEST:
            raise Place(text, token.start, token.end).error(
                f"parentheses are nested more than {_DEEPEST} deep"
            )
        found[-1].append(token)
    return [_Chunk(chunk, Place(text, chunk[0].start, chunk[0].end)) for chunk in found if chunk]


def _statement_set(text: str, whole: _Chunk, first: _Chunk, chunks: list[_Chunk]) -> StatementSet:
    inserts: list[Insert] = []
    pending = first if first.tokens else None
    while True:
        if pending is None:
            if not chunks:
                raise whole.place.error("the statement set has no END", "write END; after it")
            pending = chunks.pop(0)
        if pending.words() == ["END"]:
            return StatementSet(tuple(inserts), whole.place, text)
        statement = _statement(text, pending)
        if not isinstance(statement, Insert):
            raise pending.place.error("a statement set has inserts only", "INSERT INTO ... SELECT")
        inserts.append(statement)
        pending = None


def _statement(text: str, chunk: _Chunk) -> Statement:
    words = chunk.words()
    if words and words[0] == "EXPLAIN":
        inner = chunk.without(3 if words[1:3] == ["PLAN", "FOR"] else 1)
        while inner.tokens and inner.words()[0] in _DETAILS:
            inner = inner.without(1)
        is_open = not inner.tokens or inner.words()[0] == "EXPLAIN"
        statement = None if is_open else _statement(text, inner)
        if not isinstance(statement, Query | Insert):
            raise chunk.place.error("EXPLAIN takes a query or an INSERT", "EXPLAIN SELECT ...")
        return Explain(statement, chunk.place, _text_of(text, chunk))
    tree = _tree(text, chunk)
    return _converted(tree, text, chunk)


def _text_of(text: str, chunk: _Chunk) -> str:
    return text[chunk.tokens[0].start : chunk.tokens[-1].end + 1]


def _tree(text: str, chunk: _Chunk) -> exp.Expr:
    logger = logging.getLogger("sqlglot")
    level = logger.level
    try:
        logger.setLevel(logging.CRITICAL)
        # An error is an exception at once: the rest of a broken statement says nothing.
        parser = Tidegate().parser(error_level=ErrorLevel.IMMEDIATE)
        trees = parser.parse(list(chunk.tokens), text)
    except ParseError as error:
        raise _located(error, text, chunk) from None
    except SpecError as error:
        raise chunk.place.error(str(error)) from None
    except RecursionError:
        raise chunk.place.error("the statement is nested too deep") from None
    except (AttributeError, TypeError, ValueError, KeyError, IndexError, AssertionError) as error:
        # The parser of sqlglot trusts the tree of a broken statement.
        raise chunk.place.error(
            f"the statement cannot be parsed ({type(error).__name__})"
        ) from None
    finally:
        logger.setLevel(level)
    if len(trees) != 1 or trees[0] is None:
        raise chunk.place.error("a statement was expected", "SELECT ... FROM ...")
    return trees[0]


def _located(error: ParseError, text: str, chunk: _Chunk) -> SqlError:
    if not error.errors:
        return chunk.place.error(str(error).split("\n", 1)[0])
    first = error.errors[0]
    place = _place(text, first.get("line"), first.get("col"), first.get("highlight"))
    why = str(first.get("description") or "the statement cannot be parsed").rstrip(".")
    why, _, hint = why.partition(" but got <Token")[0].partition(". Hint: ")
    return (place or chunk.place).error(_plain(why), hint or _hint(why))


def _place(text: str, line: int | None, column: int | None, token: str | None) -> Place | None:
    """The place of a token; sqlglot counts to the last character of a token."""
    if line is None or column is None:
        return None
    lines = text.splitlines(keepends=True)
    if not lines:
        return None
    before = sum(map(len, lines[: line - 1]))
    end = max(0, min(before + column - 1, len(text) - 1))
    width = len(token) if token else 1
    return Place(text, max(0, end - width + 1), end)


def _plain(why: str) -> str:
    """The message without the names of classes of sqlglot."""
    if why.startswith("Required keyword"):
        what = why.split("'")[1]
        return f"the statement is incomplete: `{what}` is missing"
    if "Invalid expression / Unexpected token" in why:
        return "unexpected token"
    first = why.split(" ", 1)[0]
    return why if len(first) > 1 and first.isupper() else why[:1].lower() + why[1:]


_HINTS = (
    ("EMIT already", "one EMIT for a query: EMIT AFTER WATERMARK EARLY ... LATE ..."),
    ("trigger", "EVERY INTERVAL '10' SECOND, EVERY 100 ROWS, AFTER 1 ROW"),
    ("number of rows", "AFTER 100 ROWS"),
    ("interval", "INTERVAL '10' SECOND"),
    ("number of provided arguments", "check the arguments of the function"),
    ("Required keyword", "check the arguments of the functions, and the words around"),
)
"""Hints by words of an error of the parser."""


def _hint(why: str) -> str:
    if "Expecting )" in why:
        return "a parenthesis is open here, or a word before this one is not known"
    if "Unexpected token" in why:
        return "check the order of the clauses: FROM, WHERE, GROUP BY, HAVING, EMIT"
    return next((hint for words, hint in _HINTS if words in why), "")


def _converted(tree: exp.Expr, text: str, chunk: _Chunk) -> Statement:
    statement = _text_of(text, chunk)
    if isinstance(tree, exp.Query):
        return Query(tree, chunk.place, statement)
    kinds: dict[type, Callable[[Any, str, _Chunk], Statement]] = {
        exp.Create: _create,
        exp.Insert: _insert,
        exp.Drop: _drop,
    }
    found = kinds.get(type(tree))
    if found is None:
        raise chunk.place.error(
            "this statement is not supported",
            "SELECT, INSERT INTO, CREATE TABLE, CREATE VIEW, DROP, SET, SHOW, DESCRIBE and EXPLAIN"
            " are",
        )
    return replace(found(tree, text, chunk), text=statement)


def _create(tree: exp.Create, text: str, chunk: _Chunk) -> Statement:
    kind = str(tree.args.get("kind") or "").upper()
    if kind == "VIEW":
        return _create_view(tree, text, chunk)
    if kind != "TABLE":
        raise chunk.place.error(
            f"CREATE {kind} is not supported", "CREATE TABLE and CREATE VIEW are"
        )
    if tree.expression is not None:
        raise chunk.place.error(
            "CREATE TABLE AS is not supported", "CREATE TABLE, then INSERT INTO"
        )
    schema = tree.this
    table = schema.this if isinstance(schema, exp.Schema) else schema
    columns, watermarks, key = [], [], list[str]()
    for part in schema.expressions if isinstance(schema, exp.Schema) else []:
        if isinstance(part, Watermark):
            watermarks.append(
                WatermarkDefinition(
                    _column_name(part.this), part.expression, place_of(text, part.this)
                )
            )
        elif isinstance(part, exp.PrimaryKey):
            key = [column.name for column in part.expressions]
        elif isinstance(part, exp.Constraint) and isinstance(part.expressions[0], exp.PrimaryKey):
            key = [column.name for column in part.expressions[0].expressions]
        elif isinstance(part, exp.ColumnDef):
            column = _column(part, text)
            columns.append(column)
            if part.find(exp.PrimaryKeyColumnConstraint):
                key.append(column.name)
        else:
            raise place_of(text, part, table).error("this is no column of a table")
    options, partitioned, like = _properties(tree, text)
    return CreateTable(
        _table_name(table, text),
        tuple(columns),
        tuple(watermarks),
        tuple(key),
        partitioned,
        options,
        place_of(text, table),
        like,
        if_not_exists=bool(tree.args.get("exists")),
        replace=bool(tree.args.get("replace")),
    )


def _create_view(tree: exp.Create, text: str, chunk: _Chunk) -> CreateView:
    if not isinstance(tree.expression, exp.Query):
        raise chunk.place.error("a view has a query", "CREATE VIEW name AS SELECT ...")
    schema = tree.this
    table = schema.this if isinstance(schema, exp.Schema) else schema
    return CreateView(
        _table_name(table, text),
        Query(tree.expression, place_of(text, tree.expression), _text_of(text, chunk)),
        tuple(part.name for part in schema.expressions) if isinstance(schema, exp.Schema) else (),
        place_of(text, table),
        if_not_exists=bool(tree.args.get("exists")),
        replace=bool(tree.args.get("replace")),
    )


def _column(part: exp.ColumnDef, text: str) -> ColumnDefinition:
    place = place_of(text, part)
    computed = part.find(exp.ComputedColumnConstraint)
    metadata = part.find(MetadataColumn)
    kind = part.args.get("kind")
    if kind is None and computed is None:
        raise place.error(f"the column `{part.name}` has no type", "name STRING, ts TIMESTAMP(3)")
    name = None
    if metadata is not None:
        name = metadata.this.name if metadata.this is not None else part.name
    return ColumnDefinition(
        part.name,
        kind,
        place,
        None if computed is None else computed.this,
        name,
        is_virtual=metadata is not None and bool(metadata.args.get("virtual")),
    )


def _properties(
    tree: exp.Create, text: str
) -> tuple[tuple[TableOption, ...], tuple[str, ...], Like | None]:
    """The options of a table, the columns of its partitions, and the table that it is like."""
    options, partitioned, like = list[TableOption](), tuple[str, ...](), None
    found = tree.args.get("properties")
    for part in found.expressions if found is not None else []:
        if isinstance(part, exp.PartitionedByProperty):
            partitioned = tuple(column.name for column in part.this.expressions or [part.this])
        elif isinstance(part, exp.TemporaryProperty):
            continue
        elif isinstance(part, exp.LikeProperty):
            rules = tuple((one.text("value"), one.this) for one in part.expressions)
            like = Like(_table_name(part.this, text), rules, place_of(text, part.this))
        elif type(part) is exp.Property or isinstance(
            part, exp.FileFormatProperty | exp.LocationProperty
        ):
            key = part.this if type(part) is exp.Property else part.key.removesuffix("property")
            value = part.args.get("value") if type(part) is exp.Property else part.this
            options.append(
                TableOption(
                    key if isinstance(key, str) else key.name,
                    value if isinstance(value, str) else getattr(value, "name", ""),
                    place_of(text, part, tree.this),
                )
            )
        elif part.key == "schemacommentproperty":
            continue
        else:
            raise place_of(text, part, tree.this).error(
                f"the property {part.key.removesuffix('property').upper()} of a table is not"
                " supported",
                "WITH ('connector' = '...')",
            )
    return tuple(options), partitioned, like


def _insert(tree: exp.Insert, text: str, chunk: _Chunk) -> Insert:
    if not isinstance(tree.expression, exp.Query):
        raise chunk.place.error("INSERT takes a query", "INSERT INTO name SELECT ...")
    if tree.args.get("overwrite"):
        raise chunk.place.error(
            "INSERT OVERWRITE is not supported: a stream appends", "INSERT INTO"
        )
    schema = tree.this
    table = schema.this if isinstance(schema, exp.Schema) else schema
    query = tree.expression
    partition = table.args.get("partition") or tree.args.get("partition")
    fixed = partition.expressions if isinstance(partition, exp.Partition) else []
    return Insert(
        _table_name(table, text),
        tuple(part.name for part in schema.expressions) if isinstance(schema, exp.Schema) else (),
        Query(query, place_of(text, query), _text_of(text, chunk)),
        place_of(text, table),
        tuple((one.this.name, one.expression) for one in fixed if isinstance(one, exp.EQ)),
    )


def _drop(tree: exp.Drop, text: str, chunk: _Chunk) -> Drop:
    kind = str(tree.args.get("kind") or "").upper()
    targets = tree.args.get("tables") or [tree.this]
    target = targets[0] if len(targets) == 1 else None
    if kind not in ("TABLE", "VIEW") or not isinstance(target, exp.Table):
        raise chunk.place.error(f"DROP {kind} is not supported", "DROP TABLE and DROP VIEW are")
    return Drop(
        kind,
        _table_name(target, text),
        place_of(text, target),
        if_exists=bool(tree.args.get("exists")),
    )


def _table_name(table: Any, text: str) -> str:
    if not isinstance(table, exp.Table) or not table.name:
        raise place_of(text, table if isinstance(table, exp.Expr) else None).error(
            "the name of a table was expected"
        )
    return local_name([part.name for part in table.parts])


def _column_name(node: exp.Expr) -> str:
    return node.sql(dialect=Tidegate).replace("`", "") if isinstance(node, exp.Dot) else node.name

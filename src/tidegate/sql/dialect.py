"""The SQL dialect: that of Spark, with windows of Flink and the SQL standard, and `EMIT`."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, ClassVar, NoReturn

from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.generators.spark import SparkGenerator
from sqlglot.parsers.spark import SparkParser
from sqlglot.tokenizer_core import Token, TokenType

from tidegate.sql.emit import EmitParser, starts_clause
from tidegate.sql.like import FEATURES
from tidegate.sql.nodes import (
    Descriptor,
    Emit,
    MetadataColumn,
    NamedArgument,
    RowCount,
    TableArgument,
    TableWindow,
    Watermark,
    WindowCall,
)

WINDOW_CALLS = (
    *("TUMBLE", "HOP", "CUMULATE", "SESSION", "SLIDE", "CALENDAR", "ALL_ROWS", "INHERIT"),
)
"""The windowing functions."""
GROUP_WINDOWS = {"TUMBLING": "TUMBLE", "HOPPING": "HOP", "SESSION": "SESSION"}
"""The windows that queries of ksqlDB are grouped by, as windowing functions."""
_KSQL_PARAMETERS = {("SIZE",): "SIZE", ("ADVANCE", "BY"): "SLIDE", ("GRACE", "PERIOD"): "GRACE"}
_UNITS = frozenset(
    {"MICROSECOND", "MILLISECOND", "SECOND", "SEC", "MINUTE", "MIN", "HOUR", "DAY"}
    | {"WEEK", "MONTH", "QUARTER", "YEAR", "DECADE"}
)


def is_unit(text: str) -> bool:
    """Whether a word is a unit of time, in singular or plural."""
    word = text.upper()
    return word in _UNITS or (word.endswith("S") and word[:-1] in _UNITS)


class TidegateParser(EmitParser, SparkParser):
    """The parser of sqlglot for Spark with further clauses."""

    STRICT_CAST = True
    _type_depth = 0
    FUNC_TOKENS = SparkParser.FUNC_TOKENS | {TokenType.SESSION}
    TABLE_ALIAS_TOKENS = SparkParser.TABLE_ALIAS_TOKENS - {TokenType.OVER}
    FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
        **SparkParser.FUNCTION_PARSERS,
        **{name: (lambda self, name=name: self._parse_window_call(name)) for name in WINDOW_CALLS},
        "DESCRIPTOR": lambda self: self.expression(
            Descriptor(expressions=self._parse_csv(self._parse_id_var))
        ),
    }
    NO_PAREN_FUNCTIONS: ClassVar[dict[TokenType, Any]] = {
        **SparkParser.NO_PAREN_FUNCTIONS,
        # All instants are in UTC.
        TokenType.LOCALTIMESTAMP: exp.CurrentTimestamp,
    }
    FUNCTIONS: ClassVar[dict[str, Any]] = {
        **SparkParser.FUNCTIONS,
        # Like in Flink, and other than COLLECT_LIST, it keeps nulls.
        "ARRAY_AGG": lambda args: exp.ArrayAgg(this=args[0] if args else None),
        # Unlike UNBASE64 it makes a text.
        "FROM_BASE64": lambda args: exp.Anonymous(this="FROM_BASE64", expressions=args),
    }
    CONSTRAINT_PARSERS: ClassVar[dict[str, Any]] = {
        **SparkParser.CONSTRAINT_PARSERS,
        "WATERMARK": lambda self: self._parse_watermark(),
        "METADATA": lambda self: self._parse_metadata(),
    }
    SCHEMA_UNNAMED_CONSTRAINTS = SparkParser.SCHEMA_UNNAMED_CONSTRAINTS | {"WATERMARK"}

    QUERY_MODIFIER_PARSERS: ClassVar[dict[Any, Any]] = {
        **SparkParser.QUERY_MODIFIER_PARSERS,
        TokenType.WINDOW: lambda self: self._parse_window_modifier(),
    }

    # Windows

    def _parse_window_modifier(self) -> tuple[str, Any]:
        """`WINDOW name AS (...)`, or `WINDOW TUMBLING (SIZE 1 MINUTE)` of ksqlDB."""
        token, name = self._next, GROUP_WINDOWS.get(self._next.text.upper())
        if name is None or self._tokens[self._index + 2].token_type != TokenType.L_PAREN:
            default: Any = SparkParser.QUERY_MODIFIER_PARSERS[TokenType.WINDOW]
            return "windows", default(self)[1]
        self._advance(3)
        given = dict(self._parse_csv(lambda: self._parse_ksql_length(name)))
        self._match_r_paren()
        grace = given.pop("GRACE", None)
        arguments = [
            NamedArgument(this=exp.to_identifier(word), expression=length)
            for word, length in given.items()
        ]
        call = self.expression(WindowCall(this=name, expressions=arguments, grace=grace))
        return "group_window", call.update_positions(token)

    def _parse_ksql_length(self, window: str) -> Any:
        """A length of a window of ksqlDB, and the parameter that it is."""
        matching = (p for words, p in _KSQL_PARAMETERS.items() if self._match_text_seq(*words))
        parameter = next(matching, "GAP" if window == "SESSION" else None)
        length = None if parameter is None else self._parse_loose_interval()
        if length is None:
            self.raise_error("Expected SIZE, ADVANCE BY or GRACE PERIOD with a number of a unit")
        return parameter, length

    def _parse_window_call(self, name: str) -> exp.Expr:
        token = self._tokens[self._index - 2]
        is_empty = self._match(TokenType.R_PAREN, advance=False)
        arguments = [] if is_empty else self._parse_csv(self._parse_window_argument)
        call = self.expression(WindowCall(this=name, expressions=arguments))
        return call.update_positions(token)

    def _parse_window_argument(self) -> exp.Expr | None:
        if self._next.token_type == TokenType.FARROW:
            name = self._parse_id_var(any_token=True)
            self._advance()
            return self.expression(NamedArgument(this=name, expression=self._parse_window_value()))
        return self._parse_window_value()

    def _parse_window_value(self) -> exp.Expr | None:
        if self._match(TokenType.TABLE, advance=False) and self._next.token_type != (
            TokenType.L_PAREN
        ):
            self._advance()
            return self._parse_table_argument(self._parse_table_parts())
        if self._match(TokenType.TABLE) or self._is_subquery():
            return self._parse_table_argument(self._parse_wrapped(self._parse_table))
        if self._match_texts(("ROWS",)):
            return self.expression(RowCount(this=self._parse_bitwise()))
        return self._parse_loose_interval() or super()._parse_lambda()

    def _parse_lambda(self, alias: bool = False) -> exp.Expr | None:  # noqa: FBT001, FBT002
        if self._match(TokenType.TABLE, advance=False):
            # The function is none of ours, which the planner says with its name.
            return self._parse_window_value()
        return super()._parse_lambda(alias)

    def _is_subquery(self) -> bool:
        return self._curr.token_type == TokenType.L_PAREN and self._next.token_type in (
            TokenType.SELECT,
            TokenType.WITH,
        )

    def _parse_table_argument(self, table: exp.Expr | None) -> exp.Expr:
        partition = None
        if self._match(TokenType.PARTITION_BY):
            wrapped = self._match(TokenType.L_PAREN)
            # Without parentheses, a comma ends the list.
            partition = (
                self._parse_csv(self._parse_disjunction) if wrapped else [self._parse_disjunction()]
            )
            if wrapped:
                self._match_r_paren()
        return self.expression(TableArgument(this=table, partition_by=partition))

    def _parse_loose_interval(self) -> exp.Expr | None:
        """An interval without the word `INTERVAL`: `5 seconds` or `'2' min`."""
        if self._curr.token_type not in (TokenType.NUMBER, TokenType.STRING) or not is_unit(
            self._next.text
        ):
            return None
        amount = exp.Literal.string(self._curr.text)
        self._advance()
        unit = exp.Var(this=self._curr.text.upper())
        self._advance()
        return self.expression(exp.Interval(this=amount, unit=unit))

    # Expressions

    def _parse_bracket(self, this: Any = None) -> Any:
        """An element of a list or a map, or `MAP['a', 1, 'b', 2]` of Flink."""
        found = super()._parse_bracket(this)
        inner = found
        while isinstance(inner, exp.Bracket) and isinstance(inner.this, exp.Bracket):
            inner = inner.this
        if not isinstance(inner, exp.Bracket) or len(inner.expressions) < 2:
            return found
        if not isinstance(inner.this, exp.Column) or inner.this.sql().upper() != "MAP":
            return found
        keys, values = (exp.Array(expressions=inner.expressions[n::2]) for n in (0, 1))
        made = self.expression(exp.Map(keys=keys, values=values))
        if inner is found:
            return made
        inner.replace(made)
        return found

    # Tables

    def _parse_table_parts(self, *given: Any, **options: Any) -> Any:
        table = super()._parse_table_parts(*given, **options)
        if isinstance(table, exp.Table) and not options.get("fast"):
            self._parse_table_window(table)
        return table

    def _parse_table(self, *given: Any, **options: Any) -> exp.Expr | None:
        table = super()._parse_table(*given, **options)
        if isinstance(table, exp.Table):
            # The window of a table may stand after its alias, or before it.
            self._parse_table_window(table)
            if table.args.get("over") is not None and not table.alias:
                table.set("alias", self._parse_table_alias())
        return table

    def _parse_table_window(self, table: exp.Table) -> None:
        if self._starts_within():
            self._parse_within(table)
            return
        if self._curr.token_type != TokenType.OVER or table.args.get("over") is not None:
            return
        self._advance()
        start = self._curr
        self._match_l_paren()
        partition, order = self._parse_partition_and_order()
        kind = self._match_set((TokenType.ROWS, TokenType.RANGE)) and self._prev.text.upper()
        if not kind:
            self.raise_error("Expected ROWS or RANGE")
        self._match(TokenType.BETWEEN)
        size = (
            exp.Var(this="UNBOUNDED")
            if self._match_text_seq("UNBOUNDED")
            else self._parse_loose_interval() or self._parse_bitwise()
        )
        if not size or not self._match_text_seq("PRECEDING"):
            self.raise_error("Expected PRECEDING")
        if self._match(TokenType.AND) and not self._match_text_seq("CURRENT", "ROW"):
            self.raise_error("Expected CURRENT ROW")
        self._match_r_paren()
        window = self.expression(
            TableWindow(kind=kind, size=size, order=order, partition_by=partition)
        )
        table.set("over", window.update_positions(start))

    def _starts_within(self) -> bool:
        """Whether `WITHIN 5 MINUTES` or `WITHIN (5 MINUTES, 1 MINUTE)` of ksqlDB is next."""
        return self._curr.text.upper() == "WITHIN" and self._next.token_type in (
            TokenType.NUMBER,
            TokenType.L_PAREN,
        )

    def _parse_within(self, table: exp.Table) -> None:
        start = self._curr
        self._advance()
        is_wrapped = self._match(TokenType.L_PAREN)
        size = self._parse_loose_interval()
        after = self._parse_loose_interval() if self._match(TokenType.COMMA) else size
        if size is None or after is None:
            self.raise_error("Expected a number of a unit, as in WITHIN 5 MINUTES")
        if is_wrapped:
            self._match_r_paren()
        grace = None
        if self._match_text_seq("GRACE", "PERIOD"):
            grace = self._parse_loose_interval()
            if grace is None:
                self.raise_error("Expected a number of a unit, as in GRACE PERIOD 1 MINUTE")
        window = self.expression(TableWindow(kind="WITHIN", size=size, after=after, grace=grace))
        table.set("over", window.update_positions(start))

    def _parse_table_alias(
        self, alias_tokens: Collection[TokenType] | None = None
    ) -> exp.TableAlias | None:
        if starts_clause(self) or self._starts_within():
            return None
        return super()._parse_table_alias(alias_tokens)

    def _parse_alias(self, this: exp.Expr | None, explicit: bool = False) -> exp.Expr | None:  # noqa: FBT001, FBT002
        return this if starts_clause(self) else super()._parse_alias(this, explicit)

    def _parse_query_modifiers(self, this: Any) -> Any:
        this = super()._parse_query_modifiers(this)
        if isinstance(this, exp.Query) and starts_clause(self):
            token = self._curr
            if this.args.get("emit") is not None:
                self.raise_error("The query has an EMIT already", token)
            clause = self._parse_emit()
            this.set("emit", Emit(clause=clause).update_positions(token))
        return this

    # Types

    def _parse_types(self, *given: Any, **options: Any) -> exp.Expr | None:
        """A type; inside of another one it may be `NOT NULL`, which has no effect."""
        self._type_depth += 1
        try:
            found = super()._parse_types(*given, **options)
            if self._type_depth > 1 and isinstance(found, exp.DataType):
                self._match_text_seq("NOT", "NULL")
        finally:
            self._type_depth -= 1
        return found

    # Definitions

    def _parse_watermark(self) -> exp.Expr | None:
        if not self._match(TokenType.FOR):
            return None
        column = self._parse_column()
        if not self._match(TokenType.ALIAS):
            self.raise_error("Expected AS")
        return self.expression(Watermark(this=column, expression=self._parse_lambda()))

    def _parse_metadata(self) -> exp.Expr:
        key = None
        if self._match(TokenType.FROM):
            # The documentation of Flink quotes keys as texts and as names.
            key = self._parse_string() or self._parse_id_var(any_token=False)
        return self.expression(
            MetadataColumn(this=key, virtual=self._match_text_seq("VIRTUAL") is not None)
        )

    def _parse_create_like(self) -> exp.LikeProperty | None:
        """`LIKE table (INCLUDING OPTIONS EXCLUDING ALL)`."""
        found = exp.LikeProperty(this=self._parse_table_parts(schema=True), expressions=[])
        is_wrapped = self._match(TokenType.L_PAREN)
        while self._match_texts(("INCLUDING", "EXCLUDING", "OVERWRITING")):
            rule, feature = self._prev.text.upper(), self._curr
            if feature.text.upper() not in ("ALL", *FEATURES):
                self.raise_error(f"Expected ALL or one of {', '.join(FEATURES)}", feature)
            self._advance()
            found.append(
                "expressions", exp.Property(this=rule, value=exp.var(feature.text.upper()))
            )
        if is_wrapped:
            self._match_r_paren()
        return found

    # Errors

    def _warn_unsupported(self) -> None:
        self._refuse(self._tokens[0])

    def _parse_as_command(self, start: Token) -> NoReturn:
        at = self._tokens.index(start)
        words = {token.text.upper() for token in self._tokens[at + 1 : at + 4]}
        if start.token_type == TokenType.CREATE and words & {"TABLE", "VIEW"}:
            # What is left of a table or a view could not be read.
            self.raise_error("Unexpected token", self._curr or self._prev)
        self._refuse(start)

    def _refuse(self, token: Token) -> NoReturn:
        self.raise_error(f"`{token.text.upper()}` is not supported here", token)
        raise AssertionError


def _table_argument(generator: SparkGenerator, node: TableArgument) -> str:
    columns = [generator.sql(column) for column in node.args.get("partition_by") or ()]
    partition = f" PARTITION BY ({', '.join(columns)})" if columns else ""
    return f"TABLE {generator.sql(node, 'this')}{partition}"


class TidegateGenerator(SparkGenerator):
    """The generator of sqlglot for Spark, with the nodes of Tidegate."""

    TRANSFORMS: ClassVar[dict[Any, Any]] = {
        **SparkGenerator.TRANSFORMS,
        WindowCall: lambda self, e: self.func(e.name, *e.expressions),
        NamedArgument: lambda self, e: f"{e.name} => {self.sql(e, 'expression')}",
        Descriptor: lambda self, e: f"DESCRIPTOR({self.expressions(e, flat=True)})",
        RowCount: lambda self, e: f"ROWS {self.sql(e, 'this')}",
        TableArgument: _table_argument,
        Watermark: lambda self, e: (
            f"WATERMARK FOR {self.sql(e, 'this')} AS {self.sql(e, 'expression')}"
        ),
    }


class Tidegate(Spark):
    """SQL of Tidegate."""

    class Tokenizer(Spark.Tokenizer):
        """The tokenizer of Spark, with `ROW` as a type and `EXPLAIN` as a plain word."""

        STRING_ESCAPES: ClassVar[list[str]] = ["'", '"', "\\"]

        KEYWORDS: ClassVar[dict[str, Any]] = {
            **{
                word: kind
                for word, kind in Spark.Tokenizer.KEYWORDS.items()
                if word not in ("EXPLAIN", "ANALYZE", "EXECUTE", "CALL", "SHOW")
            },
            "ROW": TokenType.STRUCT,
            "BYTES": TokenType.VARBINARY,
            "LOCALTIMESTAMP": TokenType.LOCALTIMESTAMP,
            "MATCH_CONDITION": TokenType.MATCH_CONDITION,
            "MATCH_RECOGNIZE": TokenType.MATCH_RECOGNIZE,
        }

    Parser = TidegateParser
    Generator = TidegateGenerator

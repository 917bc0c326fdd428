"""Scalar expressions of the dialect in the SQL of the engines that evaluate them.

Embedded, and inside Spark's tasks, that is DuckDB; in front of an operator on Spark, where the rows
are a DataFrame, it is Spark.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from sqlglot import exp
from sqlglot.errors import ErrorLevel

from tidegate.operators.ingest.projection import SqlCondition
from tidegate.spec.projection import Projection, Unnest, reference
from tidegate.sql.plan import Select
from tidegate.sql.rewrites import DUCKDB, SPARK, rewritten
from tidegate.sql.time_formats import pattern_of


def compile_duckdb(select: Select, *, keeps: str = "protocol") -> Projection:
    """A scalar step as a projection, evaluated by DuckDB.

    Without columns, all columns of the input stay.
    """
    unnest = select.unnest
    return Projection(
        tuple((name, duckdb_text(tree)) for name, tree in select.columns),
        None if select.where is None else duckdb_text(select.where),
        keeps if select.columns else "all",
        None if unnest is None else Unnest(unnest.column, unnest.fields, unnest.position),
    )


def compile_condition(tree: exp.Expr) -> SqlCondition:
    """A condition over the columns of a table as a function that workers can receive."""
    return SqlCondition(duckdb_text(tree))


def duckdb_text(tree: exp.Expr) -> str:
    """An expression in the SQL of DuckDB."""
    if isinstance(tree, exp.Column) and not tree.table:
        return reference(tree.name)
    return _text(tree, DUCKDB)


def spark_text(tree: exp.Expr) -> str:
    """An expression in the SQL of Spark."""
    return _text(tree, SPARK)


def _text(tree: exp.Expr, engine: str) -> str:
    # What an engine lacks is refused by the check of its functions.
    return rewritten(tree, engine).sql(dialect=engine, unsupported_level=ErrorLevel.IGNORE)


_TRIES: dict[type[exp.Expr], str] = {
    exp.Add: "try_add",
    exp.Sub: "try_subtract",
    exp.Mul: "try_multiply",
    exp.Div: "try_divide",
    exp.Mod: "try_mod",
}
"""Operators that fail in Spark, and the functions that return null instead."""


def spark_column(name: str, tree: exp.Expr) -> tuple[str, str, str | None]:
    """A column for Spark: its name, an expression that never fails, and when it is a failure."""
    failure = _failure(tree)
    return name, spark_text(_tried(tree.copy())), None if failure is None else spark_text(failure)


def _tried(tree: exp.Expr) -> exp.Expr:
    """The expression with null in place of failures."""
    for node in reversed(list(tree.dfs())):
        found: exp.Expr | None = None
        if type(node) is exp.Cast:
            found = exp.TryCast(this=node.this, to=node.args["to"], safe=True)
        elif type(node) in _TRIES:
            found = exp.Anonymous(this=_TRIES[type(node)], expressions=[node.this, node.expression])
        elif isinstance(node, exp.StrToTime):
            form = node.args["format"]
            found = exp.Anonymous(
                this="try_to_timestamp",
                expressions=[node.this, exp.Literal.string(pattern_of(form))],
            )
        if found is None:
            continue
        if node is tree:
            tree = found
        else:
            node.replace(found)
    return tree


def _failure(tree: exp.Expr) -> exp.Expr | None:
    """The condition under which an expression fails for a row; None if it never does."""
    match tree:
        case exp.Case():
            return _case_failure(tree)
        case exp.If():
            return _case_failure(exp.Case(ifs=[tree], default=tree.args.get("false")))
        case exp.Coalesce():
            first, *others = [tree.this, *tree.expressions]
            rest = (
                _failure(exp.Coalesce(this=others[0], expressions=others[1:])) if others else None
            )
            guard = exp.Is(this=_tried(first.copy()), expression=exp.Null())
            return _either(_failure(first), None if rest is None else exp.and_(guard, rest))
        case exp.TryCast():
            return _failure(tree.this)
    operands = [
        one for one in tree.iter_expressions() if not isinstance(one, exp.DataType | exp.Interval)
    ]
    found = _either(*(_failure(one) for one in operands))
    if type(tree) in (exp.Cast, exp.Add, exp.Sub, exp.Mul, exp.StrToTime):
        values = operands[:1] if isinstance(tree, exp.Cast | exp.StrToTime) else operands
        missing = exp.Is(this=_tried(tree.copy()), expression=exp.Null())
        known = [
            exp.not_(exp.Is(this=_tried(one.copy()), expression=exp.Null()))
            for one in values
            if not isinstance(one, exp.Literal)
        ]
        found = _either(found, exp.and_(*known, missing))
    return found


def _case_failure(tree: exp.Case) -> exp.Expr | None:
    """The failure of the branch that is taken, or of a condition before it."""
    found = _failure(tree.args["default"]) if tree.args.get("default") is not None else None
    for branch in reversed(tree.args["ifs"]):
        test = branch.this
        if tree.this is not None:
            test = exp.EQ(this=tree.this.copy(), expression=test.copy())
        held = exp.func("COALESCE", _tried(test.copy()), exp.false())
        value = _failure(branch.args["true"])
        taken = None if value is None else exp.and_(held.copy(), value)
        rest = None if found is None else exp.and_(exp.not_(held.copy()), found)
        found = _either(_failure(test), taken, rest)
    return found


def _either(*conditions: exp.Expr | None) -> exp.Expr | None:
    known = [one for one in conditions if one is not None]
    return exp.or_(*known) if known else None


_TYPES: dict[exp.DType, pa.DataType] = {
    exp.DType.BOOLEAN: pa.bool_(),
    exp.DType.TINYINT: pa.int8(),
    exp.DType.SMALLINT: pa.int16(),
    exp.DType.INT: pa.int32(),
    exp.DType.BIGINT: pa.int64(),
    exp.DType.FLOAT: pa.float32(),
    exp.DType.DOUBLE: pa.float64(),
    exp.DType.TEXT: pa.string(),
    exp.DType.VARCHAR: pa.string(),
    exp.DType.CHAR: pa.string(),
    exp.DType.NCHAR: pa.string(),
    exp.DType.BINARY: pa.binary(),
    exp.DType.VARBINARY: pa.binary(),
    exp.DType.DATE: pa.date32(),
    exp.DType.TIMESTAMP: pa.timestamp("us", "UTC"),
    exp.DType.TIMESTAMPTZ: pa.timestamp("us", "UTC"),
    exp.DType.TIMESTAMPLTZ: pa.timestamp("us", "UTC"),
    exp.DType.TIMESTAMPNTZ: pa.timestamp("us"),
}
"""Types of columns. A timestamp is an instant; a text without a zone is in UTC."""


def arrow_type(kind: exp.DataType) -> pa.DataType | None:
    """The Arrow type of a column; None if there is none for it."""
    if kind.this in _TYPES:
        return _TYPES[kind.this]
    arguments = kind.expressions
    if kind.this == exp.DType.DECIMAL:
        return _decimal([one.name for one in arguments])
    if kind.this in (exp.DType.ARRAY, exp.DType.LIST) and len(arguments) == 1:
        inner = arrow_type(arguments[0])
        return None if inner is None else pa.list_(inner)
    if kind.this == exp.DType.MAP and len(arguments) == 2:
        key, value = map(arrow_type, arguments)
        return None if key is None or value is None else pa.map_(key, value)
    if kind.this == exp.DType.STRUCT:
        kinds = [(one.name, one.args.get("kind")) for one in arguments]
        fields = [(name, inner and arrow_type(inner)) for name, inner in kinds]
        known = [(name, inner) for name, inner in fields if inner is not None]
        return pa.struct(known) if len(known) == len(fields) else None
    return None


def _decimal(arguments: Sequence[str]) -> pa.DataType | None:
    """The type of decimals with a precision and a scale, as far as Arrow has it."""
    if len(arguments) > 2 or not all(one.isdecimal() for one in arguments):
        return None
    precision, scale = [*map(int, arguments), *(10, 0)[len(arguments) :]]
    return pa.decimal128(precision, scale) if 1 <= precision <= 38 and scale <= precision else None

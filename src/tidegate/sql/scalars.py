"""Scalar expressions of the dialect in the SQL of the engines that evaluate them.

Embedded, and inside Spark's tasks, that is DuckDB; in front of an operator on Spark, where the rows
are a DataFrame, it is Spark. Functions of Flink that an engine lacks are rewritten.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa
from sqlglot import exp, parse_one
from sqlglot.errors import ErrorLevel

from tidegate.errors import SqlError
from tidegate.operators.ingest.projection import SqlCondition
from tidegate.spec.projection import Projection, Unnest, reference
from tidegate.sql.plan import Select

DUCKDB, SPARK = "duckdb", "spark"

_FUNCTIONS: dict[str, tuple[dict[int, str], dict[int, str]]] = {
    "TO_TIMESTAMP_LTZ": (
        {
            1: "make_timestamptz(_0 * 1000)",
            2: "make_timestamptz(CAST(_0 * power(10, 6 - _1) AS BIGINT))",
        },
        {1: "timestamp_millis(_0)", 2: "timestamp_micros(CAST(_0 * power(10, 6 - _1) AS BIGINT))"},
    ),
    "JSON_VALUE": ({2: "json_extract_string(_0, _1)"}, {2: "get_json_object(_0, _1)"}),
    "JSON_QUERY": (
        {2: "CAST(json_extract(_0, _1) AS VARCHAR)"},
        {2: "get_json_object(_0, _1)"},
    ),
    "JSON_EXISTS": ({2: "json_exists(_0, _1)"}, {2: "get_json_object(_0, _1) IS NOT NULL"}),
    "SPLIT_INDEX": (
        {3: "str_split(_0, _1)[_2 + 1]"},
        {3: r"get(split(_0, concat('\\Q', _1, '\\E')), _2)"},
    ),
    "REGEXP": ({2: "regexp_matches(_0, _1)"}, {2: "_0 RLIKE _1"}),
    "TRUNCATE": (
        {1: "trunc(_0)", 2: "trunc(_0, _1)"},
        {1: "CAST(_0 AS BIGINT)", 2: "CAST(_0 * power(10, _1) AS BIGINT) / power(10, _1)"},
    ),
    "UNIX_MICROS": ({1: "epoch_us(_0)"}, {1: "unix_micros(_0)"}),
    "UNIX_MILLIS": ({1: "epoch_ms(_0)"}, {1: "unix_millis(_0)"}),
    "IFNULL": ({2: "coalesce(_0, _1)"}, {2: "coalesce(_0, _1)"}),
    "PROCTIME": ({0: "now()"}, {0: "current_timestamp()"}),
    "IS_ALPHA": (
        {1: "regexp_full_match(_0, '[A-Za-z]+')"},
        {1: "_0 RLIKE '^[A-Za-z]+$'"},
    ),
    "IS_DIGIT": ({1: "regexp_full_match(_0, '[0-9]+')"}, {1: "_0 RLIKE '^[0-9]+$'"}),
}
"""Functions that sqlglot does not know: by number of arguments, their text for DuckDB and Spark."""
FLINK_FUNCTIONS = frozenset(_FUNCTIONS)
"""The names of these functions."""


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
    root, rewrite = tree.copy(), _REWRITES[engine]
    # Arguments before the functions that contain them.
    for node in reversed(list(root.dfs())):
        found = rewrite(node)
        if found is node:
            continue
        if node is root:
            root = found
        else:
            node.replace(found)
    # What an engine lacks is refused by the check of its functions.
    return root.sql(dialect=engine, unsupported_level=ErrorLevel.IGNORE)


def _is_text(node: exp.Cast) -> bool:
    """Whether a cast makes a text."""
    return bool(pa.types.is_string(_TYPES.get(node.args["to"].this, pa.null())))


def _duckdb_node(node: exp.Expr) -> exp.Expr:
    """A node as DuckDB has it."""
    match node:
        case exp.Anonymous():
            return _function(node, 0, DUCKDB)
        case exp.StrToTime():
            return exp.cast(node.copy(), exp.DataType.build("TIMESTAMPTZ", dialect=DUCKDB))
        case exp.StrToUnix() if node.this is not None:
            text = "CAST(epoch(CAST(_0 AS TIMESTAMPTZ)) AS BIGINT)"
            return _template(text, [node.this], DUCKDB)
        case exp.Cast() if _is_text(node) and not any(map(_is_text, node.this.find_all(exp.Cast))):
            # Spark shows instants without a zone; DuckDB knows the type of the value.
            shown = node.sql(dialect=DUCKDB)
            kind = f"typeof({node.this.sql(dialect=DUCKDB)}) = 'TIMESTAMP WITH TIME ZONE'"
            zoned = f"CASE WHEN {kind} THEN regexp_replace({shown}, '\\+00$', '') ELSE {shown} END"
            return parse_one(zoned, read=DUCKDB)
        case exp.DayOfWeek():
            return _template("dayofweek(CAST(_0 AS TIMESTAMPTZ)) + 1", [node.this], DUCKDB)
        case exp.TimestampDiff():
            # DuckDB's `date_diff` counts boundaries; the dialect counts whole units.
            unit = exp.Literal.string(node.text("unit").lower() or "second")
            return exp.Anonymous(this="date_sub", expressions=[unit, node.expression, node.this])
        case exp.Ceil() if node.args.get("to") is not None:
            return _template(
                f"CASE WHEN date_trunc('{node.text('to')}', _0) = _0 THEN _0"
                f" ELSE date_trunc('{node.text('to')}', _0) + INTERVAL 1 {node.text('to')} END",
                [node.this],
                DUCKDB,
            )
        case exp.Floor() if node.args.get("to") is not None:
            return _template(f"date_trunc('{node.text('to')}', _0)", [node.this], DUCKDB)
        case exp.DataType() if node.this in (exp.DType.TIMESTAMP, exp.DType.TIMESTAMPLTZ):
            return exp.DataType.build("TIMESTAMPTZ", dialect=DUCKDB)
    return node


def _spark_node(node: exp.Expr) -> exp.Expr:
    """A node as Spark has it."""
    match node:
        case exp.Anonymous():
            return _function(node, 1, SPARK)
        case exp.Ceil() if node.args.get("to") is not None:
            return _template(
                f"CASE WHEN date_trunc('{node.text('to')}', _0) = _0 THEN _0"
                f" ELSE date_trunc('{node.text('to')}', _0) + INTERVAL 1 {node.text('to')} END",
                [node.this],
                SPARK,
            )
        case exp.Floor() if node.args.get("to") is not None:
            return _template(f"date_trunc('{node.text('to')}', _0)", [node.this], SPARK)
    return node


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
                expressions=[node.this, exp.Literal.string(_spark_format(form))],
            )
        if found is None:
            continue
        if node is tree:
            tree = found
        else:
            node.replace(found)
    return tree


def _spark_format(form: exp.Expr) -> str:
    """The format of a time in the letters of Spark."""
    text = exp.StrToTime(this=exp.Literal.string(""), format=form.copy()).sql(dialect=SPARK)
    return parse_one(text, read=SPARK).sql(dialect=SPARK).split("'")[-2] if "'" in text else ""


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


_REWRITES: dict[str, Callable[[exp.Expr], exp.Expr]] = {DUCKDB: _duckdb_node, SPARK: _spark_node}


def _function(node: exp.Anonymous, engine: int, dialect: str) -> exp.Expr:
    forms = _FUNCTIONS.get(node.name.upper())
    if forms is None:
        return node
    text = forms[engine].get(len(node.expressions))
    if text is None:
        raise SqlError(
            f"`{node.name.upper()}` takes {' or '.join(map(str, forms[engine]))} arguments, got"
            f" {len(node.expressions)}"
        )
    return _template(text, node.expressions, dialect)


def _template(text: str, arguments: list[exp.Expr], dialect: str) -> exp.Expr:
    """The expression of a text, with `_0`, `_1` ... replaced by arguments."""

    def filled(node: exp.Expr) -> exp.Expr:
        if isinstance(node, exp.Column) and node.name[:1] == "_" and node.name[1:].isdigit():
            return exp.Paren(this=arguments[int(node.name[1:])].copy())
        return node

    return parse_one(text, read=dialect).transform(filled)


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

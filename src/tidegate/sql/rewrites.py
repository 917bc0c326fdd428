"""Functions and operators that an engine lacks, or has with another meaning, in its own SQL."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from sqlglot import exp, parse_one

from tidegate.errors import SqlError
from tidegate.sql.intervals import ticks
from tidegate.sql.time_formats import duckdb_format, pattern_of

DUCKDB, SPARK = "duckdb", "spark"
Texts = dict[int, str]
"""By number of arguments, the text of a call; `_0`, `_1` ... are its arguments."""


def _unique(values: str) -> str:
    """The values of a list without repetitions, in their order."""
    return f"list_filter({values}, lambda x, i: i = list_position({values}, x))"


_NOW = ({0: "now()"}, {0: "current_timestamp()"})
_NAMED: dict[str, tuple[Texts, Texts]] = {
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
    "UNIX_MICROS": ({1: "epoch_us(_0)"}, {1: "unix_micros(_0)"}),
    "UNIX_MILLIS": ({1: "epoch_ms(_0)"}, {1: "unix_millis(_0)"}),
    "IFNULL": ({2: "coalesce(_0, _1)"}, {2: "coalesce(_0, _1)"}),
    "PROCTIME": _NOW,
    "CURRENT_ROW_TIMESTAMP": _NOW,
    "IS_ALPHA": (
        {1: "regexp_full_match(_0, '[A-Za-z]+')"},
        {1: "_0 RLIKE '^[A-Za-z]+$'"},
    ),
    "IS_DIGIT": ({1: "regexp_full_match(_0, '[0-9]+')"}, {1: "_0 RLIKE '^[0-9]+$'"}),
    "IS_DECIMAL": (
        {1: r"regexp_full_match(_0, '[-+]?([0-9]+[.]?[0-9]*|[.][0-9]+)')"},
        {1: r"_0 RLIKE '^[-+]?([0-9]+[.]?[0-9]*|[.][0-9]+)$'"},
    ),
    "E": ({0: "exp(1)"}, {0: "e()"}),
    "BTRIM": ({1: "trim(_0)", 2: "trim(_0, _1)"}, {1: "btrim(_0)", 2: "btrim(_0, _1)"}),
    "ELEMENT": (
        {1: "CASE WHEN len(_0) = 1 THEN list_extract(_0, 1) END"},
        {1: "CASE WHEN size(_0) = 1 THEN get(_0, 0) END"},
    ),
    "RAND_INTEGER": (
        {1: "CAST(floor(random() * _0) AS INTEGER)"},
        {1: "CAST(floor(rand() * _0) AS INTEGER)"},
    ),
    "CONVERT_TZ": (
        {3: "strftime(timezone(_2, timezone(_1, CAST(_0 AS TIMESTAMP))), '%Y-%m-%d %H:%M:%S')"},
        {
            3: "date_format(convert_timezone(_1, _2, CAST(_0 AS TIMESTAMP_NTZ)),"
            " 'yyyy-MM-dd HH:mm:ss')"
        },
    ),
    # Flink decodes to a text; UNBASE64 of Spark has bytes.
    "FROM_BASE64": (
        {1: "decode(from_base64(_0))"},
        {1: "decode(unbase64(_0), 'UTF-8')"},
    ),
    "ARRAY_UNION": (
        {2: _unique("list_concat(_0, _1)")},
        {2: "array_union(_0, _1)"},
    ),
    "SHA224": ({}, {1: "sha2(_0, 224)"}),
    "SHA256": ({1: "sha256(_0)"}, {1: "sha2(_0, 256)"}),
    "SHA384": ({}, {1: "sha2(_0, 384)"}),
    "SHA512": ({}, {1: "sha2(_0, 512)"}),
}
NAMES = frozenset(_NAMED)
"""Functions of Flink and others that the parser does not know."""
_NODES: dict[type[exp.Expr], tuple[str, str | None]] = {
    exp.ArrayDistinct: (_unique("_0"), None),
    exp.ArrayExcept: (
        f"list_filter({_unique('_0')}, lambda y: list_position(_1, y) IS NULL)",
        None,
    ),
    exp.ArrayReverse: ("list_reverse(_0)", "reverse(_0)"),
    exp.RegexpSubstr: ("nullif(regexp_extract(_0, _1), '')", None),
    exp.Week: ("week(_0)", "weekofyear(_0)"),
    exp.DayOfWeek: ("dayofweek(CAST(_0 AS TIMESTAMPTZ)) + 1", None),
}
"""Nodes of the parser whose text for DuckDB or Spark is another one; None keeps that of sqlglot."""


def rewritten(tree: exp.Expr, engine: str) -> exp.Expr:
    """A copy of an expression with the functions of an engine."""
    root, rewrite = tree.copy(), _ENGINES[engine]
    # Arguments before the functions that contain them.
    for node in reversed(list(root.dfs())):
        found = rewrite(node)
        if found is node:
            continue
        if node is root:
            root = found
        else:
            node.replace(found)
    return root


def _duckdb_node(node: exp.Expr) -> exp.Expr:
    """A node as DuckDB has it."""
    match node:
        case exp.StrToUnix() if node.this is not None and _has_default(node):
            text = "CAST(epoch(CAST(_0 AS TIMESTAMPTZ)) AS BIGINT)"
            return _template(text, [node.this], DUCKDB)
        case (
            exp.TimeToStr()
            | exp.StrToTime()
            | exp.StrToUnix()
            | exp.UnixToStr()
            | exp.TsOrDsToDate()
        ) if node.args.get("format") is not None:
            return _duckdb_time(node)
        case exp.Cast() if _is_text(node) and not any(map(_is_text, node.this.find_all(exp.Cast))):
            # Spark shows instants without a zone; DuckDB knows the type of the value.
            shown = node.sql(dialect=DUCKDB)
            kind = f"typeof({node.this.sql(dialect=DUCKDB)}) = 'TIMESTAMP WITH TIME ZONE'"
            zoned = f"CASE WHEN {kind} THEN regexp_replace({shown}, '\\+00$', '') ELSE {shown} END"
            return parse_one(zoned, read=DUCKDB)
        case exp.TimestampDiff():
            # DuckDB's `date_diff` counts boundaries; the dialect counts whole units.
            unit = exp.Literal.string(node.text("unit").lower() or "second")
            return exp.Anonymous(this="date_sub", expressions=[unit, node.expression, node.this])
        case exp.Interval() if isinstance(node.unit, exp.IntervalSpan):
            length = exp.Literal.string(str(ticks(node)))
            return exp.Interval(this=length, unit=exp.var("MICROSECOND"))
        case exp.TsOrDsAdd():
            return exp.cast(node.copy(), "date")
        case exp.DataType() if node.this in (exp.DType.TIMESTAMP, exp.DType.TIMESTAMPLTZ):
            return exp.DataType.build("TIMESTAMPTZ", dialect=DUCKDB)
    return _shared_node(node, DUCKDB)


def _has_default(node: exp.Expr) -> bool:
    """Whether a text is parsed in the default pattern, which casts know, too."""
    form = node.args.get("format")
    return form is None or pattern_of(form) == "yyyy-MM-dd HH:mm:ss"


def _duckdb_time(node: exp.Expr) -> exp.Expr:
    """A function with a pattern of times."""
    parses = not isinstance(node, exp.TimeToStr | exp.UnixToStr)
    form = duckdb_format(pattern_of(node.args["format"]), parses=parses)
    node.set("format", exp.Literal.string(form))
    if isinstance(node, exp.StrToTime):
        return exp.cast(node.copy(), exp.DataType.build("TIMESTAMPTZ", dialect=DUCKDB))
    return exp.cast(node.copy(), "bigint") if isinstance(node, exp.StrToUnix) else node


def _spark_node(node: exp.Expr) -> exp.Expr:
    """A node as Spark has it."""
    match node:
        case exp.Trunc() if node.args.get("decimals") is not None:
            scaled = "CAST(_0 * power(10, _1) AS BIGINT) / power(10, _1)"
            return _template(scaled, [node.this, node.args["decimals"]], SPARK)
    return _shared_node(node, SPARK)


def _shared_node(node: exp.Expr, dialect: str) -> exp.Expr:
    """A node that both engines have in other words."""
    match node:
        case exp.Anonymous() if node.name.upper() == "ROW":
            return _row(node)
        case exp.Anonymous():
            return _function(node, dialect)
        case exp.SimilarTo():
            return _similar(node)
        case exp.Extract() if node.name.upper() in ("DOW", "DAYOFWEEK") and dialect == DUCKDB:
            return _template("dayofweek(CAST(_0 AS TIMESTAMPTZ)) + 1", [node.expression], dialect)
        case exp.Extract() if node.name.upper() == "EPOCH":
            text = "CAST(floor(epoch(_0)) AS BIGINT)" if dialect == DUCKDB else "unix_timestamp(_0)"
            return _template(text, [node.expression], dialect)
        case exp.Extract() if node.name.upper() == "MILLISECOND":
            text = (
                "millisecond(_0) % 1000"
                if dialect == DUCKDB
                else "CAST(unix_millis(_0) % 1000 AS INT)"
            )
            return _template(text, [node.expression], dialect)
        case exp.Is() if isinstance(node.expression, exp.JSON):
            text = "json_valid(_0)" if dialect == DUCKDB else "get_json_object(_0, '$') IS NOT NULL"
            return _template(text, [node.this], dialect)
        case exp.Elt():
            text = f"list_extract([{_numbered(node.expressions, 1)}], CAST(_0 AS BIGINT))"
            if dialect == DUCKDB:
                return _template(text, [node.this, *node.expressions], dialect)
        case exp.Ceil() if node.args.get("to") is not None:
            unit = node.text("to")
            floor = f"date_trunc('{unit}', _0)"
            return _template(
                f"CASE WHEN {floor} = _0 THEN _0 ELSE {floor} + INTERVAL 1 {unit} END",
                [node.this],
                dialect,
            )
        case exp.Floor() if node.args.get("to") is not None:
            return _template(f"date_trunc('{node.text('to')}', _0)", [node.this], dialect)
    own, of_spark = _NODES.get(type(node), (None, None))
    shown = of_spark if dialect == SPARK else own
    if shown is None:
        return node
    other = [one for one in (node.this, node.expression) if one is not None]
    return _template(shown, other, dialect)


def _row(node: exp.Anonymous) -> exp.Struct:
    """`ROW(1, 'a')` as a struct, whose fields have the names of Flink."""
    return exp.Struct(
        expressions=[
            exp.PropertyEQ(this=exp.to_identifier(f"EXPR${at}", quoted=True), expression=one.copy())
            for at, one in enumerate(node.expressions)
        ]
    )


def _numbered(arguments: Sequence[object], first: int) -> str:
    return ", ".join(f"_{first + number}" for number, _ in enumerate(arguments))


def _similar(node: exp.SimilarTo) -> exp.Expr:
    """`text SIMILAR TO 'pattern'` as a regular expression over the whole text."""
    pattern = node.expression
    if not isinstance(pattern, exp.Literal) or not pattern.is_string:
        raise SqlError("the pattern of SIMILAR TO is a text. Hint: a SIMILAR TO '(a|b)%'")
    # `|`, `*`, `+`, `?`, braces, brackets and parentheses mean the same in both.
    regex = re.sub(r"[.^$\\]", lambda found: f"\\{found[0]}", pattern.name)
    regex = regex.replace("[\\^", "[^").replace("%", ".*").replace("_", ".")
    wanted = exp.Literal.string(f"^(?:{regex})$")
    return exp.RegexpLike(this=node.this.copy(), expression=wanted)


def _is_text(node: exp.Cast) -> bool:
    """Whether a cast makes a text."""
    return node.args["to"].this in exp.DataType.TEXT_TYPES


def _function(node: exp.Anonymous, dialect: str) -> exp.Expr:
    forms = _NAMED.get(node.name.upper())
    if forms is None:
        return node
    texts = forms[dialect == SPARK]
    text = texts.get(len(node.expressions))
    if text is None and not texts:
        return node
    if text is None:
        raise SqlError(
            f"`{node.name.upper()}` takes {' or '.join(map(str, texts))} arguments, got"
            f" {len(node.expressions)}"
        )
    return _template(text, node.expressions, dialect)


def _template(text: str, arguments: Sequence[exp.Expr], dialect: str) -> exp.Expr:
    """The expression of a text, with `_0`, `_1` ... replaced by arguments."""

    def filled(node: exp.Expr) -> exp.Expr:
        if isinstance(node, exp.Column) and node.name[:1] == "_" and node.name[1:].isdigit():
            return exp.Paren(this=arguments[int(node.name[1:])].copy())
        return node

    return parse_one(text, read=dialect).transform(filled)


_ENGINES: dict[str, Callable[[exp.Expr], exp.Expr]] = {DUCKDB: _duckdb_node, SPARK: _spark_node}

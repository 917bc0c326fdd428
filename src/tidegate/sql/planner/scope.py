"""Names: which field of which relation a column of the text means."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sqlglot import exp

from tidegate.errors import SqlError
from tidegate.sql.planner.relation import (
    PENDING,
    Field,
    Relation,
    Role,
    last_instant,
    physical,
    spark_bound,
)
from tidegate.sql.positions import Place, has_place, place_of

BOUND_NAMES = {
    **dict.fromkeys(("wstart", "windowstart"), Role.START),
    **dict.fromkeys(("wend", "windowend"), Role.END),
}
"""Names of the bounds of windows in ksqlDB and in "One SQL to Rule Them All"."""
WINDOW_TIME = "WINDOW_TIME"


@dataclass(frozen=True)
class Scope:
    """The fields that expressions may name, and the text for errors."""

    text: str
    fields: tuple[Field, ...]
    is_open: bool = False
    aliases: Mapping[str, exp.Expr] | None = None
    """Names of select items, for GROUP BY and HAVING; columns come first."""
    place: Place | None = None
    """The place of the query, for errors at nodes without a place of their own."""

    @classmethod
    def of(cls, place: Place, *relations: Relation) -> Scope:
        """The scope of relations side by side, in the query of a place."""
        fields = tuple(one for relation in relations for one in relation.fields)
        is_open = any(relation.is_open for relation in relations)
        return cls(place.text, fields, is_open, place=place)

    def error(self, node: exp.Expr | None, why: str, hint: str = "") -> SqlError:
        """An error at a node of the text."""
        is_known = node is not None and has_place(node)
        place = self.place if self.place is not None and not is_known else None
        return (place or place_of(self.text, node)).error(why, hint)

    def find(self, column: exp.Column) -> Field | None:
        """The field that a column names; None if there is none."""
        name, qualifier = column.name, column.table
        for same in (_exactly, _ignoring_case):
            found = [
                one
                for one in self.fields
                if same(one.name, name)
                and (
                    not qualifier or (one.qualifier is not None and same(one.qualifier, qualifier))
                )
            ]
            # Equal fields of a join are one column, whatever table they are named in.
            if (
                len({one.expression for one in found}) > 1
                and len({one.qualifier for one in found}) > 1
            ):
                tables = " and ".join(f"`{one.qualifier}`" for one in found)
                raise self.error(
                    column,
                    f"the column `{name}` is ambiguous: it is in {tables}",
                    f"{found[0].qualifier}.{name}",
                )
            if found:
                return found[0]
        return self._bound(name, qualifier) or self._bound_of_struct(column)

    def _bound_of_struct(self, column: exp.Column) -> Field | None:
        """The bound that `window.start` or `t.window.end` names."""
        table = column.text("db")
        found = [
            spark_bound(one, column.name)
            for one in self.fields
            if _ignoring_case(one.name, column.table)
            and (not table or _ignoring_case(one.qualifier or "", table))
        ]
        return found[0] if len(found) == 1 else None

    def last_instant(self, node: exp.Expr) -> Field | None:
        """The time that `window_time(window)` of Spark is."""
        if not isinstance(node, exp.Anonymous) or node.name.upper() != WINDOW_TIME:
            return None
        of = node.expressions[0] if len(node.expressions) == 1 else None
        found = self.find(of) if isinstance(of, exp.Column) else None
        if found is None or found.role is not Role.WINDOW:
            return None
        return Field("window_time", last_instant("MICROSECOND"), Role.WINDOW_TIME)

    def _bound(self, name: str, qualifier: str) -> Field | None:
        """The bound of a window under a name that it has in ksqlDB."""
        role = BOUND_NAMES.get(name.lower())
        found = [
            one
            for one in self.fields
            if one.role is role
            and (not qualifier or _ignoring_case(one.qualifier or "", qualifier))
        ]
        return found[0] if len(found) == 1 else None

    def field(self, column: exp.Column) -> Field:
        """The field that a column names."""
        found = self.find(column)
        if found is not None:
            return found
        if self.is_open and not column.args.get("db"):
            return Field(column.name, physical(column.name))
        raise self.unknown(column)

    def unknown(self, column: exp.Column) -> SqlError:
        """The error for a column that no relation has."""
        names = [one.name for one in self.fields]
        near = difflib.get_close_matches(column.name, names, 1, 0.5)
        written = column.sql().replace('"', "").replace("`", "")
        shown = ", ".join(dict.fromkeys(names)) or "none"
        hint = f"did you mean `{near[0]}`?" if near else f"the columns are {shown[:300]}"
        return self.error(column, f"there is no column `{written}`", hint)

    def resolve(
        self, expression: exp.Expr, take: Callable[[exp.Expr], exp.Expr | None] | None = None
    ) -> exp.Expr:
        """The expression over physical columns.

        `take` replaces whole parts first; what it returns is not resolved again.
        """
        replaced = None if take is None else take(expression)
        if replaced is not None:
            return replaced
        if isinstance(expression, exp.Column):
            return self._column(expression)
        instant = self.last_instant(expression)
        if instant is not None:
            return instant.expression
        if isinstance(expression, exp.Dot):
            joined = self._dotted(expression)
            if joined is not None:
                return joined
        if isinstance(expression, exp.Subquery | exp.Select):
            raise self.error(
                expression,
                "a subquery is not supported here",
                "join the tables; IN and EXISTS stand alone in WHERE",
            )
        return self._rebuilt(expression, take)

    def _rebuilt(
        self, expression: exp.Expr, take: Callable[[exp.Expr], exp.Expr | None] | None
    ) -> exp.Expr:
        found = expression.copy()
        for key, value in expression.args.items():
            if isinstance(value, exp.Expr):
                found.set(key, self.resolve(value, take))
            elif isinstance(value, list):
                found.set(
                    key,
                    [
                        self.resolve(one, take) if isinstance(one, exp.Expr) else one
                        for one in value
                    ],
                )
        return found

    def _column(self, column: exp.Column) -> exp.Expr:
        found = self.find(column)
        if found is None and column.table:
            nested = self._nested(column)
            if nested is not None:
                return nested
        if found is None and self.aliases is not None and not column.table:
            for name, expression in self.aliases.items():
                if _ignoring_case(name, column.name):
                    return expression.copy()
        found = found or self.field(column)
        if found.role in PENDING:
            raise self.error(
                column,
                f"the {'row number' if found.role == 'rank' else 'OVER aggregate'} `{found.name}`"
                " cannot be used here",
                "only as the condition of a Top-N: WHERE row_num <= 3",
            )
        result = found.expression.copy()
        result.meta.update(
            {key: column.this.meta[key] for key in ("start", "end") if key in column.this.meta}
        )
        return result

    def _nested(self, column: exp.Column) -> exp.Expr | None:
        """A field of a struct, which looks like a column of a table."""
        parts = [part.name for part in column.parts]
        for number in range(min(2, len(parts) - 1), 0, -1):
            head = exp.column(parts[number - 1], table=parts[number - 2] if number == 2 else None)
            found = self.find(head)
            if found is not None:
                result = found.expression.copy()
                for name in parts[number:]:
                    result = exp.Dot(this=result, expression=exp.to_identifier(name, quoted=True))
                return result
        return None

    def _dotted(self, dot: exp.Dot) -> exp.Expr | None:
        """A field of a struct: only the first part is a column."""
        if not isinstance(dot.this, exp.Column | exp.Dot) or not isinstance(
            dot.expression, exp.Identifier
        ):
            return None
        return exp.Dot(
            this=self.resolve(dot.this),
            expression=exp.to_identifier(dot.expression.name, quoted=True),
        )


def qualifiers(fields: Sequence[Field]) -> set[str]:
    """The names of the tables of fields."""
    return {one.qualifier for one in fields if one.qualifier is not None}


def _exactly(left: str, right: str) -> bool:
    return left == right


def _ignoring_case(left: str, right: str) -> bool:
    return left.lower() == right.lower()

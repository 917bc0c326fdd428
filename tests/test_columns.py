"""Columns declared as text."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tidegate.errors import SpecError
from tidegate.spec.columns import extended, parse_columns


def test_text_declares_names_and_types() -> None:
    schema, extends = parse_columns(
        "user string, `a b` LONG, at: timestamp, price decimal(9, 2), tags array<string>"
    )
    assert not extends
    assert dict(zip(schema.names, schema.types, strict=True)) == {
        "user": pa.string(),
        "a b": pa.int64(),
        "at": pa.timestamp("us", "UTC"),
        "price": pa.decimal128(9, 2),
        "tags": pa.list_(pa.string()),
    }


def test_a_star_extends_the_columns_of_the_messages_and_replaces_types() -> None:
    messages = pa.schema({"user": pa.string(), "price": pa.string()})
    assert parse_columns("*") == (pa.schema([]), True)
    declared, extends = parse_columns("*, price double, country string")
    assert extends
    assert extended(messages, declared) == pa.schema(
        {"user": pa.string(), "price": pa.float64(), "country": pa.string()}
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("user", "is not a name and a type"),
        ("user string, ", "is not a name and a type"),
        ("user string, *", "is not a name and a type"),
        ("user text", "the type 'text' .* is unknown.*pyarrow.Schema"),
        ("user string, user long", "`user` is declared more than once"),
        ("price decimal(99, 2)", "decimal"),
    ],
)
def test_unreadable_text_is_refused(text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        parse_columns(text)

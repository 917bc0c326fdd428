"""`CREATE TABLE ... LIKE`: a table with the columns and options of another one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from tidegate.sql.statements import ColumnDefinition, CreateTable, Like

FEATURES = ("CONSTRAINTS", "GENERATED", "METADATA", "OPTIONS", "PARTITIONS", "WATERMARKS")
"""What a table takes from another one beside its physical columns; `ALL` is all of them."""


def likened(statement: CreateTable, like: Like, source: CreateTable) -> CreateTable:
    """The statement with what it takes from its source.

    Parts of the statement itself replace those of the source with the same name.
    """
    taken = _features(like)

    def kept(column: ColumnDefinition) -> bool:
        if column.computed is not None:
            return "GENERATED" in taken
        return column.metadata is None or "METADATA" in taken

    columns = [one for one in source.columns if kept(one)]
    return dataclasses.replace(
        statement,
        columns=_replaced(columns, statement.columns, lambda one: one.name.lower()),
        watermarks=_replaced(
            source.watermarks if "WATERMARKS" in taken else (),
            statement.watermarks,
            lambda one: one.column.lower(),
        ),
        primary_key=statement.primary_key or (source.primary_key if "CONSTRAINTS" in taken else ()),
        partitioned_by=statement.partitioned_by
        or (source.partitioned_by if "PARTITIONS" in taken else ()),
        options=_replaced(
            source.options if "OPTIONS" in taken else (), statement.options, lambda one: one.name
        ),
        like=None,
    )


def _features(like: Like) -> set[str]:
    """What is taken: the rule of a feature counts more than that of `ALL`."""
    rules = dict(like.rules)
    default = rules.get("ALL", "INCLUDING")
    return {one for one in FEATURES if rules.get(one, default) != "EXCLUDING"}


def _replaced(
    base: Sequence[Any], own: Sequence[Any], name: Callable[[Any], str]
) -> tuple[Any, ...]:
    names = {name(one) for one in own}
    return (*(one for one in base if name(one) not in names), *own)

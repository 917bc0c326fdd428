"""A change log in the form of Delta's change data feed, applied to a table, gives what the panes
give when they are netted.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tidegate as tg
from support.examples import examples
from tidegate.errors import InputError
from tidegate.operators.changelog import changelog

STAMP = pa.timestamp("us", "UTC")
SCHEMA = pa.schema(
    [
        ("k", pa.string()),
        ("f", pa.float64()),
        ("window_start", STAMP),
        ("window_end", STAMP),
        ("op", pa.string()),
        ("pane", pa.int64()),
        ("is_first", pa.bool_()),
        ("n", pa.int64()),
        ("emitted_at", STAMP),
        ("pane_id", pa.string()),
    ]
)
KEY = ("k", "f")
WINDOW = ("window_start", "window_end")
IDENTITY = (*KEY, *WINDOW)


@dataclass(frozen=True)
class Pane:
    """One row of panes."""

    key: tuple[str | None, float | None]
    window: tuple[int | None, int | None]
    op: str
    n: int
    pane: int = 0
    is_first: bool | None = None
    """Default: whether it is pane 0."""

    @property
    def place(self) -> tuple[Any, ...]:
        return (
            self.key[0],
            "nan" if self.key[1] is not None and math.isnan(self.key[1]) else self.key[1],
            *self.window,
        )


def table_of(panes: Sequence[Pane]) -> pa.Table:
    columns = {
        "k": [pane.key[0] for pane in panes],
        "f": [pane.key[1] for pane in panes],
        "window_start": [pane.window[0] for pane in panes],
        "window_end": [pane.window[1] for pane in panes],
        "op": [pane.op for pane in panes],
        "pane": [pane.pane for pane in panes],
        "is_first": [pane.pane == 0 if pane.is_first is None else pane.is_first for pane in panes],
        "n": [pane.n for pane in panes],
        "emitted_at": list(range(len(panes))),
        "pane_id": [f"{number:032x}" for number in range(len(panes))],
    }
    return pa.table(
        {field.name: pa.array(columns[field.name], field.type) for field in SCHEMA}, schema=SCHEMA
    )


def changes_of(panes: Sequence[Pane], mode: str) -> list[str]:
    return changelog(table_of(panes), IDENTITY, mode).column("_change_type").to_pylist()


def slow_changes(panes: Sequence[Pane], mode: str) -> list[str]:
    """The rules as they are said, row by row."""
    found = []
    for number, pane in enumerate(panes):
        after = next((other for other in panes[number + 1 :] if other.place == pane.place), None)
        before = next(
            (other for other in reversed(panes[:number]) if other.place == pane.place), None
        )
        if pane.op == "-":
            found.append("update_preimage" if after is not None and after.op == "+" else "delete")
        elif before is not None and before.op == "-":
            found.append("update_postimage")
        else:
            found.append(
                "update_postimage" if mode == "accumulating" and pane.pane > 0 else "insert"
            )
    return found


def applied(
    table: dict[tuple[Any, ...], int], panes: Sequence[Pane], changes: Sequence[str]
) -> None:
    """Do to the table what the changes say; each has to fit what is there."""
    between: set[tuple[Any, ...]] = set()
    for pane, change in zip(panes, changes, strict=True):
        if change in {"delete", "update_preimage"}:
            assert table.pop(pane.place) == pane.n
            between |= {pane.place} if change == "update_preimage" else set()
        else:
            assert pane.place not in table
            assert (change == "update_postimage") == (pane.place in between)
            between.discard(pane.place)
            table[pane.place] = pane.n
    assert not between


def netted(panes: Sequence[Pane]) -> dict[tuple[Any, ...], int]:
    count = Counter[tuple[tuple[Any, ...], int]]()
    for pane in panes:
        count[pane.place, pane.n] += 1 if pane.op == "+" else -1
    assert set(count.values()) <= {0, 1}
    return {place: n for (place, n), times in count.items() if times}


keys = st.tuples(st.sampled_from(["a", "b", None]), st.sampled_from([0.5, float("nan"), None]))
windows = st.sampled_from([(0, 10), (0, 20), (10, 20), (None, None), (-10, None)])


@st.composite
def retracting(draw: st.DrawFn) -> list[Pane]:
    """Windows that fire, fire again and are merged into others, several at once: first all
    retractions, then what replaces them.
    """
    live: dict[tuple[Any, Any], int] = {}
    rows = []
    for number in range(draw(st.integers(0, 12))):
        taken = draw(st.lists(st.tuples(keys, windows), max_size=3, unique_by=repr))
        fired = draw(st.lists(st.tuples(keys, windows), max_size=3, unique_by=repr))
        gone = [place for place in live if repr(place) in {repr(other) for other in taken + fired}]
        rows += [Pane(place[0], place[1], "-", live.pop(place)) for place in gone]
        for key, window in fired:
            live[key, window] = number
            rows.append(Pane(key, window, "+", number))
    return rows


@given(rows=retracting(), data=st.data())
def test_changes_of_retracting_panes_give_the_netted_table_however_it_is_cut(
    rows: list[Pane], data: st.DataObject
):
    cuts = sorted({0, len(rows), *data.draw(st.lists(st.integers(0, len(rows)), max_size=3))})
    table: dict[tuple[Any, ...], int] = {}
    for start, stop in pairwise(cuts):
        part = rows[start:stop]
        changes = changes_of(part, "retracting")
        assert changes == slow_changes(part, "retracting")
        applied(table, part, changes)
    assert table == netted(rows)


@given(
    fired=st.lists(st.tuples(keys, windows), max_size=20),
    mode=st.sampled_from(["accumulating", "discarding"]),
)
def test_changes_without_retractions(fired: list[tuple[Any, Any]], mode: str):
    index = Counter[str]()
    rows = []
    for number, (key, window) in enumerate(fired):
        rows.append(Pane(key, window, "+", number, index[repr((key, window))]))
        index[repr((key, window))] += 1
    changes = changes_of(rows, mode)
    assert changes == slow_changes(rows, mode)
    table: dict[tuple[Any, ...], list[int]] = {}
    for row, change in zip(rows, changes, strict=True):
        table[row.place] = (
            [row.n] if change == "update_postimage" else [*table.get(row.place, []), row.n]
        )
    last = {row.place: [row.n] for row in rows}
    every = {row.place: [other.n for other in rows if other.place == row.place] for row in rows}
    assert table == (last if mode == "accumulating" else every)


def put(table: dict[Any, int], place: Any, row: dict[str, Any]) -> None:
    """Apply a change to a table; it has to fit what is there."""
    if row["_change_type"] in {"delete", "update_preimage"}:
        assert table.pop(place) == row["n"]
    else:
        assert row["_change_type"] != "insert" or place not in table
        table[place] = row["n"]


def standing(panes: Sequence[tuple[Any, dict[str, Any]]]) -> dict[Any, int]:
    """The current table of panes that are appended: in each place the greatest pane and op."""
    newest = dict(sorted(panes, key=lambda one: (one[1]["pane"], one[1]["op"])))
    return {place: row["n"] for place, row in newest.items() if row["op"] == "+"}


@pytest.mark.parametrize("depth", [1, 2])
@examples(40)
@given(
    seconds=st.lists(st.integers(0, 60), max_size=12),
    cut=st.integers(1, 12),
    mode=st.sampled_from(["accumulating", "retracting"]),
)
def test_the_sessions_of_an_operator_give_its_last_results(
    seconds: list[int], cut: int, mode: str, depth: int
):
    """Behind another operator, windows also lose all their rows, and open again."""
    eager = tg.after_watermark(early=tg.after_count(1), late=tg.after_count(1))
    windows = (
        tg.stream(time="ts", key=["k", "u"], watermark=tg.explicit())
        .window(tg.session("10 seconds"))
        .trigger(eager)
        .allow_lateness("10 minutes")
    )
    if depth == 1:
        first = last = getattr(windows, mode)().aggregate(n=tg.count()).embedded(now=0)
    else:
        behind = getattr(tg.stream(key="k").inherit().trigger(eager), mode)()
        last = behind.aggregate(n=tg.sum("n")).embedded(now=0)
        first = windows.aggregate(n=tg.count()).embedded(downstream=last, now=0)
    table: dict[Any, int] = {}
    panes: list[tuple[Any, dict[str, Any]]] = []
    identity = ["k", "u", *WINDOW] if depth == 1 else ["k", *WINDOW]
    for start in range(0, len(seconds), cut):
        stamps = [second * 1_000_000 for second in seconds[start : start + cut]]
        first.add_messages(
            pa.table(
                {
                    "ts": pa.array(stamps, STAMP),
                    "k": ["a" if stamp % 2_000_000 else "b" for stamp in stamps],
                    "u": [stamp % 3_000_000 for stamp in stamps],
                }
            )
        )
        rows = last.get_result().panes
        first.flush()
        last.flush()
        panes += [(tuple(row[name] for name in identity), row) for row in rows.to_pylist()]
        for row in changelog(rows, identity, mode).to_pylist():
            put(table, tuple(row[name] for name in identity), row)
    assert sum(table.values()) == len(seconds)
    assert table == standing(panes)


def test_several_corrections_of_a_window_are_pairs():
    rows = [
        Pane(("a", 1.0), (0, 10), op, n)
        for op, n in [("+", 1), ("-", 1), ("+", 2), ("-", 2), ("+", 2), ("-", 2)]
    ]
    assert changes_of(rows, "retracting") == [
        "insert",
        "update_preimage",
        "update_postimage",
        "update_preimage",
        "update_postimage",
        "delete",
    ]


def test_only_the_last_of_several_retractions_is_replaced():
    rows = [Pane(("a", 1.0), (0, 10), op, 1) for op in "--+"]
    assert changes_of(rows, "retracting") == ["delete", "update_preimage", "update_postimage"]


def test_a_merge_deletes_what_it_replaces():
    rows = [
        Pane(("a", None), (0, 10), "-", 1),
        Pane(("a", None), (15, 20), "-", 1),
        Pane(("a", None), (0, 20), "+", 3),
    ]
    assert changes_of(rows, "retracting") == ["delete", "delete", "insert"]


def test_a_withdrawn_window_is_deleted_and_inserted_when_it_opens_again():
    """In accumulating mode; within one table the two are an update."""
    place = (("a", None), (0, 10))
    first = [Pane(*place, "+", 1), Pane(*place, "+", 2, 1), Pane(*place, "-", 2, 1)]
    again = Pane(*place, "+", 1, 2, is_first=True)
    assert changes_of(first, "accumulating") == ["insert", "update_postimage", "delete"]
    assert changes_of([again], "accumulating") == ["insert"]
    assert changes_of([*first, again], "accumulating") == [
        "insert",
        "update_postimage",
        "update_preimage",
        "update_postimage",
    ]


def test_the_columns_of_a_change_log():
    found = changelog(
        table_of([Pane(("a", 1.0), (0, 10), "+", 1)]), IDENTITY, "retracting", version=7
    )
    ours = ["_change_type", "_commit_version", "_commit_timestamp", "pane_id"]
    assert (
        found.column_names
        == [name for name in SCHEMA.names if name not in {"op", "pane_id"}] + ours
    )
    assert found.column("_commit_version").to_pylist() == [7]
    assert found.column("_commit_timestamp").equals(found.column("emitted_at"))
    without = changelog(table_of([]).drop_columns(["pane_id"]), IDENTITY, "accumulating")
    assert without.num_rows == 0
    assert without.column_names[-2:] == ["_change_type", "_commit_timestamp"]
    assert without.schema.field("_change_type").type == pa.string()


def test_chunks_and_no_key_columns():
    rows = [Pane((None, None), (0, 10), "-", 1), Pane((None, None), (0, 10), "+", 2)]
    cut = pa.concat_tables([table_of(rows[:1]), table_of([]), table_of(rows[1:])])
    assert changelog(cut, WINDOW, "retracting").column("_change_type").to_pylist() == [
        "update_preimage",
        "update_postimage",
    ]


@pytest.mark.parametrize(
    ("table", "key", "mode", "said"),
    [
        (table_of([]), KEY, "upsert", "accumulating, discarding, retracting"),
        (table_of([]), ["user"], "retracting", "missing: user"),
        (
            table_of([]).drop_columns(["op", "emitted_at"]),
            KEY,
            "discarding",
            "missing: op, emitted_at",
        ),
        (
            table_of([]).append_column("_change_type", pa.array([], pa.string())),
            KEY,
            "discarding",
            "already have _change_type",
        ),
    ],
)
def test_what_is_no_table_of_panes_is_refused(
    table: pa.Table, key: Sequence[str], mode: str, said: str
):
    with pytest.raises(InputError, match=said) as caught:
        changelog(table, key, mode)
    assert "Hint: " in str(caught.value)

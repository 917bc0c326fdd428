"""Sorted runs against a dictionary: what was put is found by identity, by range and by watched
column, also after removals and restarts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from support.examples import examples
from tidegate.kernel.frame import Frame, search_sorted
from tidegate.kernel.storage.keyed_table import KeyedTable
from tidegate.kernel.storage.run_store import FAN, Places
from tidegate.state.memory import MemoryStore

IDENTITY = ("key_hash", "key_check", "start")
Identity = tuple[int, int, int]
Row = tuple[int, str | None]
NONE = 10**9

identities = st.tuples(
    st.integers(0, 4) | st.just(2**64 - 1), st.integers(0, 1), st.integers(-3, 3)
)
contents = st.dictionaries(
    identities, st.tuples(st.integers(-50, 50), st.none() | st.text(max_size=3)), max_size=12
)


def frame(rows: dict[Identity, Row]) -> Frame:
    return Frame.of(
        {
            "key_hash": np.array([i[0] for i in rows], np.uint64),
            "key_check": np.array([i[1] for i in rows], np.uint64),
            "start": np.array([i[2] for i in rows], np.int64),
            "due": np.array([due for due, _ in rows.values()], np.int64),
            "text": pa.array([text for _, text in rows.values()], pa.string()),
        },
        len(rows),
    )


def rows_of(found: Frame | None) -> list[tuple[Identity, Row]]:
    if found is None:
        return []
    names = [*IDENTITY, "due", "text"]
    return [
        ((k, c, s), (due, text))
        for k, c, s, due, text in zip(*(list(found[name].tolist()) for name in names), strict=True)
    ]


def query(wanted: list[Identity]) -> Frame:
    return frame(dict.fromkeys(wanted, (0, None))).select(IDENTITY)


class RunsMachine(RuleBasedStateMachine):
    """The runs and a dictionary go through the same life."""

    @initialize(spills=st.booleans())
    def start(self, spills: bool) -> None:
        self.store, self.spills = MemoryStore(), spills
        self.truth: dict[Identity, Row] = {}
        self.runs = KeyedTable(self.store, "r", IDENTITY, ("due",))

    @rule(rows=contents)
    def put(self, rows: dict[Identity, Row]) -> None:
        """As callers do: what is alive is taken out first."""
        self.take_out(list(rows))
        self.runs.put(frame(rows))
        self.truth.update(rows)

    @rule(rows=contents)
    def rewrite(self, rows: dict[Identity, Row]) -> None:
        self.runs.reset(frame(rows))
        self.truth = dict(rows)

    @rule(wanted=st.lists(identities, unique=True, max_size=8))
    def take_out(self, wanted: list[Identity]) -> None:
        places = self.runs.find(query(wanted))
        assert places.found.tolist() == [identity in self.truth for identity in wanted]
        self.runs.remove(places)
        for identity in wanted:
            self.truth.pop(identity, None)

    @rule(limit=st.integers(-60, 60))
    def take_out_what_is_due(self, limit: int) -> None:
        places = self.runs.select("due", limit)
        due = {identity: row for identity, row in self.truth.items() if row[0] <= limit}
        assert sorted(rows_of(self.runs.take(places)) if len(places.run) else []) == sorted(
            due.items()
        )
        self.runs.remove(places)
        for identity in due:
            del self.truth[identity]

    @rule()
    def compact(self) -> None:
        self.runs.compact()

    @rule()
    def clear(self) -> None:
        self.runs.clear()
        self.truth = {}

    @rule()
    def flush(self) -> None:
        self.manifest()

    @rule()
    def restart(self) -> None:
        manifest = self.manifest()
        self.runs = KeyedTable(self.store, "r", IDENTITY, ("due",))
        self.runs.restore(manifest)

    def manifest(self) -> Any:
        manifest = self.runs.save()
        self.store.commit()
        if self.spills:
            self.runs.release()
        return manifest

    @invariant()
    def holds_the_same(self) -> None:
        if not hasattr(self, "runs"):
            return
        assert len(self.runs) == len(self.truth)
        assert sorted(rows_of(self.runs.all())) == sorted(self.truth.items())
        assert self.runs.runs <= 2 * FAN
        assert self.runs.least("due", NONE) == min(
            (due for due, _ in self.truth.values()), default=NONE
        )
        assert (self.runs.nbytes == 0) == (not self.truth)

    @rule(wanted=st.lists(identities, unique=True, max_size=8))
    def find(self, wanted: list[Identity]) -> None:
        places = self.runs.find(query(wanted))
        assert places.found.tolist() == [identity in self.truth for identity in wanted]
        hits = [identity for identity in wanted if identity in self.truth]
        if hits:
            found = np.flatnonzero(places.found)
            assert rows_of(self.runs.take(Places(places.run[found], places.at[found]))) == [
                (identity, self.truth[identity]) for identity in hits
            ]

    @rule(
        wanted=st.sets(
            st.tuples(st.integers(0, 4) | st.just(2**64 - 1), st.integers(0, 1)), max_size=5
        ),
        width=st.integers(1, 3),
    )
    def ranges(self, wanted: set[tuple[int, int]], width: int) -> None:
        keys = sorted({(k, c, 0)[:width] for k, c in wanted})
        places = self.runs.ranges(query([(*key, 0, 0)[:3] for key in keys]), IDENTITY[:width])
        found = rows_of(self.runs.take(places)) if len(places.run) else []
        assert sorted(found) == sorted(
            (identity, row) for identity, row in self.truth.items() if identity[:width] in keys
        )

    @rule()
    def nothing_stays_behind_in_the_store(self) -> None:
        """The store holds what the manifest names, and no table of a run that is gone."""
        manifest = self.manifest()
        runs = [(f"r/{number:08d}", dead) for number, _, _, _, dead, *_ in manifest["runs"]]
        masks = [f"{name}/marks" for name, dead in runs if dead]
        assert self.store.names("r/") == sorted([*(name for name, _ in runs), *masks])


RunsMachine.TestCase.settings = examples(25, stateful_step_count=25, deadline=None)
TestRuns = RunsMachine.TestCase


def test_a_flush_writes_what_was_touched_and_no_more():
    written: list[str] = []

    class Watched(MemoryStore):
        def put_table(self, name: str, table: pa.Table) -> None:
            written.append(name)
            super().put_table(name, table)

    runs = KeyedTable(Watched(), "r", IDENTITY, ("due",))
    for rows, kind in ((100, 0), (3, 1), (2, 2)):
        runs.put(frame({(k, kind, 0): (k, None) for k in range(rows)}))
        if rows != 3:
            runs.save()
    assert sorted(written) == ["r/00000000", "r/00000002"]
    written.clear()
    runs.save()
    assert written == []
    runs.remove(runs.find(query([(1, 1, 0)])))
    runs.save()
    assert written == ["r/00000002/marks"]


def test_many_small_puts_move_each_row_a_few_times_only():
    moved = 0
    runs = KeyedTable(MemoryStore(), "r", IDENTITY)
    append = runs._append

    def counted(rows: Frame, *marks: Any) -> None:
        nonlocal moved
        moved += len(rows)
        append(rows, *marks)

    runs._append = counted  # type: ignore[method-assign]
    for k in range(500):
        runs.put(frame({(k, 0, 0): (0, None)}))
    assert len(runs) == 500
    assert moved <= 500 * 20, (
        "rewriting everything with every put, or every eighth, would move more"
    )


def test_rows_that_go_at_once_are_not_merged_before():
    runs = KeyedTable(MemoryStore(), "r", IDENTITY, ("due",), goes_by="due")
    for window in range(20):
        runs.put(frame({(k, 0, window): (window, None) for k in range(600)}))
    assert runs.runs == 20
    runs.remove(runs.select("due", 17))
    assert (runs.runs, len(runs)) == (2, 1200)
    for window in range(20, 120):
        runs.put(frame({(k, 0, window): (window, None) for k in range(600)}))
    assert runs.runs < 40, "a lookup searches every run"
    assert len(runs) == 102 * 600


def test_taking_from_nothing_is_an_error():
    nowhere = Places(np.zeros(0, np.int64), np.zeros(0, np.int64))
    with pytest.raises(IndexError, match="no runs"):
        KeyedTable(MemoryStore(), "r", IDENTITY).take(nowhere)


def test_taking_no_rows_keeps_the_columns():
    runs = KeyedTable(MemoryStore(), "r", IDENTITY)
    runs.put(frame({(1, 0, 0): (0, "x")}))
    nothing = runs.take(Places(np.zeros(0, np.int64), np.zeros(0, np.int64)))
    assert (len(nothing), nothing.names) == (0, [*IDENTITY, "due", "text"])


@given(st.sets(identities), st.lists(identities), st.integers(1, 3))
def test_oracle_search_finds_the_first_place_that_is_not_below(stored, asked, width):
    rows = sorted(stored)
    position, hit = search_sorted(
        frame(dict.fromkeys(rows, (0, None))), _asked(asked), IDENTITY[:width]
    )
    assert position.tolist() == [
        sum(row[:width] < wanted[:width] for row in rows) for wanted in asked
    ]
    assert hit.tolist() == [any(row[:width] == wanted[:width] for row in rows) for wanted in asked]


def _asked(wanted: list[Identity]) -> Frame:
    """A query that may ask for the same identity twice."""
    key_hash, key_check, start = ([identity[at] for identity in wanted] for at in range(3))
    return Frame.of(
        {
            "key_hash": np.array(key_hash, np.uint64),
            "key_check": np.array(key_check, np.uint64),
            "start": np.array(start, np.int64),
        },
        len(wanted),
    )

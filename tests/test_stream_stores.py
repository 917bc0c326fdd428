"""The contract of all stores of streams: logs are appended to until they are sealed."""

from __future__ import annotations

import json
import random
import select
import threading
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from support.examples import examples
from support.stream_stores import (
    Child,
    blocks,
    documents,
    everything,
    fresh,
    open_store,
    opened,
    rows,
    through,
    together,
)
from tidegate.errors import InputError, SpecError
from tidegate.streams.store import Appended, Conflict, Store, Swap

REFUSED = (InputError, SpecError)


# Segments


def test_streams_are_those_with_a_cell_or_a_segment(store: Store) -> None:
    assert store.streams() == []
    with_cell, with_segment = fresh(), opened(store)
    version = store.swap(with_cell, Swap("a", 1, 0))
    store.swap("", Swap("a", 1, 0))
    assert store.streams() == sorted([with_cell, with_segment])
    store.swap(with_cell, Swap("a", None, version))
    assert store.streams() == [with_segment]


def test_segments_are_opened_once_and_numbered_without_gaps(store: Store) -> None:
    stream = opened(store, 2)
    empty = store.bounds(stream)
    assert list(empty) == ["0", "1"]
    assert all(first == end for first, end in empty.values())
    store.append(stream, {"1": rows("a")})
    store.open_segments(stream, ["1"])
    store.open_segments(stream, [])
    store.open_segments(stream, ["2", "0", "3"])
    assert list(store.bounds(stream)) == ["0", "1", "2", "3"]
    assert everything(store, stream, "1") == [b"a"]
    for names in (["5"], ["4", "6"], ["x"], ["04"], [""], ["-1"]):
        with pytest.raises(REFUSED, match="segments are"):
            store.open_segments(stream, names)
    store.open_segments(stream, [str(n) for n in range(12)])
    assert list(store.bounds(stream)) == [str(n) for n in range(12)]


def test_what_is_not_there_is_named_beside_what_is(store: Store) -> None:
    stream, nowhere = opened(store, 2), fresh()
    store.append(stream, {"0": rows("a")})
    calls = [
        lambda at, segment: store.append(at, {segment: rows("a")}),
        store.seal,
        lambda at, segment: store.read(at, segment, 0, 1),
        lambda at, segment: store.truncate(at, {segment: 0}),
    ]
    for call in calls:
        with pytest.raises(InputError, match=nowhere):
            call(nowhere, "0")
        with pytest.raises(InputError, match="0, 1"):
            call(stream, "2")
    with pytest.raises(InputError, match=nowhere):
        store.bounds(nowhere)
    with pytest.raises(InputError):
        store.append(stream, {"0": rows("b"), "2": rows("b")})
    assert everything(store, stream, "0") == [b"a"]
    for name in ("", "a b", "a/b"):
        with pytest.raises(REFUSED):
            store.append(name, {"0": rows("a")})


def test_an_append_keeps_its_order_and_tells_where_it_ends(store: Store) -> None:
    stream = opened(store, 3)
    done = store.append(stream, {"0": rows("a", "b", "c"), "2": rows("x")})
    assert set(done.position) == {"0", "2"}
    assert done.refused == {}
    again = store.append(stream, {"2": rows("y", "z"), "1": rows()})
    assert set(again.position) == {"2"}
    assert again.position["2"] > done.position["2"]
    assert [everything(store, stream, segment) for segment in "012"] == [
        [b"a", b"b", b"c"],
        [],
        [b"x", b"y", b"z"],
    ]
    before = [
        value
        for block in through(store, stream, "2", 0, done.position["2"], 10)
        for value in block.rows["value"].to_pylist()
    ]
    assert before == [b"x"]
    assert store.append(stream, {}) == Appended()


def test_events_come_back_with_key_value_offset_and_clock(store: Store) -> None:
    stream = opened(store)
    started = time.time_ns() // 1000
    store.append(stream, {"0": rows("a", "", b"\x00\xff", "d", keys=["k", None, "", "é𝄞\x00"])})
    block = next(blocks(store, stream, "0"))
    assert block.rows.column_names == ["key", "value", "offset", "appended"]
    assert block.rows.schema.types == [pa.string(), pa.binary(), pa.int64(), pa.int64()]
    assert block.rows["key"].to_pylist() == ["k", None, "", "é𝄞\x00"]
    assert block.rows["value"].to_pylist() == [b"a", b"", b"\x00\xff", b"d"]
    offsets = block.rows["offset"].to_pylist()
    assert offsets == sorted(set(offsets))
    assert block.next > offsets[-1]
    # The clock of another machine may differ; the local one does not go back by more than a second.
    for when in block.rows["appended"].to_pylist():
        assert started - 1_000_000 < when < time.time_ns() // 1000 + 1_000_000


def test_large_events(store: Store) -> None:
    stream = opened(store, 2)
    large = random.Random(1).randbytes(5 << 20)
    for whole in (False, True):
        store.append(
            stream,
            {
                "0": rows("small", large, "small", keys=["a", "k" * 1000, None]),
                "1": rows(large[:100]),
            },
            whole=whole,
        )
    assert everything(store, stream, "0") == [b"small", large, b"small"] * 2
    assert everything(store, stream, "0", most=1) == [b"small", large, b"small"] * 2


def test_many_events_in_one_append(store: Store) -> None:
    stream = opened(store)
    values = [f"{n}".encode() * (n % 7) for n in range(100_000)]
    store.append(
        stream, {"0": rows(*values, keys=[None if n % 3 else f"k{n}" for n in range(len(values))])}
    )
    assert everything(store, stream, "0", most=30_000) == values
    keys = [
        key for block in blocks(store, stream, "0", 30_000) for key in block.rows["key"].to_pylist()
    ]
    assert keys[:7] == ["k0", None, None, "k3", None, None, "k6"]


def test_each_row_has_a_key_or_none() -> None:
    with pytest.raises(InputError, match="got 1 keys for 2 events"):
        rows("a", "b", keys=["1"])


def test_rows_that_are_handed_over_in_pieces_are_one_append(store: Store) -> None:
    stream = opened(store, 3)
    pending = store.begin_append(stream)
    assert pending.wait() == Appended()
    pending.add({"0": rows("a", "b", keys=["1", None])})
    pending.add({"0": rows("c"), "1": rows("x"), "2": rows()})
    pending.add({})
    done = pending.wait()
    assert dict(done.refused) == {}
    assert set(done.position) == {"0", "1"}
    assert [everything(store, stream, segment) for segment in "012"] == [
        [b"a", b"b", b"c"],
        [b"x"],
        [],
    ]
    assert {name: list(part.values) for name, part in pending.rows.items() if len(part)} == {
        "0": [b"a", b"b", b"c"],
        "1": [b"x"],
    }


def test_of_pieces_the_last_rows_of_a_sealed_segment_are_refused(store: Store) -> None:
    stream = opened(store, 2)
    with open_store(store.url) as other:
        pending = store.begin_append(stream)
        pending.add({"0": rows("a", "b"), "1": rows("x")})
        other.seal(stream, "0")
        pending.add({"0": rows("c"), "1": rows("y")})
        done = pending.wait()
        taken = everything(other, stream, "0")
        assert taken == [b"a", b"b", b"c"][: len(taken)], "rows are taken in their order"
        assert dict(done.refused) == {"0": 3 - len(taken)}
        assert b"c" not in taken
        assert everything(other, stream, "1") == [b"x", b"y"]


# Sealing and atomicity


def test_a_sealed_segment_refuses_its_rows_and_others_take_theirs(store: Store) -> None:
    stream = opened(store, 2)
    store.append(stream, {"0": rows("a")})
    end = store.seal(stream, "0")
    done = store.append(stream, {"0": rows("b", "c"), "1": rows("d")})
    assert dict(done.refused) == {"0": 2}
    assert set(done.position) == {"1"}
    assert store.seal(stream, "0") == end
    assert [everything(store, stream, segment) for segment in "01"] == [[b"a"], [b"d"]]
    with open_store(store.url) as other:
        assert dict(other.append(stream, {"0": rows("b")}).refused) == {"0": 1}
        assert other.seal(stream, "0") == end


@pytest.mark.parametrize("with_swap", [False, True], ids=["whole", "swap"])
def test_a_sealed_segment_refuses_all_of_a_whole_append(store: Store, with_swap: bool) -> None:
    stream = opened(store, 3)
    store.seal(stream, "1")
    swap = Swap("txn", "committed", 0) if with_swap else None
    done = store.append(
        stream,
        {"0": rows("a"), "1": rows("b", "c"), "2": rows("d")},
        swap=swap,
        whole=not with_swap,
    )
    assert done.position == {}
    assert done.refused["1"] == 2
    assert [everything(store, stream, segment) for segment in "012"] == [[], [], []]
    assert store.cells(stream) == {}


def test_a_conflict_refuses_all_of_an_append(store: Store) -> None:
    stream = opened(store, 2)
    with pytest.raises(Conflict):
        store.append(stream, {"0": rows("a"), "1": rows("b")}, swap=Swap("txn", 1, 3))
    assert [everything(store, stream, segment) for segment in "01"] == [[], []]
    assert (
        store.append(stream, {"0": rows("a"), "1": rows("b")}, swap=Swap("txn", 1, 0)).refused == {}
    )
    with pytest.raises(Conflict):
        store.append(stream, {"0": rows("a"), "1": rows("b")}, swap=Swap("txn", 1, 0))
    cell = store.cell(stream, "txn")
    assert cell.document == 1
    done = store.append(
        stream, {"0": rows("c"), "1": rows("d")}, swap=Swap("txn", None, cell.version)
    )
    assert set(done.position) == {"0", "1"}
    assert store.cells(stream) == {}
    assert [everything(store, stream, segment) for segment in "01"] == [[b"a", b"c"], [b"b", b"d"]]


def test_a_swap_without_rows_is_still_made(store: Store) -> None:
    stream = opened(store)
    store.append(stream, {"0": rows()}, swap=Swap("a", 1, 0))
    store.append(stream, {}, swap=Swap("b", 1, 0))
    assert documents(store, stream) == {"a": 1, "b": 1}


def test_an_empty_part_of_an_append_does_not_ask_whether_its_segment_is_sealed(
    store: Store,
) -> None:
    stream = opened(store, 2)
    store.seal(stream, "1")
    done = store.append(stream, {"0": rows("a"), "1": rows()}, whole=True)
    assert (set(done.position), dict(done.refused)) == ({"0"}, {})


def test_reading_a_sealed_segment_comes_to_an_end(store: Store) -> None:
    stream = opened(store, 2)
    store.append(stream, {"0": rows("a", "b", "c")})
    assert not any(block.ended for block in blocks(store, stream, "0"))
    end = store.seal(stream, "0")
    first = store.read(stream, "0", 0, 1)
    assert (first.rows["value"].to_pylist(), first.ended) == ([b"a"], False)
    at, found = 0, []
    while True:
        block = store.read(stream, "0", at, 2)
        found += block.rows["value"].to_pylist()
        if block.ended:
            break
        assert block.next > at
        at = block.next
    assert (found, block.next) == ([b"a", b"b", b"c"], end)
    last = store.read(stream, "0", end, 2)
    assert (last.rows.num_rows, last.next, last.ended) == (0, end, True)
    nothing = store.seal(stream, "1")
    empty = store.read(stream, "1", store.bounds(stream)["1"][0], 1)
    assert (empty.rows.num_rows, empty.next, empty.ended) == (0, nothing, True)


def test_readers_see_all_of_an_append_or_nothing(store: Store) -> None:
    stream, done = opened(store, 2), threading.Event()

    def write() -> None:
        version = 0
        for n in range(20):
            store.append(
                stream, {"0": rows(f"{n}"), "1": rows(f"{n}", f"{n}")}, swap=Swap("n", n, version)
            )
            version = store.cell(stream, "n").version
        done.set()

    def read() -> None:
        while not done.is_set():
            cell = store.cell(stream, "n")
            later = everything(store, stream, "1")
            still_later = everything(store, stream, "0")
            assert (cell.document + 1 if cell else 0) * 2 <= len(later)
            assert len(later) % 2 == 0
            assert len(later) <= 2 * len(still_later)

    together(write, read)
    assert len(everything(store, stream, "1")) == 40


def test_threads_append_at_once_and_nothing_is_lost(store: Store) -> None:
    stream = opened(store, 2)

    def write(name: str) -> Callable[[], None]:
        def work() -> None:
            for n in range(12):
                store.append(
                    stream, {"0": rows(f"{name}:{n}"), "1": rows(f"{name}:{n}")}, whole=n % 3 == 0
                )

        return work

    together(*[write(name) for name in "abcd"])
    for segment in "01":
        found = everything(store, stream, segment)
        assert len(found) == 48
        for name in "abcd":
            assert [value for value in found if value.startswith(name.encode())] == [
                f"{name}:{n}".encode() for n in range(12)
            ]


def test_what_is_appended_while_a_segment_is_sealed_is_taken_or_refused(store: Store) -> None:
    stream, taken, sealed = opened(store), [], threading.Event()

    def write() -> None:
        n = 0
        while not (done := store.append(stream, {"0": rows(f"{n}", f"{n}'")})).refused:
            taken.append(n)
            n += 1
            sealed.set()
        sealed.set()
        # Refused rows are always the last ones.
        if done.refused["0"] == 1:
            taken.append(n)

    def seal() -> None:
        sealed.wait()
        store.seal(stream, "0")

    together(write, seal)
    found = everything(store, stream, "0")
    wanted = [value for n in taken for value in (f"{n}".encode(), f"{n}'".encode())]
    assert found in (wanted, wanted[:-1])


# Reading


def test_a_read_takes_what_is_there_and_not_more_than_asked(store: Store) -> None:
    stream = opened(store)
    nothing = store.read(stream, "0", 0, 5)
    assert (nothing.rows.num_rows, nothing.next, nothing.ended) == (0, 0, False)
    assert nothing.rows.column_names == ["key", "value", "offset", "appended"]
    store.append(stream, {"0": rows(*"abcde")})
    offsets = [
        offset
        for block in blocks(store, stream, "0")
        for offset in block.rows["offset"].to_pylist()
    ]
    two = store.read(stream, "0", offsets[1], 2)
    assert two.rows["value"].to_pylist() == [b"b", b"c"]
    assert offsets[2] < two.next <= offsets[3]
    limited = store.read(stream, "0", offsets[1], 10, before=offsets[3])
    assert limited.rows["value"].to_pylist() == [b"b", b"c"]
    assert limited.next <= offsets[3]
    for before in (offsets[1], offsets[0]):
        block = store.read(stream, "0", offsets[1], 10, before=before)
        assert (block.rows.num_rows, block.next) == (0, offsets[1])
    end = store.bounds(stream)["0"][1]
    last = store.read(stream, "0", end, 5)
    assert (last.rows.num_rows, last.next) == (0, end)
    for offset, most in ((0, 0), (0, -1), (-1, 1)):
        with pytest.raises(InputError):
            store.read(stream, "0", offset, most)


events = st.lists(st.tuples(st.none() | st.text(max_size=8), st.binary(max_size=20)), max_size=6)
steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("append"),
            st.dictionaries(st.sampled_from("01"), events, min_size=1),
            st.booleans(),
        ),
        st.tuples(
            st.just("read"),
            st.sampled_from("01"),
            st.integers(0, 30),
            st.integers(1, 12),
            st.none() | st.integers(0, 30),
        ),
        st.tuples(st.just("truncate"), st.sampled_from("01"), st.integers(0, 30)),
        st.tuples(st.just("seal"), st.sampled_from("01")),
    ),
    max_size=12,
)


class Model:
    """The segments of a stream as plain lists, beside the store."""

    def __init__(self, store: Store) -> None:
        self.store, self.stream = store, opened(store, 2)
        self.events: dict[str, list[tuple[str | None, bytes]]] = {"0": [], "1": []}
        self.offsets: dict[str, list[int]] = {"0": [], "1": []}
        self.first = {"0": 0, "1": 0}
        self.sealed: set[str] = set()

    def append(self, parts: dict[str, list[tuple[str | None, bytes]]], whole: bool) -> None:
        tables = {
            name: rows(*(value for _, value in part), keys=[key for key, _ in part])
            for name, part in parts.items()
        }
        done = self.store.append(self.stream, tables, whole=whole)
        refused = {name for name, part in parts.items() if part and name in self.sealed}
        taken = (
            {name for name, part in parts.items() if part} - refused
            if not (whole and refused)
            else set()
        )
        assert set(done.position) == taken
        assert refused <= set(done.refused)
        for name in taken:
            new = [
                *through(self.store, self.stream, name, self.end(name), done.position[name], 1000)
            ]
            self.events[name] += parts[name]
            self.offsets[name] += [
                offset for block in new for offset in block.rows["offset"].to_pylist()
            ]
            assert len(self.offsets[name]) == len(self.events[name])
            assert self.offsets[name] == sorted(set(self.offsets[name]))
            assert self.offsets[name][-1] < done.position[name]

    def end(self, name: str) -> int:
        return max(self.first[name], self.offsets[name][-1] + 1 if self.offsets[name] else 0)

    def place(self, name: str, index: int) -> int:
        """The offset of an event, or the end."""
        known = self.offsets[name]
        return known[index] if index < len(known) else self.store.bounds(self.stream)[name][1]

    def read(self, name: str, index: int, most: int, last: int | None) -> None:
        start, before = self.place(name, index), None if last is None else self.place(name, last)
        if start < self.first[name]:
            with pytest.raises(InputError, match="truncated"):
                self.store.read(self.stream, name, start, most, before=before)
            return
        wanted = [
            i
            for i, offset in enumerate(self.offsets[name])
            if offset >= start and (before is None or offset < before)
        ]
        found, at = [], start
        while True:
            block = self.store.read(self.stream, name, at, most, before=before)
            assert block.rows.num_rows <= most
            assert block.next >= at
            assert before is None or block.next <= max(before, start)
            found += list(
                zip(
                    *(block.rows[column].to_pylist() for column in ("offset", "key", "value")),
                    strict=True,
                )
            )
            assert not found or block.next > found[-1][0]
            if block.next == at or block.ended:
                break
            at = block.next
        assert found == [(self.offsets[name][i], *self.events[name][i]) for i in wanted]
        assert block.ended <= (name in self.sealed)

    def truncate(self, name: str, index: int) -> None:
        start = self.place(name, index)
        self.store.truncate(self.stream, {name: start})
        self.first[name] = max(self.first[name], start)
        assert self.store.bounds(self.stream)[name][0] == self.first[name]

    def seal(self, name: str) -> None:
        self.store.seal(self.stream, name)
        self.sealed.add(name)

    def check(self) -> None:
        for name, offsets in self.offsets.items():
            left = [
                value
                for offset, (_, value) in zip(offsets, self.events[name], strict=True)
                if offset >= self.first[name]
            ]
            assert everything(self.store, self.stream, name, 5) == left


@examples(
    20,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(steps=steps)
def test_logs_are_as_plain_lists(store: Store, steps: list[tuple[Any, ...]]) -> None:
    model = Model(store)
    for name, *arguments in steps:
        getattr(model, name)(*arguments)
    model.check()


# Truncating and dropping


def test_what_was_truncated_cannot_be_read(store: Store) -> None:
    stream = opened(store, 2)
    store.append(stream, {"0": rows(*"abc"), "1": rows("x")})
    store.append(stream, {"0": rows(*"def")})
    offsets = [
        offset
        for block in blocks(store, stream, "0")
        for offset in block.rows["offset"].to_pylist()
    ]
    before = store.bounds(stream)
    store.truncate(stream, {"0": offsets[4]})
    assert store.bounds(stream) == {"0": (offsets[4], before["0"][1]), "1": before["1"]}
    assert [everything(store, stream, segment) for segment in "01"] == [[b"e", b"f"], [b"x"]]
    with open_store(store.url) as other:
        for offset in offsets[:4]:
            with pytest.raises(InputError, match=f"{offsets[4]}"):
                other.read(stream, "0", offset, 1)
    store.truncate(stream, {"0": offsets[2]})
    assert store.bounds(stream)["0"][0] == offsets[4]
    end = before["0"][1]
    store.truncate(stream, {"0": end})
    assert store.bounds(stream)["0"] == (end, end)
    store.append(stream, {"0": rows("g")})
    assert everything(store, stream, "0") == [b"g"]
    with pytest.raises(InputError):
        store.truncate(stream, {"0": store.bounds(stream)["0"][1] + 100})
    assert everything(store, stream, "0") == [b"g"]


def test_a_sealed_segment_can_be_truncated_to_its_end(store: Store) -> None:
    stream = opened(store)
    store.append(stream, {"0": rows("a", "b")})
    end = store.seal(stream, "0")
    store.truncate(stream, {"0": end})
    block = store.read(stream, "0", end, 1)
    assert (block.rows.num_rows, block.ended) == (0, True)
    assert store.seal(stream, "0") == end
    assert dict(store.append(stream, {"0": rows("c")}).refused) == {"0": 1}


def test_a_dropped_stream_is_gone_and_can_be_made_again(store: Store) -> None:
    stream, other = opened(store, 2), opened(store)
    store.append(stream, {"0": rows("a"), "1": rows("b")})
    store.append(other, {"0": rows("c")})
    version = store.swap(stream, Swap("a", 1, 0))
    store.swap("", Swap("a", 1, 0))
    store.drop(stream)
    assert store.streams() == [other]
    assert store.cells(stream) == {}
    with pytest.raises(InputError):
        store.read(stream, "0", 0, 1)
    store.drop(stream)
    store.open_segments(stream, ["0"])
    assert everything(store, stream, "0") == []
    assert list(store.bounds(stream)) == ["0"]
    store.append(stream, {"0": rows("d")})
    assert store.swap(stream, Swap("a", 1, 0)) != version
    assert [everything(store, name, "0") for name in (stream, other)] == [[b"d"], [b"c"]]
    assert documents(store, "") == {"a": 1}


# Other processes


def test_another_process_sees_all_that_was_closed(store_url: str) -> None:
    with open_store(store_url) as store:
        stream = opened(store, 2)
        store.append(stream, {"0": rows("a", b"\x00")})
        store.append(stream, {"1": rows("b")}, whole=True)
        version = store.swap(stream, Swap("k", {"x": "é"}, 0))
        store.seal(stream, "0")
    with Child("shows", store_url, stream) as child:
        seen = json.loads(child.hear())
        child.end()
    assert seen == {
        "streams": [stream],
        "cells": {"k": [{"x": "é"}, version]},
        "segments": {"0": ["61", "00"], "1": ["62"]},
    }
    with open_store(store_url) as again:
        assert dict(again.append(stream, {"0": rows("c"), "1": rows("c")}).refused) == {"0": 1}
        assert everything(again, stream, "1") == [b"b", b"c"]


def test_a_process_that_is_killed_loses_nothing_that_it_was_told_is_there(store: Store) -> None:
    dice = random.Random(7)
    stream = opened(store, 2)
    acknowledged: dict[str, int] = {}
    with Child("appends", store.url, stream, "survivor", "0,1") as survivor:
        assert survivor.hear() == "ready"
        for turn in range(4):
            with Child("appends", store.url, stream, f"killed{turn}", "0,1") as child:
                lines = [child.hear() for _ in range(1 + dice.randrange(5))]
                select.select([], [], [], dice.random() * 0.01)
                lines += child.kill()
            acknowledged[f"killed{turn}"] = len(lines) - 1
            check_appends(store, stream, acknowledged)
        acknowledged["survivor"] = len(survivor.kill())
    found = check_appends(store, stream, acknowledged)
    assert found["survivor"] > 1
    store.append(stream, {"0": rows("after:0:0"), "1": rows("after:0:0")}, whole=True)
    assert everything(store, stream, "0")[-1] == b"after:0:0"


def check_appends(store: Store, stream: str, acknowledged: dict[str, int]) -> dict[str, int]:
    """The appends of each process: all acknowledged ones, and at most one more.

    Each is whole and in order.
    """
    deadline = time.monotonic() + 600
    while True:
        ones, others = (appends_in(everything(store, stream, segment)) for segment in "01")
        for name, count in acknowledged.items():
            assert {ones.get(name, 0), others.get(name, 0)} <= {count, count + 1}
        # An append of a killed process may be committed after its death; then it is in both
        # segments or in none.
        if all(ones.get(name) == others.get(name) for name in acknowledged):
            return ones
        assert time.monotonic() < deadline


def appends_in(values: list[bytes]) -> dict[str, int]:
    by_name: dict[str, list[bytes]] = {}
    for value in values:
        by_name.setdefault(value.split(b":")[0].decode(), []).append(value)
    for name, mine in by_name.items():
        assert len(mine) % 5 == 0
        assert mine == [f"{name}:{n}:{i}".encode() for n in range(len(mine) // 5) for i in range(5)]
    return {name: len(mine) // 5 for name, mine in by_name.items()}

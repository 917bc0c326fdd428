"""Cells of every store of streams change only under a caller that knows their version."""

from __future__ import annotations

import threading
from contextlib import suppress

import pytest

from support.stream_stores import (
    Child,
    documents,
    everything,
    fresh,
    open_store,
    opened,
    rows,
    together,
)
from tidegate.errors import InputError, SpecError
from tidegate.streams.store import Conflict, Store, Swap

REFUSED = (InputError, SpecError)


# Cells


def test_a_cell_is_made_changed_and_taken_away(store: Store) -> None:
    stream = fresh()
    assert store.cells(stream) == {}
    assert store.cell(stream, "a") is None
    first = store.swap(stream, Swap("a", {"x": 1}, 0))
    assert first > 0
    assert store.cell(stream, "a").document == {"x": 1}
    assert store.cell(stream, "a").version == first
    second = store.swap(stream, Swap("a", [2], first))
    assert second > first
    assert store.cells(stream)["a"].document == [2]
    store.swap(stream, Swap("a", None, second))
    assert store.cells(stream) == {}


def test_a_change_of_an_old_version_is_a_conflict_and_changes_nothing(store: Store) -> None:
    stream = fresh()
    with pytest.raises(Conflict):
        store.swap(stream, Swap("a", 1, 7))
    version = store.swap(stream, Swap("a", 1, 0))
    for wrong in (0, version + 1, version - 1):
        for document in (2, None):
            with pytest.raises(Conflict):
                store.swap(stream, Swap("a", document, wrong))
    assert documents(store, stream) == {"a": 1}
    assert store.cell(stream, "a").version == version


def test_a_cell_that_is_made_again_has_no_version_that_it_had_before(store: Store) -> None:
    stream = fresh()
    seen = set()
    for turn in range(3):
        version = store.swap(stream, Swap("a", turn, 0))
        assert version not in seen
        seen.add(version)
        seen.add(store.swap(stream, Swap("a", None, version)))
    version = store.swap(stream, Swap("a", 9, 0))
    for old in seen:
        with pytest.raises(Conflict):
            store.swap(stream, Swap("a", 10, old))
    assert store.cell(stream, "a").version == version


def test_cells_are_found_by_prefix_in_the_order_of_keys(store: Store) -> None:
    stream = fresh()
    keys = [
        "mark/b",
        "mark/a",
        "mark",
        "mark-1",
        "mark.x",
        "watermark#000000000002",
        "watermark#000000000001",
        "A",
        "mark/A",
        "z_9",
    ]
    for key in keys:
        store.swap(stream, Swap(key, {"key": key}, 0))
    assert list(store.cells(stream)) == sorted(keys)
    assert list(store.cells(stream, "mark/")) == ["mark/A", "mark/a", "mark/b"]
    assert list(store.cells(stream, "mark")) == sorted(
        key for key in keys if key.startswith("mark")
    )
    assert list(store.cells(stream, "watermark#")) == [
        "watermark#000000000001",
        "watermark#000000000002",
    ]
    assert store.cells(stream, "nothing") == {}
    assert store.cell(stream, "mar") is None
    assert documents(store, stream) == {key: {"key": key} for key in sorted(keys)}


def test_cells_belong_to_a_stream_or_to_none(store: Store) -> None:
    one, other = fresh(), fresh()
    for name in (one, other, ""):
        store.swap(name, Swap("a", name, 0))
    assert [documents(store, name) for name in (one, other, "")] == [
        {"a": one},
        {"a": other},
        {"a": ""},
    ]
    assert store.streams() == sorted([one, other])


def test_a_change_that_no_store_takes(store: Store) -> None:
    stream = fresh()
    with pytest.raises(REFUSED, match="version"):
        store.swap(stream, Swap("a", 1, -1))
    for key in ("", "a b", "ä", "a:b", "a\n", "a*"):
        with pytest.raises(REFUSED, match="key"):
            store.swap(stream, Swap(key, 1, 0))
    for name in ("a b", "a/b", "ä", "x" * 201, ".."):
        with pytest.raises(REFUSED, match="a stream"):
            store.swap(name, Swap("a", 1, 0))
    for document in ({1, 2}, float("nan"), b"x"):
        with pytest.raises(InputError, match="is not JSON"):
            store.swap(stream, Swap("a", document, 0))
    assert store.streams() == []


def test_documents_come_back_as_they_were(store: Store) -> None:
    stream = fresh()
    whole = {
        "text": "é𝄞\x00\n\"'",
        "empty": "",
        "none": None,
        "n": [0, -(2**62), 1.5, True, []],
        "": {"x": [{"y": [None]}]},
        "large": "y" * 200_000,
    }
    store.swap(stream, Swap("a", whole, 0))
    whole["n"].append("later")
    found = documents(store, stream)["a"]
    assert found == {**whole, "n": whole["n"][:-1]}
    for version, plain in enumerate([0, False, "", [], {}]):
        store.swap(stream, Swap(f"plain{version}", plain, 0))
    assert list(documents(store, stream, "plain").values()) == [0, False, "", [], {}]


def test_what_was_returned_from_is_seen_by_others(store: Store) -> None:
    stream = opened(store)
    with open_store(store.url) as other:
        assert other.url == store.url
        for turn in range(10):
            version = store.swap(
                stream, Swap("a", turn, getattr(other.cell(stream, "a"), "version", 0))
            )
            assert other.cell(stream, "a").version == version
            end = store.append(stream, {"0": rows(f"{turn}")}).position["0"]
            assert other.bounds(stream)["0"] == store.bounds(stream)["0"]
            assert other.bounds(stream)["0"][1] >= end
            assert everything(other, stream, "0")[-1] == f"{turn}".encode()


def test_of_two_threads_one_wins(store: Store) -> None:
    stream, version = fresh(), 0
    for _ in range(10):
        won: list[int] = []

        def change(expected: int = version, won: list[int] = won) -> None:
            with suppress(Conflict):
                won.append(store.swap(stream, Swap("a", threading.get_ident(), expected)))

        together(change, change)
        assert len(won) == 1
        version = won[0]
        assert store.cell(stream, "a").version == version


def test_of_two_processes_one_wins(store: Store) -> None:
    stream, version = fresh(), 0
    with (
        Child("swaps", store.url, stream, "a", "one") as one,
        Child("swaps", store.url, stream, "a", "other") as other,
    ):
        assert [one.hear(), other.hear()] == ["ready", "ready"]
        for _ in range(15):
            for child in (one, other):
                child.tell(str(version))
            lines = [one.hear(), other.hear()]
            assert sorted(word == "conflict" for word in lines) == [False, True]
            winner = 0 if lines[1] == "conflict" else 1
            version = int(lines[winner])
            cell = store.cell(stream, "a")
            assert (cell.version, cell.document) == (version, {"by": ("one", "other")[winner]})
        one.end()
        other.end()


def test_nothing_is_lost_when_many_threads_count(store: Store) -> None:
    stream = fresh()

    def count() -> None:
        for _ in range(8):
            while True:
                cell = store.cell(stream, "n")
                try:
                    store.swap(
                        stream,
                        Swap("n", cell.document + 1 if cell else 1, cell.version if cell else 0),
                    )
                    break
                except Conflict:
                    continue

    together(*[count] * 4)
    assert store.cell(stream, "n").document == 32


@pytest.mark.parametrize("keys", [("p#a", "p#b"), ("a", "b")])
def test_cells_are_read_as_of_one_moment(store: Store, keys: tuple[str, str]) -> None:
    stream, done = fresh(), threading.Event()
    versions = [store.swap(stream, Swap(key, 0, 0)) for key in keys]

    def write() -> None:
        try:
            for n in range(1, 30):
                for place, key in enumerate(keys):
                    versions[place] = store.swap(stream, Swap(key, n, versions[place]))
        finally:
            done.set()

    def read() -> None:
        while not done.is_set():
            first, second = documents(store, stream).values()
            assert first - second in {0, 1}, "one cell is of another moment than the other"

    together(write, read)
    assert documents(store, stream) == dict.fromkeys(keys, 29)

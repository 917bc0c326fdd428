"""The short form of the fuzzing: crashes of the past, valid inputs, and mutations of them."""

from __future__ import annotations

import pytest

from fuzz.mutations import mutated
from fuzz.target import CORPUS
from fuzz.targets import TARGETS

SEED, COUNT = 7, 60


@pytest.mark.parametrize("name", TARGETS)
def test_inputs_are_decoded_or_refused(name: str) -> None:
    target = TARGETS[name]
    seeds = list(target.seeds())
    for data in (*seeds, b"", *mutated(seeds, SEED, COUNT)):
        try:
            target.check(data)
        except BaseException:
            print(f"the input of `{name}` that failed: {data!r}")
            raise


@pytest.mark.parametrize("name", TARGETS)
def test_what_crashed_once_is_refused(name: str) -> None:
    for path in TARGETS[name].crashes:
        TARGETS[name].check(path.read_bytes())


def test_each_crash_belongs_to_a_target() -> None:
    assert {path.name for path in CORPUS.iterdir() if path.is_dir()} <= TARGETS.keys()

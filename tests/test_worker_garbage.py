"""Workers exclude the objects of modules from garbage collection, and nothing else does."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest
from pyspark import TaskContext

from tidegate.spark.tasks import garbage


@pytest.fixture(autouse=True)
def unfrozen(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(garbage, "_frozen_modules", 0)
    yield
    gc.unfreeze()


def test_a_driver_collects_as_before() -> None:
    before = gc.get_freeze_count()
    garbage.exclude_modules()
    assert gc.get_freeze_count() == before


def test_a_worker_excludes_its_modules_once_and_again_after_an_import(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(TaskContext, "get", classmethod(lambda _: object()))
    garbage.exclude_modules()
    excluded = gc.get_freeze_count()
    assert excluded > 10_000
    kept = [[] for _ in range(100)]
    garbage.exclude_modules()
    assert gc.get_freeze_count() <= excluded, "no module was imported"
    assert any(one is kept for one in gc.get_objects())
    monkeypatch.setitem(sys.modules, "tidegate_imported_later", ModuleType("later"))
    garbage.exclude_modules()
    assert not any(one is kept for one in gc.get_objects())


def test_collections_pause_and_resume_as_before() -> None:
    with garbage.paused_collections():
        assert not gc.isenabled()
        with garbage.paused_collections():
            pass
        assert not gc.isenabled(), "they were paused before"
    assert gc.isenabled()


def test_collections_resume_after_an_error() -> None:
    with pytest.raises(ValueError, match="stop"), garbage.paused_collections():
        raise ValueError("stop")
    assert gc.isenabled()

"""The cost model: what is measured, that a fit finds costs that are known, and what is drawn."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench import main
from bench.scaling.fit import fit, nonnegative_least_squares
from bench.scaling.growth import TITLES, draw
from bench.scaling.model import Deployment, Model
from bench.scaling.samples import EDGE, HEADERS, OPERATOR, SPARK, STATE, Sample

COSTS = {"batches": 2e-3, "rows": 3e-8, "cells": 0.0, "panes": 1e-6}
SMALL = ["--embedded", "--events", "200"]


def sample(counts: dict[str, float], part: str = OPERATOR, **more: Any) -> Sample:
    seconds = sum(COSTS.get(name, 1e-4) * many for name, many in counts.items())
    return Sample(part, "rows", counts.get("rows", 0.0), seconds, counts, **more)


def test_a_fit_finds_the_costs_of_small_and_large_batches() -> None:
    base = {"batches": 1.0, "rows": 1e5, "cells": 1e4, "panes": 1e3}
    varied = [sample({**base, name: base[name] * times}) for name in base for times in (1, 10, 100)]
    found = fit(OPERATOR, [*COSTS], varied)
    assert found.error < 0.01
    for name, cost in COSTS.items():
        assert found.seconds[name] == pytest.approx(cost, rel=0.02, abs=1e-10)
    assert found.predict(base) == pytest.approx(sample(base).seconds, rel=0.02)


def test_no_cost_is_negative() -> None:
    random = np.random.default_rng(3)
    matrix = random.random((30, 4))
    wanted = matrix @ np.array([1.0, -2.0, 0.0, 3.0])
    found = nonnegative_least_squares(matrix, wanted)
    assert (found >= 0).all()
    # No other choice that is not negative is nearer.
    best = np.linalg.norm(matrix @ found - wanted)
    for _ in range(200):
        other = np.maximum(found + random.normal(0, 0.05, 4), 0)
        assert np.linalg.norm(matrix @ other - wanted) >= best - 1e-6


def test_a_balanced_deployment_has_as_many_shards_as_cores() -> None:
    parts = {
        EDGE: {"tasks": 1.0, "rows": 1e5, "shards": 10.0},
        HEADERS: {"tasks": 10.0, "sources": 100.0},
        OPERATOR: {"batches": 1.0, "rows": 1e5},
        STATE: {"batches": 1.0, "bytes": 1e5},
        SPARK: {"batches": 1.0, "tasks": 8.0, "shards": 8.0},
    }
    given = [
        sample({**counts, name: counts[name] * times}, part)
        for part, counts in parts.items()
        for name in counts
        for times in (1, 5)
    ]
    model = Model.fitted(given)
    deployment = Deployment("few", rate=1e6, partitions=100, keys=1_000)
    found = model.balanced(deployment)
    assert found.deployment.tasks == found.deployment.shards >= math.floor(found.cores)
    assert found.cores < model.predict(deployment).cores


def test_the_costs_and_predictions_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scaling", *SMALL, "--json"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    parts = {one["part"] for one in found if one["name"] == "cost"}
    assert parts == {EDGE, HEADERS, OPERATOR, STATE}
    assert all(one["seconds"] > 0 for one in found if one["name"] == "sample")
    predictions = [one for one in found if one["name"] == "prediction"]
    assert all(math.isfinite(one["cores"]) and one["cores"] > 0 for one in predictions)
    assert len(predictions) == 4


def test_growth_has_a_line_for_each_value_and_a_picture(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    picture = tmp_path / "images" / "growth.svg"
    assert main(["growth", *SMALL, "--plot", str(picture)]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split()[:2] == ["factor", "value"]
    assert {line.split()[0] for line in lines} == {"keys", "hot", "late", "firings"}
    text = picture.read_text("utf-8")
    assert all(title in text for title in TITLES.values())


def test_the_same_numbers_give_the_same_picture(tmp_path: Path) -> None:
    counts = {"rows": 100.0, "tasks": 2.0}
    given = [sample(counts), sample(counts, SPARK, wall=2.0)]
    for name in ("a.svg", "b.svg"):
        draw(given, tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()

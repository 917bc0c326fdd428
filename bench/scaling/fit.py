"""Least squares with coefficients that are not negative, over samples of very different sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bench.scaling.samples import Sample

_STEPS = 20_000


@dataclass(frozen=True)
class Fit:
    """The cost of each term of a part."""

    part: str
    seconds: Mapping[str, float]
    """Processor seconds of one of each."""
    error: float
    """The median relative error over the samples."""
    samples: int

    def predict(self, counts: Mapping[str, float]) -> float:
        """Processor seconds of these counts."""
        return sum(self.seconds.get(name, 0.0) * many for name, many in counts.items())


def fit(part: str, terms: Sequence[str], samples: Sequence[Sample]) -> Fit:
    """The costs of terms that explain samples best, by their relative errors."""
    chosen = [sample for sample in samples if sample.part == part]
    seconds = np.array([sample.seconds for sample in chosen])
    counts = np.array([[sample.counts.get(term, 0.0) for term in terms] for sample in chosen])
    # Divided by the seconds, a small sample counts as much as a large one.
    found = nonnegative_least_squares(counts / seconds[:, None], np.ones(len(chosen)))
    errors = np.abs(counts @ found / seconds - 1)
    return Fit(
        part, dict(zip(terms, found.tolist(), strict=True)), float(np.median(errors)), len(chosen)
    )


def nonnegative_least_squares(matrix: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The x >= 0 with the least `|matrix @ x - wanted|`, by coordinate descent.

    Each step sets one coefficient to its best value for the others.
    """
    scale = np.linalg.norm(matrix, axis=0)
    scale[scale == 0] = 1
    scaled = matrix / scale
    gram, target = scaled.T @ scaled, scaled.T @ wanted
    found = np.zeros(matrix.shape[1])
    for step in range(_STEPS):
        n = step % len(found)
        if gram[n, n]:
            found[n] = max(0.0, found[n] + (target[n] - gram[n] @ found) / gram[n, n])
    return found / scale

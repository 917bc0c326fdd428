"""The model of a batch: costs fitted to samples, and what they predict for a deployment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bench.scaling.fit import Fit, fit
from bench.scaling.samples import EDGE, HEADERS, OPERATOR, SPARK, STATE, Sample

TERMS: Mapping[str, tuple[str, ...]] = {
    EDGE: ("tasks", "rows", "partials", "shards", "header_bytes"),
    HEADERS: ("tasks", "sources"),
    OPERATOR: ("batches", "rows", "cells", "panes", "sources"),
    STATE: ("batches", "bytes"),
    SPARK: ("batches", "tasks", "shards"),
}
"""What the cost of each part depends on."""
MESSAGE = 1.5e-6
"""Processor seconds to receive and decode a JSON message of 150 bytes (bench/RESULTS.md)."""
HEADER_BYTES, SOURCE_BYTES = 400, 23
"""The size of a header: the same in every one, and for each source."""
CELL_BYTES, STATE_SOURCE_BYTES = 6, 70
"""The size of saved state for each cell that changed, and for each source."""
POSITION_BYTES = 11
"""The size of the position of a source in the offset log."""
BUSY = 0.7
"""The share of the processor time that may be used."""


@dataclass(frozen=True)
class Deployment:
    """A query: tumbling minutes over a topic whose partitions hold different keys."""

    name: str
    rate: float = 10e6
    """Events per second."""
    interval: float = 10.0
    """Seconds between batches."""
    partitions: int = 10_000
    tasks: int = 10_000
    shards: int = 1_000
    keys: int = 10_000_000

    @property
    def rows(self) -> float:
        """Rows of a batch."""
        return self.rate * self.interval

    @property
    def windows(self) -> float:
        """Windows that a batch touches."""
        return 1 + self.interval / 60


@dataclass(frozen=True)
class Prediction:
    """What a batch of a deployment costs."""

    deployment: Deployment
    seconds: Mapping[str, float]
    """Processor seconds by part."""
    header_bytes: float
    state_bytes: float
    offset_bytes: float

    @property
    def total(self) -> float:
        """Processor seconds of a batch."""
        return sum(self.seconds.values())

    @property
    def cores(self) -> float:
        """The number of cores that keep up."""
        return self.total / self.deployment.interval / BUSY

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "name": self.deployment.name,
            "tasks": self.deployment.tasks,
            "shards": self.deployment.shards,
            "processor_seconds": dict(self.seconds),
            "cores": self.cores,
            "header_bytes": self.header_bytes,
            "state_bytes": self.state_bytes,
            "offset_bytes": self.offset_bytes,
        }


@dataclass(frozen=True)
class Model:
    """The fitted costs of all parts."""

    fits: Mapping[str, Fit]

    @classmethod
    def fitted(cls, samples: Sequence[Sample]) -> Model:
        """The model of the parts that have samples."""
        parts = {sample.part for sample in samples}
        return cls({part: fit(part, TERMS[part], samples) for part in TERMS if part in parts})

    def predict(self, given: Deployment) -> Prediction:
        """The cost of a batch."""
        rows, keys = given.rows / given.tasks, given.keys / given.tasks
        partials = min(rows, keys * given.windows)
        # Rows travel as they are where that does not halve them.
        combined = partials if partials <= rows / 2 else 0.0
        header = HEADER_BYTES + SOURCE_BYTES * given.partitions / given.tasks
        arriving = (combined or rows) * given.tasks / given.shards
        cells = min(given.rows, given.keys * given.windows) / given.shards
        panes = given.keys * given.interval / 60 / given.shards
        state = CELL_BYTES * cells + STATE_SOURCE_BYTES * given.partitions
        edge = {
            "tasks": 1.0,
            "rows": rows,
            "partials": combined,
            "shards": given.shards,
            "header_bytes": header * given.shards,
        }
        operator = {
            "batches": 1.0,
            "rows": arriving,
            "cells": cells,
            "panes": panes,
            "sources": given.partitions,
        }
        headers = {"tasks": given.tasks, "sources": given.partitions}
        fixed = {"batches": 1.0, "tasks": given.tasks, "shards": given.shards}
        seconds = {
            "messages": given.rows * MESSAGE,
            EDGE: given.tasks * self._cost(EDGE, edge),
            HEADERS: given.shards * self._cost(HEADERS, headers),
            OPERATOR: given.shards * self._cost(OPERATOR, operator),
            STATE: given.shards * self._cost(STATE, {"batches": 1.0, "bytes": state}),
            SPARK: self._cost(SPARK, fixed),
        }
        return Prediction(
            given,
            seconds,
            header * given.tasks * given.shards,
            state * given.shards,
            POSITION_BYTES * given.partitions,
        )

    def balanced(self, given: Deployment) -> Prediction:
        """The prediction with as many tasks and shards as cores that keep up."""
        cores = 1
        for _ in range(50):
            sized = replace(given, name="tasks = shards = cores", tasks=cores, shards=cores)
            found = self.predict(sized)
            if found.cores <= cores:
                return found
            cores = max(cores + 1, round((cores + found.cores) / 2))
        return found

    def _cost(self, part: str, counts: Mapping[str, float]) -> float:
        return self.fits[part].predict(counts) if part in self.fits else 0.0


DEPLOYMENTS = (
    Deployment("a task per partition"),
    Deployment("partitions grouped into 512 tasks", tasks=512),
    Deployment("as many shards as tasks", tasks=512, shards=512),
)
"""What the report predicts, before the balanced deployment."""

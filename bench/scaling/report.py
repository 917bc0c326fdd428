"""What `python -m bench scaling` prints: the costs of the model, and its predictions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from bench.scaling.edges import edge_samples, header_samples
from bench.scaling.model import DEPLOYMENTS, Model, Prediction
from bench.scaling.operators import growth_settings, measure, model_settings, scaled
from bench.scaling.samples import Sample
from bench.scaling.spark_runs import TASKS_AND_SHARDS
from bench.scaling.spark_runs import measure as measure_spark

_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


def samples(share: float, memory: str, *, embedded: bool) -> Iterator[Sample]:
    """The samples of all parts, or of those without Spark."""
    for factor, value, setting in (*model_settings(), *growth_settings()):
        # A trigger that may fire early, and a hot key, have their own growth.
        if factor not in ("firings", "hot"):
            yield from measure(scaled(setting, share), factor, value)
    yield from edge_samples(share)
    yield from header_samples(share)
    if not embedded:
        yield from measure_spark(TASKS_AND_SHARDS, memory)


def predictions(model: Model) -> list[Prediction]:
    """What the model predicts for the deployments."""
    return [
        *(model.predict(deployment) for deployment in DEPLOYMENTS),
        model.balanced(DEPLOYMENTS[-1]),
    ]


def lines(model: Model) -> Iterator[str]:
    """The costs and the predictions as text."""
    yield f"{'part':<10}{'samples':>8}{'error':>8}   processor time of one"
    for part, found in model.fits.items():
        costs = ", ".join(f"{name} {_text(cost)}" for name, cost in found.seconds.items() if cost)
        yield f"{part:<10}{found.samples:>8}{found.error:>8.0%}   {costs}"
    yield ""
    yield f"{'deployment':<36}{'tasks':>8}{'shards':>8}{'cores':>8}   seconds of a batch"
    for prediction in predictions(model):
        given = prediction.deployment
        parts = ", ".join(f"{name} {cost:,.0f}" for name, cost in prediction.seconds.items())
        name = given.name
        yield f"{name:<36}{given.tasks:>8,}{given.shards:>8,}{prediction.cores:>8,.0f}   {parts}"
        yield f"{'':<63}{_sizes(prediction)}"


def _sizes(found: Prediction) -> str:
    return (
        f"headers {found.header_bytes / 1e6:,.0f} MB, saved state {found.state_bytes / 1e6:,.0f}"
        f" MB, offsets {found.offset_bytes / 1e6:.1f} MB"
    )


def _text(seconds: float) -> str:
    for unit, name in _UNITS:
        if seconds >= unit:
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds / 1e-9:.2g} ns"


def to_dicts(model: Model, found: Sequence[Sample]) -> Iterator[dict[str, Any]]:
    """The samples, the costs and the predictions in JSON form."""
    for sample in found:
        yield {"name": "sample", **sample.to_dict()}
    for part, fitted in model.fits.items():
        yield {
            "name": "cost",
            "part": part,
            "seconds": dict(fitted.seconds),
            "median_error": fitted.error,
        }
    for prediction in predictions(model):
        yield {
            **prediction.to_dict(),
            "deployment": prediction.deployment.name,
            "name": "prediction",
        }

"""Numbers of Hypothesis examples for properties that are slower or faster than the others."""

from __future__ import annotations

from typing import Any

from hypothesis import settings

NIGHTLY = 1000
"""Profiles with at least this many examples decide alone."""


def examples(count: int, **options: Any) -> settings:
    """Settings with `count` examples, or with those of the nightly profile."""
    profile = settings().max_examples
    return settings(max_examples=profile if profile >= NIGHTLY else count, **options)

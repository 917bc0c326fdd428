"""Objects that processes pass on without loading them."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Generic, TypeVar, cast

from pyspark import cloudpickle

T = TypeVar("T")


class Packed(Generic[T]):
    """An object that travels as bytes, and is loaded where it is first used.

    Spark passes a source through four processes that plan what it reads. Loading the edge there
    would import all operators in each of them.
    """

    def __init__(self, content: T) -> None:
        self._pickled: bytes = cloudpickle.dumps(content)  # type: ignore[no-untyped-call]

    def __getstate__(self) -> dict[str, Any]:
        return {"_pickled": self._pickled}

    @cached_property
    def content(self) -> T:
        """The object; each process has one of its own."""
        return cast("T", cloudpickle.loads(self._pickled))

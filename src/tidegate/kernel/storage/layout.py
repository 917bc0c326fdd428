"""Layout: the order in which messages are stored, chosen by how a query reads them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tidegate.errors import SpecError

LARGE_WINDOW = 10_000
"""More messages than this make a window large for `choose_layout`."""

_COLUMNS = {
    "session_key": "key_hash",
    "equal_fields": "equal_hash",
    "timestamp": "time",
    "offset": "offset",
}


@dataclass(frozen=True, slots=True)
class Layout:
    """The order in which messages are stored: names of key fields, most significant first.

    >>> print(Layout(("session_key", "timestamp", "offset")))
    session_key, timestamp, offset
    """

    fields: tuple[str, ...]

    def __post_init__(self) -> None:
        unknown = [field for field in self.fields if field not in _COLUMNS]
        if unknown:
            raise SpecError(
                f"a layout consists of {', '.join(_COLUMNS)}, but `{unknown[0]}` came. Hint: see"
                " `choose_layout`"
            )
        if len(set(self.fields)) != len(self.fields) or self.fields[-1:] != ("offset",):
            raise SpecError(
                f"a layout names each field once and ends with `offset`, but {self.fields} came."
                " Hint: see `choose_layout`"
            )

    def __str__(self) -> str:
        return ", ".join(self.fields)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the message store, most significant first."""
        return tuple(_COLUMNS[field] for field in self.fields)

    @property
    def position(self) -> str:
        """The column that reads and retention go by."""
        return "time" if "timestamp" in self.fields else "offset"

    @property
    def expires_eagerly(self) -> bool:
        """Whether the position leads, so that expired messages are one range."""
        return self.columns[0] == self.position


def choose_layout(
    axis: Literal["time", "tuple"],
    operation: Literal["aggregate", "join"],
    *,
    equal_fields: bool = False,
    time_range: bool = False,
    large: bool = False,
    session_key: bool = False,
) -> Layout:
    """The layout for a query: the fields that narrow its reads most come first.

    >>> choose_layout("time", "join", equal_fields=True, time_range=True)
    Layout(fields=('timestamp', 'equal_fields', 'offset'))
    """
    if axis not in {"time", "tuple"} or operation not in {"aggregate", "join"}:
        raise SpecError(
            f"a layout is for `time` or `tuple` and `aggregate` or `join`, but `{axis}` and"
            f" `{operation}` came. Hint: use one of these words"
        )
    by_fields = operation == "join" and equal_fields
    fields: tuple[str, ...] = ("offset",) if axis == "tuple" else ("timestamp", "offset")
    if by_fields and (large or (axis == "time" and not time_range)):
        fields = ("equal_fields", *fields)
    elif by_fields and axis == "time":
        fields = ("timestamp", "equal_fields", "offset")
    return Layout(("session_key", *fields) if session_key else fields)

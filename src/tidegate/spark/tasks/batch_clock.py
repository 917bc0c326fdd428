"""The clock of a micro-batch, read from Spark's offset log, so that a replay has the same.

A column with the clock would be an alternative. But its value is a constant in the code that Spark
generates for the batch, so every batch would compile code of its own.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from tidegate.errors import CorruptStateError
from tidegate.spark.checkpoint import is_local, open_checkpoint


@dataclass(frozen=True)
class BatchClock:
    """The clocks of the batches of a query, from a checkpoint that all machines can read."""

    checkpoint: str

    @classmethod
    def for_checkpoint(cls, checkpoint: str) -> BatchClock | None:
        """The clocks of a local checkpoint; None for others, which workers may not reach."""
        return cls(checkpoint) if is_local(checkpoint) else None

    def of(self, batch: int) -> int:
        """The clock of a batch, in microseconds."""
        system, folder = open_checkpoint(self.checkpoint)
        path = f"{folder}/offsets/{batch}"
        try:
            with system.open_input_stream(path) as file:
                header = json.loads(file.readall().split(b"\n")[1])
            return int(header["batchTimestampMs"]) * 1000
        except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
            raise CorruptStateError(
                f"the clock of batch {batch} cannot be read from Spark's log {path} ({error})."
                " Hint: the checkpoint must have the same path on all machines of the cluster"
            ) from error

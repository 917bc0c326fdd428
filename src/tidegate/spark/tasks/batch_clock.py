"""The clock of a micro-batch, as Spark wrote it into its offset log before the batch began: the
same when the batch is replayed.

It could come with the rows, as a column. But its value would be a number in the code that Spark
generates for reading them, so that every batch had code of its own, compiled anew and never warm.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from tidegate.errors import CorruptStateError
from tidegate.spark.query.metadata import place_of


@dataclass(frozen=True)
class BatchClock:
    """The clocks of the batches of a query whose checkpoint is in a folder of this machine, or one
    that all machines have.
    """

    checkpoint: str

    @classmethod
    def beside(cls, checkpoint: str) -> BatchClock | None:
        """Where the log can be read by whoever works for the query; None where only Spark is sure
        to reach it.
        """
        return cls(checkpoint) if is_local(checkpoint) else None

    def of(self, batch: int) -> int:
        """What the clock showed, in microseconds."""
        system, folder = place_of(self.checkpoint)
        path = f"{folder}/offsets/{batch}"
        try:
            with system.open_input_stream(path) as file:
                told = json.loads(file.readall().split(b"\n")[1])
            return int(told["batchTimestampMs"]) * 1000
        except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
            hint = "all machines of the cluster have to see the checkpoint under this path"
            raise CorruptStateError(
                f"the clock of batch {batch} cannot be read from Spark's log {path} ({error})."
                f" Hint: {hint}"
            ) from error


def is_local(checkpoint: str) -> bool:
    """Whether a checkpoint is a path of this machine."""
    return "://" not in checkpoint.removeprefix("file://")

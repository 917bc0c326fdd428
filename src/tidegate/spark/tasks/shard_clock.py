"""The clock of a shard: the machine's clock at each batch, without its steps back.

Spark takes the clock of a batch from the machine. If that steps back, after one wrong reading or
when it is set, a clock that waited for it would silence triggers until the machine is level again.
So the clock of a shard goes on at half the speed of the machine's until both are level. It follows
from the stored clocks and the clock of the batch alone, so a replay has the same.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.state.store import Store

_NAME = "clock"


@dataclass(frozen=True)
class ShardClock:
    """The clocks at a batch, in microseconds."""

    machine: int
    now: int
    """The clock of the shard, which is never behind the machine's."""

    @classmethod
    def read(cls, store: Store, last: int) -> ShardClock:
        """The clocks of the last batch; `last` is the clock of the shard."""
        found = store.get_json(_NAME)
        return cls(last if found is None else int(found), last)

    def at(self, machine: int) -> ShardClock:
        """The clocks at a batch."""
        elapsed = max(0, machine - self.machine)
        return ShardClock(machine, max(machine, self.now + elapsed // 2))

    def write(self, store: Store) -> None:
        """Store the machine's clock where it differs."""
        if self.now != self.machine:
            store.put_json(_NAME, self.machine)
        else:
            store.delete(_NAME)

    def machine_at(self, due: int) -> int:
        """The clock of the machine when that of the shard reaches an instant."""
        return min(due, self.machine + 2 * (due - self.now))

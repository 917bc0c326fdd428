"""Windows by difference: every event opens the window that ends with it and the one that begins after it, and is in those of its neighbours."""

from __future__ import annotations

import numpy as np

from tidegate.instants import saturating_add
from tidegate.kernel.frame import Frame
from tidegate.kernel.groups import Groups
from tidegate.kernel.windows import Assigned, ByDifferenceAssigner
from tidegate.operators.absorbing import Absorber, Joining
from tidegate.operators.core import IDENTITY
from tidegate.operators.delivery import Delivery
from tidegate.spec.windows import ByDifference


class DifferenceAbsorber(Absorber):
    """Rows into windows by difference; a window that appears holds older messages too, so these are kept."""

    def absorb(self, delivery: Delivery, assigned: Assigned) -> None:
        """`assigned` is not used: which windows a row is in depends on the other rows of its key."""
        members, older = self._members(delivery)
        fresh = members.row >= len(older)
        identity_of = _windows(delivery, older, members)
        groups = Groups.by([identity_of.ints(name) for name in IDENTITY])
        touched = groups.any(fresh)
        places = self.core.cells.find(identity_of.take(groups.firsts))
        # A window that exists has counted its older messages; one that appears counts them now.
        counts_now = touched[groups.ids] & (fresh | ~places.found[groups.ids])
        row = np.where(fresh, members.row - len(older), _lenders(older, members, groups))
        super().absorb(delivery, Assigned(row[counts_now], members.start[counts_now], members.end[counts_now]))

    def _members(self, delivery: Delivery) -> tuple[Assigned, Frame]:
        """Which events, older ones first, are in which windows."""
        spec = self.core.spec.window
        assert isinstance(spec, ByDifference), "only these windows come here"
        assert isinstance(self.assigner, ByDifferenceAssigner), "and so does their assigner"
        assert self.core.messages is not None, "windows by difference keep their messages"
        x = delivery.position
        low, high = int(saturating_add(int(x.min()), -spec.size)), int(saturating_add(int(x.max()), spec.size + 1))
        older = self.core.messages.window(low, high, kids=delivery.kid)
        older = older.where(older.ints("arrival") < int(delivery.seq.min()))
        at = older.ints(self.core.messages.layout.position)
        kid = np.concatenate([older.ints("kid"), delivery.kid])
        chk = np.concatenate([older.ints("chk"), delivery.chk])
        keys = Groups.by([kid, chk])
        return self.assigner.members(keys.ids, np.concatenate([at, x])), older


def _lenders(older: Frame, members: Assigned, groups: Groups) -> np.ndarray:
    """For every member the row of a new member of the same window: an older one borrows its key and its place in the order."""
    fresh = np.flatnonzero(members.row >= len(older))
    lender = np.zeros(groups.n, np.int64)
    lender[groups.ids[fresh]] = members.row[fresh] - len(older)
    return lender[groups.ids]


def _windows(delivery: Delivery, older: Frame, members: Assigned) -> Frame:
    kid = np.concatenate([older.ints("kid"), delivery.kid])[members.row]
    chk = np.concatenate([older.ints("chk"), delivery.chk])[members.row]
    return Frame.of({"kid": kid, "chk": chk, "start": members.start, "end": members.end}, len(members.row))

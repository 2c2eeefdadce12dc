"""What the stored rollouts of a run add up to: how many there are of each status, and every reward in order.

Between two changes of a run's status rollouts are only added, so a process keeps what it added up and reads what came
since; at a change (a retry removes rollouts, an upload replaces them) it begins anew. A view that looks a hundred times
at a run of 100,000 rollouts thus reads them once. Nothing is kept of what a transaction has not committed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import sqlalchemy as sa
from sqlalchemy.orm import Session

from osmosis.base.stats import Spread, spread
from osmosis.platform import tables
from osmosis.platform.db import SHARED
from osmosis.records.rollout import RolloutStatus

KEPT = 64
"""Runs whose tally a process keeps; the one that was asked for least recently goes first."""

_EPOCH = sa.select(sa.func.max(tables.RunEvent.id)).where(tables.RunEvent.run_id == sa.bindparam("run_id"))
_SINCE = sa.select(tables.Rollout.id, tables.Rollout.status, tables.Rollout.reward).where(
    tables.Rollout.run_id == sa.bindparam("run_id"), tables.Rollout.id > sa.bindparam("last_id")
)


@dataclass(frozen=True)
class RunTally:
    """Of one run, at one moment."""

    epoch: int = 0
    """The newest of the run's events that it counts for."""
    last_id: int = 0
    """The newest rollout it counts."""
    statuses: Mapping[str, int] | None = None
    rewards: Sequence[float] = ()
    """Every reward there is, ascending."""

    @cached_property
    def total(self) -> int:
        return sum((self.statuses or {}).values())

    def count(self, status: RolloutStatus) -> int:
        return (self.statuses or {}).get(status.value, 0)

    @cached_property
    def spread(self) -> Spread | None:
        """Of the rewards; None without any."""
        return spread(self.rewards)

    def outcomes(self, threshold: float) -> dict[str, int]:
        """How many there are of each outcome: without a reward a rollout has failed, unless it was skipped."""
        below = bisect_left(self.rewards, threshold)
        skipped = self.count(RolloutStatus.SKIPPED)
        return {
            "passed": len(self.rewards) - below,
            "not-passed": below,
            "failed": self.total - skipped - len(self.rewards),
            "skipped": skipped,
        }

    def added(self, rows: Sequence[tuple[int, str, float | None]]) -> RunTally:
        """With these rollouts: `(id, status, reward)` each."""
        statuses = Counter(self.statuses or {})
        statuses.update(status for _, status, _ in rows)
        rewards = sorted([*self.rewards, *(reward for _, _, reward in rows if reward is not None)])
        return RunTally(self.epoch, max(row[0] for row in rows), statuses, rewards)


class Tallies:
    """Those a process keeps, by run. A tally is never changed, so threads need no lock: the last one made stays."""

    def __init__(self) -> None:
        self._kept: dict[str, RunTally] = {}

    def latest(self, run_id: str, epoch: int) -> RunTally:
        """The one to go on from."""
        found = self._kept.get(run_id)
        return found if found is not None and found.epoch == epoch else RunTally(epoch)

    def keep(self, run_id: str, tally: RunTally) -> None:
        self._kept.pop(run_id, None)
        self._kept[run_id] = tally
        for stale in list(self._kept)[:-KEPT]:
            self._kept.pop(stale, None)


def in_turn(session: Session, run_id: str) -> None:
    """Before rollouts of a run are stored: one transaction at a time does, so that ids grow in the order in which they
    can be seen. Several jobs may store rollouts of one run at once, and PostgreSQL gives an id when a row is written,
    not when its transaction ends: one that ended later with a smaller id would never be counted.

    SQLite has one writer anyway. The lock is of this purpose alone, so nobody who has it waits for a row of another.
    """
    if session.get_bind().dialect.name == "postgresql":
        key = sa.func.hashtextextended(f"rollouts of {run_id}", 0)
        session.execute(sa.select(sa.func.pg_advisory_xact_lock(key)))


def tally_of(session: Session, run_id: str) -> RunTally:
    """Of what is stored of a run as this session sees it."""
    tallies: Tallies = session.info.get(SHARED, {}).setdefault(Tallies, Tallies())
    epoch = session.scalar(_EPOCH, {"run_id": run_id}) or 0
    tally = tallies.latest(run_id, epoch)
    since = session.execute(_SINCE, {"run_id": run_id, "last_id": tally.last_id}).all()
    if since:
        tally = tally.added([(id_, status, reward) for id_, status, reward in since])
    tallies.keep(run_id, tally)
    return tally

"""How often jobs speak: all together no more often than one process can hear, however many they are.

A job is told with the answer to a heartbeat. Its lease follows, so that it may miss some of them, and so does the time
that it has to hear that it is to stop.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.orm import Session

from osmosis.platform import tables
from osmosis.platform.tables import QueueState

PER_SECOND = 50
"""Heartbeats of all jobs together; as many reports."""
LONGEST_S = 30.0
LEASE = 4
"""A lease is at least so many times as long as what lies between two heartbeats."""
_AT_WORK = sa.select(sa.func.count(tables.Job.id)).where(tables.Job.state == QueueState.HELD)


def every_s(session: Session) -> float:
    """Seconds between what a job says, at least; 0 where there are so few that each may speak as it likes."""
    seconds = (session.scalar(_AT_WORK) or 0) / PER_SECOND
    return 0.0 if seconds <= 1.0 else min(LONGEST_S, seconds)

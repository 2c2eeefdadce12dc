"""Slow jobs down: heartbeats to what one process can take, model calls to what a shared endpoint takes. The answer to a
heartbeat has the next interval, and the pause that an endpoint asked of another job with the same model, address and
workspace."""

from datetime import timedelta

import sqlalchemy as sa
from sqlalchemy.orm import Session

from osmosis.platform import tables
from osmosis.platform.db import count_of
from osmosis.platform.tables import QueueState
from osmosis.records.base import utc_now
from osmosis.records.run.plan import Retry

HEARTBEATS_PER_SECOND = 50
MAX_INTERVAL_S = 30.0
LEASE_INTERVALS = 4
"""A lease lasts at least this many heartbeat intervals, so that a job may miss some."""
MAX_PAUSE_S = Retry().rate_limit_budget_s


def heartbeat_interval_s(session: Session) -> float:
    running = count_of(session, sa.select(tables.Job).where(tables.Job.state == QueueState.HELD))
    seconds = running / HEARTBEATS_PER_SECOND
    return 0.0 if seconds <= 1.0 else min(MAX_INTERVAL_S, seconds)


def endpoint_of(run: tables.Run) -> str:
    advanced = run.config.get("advanced")
    address = advanced.get("base_url") if isinstance(advanced, dict) else None
    return f"{run.model_path} {address}" if address else run.model_path


def note_refusal(job: tables.Job, seconds: float) -> None:
    until = utc_now() + timedelta(seconds=min(seconds, MAX_PAUSE_S))
    job.paused_until = max(until, job.paused_until or until)


def pause_from_others_s(session: Session, job: tables.Job) -> float:
    now = utc_now()
    query = (
        sa.select(sa.func.max(tables.Job.paused_until))
        .where(tables.Job.paused_until > now, tables.Job.endpoint == job.endpoint, tables.Job.id != job.id)
        .where(tables.Job.workspace_id == job.workspace_id)
    )
    until = session.scalar(query)
    return (until - now).total_seconds() if until is not None else 0.0

"""Rate limits of models' endpoints, shared over the jobs that ask the same one: what one is told, the others hear.

The same endpoint is the same model at the same address, asked by the same workspace: limits belong to a key, keys to a
workspace, and no workspace slows another down by what its jobs say. The platform itself asks no endpoint anything.
"""

from __future__ import annotations

from datetime import timedelta

import sqlalchemy as sa
from sqlalchemy.orm import Session

from osmosis.platform import tables
from osmosis.records.base import utc_now
from osmosis.records.plan import Retry

MOST_S = Retry().rate_limit_budget_s
"""No job is believed a longer pause than one call would wait itself."""


def of_run(run: tables.Run) -> str:
    """Which endpoint the jobs of a run ask."""
    advanced = run.config.get("advanced")
    address = advanced.get("base_url") if isinstance(advanced, dict) else None
    return f"{run.model_path} {address}" if address else run.model_path


def refused(job: tables.Job, seconds: float) -> None:
    """The endpoint told this job to come back after so many seconds."""
    until = utc_now() + timedelta(seconds=min(seconds, MOST_S))
    job.paused_until = max(until, job.paused_until or until)


def pause_of(session: Session, run: tables.Run, job: tables.Job) -> float:
    """For how many seconds this job is to ask nothing, because of what others were told; 0 when it may ask."""
    now = utc_now()
    query = (
        sa.select(sa.func.max(tables.Job.paused_until))
        .join(tables.Run, tables.Run.id == tables.Job.run_id)
        .where(tables.Job.paused_until > now, tables.Job.endpoint == job.endpoint, tables.Job.id != job.id)
        .where(tables.Run.workspace_id == run.workspace_id)
    )
    until = session.scalar(query)
    return (until - now).total_seconds() if until is not None else 0.0

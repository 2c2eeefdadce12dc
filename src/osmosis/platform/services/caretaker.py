"""What no worker says: the leases of jobs that ran out, workers that did not come back, what was made for runs that
are over.

It is told when nobody could have been heard, and ends no job for that. A job whose worker is there is that worker's to
end first: it alone can kill the process.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from datetime import timedelta

import sqlalchemy as sa
from sqlalchemy.orm import Session

from osmosis.platform import Platform, tables
from osmosis.platform.settings import PlatformSettings
from osmosis.platform.tables import QueueState
from osmosis.records.base import utc_now

from . import job_files, job_queue, run_lifecycle, shards

log = logging.getLogger(__name__)

FORGOTTEN_AFTER = timedelta(days=7)
"""After so long without a word a worker's row goes."""


def look_after(platform: Platform, *, gap: str = "") -> None:
    """One look at all of it.

    After a gap (it says what: a machine that was suspended, a platform that was away) nobody could extend a lease, so
    each gets the time to do it before it counts as silent.
    """
    settings = platform.settings
    with platform.db.write() as session:
        query = sa.select(tables.Job).where(tables.Job.state == QueueState.HELD)
        for job in session.scalars(query.where(tables.Job.lease_until < utc_now())).all():
            held = job_queue.HeldJob(session.get_one(tables.Run, job.run_id), job)
            if gap:
                job_queue.extend(job, settings.lease_s)
                run_lifecycle.log(session, job.run_id, f"{gap}; the job continues")
            elif (blame := _silent(session, settings, job)) is not None:
                why = "the job sent nothing and its lease expired"
                log.info("run %s: %s", held.run.name, why)
                job_queue.release(session, held, why, max_starts=settings.max_starts, blame=blame)
        session.execute(sa.delete(tables.Worker).where(tables.Worker.last_seen < utc_now() - FORGOTTEN_AFTER))
        merging = shards.over_but_running(session)
    for run_id in merging:
        shards.merge(platform, run_id)
    with suppress(FileNotFoundError):
        made = [entry.name for entry in settings.sent_dir.iterdir()]
        with platform.db.read() as session:
            over = run_lifecycle.over_among(session, made)
        for run_id in over:
            job_files.forget(settings, run_id)


def _silent(session: Session, settings: PlatformSettings, job: tables.Job) -> job_queue.Blame | None:
    """To what a job is lost whose lease ran out; None while a worker that is there may kill its process first.

    Where the worker is lost too, nothing of the job's own is known to have failed.
    """
    worker = session.get(tables.Worker, job.worker_id) if job.worker_id else None
    if worker is None or job.lease_until is None:
        return "executor"
    grace = timedelta(seconds=max(5.0, settings.lease_s / 4))
    if utc_now() - worker.last_seen > grace:
        return "executor"
    return "job" if utc_now() - job.lease_until > grace else None

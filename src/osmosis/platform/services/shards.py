"""One run over many jobs: how far all of them are, and its report when the last one is over.

The report is made from the stored rollouts, which count once each: it is that of one job over all rows, to the last
digit, whichever job or machine a rollout came from. Made outside of any session, because it reads every rollout.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress

import sqlalchemy as sa
from sqlalchemy.orm import Session, undefer

from osmosis.errors import Conflict
from osmosis.metrics.summary import Summary
from osmosis.metrics.together import together
from osmosis.platform import Platform, tables
from osmosis.platform.tables import QueueState
from osmosis.records.base import utc_now
from osmosis.records.config import EvalConfig
from osmosis.records.plan import EvalPlan
from osmosis.records.report import Report
from osmosis.records.rollout import Rollout
from osmosis.records.run import JobResult, Stage
from osmosis.records.run_status import RunStatus
from osmosis.records.shard import Shard, Spend, share

from . import run_lifecycle

log = logging.getLogger(__name__)

PAGE = 1000


def shard_of(session: Session, job: tables.Job) -> Shard:
    """What a job does of its run, with its part of the concurrency."""
    if job.shards == 1:
        return Shard()
    run = session.get_one(tables.Run, job.run_id)
    concurrency = share(_concurrency(run), job.shard, job.shards)
    return Shard(number=job.shard, count=job.shards, concurrency=concurrency)


def bounds_of(session: Session, job: tables.Job) -> tuple[int, int] | None:
    """The first and the last row of a shard; None for a job that has all rows."""
    if job.shards == 1:
        return None
    run = session.get_one(tables.Run, job.run_id, options=[undefer(tables.Run.rows)])
    own = Shard(number=job.shard, count=job.shards).of(run.rows)
    return (own[0], own[-1]) if own else (0, -1)


def concurrency_now(run: tables.Run, job: tables.Job, jobs: Sequence[tables.Job]) -> int:
    """The part of this job among those that are not over: what one leaves, the others get."""
    going = [one.shard for one in jobs if one.state != QueueState.OVER]
    return share(_concurrency(run), going.index(job.shard) if job.shard in going else 0, len(going))


def spent(jobs: Sequence[tables.Job]) -> Spend:
    """What these jobs have spent, as they said last."""
    each = [Report.model_validate(job.report).spent() for job in jobs if job.report]
    return Spend(cost_usd=sum(one.cost_usd for one in each), tokens=sum(one.tokens for one in each))


def _concurrency(run: tables.Run) -> int:
    return int(run.config.get("evaluation", {}).get("batch_size", 1))


def add_up(run: tables.Run, jobs: Sequence[tables.Job]) -> None:
    """How far the run is: its shards together."""
    said = [job.progress for job in jobs if job.progress]
    total = run.sampled_rows * run.config.get("evaluation", {}).get("n", 1)
    completed = sum(one.get("completed", 0) for one in said)
    stages = [one["stage"] for one in said if "stage" in one]
    rolling = Stage.ROLLOUTS.value
    progress = tables.StoredProgress(stage=rolling if rolling in stages else stages[0] if stages else "")
    progress["completed"], progress["total"] = completed, total
    if sandbox := next((one["sandbox"] for one in said if one.get("sandbox")), ""):
        progress["sandbox"] = sandbox
    run.progress = progress
    reports = [Report.model_validate(job.report) for job in jobs if job.report]
    if reports:
        run.report = together(reports, rows=run.sampled_rows).to_dict()


def over_but_running(session: Session) -> list[str]:
    """Runs all of whose jobs are over: what is left is their report."""
    going = sa.select(tables.Job.id).where(tables.Job.run_id == tables.Run.id, tables.Job.state != QueueState.OVER)
    some = sa.select(tables.Job.id).where(tables.Job.run_id == tables.Run.id, tables.Job.shards > 1)
    query = sa.select(tables.Run.id).where(tables.Run.status == RunStatus.RUNNING.value, some.exists(), ~going.exists())
    return list(session.scalars(query))


def merge(platform: Platform, run_id: str) -> None:
    """Ends a run whose jobs are all over, with the report of everything; a run that is not so far stays as it is."""
    with platform.db.read() as session:
        if run_id not in over_but_running(session):
            return
        run = session.get_one(tables.Run, run_id)
        jobs = run_lifecycle.jobs_of(session, run_id)
    plan = EvalPlan.from_config(EvalConfig.model_validate(run.config), name=run.name, dataset=run.dataset)
    summary = Summary(plan)
    for rollout in _stored(platform, run_id):
        summary.add(rollout)
    stopped = any(job.status == RunStatus.STOPPED.value for job in jobs)
    used_up = plan.budget.used_up(summary.total_cost_usd or 0.0, summary.total_tokens)
    ran_out = _ran_out(jobs, plan)
    by_limit = (used_up or ran_out) if stopped and run.stop_requested_at is None else None
    started = run.started_at or run.created_at
    report = summary.report(
        rows=run.sampled_rows,
        duration_ms=round((utc_now() - started).total_seconds() * 1000, 1),
        dataset_rows=run.dataset_rows,
        stopped=(by_limit or "stopped on request") if stopped else None,
    )
    result = JobResult(status=RunStatus.STOPPED if stopped else RunStatus.FINISHED, report=report)
    if by_limit:
        result = (JobResult.used_up if used_up else JobResult.ran_out)(by_limit, report)
    with suppress(Conflict), platform.db.write() as session:  # Conflict: another process was faster
        found = session.get(tables.Run, run_id, with_for_update=True)
        if found is not None and found.status == RunStatus.RUNNING.value:
            run_lifecycle.end(
                session, found, result, (by_limit or "stopped by request") if stopped else "all shards are over"
            )
            log.info("run %s: %d rollouts of its shards are one report", found.name, report.completed)


def _ran_out(jobs: Sequence[tables.Job], plan: EvalPlan) -> str | None:
    """How many of the jobs their time limit ended; None when it ended none."""
    said, limit_s = plan.timeouts.ran_out(), plan.timeouts.run_s
    late = sum(job.report is not None and job.report.get("stopped") == said for job in jobs) if said else 0
    return f"time limit: {late} of {len(jobs)} jobs did not finish within {limit_s:g} s" if late else None


def _stored(platform: Platform, run_id: str) -> Iterator[Rollout]:
    last = 0
    while True:
        query = sa.select(tables.Rollout.id, tables.Rollout.body).where(
            tables.Rollout.run_id == run_id, tables.Rollout.id > last
        )
        with platform.db.read() as session:
            page = session.execute(query.order_by(tables.Rollout.id).limit(PAGE)).all()
        for _, body in page:
            yield Rollout.model_validate_json(body)
        if len(page) < PAGE:
            return
        last = page[-1][0]

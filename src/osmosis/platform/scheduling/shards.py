"""One run over many jobs: its progress, and its report after the last job. The report is made from the stored rollouts,
so it equals that of one job over all rows. It is made outside of any session, because it reads every rollout."""

import logging
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress

import sqlalchemy as sa
from sqlalchemy.orm import Session, undefer

from osmosis.errors import Conflict
from osmosis.metrics.summary import Summary, together
from osmosis.platform import Platform, tables
from osmosis.platform.runs import lifecycle, rollouts
from osmosis.platform.tables import QueueState
from osmosis.records.base import utc_now
from osmosis.records.config.run_config import EvalConfig
from osmosis.records.run.job import JobResult, Stage
from osmosis.records.run.plan import EvalPlan
from osmosis.records.run.report import Report
from osmosis.records.run.rollout import Rollout
from osmosis.records.run.rows import Shard, Spend, share_concurrency
from osmosis.records.run.status import RunStatus

log = logging.getLogger(__name__)


def shard_of(session: Session, job: tables.Job) -> Shard:
    if job.shards == 1:
        return Shard()
    run = session.get_one(tables.Run, job.run_id)
    concurrency = share_concurrency(_concurrency(run), job.shard, job.shards)
    return Shard(number=job.shard, count=job.shards, concurrency=concurrency)


def bounds_of(session: Session, job: tables.Job) -> tuple[int, int] | None:
    if job.shards == 1:
        return None
    run = session.get_one(tables.Run, job.run_id, options=[undefer(tables.Run.rows)])
    own = Shard(number=job.shard, count=job.shards).of(run.rows)
    return (own[0], own[-1]) if own else (0, -1)


def share_now(run: tables.Run, job: tables.Job, jobs: Sequence[tables.Job]) -> int:
    going = [other.shard for other in jobs if other.state != QueueState.OVER]
    return share_concurrency(_concurrency(run), going.index(job.shard) if job.shard in going else 0, len(going))


def sum_spend(jobs: Sequence[tables.Job]) -> Spend:
    each = [Report.model_validate(job.report).spent() for job in jobs if job.report]
    return Spend(cost_usd=sum(spend.cost_usd for spend in each), tokens=sum(spend.tokens for spend in each))


def _concurrency(run: tables.Run) -> int:
    return int(run.config.get("evaluation", {}).get("batch_size", 1))


def add_up(run: tables.Run, jobs: Sequence[tables.Job]) -> None:
    progresses = [job.progress for job in jobs if job.progress]
    total = run.sampled_rows * run.config.get("evaluation", {}).get("n", 1)
    completed = sum(item.get("completed", 0) for item in progresses)
    stages = [item["stage"] for item in progresses if "stage" in item]
    rolling = Stage.ROLLOUTS.value
    progress = tables.StoredProgress(stage=rolling if rolling in stages else stages[0] if stages else "")
    progress["completed"], progress["total"] = completed, total
    current = [job.progress for job in jobs if job.state == QueueState.HELD and job.progress]
    progress["in_flight"] = sum((Counter(item.get("in_flight")) for item in current), Counter())
    if sandbox := next((item["sandbox"] for item in progresses if item.get("sandbox")), ""):
        progress["sandbox"] = sandbox
    run.progress = progress
    reports = [Report.model_validate(job.report) for job in jobs if job.report]
    if reports:
        run.report = together(reports, rows=run.sampled_rows).to_dict()


def list_mergeable(session: Session) -> list[str]:
    going = sa.select(tables.Job.id).where(tables.Job.run_id == tables.Run.id, tables.Job.state != QueueState.OVER)
    some = sa.select(tables.Job.id).where(tables.Job.run_id == tables.Run.id, tables.Job.shards > 1)
    query = sa.select(tables.Run.id).where(tables.Run.status == RunStatus.RUNNING.value, some.exists(), ~going.exists())
    return list(session.scalars(query))


def merge(platform: Platform, run_id: str) -> None:
    with platform.db.read() as session:
        if run_id not in list_mergeable(session):
            return
        run = session.get_one(tables.Run, run_id)
        jobs = lifecycle.list_jobs(session, run)
    plan = EvalPlan.from_config(EvalConfig.model_validate(run.config), name=run.name, dataset=run.dataset)
    summary = Summary(plan)
    for _, body in rollouts.iterate_bodies(platform.db, run_id):
        summary.add(Rollout.model_validate_json(body))
    stopped = any(job.status == RunStatus.STOPPED.value for job in jobs)
    used_up = plan.budget.used_up(summary.total_cost_usd or 0.0, summary.total_tokens)
    reason, limit_s = plan.timeouts.ran_out(), plan.timeouts.run_s
    late = sum(job.report is not None and job.report.get("stopped") == reason for job in jobs) if reason else 0
    ran_out = f"time limit: {late} of {len(jobs)} jobs did not finish within {limit_s:g} s" if late else None
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
        locked = session.get(tables.Run, run_id, with_for_update=True)
        if locked is not None and locked.status == RunStatus.RUNNING.value:
            lifecycle.end(
                session, locked, result, (by_limit or "stopped by request") if stopped else "all shards are over"
            )
            log.info("run %s: %d rollouts of its shards are one report", locked.name, report.completed)

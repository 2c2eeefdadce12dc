"""A run's figures as the API says them, read from its report and its stored rollouts.

The report comes from the job's engine; nothing is estimated here. Reward statistics are over the rollouts that
have a reward, as that contract says; the report itself is passed along for readers of ours.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy.orm import Session

from osmosis.platform import tables
from osmosis.records.base import utc_now
from osmosis.records.contract.eval_bodies import EvalMetrics, EvalOverview, PassAtKPoint
from osmosis.records.contract.run_bodies import RewardStats, RunProgress, RunResults
from osmosis.records.quarantine import RowQuarantine
from osmosis.records.report import BriefReport, Report, ScoreReport
from osmosis.records.rollout import RolloutStatus

from .run_tally import tally_of


def report_of(run: tables.Run) -> Report | None:
    return Report.model_validate(run.report) if run.report else None


def quarantine_of(run: tables.Run) -> RowQuarantine:
    """The rows that do not decide about it, as its commit has them."""
    return RowQuarantine.model_validate(run.quarantine) if run.quarantine else RowQuarantine()


def brief(run: tables.Run) -> RunResults | None:
    """`results` of a list row: from the report alone, of which it reads what it shows."""
    return _results(run, BriefReport.model_validate(run.report)) if run.report else None


def full(session: Session, run: tables.Run, report: Report | None) -> RunResults | None:
    """`results` of one run, of which `report` is the report."""
    if report is None:
        return None
    return _results(run, report).model_copy(update={"reward_stats": reward_stats(session, run, report)})


def _results(run: tables.Run, report: Report | BriefReport) -> RunResults:
    primary = report.primary
    return RunResults.made(
        score=primary.mean if primary else None,
        pass_rate=primary.pass_rate if primary else None,
        pass_threshold=report.pass_threshold,
        graded=primary.scored if primary else 0,
        passed=primary.passed if primary else 0,
        failed=primary.failed if primary else report.failed,
        skipped=report.skipped,
        total_runs=report.completed,
        sampled_rows=run.sampled_rows,
        total_dataset_rows=run.dataset_rows,
        total_tokens=report.usage.total_tokens,
    )


def reward_stats(session: Session, run: tables.Run, report: Report) -> RewardStats:
    """Over rollouts with a reward; population standard deviation; None where there are none."""
    found = tally_of(session, run.id).spread
    return RewardStats(
        mean=found.mean if found else None,
        std=found.std if found else None,
        min=found.min if found else None,
        median=found.median if found else None,
        max=found.max if found else None,
        pass_at_k={str(point.k): point.value for point in pass_at_k(report.primary)},
    )


def pass_at_k(primary: ScoreReport | None) -> list[PassAtKPoint]:
    return [PassAtKPoint(k=point.k, value=point.value) for point in primary.pass_at_k] if primary else []


def metrics(session: Session, run: tables.Run) -> EvalMetrics:
    """The answer of `eval-runs/{x}/metrics`."""
    report = report_of(run)
    stored = tally_of(session, run.id)
    found = _results(run, report) if report else None
    attempts = run.config.get("evaluation", {}).get("n", 1)
    overview = EvalOverview(
        duration_ms=duration_ms(run),
        total_samples=run.sampled_rows * attempts,
        completed_samples=stored.total,
        graded=found.graded if found else 0,
        passed=found.passed if found else 0,
        failed=found.failed if found else stored.count(RolloutStatus.FAILED),
        skipped=found.skipped if found else stored.count(RolloutStatus.SKIPPED),
        pass_rate=found.pass_rate if found else None,
        pass_threshold=run.config.get("evaluation", {}).get("pass_threshold"),
        tokens_used=found.total_tokens if found else 0,
    )
    return EvalMetrics(
        status=run.status,
        overview=overview,
        reward_stats=reward_stats(session, run, report) if report else None,
        pass_at_k=pass_at_k(report.primary) if report else [],
        report=report,
        progress=progress_of(run),
    )


def progress_of(run: tables.Run) -> RunProgress | None:
    """How far its job is; None before it said so."""
    return RunProgress.model_validate(run.progress) if run.progress is not None else None


def duration_ms(run: tables.Run, now: datetime | None = None) -> float | None:
    """From the first start to the end, or to now."""
    if run.started_at is None:
        return None
    return ((run.completed_at or now or utc_now()) - run.started_at).total_seconds() * 1000.0

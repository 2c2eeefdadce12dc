"""A run's figures in the words of contract B, read from its report and its stored rollouts.

The report comes from the job's engine; nothing is estimated here. Reward statistics are over the rollouts that
have a reward, as that contract says; the report itself is passed along for readers of ours.
"""

from __future__ import annotations

import statistics
from datetime import datetime
from typing import Any

from sqlalchemy.orm import Session

from osmosis.records.base import utc_now
from osmosis.records.report import Report, ScoreReport

from .. import tables
from . import rollouts


def report_of(run: tables.Run) -> Report | None:
    return Report.model_validate(run.report) if run.report else None


def brief(run: tables.Run) -> dict[str, Any] | None:
    """`results` of a list row: from the report alone."""
    report = report_of(run)
    return _results(run, report) if report else None


def full(session: Session, run: tables.Run) -> dict[str, Any] | None:
    """`results` of one run."""
    report = report_of(run)
    if report is None:
        return None
    body = _results(run, report)
    body["reward_stats"] = reward_stats(session, run, report)
    return body


def _results(run: tables.Run, report: Report) -> dict[str, Any]:
    primary = report.primary
    return {
        "score": primary.mean if primary else None,
        "pass_rate": primary.pass_rate if primary else None,
        "pass_threshold": report.pass_threshold,
        "graded": primary.scored if primary else 0,
        "passed": primary.passed if primary else 0,
        "failed": primary.failed if primary else report.failed,
        "skipped": report.skipped,
        "total_runs": report.completed,
        "sampled_rows": run.sampled_rows,
        "total_dataset_rows": run.dataset_rows,
        "total_tokens": report.usage.total_tokens,
    }


def reward_stats(session: Session, run: tables.Run, report: Report) -> dict[str, Any]:
    """Over rollouts with a reward; population standard deviation; None where there are none."""
    values = rollouts.rewards(session, run.id)
    stats: dict[str, Any] = dict.fromkeys(("mean", "std", "min", "median", "max"))
    if values:
        stats = {
            "mean": statistics.fmean(values),
            "std": statistics.pstdev(values),
            "min": values[0],
            "median": statistics.median(values),
            "max": values[-1],
        }
    stats["pass_at_k"] = {str(point["k"]): point["value"] for point in pass_at_k(report.primary)}
    return stats


def pass_at_k(primary: ScoreReport | None) -> list[dict[str, Any]]:
    return [{"k": point.k, "value": point.value} for point in primary.pass_at_k] if primary else []


def metrics(session: Session, run: tables.Run) -> dict[str, Any]:
    """The answer of `eval-runs/{x}/metrics`."""
    report = report_of(run)
    counted = rollouts.counts(session, run.id)
    found = _results(run, report) if report else {}
    attempts = int((run.config.get("evaluation") or {}).get("n", 1))
    overview = {
        "duration_ms": duration_ms(run),
        "total_samples": run.sampled_rows * attempts,
        "completed_samples": sum(counted.values()),
        "graded": found.get("graded", 0),
        "passed": found.get("passed", 0),
        "failed": found.get("failed", counted.get("failed", 0)),
        "skipped": found.get("skipped", counted.get("skipped", 0)),
        "pass_rate": found.get("pass_rate"),
        "pass_threshold": (run.config.get("evaluation") or {}).get("pass_threshold"),
        "tokens_used": found.get("total_tokens", 0),
    }
    return {
        "status": run.status,
        "overview": overview,
        "reward_stats": reward_stats(session, run, report) if report else None,
        "pass_at_k": pass_at_k(report.primary) if report else [],
        "report": run.report,
        "progress": run.progress,
    }


def duration_ms(run: tables.Run, now: datetime | None = None) -> float | None:
    """From the first start to the end, or to now."""
    if run.started_at is None:
        return None
    return ((run.completed_at or now or utc_now()) - run.started_at).total_seconds() * 1000.0

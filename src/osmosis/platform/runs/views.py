"""Bodies of runs for clients; statistics of rewards are over rollouts with a reward."""

from collections.abc import Mapping

from sqlalchemy.orm import Session

from osmosis.base.jsonable import JsonObject
from osmosis.base.stats import Spread
from osmosis.platform import tables
from osmosis.platform.paging import PagePlace
from osmosis.platform.runs import lifecycle
from osmosis.platform.runs.rollouts import tally_of
from osmosis.platform.scheduling import queue
from osmosis.platform.settings import PlatformSettings
from osmosis.platform.training import service
from osmosis.platform.workspaces import quotas
from osmosis.records.api import runs as run_api
from osmosis.records.api.training import FileRef, ModelRef, TrainingRunDetail, TrainingRunPage, TrainingRunRow
from osmosis.records.run.report import BriefReport, Report, ScoreReport
from osmosis.records.run.rollout import RolloutStatus
from osmosis.records.run.rows import RowQuarantine
from osmosis.records.run.status import RunKind, RunStatus


def _row_values(settings: PlatformSettings, run: tables.Run) -> dict[str, object]:
    return {
        "platform_url": settings.run_url(run.id),
        "resolved_secret_scopes": run.secret_scopes,
        "stop_requested": run.stop_requested_at is not None,
        "imported": run.imported is not None,
        "tags": run.tags or [],
    }


def eval_row(settings: PlatformSettings, run: tables.Run) -> run_api.EvalRunRow:
    return run_api.EvalRunRow.from_row(
        run,
        **_row_values(settings, run),
        model=run_api.NamedRef(name=run.model_path),
        dataset=run_api.NamedRef(id=run.dataset_id, name=run.dataset),
        rollout=run_api.NamedRef(name=run.rollout),
        results=_results(run, BriefReport.model_validate(run.report)) if run.report else None,
        config=_config(run),
    )


def training_row(settings: PlatformSettings, run: tables.Run, rewards: Mapping[str, float]) -> TrainingRunRow:
    progress = run.progress or tables.StoredProgress()
    return TrainingRunRow.from_row(
        run,
        **_row_values(settings, run),
        model=ModelRef(id=None, model_name=run.model_path),
        dataset=FileRef(id=run.dataset_id, file_name=run.dataset),
        rollout=run_api.NamedRef(id=None, name=run.rollout),
        current_step=progress.get("completed"),
        total_steps=progress.get("total"),
        **rewards,
    )


def build_page(
    session: Session, settings: PlatformSettings, kind: RunKind, runs: list[tables.Run], position: PagePlace
) -> run_api.RunPage:
    if kind == "eval":
        return run_api.EvalRunPage(eval_runs=[eval_row(settings, run) for run in runs], **position)
    rewards = service.list_latest_rewards(session, [run.id for run in runs])
    rows = [training_row(settings, run, rewards[run.id]) for run in runs]
    return TrainingRunPage(training_runs=rows, **position)


def _config(run: tables.Run) -> JsonObject:
    experiment = run.config.get("experiment", {})
    return {**experiment, **{key: value for key, value in run.config.items() if key not in ("env", "experiment")}}


def build_detail(session: Session, settings: PlatformSettings, run: tables.Run) -> run_api.RunDetail:
    shared: dict[str, object] = {
        "config": _config(run),
        "dataset": run_api.NamedRef(id=run.dataset_id, name=run.dataset),
        "rollout": run_api.NamedRef(id=None, name=run.rollout),
        "entrypoint": run.config.get("experiment", {}).get("entrypoint"),
        "branch": run.branch,
        "commit_sha": run.commit_sha,
        "env_config": run.config.get("env", {}),
        "resolved_secret_scopes": run.secret_scopes,
        "failure": run.failure,
        "events": lifecycle.list_events(session, run.id),
        "sample_seed": run.sample_seed,
        "snapshot": run.snapshot,
    }
    if run.kind == "eval":
        report = report_of(run)
        if report is None:
            figures = None
        else:
            figures = _results(run, report).model_copy(update={"reward_stats": reward_stats(session, run, report)})
        about = eval_row(settings, run).model_copy(update={"results": figures, **_waiting(session, run)})
        search = run.optimization and {**run.optimization, "answers": []}
        shared |= {"eval_run": about, "results": figures, "report": report, "optimization": search}
        shared |= {"quarantine": quarantine_of(run)} if run.quarantine else {}
        return run_api.EvalRunDetail.model_validate(shared)
    row = training_row(settings, run, service.list_latest_rewards(session, [run.id])[run.id])
    shared |= {
        "training_run": row.model_copy(update=_waiting(session, run)),
        "model": run_api.NamedRef(id=None, name=run.model_path),
        "examples_processed_count": service.count_rollouts(session, run.id),
        "notes": None,
    }
    return TrainingRunDetail.model_validate(shared)


def _waiting(session: Session, run: tables.Run) -> dict[str, run_api.RunProgress]:
    reason = explain_waiting(session, run)
    return {"progress": run_api.RunProgress(stage=reason, completed=0, total=0)} if reason else {}


def explain_waiting(session: Session, run: tables.Run) -> str:
    reason = queue.explain_waiting(session, run)
    if reason or run.status != RunStatus.PENDING.value:
        return reason
    return quotas.explain_waiting(session, session.get_one(tables.Workspace, run.workspace_id), run)


def build_accepted(settings: PlatformSettings, run: tables.Run, **more: object) -> run_api.SubmittedRun:
    values = {"platform_url": settings.run_url(run.id), "total_dataset_rows": run.dataset_rows, **more}
    return run_api.SubmittedRun.from_row(run, **values)


def report_of(run: tables.Run) -> Report | None:
    return Report.model_validate(run.report) if run.report else None


def quarantine_of(run: tables.Run) -> RowQuarantine:
    return RowQuarantine.model_validate(run.quarantine) if run.quarantine else RowQuarantine()


def _results(run: tables.Run, report: Report | BriefReport) -> run_api.RunResults:
    primary = report.primary
    return run_api.RunResults(
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


def reward_stats(session: Session, run: tables.Run, report: Report) -> run_api.RewardStats:
    """Return statistics over rollouts with a reward (population standard deviation); None without any."""
    spread = tally_of(session, run.id).spread
    figures: dict[str, float | None] = spread._asdict() if spread else dict.fromkeys(Spread._fields)
    return run_api.RewardStats(**figures, pass_at_k={str(point.k): point.value for point in pass_at_k(report.primary)})


def pass_at_k(primary: ScoreReport | None) -> list[run_api.PassAtKPoint]:
    return [run_api.PassAtKPoint(k=point.k, value=point.value) for point in primary.pass_at_k] if primary else []


def build_metrics(session: Session, run: tables.Run) -> run_api.EvalMetrics:
    report = report_of(run)
    stored = tally_of(session, run.id)
    unscored = {"failed": stored.count(RolloutStatus.FAILED), "skipped": stored.count(RolloutStatus.SKIPPED)}
    results = _results(run, report) if report else run_api.RunResults(graded=0, passed=0, total_tokens=0, **unscored)
    attempts = run.config.get("evaluation", {}).get("n", 1)
    overview = run_api.EvalOverview.from_row(
        results,
        duration_ms=lifecycle.duration_ms(run),
        total_samples=run.sampled_rows * attempts,
        completed_samples=stored.total,
        pass_threshold=run.config.get("evaluation", {}).get("pass_threshold"),
        tokens_used=results.total_tokens,
    )
    return run_api.EvalMetrics(
        status=run.status,
        overview=overview,
        reward_stats=reward_stats(session, run, report) if report else None,
        pass_at_k=pass_at_k(report.primary) if report else [],
        report=report,
        progress=run_api.RunProgress.model_validate(run.progress) if run.progress is not None else None,
    )

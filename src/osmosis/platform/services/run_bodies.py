"""Runs as clients read them: rows of the database as the bodies of the API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

from sqlalchemy.orm import Session

from osmosis.base.json_types import JsonObject
from osmosis.platform import tables
from osmosis.platform.settings import PlatformSettings
from osmosis.records.contract.body import Moment, moment
from osmosis.records.contract.eval_bodies import EvalRunDetail, EvalRunPage, EvalRunRow
from osmosis.records.contract.run_bodies import (
    MarkedRun,
    NamedRef,
    RetriedRun,
    RunDetail,
    RunEvent,
    RunFailure,
    RunPage,
    RunProgress,
    StoppingRun,
)
from osmosis.records.contract.submitted import SubmittedRun
from osmosis.records.contract.training_bodies import (
    FileRef,
    ModelRef,
    TrainingRunDetail,
    TrainingRunPage,
    TrainingRunRow,
)
from osmosis.records.run_kind import RunKind
from osmosis.records.run_status import RunStatus
from osmosis.records.source import SnapshotNote

from . import links, placement, quotas, run_lifecycle, run_results, training
from .paging import PagePlace


class _Said(TypedDict):
    """What the row of either kind says."""

    id: str
    name: str
    status: str
    created_at: Moment | None
    started_at: Moment | None
    completed_at: Moment | None
    creator_name: str | None
    creator_email: str | None
    platform_url: str
    progress: RunProgress | None
    resolved_secret_scopes: dict[str, str]
    stop_requested: bool
    imported: bool
    tags: list[str]
    note: str
    pinned: bool
    priority: int


def _said(settings: PlatformSettings, run: tables.Run, creator: tables.User | None) -> _Said:
    return {
        "id": run.id,
        "name": run.name,
        "status": run.status,
        "created_at": moment(run.created_at),
        "started_at": moment(run.started_at),
        "completed_at": moment(run.completed_at),
        "creator_name": creator.name if creator else None,
        "creator_email": creator.email if creator else None,
        "platform_url": links.run(settings, run.id),
        "progress": run_results.progress_of(run),
        "resolved_secret_scopes": run.secret_scopes,
        "stop_requested": run.stop_requested_at is not None,
        "imported": run.imported is not None,
        "tags": run.tags or [],
        "note": run.note or "",
        "pinned": bool(run.pinned),
        "priority": run.priority,
    }


def eval_row(settings: PlatformSettings, run: tables.Run, creator: tables.User | None) -> EvalRunRow:
    """An evaluation run in a list."""
    return EvalRunRow.made(
        **_said(settings, run, creator),
        model=NamedRef.made(name=run.model_path),
        dataset=NamedRef.made(id=run.dataset_id, name=run.dataset),
        rollout=NamedRef.made(name=run.rollout),
        results=run_results.brief(run),
        config=_config(run),
    )


def training_row(
    settings: PlatformSettings, run: tables.Run, creator: tables.User | None, reward: float | None
) -> TrainingRunRow:
    """A training run in a list; `reward` is that of its last step."""
    progress = run.progress or tables.StoredProgress()
    return TrainingRunRow(
        **_said(settings, run, creator),
        model=ModelRef(id=None, model_name=run.model_path),
        dataset=FileRef(id=run.dataset_id, file_name=run.dataset),
        rollout=NamedRef(id=None, name=run.rollout),
        current_step=progress.get("completed"),
        total_steps=progress.get("total"),
        reward=reward,
    )


def run_page(
    session: Session,
    settings: PlatformSettings,
    kind: RunKind,
    found: list[tables.Run],
    users: Mapping[str | None, tables.User],
    place: PagePlace,
) -> RunPage:
    """A page of runs of one kind, with who submitted each."""
    if kind == "eval":
        return EvalRunPage(eval_runs=[eval_row(settings, run, users.get(run.creator_id)) for run in found], **place)
    rewards = training.latest_rewards(session, [run.id for run in found])
    rows = [training_row(settings, run, users.get(run.creator_id), rewards.get(run.id)) for run in found]
    return TrainingRunPage(training_runs=rows, **place)


def _config(run: tables.Run) -> JsonObject:
    """The config with the keys clients read at the top, and its tables."""
    experiment = run.config.get("experiment", {})
    return {**experiment, **{key: value for key, value in run.config.items() if key not in ("env", "experiment")}}


class _Detail(TypedDict):
    """What the detail of either kind says beside its row."""

    config: JsonObject
    dataset: NamedRef
    rollout: NamedRef
    entrypoint: str | None
    branch: str | None
    commit_sha: str
    env_config: dict[str, str]
    resolved_secret_scopes: dict[str, str]
    failure: RunFailure | None
    events: list[RunEvent]
    sample_seed: int | None
    snapshot: SnapshotNote | None


def detail(session: Session, settings: PlatformSettings, run: tables.Run, creator: tables.User | None) -> RunDetail:
    """One run, whole."""
    shared: _Detail = {
        "config": _config(run),
        "dataset": NamedRef(id=run.dataset_id, name=run.dataset),
        "rollout": NamedRef(id=None, name=run.rollout),
        "entrypoint": run.config.get("experiment", {}).get("entrypoint"),
        "branch": run.branch,
        "commit_sha": run.commit_sha,
        "env_config": run.config.get("env", {}),
        "resolved_secret_scopes": run.secret_scopes,
        "failure": RunFailure.model_validate(run.failure) if run.failure is not None else None,
        "events": run_lifecycle.events(session, run.id),
        "sample_seed": run.sample_seed,
        "snapshot": SnapshotNote.model_validate(run.snapshot) if run.snapshot is not None else None,
    }
    if run.kind == "eval":
        report = run_results.report_of(run)
        figures = run_results.full(session, run, report)
        about = eval_row(settings, run, creator).model_copy(update={"results": figures, **_waiting(session, run)})
        aside = {"quarantine": run_results.quarantine_of(run)} if run.quarantine else {}
        return EvalRunDetail(eval_run=about, **shared, results=figures, report=report, **aside)
    row = training_row(settings, run, creator, training.latest_rewards(session, [run.id]).get(run.id))
    return TrainingRunDetail(
        training_run=row.model_copy(update=_waiting(session, run)),
        **shared,
        model=NamedRef(id=None, name=run.model_path),
        examples_processed_count=training.rollouts_done(session, run.id),
        notes=None,
    )


def _waiting(session: Session, run: tables.Run) -> dict[str, RunProgress]:
    """In the place of a stage: why a run waits."""
    why = why_waiting(session, run)
    return {"progress": RunProgress(stage=why, completed=0, total=0)} if why else {}


def why_waiting(session: Session, run: tables.Run) -> str:
    """Why a run is pending: no worker can take it, or a quota of its workspace is used up; or in which scheduler its
    jobs are queued. Empty when it is next, or works."""
    why = placement.why_waiting(session, run)
    if why or run.status != RunStatus.PENDING.value:
        return why
    return quotas.why_waiting(session, session.get_one(tables.Workspace, run.workspace_id), run)


class _Accepted(TypedDict):
    id: str
    name: str
    status: str
    created_at: Moment | None
    platform_url: str
    branch: str | None
    commit_sha: str
    sampled_rows: int
    total_dataset_rows: int | None
    sample_seed: int | None


def _accepted(settings: PlatformSettings, run: tables.Run) -> _Accepted:
    return {
        "id": run.id,
        "name": run.name,
        "status": run.status,
        "created_at": moment(run.created_at),
        "platform_url": links.run(settings, run.id),
        "branch": run.branch,
        "commit_sha": run.commit_sha,
        "sampled_rows": run.sampled_rows,
        "total_dataset_rows": run.dataset_rows,
        "sample_seed": run.sample_seed,
    }


def accepted(settings: PlatformSettings, run: tables.Run) -> SubmittedRun:
    """The answer of a submit."""
    return SubmittedRun(**_accepted(settings, run))


def marked(run: tables.Run) -> MarkedRun:
    """The answer of a change of marks."""
    return MarkedRun(id=run.id, name=run.name, tags=run.tags, note=run.note, pinned=run.pinned)


def stopping(settings: PlatformSettings, run: tables.Run) -> StoppingRun:
    """The answer of a stop."""
    return StoppingRun(**_accepted(settings, run), stop_requested=run.stop_requested_at is not None)


def retried(settings: PlatformSettings, run: tables.Run, count: int) -> RetriedRun:
    """The answer of a retry of `count` rollouts."""
    return RetriedRun(
        id=run.id,
        name=run.name,
        status=run.status,
        workflow_id=run.id,
        retryable_samples=count,
        platform_url=links.run(settings, run.id),
    )

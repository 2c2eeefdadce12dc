"""Runs as clients read them, in the shapes of contract B.

Only puts stored values into words; the extra keys (`progress`, `report`, `failure`, `events`) are ours.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy.orm import Session

from .. import tables
from ..settings import PlatformSettings
from . import links, results, runs


def _moment(value: Any) -> str | None:
    return value.isoformat() if value else None


def row(settings: PlatformSettings, run: tables.Run, creator: tables.User | None) -> dict[str, Any]:
    """A run in a list."""
    body = {
        "id": run.id,
        "name": run.name,
        "status": run.status,
        "created_at": _moment(run.created_at),
        "started_at": _moment(run.started_at),
        "completed_at": _moment(run.completed_at),
        "creator_name": creator.name if creator else None,
        "creator_email": creator.email if creator else None,
        "platform_url": links.run(settings, run.id),
        "progress": run.progress,
        "resolved_secret_scopes": run.secret_scopes,
        "stop_requested": run.stop_requested_at is not None,
        "imported": run.imported is not None,
    }
    if run.kind == "eval":
        body["model"] = {"name": run.model_path}
        body["dataset"] = {"id": run.dataset_id, "name": run.dataset}
        body["rollout"] = {"name": run.rollout}
        body["results"] = results.brief(run)
        body["config"] = _config(run)
    else:
        body["model"] = {"id": None, "model_name": run.model_path}
        body["dataset"] = {"id": run.dataset_id, "file_name": run.dataset}
        body["rollout"] = {"id": None, "name": run.rollout}
        body["current_step"] = (run.progress or {}).get("completed")
        body["total_steps"] = (run.progress or {}).get("total")
        body["reward"] = None
    return body


def _config(run: tables.Run) -> dict[str, Any]:
    """The config with the keys clients read at the top, and its tables."""
    experiment = run.config.get("experiment", {})
    return {**experiment, **{key: value for key, value in run.config.items() if key not in ("env", "experiment")}}


def detail(
    session: Session, settings: PlatformSettings, run: tables.Run, creator: tables.User | None
) -> dict[str, Any]:
    """One run, whole. `eval_run` or `training_run` is the row."""
    experiment = run.config.get("experiment", {})
    figures = results.full(session, run) if run.kind == "eval" else None
    about = row(settings, run, creator)
    if run.kind == "eval":
        about["results"] = figures
    body = {
        f"{run.kind}_run": about,
        "config": _config(run),
        "dataset": {"id": run.dataset_id, "name": run.dataset},
        "rollout": {"id": None, "name": run.rollout},
        "entrypoint": experiment.get("entrypoint"),
        "branch": run.branch,
        "commit_sha": run.commit_sha,
        "env_config": run.config.get("env", {}),
        "resolved_secret_scopes": run.secret_scopes,
        "failure": run.failure,
        "events": runs.events(session, run.id),
        "sample_seed": run.sample_seed,
    }
    if run.kind == "eval":
        return {**body, "results": figures, "report": run.report}
    return {**body, "model": {"id": None, "name": run.model_path}, "examples_processed_count": 0, "notes": None}


def accepted(settings: PlatformSettings, run: tables.Run) -> dict[str, Any]:
    """The answer of a submit."""
    return {
        "id": run.id,
        "name": run.name,
        "status": run.status,
        "created_at": _moment(run.created_at),
        "platform_url": links.run(settings, run.id),
        "branch": run.branch,
        "commit_sha": run.commit_sha,
        "sampled_rows": run.sampled_rows,
        "total_dataset_rows": run.dataset_rows,
        "sample_seed": run.sample_seed,
    }

"""`/api/cli/eval-runs`: submit, watch, stop, retry, delete, and everything a run produced."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Body, Response
from fastapi.responses import Response as Raw
from pydantic import BaseModel, Field

from osmosis.errors import NotFound

from .. import objects, tables
from ..services import bodies, datasets, links, requests, results, rollouts, runs, samples, submit
from ..services import retry as again
from ..services.pages import LogPage, Page
from .deps import PlatformDep, ScopeDep

router = APIRouter()
PREFIX = "/api/cli/eval-runs"
MAX_ROLLOUTS = 200


class Retry(BaseModel):
    secrets: dict[str, str] = Field(default_factory=dict)


class FilePath(BaseModel):
    path: str
    token: str | None = None


class Downloads(BaseModel):
    items: list[FilePath]


@router.post(PREFIX)
def create(platform: PlatformDep, scope: ScopeDep, body: dict[str, Any] = Body()) -> dict[str, Any]:
    request = requests.parse(body, "eval")
    run = submit.submit(platform, scope.workspace, scope.user, request, kind="eval")
    return bodies.accepted(platform.settings, run)


@router.get(PREFIX)
def list_runs(platform: PlatformDep, scope: ScopeDep, limit: int = 50, offset: int = 0) -> dict[str, Any]:
    page = Page(limit, offset)
    with platform.db.read() as session:
        found, total = page.fetch(session, runs.newest_first(scope.workspace.id, "eval"))
        users = datasets.creator_names(session, {run.creator_id for run in found})
    shown = [bodies.row(platform.settings, run, users.get(run.creator_id)) for run in found]
    return page.wrap("eval_runs", shown, total)


@router.get(f"{PREFIX}/{{name}}")
def get_run(name: str, platform: PlatformDep, scope: ScopeDep) -> dict[str, Any]:
    with platform.db.read() as session:
        run = runs.find(session, scope.workspace, "eval", name)
        creator = session.get(tables.User, run.creator_id) if run.creator_id else None
        return bodies.detail(session, platform.settings, run, creator)


@router.delete(f"{PREFIX}/{{name}}", status_code=204)
def delete(name: str, platform: PlatformDep, scope: ScopeDep) -> Response:
    with platform.db.write() as session:
        run = runs.find(session, scope.workspace, "eval", name)
        run_id = run.id
        runs.delete(session, run)
    objects.remove_tree(platform.settings.runs_dir / run_id)
    return Response(status_code=204)


@router.get(f"{PREFIX}/{{name}}/metrics")
def metrics(name: str, platform: PlatformDep, scope: ScopeDep) -> dict[str, Any]:
    with platform.db.read() as session:
        return results.metrics(session, runs.find(session, scope.workspace, "eval", name))


@router.get(f"{PREFIX}/{{name}}/logs")
def logs(
    name: str,
    platform: PlatformDep,
    scope: ScopeDep,
    limit: int = 50,
    direction: str = "older",
    cursor: str | None = None,
) -> dict[str, Any]:
    page = LogPage(limit, direction, cursor)
    with platform.db.read() as session:
        run = runs.find(session, scope.workspace, "eval", name)
        return page.fetch(session, tables.RunLog, tables.RunLog.run_id == run.id)


@router.post(f"{PREFIX}/{{name}}/stop")
def stop(name: str, platform: PlatformDep, scope: ScopeDep) -> dict[str, Any]:
    with platform.db.write() as session:
        run = runs.find(session, scope.workspace, "eval", name)
        runs.request_stop(session, run)
        return {**bodies.accepted(platform.settings, run), "stop_requested": run.stop_requested_at is not None}


@router.post(f"{PREFIX}/{{name}}/retry")
def retry(name: str, platform: PlatformDep, scope: ScopeDep, body: Retry | None = None) -> dict[str, Any]:
    with platform.db.write() as session:
        run = runs.find(session, scope.workspace, "eval", name)
        count = again.retry(session, platform.vault, run, scope.user, body.secrets if body else {})
        url = links.run(platform.settings, run.id)
        return {
            "id": run.id,
            "name": run.name,
            "status": run.status,
            "workflow_id": run.id,
            "retryable_samples": count,
            "platform_url": url,
        }


@router.get(f"{PREFIX}/{{name}}/rollouts")
def list_rollouts(
    name: str,
    platform: PlatformDep,
    scope: ScopeDep,
    limit: int = 50,
    offset: int = 0,
    status: str | None = None,
) -> dict[str, Any]:
    page = Page(limit, offset, top=MAX_ROLLOUTS)
    with platform.db.read() as session:
        run = runs.find(session, scope.workspace, "eval", name)
        found, total = page.fetch(session, rollouts.listed(run.id, status))
    return page.wrap("rollouts", [rollouts.body(row) for row in found], total)


@router.get(f"{PREFIX}/{{name}}/rollouts/{{row}}/{{attempt}}")
def get_rollout(name: str, row: int, attempt: int, platform: PlatformDep, scope: ScopeDep) -> Raw:
    with platform.db.read() as session:
        run = runs.find(session, scope.workspace, "eval", name)
        text = rollouts.text(session, run.id, row, attempt)
    return Raw(text, media_type="application/json")


@router.get(f"{PREFIX}/{{name}}/samples/manifest")
def manifest(
    name: str, platform: PlatformDep, scope: ScopeDep, types: str | None = None, rows: str | None = None
) -> dict[str, Any]:
    with platform.db.read() as session:
        run = runs.find(session, scope.workspace, "eval", name)
        return samples.manifest(session, platform.settings, run, types, rows)


@router.post(f"{PREFIX}/{{name}}/samples/download-urls")
def download_urls(name: str, body: Downloads, platform: PlatformDep, scope: ScopeDep) -> dict[str, Any]:
    samples.check_paths([wanted.path for wanted in body.items])
    with platform.db.read() as session:
        run = runs.find(session, scope.workspace, "eval", name)
    answer = []
    for wanted in body.items:
        url = objects.sign_url(platform, f"runs/{run.id}/{wanted.path}", method="GET")
        answer.append({"path": wanted.path, "url": url, "token": wanted.token})
    return {"items": answer, "expires_in": platform.settings.url_lifetime_s}


@router.get("/api/objects/runs/{run_id}/{path:path}")
def get_object(run_id: str, path: str, expires: int, signature: str, platform: PlatformDep) -> Raw:
    objects.check_url(platform, f"runs/{run_id}/{path}", method="GET", expires=expires, signature=signature)
    with platform.db.read() as session:
        run = session.get(tables.Run, run_id)
        if run is None:
            raise NotFound("this run is gone")
        return Raw(samples.content(session, platform.settings, run, path), media_type="application/octet-stream")

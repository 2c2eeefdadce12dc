"""`/api/cli/training-runs`: like eval runs; refused with what to install where no trainer is."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Body, Response

from .. import objects, tables
from ..services import bodies, curves, datasets, requests, runs, submit, trainers
from ..services.pages import LogPage, Page
from .deps import PlatformDep, ScopeDep

router = APIRouter()
PREFIX = "/api/cli/training-runs"


@router.post(PREFIX)
def create(platform: PlatformDep, scope: ScopeDep, body: dict[str, Any] = Body()) -> dict[str, Any]:
    request = requests.parse(body, "training")
    trainers.check()
    run = submit.submit(platform, scope.workspace, scope.user, request, kind="training")
    return bodies.accepted(platform.settings, run)


@router.get(PREFIX)
def list_runs(platform: PlatformDep, scope: ScopeDep, limit: int = 50, offset: int = 0) -> dict[str, Any]:
    page = Page(limit, offset)
    with platform.db.read() as session:
        found, total = page.fetch(session, runs.newest_first(scope.workspace.id, "training"))
        users = datasets.creator_names(session, {run.creator_id for run in found})
    shown = [bodies.row(platform.settings, run, users.get(run.creator_id)) for run in found]
    return page.wrap("training_runs", shown, total)


@router.get(f"{PREFIX}/{{name}}")
def get_run(name: str, platform: PlatformDep, scope: ScopeDep) -> dict[str, Any]:
    with platform.db.read() as session:
        run = runs.find(session, scope.workspace, "training", name)
        creator = session.get(tables.User, run.creator_id) if run.creator_id else None
        return bodies.detail(session, platform.settings, run, creator)


@router.get(f"{PREFIX}/{{name}}/metrics")
def metrics(name: str, platform: PlatformDep, scope: ScopeDep) -> dict[str, Any]:
    with platform.db.read() as session:
        return curves.body(session, runs.find(session, scope.workspace, "training", name))


@router.get(f"{PREFIX}/{{name}}/checkpoints")
def checkpoints(name: str, platform: PlatformDep, scope: ScopeDep) -> dict[str, Any]:
    with platform.db.read() as session:
        run = runs.find(session, scope.workspace, "training", name)
        return curves.checkpoints(session, run)


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
        run = runs.find(session, scope.workspace, "training", name)
        return page.fetch(session, tables.RunLog, tables.RunLog.run_id == run.id)


@router.post(f"{PREFIX}/{{name}}/stop")
def stop(name: str, platform: PlatformDep, scope: ScopeDep) -> dict[str, Any]:
    with platform.db.write() as session:
        run = runs.find(session, scope.workspace, "training", name)
        runs.request_stop(session, run)
        return bodies.accepted(platform.settings, run)


@router.delete(f"{PREFIX}/{{name}}", status_code=204)
def delete(name: str, platform: PlatformDep, scope: ScopeDep) -> Response:
    with platform.db.write() as session:
        run = runs.find(session, scope.workspace, "training", name)
        run_id = run.id
        runs.delete(session, run)
    objects.remove_tree(platform.settings.runs_dir / run_id)
    return Response(status_code=204)

"""The models of a workspace, and one model: where it comes from, what it scored, whether it is deployed and how it is
asked. Deploying and undeploying are forms; everything else that can be done to a model is in the terminal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import quote

import sqlalchemy as sa
from fastapi import APIRouter, Depends, Form, Request, Response
from sqlalchemy.orm import Session

from osmosis.errors import NotFound
from osmosis.platform import Platform, tables
from osmosis.platform.db import count_of
from osmosis.platform.services import audit, datasets, deployments, merging, models, run_results, workspaces
from osmosis.records.plan import PLATFORM_MODEL
from osmosis.records.policy import may
from osmosis.records.rollout import Failure
from osmosis.viewer.view import View

from .session import Viewer, check_viewer_form, platform_of, viewer
from .templating import PageRoute, framed, html, page, redirect, streamed

router = APIRouter(route_class=PageRoute, include_in_schema=False)
ViewerDep = Annotated[Viewer, Depends(viewer)]

PER_PAGE = 50
LISTED = 20
LINES = 40


@dataclass(frozen=True, slots=True)
class ShownModel:
    """A model with its workspace; one of `base` and `checkpoint` is there."""

    name: str
    workspace: tables.Workspace
    role: str
    """The viewer's."""
    base: tables.BaseModel | None = None
    checkpoint: tables.Checkpoint | None = None
    run: tables.Run | None = None
    """That the checkpoint is of."""


@router.get("/{workspace}/models")
def model_list(request: Request, who: ViewerDep, workspace: str, at: int = 1) -> Response:
    with platform_of(request).db.read() as session:
        row, _ = workspaces.by_name(session, who.user, workspace)
        same = tables.BaseModel.workspace_id == row.id
        bases = list(session.scalars(sa.select(tables.BaseModel).where(same).order_by(tables.BaseModel.name)))
        query = models.trained(row.id).order_by(tables.Checkpoint.created_at.desc())
        total = count_of(session, query)
        pages = max(1, math.ceil(total / PER_PAGE))
        at = min(max(1, at), pages)
        found = list(session.scalars(query.limit(PER_PAGE).offset((at - 1) * PER_PAGE)))
        runs = {run.id: run for run in session.scalars(sa.select(tables.Run).where(tables.Run.kind == "training"))}
        known = session.scalars(deployments.of_workspaces(row.id, open_only=False))
        states = {run.name: deployments.state_of(run) for run in known}
    return page(
        request, "models.html", who, here="models", workspace=workspace, bases=bases, trained=found, runs=runs,
        states=states, total=total, at=at, pages=pages,
    )  # fmt: skip


@router.get("/models/{model_id}")
def model_page(request: Request, who: ViewerDep, model_id: str) -> Response:
    view, workspace = _shown(platform_of(request), who, model_id)
    return framed(request, view, who, here="models", workspace=workspace)


@router.get("/models/{model_id}/events")
def model_events(request: Request, who: ViewerDep, model_id: str) -> Response:
    """Server-sent events of the page, until the deployment has started, or stopped."""
    platform = platform_of(request)

    def build() -> tuple[str, bool]:
        view, _ = _shown(platform, who, model_id)
        return html(view.changing), view.final

    build()  # what there is not is said before a stream begins
    return streamed(request, f"{who.user.id} {who.csrf} model {model_id}", build)


def _shown(platform: Platform, who: Viewer, model_id: str) -> tuple[View, str]:
    """The page, and the name of its workspace."""
    with platform.db.read() as session:
        shown = _find(session, who, model_id)
        run = deployments.find(session, shown.workspace.id, shown.name)
        people = datasets.creator_names(session, {run.creator_id} if run else set())
        state = deployments.state_of(run) if run else None
        values = {
            "csrf": who.csrf,
            "shown": shown,
            "may_change": may(shown.role, "run"),
            "deployed": run,
            "state": state,
            "moving": state in ("starting", "stopping"),
            "active": deployments.is_active(run),
            "deployer": people.get(run.creator_id) if run else None,
            "failure": Failure.model_validate(run.failure) if run and run.failure else None,
            "answered": (run.progress or {}).get("completed", 0) if run else 0,
            "lines": _lines(session, run) if run else [],
            "merged_from": _merged_from(session, shown),
            "evals": _evaluations(session, shown),
            "adapters": _adapters(session, shown),
            "url": f"{platform.settings.url}/v1",
        }
    return View("model.html", values, live="_model.html", final=not values["moving"]), shown.workspace.name


@router.post("/models/{model_id}/{action}")
def change(request: Request, who: ViewerDep, model_id: str, action: str, csrf: Annotated[str, Form()] = "") -> Response:
    """Deploy or undeploy."""
    check_viewer_form(request, who, csrf)
    platform = platform_of(request)
    with platform.db.write() as session:
        shown = _find(session, who, model_id)
        workspaces.require(shown.role, "run")
        if action == "deploy":
            deployments.deploy(session, platform, shown.workspace, who.user, shown.name)
        elif action == "undeploy":
            deployments.undeploy(session, shown.workspace, shown.name)
        else:
            raise NotFound(f"a model cannot be told to {action}")
        audit.note(session, who, f"model.{action}", shown.name, workspace=shown.workspace)
    return redirect(f"/models/{quote(model_id, safe='')}")


def _find(session: Session, who: Viewer, model_id: str) -> ShownModel:
    """A model that the viewer may see. NotFound otherwise."""
    base = session.get(tables.BaseModel, model_id)
    checkpoint = session.get(tables.Checkpoint, model_id) if base is None else None
    run = session.get(tables.Run, checkpoint.run_id) if checkpoint is not None else None
    workspace_id = base.workspace_id if base is not None else run.workspace_id if run is not None else None
    role = workspaces.role_of(session, who.user.id, workspace_id) if workspace_id is not None else None
    if workspace_id is None or role is None:
        hint = "it may have been deleted, or it belongs to a workspace you are not a member of"
        raise NotFound("no such model", hint=hint)
    workspace = session.get_one(tables.Workspace, workspace_id)
    name = base.name if base is not None else checkpoint.name if checkpoint is not None else ""
    return ShownModel(name, workspace, role, base, checkpoint, run)


def _merged_from(session: Session, shown: ShownModel) -> tuple[str, str | None] | None:
    """The adapter that a merged model was made of, by name, with its id while it is there."""
    name = merging.origin_of(session, shown.base) if shown.base is not None else None
    if name is None:
        return None
    query = models.trained(shown.workspace.id).where(tables.Checkpoint.name == name)
    found = session.scalars(query).first()
    return name, found.id if found is not None else None


def _evaluations(session: Session, shown: ShownModel) -> list[tuple[tables.Run, float | None]]:
    """The newest evaluations of this model, each with its mean reward. The name of a training run is its best one."""
    names, run = [shown.name], shown.run
    if run is not None and models.find_trained(session, shown.workspace.id, run.name) is shown.checkpoint:
        names.append(run.name)
    query = sa.select(tables.Run).where(
        tables.Run.workspace_id == shown.workspace.id,
        tables.Run.kind == "eval",
        tables.Run.model_path.in_([PLATFORM_MODEL + name for name in names]),
    )
    found = []
    for run in session.scalars(query.order_by(tables.Run.created_at.desc()).limit(LISTED)):
        report = run_results.report_of(run)
        found.append((run, report.primary.mean if report is not None and report.primary is not None else None))
    return found


def _adapters(session: Session, shown: ShownModel) -> list[tables.Checkpoint]:
    """The newest checkpoints that were trained on a base model."""
    if shown.base is None:
        return []
    query = models.trained(shown.workspace.id).where(tables.Checkpoint.base_model == shown.name)
    return list(session.scalars(query.order_by(tables.Checkpoint.created_at.desc()).limit(LISTED)))


def _lines(session: Session, run: tables.Run) -> list[tables.RunLog]:
    query = sa.select(tables.RunLog).where(tables.RunLog.run_id == run.id, tables.RunLog.level != "debug")
    return list(session.scalars(query.order_by(tables.RunLog.id.desc()).limit(LINES)))

from dataclasses import dataclass
from urllib.parse import quote

import sqlalchemy as sa
from fastapi import Request, Response
from sqlalchemy.orm import Session

from osmosis.errors import NotFound
from osmosis.platform import tables
from osmosis.platform.models import deployments, merging, service as models
from osmosis.platform.paging import fetch_numbered
from osmosis.platform.runs import views
from osmosis.platform.web.session import PosterDep, Viewer, ViewerDep
from osmosis.platform.web.templating import page, page_router, redirect, render_framed, stream_page
from osmosis.platform.workspaces import audit, service as workspaces
from osmosis.records.api.accounts import Action, may
from osmosis.records.run.plan import PLATFORM_MODEL
from osmosis.records.run.rollout import Failure
from osmosis.viewer.page import Page

router = page_router()

LISTED = 20
LINES = 40


@dataclass(frozen=True, slots=True)
class ShownModel:
    name: str
    workspace: tables.Workspace
    role: str
    base: tables.BaseModel | None = None
    checkpoint: tables.Checkpoint | None = None
    run: tables.Run | None = None


@router.get("/{workspace}/models")
def model_list(viewer: ViewerDep, workspace: str, at: int = 1) -> Response:
    with viewer.platform.db.read() as session:
        row, _ = workspaces.by_name(session, viewer.user, workspace)
        same = tables.BaseModel.workspace_id == row.id
        bases = list(session.scalars(sa.select(tables.BaseModel).where(same).order_by(tables.BaseModel.name)))
        query = models.select_trained(row.id).order_by(tables.Checkpoint.created_at.desc())
        rows, position = fetch_numbered(session, query, at)
        of_page = sa.select(tables.Run).where(tables.Run.id.in_({checkpoint.run_id for checkpoint in rows}))
        runs = {run.id: run for run in session.scalars(of_page)}
        open_deployments = session.scalars(deployments.select_deployments(row.id, open_only=False))
        states = {run.name: deployments.state_of(run) for run in open_deployments}
    return page(
        "models.html", viewer, here="models", workspace=workspace, bases=bases, trained=rows, runs=runs,
        states=states, **position,
    )  # fmt: skip


@router.get("/models/{model_id}")
def model_page(viewer: ViewerDep, model_id: str) -> Response:
    view, workspace = _build_page(viewer, model_id)
    return render_framed(view, viewer, here="models", workspace=workspace)


@router.get("/models/{model_id}/events")
def model_events(request: Request, viewer: ViewerDep, model_id: str) -> Response:
    return stream_page(request, viewer, lambda: _build_page(viewer, model_id)[0])


def _build_page(viewer: Viewer, model_id: str) -> tuple[Page, str]:
    with viewer.platform.db.read() as session:
        model = _find(session, viewer, model_id)
        run = deployments.find(session, model.workspace.id, model.name)
        state = deployments.state_of(run) if run else None
        values = {
            "csrf": viewer.csrf,
            "shown": model,
            "tune": models.tune_of(model.run) if model.run is not None else None,
            "may_change": may(model.role, "run"),
            "deployed": run,
            "state": state,
            "moving": state in ("starting", "stopping"),
            "active": deployments.is_active(run),
            "deployer": run.creator if run else None,
            "failure": Failure.model_validate(run.failure) if run and run.failure else None,
            "answered": (run.progress or {}).get("completed", 0) if run else 0,
            "lines": _lines(session, run) if run else [],
            "merged_from": _merged_from(session, model),
            "evals": _evaluations(session, model),
            "adapters": _adapters(session, model),
            "url": f"{viewer.platform.settings.url}/v1",
        }
    return Page("model.html", values, live="_model.html", final=not values["moving"]), model.workspace.name


@router.post("/models/{model_id}/{action}")
def change(viewer: PosterDep, model_id: str, action: str) -> Response:
    with viewer.platform.db.write() as session:
        model = _find(session, viewer, model_id, "run")
        if action == "deploy":
            deployments.deploy(session, viewer.platform, model.workspace, viewer.user, model.name)
        elif action == "undeploy":
            deployments.undeploy(session, model.workspace, model.name)
        else:
            raise NotFound(f"a model cannot be told to {action}")
        audit.note(session, viewer, f"model.{action}", model.name, workspace=model.workspace)
    return redirect(f"/models/{quote(model_id, safe='')}")


def _find(session: Session, viewer: Viewer, model_id: str, action: Action = "read") -> ShownModel:
    base = session.get(tables.BaseModel, model_id)
    checkpoint = session.get(tables.Checkpoint, model_id) if base is None else None
    run = session.get(tables.Run, checkpoint.run_id) if checkpoint is not None else None
    _, workspace, role = workspaces.admit(session, viewer.user, base or run, "model", action)
    name = base.name if base is not None else checkpoint.name if checkpoint is not None else ""
    return ShownModel(name, workspace, role, base, checkpoint, run)


def _merged_from(session: Session, model: ShownModel) -> tuple[str, str | None] | None:
    name = merging.origin_of(session, model.base) if model.base is not None else None
    if name is None:
        return None
    query = models.select_trained(model.workspace.id).where(tables.Checkpoint.name == name)
    checkpoint = session.scalars(query).first()
    return name, checkpoint.id if checkpoint is not None else None


def _evaluations(session: Session, model: ShownModel) -> list[tuple[tables.Run, float | None]]:
    names, run = [model.name], model.run
    if run is not None and models.find_trained(session, model.workspace.id, run.name) is model.checkpoint:
        names.append(run.name)
    query = sa.select(tables.Run).where(tables.Run.workspace_id == model.workspace.id, tables.Run.kind == "eval")
    query = query.where(tables.Run.model_path.in_([PLATFORM_MODEL + name for name in names]))
    evaluations = []
    for run in session.scalars(query.order_by(tables.Run.created_at.desc()).limit(LISTED)):
        report = views.report_of(run)
        evaluations.append((run, report.primary.mean if report is not None and report.primary is not None else None))
    return evaluations


def _adapters(session: Session, model: ShownModel) -> list[tables.Checkpoint]:
    if model.base is None:
        return []
    query = models.select_trained(model.workspace.id).where(tables.Checkpoint.base_model == model.name)
    return list(session.scalars(query.order_by(tables.Checkpoint.created_at.desc()).limit(LISTED)))


def _lines(session: Session, deployment: tables.Deployment) -> list[tables.RunLog]:
    query = sa.select(tables.RunLog).filter_by(**deployment.reference).where(tables.RunLog.level != "debug")
    return list(session.scalars(query.order_by(tables.RunLog.id.desc()).limit(LINES)))

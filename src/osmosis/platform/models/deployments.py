"""Deployments: models that are served until somebody undeploys them, each named after its model."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypedDict

import sqlalchemy as sa
from sqlalchemy.orm import Session

from osmosis.errors import Conflict, NotFound
from osmosis.platform import Platform, tables
from osmosis.platform.models import service as models
from osmosis.platform.runs import lifecycle
from osmosis.platform.scheduling import queue
from osmosis.platform.settings import PlatformSettings
from osmosis.records.api.body import format_moment
from osmosis.records.api.training import ModelDeployment, ModelRow
from osmosis.records.run.job import Stage
from osmosis.records.run.plan import PLATFORM_MODEL
from osmosis.records.run.rollout import Failure
from osmosis.records.run.status import RunStatus

State = Literal["starting", "serving", "stopping", "failed", "stopped"]
OPEN = (RunStatus.PENDING.value, RunStatus.RUNNING.value)


@dataclass(frozen=True, slots=True)
class Deployable:
    id: str
    name: str
    base: str


def deployable(session: Session, workspace_id: str, name: str) -> Deployable:
    query = sa.select(tables.BaseModel).filter_by(workspace_id=workspace_id, name=name)
    if (model := session.scalars(query).first()) is not None:
        return Deployable(model.id, model.name, model.name)
    checkpoint = models.find_trained(session, workspace_id, name)
    return Deployable(checkpoint.id, checkpoint.name, checkpoint.base_model)


def find(session: Session, workspace_id: str, name: str) -> tables.Deployment | None:
    return session.scalars(sa.select(tables.Deployment).filter_by(workspace_id=workspace_id, name=name)).first()


def find_by_model(session: Session, workspace_id: str, name: str) -> tables.Deployment | None:
    deployment = find(session, workspace_id, name)
    return deployment or find(session, workspace_id, deployable(session, workspace_id, name).name)


def select_deployments(*workspace_ids: str, open_only: bool = True) -> sa.Select[tables.Deployment]:
    table = tables.Deployment
    query = sa.select(table).where(table.workspace_id.in_(workspace_ids))
    if open_only:
        query = query.where(lifecycle.is_live(table), table.stop_requested_at.is_(None))
    return query.order_by(table.created_at.desc())


def state_of(deployment: tables.Deployment) -> State:
    if deployment.status not in OPEN:
        return "failed" if deployment.status == RunStatus.FAILED.value else "stopped"
    if deployment.stop_requested_at is not None:
        return "stopping"
    return "serving" if endpoint_of(deployment) else "starting"


def endpoint_of(deployment: tables.Deployment) -> str:
    progress = deployment.progress or tables.StoredProgress()
    if deployment.status != RunStatus.RUNNING.value or progress.get("stage") != Stage.SERVING.value:
        return ""
    return progress.get("endpoint", "")


def is_active(deployment: tables.Deployment | None) -> bool:
    return deployment is not None and deployment.status in OPEN and deployment.stop_requested_at is None


def answers(session: Session, run: tables.Run) -> bool:
    try:
        model = deployable(session, run.workspace_id, run.model_path.removeprefix(PLATFORM_MODEL))
    except NotFound:
        return False
    deployment = find(session, run.workspace_id, model.name)
    return deployment is not None and state_of(deployment) == "serving"


def deploy(
    session: Session, platform: Platform, workspace: tables.Workspace, user: tables.User, name: str
) -> tables.Deployment:
    model = deployable(session, workspace.id, name)
    models.resolve_served(session, platform.settings, workspace.id, PLATFORM_MODEL + model.name)  # ValidationError
    deployment = find(session, workspace.id, model.name)
    if deployment is not None and is_active(deployment):
        return deployment
    if deployment is not None and deployment.status in OPEN:
        raise Conflict(f"model {model.name!r} is being undeployed", hint="try again in a few seconds")
    served, most = _served(session), platform.settings.max_deployments
    if len(served) >= most:
        message = f"this platform serves {most} models at once, and has no room for {model.name!r}"
        fix = "let the operator raise OSMOSIS_MAX_DEPLOYMENTS"
        if served:
            fix = f"undeploy another one (osmosis model list), or {fix}"
        raise Conflict(message, hint=fix, code="deployment_conflict", active_deployments=len(served))
    if deployment is None:
        deployment = tables.Deployment(workspace_id=workspace.id, name=model.name, status=RunStatus.PENDING.value)
        session.add(deployment)
    else:
        lifecycle.switch_status(session, deployment, RunStatus.PENDING)
    deployment.progress, deployment.started_at, deployment.creator_id = None, None, user.id
    if (checkpoint := session.get(tables.Checkpoint, model.id)) is not None:
        models.hold_checkpoint(platform.settings, checkpoint)
    session.flush()
    queue.enqueue(session, deployment, "serving")
    lifecycle.log(session, deployment, f"deployed by {user.name}")
    return deployment


def _served(session: Session) -> list[str]:
    return list(session.scalars(sa.select(tables.Deployment.name).where(lifecycle.is_live(tables.Deployment))))


def undeploy(session: Session, workspace: tables.Workspace, name: str) -> tables.Deployment:
    """Stop serving after the requests in flight; raise Conflict for a model that never was deployed."""
    deployment = find_by_model(session, workspace.id, name)
    if deployment is None:
        raise Conflict(f"model {name!r} is not deployed", hint=f"osmosis model deploy {name}")
    if is_active(deployment):
        lifecycle.request_stop(session, deployment)
    return deployment


def refuse_deployed(session: Session, run: tables.Run) -> None:
    names = sa.select(tables.Checkpoint.name).where(tables.Checkpoint.run_id == run.id)
    query = select_deployments(run.workspace_id).where(tables.Deployment.name.in_(names))
    if (deployment := session.scalars(query.limit(1)).first()) is not None:
        message = f"its checkpoint {deployment.name!r} is deployed"
        hint = f"osmosis model undeploy {deployment.name}"
        raise Conflict(f"run {run.name!r} cannot be deleted: {message}", hint=hint)


def build_deployment(session: Session, deployment: tables.Deployment) -> ModelDeployment:
    try:
        model = deployable(session, deployment.workspace_id, deployment.name)
    except NotFound:
        model = Deployable(deployment.id, deployment.name, deployment.name)
    failure = Failure.model_validate(deployment.failure) if deployment.failure else None
    return ModelDeployment(
        id=model.id,
        model_name=model.name,
        base_model=model.base,
        status="active" if is_active(deployment) else "inactive",
        state=state_of(deployment),
        message=failure.message if failure else None,
        deployed_at=format_moment(deployment.started_at or deployment.created_at),
    )


class Room(TypedDict):
    active_deployments: int
    max_active_deployments: int


def room(session: Session, settings: PlatformSettings) -> Room:
    return {"active_deployments": len(_served(session)), "max_active_deployments": settings.max_deployments}


def add_deployments(
    session: Session, settings: PlatformSettings, workspace_id: str, bare: Iterable[ModelRow]
) -> list[ModelRow]:
    query = select_deployments(workspace_id, open_only=False)
    by_name = {deployment.name: deployment for deployment in session.scalars(query)}
    return [_with(settings, row, by_name.get(row.model_name or "")) for row in bare]


def _with(settings: PlatformSettings, row: ModelRow, deployment: tables.Deployment | None) -> ModelRow:
    name = row.model_name or ""
    row.deployment_status = "active" if is_active(deployment) else "inactive"
    row.inference_model = name if row.base_model in (None, name) else f"{row.base_model}:{name}"
    row.inference_url = f"{settings.url}/v1"
    row.platform_url = f"{settings.url}/models/{row.id or ''}"
    if deployment is not None:
        row.deployment_state = state_of(deployment)
        row.deployment_message = Failure.model_validate(deployment.failure).message if deployment.failure else None
        if is_active(deployment):
            row.deployed_at = format_moment(deployment.started_at or deployment.created_at)
            row.deployed_by = deployment.creator_name
    return row

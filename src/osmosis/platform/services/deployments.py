"""Deployments: models that are served for as long as somebody wants them.

A deployment is a run of kind `serving`, named after its model: the queue, the leases, the log, restarts and the end of
a run are those of every run. Deploying the same model again starts that run again. Which deployment answers a question
is `services.inference`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, TypedDict

import sqlalchemy as sa
from sqlalchemy.orm import Session

from osmosis.errors import Conflict, NotFound
from osmosis.platform import Platform, tables
from osmosis.platform.settings import PlatformSettings
from osmosis.records.contract.body import moment
from osmosis.records.contract.training_bodies import ModelDeployment, ModelRow
from osmosis.records.plan import PLATFORM_MODEL
from osmosis.records.rollout import Failure
from osmosis.records.run import JobSpec, ModelJob, Stage
from osmosis.records.run_status import RunStatus

from . import checkpoints, datasets, job_queue, links, models, run_lifecycle
from .run_lifecycle import SERVING

State = Literal["starting", "serving", "stopping", "failed", "stopped"]
OPEN = (RunStatus.PENDING.value, RunStatus.RUNNING.value)


@dataclass(frozen=True, slots=True)
class Deployable:
    """A model of the store, by the name under which it is deployed."""

    id: str
    name: str
    base: str
    """Its base model; its own name for a base model."""


def deployable(session: Session, workspace_id: str, wanted: str) -> Deployable:
    """A base model, a checkpoint, or a training run's best one. NotFound otherwise."""
    same = tables.BaseModel.workspace_id == workspace_id, tables.BaseModel.name == wanted
    if (model := session.scalars(sa.select(tables.BaseModel).where(*same)).first()) is not None:
        return Deployable(model.id, model.name, model.name)
    checkpoint = models.find_trained(session, workspace_id, wanted)
    return Deployable(checkpoint.id, checkpoint.name, checkpoint.base_model)


def find(session: Session, workspace_id: str, name: str) -> tables.Run | None:
    """The deployment of the model with this name, whatever became of it."""
    query = sa.select(tables.Run).where(
        tables.Run.workspace_id == workspace_id, tables.Run.kind == SERVING, tables.Run.name == name
    )
    return session.scalars(query).first()


def of_model(session: Session, workspace_id: str, wanted: str) -> tables.Run | None:
    """The deployment of a model by any of its names; NotFound when there is no such model."""
    run = find(session, workspace_id, wanted)
    return run or find(session, workspace_id, deployable(session, workspace_id, wanted).name)


def of_workspaces(*workspace_ids: str, open_only: bool = True) -> sa.Select[tables.Run]:
    """Deployments, newest first."""
    query = sa.select(tables.Run).where(tables.Run.workspace_id.in_(workspace_ids), tables.Run.kind == SERVING)
    if open_only:
        query = query.where(tables.Run.status.in_(OPEN), tables.Run.stop_requested_at.is_(None))
    return query.order_by(tables.Run.created_at.desc())


def state_of(run: tables.Run) -> State:
    """What a deployment is doing."""
    if run.status not in OPEN:
        return "failed" if run.status == RunStatus.FAILED.value else "stopped"
    if run.stop_requested_at is not None:
        return "stopping"
    return "serving" if endpoint_of(run) else "starting"


def endpoint_of(run: tables.Run) -> str:
    """Where its job answers, on this machine; empty while it does not."""
    progress = run.progress or tables.StoredProgress()
    if run.status != RunStatus.RUNNING.value or progress.get("stage") != Stage.SERVING.value:
        return ""
    return progress.get("endpoint", "")


def is_active(run: tables.Run | None) -> bool:
    """Whether it is meant to be served: the contract's `active`."""
    return run is not None and run.status in OPEN and run.stop_requested_at is None


def answers(session: Session, run: tables.Run) -> bool:
    """Whether an evaluation's model is deployed and answers now: its job then needs no process of its own."""
    try:
        model = deployable(session, run.workspace_id, run.model_path.removeprefix(PLATFORM_MODEL))
    except NotFound:
        return False
    found = find(session, run.workspace_id, model.name)
    return found is not None and state_of(found) == "serving"


def deploy(
    session: Session, platform: Platform, workspace: tables.Workspace, user: tables.User, wanted: str
) -> tables.Run:
    """Serve this model from now on; one that is served already stays as it is. Conflict when there is no room."""
    model = deployable(session, workspace.id, wanted)
    models.served(session, platform.settings, workspace.id, PLATFORM_MODEL + model.name)  # ValidationError
    run = find(session, workspace.id, model.name)
    if run is not None and is_active(run):
        return run
    if run is not None and run.status in OPEN:
        raise Conflict(f"model {model.name!r} is being undeployed", hint="try again in a few seconds")
    _check_room(session, platform.settings, model.name)
    if run is None:
        run = _new(workspace, user, model)
        session.add(run)
        session.flush()
        reason = f"deployed by {user.name}"
        session.add(tables.RunEvent(run_id=run.id, before=None, status=run.status, reason=reason))
    else:
        run.progress, run.started_at, run.creator_id = None, None, user.id
        run_lifecycle.switch_status(session, run, RunStatus.PENDING, f"deployed again by {user.name}")
    if (checkpoint := session.get(tables.Checkpoint, model.id)) is not None:
        checkpoints.hold(platform.settings, checkpoint)
    job_queue.put(session, run)
    run_lifecycle.log(session, run.id, f"deployed by {user.name}")
    return run


def _check_room(session: Session, settings: PlatformSettings, name: str) -> None:
    served = _served(session)
    if len(served) < settings.max_deployments:
        return
    what = f"this platform serves {settings.max_deployments} models at once, and has no room for {name!r}"
    fix = "let the operator raise OSMOSIS_MAX_DEPLOYMENTS"
    if served:
        fix = f"undeploy another one (osmosis model list), or {fix}"
    raise Conflict(what, hint=fix, code="deployment_conflict", active_deployments=len(served))


def _served(session: Session) -> list[str]:
    """The names of what is served, or about to be, in all workspaces: they share the machine."""
    query = sa.select(tables.Run.name).where(tables.Run.kind == SERVING, tables.Run.status.in_(OPEN))
    return list(session.scalars(query))


def _new(workspace: tables.Workspace, user: tables.User, model: Deployable) -> tables.Run:
    return tables.Run(
        id=tables.new_id(),
        workspace_id=workspace.id,
        creator_id=user.id,
        kind=SERVING,
        name=model.name,
        status=RunStatus.PENDING.value,
        config={"model": model.name},
        rollout="",
        model_path=PLATFORM_MODEL + model.name,
        dataset="",
        dataset_path="",
        commit_sha="",
        rows=[],
        secret_scopes={},
    )


def undeploy(session: Session, workspace: tables.Workspace, wanted: str) -> tables.Run:
    """No longer serve this model: what is in flight is answered. Conflict when it never was deployed; one that is
    served no more stays as it is."""
    run = of_model(session, workspace.id, wanted)
    if run is None:
        raise Conflict(f"model {wanted!r} is not deployed", hint=f"osmosis model deploy {wanted}")
    if is_active(run):
        run_lifecycle.request_stop(session, run)
    return run


def refuse_deployed(session: Session, run: tables.Run) -> None:
    """Conflict while a checkpoint of this training run is deployed."""
    names = sa.select(tables.Checkpoint.name).where(tables.Checkpoint.run_id == run.id)
    query = of_workspaces(run.workspace_id).where(tables.Run.name.in_(names))
    if (found := session.scalars(query.limit(1)).first()) is not None:
        what = f"its checkpoint {found.name!r} is deployed"
        raise Conflict(f"run {run.name!r} cannot be deleted: {what}", hint=f"osmosis model undeploy {found.name}")


def job_of(session: Session, settings: PlatformSettings, run: tables.Run) -> JobSpec:
    """What its job is told."""
    model = models.served(session, settings, run.workspace_id, run.model_path)
    return JobSpec(
        run_id=run.id,
        run_name=run.name,
        kind=SERVING,
        config=ModelJob(model=run.name),
        workspace=run.workspace_id,
        sandbox=settings.sandbox,
        torch=settings.torch,
        model_path=model.base,
        adapter_path=model.adapter,
    )


# --- as clients read them ---------------------------------------------------------------------------------------


def body(session: Session, run: tables.Run) -> ModelDeployment:
    """The answer of deploying or undeploying; the model itself may be deleted by now."""
    try:
        model = deployable(session, run.workspace_id, run.name)
    except NotFound:
        model = Deployable(run.id, run.name, run.name)
    failure = Failure.model_validate(run.failure) if run.failure else None
    return ModelDeployment(
        id=model.id,
        model_name=model.name,
        base_model=model.base,
        status="active" if is_active(run) else "inactive",
        state=state_of(run),
        message=failure.message if failure else None,
        deployed_at=moment(run.started_at or run.created_at),
    )


class Room(TypedDict):
    """How many models are served, of how many: keys of the bodies that list models."""

    active_deployments: int
    max_active_deployments: int


def room(session: Session, settings: PlatformSettings) -> Room:
    """On the whole platform."""
    return {"active_deployments": len(_served(session)), "max_active_deployments": settings.max_deployments}


def rows(session: Session, settings: PlatformSettings, workspace_id: str, bare: Iterable[ModelRow]) -> list[ModelRow]:
    """Models with what is known of their deployments."""
    query = of_workspaces(workspace_id, open_only=False)
    known = {run.name: run for run in session.scalars(query)}
    people = datasets.creator_names(session, {run.creator_id for run in known.values()})
    return [_with(settings, row, known.get(row.model_name or ""), people) for row in bare]


def _with(
    settings: PlatformSettings, row: ModelRow, run: tables.Run | None, people: Mapping[str | None, tables.User]
) -> ModelRow:
    name = row.model_name or ""
    row.deployment_status = "active" if is_active(run) else "inactive"
    row.inference_model = name if row.base_model in (None, name) else f"{row.base_model}:{name}"
    row.inference_url = f"{settings.url}/v1"
    row.platform_url = links.model(settings, row.id or "")
    if run is not None:
        row.deployment_state = state_of(run)
        row.deployment_message = Failure.model_validate(run.failure).message if run.failure else None
        if is_active(run):
            row.deployed_at = moment(run.started_at or run.created_at)
            row.deployed_by = people[run.creator_id].name if run.creator_id in people else None
    return row

"""Merges: an adapter added into its base model, as a new base model of the store. Loads no model.

A merge is a run of kind `merge`, named after the new model, which gets its id. The job makes the files in the model's
folder; they are checked here as those of an upload are.
"""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.orm import Session

from osmosis.errors import Conflict, NotFound, OsmosisError
from osmosis.platform import Platform, tables
from osmosis.platform.settings import PlatformSettings
from osmosis.records.contract.model_bodies import AnnouncedFile, MergeRequest, ModelMerge
from osmosis.records.plan import PLATFORM_MODEL
from osmosis.records.rollout import Failure
from osmosis.records.run import JobSpec, ModelJob
from osmosis.records.run_status import RunStatus

from . import checkpoints, job_queue, models, run_lifecycle
from .run_lifecycle import MERGE

OPEN = (RunStatus.PENDING.value, RunStatus.RUNNING.value)


def start(
    session: Session,
    platform: Platform,
    workspace: tables.Workspace,
    user: tables.User,
    wanted: str,
    wish: MergeRequest,
) -> tables.Run:
    """A merge that waits for its turn, or the one of that name that is not over. Conflict when the name is taken."""
    checkpoint = _adapter(session, workspace.id, wanted)
    models.adapter_of(platform.settings, checkpoint)
    name = wish.name or f"{checkpoint.name}-merged"
    models.check_name(name)
    _refuse_taken(session, workspace.id, name)
    known = session.scalars(_named(workspace.id, name)).first()
    if known is not None and known.status in OPEN:
        return known
    if known is not None:  # it failed, or what came of it was deleted
        session.delete(known)
        session.flush()
    run = tables.Run(
        id=tables.new_id(),
        workspace_id=workspace.id,
        creator_id=user.id,
        kind=MERGE,
        name=name,
        status=RunStatus.PENDING.value,
        config={"model": checkpoint.name, "dtype": wish.dtype},
        rollout="",
        model_path=PLATFORM_MODEL + checkpoint.name,
        dataset="",
        dataset_path="",
        commit_sha="",
        rows=[],
        secret_scopes={},
    )
    session.add(run)
    session.flush()
    session.add(tables.RunEvent(run_id=run.id, before=None, status=run.status, reason=f"asked for by {user.name}"))
    checkpoints.hold(platform.settings, checkpoint)
    job_queue.put(session, run)
    run_lifecycle.log(session, run.id, f"{checkpoint.name} is to be merged, asked for by {user.name}")
    return run


def _adapter(session: Session, workspace_id: str, wanted: str) -> tables.Checkpoint:
    same = tables.BaseModel.workspace_id == workspace_id, tables.BaseModel.name == wanted
    if session.scalar(sa.select(sa.func.count()).select_from(tables.BaseModel).where(*same)):
        raise Conflict(
            f"{wanted!r} is a base model: there is no adapter to merge", hint="osmosis model list --type lora"
        )
    return models.find_trained(session, workspace_id, wanted)


def _refuse_taken(session: Session, workspace_id: str, name: str) -> None:
    same = tables.BaseModel.workspace_id == workspace_id, tables.BaseModel.name == name
    if session.scalar(sa.select(sa.func.count()).select_from(tables.BaseModel).where(*same)):
        raise Conflict(f"a base model named {name!r} already exists", hint="choose another name: --name NAME")


def _named(workspace_id: str, name_or_id: str) -> sa.Select[tables.Run]:
    of_it = sa.or_(tables.Run.name == name_or_id, tables.Run.id == name_or_id)
    return sa.select(tables.Run).where(tables.Run.workspace_id == workspace_id, tables.Run.kind == MERGE, of_it)


def find(session: Session, workspace_id: str, name_or_id: str) -> tables.Run:
    """A merge by the name of the new model, or by its id. NotFound otherwise."""
    run = session.scalars(_named(workspace_id, name_or_id)).first()
    if run is None:
        raise NotFound(f"nothing was merged into a model named {name_or_id!r}", hint="osmosis model merge NAME")
    return run


def origin_of(session: Session, model: tables.BaseModel) -> str | None:
    """The name of the adapter that a merged model was made of; None for one that was uploaded."""
    run = session.get(tables.Run, model.id)
    return run.config.get("model") if run is not None and run.kind == MERGE else None


def job_of(session: Session, settings: PlatformSettings, run: tables.Run) -> JobSpec:
    """What its job is told."""
    model = models.served(session, settings, run.workspace_id, run.model_path)
    return JobSpec(
        run_id=run.id,
        run_name=run.name,
        kind=MERGE,
        config=ModelJob(
            model=run.config.get("model", ""),
            output_dir=str(models.folder_of(settings, run.id)),
            dtype=run.config.get("dtype", "auto"),
        ),
        workspace=run.workspace_id,
        sandbox=settings.sandbox,
        torch=settings.torch,
        model_path=model.base,
        adapter_path=model.adapter,
    )


def made(platform: Platform, run: tables.Run, files: Sequence[AnnouncedFile]) -> None:
    """The job's word that the files are there: a base model when they are one, else nothing is left of them."""
    with platform.db.write() as session:
        if session.get(tables.BaseModel, run.id) is None:
            _refuse_taken(session, run.workspace_id, run.name)
            listed = sorted(files, key=lambda file: file.path)
            model = tables.BaseModel(
                id=run.id,
                workspace_id=run.workspace_id,
                creator_id=run.creator_id,
                name=run.name,
                status=models.UPLOADING,
                files=[file.to_dict() for file in listed],
                size=sum(file.size for file in listed),
            )
            session.add(model)
    try:
        for file in files:
            key = models.key_of(run.id) + file.path
            platform.objects.put(key, platform.settings.located(key))
        models.ready(platform, run.id)
    except OsmosisError:
        with platform.db.write() as session:
            session.delete(session.get_one(tables.BaseModel, run.id))
        models.delete_files(platform, models.key_of(run.id))
        raise


def forget(session: Session, model: tables.BaseModel) -> None:
    """The merge that a deleted model came of goes with it; its files follow."""
    run = session.get(tables.Run, model.id)
    if run is not None and run.kind == MERGE:
        session.delete(run)


def body(run: tables.Run) -> ModelMerge:
    """A merge as clients read it."""
    failure = Failure.model_validate(run.failure) if run.failure else None
    return ModelMerge(
        id=run.id,
        model_name=run.name,
        merged_from=run.config.get("model"),
        status=run.status,
        stage=(run.progress or {}).get("stage"),
        message=failure.message if failure else None,
        fix=failure.fix if failure else None,
    )

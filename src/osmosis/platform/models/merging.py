"""Merges: an adapter added into its base model, as a new one with the merge's name and id."""

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.orm import Session

from osmosis.errors import Conflict, NotFound, OsmosisError
from osmosis.platform import Platform, tables
from osmosis.platform.db import count_of
from osmosis.platform.models import service as models
from osmosis.platform.runs import lifecycle
from osmosis.platform.scheduling import queue
from osmosis.records.api.training import AnnouncedFile, MergeRequest, ModelMerge
from osmosis.records.run.rollout import Failure
from osmosis.records.run.status import RunStatus


def start(
    session: Session,
    platform: Platform,
    workspace: tables.Workspace,
    user: tables.User,
    adapter: str,
    wish: MergeRequest,
) -> tables.Merge:
    if count_of(session, sa.select(tables.BaseModel).filter_by(workspace_id=workspace.id, name=adapter)):
        message = f"{adapter!r} is a base model: there is no adapter to merge"
        raise Conflict(message, hint="osmosis model list --type lora")
    checkpoint = models.find_trained(session, workspace.id, adapter)
    models.weights_of(platform.settings, checkpoint)
    name = wish.name or f"{checkpoint.name}-merged"
    models.check_name(name)
    _refuse_taken(session, workspace.id, name)
    merge = session.scalars(_named(workspace.id, name)).first()
    if merge is not None and not RunStatus(merge.status).over:
        return merge
    if merge is not None:  # it failed, or what came of it was deleted
        session.delete(merge)
        session.flush()
    merge = tables.Merge(
        workspace_id=workspace.id,
        creator_id=user.id,
        name=name,
        status=RunStatus.PENDING.value,
        adapter=checkpoint.name,
        dtype=wish.dtype,
    )
    session.add(merge)
    session.flush()
    models.hold_checkpoint(platform.settings, checkpoint)
    queue.enqueue(session, merge, "merge")
    lifecycle.log(session, merge, f"{checkpoint.name} is to be merged, asked for by {user.name}")
    return merge


def _refuse_taken(session: Session, workspace_id: str, name: str) -> None:
    if count_of(session, sa.select(tables.BaseModel).filter_by(workspace_id=workspace_id, name=name)):
        raise Conflict(f"a base model named {name!r} already exists", hint="choose another name: --name NAME")


def _named(workspace_id: str, name_or_id: str) -> sa.Select[tables.Merge]:
    of_it = sa.or_(tables.Merge.name == name_or_id, tables.Merge.id == name_or_id)
    return sa.select(tables.Merge).where(tables.Merge.workspace_id == workspace_id, of_it)


def find(session: Session, workspace_id: str, name_or_id: str) -> tables.Merge:
    merge = session.scalars(_named(workspace_id, name_or_id)).first()
    if merge is None:
        raise NotFound(f"nothing was merged into a model named {name_or_id!r}", hint="osmosis model merge NAME")
    return merge


def origin_of(session: Session, model: tables.BaseModel) -> str | None:
    merge = session.get(tables.Merge, model.id)
    return merge.adapter if merge is not None else None


def store_model(platform: Platform, merge: tables.Merge, files: Sequence[AnnouncedFile]) -> None:
    with platform.db.write() as session:
        if session.get(tables.BaseModel, merge.id) is None:
            _refuse_taken(session, merge.workspace_id, merge.name)
            listed = sorted(files, key=lambda file: file.path)
            model = tables.BaseModel(
                id=merge.id,
                workspace_id=merge.workspace_id,
                creator_id=merge.creator_id,
                name=merge.name,
                status=models.UPLOADING,
                files=[file.to_dict() for file in listed],
                size=sum(file.size for file in listed),
            )
            session.add(model)
    try:
        for file in files:
            key = models.key_of(merge.id) + file.path
            platform.objects.put(key, platform.settings.located(key))
        models.mark_ready(platform, merge.id)
    except OsmosisError:
        with platform.db.write() as session:
            session.delete(session.get_one(tables.BaseModel, merge.id))
        models.delete_files(platform, models.key_of(merge.id))
        raise


def build_merge(merge: tables.Merge) -> ModelMerge:
    failure = Failure.model_validate(merge.failure) if merge.failure else None
    return ModelMerge(
        id=merge.id,
        model_name=merge.name,
        merged_from=merge.adapter,
        status=merge.status,
        stage=(merge.progress or {}).get("stage"),
        message=failure.message if failure else None,
        fix=failure.fix if failure else None,
    )

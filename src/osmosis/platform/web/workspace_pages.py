"""What a workspace has: datasets, secrets (never a value), its repository with Git Sync, rollout servers."""

from __future__ import annotations

import math
from typing import Annotated

import sqlalchemy as sa
from fastapi import APIRouter, BackgroundTasks, Depends, Form, Request, Response

from osmosis.errors import NotFound
from osmosis.platform import tables
from osmosis.platform.db import count_of
from osmosis.platform.gitsync import repositories, synced, syncing
from osmosis.platform.services import datasets, rollout_servers, secrets, workspaces
from osmosis.platform.slow_work import apart
from osmosis.records.policy import may

from .session import Viewer, check_viewer_form, platform_of, viewer
from .templating import PageRoute, page, redirect

router = APIRouter(route_class=PageRoute, include_in_schema=False)
ViewerDep = Annotated[Viewer, Depends(viewer)]

PER_PAGE = 50
PREVIEW_ROWS = 20
EVENTS = 30
SERVERS = 50


@router.get("/{workspace}/datasets")
def dataset_list(request: Request, who: ViewerDep, workspace: str, at: int = 1) -> Response:
    with platform_of(request).db.read() as session:
        row, _ = workspaces.by_name(session, who.user, workspace)
        query = datasets.newest_first(row)
        total = count_of(session, query)
        pages = max(1, math.ceil(total / PER_PAGE))
        at = min(max(1, at), pages)
        found = list(session.scalars(query.limit(PER_PAGE).offset((at - 1) * PER_PAGE)))
        people = datasets.creator_names(session, {dataset.creator_id for dataset in found})
    return page(
        request, "datasets.html", who, here="datasets", workspace=workspace, found=found, people=people, total=total,
        at=at, pages=pages,
    )  # fmt: skip


@router.get("/datasets/{dataset_id}")
def dataset_page(request: Request, who: ViewerDep, dataset_id: str) -> Response:
    with platform_of(request).db.read() as session:
        dataset = session.get(tables.Dataset, dataset_id)
        role = workspaces.role_of(session, who.user.id, dataset.workspace_id) if dataset is not None else None
        if dataset is None or role is None:
            raise NotFound(
                "no such dataset", hint="it may have been deleted, or it belongs to a workspace you are not a member of"
            )
        workspace = session.get_one(tables.Workspace, dataset.workspace_id)
        people = datasets.creator_names(session, {dataset.creator_id})
        used = sa.select(tables.Run).where(tables.Run.dataset_id == dataset.id)
        used_by = list(session.scalars(used.order_by(tables.Run.created_at.desc()).limit(20)))
        log = sa.select(tables.DatasetLog).where(tables.DatasetLog.dataset_id == dataset.id)
        lines = list(session.scalars(log.order_by(tables.DatasetLog.id.desc()).limit(50)))
    preview = [row for row in (dataset.preview or [])[:PREVIEW_ROWS] if isinstance(row, dict)]
    columns = list(dict.fromkeys(key for row in preview for key in row))
    return page(
        request, "dataset.html", who, here="datasets", workspace=workspace.name, dataset=dataset,
        creator=people.get(dataset.creator_id), preview=preview, columns=columns, used_by=used_by, lines=lines,
    )  # fmt: skip


@router.get("/{workspace}/secrets")
def secret_list(request: Request, who: ViewerDep, workspace: str) -> Response:
    with platform_of(request).db.read() as session:
        row, role = workspaces.by_name(session, who.user, workspace)
        workspaces.require(role, "secrets.own")
        found = list(session.scalars(secrets.visible(row, who.user, "all")))
        people = datasets.creator_names(session, {secret.updater_id for secret in found})
    personal = {secret.name for secret in found if secret.scope == "user"}
    shared = {secret.name for secret in found if secret.scope == "workspace"}
    return page(
        request, "secrets.html", who, here="secrets", workspace=workspace, found=found, people=people,
        shadowed=personal & shared, shared_too=may(role, "secrets.shared"),
    )  # fmt: skip


@router.get("/{workspace}/repository")
def repository_page(request: Request, who: ViewerDep, workspace: str, branch: str = "") -> Response:
    platform = platform_of(request)
    with platform.db.read() as session:
        row, _ = workspaces.by_name(session, who.user, workspace)
        repository = repositories.of_workspace(session, row.id)
        found = list(session.scalars(rollout_servers.visible(who.user, row).limit(SERVERS)))
        people = datasets.creator_names(session, {server.owner_id for server in found})
        servers = [(server, rollout_servers.status_of(server), people.get(server.owner_id)) for server in found]
        if repository is None:
            return page(
                request,
                "repository.html",
                who,
                here="repository",
                workspace=workspace,
                repository=None,
                servers=servers,
            )
        known = syncing.known_branches(session, repository.id)
        shown = branch if branch in known else repository.default_branch
        commit = known.get(shown)
        held = synced.found_in(session, repository.id, commit) if commit else []
        events, total = synced.events(session, repository.id, limit=EVENTS)
    return page(
        request, "repository.html", who, here="repository", workspace=workspace, repository=repository,
        address=repositories.address(platform.settings, repository), branches=sorted(known), shown=shown,
        commit=commit, held=held, events=events, total=total,
        working=any(event.status in ("Pending", "Syncing") for event in events), servers=servers,
    )  # fmt: skip


@router.post("/{workspace}/repository/sync")
def start_sync(
    request: Request, who: ViewerDep, workspace: str, background: BackgroundTasks, csrf: Annotated[str, Form()] = ""
) -> Response:
    check_viewer_form(request, who, csrf)
    platform = platform_of(request)
    with platform.db.write() as session:
        row, role = workspaces.by_name(session, who.user, workspace)
        workspaces.require(role, "push")
        event_id = syncing.request(session, repositories.require(session, row.id)).id
    background.add_task(apart, "sync", syncing.run, platform.db, platform.settings, event_id)
    return redirect(f"/{workspace}/repository")

"""The repository of a workspace with Git Sync, and its rollout servers."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, BackgroundTasks, Depends, Form, Request, Response

from osmosis.platform import Platform
from osmosis.platform.gitsync import repositories, synced, syncing
from osmosis.platform.services import datasets, rollout_servers, workspaces
from osmosis.platform.slow_work import in_turn
from osmosis.viewer.view import View

from .session import Viewer, check_viewer_form, platform_of, viewer
from .templating import PageRoute, framed, html, redirect, streamed

router = APIRouter(route_class=PageRoute, include_in_schema=False)
ViewerDep = Annotated[Viewer, Depends(viewer)]

EVENTS = 30
SERVERS = 50


@router.get("/{workspace}/repository")
def repository_page(request: Request, who: ViewerDep, workspace: str, branch: str = "") -> Response:
    view = _shown(platform_of(request), who, workspace, branch)
    return framed(request, view, who, here="repository", workspace=workspace)


@router.get("/{workspace}/repository/events")
def repository_events(request: Request, who: ViewerDep, workspace: str, branch: str = "") -> Response:
    """Server-sent events of the page, until nothing is being synced."""
    platform = platform_of(request)

    def build() -> tuple[str, bool]:
        view = _shown(platform, who, workspace, branch)
        return html(view.changing), view.final

    build()  # what there is not is said before a stream begins
    return streamed(request, f"{who.user.id} {who.csrf} repository {workspace} {branch}", build)


def _shown(platform: Platform, who: Viewer, workspace: str, branch: str) -> View:
    with platform.db.read() as session:
        row, _ = workspaces.by_name(session, who.user, workspace)
        repository = repositories.of_workspace(session, row.id)
        found = list(session.scalars(rollout_servers.visible(who.user, row).limit(SERVERS)))
        people = datasets.creator_names(session, {server.owner_id for server in found})
        servers = [(server, rollout_servers.status_of(server), people.get(server.owner_id)) for server in found]
        values = {"csrf": who.csrf, "workspace": workspace, "repository": repository, "servers": servers}
        if repository is None:
            return View("repository.html", values)
        known = syncing.known_branches(session, repository.id)
        shown = branch if branch in known else repository.default_branch
        commit = known.get(shown)
        held = synced.found_in(session, repository.id, commit) if commit else []
        events, total = synced.events(session, repository.id, limit=EVENTS)
    working = any(event.status in ("Pending", "Syncing") for event in events)
    more = {
        "address": repositories.address(platform.settings, repository), "branches": sorted(known), "shown": shown,
        "branch": branch, "commit": commit, "held": held, "events": events, "total": total, "working": working,
    }  # fmt: skip
    return View("repository.html", {**values, **more}, live="_repository.html", final=not working)


@router.post("/{workspace}/repository/sync")
def start_sync(
    request: Request, who: ViewerDep, workspace: str, background: BackgroundTasks, csrf: Annotated[str, Form()] = ""
) -> Response:
    check_viewer_form(request, who, csrf)
    platform = platform_of(request)
    with platform.db.write() as session:
        row, role = workspaces.by_name(session, who.user, workspace)
        workspaces.require(role, "push")
        repository = repositories.require(session, row.id)
        event_id = syncing.request(session, repository).id
    background.add_task(in_turn, "sync", repository.id, syncing.run, platform.db, platform.settings, event_id)
    return redirect(f"/{workspace}/repository")

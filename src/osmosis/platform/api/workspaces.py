"""`/api/cli/workspaces` and `/quickstart`: workspaces and the repository each is connected to."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel

from .. import tables
from ..context import Platform
from ..services import mirror, repositories, sync, workspaces
from .deps import CallerDep, PlatformDep

router = APIRouter(prefix="/api/cli")


class NewWorkspace(BaseModel):
    name: str


class Connect(BaseModel):
    repository_url: str


class Quickstart(BaseModel):
    organizationId: str = ""
    intent: str = ""


def _body(
    platform: Platform, workspace: tables.Workspace, role: str, repository: tables.Repository | None
) -> dict[str, Any]:
    connected = None
    if repository is not None:
        connected = {
            "repo_full_name": repository.full_name,
            "url": repositories.address(platform.settings, repository),
            "kind": repository.kind,
            "default_branch": repository.default_branch,
        }
    return {"id": workspace.id, "name": workspace.name, "role": role, "connected_repo": connected}


@router.get("/workspaces")
def list_workspaces(platform: PlatformDep, caller: CallerDep) -> dict[str, Any]:
    with platform.db.read() as session:
        found = workspaces.of_user(session, caller.user)
    return {"workspaces": [_body(platform, *row) for row in found]}


@router.post("/workspaces")
def create(body: NewWorkspace, platform: PlatformDep, caller: CallerDep) -> dict[str, Any]:
    """A workspace with a repository hosted here."""
    with platform.db.write() as session:
        workspace = workspaces.create(session, caller.user, body.name)
        repository = repositories.add_internal(session, platform.settings, workspace, caller.user.handle)
    place = mirror.Place.of(repository, platform.settings)
    repositories.prepare_bare(place.path, place.default_branch, platform.settings)
    return _body(platform, workspace, "owner", repository)


@router.post("/workspaces/{name}/connect")
def connect(name: str, body: Connect, platform: PlatformDep, caller: CallerDep) -> dict[str, Any]:
    """Use a repository elsewhere, after a look whether it can be read; then sync it."""
    with platform.db.read() as session:
        workspaces.by_name(session, caller.user, name)
    mirror.check_url(body.repository_url, platform.settings)
    with platform.db.write() as session:
        workspace, role = workspaces.by_name(session, caller.user, name)
        repository = repositories.connect_external(session, platform.settings, workspace, body.repository_url)
        event_id = sync.request(session, repository).id
    sync.run(platform.db, platform.settings, event_id)
    with platform.db.read() as session:
        return _body(platform, workspace, role, repositories.of_workspace(session, workspace.id))


@router.get("/quickstart")
def quickstart(platform: PlatformDep, caller: CallerDep, organizationId: str = "") -> dict[str, Any]:
    """What older clients wait for after login. There is no billing here: it is always ready."""
    with platform.db.read() as session:
        found = [row for row in workspaces.of_user(session, caller.user) if row[0].id == organizationId]
        repository = found[0][2] if found else None
    connected = repository is not None
    name = repository.full_name if repository else None
    return {"repo": {"connected": connected, "full_name": name}, "billing_ready": True, "completed": connected}


@router.post("/quickstart")
def quickstart_intent(body: Quickstart, caller: CallerDep) -> dict[str, Any]:
    return {}

"""`/api/cli/workspaces` and `/quickstart`: workspaces and the repository each is connected to."""

from __future__ import annotations

from fastapi import APIRouter

from osmosis.platform import Platform, tables
from osmosis.platform.gitsync import mirror, repositories, syncing
from osmosis.platform.gitsync.remotes import Remote
from osmosis.platform.services import audit, tokens, workspaces
from osmosis.platform.slow_work import in_turn, slow
from osmosis.records.contract.accounts import (
    ConnectedRepository,
    ConnectRepository,
    NewWorkspace,
    QuickstartIntent,
    QuickstartRepository,
    QuickstartState,
    WorkspaceList,
    WorkspaceRow,
)
from osmosis.records.contract.body import Nothing

from .contract_route import ContractRoute
from .deps import Caller, CallerDep, PersonDep, PlatformDep

router = APIRouter(prefix="/api/cli", route_class=ContractRoute)


def _body(
    platform: Platform, workspace: tables.Workspace, role: str, repository: tables.Repository | None
) -> WorkspaceRow:
    connected = None
    if repository is not None:
        connected = ConnectedRepository(
            repo_full_name=repository.full_name,
            url=repositories.address(platform.settings, repository),
            kind=repository.kind,
            default_branch=repository.default_branch,
        )
    return WorkspaceRow(id=workspace.id, name=workspace.name, role=role, connected_repo=connected)


Found = tuple[tables.Workspace, str, tables.Repository | None]


def _within(caller: Caller, found: list[Found]) -> list[Found]:
    """What of these a token that is bound to one workspace speaks for."""
    return [row for row in found if caller.token.workspace_id in (None, row[0].id)]


@router.get("/workspaces")
def list_workspaces(platform: PlatformDep, caller: CallerDep) -> WorkspaceList:
    with platform.db.read() as session:
        found = _within(caller, workspaces.of_user(session, caller.user))
    return WorkspaceList(workspaces=[_body(platform, *row) for row in found])


@router.post("/workspaces")
@slow("sync")
def create(body: NewWorkspace, platform: PlatformDep, caller: PersonDep) -> WorkspaceRow:
    """A workspace with a repository hosted here."""
    with platform.db.write() as session:
        workspace = workspaces.create(session, caller.user, body.name)
        repository = repositories.add_internal(session, platform.settings, workspace, caller.user.handle)
        audit.note(session, caller, "workspace.create", workspace.name, workspace=workspace)
    mirror.prepare(mirror.MirrorPlace.of(repository, platform.settings), platform.settings)
    return _body(platform, workspace, "owner", repository)


@router.post("/workspaces/{name}/connect")
async def connect(name: str, body: ConnectRepository, platform: PlatformDep, caller: CallerDep) -> WorkspaceRow:
    """Connect an external repository after checking that it can be read, then sync it."""
    return await in_turn("sync", f"{caller.user.id} connects", _connect, name, body, platform, caller)


def _connect(name: str, body: ConnectRepository, platform: Platform, caller: Caller) -> WorkspaceRow:
    with platform.db.read() as session:
        found, role = workspaces.by_name(session, caller.user, name)
        tokens.require_workspace(caller.token, found)
        workspaces.require(role, "repository")
        trusted = tokens.is_operator(session, caller.token)
        credential = repositories.shared_secret(session, platform.vault, found.id, body.secret) if body.secret else ""
    mirror.check_url(Remote(body.repository_url, trusted, credential), platform.settings)
    with platform.db.write() as session:
        workspace, role = workspaces.by_name(session, caller.user, name)
        workspaces.require(role, "repository")
        audit.note(session, caller, "repository.connect", body.repository_url, workspace=workspace, secret=body.secret)
        repository = repositories.connect_external(
            session, platform.settings, workspace, body.repository_url, trusted=trusted, secret=body.secret
        )
        event_id = syncing.request(session, repository).id
    syncing.run(platform.db, platform.settings, event_id)
    with platform.db.read() as session:
        return _body(platform, workspace, role, repositories.of_workspace(session, workspace.id))


@router.get("/quickstart")
def quickstart(platform: PlatformDep, caller: CallerDep, organizationId: str = "") -> QuickstartState:
    """Older clients poll this after login. There is no billing here, so the workspace is always ready."""
    with platform.db.read() as session:
        mine = _within(caller, workspaces.of_user(session, caller.user))
        found = [row for row in mine if row[0].id == organizationId]
        repository = found[0][2] if found else None
    connected = repository is not None
    name = repository.full_name if repository else None
    about = QuickstartRepository(connected=connected, full_name=name)
    return QuickstartState(repo=about, billing_ready=True, completed=connected)


@router.post("/quickstart")
def quickstart_intent(body: QuickstartIntent, caller: CallerDep) -> Nothing:
    return Nothing()

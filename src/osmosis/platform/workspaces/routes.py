"""Routes of rollout servers, probed between two sessions; a client of generation 0.2 names no workspace."""

from typing import Annotated

from fastapi import APIRouter
from fastapi.concurrency import run_in_threadpool
from sqlalchemy.orm import Session

from osmosis.errors import ValidationError
from osmosis.platform import Platform, tables
from osmosis.platform.auth import login as login_flows, openid, tokens, users
from osmosis.platform.auth.dependencies import (
    Caller,
    CallerDep,
    EitherDep,
    OperatorDep,
    PersonDep,
    PlatformDep,
    Scope,
    ScopeDep,
    may,
)
from osmosis.platform.background import run_in_turn, slow
from osmosis.platform.git import mirror, repositories, sync
from osmosis.platform.git.mirror import Remote
from osmosis.platform.http import JsonRoute, Reading, Writing
from osmosis.platform.paging import PageDep, PageRange
from osmosis.platform.workspaces import audit, quotas, rollout_servers, secrets, service as workspaces
from osmosis.records.api import accounts as people_api
from osmosis.records.api.accounts import (
    BrowserLink,
    ConnectedRepository,
    ConnectRepository,
    NewWorkspace,
    QuickstartIntent,
    QuickstartRepository,
    QuickstartState,
    WorkspaceList,
    WorkspaceRow,
)
from osmosis.records.api.body import Nothing
from osmosis.records.api.workers import NewServer, RegisteredServer, ServerPage, ServerStatus
from osmosis.records.api.workspaces import NewSecret, SecretName, SecretPage, SecretRow

router = APIRouter(prefix="/api/cli", route_class=JsonRoute)


def _body(
    platform: Platform, workspace: tables.Workspace, role: str, repository: tables.Repository | None
) -> WorkspaceRow:
    connected = None
    if repository is not None:
        connected = ConnectedRepository(
            repo_full_name=repository.full_name,
            url=repositories.clone_url(platform.settings, repository),
            kind=repository.kind,
            default_branch=repository.default_branch,
        )
    return WorkspaceRow(id=workspace.id, name=workspace.name, role=role, connected_repo=connected)


Found = tuple[tables.Workspace, str, tables.Repository | None]


def _within(caller: Caller, memberships: list[Found]) -> list[Found]:
    return [row for row in memberships if caller.token.workspace_id in (None, row[0].id)]


@router.get("/workspaces")
def list_workspaces(platform: PlatformDep, caller: CallerDep) -> WorkspaceList:
    with platform.db.read() as session:
        memberships = _within(caller, workspaces.list_workspaces(session, caller.user))
    return WorkspaceList(workspaces=[_body(platform, *row) for row in memberships])


@router.post("/workspaces")
@slow("sync")
def create(body: NewWorkspace, platform: PlatformDep, caller: PersonDep) -> WorkspaceRow:
    """Create a workspace with a repository hosted here."""
    with platform.db.write() as session:
        workspace = workspaces.create(session, caller.user, body.name)
        repository = repositories.add_internal(session, platform.settings, workspace, caller.user.handle)
        audit.note(session, caller, "workspace.create", workspace.name, workspace=workspace)
    mirror.prepare(mirror.RepositoryFolder.of(repository, platform.settings), platform.settings)
    return _body(platform, workspace, "owner", repository)


def _find_owned(session: Session, name: str, caller: Caller) -> tables.Workspace:
    workspace, role = workspaces.by_name(session, caller.user, name)
    tokens.require_workspace(caller.token, workspace)
    workspaces.require(role, "workspace")
    return workspace


@router.patch("/workspaces/{name}")
def rename(name: str, body: NewWorkspace, platform: PlatformDep, session: Writing, caller: PersonDep) -> WorkspaceRow:
    """Rename a workspace; the address of its repository stays."""
    workspace = _find_owned(session, name, caller)
    workspaces.rename(session, workspace, body.name)
    audit.note(session, caller, "workspace.rename", name, workspace=workspace, name=body.name)
    return _body(platform, workspace, "owner", repositories.find_for_workspace(session, workspace.id))


@router.delete("/workspaces/{name}")
def delete(name: str, session: Writing, caller: PersonDep) -> Nothing:
    """Delete a workspace with its repository, runs, datasets, models and secrets."""
    workspace = _find_owned(session, name, caller)
    audit.note(session, caller, "workspace.delete", name)
    workspaces.delete(session, workspace)
    return Nothing()


@router.post("/workspaces/{name}/connect")
async def connect(name: str, body: ConnectRepository, platform: PlatformDep, caller: CallerDep) -> WorkspaceRow:
    """Connect an external repository after checking that it can be read, then sync it."""
    return await run_in_turn("sync", f"{caller.user.id} connects", _connect, name, body, platform, caller)


def _connect(name: str, body: ConnectRepository, platform: Platform, caller: Caller) -> WorkspaceRow:
    with platform.db.read() as session:
        target, role = workspaces.by_name(session, caller.user, name)
        tokens.require_workspace(caller.token, target)
        workspaces.require(role, "repository")
        trusted = tokens.is_operator(session, caller.token)
        credential = repositories.shared_secret(session, platform.vault, target.id, body.secret) if body.secret else ""
    mirror.check_url(Remote(body.repository_url, trusted, credential), platform.settings)
    with platform.db.write() as session:
        workspace, role = workspaces.by_name(session, caller.user, name, "repository")
        audit.note(session, caller, "repository.connect", body.repository_url, workspace=workspace, secret=body.secret)
        repository = repositories.connect_external(
            session, platform.settings, workspace, body.repository_url, trusted=trusted, secret=body.secret
        )
        event_id = sync.add_event(session, repository).id
    sync.run(platform.db, platform.settings, event_id)
    with platform.db.read() as session:
        return _body(platform, workspace, role, repositories.find_for_workspace(session, workspace.id))


@router.get("/quickstart")
def quickstart(session: Reading, caller: CallerDep, organizationId: str = "") -> QuickstartState:  # noqa: N803 - as it is called in older URLs
    """Answer older clients, which poll this after login. There is no billing here, so the workspace is always ready."""
    mine = _within(caller, workspaces.list_workspaces(session, caller.user))
    matching = [row for row in mine if row[0].id == organizationId]
    repository = matching[0][2] if matching else None
    connected = repository is not None
    about = QuickstartRepository(connected=connected, full_name=repository.full_name if repository else None)
    return QuickstartState(repo=about, billing_ready=True, completed=connected)


@router.post("/quickstart")
def quickstart_intent(body: QuickstartIntent, caller: CallerDep) -> Nothing:
    return Nothing()


@router.get("/quota")
def show_quota(session: Reading, scope: ScopeDep) -> people_api.QuotaUse:
    return quotas.build_use(session, scope.workspace)


@router.put("/workspaces/{name}/quota")
def change_quota(name: str, body: people_api.Quota, session: Writing, caller: OperatorDep) -> people_api.QuotaUse:
    """Set what is given; 0 removes a limit; an empty body only asks."""
    workspace = quotas.find(session, name)
    changes = body.model_dump(exclude_none=True)
    if changes:
        quotas.change(workspace, body)
        audit.note(session, caller, "quota.set", name, workspace=workspace, **changes)
    return quotas.build_use(session, workspace)


@router.get("/audit")
def list_entries(
    platform: PlatformDep, scope: Annotated[Scope, may("audit")], page: PageDep, action: str = "", actor: str = ""
) -> people_api.AuditPage:
    return _build_audit_page(platform, page, scope.workspace.id, action, actor)


@router.get("/platform/audit")
def list_platform_entries(
    platform: PlatformDep, caller: OperatorDep, page: PageDep, action: str = "", actor: str = ""
) -> people_api.AuditPage:
    return _build_audit_page(platform, page, None, action, actor)


def _build_audit_page(
    platform: Platform, page: PageRange, workspace_id: str | None, action: str, actor: str
) -> people_api.AuditPage:
    with platform.db.read() as session:
        query = audit.select_entries(workspace_id=workspace_id, action=action, actor=actor)
        rows, total = page.fetch(session, query)
    return people_api.AuditPage(entries=[audit.build_entry(row) for row in rows], **page.place(len(rows), total))


MembersDep = Annotated[Scope, may("members")]


@router.get("/members")
def list_members(session: Reading, scope: ScopeDep) -> people_api.MemberList:
    return people_api.MemberList(members=workspaces.list_members(session, scope.workspace))


@router.post("/members")
def invite(body: people_api.NewMember, session: Writing, scope: MembersDep) -> people_api.MemberRow:
    row = workspaces.invite_member(session, scope.workspace, scope.user, scope.role, body.person, body.role)
    action = "member.invite" if row.invited else "member.add"
    audit.note(session, scope, action, row.handle or row.email or "", workspace=scope.workspace, role=row.role)
    return row


@router.put("/members/{person}")
def change(person: str, body: people_api.MemberRole, session: Writing, scope: MembersDep) -> people_api.MemberRow:
    audit.note(session, scope, "member.role", person, workspace=scope.workspace, role=body.role)
    return workspaces.change_member(session, scope.workspace, scope.role, person, body.role)


@router.delete("/members/{person}", status_code=204)
def remove(person: str, session: Writing, scope: Annotated[Scope, may("read")]) -> None:
    audit.note(session, scope, "member.remove", person, workspace=scope.workspace)
    workspaces.remove_member(session, scope.workspace, scope.user, scope.role, person)


@router.get("/users")
def list_people(session: Reading, caller: OperatorDep) -> people_api.PersonList:
    return people_api.PersonList(users=users.list_people(session))


@router.post("/users")
def add_person(body: people_api.NewPerson, session: Writing, caller: OperatorDep) -> people_api.PersonRow:
    audit.note(session, caller, "user.add", body.handle, operator=body.operator)
    about = {"email": body.email or "", "name": body.name or body.handle}
    user = users.create_user(session, body.handle, **about, operator=body.operator)
    return users.build_person(session, user)


@router.delete("/users/{handle}", status_code=204)
def remove_person(handle: str, session: Writing, caller: OperatorDep, heir: str = "") -> None:
    if handle == caller.user.handle:
        raise ValidationError("you cannot remove yourself", hint="ask another operator to do it")
    audit.note(session, caller, "user.remove", handle, heir=heir)
    users.remove(session, users.require(session, handle), users.require(session, heir) if heir else None)


@router.post("/users/{handle}/link")
def link_person(
    handle: str, body: people_api.WantedLink, platform: PlatformDep, session: Writing, caller: OperatorDep
) -> BrowserLink:
    audit.note(session, caller, "user.link", handle, hours=body.hours)
    login = login_flows.link_for(session, users.require(session, handle), caller.token, hours=body.hours)
    return BrowserLink(url=platform.settings.login_url(login.device_code), expires_in=login.expires_in)


@router.delete("/users/{handle}/identities", status_code=204)
def unlink_person(handle: str, session: Writing, caller: OperatorDep) -> None:
    audit.note(session, caller, "user.unlink", handle)
    openid.unlink(session, users.require(session, handle))


SecretsDep = Annotated[Scope, may("secrets.own")]


@router.get("/environment-secrets")
def list_secrets(
    platform: PlatformDep, session: Reading, caller: SecretsDep, page: PageDep, scope: str = "all"
) -> SecretPage:
    rows, total = page.fetch(session, secrets.select_secrets(caller.workspace, caller.user, scope))
    bodies = [SecretRow.from_row(row) for row in rows]
    url = platform.settings.secrets_url(caller.workspace.name)
    return SecretPage(environment_secrets=bodies, platform_url=url, **page.place(len(bodies), total))


@router.post("/environment-secrets")
def put_secret(body: NewSecret, platform: PlatformDep, session: Writing, caller: SecretsDep) -> SecretRow:
    slot = secrets.slot_for(caller.workspace, caller.user, caller.role, scope=body.scope, name=body.name)
    row = secrets.store(session, platform.vault, slot, body.value, caller.user.id)
    audit.note(session, caller, "secret.set", body.name, workspace=caller.workspace, scope=slot.scope)
    return SecretRow.from_row(row, platform_url=platform.settings.secrets_url(caller.workspace.name))


@router.delete("/environment-secrets", status_code=204)
def delete_secret(body: SecretName, session: Writing, caller: SecretsDep) -> None:
    slot = secrets.slot_for(caller.workspace, caller.user, caller.role, scope=body.scope, name=body.name)
    secrets.delete(session, slot)
    audit.note(session, caller, "secret.delete", body.name, workspace=caller.workspace, scope=slot.scope)


@router.post("/rollout-server/register")
async def register_server(body: NewServer, platform: PlatformDep, found: EitherDep) -> RegisteredServer:
    caller, scope = found
    rollout_servers.check_name(body.agent_loop_name)
    target = rollout_servers.ProbeTarget(body.host, body.port, body.api_key or None)
    health = await rollout_servers.check(target, private=rollout_servers.takes_private(platform.settings))
    workspace_id, name = scope.workspace.id if scope else None, body.agent_loop_name

    def note() -> str:
        with platform.db.write() as session:
            vault = platform.vault
            return rollout_servers.register(session, vault, caller.user, workspace_id, name, target, health).id

    result = {"server_info": health.info} if health.error is None else {"error": health.error}
    return RegisteredServer(id=await run_in_threadpool(note), status=health.status, health_check_result=result)


@router.post("/rollout-server/{server_id}/heartbeat")
async def note_heartbeat(server_id: str, platform: PlatformDep, caller: CallerDep) -> ServerStatus:
    """Heartbeat. A server that was not healthy is probed again."""

    def note() -> tables.RolloutServer:
        with platform.db.write() as session:
            return rollout_servers.heartbeat(session, caller.user, server_id)

    row = await run_in_threadpool(note)
    status = row.status if row.status == "healthy" else await _look_again(platform, row)
    return ServerStatus(id=row.id, status=status)


async def _look_again(platform: Platform, row: tables.RolloutServer) -> str:
    target = rollout_servers.target_of(platform.vault, row)
    health = await rollout_servers.check(target, private=rollout_servers.takes_private(platform.settings))

    def note() -> None:
        with platform.db.write() as session:
            rollout_servers.note_health(session, row.id, health)

    await run_in_threadpool(note)
    return health.status


@router.delete("/rollout-server/{server_id}", status_code=204)
def remove_server(server_id: str, session: Writing, caller: CallerDep) -> None:
    rollout_servers.remove(session, caller.user, server_id)


@router.get("/rollout-servers")
def list_servers(session: Reading, found: EitherDep, page: PageDep) -> ServerPage:
    caller, scope = found
    query = rollout_servers.select_servers(caller.user, scope.workspace if scope else None)
    rows, total = page.fetch(session, query)
    bodies = [rollout_servers.build_server(row) for row in rows]
    return ServerPage(rollout_servers=bodies, **page.place(len(bodies), total))

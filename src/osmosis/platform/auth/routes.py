from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from sqlalchemy.orm import Session

from osmosis.platform.auth import login as login_flows, tokens, users
from osmosis.platform.auth.dependencies import Caller, CallerDep, EitherDep, PersonDep, PlatformDep, bearer
from osmosis.platform.auth.rate_limits import address_of, limited
from osmosis.platform.http import JsonRoute, Reading, Writing
from osmosis.platform.workspaces import audit, service as workspaces
from osmosis.records.api import accounts as account_api
from osmosis.records.api.body import format_moment

router = APIRouter(prefix="/api/cli", route_class=JsonRoute)


def token_body(issued: tokens.IssuedToken) -> account_api.IssuedLogin:
    values = {"token": issued.text, "user": account_api.Account.from_row(issued.user), "token_id": issued.row.id}
    return account_api.IssuedLogin.model_validate(
        {**values, "expires_at": issued.row.expires_at, "name": issued.row.name, "scopes": issued.row.scopes.split()}
    )


@router.post("/device/authorize", dependencies=[limited("login")])
def authorize(body: account_api.DeviceStart, platform: PlatformDep, session: Writing) -> account_api.DeviceOffer:
    login = login_flows.start(session, body.device_name)
    url, complete = platform.settings.device_url(), platform.settings.device_url(login.user_code)
    return account_api.DeviceOffer.from_row(login, verification_uri=url, verification_uri_complete=complete)


@router.post("/device/token", response_model=account_api.IssuedLogin, dependencies=[limited("poll")])
def device_token(
    body: account_api.DevicePoll, request: Request, session: Writing
) -> account_api.IssuedLogin | JSONResponse:
    answer = login_flows.poll(session, body.device_code)
    if isinstance(answer, str):
        return JSONResponse({"error": answer, "message": answer}, status_code=400)
    _note(session, request, answer, "device code")
    return token_body(answer)


def _note(session: Session, request: Request, issued: tokens.IssuedToken, by: str) -> None:
    audit.note(session, Caller(issued.user, issued.row, address_of(request)), "login.device", issued.row.name, by=by)


@router.post("/bootstrap", dependencies=[limited("login")])
def bootstrap(
    body: account_api.DeviceStart, request: Request, platform: PlatformDep, session: Writing
) -> account_api.IssuedLogin:
    """Log in with the bootstrap token: whoever can read the platform's own file is its owner."""
    login_flows.check_bootstrap(platform, bearer(request))
    owner = users.ensure_owner(session, platform.settings.owner_name)
    issued = tokens.issue(session, owner, body.device_name)
    _note(session, request, issued, "bootstrap token")
    return token_body(issued)


@router.post("/browser-login")
def browser_login(platform: PlatformDep, session: Writing, caller: PersonDep) -> account_api.BrowserLink:
    """Return a link that logs a browser in once, for a person whose terminal is logged in. It carries an approved
    device code; it works once and for 15 minutes, and opening it asks before it logs in."""
    login = login_flows.start(session, "browser")
    session.flush()
    audit.note(session, caller, "login.link", caller.user.handle)
    login_flows.decide(session, login.user_code, caller.user, approve=True, maker=caller.token)
    return account_api.BrowserLink(url=platform.settings.login_url(login.device_code), expires_in=login.expires_in)


@router.get("/verify")
def verify(platform: PlatformDep, either: EitherDep) -> account_api.Verified:
    caller, scope = either
    token = caller.token
    user, ends = account_api.Account.from_row(caller.user), format_moment(token.expires_at)
    body = account_api.Verified(user=user, expires_at=ends, token_id=token.id, valid=True)
    if scope is not None:
        membership = account_api.WorkspaceRole(id=scope.workspace.id, name=scope.workspace.name, role=scope.role)
        body.workspace = body.organization = membership
    else:
        with platform.db.read() as session:
            memberships = workspaces.list_workspaces(session, caller.user)
        if memberships:  # a client of generation 0.2 names no workspace: the first is its own
            workspace, role, _ = memberships[0]
            body.organization = account_api.WorkspaceRole(id=workspace.id, name=workspace.name, role=role)
    return body


@router.get("/tokens")
def list_tokens(session: Reading, caller: CallerDep) -> account_api.TokenList:
    """List the usable tokens of the person; a token made by name sees itself and what was made with it."""
    rows = tokens.list_tokens(session, caller.token)
    mine = caller.token.id
    return account_api.TokenList(
        tokens=[
            account_api.TokenRow.from_row(row, scopes=row.scopes.split(), workspace=workspace, current=row.id == mine)
            for row, workspace in rows
        ]
    )


@router.post("/tokens")
def make_token(body: account_api.NewToken, session: Writing, caller: CallerDep) -> account_api.IssuedLogin:
    """Create a token for a machine; its text appears only in this answer. It may no more than the one that asks."""
    issued = tokens.create_named(session, caller.token, body)
    bound = issued.row.workspace
    audit.note_token(session, caller, "token.create", issued.row, scopes=issued.row.scopes)
    return token_body(issued).model_copy(update={"workspace": bound.name if bound else None})


@router.delete("/tokens/{token_id}", status_code=204)
def revoke(token_id: str, session: Writing, caller: CallerDep, logout: bool = False) -> None:
    """Revoke a token and all that was made with it; with `?logout=true` what was made by name goes on."""
    token = tokens.revoke(session, caller.token, token_id, logout=logout)
    audit.note_token(session, caller, "login.end" if logout else "token.revoke", token)

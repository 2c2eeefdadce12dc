"""`/api/cli/`: log in by device flow or bootstrap token, log a browser in, check and revoke tokens."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from sqlalchemy.orm import Session

from osmosis.platform import Platform, tables
from osmosis.platform.security.origin import address_of
from osmosis.platform.security.rate_limits import limited
from osmosis.platform.services import access, audit, links, login_flows, tokens, users
from osmosis.platform.services.tokens import IssuedToken
from osmosis.records.contract.accounts import (
    Account,
    BrowserLink,
    DeviceOffer,
    DevicePoll,
    DeviceStart,
    IssuedLogin,
    NewToken,
    TokenList,
    TokenRow,
    Verified,
    WorkspaceRole,
)
from osmosis.records.contract.body import moment

from .contract_route import ContractRoute
from .deps import Caller, CallerDep, EitherDep, PersonDep, PlatformDep, bearer

router = APIRouter(prefix="/api/cli", route_class=ContractRoute)


def user_body(user: tables.User) -> Account:
    return Account(id=user.id, email=user.email, name=user.name, handle=user.handle)


def token_body(issued: IssuedToken) -> IssuedLogin:
    return IssuedLogin(
        token=issued.text,
        user=user_body(issued.user),
        expires_at=moment(issued.row.expires_at),
        token_id=issued.row.id,
        name=issued.row.name,
        scopes=issued.row.scopes.split(),
    )


@router.post("/device/authorize", dependencies=[limited("login")])
def authorize(body: DeviceStart, platform: PlatformDep) -> DeviceOffer:
    with platform.db.write() as session:
        login = login_flows.start(session, body.device_name)
    return DeviceOffer(
        device_code=login.device_code,
        user_code=login.user_code,
        verification_uri=links.device(platform.settings),
        verification_uri_complete=links.device(platform.settings, login.user_code),
        expires_in=login.expires_in,
        interval=login.interval,
    )


@router.post("/device/token", response_model=IssuedLogin, dependencies=[limited("poll")])
def device_token(body: DevicePoll, request: Request, platform: PlatformDep) -> IssuedLogin | JSONResponse:
    with platform.db.write() as session:
        answer = login_flows.poll(session, body.device_code)
        if isinstance(answer, str):
            return JSONResponse({"error": answer, "message": answer}, status_code=400)
        _note(session, request, answer, "device code")
        return token_body(answer)


def _note(session: Session, request: Request, issued: IssuedToken, by: str) -> None:
    audit.note(session, Caller(issued.user, issued.row, address_of(request)), "login.device", issued.row.name, by=by)


@router.post("/bootstrap", dependencies=[limited("login")])
def bootstrap(body: DeviceStart, request: Request, platform: PlatformDep) -> IssuedLogin:
    """Log in with the bootstrap token: whoever can read the platform's own file is its owner."""
    login_flows.check_bootstrap(platform, bearer(request))
    with platform.db.write() as session:
        owner = users.ensure_owner(session, platform.settings.owner_name)
        issued = tokens.issue(session, owner, body.device_name)
        _note(session, request, issued, "bootstrap token")
        return token_body(issued)


@router.post("/browser-login")
def browser_login(platform: PlatformDep, caller: PersonDep) -> BrowserLink:
    """A link that logs a browser in once, for a person whose terminal is logged in.

    It carries a device code that is approved already; it works once and for 15 minutes, and opening it asks before
    it logs in.
    """
    with platform.db.write() as session:
        login = login_flows.start(session, "browser")
        session.flush()
        audit.note(session, caller, "login.link", caller.user.handle)
        login_flows.decide(session, login.user_code, caller.user, approve=True, maker=caller.token)
    return BrowserLink(url=links.login(platform.settings, login.device_code), expires_in=login.expires_in)


@router.get("/verify")
def verify(platform: PlatformDep, found: EitherDep) -> Verified:
    caller, scope = found
    token = caller.token
    body = Verified(user=user_body(caller.user), expires_at=moment(token.expires_at), token_id=token.id, valid=True)
    if scope is not None:
        place = WorkspaceRole(id=scope.workspace.id, name=scope.workspace.name, role=scope.role)
        body.workspace = body.organization = place
    elif first := _first_workspace(platform, caller.user):
        body.organization = first
    return body


def _first_workspace(platform: Platform, user: tables.User) -> WorkspaceRole | None:
    """Where a client of generation 0.2, which names no workspace, is taken to be."""
    found = access.first_workspace(platform.db, user)
    return WorkspaceRole(id=found[0].id, name=found[0].name, role=found[1]) if found else None


@router.get("/tokens")
def list_tokens(platform: PlatformDep, caller: CallerDep) -> TokenList:
    """The usable tokens of the person; a token made by name sees itself and what was made with it."""
    with platform.db.read() as session:
        rows = tokens.listed(session, caller.token)
    return TokenList(tokens=[_token_row(row, workspace, caller) for row, workspace in rows])


def _token_row(row: tables.Token, workspace: str | None, caller: Caller) -> TokenRow:
    return TokenRow(
        id=row.id,
        name=row.name,
        kind=row.kind,
        scopes=row.scopes.split(),
        workspace=workspace,
        parent_id=row.parent_id,
        current=row.id == caller.token.id,
        created_at=moment(row.created_at),
        expires_at=moment(row.expires_at),
        last_used_at=moment(row.last_used_at),
    )


@router.post("/tokens")
def make_token(body: NewToken, platform: PlatformDep, caller: CallerDep) -> IssuedLogin:
    """Create a token for a machine; its text appears only in this answer. It may no more than the one that asks."""
    with platform.db.write() as session:
        issued = tokens.make(session, caller.token, body)
        bound = session.get(tables.Workspace, issued.row.workspace_id) if issued.row.workspace_id else None
        audit.note(session, caller, "token.create", issued.row.name, workspace=bound, scopes=issued.row.scopes)
    return token_body(issued).model_copy(update={"workspace": bound.name if bound else None})


@router.delete("/tokens/{token_id}", status_code=204)
def revoke(token_id: str, platform: PlatformDep, caller: CallerDep, logout: bool = False) -> Response:
    """Revoke a token and all that was made with it; with `?logout=true` what was made by name goes on."""
    with platform.db.write() as session:
        gone = tokens.revoke(session, caller.token, token_id, logout=logout)
        audit.note(session, caller, "login.end" if logout else "token.revoke", gone.name)
    return Response(status_code=204)

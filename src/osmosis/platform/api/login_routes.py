"""`/api/cli/`: log in by device flow or bootstrap token, log a browser in, check and revoke tokens."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse

from osmosis.platform import Platform, tables
from osmosis.platform.services import links, login_flows, users, workspaces
from osmosis.platform.services.users import IssuedToken
from osmosis.records.base import utc_now
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
from .deps import CallerDep, EitherDep, PlatformDep, bearer

router = APIRouter(prefix="/api/cli", route_class=ContractRoute)


def user_body(user: tables.User) -> Account:
    return Account(id=user.id, email=user.email, name=user.name, handle=user.handle)


def token_body(issued: IssuedToken) -> IssuedLogin:
    return IssuedLogin(
        token=issued.text,
        user=user_body(issued.user),
        expires_at=moment(issued.row.expires_at),
        token_id=issued.row.id,
    )


@router.post("/device/authorize")
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


@router.post("/device/token", response_model=IssuedLogin)
def device_token(body: DevicePoll, platform: PlatformDep) -> IssuedLogin | JSONResponse:
    with platform.db.write() as session:
        answer = login_flows.poll(session, body.device_code)
        if isinstance(answer, str):
            return JSONResponse({"error": answer, "message": answer}, status_code=400)
        return token_body(answer)


@router.post("/bootstrap")
def bootstrap(body: DeviceStart, request: Request, platform: PlatformDep) -> IssuedLogin:
    """Log in with the bootstrap token: whoever can read the platform's own file is its owner."""
    login_flows.check_bootstrap(platform, bearer(request))
    with platform.db.write() as session:
        owner = users.ensure_owner(session, platform.settings.owner_name)
        return token_body(users.issue_token(session, owner, body.device_name))


@router.post("/browser-login")
def browser_login(platform: PlatformDep, caller: CallerDep) -> BrowserLink:
    """A link that logs a browser in once, for a person whose terminal is logged in.

    It carries a device code that is approved already; it works once and for 15 minutes, and opening it asks before
    it logs in.
    """
    with platform.db.write() as session:
        login = login_flows.start(session, "browser")
        session.flush()
        login_flows.decide(session, login.user_code, caller.user, approve=True)
    return BrowserLink(url=f"{platform.settings.url}/login/link?code={login.device_code}", expires_in=login.expires_in)


@router.get("/verify")
async def verify(platform: PlatformDep, found: EitherDep) -> Verified:
    caller, scope = found
    token = caller.token
    body = Verified(user=user_body(caller.user), expires_at=moment(token.expires_at), token_id=token.id, valid=True)
    if scope is not None:
        place = WorkspaceRole(id=scope.workspace.id, name=scope.workspace.name, role=scope.role)
        body.workspace = body.organization = place
    elif first := await run_in_threadpool(_first_workspace, platform, caller.user):
        body.organization = first
    return body


def _first_workspace(platform: Platform, user: tables.User) -> WorkspaceRole | None:
    """Where a client of generation 0.2, which names no workspace, is taken to be."""
    with platform.db.read() as session:
        mine = workspaces.of_user(session, user)
    return WorkspaceRole(id=mine[0][0].id, name=mine[0][0].name, role=mine[0][1]) if mine else None


@router.get("/tokens")
def list_tokens(platform: PlatformDep, caller: CallerDep) -> TokenList:
    with platform.db.read() as session:
        rows = users.list_tokens(session, caller.user)
    now = utc_now()
    return TokenList(tokens=[_token_row(row) for row in rows if row.expires_at is None or row.expires_at > now])


def _token_row(row: tables.Token) -> TokenRow:
    return TokenRow(
        id=row.id,
        name=row.name,
        kind=row.kind,
        created_at=moment(row.created_at),
        expires_at=moment(row.expires_at),
        last_used_at=moment(row.last_used_at),
    )


@router.post("/tokens")
def make_token(body: NewToken, platform: PlatformDep, caller: CallerDep) -> IssuedLogin:
    """Create a token for a machine; its text appears only in this answer."""
    with platform.db.write() as session:
        return token_body(users.issue_token(session, caller.user, body.name, kind="personal"))


@router.delete("/tokens/{token_id}", status_code=204)
def revoke(token_id: str, platform: PlatformDep, caller: CallerDep) -> Response:
    with platform.db.write() as session:
        users.revoke_token(session, caller.user, token_id)
    return Response(status_code=204)

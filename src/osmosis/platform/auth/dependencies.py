"""The caller and the workspace of a request, by its headers (`X-Osmosis-Git` or `X-Osmosis-Workspace`)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, TypeVar

from fastapi import Depends, Request
from fastapi.params import Depends as DependsOn
from sqlalchemy.orm import Session

from osmosis.errors import AuthRequired
from osmosis.platform import Platform, tables
from osmosis.platform.auth import tokens
from osmosis.platform.auth.rate_limits import address_of
from osmosis.platform.workspaces import service as workspaces
from osmosis.platform.workspaces.audit import Actor
from osmosis.records.api.accounts import Action, TokenScope

_BY_METHOD: dict[str, Action] = {"GET": "read", "HEAD": "read", "DELETE": "delete"}
GIT_HEADER = "x-osmosis-git"
WORKSPACE_HEADER = "x-osmosis-workspace"


Caller = Actor


@dataclass(frozen=True, slots=True)
class Scope(Actor):
    workspace: tables.Workspace
    role: str


async def get_platform(request: Request) -> Platform:
    """Return the platform. `async`, because FastAPI runs a plain `def` in a thread."""
    platform: Platform = request.app.state.platform
    return platform


PlatformDep = Annotated[Platform, Depends(get_platform)]


def bearer(request: Request) -> str:
    header = request.headers.get("authorization")
    if not header:
        raise AuthRequired("not logged in", hint="osmosis login", code="AUTH_HEADER_MISSING")
    kind, _, token = header.partition(" ")
    if kind.lower() != "bearer" or not token.strip():
        raise AuthRequired("the Authorization header has no bearer token", code="TOKEN_MISSING")
    return token.strip()


def caller_with(
    scope: TokenScope, require: Callable[[Session, tables.Token], None] | None = None
) -> Callable[[Request, Platform], Caller]:
    def get_caller(request: Request, platform: PlatformDep) -> Caller:
        caller = _find_caller(request, platform, scope)
        if require is not None:
            with platform.db.read() as session:
                require(session, caller.token)
        return _admit(request, platform, caller)

    return get_caller


def scope_with(scope: TokenScope, action: Action | None = None) -> Callable[[Request, Platform], Scope]:

    def get_scope(request: Request, platform: PlatformDep) -> Scope:
        return _admit(request, platform, _find_scope(request, platform, scope, action or by_method(request)))

    return get_scope


def get_either(request: Request, platform: PlatformDep) -> tuple[Caller, Scope | None]:
    has_scope = request.headers.get(GIT_HEADER) or request.headers.get(WORKSPACE_HEADER)
    scope = _find_scope(request, platform, "api", by_method(request)) if has_scope else None
    caller: Caller = scope or _find_caller(request, platform, "api")
    if scope is None and caller.token.workspace_id is not None:
        caller = scope = _find_scope(request, platform, "api", by_method(request))
    return _admit(request, platform, caller), scope


def may(action: Action) -> DependsOn:
    return DependsOn(scope_with("api", action))


CallerDep = Annotated[Caller, Depends(caller_with("api"))]
OperatorDep = Annotated[Caller, Depends(caller_with("api", tokens.require_operator))]
PersonDep = Annotated[Caller, Depends(caller_with("api", lambda _, token: tokens.require_unbound(token)))]
ScopeDep = Annotated[Scope, Depends(scope_with("api"))]
EitherDep = Annotated[tuple[Caller, Scope | None], Depends(get_either)]


_BULK = ("/api/cli/eval-runs/imports/", "/api/cli/models/base/", "/api/cli/rollout-server/")
_WORKERS = "/api/workers/"
AnyCaller = TypeVar("AnyCaller", bound=Caller)


def _admit(request: Request, platform: Platform, caller: AnyCaller) -> AnyCaller:
    tokens.touch(platform.db, caller.token)
    path = request.scope["path"]
    if path.startswith(_WORKERS):
        platform.rates.take("worker", caller.token.id)
    elif request.method not in ("GET", "HEAD") and not path.startswith(_BULK):
        platform.rates.take("write", caller.user.id)
    return caller


def _find_caller(request: Request, platform: Platform, scope: TokenScope) -> Caller:
    text = bearer(request)
    with platform.db.read() as session:
        token = tokens.authenticate(session, text)
    tokens.require_scope(token, scope)
    return Caller(token.user, token, address_of(request))


def _find_scope(request: Request, platform: Platform, scope: TokenScope, action: Action) -> Scope:
    identity, name = request.headers.get(GIT_HEADER), request.headers.get(WORKSPACE_HEADER)
    text = bearer(request)
    with platform.db.read() as session:
        token = tokens.authenticate(session, text)
        tokens.require_scope(token, scope)
        if token.workspace_id is not None and not identity and not name:
            workspace, role = workspaces.by_id(session, token.user, token.workspace_id)
        else:
            workspace, role = workspaces.resolve(session, token.user, identity=identity, name=name)
    tokens.require_workspace(token, workspace)
    workspaces.require(role, action)
    return Scope(token.user, token, address_of(request), workspace, role)


def by_method(request: Request) -> Action:
    return _BY_METHOD.get(request.method, "run")

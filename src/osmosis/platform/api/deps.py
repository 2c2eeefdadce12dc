"""Who is asking, and about which workspace: read from the headers of a request.

Exactly one of `X-Osmosis-Git` and `X-Osmosis-Workspace` names the workspace. What the
role there may do is said by `records.policy`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request
from fastapi.params import Depends as DependsOn
from sqlalchemy.orm import Session

from osmosis.errors import AuthRequired
from osmosis.platform import Platform, tables
from osmosis.platform.security.origin import address_of
from osmosis.platform.services import tokens, workspaces
from osmosis.platform.services.audit import Actor
from osmosis.records.contract.accounts import TokenScope
from osmosis.records.policy import Action

_BY_METHOD: dict[str, Action] = {"GET": "read", "HEAD": "read", "DELETE": "delete"}
GIT_HEADER = "x-osmosis-git"
WORKSPACE_HEADER = "x-osmosis-workspace"


Caller = Actor


@dataclass(frozen=True, slots=True)
class Scope(Actor):
    """A caller inside one workspace, whose role there may do what the route is for."""

    workspace: tables.Workspace
    role: str


async def get_platform(request: Request) -> Platform:
    """Not `def`, which would cost every request a thread."""
    platform: Platform = request.app.state.platform
    return platform


PlatformDep = Annotated[Platform, Depends(get_platform)]


def bearer(request: Request) -> str:
    """The bearer token of a request. AuthRequired with contract codes when it is absent."""
    header = request.headers.get("authorization")
    if not header:
        raise AuthRequired("not logged in", hint="osmosis login", code="AUTH_HEADER_MISSING")
    kind, _, token = header.partition(" ")
    if kind.lower() != "bearer" or not token.strip():
        raise AuthRequired("the Authorization header has no bearer token", code="TOKEN_MISSING")
    return token.strip()


def caller_with(scope: TokenScope) -> Callable[[Request, Platform], Caller]:
    """The person behind a token that has this scope. A dependency: `Depends(caller_with("worker"))`.

    The token is looked up at every request, so a revoked one ends everywhere at once.
    """

    def get_caller(request: Request, platform: PlatformDep) -> Caller:
        with platform.db.read() as session:
            caller = _caller(session, request, scope)
        tokens.touch(platform.db, caller.token)
        _count_change(request, platform, caller)
        return caller

    return get_caller


def scope_with(scope: TokenScope, action: Action | None = None) -> Callable[[Request, Platform], Scope]:
    """The person behind a token that has this scope, in the workspace that the headers name, or to which the token is
    bound; Forbidden unless their role there may do this (`by_method` where a route says nothing).

    One session, for it is every request.
    """

    def get_scope(request: Request, platform: PlatformDep) -> Scope:
        with platform.db.read() as session:
            caller = _caller(session, request, scope)
            found = _scope(session, request, caller, action or by_method(request))
        tokens.touch(platform.db, caller.token)
        _count_change(request, platform, caller)
        return found

    return get_scope


def get_person(request: Request, platform: PlatformDep) -> Caller:
    """The person behind a token that speaks for them as a whole, not for one workspace."""
    with platform.db.read() as session:
        caller = _caller(session, request, "api")
        tokens.require_unbound(caller.token)
    tokens.touch(platform.db, caller.token)
    _count_change(request, platform, caller)
    return caller


def get_operator(request: Request, platform: PlatformDep) -> Caller:
    """The person who runs this platform."""
    with platform.db.read() as session:
        caller = _caller(session, request, "api")
        tokens.require_operator(session, caller.token)
    tokens.touch(platform.db, caller.token)
    _count_change(request, platform, caller)
    return caller


def get_either(request: Request, platform: PlatformDep) -> tuple[Caller, Scope | None]:
    """The person behind the token; with the workspace when the request or the token names one."""
    with platform.db.read() as session:
        caller = _caller(session, request, "api")
        named = has_scope(request) or caller.token.workspace_id is not None
        scope = _scope(session, request, caller, by_method(request)) if named else None
    tokens.touch(platform.db, caller.token)
    _count_change(request, platform, caller)
    return caller, scope


def may(action: Action) -> DependsOn:
    """`Annotated[Scope, may("audit")]`: a person whose role in the workspace may do this."""
    return DependsOn(scope_with("api", action))


CallerDep = Annotated[Caller, Depends(caller_with("api"))]
OperatorDep = Annotated[Caller, Depends(get_operator)]
PersonDep = Annotated[Caller, Depends(get_person)]
ScopeDep = Annotated[Scope, Depends(scope_with("api"))]
EitherDep = Annotated[tuple[Caller, Scope | None], Depends(get_either)]


_BULK = ("/api/cli/eval-runs/imports/", "/api/cli/models/base/", "/api/cli/rollout-server/")
"""Many small steps of one thing, each of which was announced; and what servers say of themselves."""


def _count_change(request: Request, platform: Platform, caller: Caller) -> None:
    if request.method not in ("GET", "HEAD") and not request.url.path.startswith(_BULK):
        platform.rates.take("write", caller.user.id)


def _caller(session: Session, request: Request, scope: TokenScope) -> Caller:
    row = tokens.authenticate(session, bearer(request))
    tokens.require_scope(row, scope)
    return Caller(row.user, row, address_of(request))


def _scope(session: Session, request: Request, caller: Caller, action: Action) -> Scope:
    headers, token = request.headers, caller.token
    identity, name = headers.get(GIT_HEADER), headers.get(WORKSPACE_HEADER)
    bound = token.workspace_id
    if bound is not None and not identity and not name:
        workspace, role = workspaces.by_id(session, token.user, bound)
    else:
        workspace, role = workspaces.resolve(session, token.user, identity=identity, name=name)
        tokens.require_workspace(token, workspace)
    workspaces.require(role, action)
    return Scope(caller.user, token, caller.address, workspace, role)


def by_method(request: Request) -> Action:
    """What a route is taken to do that does not say it: reading, deleting, or the work of members."""
    return _BY_METHOD.get(request.method, "run")


def has_scope(request: Request) -> bool:
    """Whether the request names a workspace at all."""
    return bool(request.headers.get(GIT_HEADER) or request.headers.get(WORKSPACE_HEADER))

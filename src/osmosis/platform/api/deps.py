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

from osmosis.errors import AuthRequired
from osmosis.platform import Platform, tables
from osmosis.platform.security.origin import address_of
from osmosis.platform.services import access, tokens, workspaces
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
        caller = _caller(request, platform, scope)
        tokens.touch(platform.db, caller.token)
        _count_change(request, platform, caller)
        return caller

    return get_caller


def scope_with(scope: TokenScope, action: Action | None = None) -> Callable[[Request, Platform], Scope]:
    """The person behind a token that has this scope, in the workspace that the headers name, or to which the token is
    bound; Forbidden unless their role there may do this (`by_method` where a route says nothing).
    """

    def get_scope(request: Request, platform: PlatformDep) -> Scope:
        found = _scope(request, platform, scope, action or by_method(request))
        tokens.touch(platform.db, found.token)
        _count_change(request, platform, found)
        return found

    return get_scope


def get_worker(request: Request, platform: PlatformDep) -> Caller:
    """A worker that asks for work: its token's person must be one who may still have workers."""
    caller = _caller(request, platform, "worker")
    with platform.db.read() as session:
        tokens.require_worker(session, caller.token)
    tokens.touch(platform.db, caller.token)
    _count_change(request, platform, caller)
    return caller


def get_person(request: Request, platform: PlatformDep) -> Caller:
    """The person behind a token that speaks for them as a whole, not for one workspace."""
    caller = _caller(request, platform, "api")
    tokens.require_unbound(caller.token)
    tokens.touch(platform.db, caller.token)
    _count_change(request, platform, caller)
    return caller


def get_operator(request: Request, platform: PlatformDep) -> Caller:
    """The person who runs this platform."""
    caller = _caller(request, platform, "api")
    with platform.db.read() as session:
        tokens.require_operator(session, caller.token)
    tokens.touch(platform.db, caller.token)
    _count_change(request, platform, caller)
    return caller


def get_either(request: Request, platform: PlatformDep) -> tuple[Caller, Scope | None]:
    """The person behind the token; with the workspace when the request or the token names one."""
    scope = _scope(request, platform, "api", by_method(request)) if has_scope(request) else None
    caller: Caller = scope or _caller(request, platform, "api")
    if scope is None and caller.token.workspace_id is not None:
        caller = scope = _scope(request, platform, "api", by_method(request))
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
_WORKERS = "/api/workers/"
"""How often these speak is said by the platform (`fleet.PER_SECOND`), for all together; all may have one token."""


def _count_change(request: Request, platform: Platform, caller: Caller) -> None:
    path = request.scope["path"]
    if path.startswith(_WORKERS):
        platform.rates.take("worker", caller.token.id)
    elif request.method not in ("GET", "HEAD") and not path.startswith(_BULK):
        platform.rates.take("write", caller.user.id)


def _caller(request: Request, platform: Platform, scope: TokenScope) -> Caller:
    token = access.of_token(platform.db, bearer(request), scope)
    return Caller(token.user, token, address_of(request))


def _scope(request: Request, platform: Platform, scope: TokenScope, action: Action) -> Scope:
    headers = request.headers
    identity, name = headers.get(GIT_HEADER), headers.get(WORKSPACE_HEADER)
    found = access.in_workspace(platform.db, bearer(request), scope, identity=identity, name=name)
    workspaces.require(found.role, action)
    return Scope(found.token.user, found.token, address_of(request), found.workspace, found.role)


def by_method(request: Request) -> Action:
    """What a route is taken to do that does not say it: reading, deleting, or the work of members."""
    return _BY_METHOD.get(request.method, "run")


def has_scope(request: Request) -> bool:
    """Whether the request names a workspace at all."""
    return bool(request.headers.get(GIT_HEADER) or request.headers.get(WORKSPACE_HEADER))

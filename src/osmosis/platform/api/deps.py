"""Who is asking, and about which workspace: read from the headers of a request.

Exactly one of `X-Osmosis-Git` and `X-Osmosis-Workspace` names the workspace. Decides no rule beyond membership.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request
from sqlalchemy.orm import Session

from osmosis.errors import AuthRequired
from osmosis.platform import Platform, tables
from osmosis.platform.services import users, workspaces
from osmosis.records.base import utc_now

GIT_HEADER = "x-osmosis-git"
WORKSPACE_HEADER = "x-osmosis-workspace"


@dataclass(frozen=True, slots=True)
class Caller:
    """The person behind a request and the token used."""

    user: tables.User
    token: tables.Token


@dataclass(frozen=True, slots=True)
class Scope:
    """A caller inside one workspace."""

    user: tables.User
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


def get_caller(request: Request, platform: PlatformDep) -> Caller:
    """The person behind the token. It is looked up at every request, so a revoked one ends everywhere at once."""
    with platform.db.read() as session:
        row = users.check_token(session, bearer(request))
        caller = Caller(row.user, row)
    _touch(platform, row)
    return caller


CallerDep = Annotated[Caller, Depends(get_caller)]


def get_scope(request: Request, platform: PlatformDep) -> Scope:
    """The person behind the token, in the workspace that the headers name: one session, for it is every request."""
    with platform.db.read() as session:
        row = users.check_token(session, bearer(request))
        scope = _scope(session, request, row)
    _touch(platform, row)
    return scope


ScopeDep = Annotated[Scope, Depends(get_scope)]


def get_either(request: Request, platform: PlatformDep) -> tuple[Caller, Scope | None]:
    """The person behind the token; with the workspace when the request names one."""
    with platform.db.read() as session:
        row = users.check_token(session, bearer(request))
        scope = _scope(session, request, row) if has_scope(request) else None
        caller = Caller(row.user, row)
    _touch(platform, row)
    return caller, scope


EitherDep = Annotated[tuple[Caller, Scope | None], Depends(get_either)]


def _scope(session: Session, request: Request, row: tables.Token) -> Scope:
    headers = request.headers
    identity, name = headers.get(GIT_HEADER), headers.get(WORKSPACE_HEADER)
    workspace, role = workspaces.resolve(session, row.user, identity=identity, name=name)
    return Scope(row.user, workspace, role)


def _touch(platform: Platform, row: tables.Token) -> None:
    if users.needs_touch(row, utc_now()):
        with platform.db.write() as session:
            users.touch_token(session, row.id)


def has_scope(request: Request) -> bool:
    """Whether the request names a workspace at all."""
    return bool(request.headers.get(GIT_HEADER) or request.headers.get(WORKSPACE_HEADER))

"""Who is asking, and about which workspace: read from the headers of a request.

Exactly one of `X-Osmosis-Git` and `X-Osmosis-Workspace` names the workspace. Decides no rule beyond membership.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

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


def get_platform(request: Request) -> Platform:
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
    text = bearer(request)
    with platform.db.read() as session:
        row = users.check_token(session, text)
        caller = Caller(row.user, row)
        touch = users.needs_touch(row, utc_now())
    if touch:
        with platform.db.write() as session:
            users.touch_token(session, row.id)
    return caller


CallerDep = Annotated[Caller, Depends(get_caller)]


def get_scope(request: Request, platform: PlatformDep, caller: CallerDep) -> Scope:
    with platform.db.read() as session:
        workspace, role = workspaces.resolve(
            session,
            caller.user,
            identity=request.headers.get(GIT_HEADER),
            name=request.headers.get(WORKSPACE_HEADER),
        )
    return Scope(caller.user, workspace, role)


ScopeDep = Annotated[Scope, Depends(get_scope)]


def has_scope(request: Request) -> bool:
    """Whether the request names a workspace at all."""
    return bool(request.headers.get(GIT_HEADER) or request.headers.get(WORKSPACE_HEADER))

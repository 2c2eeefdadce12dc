"""`/api/cli/`: log in by device flow or bootstrap token, check and revoke tokens."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from osmosis.records.base import utc_now

from .. import tables
from ..services import device, links, startup, users, workspaces
from ..services.users import IssuedToken
from .deps import GIT_HEADER, WORKSPACE_HEADER, CallerDep, PlatformDep, bearer, has_scope

router = APIRouter(prefix="/api/cli")


class DeviceStart(BaseModel):
    deviceName: str = "unnamed device"


class DevicePoll(BaseModel):
    device_code: str


class NewToken(BaseModel):
    name: str


def user_body(user: tables.User) -> dict[str, Any]:
    return {"id": user.id, "email": user.email, "name": user.name, "handle": user.handle}


def iso(moment: datetime | None) -> str | None:
    return moment.isoformat() if moment else None


def token_body(issued: IssuedToken) -> dict[str, Any]:
    return {
        "token": issued.text,
        "user": user_body(issued.user),
        "expires_at": iso(issued.row.expires_at),
        "token_id": issued.row.id,
    }


@router.post("/device/authorize")
def authorize(body: DeviceStart, platform: PlatformDep) -> dict[str, Any]:
    with platform.db.write() as session:
        login = device.start(session, body.deviceName)
    return {
        "device_code": login.device_code,
        "user_code": login.user_code,
        "verification_uri": links.device(platform.settings),
        "verification_uri_complete": links.device(platform.settings, login.user_code),
        "expires_in": login.expires_in,
        "interval": login.interval,
    }


@router.post("/device/token")
def device_token(body: DevicePoll, platform: PlatformDep) -> Any:
    with platform.db.write() as session:
        answer = device.poll(session, body.device_code)
        if isinstance(answer, str):
            return JSONResponse({"error": answer, "message": answer}, status_code=400)
        return token_body(answer)


@router.post("/bootstrap")
def bootstrap(body: DeviceStart, request: Request, platform: PlatformDep) -> dict[str, Any]:
    """The one who can read the platform's own file is its owner: a login without a browser."""
    startup.check_bootstrap(platform, bearer(request))
    with platform.db.write() as session:
        owner = users.ensure_owner(session, platform.settings.owner_name)
        return token_body(users.issue_token(session, owner, body.deviceName))


@router.get("/verify")
def verify(request: Request, platform: PlatformDep, caller: CallerDep) -> dict[str, Any]:
    body: dict[str, Any] = {
        "user": user_body(caller.user),
        "expires_at": iso(caller.token.expires_at),
        "token_id": caller.token.id,
    }
    if has_scope(request):
        with platform.db.read() as session:
            workspace, role = workspaces.resolve(
                session,
                caller.user,
                identity=request.headers.get(GIT_HEADER),
                name=request.headers.get(WORKSPACE_HEADER),
            )
        body["workspace"] = {"id": workspace.id, "name": workspace.name, "role": role}
    return body


@router.get("/tokens")
def list_tokens(platform: PlatformDep, caller: CallerDep) -> dict[str, Any]:
    with platform.db.read() as session:
        rows = users.list_tokens(session, caller.user)
    now = utc_now()
    return {
        "tokens": [
            {
                "id": row.id,
                "name": row.name,
                "kind": row.kind,
                "created_at": iso(row.created_at),
                "expires_at": iso(row.expires_at),
                "last_used_at": iso(row.last_used_at),
            }
            for row in rows
            if row.expires_at is None or row.expires_at > now
        ]
    }


@router.post("/tokens")
def make_token(body: NewToken, platform: PlatformDep, caller: CallerDep) -> dict[str, Any]:
    """A token for a machine; its text is in this answer only."""
    with platform.db.write() as session:
        return token_body(users.issue_token(session, caller.user, body.name, kind="personal"))


@router.delete("/tokens/{token_id}", status_code=204)
def revoke(token_id: str, platform: PlatformDep, caller: CallerDep) -> Response:
    with platform.db.write() as session:
        users.revoke_token(session, caller.user, token_id)
    return Response(status_code=204)

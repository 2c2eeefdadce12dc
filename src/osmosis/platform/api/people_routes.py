"""`/api/cli/members`: who belongs to the workspace; `/api/cli/users`: everybody, for whoever runs the platform."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Response

from osmosis.errors import ValidationError
from osmosis.platform.services import audit, identities, links, login_flows, members, users
from osmosis.records.contract.accounts import BrowserLink
from osmosis.records.contract.people import (
    MemberList,
    MemberRole,
    MemberRow,
    NewMember,
    NewPerson,
    PersonList,
    PersonRow,
    WantedLink,
)

from .contract_route import ContractRoute
from .deps import OperatorDep, PlatformDep, Scope, ScopeDep, may

router = APIRouter(prefix="/api/cli", route_class=ContractRoute)
MembersDep = Annotated[Scope, may("members")]


@router.get("/members")
def list_members(platform: PlatformDep, scope: ScopeDep) -> MemberList:
    with platform.db.read() as session:
        return MemberList(members=members.listed(session, scope.workspace))


@router.post("/members")
def invite(body: NewMember, platform: PlatformDep, scope: MembersDep) -> MemberRow:
    """Somebody joins the workspace: by their handle or address; one that nobody has here waits for its person."""
    with platform.db.write() as session:
        row = members.invite(session, scope.workspace, scope.user, scope.role, body.person, body.role)
        action = "member.invite" if row.invited else "member.add"
        audit.note(session, scope, action, row.handle or row.email or "", workspace=scope.workspace, role=row.role)
    return row


@router.put("/members/{person}")
def change(person: str, body: MemberRole, platform: PlatformDep, scope: MembersDep) -> MemberRow:
    with audit.change(platform.db, scope, "member.role", person, workspace=scope.workspace, role=body.role) as session:
        return members.change(session, scope.workspace, scope.role, person, body.role)


@router.delete("/members/{person}", status_code=204)
def remove(person: str, platform: PlatformDep, scope: Annotated[Scope, may("read")]) -> Response:
    """Remove somebody, or leave: that everybody may."""
    with audit.change(platform.db, scope, "member.remove", person, workspace=scope.workspace) as session:
        members.remove(session, scope.workspace, scope.user, scope.role, person)
    return Response(status_code=204)


@router.get("/users")
def list_people(platform: PlatformDep, caller: OperatorDep) -> PersonList:
    with platform.db.read() as session:
        return PersonList(users=users.listed(session))


@router.post("/users")
def add_person(body: NewPerson, platform: PlatformDep, caller: OperatorDep) -> PersonRow:
    with audit.change(platform.db, caller, "user.add", body.handle, operator=body.operator) as session:
        email = body.email or f"{body.handle}@localhost"
        user = users.create_user(
            session, body.handle, email=email, name=body.name or body.handle, operator=body.operator
        )
        return users.body(session, user)


@router.delete("/users/{handle}", status_code=204)
def remove_person(handle: str, platform: PlatformDep, caller: OperatorDep, heir: str = "") -> Response:
    """Remove somebody with their tokens and secrets; what they made stays. `heir` gets what they own alone."""
    if handle == caller.user.handle:
        raise ValidationError("you cannot remove yourself", hint="ask another operator to do it")
    with audit.change(platform.db, caller, "user.remove", handle, heir=heir) as session:
        users.remove(session, users.require(session, handle), users.require(session, heir) if heir else None)
    return Response(status_code=204)


@router.post("/users/{handle}/link")
def link_person(handle: str, body: WantedLink, platform: PlatformDep, caller: OperatorDep) -> BrowserLink:
    """An address that logs this person's browser in, once: what others do with a password and a mail."""
    with audit.change(platform.db, caller, "user.link", handle, hours=body.hours) as session:
        login = login_flows.link_for(session, users.require(session, handle), caller.token, hours=body.hours)
    return BrowserLink(url=links.login(platform.settings, login.device_code), expires_in=login.expires_in)


@router.delete("/users/{handle}/identities", status_code=204)
def unlink_person(handle: str, platform: PlatformDep, caller: OperatorDep) -> Response:
    """Forget which accounts at the sign-in provider are this person's: the next one with their address is."""
    with audit.change(platform.db, caller, "user.unlink", handle) as session:
        identities.unlink(session, users.require(session, handle))
    return Response(status_code=204)

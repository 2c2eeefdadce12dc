"""`osmosis workspace members, invite, role, remove`: who belongs to a workspace, and as what."""

from __future__ import annotations

from typing import Annotated

import typer

from osmosis.errors import ValidationError
from osmosis.records.policy import ROLES, Role

from . import prompts
from .context import current, scope_of
from .resolve import nearest
from .results import Column, ListResult, NextStep, OperationResult, when

Person = Annotated[str, typer.Argument(help="Handle or e-mail address")]


def list_members() -> ListResult:
    """List the workspace's members and open invitations.

    Example:
        osmosis workspace members
        osmosis workspace members --workspace demo
    """
    ctx = current()
    with ctx.client() as client:
        rows = client.workspaces.access.members.list()
        extra = scope_of(client)
    columns = [
        Column("handle", "Handle", show=lambda v: v or ""),
        Column("name", "Name", show=lambda v: v or ""),
        Column("email", "E-mail"),
        Column("role", "Role"),
        Column("invited", "", show=lambda v: "invited" if v else ""),
        Column("since", "Since", show=when, wide=True),
    ]
    return ListResult([row.to_dict() for row in rows], columns, extra=extra)


def invite(
    person: Person,
    role: Annotated[str, typer.Option(help=f"Their role: {', '.join(ROLES)}")] = "member",
) -> OperationResult:
    """Invite a person to the workspace.

    Someone who is already on this platform joins at once. An e-mail address that is new
    here is an open invitation until its owner logs in.

    Example:
        osmosis workspace invite ada
        osmosis workspace invite grace@example.com --role viewer
    """
    ctx = current()
    wanted = _role(role)
    with ctx.client() as client:
        row = client.workspaces.access.members.invite(person, wanted)
        extra = scope_of(client)
    steps = []
    if row.invited:
        message = f"{row.email} is invited as {row.role}, and joins when somebody with this address has an account here"
        handle = person.partition("@")[0].lower()
        steps = [
            NextStep("add them, if you are an operator", command=f"osmosis platform user add {handle} --email {person}")
        ]
    else:
        message = f"{row.handle} is {row.role} now"
    return OperationResult("workspace.invite", message, row.to_dict(), extra=extra, next_steps=steps)


def change_role(
    person: Person, role: Annotated[str, typer.Argument(help=f"The new role: {', '.join(ROLES)}")]
) -> OperationResult:
    """Change a member's role in the workspace.

    Example:
        osmosis workspace role ada admin
    """
    ctx = current()
    with ctx.client() as client:
        row = client.workspaces.access.members.change(person, _role(role))
        extra = scope_of(client)
    return OperationResult("workspace.role", f"{row.handle} is {row.role} now", row.to_dict(), extra=extra)


def remove(person: Person, yes: prompts.Yes = False) -> OperationResult:
    """Remove a member, withdraw an invitation, or leave the workspace. The member's personal secrets in it are deleted.

    Example:
        osmosis workspace remove ada --yes
    """
    ctx = current()
    if not prompts.confirm(ctx, f"Remove {person} from the workspace?", yes=yes):
        return OperationResult("workspace.remove", "Cancelled.", status="cancelled")
    with ctx.client() as client:
        client.workspaces.access.members.remove(person)
        extra = scope_of(client)
    return OperationResult("workspace.remove", f"{person} is removed", {"person": person}, extra=extra)


def _role(word: str) -> Role:
    for role in ROLES:
        if word == role:
            return role
    near = nearest(word, ROLES)
    raise ValidationError(
        f"{word!r} is not a role: use one of {', '.join(ROLES)}", hint=f"did you mean {near}?" if near else None
    )

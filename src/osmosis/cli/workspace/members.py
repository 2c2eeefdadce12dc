from typing import Annotated

from typer import Argument, Option

from osmosis.cli.core import prompts
from osmosis.cli.core.app import check_word
from osmosis.cli.core.context import current, scope_of
from osmosis.cli.core.results import Column, ListResult, NextStep, OperationResult, build_columns, when
from osmosis.errors import UsageError
from osmosis.records.api.policy import ROLES

COLUMNS = (
    Column("handle", "Handle", show=lambda v: v or ""),
    Column("name", "Name", show=lambda v: v or ""),
    *build_columns("email=E-mail", "role=Role"),
    Column("invited", "Invitation", show=lambda v: "open" if v else ""),
    Column("since", "Since", show=when, wide=True),
)


def members(
    person: Annotated[str | None, Argument(help="Handle or e-mail address [default: list all]")] = None,
    role: Annotated[str | None, Option(help=f"Invite them, or change their role: {', '.join(ROLES)}")] = None,
    delete: Annotated[
        bool, Option("--delete", help="Remove them, withdraw their invitation, or leave the workspace")
    ] = False,
) -> ListResult | OperationResult:
    """List the workspace's members and open invitations, invite a person, change a role, or remove a member.

    Someone who is already on this platform joins at once. An e-mail address that is new here is an open invitation
    until its owner logs in. With a member, their personal secrets in the workspace are deleted.

    Example:
        osmosis workspace members
        osmosis workspace members grace@example.com --role viewer
        osmosis workspace members ada --delete
    """
    ctx = current()
    if person is None and (role or delete):
        raise UsageError("name the person", hint="osmosis workspace members ada --role admin")
    if delete:
        prompts.agree(ctx, f"Remove {person} from the workspace?", "workspace.remove")
    word = role or "member"
    checked_role = check_word(word, ROLES, f"{word!r} is not a role: use one of {', '.join(ROLES)}")
    with ctx.client() as client:
        access, extra = client.workspaces.access.members, scope_of(client)
        if person is None:
            return ListResult([row.to_dict() for row in access.list()], COLUMNS, extra=extra)
        if delete:
            access.remove(person)
            return OperationResult("workspace.remove", f"{person} is removed", {"person": person}, extra=extra)
        if role and person in {name for row in access.list() for name in (row.handle, row.email) if name}:
            row = access.change(person, checked_role)
            return OperationResult("workspace.role", f"{row.handle} is {row.role} now", row.to_dict(), extra=extra)
        row = access.invite(person, checked_role)
    steps, message = [], f"{row.handle} is {row.role} now"
    if row.invited:
        message = f"{row.email} is invited as {row.role}, and joins when somebody with this address has an account here"
        command = f"osmosis platform user add {person.partition('@')[0].lower()} --email {person}"
        steps = [NextStep("add them, if you are an operator", command=command)]
    return OperationResult("workspace.invite", message, row.to_dict(), extra=extra, next_steps=steps)

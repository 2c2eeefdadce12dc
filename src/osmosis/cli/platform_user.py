"""`osmosis platform user`: the people of a platform, for whoever runs it. Nobody has a password: a link works once."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from osmosis.errors import ValidationError
from osmosis.records.contract.people import NewPerson

from . import prompts
from .context import current
from .results import Column, ListResult, NextStep, OperationResult, when

app = typer.Typer(
    help="""The people of the platform: add, list, remove, link, unlink. For operators only.

    Example:
        osmosis platform user add ada --email ada@example.com
        osmosis platform user link ada
    """
)
Handle = Annotated[str, typer.Argument(help="Small letters, digits and -")]
Hours = Annotated[int, typer.Option(min=1, max=168, help="How long the link works")]
_HANDLE = re.compile(r"^[a-z0-9][a-z0-9-]{0,62}$")


@app.command()
def add(
    handle: Handle,
    email: Annotated[str, typer.Option(help="Their e-mail address, which invitations are matched by")] = "",
    name: Annotated[str, typer.Option(help="Display name [default: the handle]")] = "",
    operator: Annotated[bool, typer.Option("--operator", help="Make them an operator of the platform")] = False,
    hours: Hours = 24,
) -> OperationResult:
    """Add a person, and print the link that logs them in once.

    Example:
        osmosis platform user add ada --email ada@example.com
    """
    ctx = current()
    if not _HANDLE.fullmatch(handle):
        better = re.sub(r"[^a-z0-9-]+", "-", handle.lower()).strip("-")[:63] or "ada"
        raise ValidationError(
            f"{handle!r} is not a handle: use small letters, digits and -, a letter or digit first",
            hint=f"osmosis platform user add {better}",
        )
    wish = NewPerson(handle=handle, email=email, name=name, operator=operator)
    with ctx.client(scoped=False) as client:
        row = client.workspaces.access.people.add(wish)
        link = client.workspaces.access.people.link(handle, hours)
    joined = "".join(f", {role} of {workspace}" for workspace, role in row.workspaces.items())
    message = f"{handle} is added{joined}; this link logs them in once, within {hours} h:\n{link.url}"
    steps = [NextStep("invite them to a workspace", command=f"osmosis workspace invite {handle}")]
    return OperationResult("platform.user.add", message, {**row.to_dict(), "link": link.url}, next_steps=steps)


@app.command("list")
def list_people() -> ListResult:
    """List everyone on the platform.

    Example:
        osmosis platform user list
    """
    ctx = current()
    with ctx.client(scoped=False) as client:
        rows = client.workspaces.access.people.list()
    columns = [
        Column("handle", "Handle"),
        Column("name", "Name"),
        Column("email", "E-mail", wide=True),
        Column("operator", "", show=lambda v: "runs it" if v else ""),
        Column("workspaces", "Workspaces", show=lambda v: ", ".join(f"{name} ({role})" for name, role in v.items())),
        Column("last_used_at", "Last seen", show=when),
    ]
    return ListResult([row.to_dict() for row in rows], columns)


@app.command()
def remove(
    handle: Handle,
    heir: Annotated[
        str | None, typer.Option("--give-to", help="New owner of the workspaces that only they own")
    ] = None,
    yes: prompts.Yes = False,
) -> OperationResult:
    """Remove a person. Their tokens stop working at once and their secrets are deleted; their runs and datasets stay.

    Example:
        osmosis platform user remove ada --give-to grace
    """
    ctx = current()
    if not prompts.confirm(ctx, f"Remove {handle} from the platform?", yes=yes):
        return OperationResult("platform.user.remove", "Cancelled.", status="cancelled")
    with ctx.client(scoped=False) as client:
        client.workspaces.access.people.remove(handle, heir)
    return OperationResult("platform.user.remove", f"{handle} is removed", {"handle": handle, "heir": heir})


@app.command()
def link(handle: Handle, hours: Hours = 24) -> OperationResult:
    """Print a one-time link that logs a person's browser in.

    Send it to nobody else: whoever opens it is logged in as them.

    Example:
        osmosis platform user link ada --hours 2
    """
    ctx = current()
    with ctx.client(scoped=False) as client:
        made = client.workspaces.access.people.link(handle, hours)
    message = f"this link logs {handle} in once, within {hours} h:\n{made.url}"
    return OperationResult("platform.user.link", message, {"handle": handle, "url": made.url, "hours": hours})


@app.command()
def unlink(handle: Handle, yes: prompts.Yes = False) -> OperationResult:
    """Unlink a person from their account at the sign-in provider.

    The next account there with their e-mail address is linked.

    Example:
        osmosis platform user unlink ada
    """
    ctx = current()
    if not prompts.confirm(ctx, f"Forget which account at the provider is {handle}'s?", yes=yes):
        return OperationResult("platform.user.unlink", "Cancelled.", status="cancelled")
    with ctx.client(scoped=False) as client:
        client.workspaces.access.people.unlink(handle)
    message = f"{handle} is linked again by whoever signs in with their verified address; sessions go on"
    return OperationResult("platform.user.unlink", message, {"handle": handle})

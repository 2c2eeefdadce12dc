"""`osmosis workspace`: the workspaces one belongs to on a platform, and which one commands speak for.

Inside a workspace folder its `origin` decides; elsewhere the active one, chosen here; `--workspace` above both.
"""

from __future__ import annotations

from typing import Annotated

import typer

from osmosis.base.git import Git
from osmosis.client import PlatformClient
from osmosis.client.credentials import CredentialStore
from osmosis.errors import NotFound, WorkspaceRequired
from osmosis.records.contract.accounts import WorkspaceRow
from osmosis.workspace.layout import find_workspace

from . import audit, members, quota
from .connect import checkout_identity
from .context import AppContext, current
from .resolve import nearest
from .results import Column, DetailResult, ListResult, NextStep, OperationResult

app = typer.Typer(
    help="""Workspaces on the platform: list, create, switch, connect; members and their roles.

    Example:
        osmosis workspace list
        osmosis workspace switch demo
    """
)


app.command("members")(members.list_members)
app.command("invite")(members.invite)
app.command("role")(members.change_role)
app.command("remove")(members.remove)
app.command("audit")(audit.of_workspace)
app.command("quota")(quota.of_workspace)


@app.command("list")
def list_workspaces() -> ListResult:
    """List the workspaces you belong to.

    Example:
        osmosis workspace list
    """
    ctx = current()
    with ctx.client(scoped=False) as client:
        rows = client.workspaces.list()
    active, how = _meant(ctx, rows)
    items = [{**row.to_dict(), "current": row.name == active} for row in rows]
    columns = [
        Column("current", "", show=lambda v: "*" if v else ""),
        Column("name", "Name"),
        Column("role", "Role"),
        Column("connected_repo.repo_full_name", "Repository"),
    ]
    return ListResult(items, columns, empty="no workspaces yet: osmosis init NAME", extra={"current_by": how})


@app.command("current")
def current_workspace() -> DetailResult:
    """Show which workspace commands use in this folder, and why.

    Example:
        osmosis workspace current
    """
    ctx = current()
    with ctx.client(scoped=False) as client:
        rows = client.workspaces.list()
    name, how = _meant(ctx, rows)
    row = next((row for row in rows if row.name == name), None)
    if row is None:
        raise WorkspaceRequired("no workspace chosen", hint="osmosis workspace switch NAME, or osmosis init NAME")
    return DetailResult({**row.to_dict(), "chosen_by": how, "platform_url": ctx.platform_url}, title=str(name))


@app.command()
def switch(name: Annotated[str, typer.Argument(help="Name of the workspace")]) -> OperationResult:
    """Choose the workspace that commands use outside a workspace folder.

    Example:
        osmosis workspace switch demo
    """
    ctx = current()
    with ctx.client(scoped=False) as client:
        row = _find(client, name)
    CredentialStore(ctx.environ).set_workspace(ctx.platform_url, name)
    message = f"the active workspace at {ctx.platform_url} is {name}"
    here = checkout_identity(ctx)
    if here and here != row.identity:
        ctx.output.warn("WORKSPACE", f"inside this folder, its own repository decides: {here}")
    return OperationResult("workspace.switch", message, row.to_dict())


@app.command()
def create(name: Annotated[str, typer.Argument(help="Small letters, digits, - _ and .")]) -> OperationResult:
    """Create a workspace with a repository hosted by the platform.

    Example:
        osmosis workspace create demo
    """
    ctx = current()
    with ctx.client(scoped=False) as client:
        row = client.workspaces.create(name)
    steps = [NextStep("create its folder", command=f"osmosis init {name}")]
    message = f"workspace {name} is created, its repository is {row.repository_url}"
    return OperationResult("workspace.create", message, row.to_dict(), next_steps=steps)


@app.command()
def connect(
    name: Annotated[str, typer.Argument(help="Name of the workspace")],
    repository_url: Annotated[
        str | None, typer.Argument(help="URL of its repository [default: this folder's origin]")
    ] = None,
    secret: Annotated[
        str | None,
        typer.Option(help="Workspace secret used to fetch it: a token for https, a private key for ssh"),
    ] = None,
) -> OperationResult:
    """Connect a workspace to a repository on another git host, or a bare one on disk.

    The platform polls it every few minutes; with `osmosis workspace webhook`, a push is synced at once.

    Example:
        osmosis workspace connect demo https://github.com/acme/demo.git
        osmosis secret set DEPLOY_KEY --scope workspace --from-file key
        osmosis workspace connect demo git@github.com:acme/demo.git --secret DEPLOY_KEY
    """
    ctx = current()
    url = repository_url or _origin(ctx)
    with ctx.client(scoped=False) as client:
        _find(client, name)
        row = client.workspaces.connect(name, url, secret)
    return OperationResult("workspace.connect", f"workspace {name} is connected to {row.identity}", row.to_dict())


@app.command()
def webhook() -> DetailResult:
    """Show the address and secret of the workspace's webhook, for GitHub or GitLab. For owners and admins.

    At GitHub: Settings, Webhooks, content type application/json, only the push event. At GitLab: the secret is the
    secret token, the trigger is push events.

    Example:
        osmosis workspace webhook --workspace demo
    """
    ctx = current()
    with ctx.client() as client:
        found = client.workspaces.webhook()
    return DetailResult(found.to_dict(), title="webhook")


def _origin(ctx: AppContext) -> str:
    return Git(find_workspace(ctx.cwd).root).text("remote", "get-url", "origin").strip()


def _find(client: PlatformClient, name: str) -> WorkspaceRow:
    rows = client.workspaces.list()
    for row in rows:
        if row.name == name:
            return row
    near = nearest(name, [row.name for row in rows])
    hint = f"did you mean {near}?" if near else f"osmosis workspace create {name}"
    raise NotFound(f"there is no workspace {name}", hint=hint)


def _meant(ctx: AppContext, rows: list[WorkspaceRow]) -> tuple[str | None, str]:
    """The workspace commands speak for here, and what decides it."""
    if ctx.options.workspace:
        return ctx.options.workspace, "--workspace"
    if identity := checkout_identity(ctx):
        for row in rows:
            if row.identity == identity:
                return row.name, "the origin of this folder"
        return None, "the origin of this folder, which is not connected"
    return CredentialStore(ctx.environ).active_workspace(ctx.platform_url), "osmosis workspace switch"

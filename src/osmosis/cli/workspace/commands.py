from typing import Annotated

from typer import Argument, Option

from osmosis.base.git import Git
from osmosis.cli.core import completion, prompts
from osmosis.cli.core.app import check_word, guess_hint, new_app
from osmosis.cli.core.connect import checkout_identity, scope_of
from osmosis.cli.core.context import AppContext, current
from osmosis.cli.core.results import Column, DetailResult, ListResult, NextStep, OperationResult, build_columns, when
from osmosis.cli.platform.admin import audit_workspace, show_quota
from osmosis.client import PlatformClient
from osmosis.client.credentials import CredentialStore
from osmosis.errors import NotFound, UsageError, WorkspaceRequired
from osmosis.records.api.accounts import ROLES, WorkspaceRow
from osmosis.workspace.layout import find_workspace

Name = Annotated[str, Argument(help="Name of the workspace", autocompletion=completion.workspaces)]

app = new_app(
    help="""Workspaces on the platform: list, show, create, switch, connect, rename, delete; members and their roles.

    Example:
        osmosis workspace list
        osmosis workspace switch demo
    """
)

MEMBER_COLUMNS = (
    Column("handle", "Handle", show=lambda v: v or ""),
    Column("name", "Name", show=lambda v: v or ""),
    *build_columns("email=E-mail", "role=Role"),
    Column("invited", "Invitation", show=lambda v: "open" if v else ""),
    Column("since", "Since", show=when, wide=True),
)


@app.command()
def members(
    person: Annotated[str | None, Argument(help="Handle or e-mail address [default: list all]")] = None,
    role: Annotated[str | None, Option(help=f"Invite them, or change their role: {', '.join(ROLES)}")] = None,
    delete: Annotated[bool, Option(help="Remove them, withdraw their invitation, or leave the workspace")] = False,
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
    client = ctx.client()
    access, extra = client.members, scope_of(client)
    if person is None:
        return ListResult([row.to_dict() for row in access.list()], MEMBER_COLUMNS, extra=extra)
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


app.command("audit")(audit_workspace)
app.command("quota")(show_quota)


@app.command("list")
def list_workspaces() -> ListResult:
    """List the workspaces you belong to.

    Example:
        osmosis workspace list
    """
    ctx = current()
    rows = ctx.client(scoped=False).workspaces.list()
    active, source = _find_active(ctx, rows)
    items = [{**row.to_dict(), "current": row.name == active} for row in rows]
    columns = [
        Column("current", "", show=lambda v: "*" if v else ""),
        *build_columns("name=Name", "role=Role", "connected_repo.repo_full_name=Repository"),
    ]
    return ListResult(items, columns, empty="no workspaces yet: osmosis init NAME", extra={"current_by": source})


@app.command("show")
def current_workspace(
    with_webhook: Annotated[
        bool, Option("--webhook", help="Show the webhook's address and secret; for admins")
    ] = False,
) -> DetailResult:
    """Show which workspace commands use in this folder, and why.

    With --webhook, for GitHub: Settings, Webhooks, content type application/json, only the push event. For GitLab: the
    secret is the secret token, the trigger is push events.

    Example:
        osmosis workspace show
        osmosis workspace show --webhook
    """
    ctx = current()
    if with_webhook:
        return DetailResult(ctx.client().workspaces.webhook().to_dict(), title="webhook")
    rows = ctx.client(scoped=False).workspaces.list()
    name, source = _find_active(ctx, rows)
    row = next((row for row in rows if row.name == name), None)
    if row is None:
        raise WorkspaceRequired("no workspace chosen", hint="osmosis workspace switch NAME, or osmosis init NAME")
    return DetailResult({**row.to_dict(), "chosen_by": source, "platform_url": ctx.platform_url}, title=str(name))


@app.command()
def switch(name: Name) -> OperationResult:
    """Choose the workspace that commands use outside a workspace folder.

    Example:
        osmosis workspace switch demo
    """
    ctx = current()
    row = _find(ctx.client(scoped=False), name)
    CredentialStore(ctx.environ).set_workspace(ctx.platform_url, name)
    message = f"the active workspace at {ctx.platform_url} is {name}"
    checkout = checkout_identity(ctx)
    if checkout and checkout != row.identity:
        ctx.output.warn("WORKSPACE", f"inside this folder, its own repository decides: {checkout}")
    return OperationResult("workspace.switch", message, row.to_dict())


@app.command()
def create(name: Annotated[str, Argument(help="Letters, digits, - _ .")]) -> OperationResult:
    """Create a workspace with a repository hosted by the platform.

    Example:
        osmosis workspace create demo
    """
    row = current().client(scoped=False).workspaces.create(name)
    steps = [NextStep("create its folder", command=f"osmosis init {name}")]
    message = f"workspace {name} is created, its repository is {row.repository_url}"
    return OperationResult("workspace.create", message, row.to_dict(), next_steps=steps)


@app.command()
def rename(name: Name, new: Annotated[str, Argument(metavar="NEW", help="Letters, digits, - _ .")]) -> OperationResult:
    """Rename a workspace; the address of its repository stays. For owners.

    Example:
        osmosis workspace rename demo support-agents
    """
    ctx = current()
    client = ctx.client(scoped=False)
    _find(client, name)
    row = client.workspaces.rename(name, new)
    credentials = CredentialStore(ctx.environ)
    if credentials.active_workspace(ctx.platform_url) == name:
        credentials.set_workspace(ctx.platform_url, row.name)
    return OperationResult("workspace.rename", f"workspace {name} is called {row.name} now", row.to_dict())


@app.command()
def delete(name: Name) -> OperationResult:
    """Delete a workspace with its repository, runs, datasets, models and secrets. For owners.

    Nothing of it may be in progress. There is no way back but a backup of the platform.

    Example:
        osmosis workspace delete demo
    """
    ctx = current()
    client = ctx.client(scoped=False)
    row = _find(client, name)
    question = f"Delete workspace {name} with its repository, runs, datasets, models and secrets?"
    prompts.agree(ctx, question, "workspace.delete", default=False)
    client.workspaces.delete(name)
    credentials = CredentialStore(ctx.environ)
    if credentials.active_workspace(ctx.platform_url) == name:
        credentials.set_workspace(ctx.platform_url, None)
    return OperationResult("workspace.delete", f"workspace {name} is deleted", row.to_dict())


@app.command()
def connect(
    name: Name,
    repository_url: Annotated[str | None, Argument(help="URL of its repository [default: the origin here]")] = None,
    secret: Annotated[str | None, Option(help="Workspace secret to fetch it: token (https), key (ssh)")] = None,
) -> OperationResult:
    """Connect a workspace to a repository on another git host, or a bare one on disk.

    The platform polls it every few minutes; with `osmosis workspace show --webhook`, a push is synced at once.

    Example:
        osmosis workspace connect demo https://github.com/acme/demo.git
        osmosis secret set DEPLOY_KEY --scope workspace --from-file key
        osmosis workspace connect demo git@github.com:acme/demo.git --secret DEPLOY_KEY
    """
    ctx = current()
    url = repository_url or Git(find_workspace(ctx.cwd).root).text("remote", "get-url", "origin").strip()
    client = ctx.client(scoped=False)
    _find(client, name)
    row = client.workspaces.connect(name, url, secret)
    return OperationResult("workspace.connect", f"workspace {name} is connected to {row.identity}", row.to_dict())


def _find(client: PlatformClient, name: str) -> WorkspaceRow:
    rows = client.workspaces.list()
    for row in rows:
        if row.name == name:
            return row
    hint = guess_hint(name, [row.name for row in rows], "osmosis workspace list")
    raise NotFound(f"there is no workspace {name}", hint=hint)


def _find_active(ctx: AppContext, rows: list[WorkspaceRow]) -> tuple[str | None, str]:
    if ctx.options.workspace:
        return ctx.options.workspace, "--workspace"
    if identity := checkout_identity(ctx):
        for row in rows:
            if row.identity == identity:
                return row.name, "the origin of this folder"
        return None, "the origin of this folder, which is not connected"
    return CredentialStore(ctx.environ).active_workspace(ctx.platform_url), "osmosis workspace switch"

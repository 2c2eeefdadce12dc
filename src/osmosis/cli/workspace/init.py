"""`osmosis init`: the local part is all or nothing, and precedes the platform part, which `--here` can repeat."""

import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from osmosis.cli.core import completion, prompts
from osmosis.cli.core.connect import login_of
from osmosis.cli.core.context import AppContext, current
from osmosis.cli.core.results import NextStep, OperationResult
from osmosis.client import PlatformClient
from osmosis.client.credentials import CredentialStore
from osmosis.errors import AuthRequired, Conflict, NetworkError, OsmosisError, PlatformError, ValidationError
from osmosis.records.api.workspaces import WORKSPACE_NAME, check_workspace_name
from osmosis.workspace import git
from osmosis.workspace.templates import Created, check_destination, create_workspace, find_template

_HELPER_VARIABLES = ("OSMOSIS_CONFIG_DIR", "XDG_CONFIG_HOME")


def init(
    name: Annotated[str | None, Argument(help="Name of the workspace and its folder.")] = None,
    here: Annotated[bool, Option(help="Use the current folder; existing files are kept.")] = False,
    template: Annotated[
        str | None, Option(help="Template of a first rollout.", autocompletion=completion.templates)
    ] = None,
    platform: Annotated[
        bool | None,
        Option("--platform/--no-platform", help="Connect it to a platform [default: if you are logged in to one]"),
    ] = None,
    git: Annotated[bool, Option("--git/--no-git", help="Create a git repository with a first commit.")] = True,
    force: Annotated[bool, Option("--force", "-f", help="With --here: replace existing files.")] = False,
) -> OperationResult:
    """Create a workspace: folders, configs, a git repository, and its connection to the platform.

    Example:
        osmosis init demo
        osmosis init demo --template multiply --no-platform
        osmosis init --here
    """
    ctx = current()
    if name is None and (name_given := _name_after_platform(ctx)):
        name, platform = name_given, True
    if platform and not git:
        raise ValidationError("--platform needs git: code reaches the platform by git push", hint="remove --no-git")
    name, dest = _choose_folder(ctx, name, here)
    client = _client(ctx, platform) if git else None

    check_workspace_name(name, command="osmosis init {} --here" if here else "osmosis init {}")
    check_destination(dest, here=here)
    if client is not None:
        _check_name_on_platform(ctx, client, name, dest)
    created = create_workspace(dest, name, here=here, template=template, git=git, force=force)
    if client is None:
        return _result(ctx, created, None, template)
    try:
        connected = _connect(ctx, client, created)
    except OsmosisError as error:
        cd = "" if here else f"cd {_format_path(ctx, dest)} && "
        hint = f"{error.hint + '; then: ' if error.hint else ''}{cd}osmosis init --here --platform"
        message = f"the workspace is in {dest}, but it is not connected to the platform: {error.message}"
        raise type(error)(message, **{**error.details, "hint": hint}) from error
    return _result(ctx, created, connected, template)


def _name_after_platform(ctx: AppContext) -> str | None:
    value = ctx.options.platform
    if value is None or value == "localhost" or not re.fullmatch(r"[A-Za-z0-9_-]+", value):
        return None
    ctx.options = replace(ctx.options, platform=None)
    return value


def _choose_folder(ctx: AppContext, name: str | None, here: bool) -> tuple[str, Path]:
    if here:
        dest = ctx.cwd.resolve()
        return name or dest.name.lower(), dest
    if name is None:
        name = prompts.ask(ctx, "Workspace name:", flag="give NAME or --here", validate=_check_name)
    return Path(name).name if name else "", ctx.path(name)


def _check_name(text: str) -> bool | str:
    return bool(WORKSPACE_NAME.match(text)) or "small letters, digits, - _ and ., starting with a letter or digit"


def _client(ctx: AppContext, connect: bool | None) -> PlatformClient | None:
    if connect is False:
        return None
    try:
        client = ctx.client(scoped=False)
        client.health()
        return client
    except (AuthRequired, NetworkError, PlatformError) as error:
        if connect:
            raise
        ctx.output.say(f"{error.message}: the workspace is only on this machine")
        return None


def _check_name_on_platform(ctx: AppContext, client: PlatformClient, name: str, dest: Path) -> None:
    row = client.workspaces.find(name)
    if row is None or row.identity is None:
        return
    source = git.read_source(dest) if (dest / ".git").exists() else None
    origin = source.identity if source else None
    if origin == row.identity or (origin is None and _never_pushed(ctx, name)):
        return
    message = f"the platform already has a workspace named {name}, with another repository"
    raise Conflict(message, hint=f"git clone {row.repository_url}, or choose another name", workspace=name)


def _never_pushed(ctx: AppContext, name: str) -> bool:
    login = login_of(ctx)
    url = ctx.platform_url
    trusted = CredentialStore(ctx.environ).ca_file(url)
    with PlatformClient(url, login.token if login else None, workspace=name, ca_file=trusted) as scoped:
        try:
            state = scoped.sync.state()
        except OsmosisError:
            return False
    return state.connected and not state.commit_sha and not state.branches


def _connect(ctx: AppContext, client: PlatformClient, created: Created) -> dict[str, object]:
    source = git.read_source(created.root)
    assert source is not None
    row = client.workspaces.find(created.name) or client.workspaces.create(created.name)
    if source.remote_url and source.identity and source.identity != row.identity:
        client.workspaces.connect(created.name, source.remote_url)
        return {"workspace": created.name, "repository": source.identity, "url": source.remote_url, "pushed": False}
    url = row.repository_url or ""
    if not url:
        raise ValidationError(f"the platform gave no repository URL for {created.name}", hint="osmosis workspace list")
    git.set_remote(created.root, url)
    if url.startswith(("http://", "https://")):
        environ = {key: ctx.environ[key] for key in _HELPER_VARIABLES if ctx.environ.get(key)}
        git.set_credential_helper(created.root, url, [sys.executable, "-m", "osmosis.cli.git_credential"], environ)
        if trusted := CredentialStore(ctx.environ).ca_file(ctx.platform_url):
            git.set_authority(created.root, url, trusted)
    if source.branch and source.commit:
        git.push(created.root, source.branch)
    return {"workspace": created.name, "repository": row.identity, "url": url, "pushed": True}


def _format_path(ctx: AppContext, path: Path) -> str:
    try:
        return str(path.relative_to(ctx.cwd.resolve()))
    except ValueError:
        return str(path)


def _result(
    ctx: AppContext, created: Created, connected: Mapping[str, object] | None, template: str | None
) -> OperationResult:
    folder = _format_path(ctx, created.root)
    name = created.name
    message = f"workspace {name} is in {folder}" if folder != "." else f"this folder is the workspace {name}"
    if connected:
        verb = "pushed to" if connected["pushed"] else "connected with"
        message += f", {verb} {connected['url']}"
    resource: dict[str, object] = {
        "name": created.name,
        "path": str(created.root),
        "files": created.files,
        "git": created.git,
        "commit": created.commit,
        "platform": connected and {"platform_url": ctx.platform_url, **connected},
    }
    steps = [] if folder == "." else [NextStep("go to the workspace", command=f"cd {folder}")]
    if created.git and git.identity_options(created.root):
        warning = f"git does not know your name: the first commit is by {git.FALLBACK_NAME}; git asks before yours"
        ctx.output.warn("NO_GIT_IDENTITY", warning)
        command = 'git config --global user.name "Your Name" && git config --global user.email you@example.com'
        steps.append(NextStep("tell git who you are", command=command))
    if template is None:
        steps.append(NextStep("create a rollout", command="osmosis rollout new multiply --template multiply"))
    else:
        steps.append(NextStep("try it here", command=find_template(template).try_command.format(name=template)))
    if connected is None and created.git:
        steps.append(NextStep("connect it to a platform", command="osmosis init --here --platform"))
    return OperationResult("workspace.init", message, resource, next_steps=steps)

"""Open a platform client for a command. The workspace is `--workspace`, else that of the checkout's `origin`, else the
active one of `workspace switch`. A login of its own counts before that for the whole platform."""

from typing import TYPE_CHECKING

from osmosis.client import PlatformClient
from osmosis.client.credentials import CredentialStore, Login
from osmosis.errors import AuthRequired, OsmosisError

if TYPE_CHECKING:
    from osmosis.cli.core.context import AppContext


def login_of(ctx: "AppContext") -> Login | None:
    workspace, identity = _find_workspace(ctx)
    return CredentialStore(ctx.environ).find(ctx.platform_url, workspace=workspace, identity=identity)


def _find_workspace(ctx: "AppContext") -> tuple[str | None, str | None]:
    if ctx.options.workspace:
        return ctx.options.workspace, None
    if identity := checkout_identity(ctx):
        return None, identity
    return CredentialStore(ctx.environ).active_workspace(ctx.platform_url), None


def open_client(ctx: "AppContext", *, auth: bool = True, scoped: bool = True) -> PlatformClient:
    url = ctx.platform_url
    store = CredentialStore(ctx.environ)
    workspace, identity = _find_workspace(ctx) if scoped else (None, None)
    login = usable(store.find(url, workspace=workspace, identity=identity), url) if auth else None
    hint = "unset OSMOSIS_TOKEN, or give it a token of this platform" if login and login.source == "environment" else ""
    return PlatformClient(
        url,
        login.token if login else None,
        identity=identity,
        workspace=workspace,
        warn=ctx.output.warn,
        auth_hint=hint,
        ca_file=store.ca_file(url),
    )


def usable(login: Login | None, url: str) -> Login:
    if login is None:
        raise AuthRequired(f"not logged in to {url}", hint="osmosis login", platform_url=url)
    if login.expired:
        raise AuthRequired(f"the login to {url} expired on {login.expires_at}", hint="osmosis login", platform_url=url)
    return login


def checkout_identity(ctx: "AppContext") -> str | None:
    if not ctx.in_workspace:
        return None
    from osmosis.base.git import (
        Git,  # a tenth of `whoami`, which is asked outside a checkout, too
        parse_git_url,
    )
    from osmosis.workspace.layout import find_workspace

    try:
        return parse_git_url(Git(find_workspace(ctx.cwd).root).text("remote", "get-url", "origin").strip()).identity
    except OsmosisError:
        return None

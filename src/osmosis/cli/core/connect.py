"""Open a platform client: the workspace is `--workspace`, else that of the checkout's `origin`, else the active one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Protocol

from typer import Option

from osmosis.cli.core.results import Column, ListResult
from osmosis.client import PlatformClient
from osmosis.client.credentials import CredentialStore, Login
from osmosis.errors import AuthRequired, OsmosisError, UsageError
from osmosis.records.api.body import Body, Page

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


def scope_of(client: PlatformClient) -> dict[str, dict[str, str]]:
    scope = client.scope
    if "workspace" in scope:
        return {"workspace": {"name": scope["workspace"]}}
    return {"git": {"identity": scope["identity"]}} if "identity" in scope else {}


def usable(login: Login | None, url: str) -> Login:
    if login is None:
        raise AuthRequired(f"not logged in to {url}", hint="osmosis login", platform_url=url)
    if login.expired:
        raise AuthRequired(f"the login to {url} expired on {login.expires_at}", hint="osmosis login", platform_url=url)
    return login


def checkout_identity(ctx: "AppContext") -> str | None:
    if not ctx.in_workspace:
        return None
    from osmosis.base.git import Git, parse_git_url  # a tenth of `whoami`, which is also asked outside a checkout
    from osmosis.workspace.layout import find_workspace

    try:
        return parse_git_url(Git(find_workspace(ctx.cwd).root).text("remote", "get-url", "origin").strip()).identity
    except OsmosisError:
        return None


Limit = Annotated[int | None, Option(min=1, max=50, help="Show at most N [default: 50]")]
Offset = Annotated[int, Option(min=0, help="Skip the first N", hidden=True)]
Everything = Annotated[bool, Option("--all", help="Show all of them")]
Lines = Annotated[int, Option(min=1, max=200, help="Show the last N lines")]
Cursor = Annotated[str | None, Option(help="Show lines before a page's next_cursor", hidden=True)]
PAGE = 50


class Pages(Protocol):
    def page(self, *, limit: int = ..., offset: int = ...) -> "Page[Body]": ...
    def all(self) -> Sequence[Body]: ...


@dataclass(frozen=True)
class Paging:
    limit: int | None = None
    everything: bool = False
    offset: int = 0

    def __post_init__(self) -> None:
        if self.everything and self.limit is not None:
            raise UsageError("--limit and --all cannot be used together")

    @property
    def size(self) -> int:
        return self.limit or PAGE


def list_result(
    ctx: "AppContext", of: Callable[[PlatformClient], Pages], columns: Sequence[Column], paging: Paging, *, empty: str
) -> ListResult:
    client = ctx.client()
    scope = scope_of(client)
    if paging.everything:
        return ListResult([row.to_dict() for row in of(client).all()], columns, empty=empty, extra=scope)
    page = of(client).page(limit=paging.size, offset=paging.offset)
    return ListResult(
        [row.to_dict() for row in page.rows],
        columns,
        empty=empty,
        total_count=page.total_count,
        has_more=page.has_more,
        next_offset=page.next_offset,
        extra=scope,
    )

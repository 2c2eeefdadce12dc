"""Who one is: device logins, tokens, workspaces and the repository each is connected to."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from .body import Body, Moment, OrEmpty, RequestBody

TokenScope = Literal["api", "git", "worker", "inference"]
"""What a token may be used for: the API and the pages; the git host; running jobs; asking deployed models."""
SCOPES: tuple[TokenScope, ...] = ("api", "git", "worker", "inference")
USUAL_SCOPES: tuple[TokenScope, ...] = ("api", "git")
"""Of a token that was not told."""
TOKEN_DAYS = 90
"""How long a token lives that was not told."""
MAX_TOKEN_DAYS = 366


class DeviceStart(RequestBody):
    """`POST device/authorize` and `POST bootstrap`."""

    device_name: str = Field("unnamed device", alias="deviceName")


class DevicePoll(RequestBody):
    """`POST device/token`."""

    device_code: str


class NewToken(RequestBody):
    """`POST tokens`."""

    name: str = Field(min_length=1, max_length=200)
    scopes: list[TokenScope] = Field(list(USUAL_SCOPES), min_length=1)
    workspace: str | None = None
    """Name of the only workspace it is good for; None for all of the person's."""
    expires_in: int | None = Field(None, ge=60, le=MAX_TOKEN_DAYS * 86400)
    """Seconds; None for 90 days."""


class NewWorkspace(RequestBody):
    """`POST workspaces`."""

    name: str


class ConnectRepository(RequestBody):
    """`POST workspaces/{name}/connect`."""

    repository_url: str
    secret: str | None = None
    """Name of the workspace's secret that fetches it: a token (https) or a private key (ssh)."""


class QuickstartIntent(RequestBody):
    """`POST quickstart`, from older clients; nothing is made of it."""

    organization_id: str = Field("", alias="organizationId")
    intent: str = ""


class Account(Body):
    """A person."""

    id: str | None = None
    email: str | None = None
    name: str | None = None
    handle: str | None = None


class DeviceOffer(Body):
    """Where a person approves a login, and how to ask whether they did."""

    device_code: str
    user_code: str
    verification_uri: str
    verification_uri_complete: str | None = None
    expires_in: int = 900
    """Seconds."""
    interval: int = 5
    """Seconds between two polls."""

    @property
    def page(self) -> str:
        """The address to open: with the code in it where there is one."""
        return self.verification_uri_complete or self.verification_uri


class IssuedLogin(Body):
    """A token, the only time its text is said."""

    token: str = Field(repr=False)
    user: Account = Field(default_factory=Account)
    expires_at: Moment | None = None
    token_id: str | None = None
    name: str | None = None
    scopes: list[str] | None = None
    workspace: str | None = None
    """Name of the only workspace it is good for."""


class WorkspaceRole(Body):
    """The workspace a request spoke for, and what the caller is in it."""

    id: str
    name: str
    role: str | None = None


class Verified(Body):
    """`GET verify`: who a token belongs to."""

    user: Account = Field(default_factory=Account)
    expires_at: Moment | None = None
    token_id: str | None = None
    workspace: WorkspaceRole | None = None
    """Absent when the request named none."""
    valid: bool | None = None
    """Read by clients of generation 0.2 only, like `organization`."""
    organization: WorkspaceRole | None = None
    """The workspace of the request, else the person's first; absent for a person without one."""


class TokenRow(Body):
    """A token without its text."""

    id: str
    name: str
    kind: str
    scopes: list[str] = Field(default_factory=list)
    workspace: str | None = None
    """Name of the only workspace it is good for."""
    parent_id: str | None = None
    """The token it was made with; revoking that one revokes it."""
    current: bool = False
    """Whether it is the one that asks."""
    created_at: Moment | None = None
    expires_at: Moment | None = None
    last_used_at: Moment | None = None


class TokenList(Body):
    tokens: list[TokenRow]


class BrowserLink(Body):
    """An address that logs a browser in once."""

    url: str
    expires_in: int
    """Seconds."""


class ConnectedRepository(Body):
    """The repository of a workspace."""

    repo_full_name: str
    """`owner/repo`."""
    url: str | None = None
    kind: str | None = None
    default_branch: str | None = None


class WorkspaceRow(Body):
    """A workspace one belongs to."""

    id: str
    name: str
    role: str | None = None
    connected_repo: ConnectedRepository | None = None

    @property
    def identity(self) -> str | None:
        """`owner/repo` of its repository."""
        return self.connected_repo.repo_full_name if self.connected_repo else None

    @property
    def repository_url(self) -> str | None:
        return self.connected_repo.url if self.connected_repo else None


class WorkspaceList(Body):
    workspaces: Annotated[list[WorkspaceRow], OrEmpty] = Field(default_factory=list)


class QuickstartRepository(Body):
    connected: bool
    full_name: str | None = None


class QuickstartState(Body):
    """What older clients wait for after a login."""

    repo: QuickstartRepository
    billing_ready: bool
    completed: bool


class Health(Body):
    """`GET /health`."""

    status: str | None = None
    version: str | None = None

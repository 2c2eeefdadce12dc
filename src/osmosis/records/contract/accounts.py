"""Who one is: device logins, tokens, workspaces and the repository each is connected to."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from .body import Body, Moment, OrEmpty, Request


class DeviceStart(Request):
    """`POST device/authorize` and `POST bootstrap`."""

    device_name: str = Field("unnamed device", alias="deviceName")


class DevicePoll(Request):
    """`POST device/token`."""

    device_code: str


class NewToken(Request):
    """`POST tokens`."""

    name: str


class NewWorkspace(Request):
    """`POST workspaces`."""

    name: str


class ConnectRepository(Request):
    """`POST workspaces/{name}/connect`."""

    repository_url: str


class QuickstartIntent(Request):
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

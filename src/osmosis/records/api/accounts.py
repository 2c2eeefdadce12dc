from typing import Annotated, Literal

from pydantic import Field

from osmosis.records.api.body import Body, Moment, OrEmpty, RequestBody

TokenScope = Literal["api", "git", "worker", "inference"]
SCOPES: tuple[TokenScope, ...] = ("api", "git", "worker", "inference")
USUAL_SCOPES: tuple[TokenScope, ...] = ("api", "git")
TOKEN_DAYS = 90
MAX_TOKEN_DAYS = 366


class DeviceStart(RequestBody):
    device_name: str = Field("unnamed device", alias="deviceName")


class DevicePoll(RequestBody):
    device_code: str


class NewToken(RequestBody):
    name: str = Field(min_length=1, max_length=200)
    scopes: list[TokenScope] = Field(list(USUAL_SCOPES), min_length=1)
    workspace: str | None = None
    expires_in: int | None = Field(None, ge=60, le=MAX_TOKEN_DAYS * 86400)
    """Seconds; None for 90 days."""


class NewWorkspace(RequestBody):
    name: str


class ConnectRepository(RequestBody):
    repository_url: str
    secret: str | None = None


class QuickstartIntent(RequestBody):
    """`POST quickstart`, from older clients; ignored."""

    organization_id: str = Field("", alias="organizationId")
    intent: str = ""


class Account(Body):
    id: str | None = None
    email: str | None = None
    name: str | None = None
    handle: str | None = None


class DeviceOffer(Body):
    device_code: str
    user_code: str
    verification_uri: str
    verification_uri_complete: str | None = None
    expires_in: int = 900
    """Seconds."""
    interval: int = 5

    @property
    def page(self) -> str:
        return self.verification_uri_complete or self.verification_uri


class IssuedLogin(Body):
    """A new token; its text is in no later response."""

    token: str = Field(repr=False)
    user: Account = Field(default_factory=Account)
    expires_at: Moment | None = None
    token_id: str | None = None
    name: str | None = None
    scopes: list[str] | None = None
    workspace: str | None = None


class WorkspaceRole(Body):
    id: str
    name: str
    role: str | None = None


class Verified(Body):
    user: Account = Field(default_factory=Account)
    expires_at: Moment | None = None
    token_id: str | None = None
    workspace: WorkspaceRole | None = None
    valid: bool | None = None
    """Read by clients of generation 0.2 only, like `organization`."""
    organization: WorkspaceRole | None = None
    """The workspace of the request, else the person's first; absent for a person without one."""


class TokenRow(Body):
    id: str
    name: str
    kind: str
    scopes: list[str] = Field(default_factory=list)
    workspace: str | None = None
    parent_id: str | None = None
    """The token it was made with; revoking that one revokes it."""
    current: bool = False
    created_at: Moment | None = None
    expires_at: Moment | None = None
    last_used_at: Moment | None = None


class TokenList(Body):
    tokens: list[TokenRow]


class BrowserLink(Body):
    url: str
    expires_in: int
    """Seconds."""


class ConnectedRepository(Body):
    repo_full_name: str
    url: str | None = None
    kind: str | None = None
    default_branch: str | None = None


class WorkspaceRow(Body):
    id: str
    name: str
    role: str | None = None
    connected_repo: ConnectedRepository | None = None

    @property
    def identity(self) -> str | None:
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
    """Older clients wait for it after a login."""

    repo: QuickstartRepository
    billing_ready: bool
    completed: bool


class Health(Body):
    status: str | None = None
    version: str | None = None

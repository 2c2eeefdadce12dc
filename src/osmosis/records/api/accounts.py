"""People, members, tokens and quotas, and the roles with their actions; each role may do what those before it may.
Actions outside of a workspace are for operators."""

from dataclasses import dataclass
from typing import Annotated, Literal, get_args

from pydantic import Field

from osmosis.base.jsonable import JsonObject
from osmosis.records.api.body import Body, Moment, OrEmpty, Page, RequestBody

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


Role = Literal["viewer", "member", "admin", "owner"]
ROLES: tuple[Role, ...] = get_args(Role)
Action = Literal[
    "read", "run", "data", "delete", "push", "secrets.own", "secrets.shared", "repository", "members", "workers",
    "audit", "owners", "workspace",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class PolicyRule:
    action: Action
    least: Role
    about: str


POLICY: tuple[PolicyRule, ...] = (
    PolicyRule("read", "viewer", "see and download runs, rollouts, logs, datasets and models; clone and fetch"),
    PolicyRule(
        "run", "member", "submit, upload, stop, retry, resume, tag, annotate, share runs; serve rollouts; deploy models"
    ),
    PolicyRule("data", "member", "upload datasets and models"),
    PolicyRule("delete", "member", "delete runs, datasets and models"),
    PolicyRule("push", "member", "push, and start a sync"),
    PolicyRule("secrets.own", "member", "set personal secrets, and see the names of all"),
    PolicyRule("secrets.shared", "admin", "set workspace secrets"),
    PolicyRule("repository", "admin", "connect an external repository, and set its key and webhook"),
    PolicyRule("members", "admin", "invite, change and remove viewers, members and admins"),
    PolicyRule("workers", "admin", "create tokens for workers"),
    PolicyRule("audit", "admin", "read the audit log"),
    PolicyRule("owners", "owner", "appoint and remove owners"),
    PolicyRule("workspace", "owner", "rename and delete the workspace"),
)
RULES: dict[Action, PolicyRule] = {rule.action: rule for rule in POLICY}


def may(role: str, action: Action) -> bool:
    return role in ROLES and ROLES.index(role) >= ROLES.index(RULES[action].least)


def markdown() -> str:
    lines = ["| to ... | " + " | ".join(ROLES) + " |", "| --- |" + " --- |" * len(ROLES)]
    for rule in POLICY:
        lines.append(
            f"| {rule.about} | " + " | ".join("yes" if may(role, rule.action) else "" for role in ROLES) + " |"
        )
    return "\n".join(lines)


class NewMember(RequestBody):
    """`POST members`: add a person to the workspace; an unknown address becomes an invitation."""

    person: str = Field(min_length=1, max_length=320)
    role: Role = "member"


class MemberRole(RequestBody):
    role: Role


class MemberRow(Body):
    handle: str | None = None
    """Missing for an invitation."""
    name: str | None = None
    email: str | None = None
    role: str
    invited: bool = False
    since: Moment | None = None


class MemberList(Body):
    members: list[MemberRow] = Field(default_factory=list)


class NewPerson(RequestBody):
    handle: str = Field(min_length=1, max_length=63, pattern=r"^[a-z0-9][a-z0-9-]*$")
    email: str = Field("", max_length=320)
    """Empty: `handle@localhost`."""
    name: str = Field("", max_length=200)
    operator: bool = False


class PersonRow(Body):
    id: str
    handle: str
    name: str
    email: str
    operator: bool = False
    created_at: Moment | None = None
    last_used_at: Moment | None = None
    workspaces: dict[str, str] = Field(default_factory=dict)


class PersonList(Body):
    users: list[PersonRow] = Field(default_factory=list)


class WantedLink(RequestBody):
    hours: int = Field(24, ge=1, le=24 * 7)


class Quota(Body):
    """Numbers of one workspace; as a limit, None is unlimited."""

    runs: int | None = Field(None, ge=0, le=1_000_000)
    rollouts: int | None = Field(None, ge=0, le=1_000_000)
    cpus: float | None = Field(None, ge=0, le=1_000_000)
    """This and the two below: in use at once, by the requests of active jobs."""
    memory_mb: int | None = Field(None, ge=0, le=2**31 - 1)
    gpus: int | None = Field(None, ge=0, le=1_000_000)
    datasets: int | None = Field(None, ge=0, le=10_000_000)
    bytes: int | None = Field(None, ge=0, le=2**62)


class QuotaUse(Body):
    used: Quota
    limits: Quota


class AuditRow(Body):
    id: int
    timestamp: Moment | None = None
    actor: str
    token: str = ""
    address: str = ""
    action: str
    target: str = ""
    workspace_id: str | None = None
    details: JsonObject = Field(default_factory=dict)


class AuditPage(Page[AuditRow]):
    rows_key = "entries"
    entries: list[AuditRow] = Field(default_factory=list)

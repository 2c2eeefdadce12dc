"""A workspace on the platform: its name, synced repository, webhook and secrets. Secret values are in no response."""

import re
from collections.abc import Mapping
from typing import Annotated

from pydantic import AliasChoices, BeforeValidator, Field

from osmosis.errors import ValidationError
from osmosis.records.api.body import Body, Moment, OrEmpty, Page, RequestBody
from osmosis.records.run.source import FoundName, SyncState


class SyncEvent(Body):
    id: str | None = None
    status: str | None = None
    branch: str | None = None
    commit_sha: str | None = None
    author: str | None = None
    message: str | None = None
    rollouts_found: int | None = None
    error: str | None = None
    created_at: Moment | None = None
    finished_at: Moment | None = None


class SyncStarted(Body):
    event: SyncEvent | None = None


class SyncedRepository(Body):
    full_name: str | None = Field(None, validation_alias=AliasChoices("full_name", "repo_full_name"))
    url: str | None = None
    kind: str | None = None
    status: str | None = None
    default_branch: str | None = None


class SyncedBranch(Body):
    name: str | None = None
    commit_sha: str | None = None


def _repository(value: object) -> object:
    return {"full_name": value} if isinstance(value, str) else value


def _branches(value: object) -> object:
    if isinstance(value, Mapping):
        return [{"name": name, "commit_sha": commit} for name, commit in value.items()]
    return [] if value is None else value


def _names(value: object) -> object:
    rows = value if isinstance(value, list) else []
    return [row.get("name", "") if isinstance(row, Mapping) else row for row in rows]


class FoundCode(Body):
    kind: str
    """`rollout`, `config`, `reward_fn`, `reward_rubric` or `mcp` (a tool)."""
    name: str
    """Rollout: its folder's name. Config: its path. Functions: `folder.module:function`."""
    path: str | None = None
    description: str | None = None


class SyncReport(Body):
    """`GET sync`: the repository, its branches as synced, the latest events."""

    repository: Annotated[SyncedRepository | None, BeforeValidator(_repository)] = Field(
        None, validation_alias=AliasChoices("repository", "repo_full_name")
    )
    status: str | None = None
    default_branch: str | None = None
    last_synced_commit_sha: str | None = Field(
        None, validation_alias=AliasChoices("last_synced_commit_sha", "last_synced_commit", "commit_sha")
    )
    last_synced_at: Moment | None = None
    branches: Annotated[list[SyncedBranch], BeforeValidator(_branches)] = Field(default_factory=list)
    events: Annotated[list[SyncEvent], OrEmpty] = Field(default_factory=list)
    total_events: int | None = None
    connected: bool | None = None
    """True when the platform knows the repository; absent: it does when it names one."""
    error: str | None = None
    rollouts: Annotated[list[str], BeforeValidator(_names)] = Field(default_factory=list)
    found: Annotated[list[FoundCode], OrEmpty] = Field(default_factory=list)

    def state(self) -> SyncState:
        latest = self.events[0] if self.events else SyncEvent()
        repository = self.repository or SyncedRepository()
        return SyncState(
            connected=self.repository is not None if self.connected is None else self.connected,
            repository=repository.full_name,
            default_branch=self.default_branch or repository.default_branch,
            commit_sha=self.last_synced_commit_sha,
            branches={each.name: each.commit_sha for each in self.branches if each.name and each.commit_sha},
            status=self.status or latest.status,
            error=self.error or latest.error,
            rollouts=self.rollouts,
            found=[FoundName(kind=item.kind, name=item.name) for item in self.found],
            events=[event.to_dict() for event in self.events],
        )


class SyncedRollout(Body):
    id: str | None = None
    name: str
    description: str | None = None
    is_active: bool | None = None
    last_synced_commit_sha: str | None = None
    last_synced_at: Moment | None = None
    repo_full_name: str | None = None
    created_at: Moment | None = None


class SyncedRolloutPage(Page[SyncedRollout]):
    rows_key = "rollouts"
    rollouts: Annotated[list[SyncedRollout], OrEmpty] = Field(default_factory=list)


class WebhookAddress(Body):
    url: str
    secret: str = Field(repr=False)
    content_type: str


class WebhookTaken(Body):
    status: str


WIRE_SCOPE = {"personal": "user", "workspace": "workspace", "all": "all"}
"""Names of scopes on the wire, by those that people use."""


class NewSecret(RequestBody):
    name: str
    value: str = Field(repr=False)
    scope: str = "user"


class SecretName(RequestBody):
    name: str
    scope: str = "user"


class SecretRow(Body):
    id: str | None = None
    name: str
    scope: str | None = None
    created_at: Moment | None = None
    updated_at: Moment | None = None
    creator_name: str | None = None
    updater_name: str | None = None
    last_used_at: Moment | None = None
    last_used_by: str | None = None
    platform_url: str | None = None

    def for_people(self) -> "SecretRow":
        return self.model_copy(update={"scope": {"user": "personal"}.get(self.scope or "", self.scope)})


class SecretPage(Page[SecretRow]):
    rows_key = "environment_secrets"
    environment_secrets: Annotated[list[SecretRow], OrEmpty] = Field(default_factory=list)
    platform_url: str | None = None


WORKSPACE_NAME = re.compile(r"^[a-z0-9][a-z0-9._-]{0,62}\Z")
RESERVED = {
    "api", "assets", "audit", "audit.jsonl", "auth", "cli-auth", "compare", "compare.json", "datasets",
    "decisions", "decisions.json", "device", "devices", "docs", "evals", "git", "health", "help", "history",
    "history.json", "hooks", "login",
    "logout", "metrics", "models", "openapi.json", "platform", "ready", "repository", "robots.txt", "rollouts",
    "rollout-servers", "runs", "secrets", "servers", "settings", "shared",
    "static", "status", "tokens", "users", "v1", "v1beta",
    "workers", "workers.json", "workspaces",
}  # fmt: skip
"""First segments of other addresses; a workspace's pages start with its name."""


def check_workspace_name(name: str, *, command: str = "") -> None:
    if name in RESERVED or name.endswith(".git"):
        better = f"my-{name.removesuffix('.git')}"[:63]
        message = f"{name!r} cannot be the name of a workspace: the platform's own addresses use it"
    elif not WORKSPACE_NAME.match(name):
        better = re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip("-._")[:63] or "my-workspace"
        message = f"workspace name {name!r}: use small letters, digits, - _ and ., at most 63, a letter or digit first"
    else:
        return
    hint = command.format(better) if command else f"choose another name, for example {better}"
    raise ValidationError(message, hint=hint, field="name")

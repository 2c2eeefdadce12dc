"""What a platform has of a repository: the synced commits, the events of Git Sync and the rollouts they found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import BeforeValidator, Field

from osmosis.records.source import FoundName, SyncState

from .body import Body, Moment, OrEmpty, Page, spelled


class SyncEvent(Body):
    """One look at the repository."""

    id: str | None = None
    status: str | None = None
    """`Pending`, `Syncing`, `Success` or `Failed`."""
    branch: str | None = None
    commit_sha: str | None = None
    author: str | None = None
    message: str | None = None
    rollouts_found: int | None = None
    error: str | None = None
    created_at: Moment | None = None
    finished_at: Moment | None = None


class SyncStarted(Body):
    """`POST sync`."""

    event: SyncEvent | None = None


class SyncedRepository(Body):
    full_name: str | None = Field(None, validation_alias=spelled("full_name", "repo_full_name"))
    """`owner/repo`."""
    url: str | None = None
    kind: str | None = None
    status: str | None = None
    default_branch: str | None = None


class SyncedBranch(Body):
    """A branch and its latest synced commit."""

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
    """Something that Git Sync found in a commit."""

    kind: str
    """`rollout`, `config`, `reward_fn`, `reward_rubric` or `mcp` (a tool)."""
    name: str
    """Rollout: its folder's name. Config: its path. Functions: `folder.module:function`."""
    path: str | None = None
    description: str | None = None


class SyncReport(Body):
    """`GET sync`: the repository, its branches as synced, the latest events."""

    repository: Annotated[SyncedRepository | None, BeforeValidator(_repository)] = Field(
        None, validation_alias=spelled("repository", "repo_full_name")
    )
    status: str | None = None
    """Of the latest event."""
    default_branch: str | None = None
    last_synced_commit_sha: str | None = Field(
        None, validation_alias=spelled("last_synced_commit_sha", "last_synced_commit", "commit_sha")
    )
    """Of the default branch."""
    last_synced_at: Moment | None = None
    branches: Annotated[list[SyncedBranch], BeforeValidator(_branches)] = Field(default_factory=list)
    events: Annotated[list[SyncEvent], OrEmpty] = Field(default_factory=list)
    """Newest first."""
    total_events: int | None = None
    connected: bool | None = None
    """Whether the platform knows the repository; absent: it does when it names one."""
    error: str | None = None
    rollouts: Annotated[list[str], BeforeValidator(_names)] = Field(default_factory=list)
    """Names, where a server says them here."""
    found: Annotated[list[FoundCode], OrEmpty] = Field(default_factory=list)
    """Everything in the default branch's latest synced commit."""

    def state(self) -> SyncState:
        """The facts by which a submit is judged."""
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
            found=[FoundName(kind=one.kind, name=one.name) for one in self.found],
            events=[event.to_dict() for event in self.events],
        )


class SyncedRollout(Body):
    """A rollout that Git Sync found."""

    id: str | None = None
    name: str
    description: str | None = None
    is_active: bool | None = None
    """Read by clients before 0.3.8."""
    last_synced_commit_sha: str | None = None
    last_synced_at: Moment | None = None
    repo_full_name: str | None = None
    created_at: Moment | None = None


class SyncedRolloutPage(Page):
    rollouts: Annotated[list[SyncedRollout], OrEmpty] = Field(default_factory=list)

    @property
    def rows(self) -> Sequence[SyncedRollout]:
        return self.rollouts


class WebhookAddress(Body):
    """`GET webhook`: what GitHub or GitLab is told."""

    url: str
    secret: str = Field(repr=False)
    content_type: str


class WebhookTaken(Body):
    """The answer to a git host."""

    status: str

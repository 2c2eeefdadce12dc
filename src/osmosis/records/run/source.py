from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator, Field

from osmosis.base.jsonable import JsonObject
from osmosis.records.base import Record


class Source(Record):
    """The state of a working tree. Paths are relative to `root`, with `/`."""

    root: str
    """Absolute path of the working tree (of this worktree, when there are several)."""
    branch: str | None = None
    commit: str | None = None
    detached: bool = False
    upstream: str | None = None
    ahead: int | None = None
    """Commits here that the upstream does not have; None when there is no upstream, or it is gone."""
    behind: int | None = None
    dirty: list[str] = Field(default_factory=list)
    """Tracked files with changes, staged or not, conflicts included."""
    conflicts: list[str] = Field(default_factory=list)
    operation: str | None = None
    """The unfinished operation: `rebase`, `merge`, `cherry-pick`, `revert`, `am` or `bisect`."""
    untracked: list[str] = Field(default_factory=list)
    remote_url: str | None = None
    """URL of `origin` without credentials."""
    remote_host: str | None = None
    identity: str | None = None
    """`owner/repo` of the remote: the last two segments of its path, lower-case."""
    default_branch: str | None = None
    prefix: str = ""
    """Folder of the workspace inside the repository, with a trailing `/`; empty at the top."""


class FileFact(Record):
    path: str
    size: int


class RolloutFiles(Record):
    rollout: str
    tracked: int = 0
    submodules: list[str] = Field(default_factory=list)
    lfs: list[str] = Field(default_factory=list)
    """Files stored as Git LFS pointers: a checkout without LFS gets the pointer, not the content."""
    large: list[FileFact] = Field(default_factory=list)
    """Files over the size that makes checkouts slow."""


class PinnedCommit(Record):
    asked: str
    found: str | None = None
    """The full commit, when exactly one starts so."""
    ambiguous: bool = False
    on_remote: bool | None = None
    """True when a remote branch contains it; None when that is unknown here."""
    has_entrypoint: bool | None = None
    """True when it contains the rollout's entrypoint; None when the commit is not here."""


class FoundName(Record):
    kind: str
    name: str


class SyncState(Record):
    connected: bool = True
    repository: str | None = None
    default_branch: str | None = None
    commit_sha: str | None = None
    branches: dict[str, str] = Field(default_factory=dict)
    status: str | None = None
    """Status of the latest sync event: Pending, Syncing, Success or Failed."""
    error: str | None = None
    rollouts: list[str] = Field(default_factory=list)
    found: list[FoundName] = Field(default_factory=list)
    """Everything in that sync, tools, reward functions and rubrics included; empty on older platforms."""
    events: list[JsonObject] = Field(default_factory=list)

    def synced(self, branch: str | None) -> str | None:
        if branch is None or branch == self.default_branch:
            return self.branches.get(branch or self.default_branch or "") or self.commit_sha
        return self.branches.get(branch)

    def knows(self, commit: str) -> bool:
        commits = {*self.branches.values(), self.commit_sha or ""}
        commits.update(str(e.get("commit_sha") or "") for e in self.events if e.get("status") == "Success")
        return any(k.startswith(commit.lower()) for k in commits if k)


MAX_DIFF = 200_000  # Characters of a snapshot's diff that are sent and stored


class SnapshotNote(Record):
    """Changes that were not committed when a working tree was submitted as it was; the code itself is a commit."""

    parent: str | None = Field(default=None, max_length=64)
    files: list[str] = Field(default_factory=list)
    diff: Annotated[str, AfterValidator(lambda text: text[:MAX_DIFF])] = ""
    """Cut after `MAX_DIFF` characters."""

    @classmethod
    def of_request(cls, body: Mapping[str, object]) -> "tuple[dict[str, object], SnapshotNote | None]":
        """Split the body of a submit into the rest and the snapshot; raise pydantic's ValidationError."""
        rest = dict(body)
        snapshot = rest.pop("snapshot", None)
        advanced = rest.get("advanced_config")
        if isinstance(advanced, dict) and "snapshot" in advanced:
            rest["advanced_config"] = {key: value for key, value in advanced.items() if key != "snapshot"}
            snapshot = snapshot or advanced["snapshot"]
        return rest, None if snapshot is None else cls.model_validate(snapshot)
